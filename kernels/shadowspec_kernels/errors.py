"""What goes wrong before a kernel is launched; callers translate these into their own."""

from __future__ import annotations


class KernelError(Exception):
    """A kernel was asked for what it cannot do."""


class InputError(KernelError):
    """Tensors that do not fit together, or that a kernel cannot address; the message names them."""


class UnavailableError(KernelError):
    """The backend asked for cannot run here."""
