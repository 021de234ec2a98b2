"""Kernels of the engine, beneath every other package: it imports nothing of `shadowspec`.

The engine runs on torch's own operators so far; each kernel that joins brings its torch specification with it.
"""
