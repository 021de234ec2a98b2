"""Months of logged responses on a Ray cluster.

In: folders and buckets of JSONL and Parquet.
Out: blocks spread over actors, and a callback for each result.
Imports: tap, types, errors.

Nothing here knows a model: what judges a block is handed in.
"""
