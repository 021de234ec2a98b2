"""Reading logged responses: every record with a response, not only sampled and timed ones.

Records are read as they are for measuring, by the same steps and with the same refusals, with these exceptions.  The
sampling rate and the drawn place in a session do not apply, because replay costs next to nothing.  `max_new_tokens`,
which caps the shadow's output, does not apply, because the response exists already.  A record without a response is
unsupported.  So is a record whose output was constrained, at any endpoint, because replay has no masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from shadowspec.tap import anthropic_messages, openai_responses
from shadowspec.tap.bodies import ChoiceBody, MessageBody, ResponseBody, convert_or_refuse
from shadowspec.tap.chat_messages import NO_PARTS, served_messages
from shadowspec.tap.documents import CUT_OFF, is_other_content
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.formats import FieldMap, MessageFormat, Opened, open_message
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.joining import DEFAULT_WINDOW, Joiner
from shadowspec.tap.load_trace import ArrivalTimes
from shadowspec.tap.openai import ParsedRequest, intervention_of, response_of
from shadowspec.tap.parameters import unsupported_error
from shadowspec.tap.reading import Reader, Reading, Tokenizer
from shadowspec.tap.routing import NO_HINTS
from shadowspec.tap.sources import RawRecord
from shadowspec.types import FunnelCounter, FunnelKey, Intervention, RecordKey, ShadowPrompt
from shadowspec.types.prompt_rules import UNNAMED, BrokenArguments, PromptRules

_NO_PLACE_IN_A_CHAT: Final = ("function_call", "refusal", "audio", "parts", CUT_OFF)
_ANSWER: Final = replace(UNNAMED, broken_arguments=BrokenArguments.REFUSED)  # a draft would learn what is damaged
# The logged text is then not the model's.
_NOT_THE_MODELS: Final = (Intervention.REWRITTEN, Intervention.REJECTED)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat with its answer, as a chat template takes it: text content, arguments of tools as values.

    `num_prompt_tokens` is the server's count, without the answer; None where the record does not say.
    """

    messages: Sequence[Mapping[str, Any]] = field(repr=False)
    answer: Mapping[str, Any] = field(repr=False)
    tools: Sequence[Mapping[str, Any]] | None = field(repr=False)
    num_prompt_tokens: int | None


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A request with its response."""

    prompt: ShadowPrompt
    slice_key: str
    unit_key: str  # the session, or its substitute
    text: str | None = field(repr=False)  # the whole text of the response, if the record has all of it as text
    request: ParsedRequest
    body: ResponseBody | None = field(repr=False)
    prompt_rules: PromptRules

    def conversation(self) -> Conversation:
        """The chat and its answer.

        Raises:
            RecordError: unsupported; no chat, or an answer that was cut off or is no message of an assistant.
        """
        if not self.request.messages:
            raise unsupported_error("not_a_chat")
        body, logged = self.body, self.prompt.response
        assert body is not None, "a response was logged"
        if logged is not None and logged.finish_reason == "length":
            raise unsupported_error("cut_off")
        given_ids = self.request.prompt_token_ids
        counted = body.usage.num_prompt_tokens if body.usage is not None else None
        return Conversation(
            served_messages(self.request.messages, self.prompt_rules, NO_PARTS),
            answer_message(body),
            self.request.tools,
            counted if given_ids is None else len(given_ids),
        )


class ResponseReader:
    """Reads the records of one input, in the order of delivery."""

    def __init__(
        self,
        rules: Sequence[EndpointRule],
        tokenizers: Mapping[str, Tokenizer],
        keyed_hash: KeyedHash,
        *,
        format: MessageFormat | FieldMap = MessageFormat.AUTO,
        takes_untimed: bool = False,
        arrivals: ArrivalTimes | None = None,
    ) -> None:
        """
        Args:
            format: how the messages are written.
            takes_untimed: records may lack times and models, because no verdict is made of the calls.
            arrivals: gives the records other times.
        """
        whole = [
            replace(
                rule,
                sample_rate=1.0,
                max_new_tokens=None,
                takes_constraints=False,
                takes_chats=False,
                is_trial=rule.is_trial or takes_untimed,
            )
            for rule in rules
        ]
        self._format, self._arrivals = format, arrivals
        self._reader = Reader(whole, tokenizers, keyed_hash)
        self._joiner = Joiner(DEFAULT_WINDOW)
        self._seen: set[tuple[str, str]] = set()  # endpoint, and the hash of a call's id and body

    def read(self, raw: RawRecord) -> Iterator[LoggedCall | tuple[RecordKey, FunnelKey]]:
        """The calls of one message, or where its records end; of half a call nothing until it is settled."""
        settled: list[Opened] = []
        for opened in open_message(raw, self._format):
            settled += [opened] if opened.half is None else self._joiner.add(opened.key, opened.half)
        yield from self._select_calls(settled)

    def drain(self) -> Iterator[LoggedCall | tuple[RecordKey, FunnelKey]]:
        """The records that waited for their other half; no message follows."""
        yield from self._select_calls(self._joiner.drain())

    def _select_calls(self, settled: Sequence[Opened]) -> Iterator[LoggedCall | tuple[RecordKey, FunnelKey]]:
        if self._arrivals is not None:
            for opened in settled:
                self._arrivals.give(opened)
        for reading in self._reader.read((opened, NO_HINTS) for opened in settled):
            endpoint = reading.rule.name if reading.is_placed else None
            if reading.error is not None:
                yield reading.key, (endpoint, FunnelCounter(reading.error.counter), reading.error.reason)
            elif reading.logged is None:
                yield reading.key, (endpoint, FunnelCounter.UNSUPPORTED, "no_response")
            elif reading.record.is_unsampled:  # other parameters give other acceptance
                yield reading.key, (endpoint, FunnelCounter.UNSUPPORTED, "no_sampling")
            elif intervention_of(reading.record, reading.logged) in _NOT_THE_MODELS:
                yield reading.key, (endpoint, FunnelCounter.UNSUPPORTED, "changed_response")
            elif self._is_known(reading):
                yield reading.key, (endpoint, FunnelCounter.DUPLICATE, "seen_before")
            else:
                yield _call(reading)

    def _is_known(self, reading: Reading) -> bool:
        if reading.request_id_hash is None:
            return False
        call = (reading.rule.name, reading.request_id_hash)
        is_known = call in self._seen
        self._seen.add(call)
        return is_known


def _call(reading: Reading) -> LoggedCall:
    event_time, slice_key = reading.event_time, reading.slice_key
    assert event_time is not None, "placed without a time"
    assert slice_key is not None, "read to the end without a slice"
    prompt = ShadowPrompt(
        reading.key, reading.rule.name, event_time, reading.labels, reading.prompt_token_ids, reading.sampling,
        reading.session_hash, reading.user_hash, reading.request_id_hash, reading.logged,
    )  # fmt: skip
    body = response_of(reading.record)
    return LoggedCall(
        prompt, slice_key, reading.unit_key, response_text(body), reading.request, body,
        reading.rule.prompt_rules,
    )  # fmt: skip


def answer_message(body: ResponseBody) -> Mapping[str, Any]:
    """The answer's only choice as the assistant's message of a chat: content, reasoning and tool calls.

    Raises:
        RecordError: malformed, or unsupported ("answer_not_a_message"): something else was generated, or nothing.
    """
    if openai_responses.is_answer(body):
        messages = openai_responses.answer_messages(body)
    elif anthropic_messages.is_answer(body):
        messages = anthropic_messages.answer_messages(body)
    else:
        messages = [_chosen_message(choice) for choice in body.choices or ()]
    if len(messages) != 1 or messages[0].get("role") != "assistant":
        raise unsupported_error("answer_not_a_message")
    (message,) = messages
    plain = convert_or_refuse(message, MessageBody, "response.message").plain()
    (answer,) = served_messages([plain], _ANSWER, NO_PARTS)
    if not answer["content"] and not answer.get("tool_calls"):
        raise unsupported_error("answer_not_a_message")
    return answer


def _chosen_message(choice: ChoiceBody) -> dict[str, Any]:
    message = {"role": "assistant", "content": choice.text} if choice.message is None else choice.message
    if not isinstance(message, dict) or any(message.get(name) for name in _NO_PLACE_IN_A_CHAT):
        raise unsupported_error("answer_not_a_message")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return {"role": "assistant", **message, "reasoning_content": reasoning or None}


def response_text(body: ResponseBody | None) -> str | None:
    """The text of the answer's only choice, if all that was generated is in it."""
    if body is None:
        return None
    if openai_responses.is_answer(body):
        return openai_responses.answer_text(body)
    if anthropic_messages.is_answer(body):
        return anthropic_messages.answer_text(body)
    if body.choices is None or len(body.choices) != 1:
        return None
    (choice,) = body.choices
    message = choice.message
    if message is None:
        text = choice.text
    elif isinstance(message, dict) and not any(is_other_content(*field) for field in message.items()):
        text = message.get("content")
    else:
        text = None
    return text if isinstance(text, str) else None
