"""A streamed answer taken together: server-sent events in, one completion out.

Times are those of this process's clock when the bytes of an event arrived.  An answer counts only when it is whole: it
has a finish reason and its usage, and nothing in it contradicts the request.
"""

from __future__ import annotations

import json
import math
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from shadowspec.errors import ServiceUnavailableError
from shadowspec.servers.request import ServerRequest
from shadowspec.types.server_sent_events import EventParser, NotEventsError

MAX_EVENT_CHARACTERS: Final = 16 * 1024 * 1024  # an event of tens of thousands of token ids is far smaller
LENGTH: Final = "length"
TOOL_CALLS: Final = "tool_calls"
FINISHED: Final = ("stop", LENGTH, TOOL_CALLS)
REFUSALS: Final = frozenset(range(400, 500)) - {408, 429}  # HTTP statuses of requests that no second try would serve


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A chat's answer, put together from its deltas, and the fault of its stream (None: none was seen).

    `calls` are name and arguments of each tool call, as text.  `num_thinking_tokens` came before the answer began, at
    `thinking_until_s`; None where there are no token ids, or nothing was thought.
    """

    content: str = field(repr=False)
    reasoning: str = field(repr=False)
    calls: tuple[tuple[str, str], ...] = field(repr=False)
    fault: str | None = None
    num_thinking_tokens: int | None = None
    thinking_until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One request's whole answer.  Times are seconds of one clock."""

    token_ids: tuple[int, ...] | None = field(repr=False)  # None: the server returns none
    chunk_sizes: tuple[int, ...]  # tokens of each chunk; () where the server returns no ids
    text: str = field(repr=False)
    finish_reason: str
    num_output_tokens: int
    sent_s: float
    first_token_s: float
    last_token_s: float
    cached_tokens: int | None = None  # of the prompt, from the server's prefix cache; None: it does not say
    queue_ms: float | None = None  # in the server, by the server's clock; None: not reported
    speculation: Mapping[str, Any] | None = None  # the server's metrics of this request's drafts
    first_logprobs: tuple[float, ...] = ()  # of the likeliest tokens at the first place, falling; () if not asked for
    place_logprobs: tuple[
        tuple[float, ...], ...
    ] = ()  # the same of all places, where an event holds those of its tokens
    longest_gap_s: float | None = None  # between two chunks with tokens; None: all came in one
    num_prompt_tokens: int = 0  # as the server counts them
    prompt_token_ids: tuple[int, ...] | None = field(default=None, repr=False)  # of a chat, as the server rendered it
    message: ChatMessage | None = None  # of a chat; its content is `text`
    num_attempts: int = 1
    waited_s: float = 0.0  # for earlier failed attempts and the pauses after them


class StreamedAnswer:
    """Takes the events of one answer."""

    def __init__(self, server: str, model: str, request: ServerRequest, sent_s: float) -> None:
        self._server, self._model, self._request, self._sent_s = server, model, request, sent_s
        self._ids: list[int] = []
        self._sizes: list[int] = []
        self._texts: list[str] = []
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._metrics: Mapping[str, Any] = {}
        self._has_ids = True
        self._first_logprobs: tuple[float, ...] = ()
        self._place_logprobs: list[tuple[float, ...]] = []
        self._first_s: float | None = None
        self._last_s = sent_s
        self._longest_gap_s: float | None = None

    @property
    def has_first_token(self) -> bool:
        """Whether a token has come."""
        return self._first_s is not None

    def take(self, data: str, now_s: float) -> bool:
        """Add the data of one event; returns whether it had tokens.

        Raises:
            ServerError: it is no valid event, or of another model.
        """
        try:
            event = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._fault("garbage", "an event is not JSON") from error
        if not isinstance(event, dict):
            raise self._fault("garbage", "an event is not an object")
        return self._take_event(event, now_s)

    def _take_event(self, event: Mapping[str, Any], now_s: float) -> bool:
        if failed := event.get("error"):
            kind = failed.get("type") if isinstance(failed, dict) else None
            word = kind if isinstance(kind, str) and kind.isidentifier() else "without a type"
            status = failed.get("code") if isinstance(failed, dict) else None
            if type(status) is int and status in REFUSALS:
                raise self._fault(f"http_{status}", f"it refused the request within the answer ({word})")
            raise self._fault("server_error", f"the answer ended in an error ({word})", is_retryable=True)
        if (model := event.get("model")) is not None and model != self._model:
            raise self._fault("other_model", "another model answered than was asked for")
        if isinstance(usage := event.get("usage"), dict):
            self._usage = usage
        if isinstance(metrics := event.get("metrics"), dict):
            self._metrics = metrics
        choices = event.get("choices")
        if not isinstance(choices, list) or len(choices) > 1:
            raise self._fault("garbage", "an event has no list of at most one choice")
        return bool(choices) and self._take_choice(choices[0], now_s)

    def _take_choice(self, choice: Any, now_s: float) -> bool:
        if not isinstance(choice, dict) or not isinstance(text := choice.get("text", ""), str):
            raise self._fault("garbage", "a choice has no text")
        return self._take_tokens(choice, text, now_s)

    def _take_tokens(self, choice: Mapping[str, Any], text: str, now_s: float) -> bool:
        """Add a choice's token ids and its text; returns whether it had any."""
        likeliest = _likeliest(choice.get("logprobs"))
        if not self.has_first_token:
            self._first_logprobs = likeliest[0] if likeliest else ()
        self._place_logprobs += likeliest
        ids = choice.get("token_ids")
        if ids is None:
            self._has_ids = self._has_ids and not text
            ids = []
        elif not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
            raise self._fault("garbage", "token_ids are not token ids")
        self._ids += ids
        self._texts.append(text)
        if len(self._ids) > self._request.sampling.max_tokens:
            raise self._fault("garbage", "more tokens came than requested")
        if (reason := choice.get("finish_reason")) is not None:
            self._finish_reason = str(reason)
        if not ids and not text:
            return False
        if ids:
            self._sizes.append(len(ids))
        self._note_time(now_s)
        return True

    def _note_time(self, now_s: float) -> None:
        """Take the time of tokens that came now."""
        if self._first_s is None:
            self._first_s = now_s
        else:
            self._longest_gap_s = max(self._longest_gap_s or 0.0, now_s - self._last_s)
        self._last_s = now_s

    def completion(self) -> Completion:
        """The whole answer.

        Raises:
            ServerError: a part is missing, or contradicts the request or the events.
        """
        if self._finish_reason is None:
            raise self._fault("cut_off", "the answer ended before it was finished", is_retryable=True)
        if self._finish_reason not in FINISHED:
            raise self._fault("unfinished", "the answer was ended by the server, neither by a stop nor at its length")
        if self._first_s is None:
            raise self._fault("no_tokens", "the answer has no token")
        if self._usage is None:
            raise self._fault("no_usage", "the answer does not report its usage (stream_options.include_usage)")
        prompt_tokens, output_tokens = (self._usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
        self._check_prompt(prompt_tokens)
        assert type(prompt_tokens) is int, "it was checked"
        most = len(self._ids) if self._has_ids else self._request.sampling.max_tokens
        least = len(self._ids) if self._has_ids else 1
        if type(output_tokens) is not int or not least <= output_tokens <= most:
            raise self._fault("miscounted", "the server counts another number of output tokens than it sent")
        details = self._usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        queue_ms, speculation = (self._metrics.get(name) for name in ("queue_time_ms", "speculative_decoding"))
        return Completion(
            token_ids=tuple(self._ids) if self._has_ids else None,
            chunk_sizes=tuple(self._sizes) if self._has_ids else (),
            text="".join(self._texts),
            finish_reason=self._finish_reason,
            num_output_tokens=output_tokens,
            sent_s=self._sent_s,
            first_token_s=self._first_s,
            last_token_s=self._last_s,
            cached_tokens=cached if type(cached) is int and 0 <= cached <= prompt_tokens else None,
            queue_ms=float(queue_ms) if _is_finite(queue_ms) and queue_ms >= 0.0 else None,
            speculation=speculation if isinstance(speculation, dict) else None,
            first_logprobs=self._first_logprobs,
            place_logprobs=tuple(self._place_logprobs),
            longest_gap_s=self._longest_gap_s,
            num_prompt_tokens=prompt_tokens,
        )

    def _check_prompt(self, counted: Any) -> None:
        """Raise ServerError where the server counts another prompt than was sent."""
        if counted != len(self._request.prompt_token_ids):
            raise self._fault("other_prompt", "the server counts another number of prompt tokens than were sent")

    def _fault(self, code: str, message: str, *, is_retryable: bool = False) -> ServerError:
        return ServerError(self._server, code, message, is_retryable=is_retryable)


def _likeliest(logprobs: Any) -> list[tuple[float, ...]]:
    """The log probabilities in `top_logprobs`, place by place and falling; () for a place without any."""
    places = logprobs.get("top_logprobs") if isinstance(logprobs, dict) else None
    return [_falling(place) for place in places] if isinstance(places, list) else []


def _falling(place: Any) -> tuple[float, ...]:
    if not isinstance(place, dict) or not all(map(_is_finite, place.values())):
        return ()
    return tuple(sorted(map(float, place.values()), reverse=True))


def _is_finite(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value)


async def events(server: str, received: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of each server-sent event that has some, from the bytes as they come.

    Raises:
        ServerError: the bytes are no stream of events.
    """
    parser, decoder = EventParser(), getincrementaldecoder("utf-8")()
    try:
        async for part in received:
            for data in parser.feed(decoder.decode(part)):
                if data := data.strip():
                    yield data
            if parser.num_waiting > MAX_EVENT_CHARACTERS:
                raise ServerError(server, "garbage", "an event of the answer does not end")
        for data in (*parser.feed(decoder.decode(b"", final=True)), *parser.end()):
            if data := data.strip():
                yield data
    except UnicodeDecodeError as error:
        raise ServerError(server, "garbage", "an event is not UTF-8") from error
    except NotEventsError as error:
        raise ServerError(server, "garbage", "the answer is not a stream of events") from error


class ServerError(ServiceUnavailableError):
    """A server gave no usable answer.

    `code` is the failure that a run is stored with; `is_retryable` says that the whole request may be sent again.
    """

    def __init__(
        self, server: str, code: str, message: str, *, is_retryable: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{server}: {message}", is_retryable=is_retryable)
        self.code = code
        self.retry_after_s = retry_after_s
