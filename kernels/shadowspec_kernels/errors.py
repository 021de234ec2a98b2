"""Errors before a kernel is launched; callers translate these into theirs."""

from __future__ import annotations


class KernelError(Exception):
    """A kernel does not support the request."""


class OperandError(KernelError):
    """Tensors that do not fit together, or that a kernel cannot address; the message names them."""


class UnavailableError(KernelError):
    """The backend asked for cannot run here."""
