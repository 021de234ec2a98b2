"""Promotion checks: one answer from the standing decisions of an endpoint, and how CI systems read it."""
