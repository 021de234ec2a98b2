"""The dashboard in a real browser, on real Postgres.

`test_short.py` belongs to `make test`; everything else is marked `browser` and runs with `make test-browser`.
"""
