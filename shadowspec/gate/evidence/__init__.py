"""Units and the sums that they add to: clusters, blocks, betting tests, quantiles.

In: records and runs in folding order.
Out: the evidence of a hypothesis, and its stored form.
Imports: metrics, types, errors.
"""
