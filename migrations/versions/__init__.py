"""One module per revision.

In: the tables of the revision before.
Out: those of this one.
Imports: nothing.
"""
