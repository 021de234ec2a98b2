"""The tokens of a logged response, checked against the engine's rules for ends.

A response can be replayed when its tokens are known, and where it ended: at a token that ends the request, at a stop
string, or at a limit of length.  Servers may leave the token that ended a response out of the log; where only one token
is possible, it is added again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from shadowspec.engine.batch import Request
from shadowspec.errors import RecordError
from shadowspec.types import FunnelCounter, RecordKey, ShadowPrompt

LENGTH = "length"
# The response's values for an end at a token or a stop string.
STOPPED = frozenset({"stop", "tool_calls", "function_call", "eos_token", "end_turn", "stop_sequence"})


@dataclass(frozen=True, slots=True)
class Response:
    """One response to replay, with its request."""

    key: RecordKey
    request: Request
    output: tuple[int, ...] = field(repr=False)  # with the token that ended it, if one did
    token_logprobs: tuple[float, ...] | None = field(default=None, repr=False)  # of the logged tokens

    def by_temperature_alone(self) -> Response:
        """The response as a draft is held against it that follows nothing else of the request's sampling."""
        sampling = self.request.sampling.temperature_alone()
        return replace(self, request=replace(self.request, sampling=sampling))


class OutputTokenizer(Protocol):
    """The target's tokenizer as replay needs it."""

    @property
    def vocabulary_size(self) -> int: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def encode_output(self, text: str) -> list[int]: ...


def refusal_error(key: RecordKey, reason: str, message: str) -> RecordError:
    """The error of a record that cannot be replayed; the message is without a text of prompt or response."""
    return RecordError(FunnelCounter.UNSUPPORTED, reason, f"{key}: {message}")


def logged_response(
    prompt: ShadowPrompt, text: str | None, tokenizer: OutputTokenizer, end_token_ids: frozenset[int]
) -> Response:
    """The response of a record.

    Args:
        prompt: the record, whose `sampling` has the limits that production had.
        text: the whole text of the response; used where the record has no token ids, and only if it makes
            the same number of tokens as the server counted.
        tokenizer: the target's.
        end_token_ids: those that end the target's texts.

    Raises:
        RecordError: unsupported; "no_response", "no_token_ids", "does_not_retokenise", "token_not_in_vocabulary",
            "token_count_differs", "end_unknown" or "goes_on_after_end".
    """
    key, logged = prompt.key, prompt.response
    if logged is None:
        raise refusal_error(key, "no_response", "the record holds no response")
    request = Request(prompt.prompt_token_ids, prompt.sampling, seed=0)
    ends = request.end_ids(end_token_ids)
    is_from_text = not logged.token_ids
    ids = logged.token_ids or _retokenise(key, text, logged.num_output_tokens, tokenizer)
    if max(ids) >= tokenizer.vocabulary_size:
        raise refusal_error(
            key, "token_not_in_vocabulary", "the response holds a token id that the target does not have"
        )
    output = _append_end(key, request, ids, logged.finish_reason, ends, tokenizer)
    counted = logged.num_output_tokens
    if counted is not None and counted not in ((len(output),) if is_from_text else (len(ids), len(output))):
        reason = "does_not_retokenise" if is_from_text else "token_count_differs"
        raise refusal_error(key, reason, f"the server counted {counted} output tokens, the record gives {len(output)}")
    _check_end(key, request, output, ends, tokenizer)
    logprobs = logged.token_logprobs if not is_from_text else None
    return Response(key, request, output, logprobs)


def _retokenise(
    key: RecordKey, text: str | None, num_output_tokens: int | None, tokenizer: OutputTokenizer
) -> tuple[int, ...]:
    """The tokens of the text; whether they are as many as were sampled is looked at when the end is known."""
    if not text or num_output_tokens is None:
        raise refusal_error(
            key, "no_token_ids", "the record has neither the response's token ids nor its text with a count of tokens"
        )
    ids = tuple(tokenizer.encode_output(text))
    if not ids or tokenizer.decode(ids) != text:
        raise refusal_error(key, "does_not_retokenise", "the response's tokens do not decode to its text")
    return ids


def _append_end(
    key: RecordKey,
    request: Request,
    ids: tuple[int, ...],
    finish_reason: str | None,
    ends: frozenset[int],
    tokenizer: OutputTokenizer,
) -> tuple[int, ...]:
    """The tokens with the one that ended them."""
    is_at_end_token = ids[-1] in ends and len(ids) >= request.sampling.min_tokens
    is_full = len(ids) == request.sampling.max_tokens
    if is_at_end_token or is_full or finish_reason == LENGTH or _has_stop(request, ids, tokenizer):
        return ids
    if finish_reason not in STOPPED:
        said = "no finish_reason" if finish_reason is None else "a finish_reason that does not say how it ended"
        raise refusal_error(key, "end_unknown", f"{said}, and the last token does not end the response")
    if len(ends) != 1:
        raise refusal_error(
            key, "end_unknown", f"the token that ended the response is not logged, and {len(ends)} tokens could have"
        )
    return (*ids, *ends)


def _check_end(
    key: RecordKey, request: Request, output: tuple[int, ...], ends: frozenset[int], tokenizer: OutputTokenizer
) -> None:
    """Refuse a response that the loop would have ended sooner: it was not sampled as the record says."""
    sampling = request.sampling
    before = output[:-1]
    is_late = (
        len(output) > sampling.max_tokens
        or any(token in ends for token in before[max(0, sampling.min_tokens - 1) :])
        or (len(before) >= sampling.min_tokens and _has_stop(request, before, tokenizer))
    )
    if is_late:
        raise refusal_error(
            key, "goes_on_after_end", "the response continues after a token or a length that ends the request"
        )


def _has_stop(request: Request, ids: Sequence[int], tokenizer: OutputTokenizer) -> bool:
    if not request.sampling.stop or not ids:
        return False
    text = tokenizer.decode(ids)
    return any(stop in text for stop in request.sampling.stop)
