"""The slice of a request before it is served, so that a gateway can route it by the slices of the evidence.

A request is read by the steps that the tap applies to its mirrored record.  So the two agree on every request.  A
request that the tap refuses has no slice: a gateway then serves it without speculation.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from shadowspec.errors import RecordError
from shadowspec.tap.documents import parse_document
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.formats import Opened
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.reading import Reader, Tokenizer
from shadowspec.tap.records import decoded_headers, read_record
from shadowspec.tap.routing import Routing
from shadowspec.tap.sources import RawRecord
from shadowspec.types import RecordKey, slice_tag

_KEY: Final = RecordKey("gateway", 0, 0)


@dataclass(frozen=True, slots=True)
class Classified:
    """The endpoint and slice of a request; `reason` is the tap's reason code where it has no slice."""

    endpoint: str | None = None
    slice_key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None

    @property
    def tag(self) -> str | None:
        """The text by which exported routes know the slice; None without one."""
        if self.endpoint is None or self.slice_key is None:
            return None
        return slice_tag(self.endpoint, self.slice_key)


class Classifier:
    """Places requests for one configuration's endpoints.  It holds no state between requests."""

    def __init__(
        self,
        rules: Sequence[EndpointRule],
        tokenizers: Mapping[str, Tokenizer],
        keyed_hash: KeyedHash,
        routing: Routing | None = None,
    ) -> None:
        """
        Args:
            rules: the endpoints; their sampling rates have no effect, as every request is served.
            routing: where the mirror's records have endpoint and session outside the body.
        """
        self._reader = Reader([replace(rule, sample_rate=1.0) for rule in rules], tokenizers, keyed_hash)
        self._routing = routing or Routing()

    def classify(
        self, body: bytes, *, path: str | None = None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> Classified:
        """The slice of one request.  Never raises for the request's content.

        Args:
            body: the JSON body as the gateway received it.
            path: the path of the call.
            headers: the request's headers; names in any case, of several of a name the last wins.
        """
        raw = RawRecord(_KEY._replace(timestamp_ms=time.time_ns() // 1_000_000), body, headers=tuple(headers))
        try:
            document = {"request": parse_document(body), "path": path}
            opened = Opened(raw.key, read_record(document, decoded_headers(headers)))
        except RecordError as error:
            opened = Opened(raw.key, error=error.without_traceback())
        (reading,) = self._reader.read([(opened, self._routing.hints(raw, None))])
        endpoint = reading.rule.name if reading.is_placed else None
        if reading.error is not None:
            return Classified(endpoint, reason=reading.error.reason)
        return Classified(endpoint, reading.slice_key, reading.labels)
