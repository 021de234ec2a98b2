"""Schema, grants, partitions and retention.

In: an engine with the rights of its task.
Out: a database at the code's revision, roles, and removed rows.
Imports: types, errors.
"""
