"""The command line: the composition root.  Heavy imports stay inside the commands that need them."""

from shadowspec.cli.main import main

__all__ = ["main"]
