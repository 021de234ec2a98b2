"""Months of logged responses on a cluster: files found and read, blocks cut, and spread over actors.

Nothing here knows a model: what judges a block is handed in.
"""
