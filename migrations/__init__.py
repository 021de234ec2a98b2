"""Alembic migrations of the store; they import no application code."""
