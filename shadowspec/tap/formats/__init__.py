"""The formats in which peers mirror their traffic, each turned into `MirroredRecord`s."""

from shadowspec.tap.formats.message import open_message
from shadowspec.tap.formats.opened import EventHalf, Format, Opened

__all__ = ["EventHalf", "Format", "Opened", "open_message"]
