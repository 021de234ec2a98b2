"""The gate's evidence and the live guard's windows: the rows that a fold reads and appends.

In: a connection and an endpoint.
Out: rows in folding order, evidence and progress.
Imports: types, errors.
"""
