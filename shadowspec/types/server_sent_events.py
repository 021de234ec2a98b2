"""Server-sent events by the HTML standard (section 9.2.6): how answers are streamed, and how logs hold them.

A line ends with a line feed, a carriage return, or both; no other character ends one, so that texts may hold U+2028,
U+2029 and U+0085.  An event ends with an empty line; its data are its `data` lines, joined by line feeds.  Comments,
`event`, `id`, `retry` and unknown fields are passed over.  In two places the parser differs from the standard: an event
that the end of the stream cuts before its empty line still counts, because logs cut trailing empty lines, and a text
whose first line has no field of the standard is no stream.

In: text in pieces.  Out: the data of events.  Imports: nothing.
"""

from __future__ import annotations

import re
from typing import Final

BYTE_ORDER_MARK: Final = "\ufeff"
DONE: Final = "[DONE]"  # the data of the last event of OpenAI's streams
_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_FIELDS: Final = frozenset({"", "data", "event", "id", "retry"})  # "": a comment


class NotEventsError(ValueError):
    """The text is no stream of events."""


class EventParser:
    """The events of one stream.  How the text is cut into pieces changes nothing."""

    def __init__(self) -> None:
        self._line = ""  # begun, not ended
        self._data: list[str] = []  # of the event that is not ended
        self._size = 0  # of these lines
        self._is_begun = False  # a line with a field has come
        self._is_first, self._ends_on_return = True, False

    @property
    def num_waiting(self) -> int:
        """Characters of the event that has not ended, and its lines."""
        return len(self._line) + self._size

    def feed(self, text: str) -> list[str]:
        """The data of the events that end in a further piece of the stream.

        Raises:
            NotEventsError: the first line has no field of the standard.
        """
        if self._is_first and text:
            self._is_first, text = False, text.removeprefix(BYTE_ORDER_MARK)
        if self._ends_on_return and text:  # a line feed after it ends no second line
            self._ends_on_return, text = False, text.removeprefix("\n")
        *lines, self._line = _LINE_END.split(self._line + text)
        self._ends_on_return = self._ends_on_return or text.endswith("\r")
        return [data for line in lines if (data := self._take(line)) is not None]

    def end(self) -> list[str]:
        """The data of the event that the end of the stream ends.

        Raises:
            NotEventsError: the only line has no field of the standard.
        """
        line, self._line = self._line, ""
        ended = [self._take(line) if line else None, self._take("")]
        return [data for data in ended if data is not None]

    def _take(self, line: str) -> str | None:
        """Take a line in; the data of the event that it ends."""
        if not line:
            data, self._data, self._size = self._data, [], 0
            return "\n".join(data) if data else None
        name, _, value = line.partition(":")
        if not self._is_begun and name not in _FIELDS:
            raise NotEventsError
        self._is_begun = True
        if name == "data":
            self._data.append(value.removeprefix(" "))
            self._size += len(value) + 1
        return None


def events_of(text: str) -> list[str]:
    """The data of all events of a whole stream.

    Raises:
        NotEventsError: it is none.
    """
    parser = EventParser()
    return [*parser.feed(text), *parser.end()]
