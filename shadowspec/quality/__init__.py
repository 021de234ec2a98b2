"""Contracts and scores of outputs: contracts, tool calls, custom scores.

In: the outputs of both arms and the request.
Out: validity flags and scores.
Imports: types, errors.
"""
