"""From the evidence of a hypothesis to its verdict, and from verdicts to the endpoint's.

In: evidence, levels and earlier decisions.
Out: decisions with their tests and reasons; which decision is current.
Imports: metrics, text, types, errors.
"""
