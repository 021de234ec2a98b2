"""What the adapter makes of a request and of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from shadowspec.tap.bodies import MAX_COUNT
from shadowspec.types import LoggedResponse, SamplingParameters


class ParsedResponse(Struct, frozen=True, gc=False):
    """What production answered; `prompt_token_ids`, all below `id_bound`, and `model` as the server saw them."""

    logged: LoggedResponse | None
    prompt_token_ids: tuple[int, ...] | None = None
    model: str | None = None
    id_bound: int = MAX_COUNT

    def __repr__(self) -> str:
        return f"ParsedResponse(logged={self.logged!r}, model={self.model!r})"


class ParsedRequest(Struct, frozen=True, gc=False):
    """One request ready for a tokenizer.

    Exactly one of `prompt_token_ids`, `messages` and `text` is what the prompt is made from; `texts` holds
    the instructions and user turns in order, for the classifier alone.  `sampling.max_tokens` is the
    request's own, or `None` in `max_tokens` where it leaves the length to the context.
    """

    is_chat: bool
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    text: str | None
    prompt_token_ids: tuple[int, ...] | None
    texts: tuple[str, ...]
    sampling: SamplingParameters
    max_tokens: int | None
    offers_tools: bool
    asks_for_json: bool

    def __repr__(self) -> str:
        return f"ParsedRequest(is_chat={self.is_chat!r}, max_tokens={self.max_tokens!r})"
