"""Months of logged responses on a Ray cluster.

In: folders and buckets of JSONL and Parquet.
Out: blocks spread over actors, and a callback for each result.
Imports: tap, child_processes, types, errors.

No module here knows a model: the caller passes the function that judges a block.
"""
