"""What an output must be, and how it scores: contracts, tool calls, custom scores.

In: the outputs of both arms and the request.
Out: validity flags and scores.
Imports: types, errors.
"""
