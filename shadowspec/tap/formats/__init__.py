"""The formats in which peers mirror their traffic, one module for each.

In: message bytes and headers.
Out: mirrored records, or the reason for refusal.
Imports: types, errors.
"""

from shadowspec.tap.formats.field_map import FieldMap
from shadowspec.tap.formats.message import open_message
from shadowspec.tap.formats.opened import EventHalf, MessageFormat, Opened
from shadowspec.tap.formats.proposed_map import propose

__all__ = ["EventHalf", "FieldMap", "MessageFormat", "Opened", "open_message", "propose"]
