"""A streamed chat taken together: what a client makes of its deltas, and whether the stream kept its promises.

A server cuts a model's text into reasoning, content and tool calls while it streams; speculation hands its parsers
several tokens at once.  Some faults show in one stream.  Others show only beside the baseline's: the same tokens must
make the same message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from shadowspec.quality.tool_calls import CALL_MARKS, arguments_of
from shadowspec.servers.stream import LENGTH, TOOL_CALLS, ChatMessage, Completion, StreamedAnswer
from shadowspec.types import WHOLE_STREAM, StreamParity, Thinking

# Text that a template or a parser writes around parts of an answer, and no part holds.
MARKERS: Final = (
    *(*CALL_MARKS, "</tool_call>", "<\uff5ctool\u2581calls\u2581begin\uff5c>"),
    *("<think>", "</think>", "[THINK]", "[/THINK]"),
    *("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|channel|>", "<|message|>", "<|call|>"),
)
REASONING_FIELDS: Final = ("reasoning", "reasoning_content")  # the later name, and the earlier one
# Codes of faults, as runs store them.
USAGE: Final = "usage"  # another number of tokens was counted than was streamed
CALL_PLACES: Final = "call_places"  # a call's parts have no place, or a call has no name
CALL_ARGUMENTS: Final = "call_arguments"  # they are no JSON object
FINISH: Final = "finish_reason"  # it names calls, and none came
MARKER: Final = "marker"
MESSAGE: Final = "message"  # the baseline's message is another one, of the same tokens
# No output of a model makes these.
_THE_SERVERS: Final = frozenset({USAGE, CALL_PLACES, FINISH, MESSAGE})


@dataclass(slots=True)
class _Call:
    """A tool call so far."""

    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ChatAnswer(StreamedAnswer):
    """Takes the events of one answer of /v1/chat/completions."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._prompt_ids: tuple[int, ...] | None = None
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._fault_code: str | None = None
        self._thinking: tuple[int, float] | None = None  # tokens that came before the answer, and when the last came
        self._has_answer = False

    @property
    def _num_tokens(self) -> int:
        """The tokens that have come."""
        return len(self._ids)

    def _take_event(self, event: Mapping[str, Any], now_s: float) -> bool:
        ids = event.get("prompt_token_ids")
        if isinstance(ids, list) and all(type(token) is int for token in ids):
            self._prompt_ids = tuple(ids)
        return super()._take_event(event, now_s)

    def _take_choice(self, choice: Any, now_s: float) -> bool:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict):
            raise self._fault("garbage", "a choice has no delta")
        content = delta.get("content") or ""
        reasoning = next((delta[name] for name in REASONING_FIELDS if delta.get(name)), "")
        calls = delta.get("tool_calls") or []
        if not isinstance(content, str) or not isinstance(reasoning, str) or not isinstance(calls, list):
            raise self._fault("garbage", "a delta has parts of other types")
        for call in calls:
            self._take_call(call)
        if reasoning:
            self._reasoning.append(reasoning)
        self._has_answer = self._has_answer or bool(content.strip() or calls)
        # A token may come without text of its own: the parser holds it back.
        has_text = bool(content or reasoning or calls)
        brought = self._take_tokens({**choice, "logprobs": _places(choice.get("logprobs"))}, content, now_s) or has_text
        if has_text and choice.get("token_ids") is None:
            self._has_ids = False
            self._note_time(now_s)
        if self._reasoning and not self._has_answer:
            self._thinking = self._num_tokens, now_s
        return brought

    def _take_call(self, part: Any) -> None:
        """Add a part of a tool call to the call at its place."""
        function = part.get("function") if isinstance(part, dict) else None
        place = part.get("index") if isinstance(part, dict) else None
        if type(place) is not int or not isinstance(function, dict | None):
            self._fault_code = self._fault_code or CALL_PLACES
            return
        call, given = self._calls.setdefault(place, _Call()), function or {}
        if isinstance(name := given.get("name"), str):
            call.name += name
        if isinstance(arguments := given.get("arguments"), str):
            call.arguments.append(arguments)

    def completion(self) -> Completion:
        """The whole answer with its message.

        Raises:
            ServerError: a part is missing, or contradicts the request or the events.
        """
        usage = self._usage or {}
        if self._has_ids and type(counted := usage.get("completion_tokens")) is int and counted != len(self._ids):
            self._fault_code = self._fault_code or USAGE
            self._usage = {**usage, "completion_tokens": len(self._ids)}
        answer = super().completion()
        calls = tuple((call.name, "".join(call.arguments)) for _, call in sorted(self._calls.items()))
        content, reasoning = answer.text, "".join(self._reasoning)
        tokens, until_s = self._thinking or (0, None)
        message = ChatMessage(
            content,
            reasoning,
            calls,
            self._fault_code or _fault_of(content, reasoning, calls, answer.finish_reason),
            num_thinking_tokens=tokens if self._has_ids and reasoning else None,
            thinking_until_s=until_s,
        )
        return replace(answer, message=message, prompt_token_ids=self._prompt_ids)

    def _check_prompt(self, counted: Any) -> None:
        if type(counted) is not int or counted < 1:
            raise self._fault("no_usage", "the answer does not count the tokens of its prompt")


def _places(logprobs: Any) -> Any:
    """A chat's log probabilities in the form of a completion's."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list):
        return None
    places = [place.get("top_logprobs") if isinstance(place, dict) else None for place in content]
    listed = [place if isinstance(place, list) else [] for place in places]
    return {
        "top_logprobs": [
            {str(rank): top.get("logprob") for rank, top in enumerate(place) if isinstance(top, dict)}
            for place in listed
        ]
    }


def _fault_of(content: str, reasoning: str, calls: tuple[tuple[str, str], ...], finish_reason: str) -> str | None:
    """The fault that shows in a message; one that was cut at its limit may end anywhere."""
    if finish_reason == TOOL_CALLS and not calls:
        return FINISH
    if any(not name for name, _ in calls):
        return CALL_PLACES
    if any(marker in text for text in (content, reasoning) for marker in MARKERS):
        return MARKER
    if finish_reason != LENGTH and any(arguments_of(arguments) is None for _, arguments in calls):
        return CALL_ARGUMENTS
    return None


def stream_parity(base: Completion, spec: Completion) -> StreamParity | None:
    """Whether both streams of a chat are whole, and whether a fault is speculation's; None of another request.

    A fault is proven where no output of the model explains it: it contradicts itself, or the baseline made another
    message of the same tokens.  Any other may be the model's, and only its rate beside the baseline's tells.
    """
    if base.message is None or spec.message is None:
        return None
    before, found = base.message.fault, spec.message.fault
    is_same_output = spec.token_ids is not None and spec.token_ids == base.token_ids
    if is_same_output and _shown(base) != _shown(spec):
        found = found or MESSAGE
        is_proven = before is None
    else:
        is_proven = found in _THE_SERVERS and found != before
    return StreamParity(before or WHOLE_STREAM, found or WHOLE_STREAM, is_stream_fault=is_proven)


def _shown(answer: Completion) -> tuple[Any, ...]:
    assert answer.message is not None, "a chat's answer"
    message = answer.message
    return message.content, message.reasoning, message.calls, answer.finish_reason


def thinking_of(base: Completion, spec: Completion, steps: Sequence[tuple[int, int]] | None) -> Thinking | None:
    """What both arms thought before they answered; None where neither did.

    Args:
        steps: drafted and accepted tokens of each of the speculative answer's steps; None: not reported.
    """
    if base.message is None or spec.message is None or not (base.message.reasoning or spec.message.reasoning):
        return None
    drafts = _drafts_within(spec, steps)
    return Thinking(
        *(answer.message.num_thinking_tokens if answer.message else None for answer in (base, spec)),
        *(_thinking_ms(answer) for answer in (base, spec)),
        *((None, None, None) if drafts is None else drafts),
    )


def _thinking_ms(answer: Completion) -> float:
    """Time from the first token to the last one before the answer; 0 where nothing was thought."""
    until_s = answer.message.thinking_until_s if answer.message is not None else None
    return 0.0 if until_s is None else 1e3 * (until_s - answer.first_token_s)


def _drafts_within(spec: Completion, steps: Sequence[tuple[int, int]] | None) -> tuple[int, int, int] | None:
    """Steps that lie wholly in the thinking, their drafted and their accepted tokens.

    Known where each chunk but the first is a step: a step without a draft would shift those after it.
    """
    number = spec.message.num_thinking_tokens if spec.message is not None else None
    if steps is None or number is None or len(spec.chunk_sizes) != 1 + len(steps):
        return None
    place, within = spec.chunk_sizes[0], []
    for size, step in zip(spec.chunk_sizes[1:], steps, strict=True):
        place += size
        if place > number:
            break
        within.append(step)
    return len(within), sum(drafted for drafted, _ in within), sum(accepted for _, accepted in within)
