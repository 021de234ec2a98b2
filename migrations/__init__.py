"""Alembic migrations of the store; they import no application code.

In: a connection.
Out: the store's tables as the newest version has them.
Imports: nothing.
"""
