"""The responses in files of mirrored traffic, each held against what its endpoint's loop would have made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shadowspec.app.before_loading import tokenizers_by
from shadowspec.config import Config
from shadowspec.engine.replay.response_tokens import Response, logged_response
from shadowspec.engine.tokenizer import FolderTokenizer, load_tokenizer
from shadowspec.errors import RecordError
from shadowspec.tap.responses import LoggedCall, ResponseReader
from shadowspec.tap.sources import RawRecord
from shadowspec.types import FunnelCounter, FunnelKey, RecordKey


def model_tokenizers(config: Config) -> dict[str, FolderTokenizer]:
    """The target tokenizer of each endpoint as transformers reads it beside the weights.

    Raises:
        ModelError: a folder holds no usable tokenizer.
    """
    return tokenizers_by(lambda endpoint: load_tokenizer(endpoint.target), config)


@dataclass(frozen=True, slots=True)
class EndpointTexts:
    """How an endpoint's texts become tokens, and which tokens end them."""

    tokenizer: FolderTokenizer
    end_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Ended:
    """A record without a response that can be used: where it ended, and the refusal of its response if there is one."""

    key: RecordKey
    end: FunnelKey
    refusal: RecordError | None = None

    @classmethod
    def from_error(cls, call: LoggedCall, error: RecordError) -> Ended:
        """A record whose response is refused; the error's message names it."""
        return cls(call.prompt.key, (call.prompt.endpoint, FunnelCounter(error.counter), error.reason), error)


def logged_responses(
    raws: Iterable[RawRecord], reader: ResponseReader, endpoints: Mapping[str, EndpointTexts]
) -> Iterator[tuple[LoggedCall, Response] | Ended]:
    """Every record's response, or where it ended; those of endpoints that are not given are sampled out."""
    for raw in raws:
        yield from _read_responses(reader.read(raw), endpoints)
    yield from _read_responses(reader.drain(), endpoints)


def _read_responses(
    readings: Iterable[LoggedCall | tuple[RecordKey, FunnelKey]], endpoints: Mapping[str, EndpointTexts]
) -> Iterator[tuple[LoggedCall, Response] | Ended]:
    for reading in readings:
        if isinstance(reading, tuple):
            yield Ended(*reading)
            continue
        prompt = reading.prompt
        endpoint_texts = endpoints.get(prompt.endpoint)
        if endpoint_texts is None:
            yield Ended(prompt.key, (prompt.endpoint, FunnelCounter.SAMPLED_OUT, "other_endpoint"))
            continue
        try:
            response = logged_response(prompt, reading.text, endpoint_texts.tokenizer, endpoint_texts.end_token_ids)
        except RecordError as error:
            yield Ended.from_error(reading, error)
        else:
            yield reading, response
