"""A target's tokenizer as the tap and scorers need it, whichever library reads the folder.

In: messages and texts.  Out: token ids as the server would see them.  Imports: types, errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from shadowspec.errors import RecordError
from shadowspec.types import FunnelCounter
from shadowspec.types.prompt_rules import TemplateTraits

PROBED_CHARACTERS: Final = 16  # of a token of context; four is usual


class TargetTokenizer(ABC):
    """A tokenizer of a model folder; `context_length` is in tokens, of prompt and output together."""

    __slots__ = ()
    context_length: int
    vocabulary_size: int

    @abstractmethod
    def with_context(self, length: int) -> Self:
        """The tokenizer with another context length."""

    @abstractmethod
    def template_of(self, tools: Sequence[Mapping[str, Any]] | None) -> str | None:
        """The source of the chat template that renders messages beside these tools; None: the folder has none."""

    @abstractmethod
    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        """The text of a conversation with the assistant's turn opened; what a template raises is not caught."""

    @abstractmethod
    def _all_ids(self, texts: Sequence[str], *, adds_special: bool) -> list[list[int]]:
        """Token ids of each text, where the library can on several cores at once."""

    @abstractmethod
    def _text(self, token_ids: Sequence[int], *, skips_special: bool) -> str:
        """The text of token ids."""

    def traits_of(self, tools: Sequence[Mapping[str, Any]] | None) -> TemplateTraits:
        """What decides how messages beside these tools have to look for the target's chat template."""
        from shadowspec.model_folder.chat_template import template_traits

        source = self.template_of(tools)
        return template_traits(source) if source else TemplateTraits()

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """Token ids of a conversation with the assistant's turn opened.

        Raises:
            RecordError: the target has no chat template, or its template refuses these messages.
        """
        return self._prompt_ids(self.chat_text(messages, tools), adds_special=False)

    def chat_text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        """The text of a conversation with the assistant's turn opened.

        Raises:
            RecordError: as `render_chat`.
        """
        if not self.template_of(tools):
            raise RecordError(FunnelCounter.UNSUPPORTED, "no_chat_template", "the target has no chat template")
        try:
            return self.render(messages, tools)
        except Exception as error:
            # Templates may raise anything; the text of the error may quote the prompt, so it is dropped.
            raise RecordError(
                FunnelCounter.UNSUPPORTED, "chat_template_refused", "the target's chat template refused the messages"
            ) from error

    def encode(self, text: str) -> list[int]:
        """Token ids of a completion prompt, special tokens included.

        Raises:
            RecordError: the text is many contexts long.
        """
        return self._prompt_ids(text, adds_special=True)

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[list[int] | RecordError]:
        """Token ids of many prompts, each a text and whether special tokens are added, together and in order.

        A text of many contexts has its error in place of ids.
        """
        found: list[list[int] | RecordError | None] = [None] * len(texts)
        for wants_special in (False, True):
            places = []
            for place, (text, adds_special) in enumerate(texts):
                if adds_special is wants_special:
                    if self._is_long(text):
                        found[place] = self._ids_or_error(text, adds_special=adds_special)
                    else:
                        places.append(place)
            together = self._all_ids([texts[place][0] for place in places], adds_special=wants_special)
            for place, ids in zip(places, together, strict=True):
                found[place] = ids
        return [ids for ids in found if ids is not None]

    def encode_output(self, text: str) -> list[int]:
        """Token ids of generated text: no special token is added."""
        return self._ids(text, adds_special=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of output tokens, special tokens left out; for stop strings, and whether text re-tokenises."""
        return self._text(token_ids, skips_special=True)

    def decode_marked(self, token_ids: Sequence[int]) -> str:
        """The same with its special tokens, by which some models mark tool calls."""
        return self._text(token_ids, skips_special=False)

    def _prompt_ids(self, text: str, *, adds_special: bool) -> list[int]:
        # A text of many contexts is refused by its beginning: the whole of it takes seconds.
        begin = self.context_length * PROBED_CHARACTERS
        if self._is_long(text) and len(self._ids(text[:begin], adds_special=adds_special)) > 2 * self.context_length:
            raise RecordError(FunnelCounter.UNSUPPORTED, "longer_than_context")
        return self._ids(text, adds_special=adds_special)

    def _ids_or_error(self, text: str, *, adds_special: bool) -> list[int] | RecordError:
        try:
            return self._prompt_ids(text, adds_special=adds_special)
        except RecordError as error:
            return error.without_traceback()

    def _is_long(self, text: str) -> bool:
        return len(text) > self.context_length * PROBED_CHARACTERS

    def _ids(self, text: str, *, adds_special: bool) -> list[int]:
        (ids,) = self._all_ids([text], adds_special=adds_special)
        return ids
