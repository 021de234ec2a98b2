"""A draft model of another vocabulary than its target's, drafting the tokens that both have.

Of one tokenizer, vocabularies may be padded to different sizes: then both have the ids below the smaller size.

Token-level intersection (TLI; Timor et al. 2502.05202): the draft's distribution is restricted to the shared tokens,
renormalised, and mapped to the target's ids.  The draft reads a token of the text that it does not have as its unknown
token (without one: as its end of text), as vLLM's `use_heterogeneous_vocab` does, so that text and draft keep the same
positions.  So the draft's distribution follows only from the text, for any meaning of the tokens, and every verify rule
stays lossless; their meaning only affects acceptance.

Tokens are the same where they represent the same bytes.  Two kinds of tokenizers define these: byte-level ones (GPT-2's
alphabet) and those after SentencePiece (a mark for the space, bytes as <0x0A>).  Others are refused.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from shadowspec.engine.kv_cache import RaggedCache
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.tokenizer import FolderTokenizer
from shadowspec.errors import ModelError

SPACE_MARK: Final = "\u2581"  # SentencePiece's
_BYTE_TOKEN: Final = re.compile(r"^<0x([0-9A-F]{2})>$")


@dataclass(frozen=True, slots=True)
class SharedVocabulary:
    """Which tokens a draft shares with its target, as tables on the draft's device."""

    size: int  # of the target's vocabulary
    target_ids: torch.Tensor  # int64 [shared], rising
    draft_ids: torch.Tensor  # int64 [shared]: the draft's id of each
    reading: (
        torch.Tensor
    )  # int64 [size]: the draft's id of every token of the target, its unknown token where it has none

    @property
    def num_shared(self) -> int:
        return len(self.target_ids)

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """The target's ids as the draft reads them, int64 of any shape."""
        return self.reading.index_select(0, tokens.reshape(-1)).view(tokens.shape)

    def spread(self, logits: torch.Tensor) -> torch.Tensor:
        """The draft's logits [..., draft vocabulary] by the target's ids, [..., size]; -inf where it cannot draft."""
        every = logits.new_full((*logits.shape[:-1], self.size), float("-inf"))
        return every.index_copy_(-1, self.target_ids, logits.index_select(-1, self.draft_ids))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that the tables hold."""
        return self.target_ids, self.draft_ids, self.reading


class TranslatedLlama(DirectLlama):
    """A `DirectLlama` behind shared tokens; it holds the same weights as the one it is made of."""

    def __init__(self, model: DirectLlama, shared: SharedVocabulary) -> None:
        vars(self).update(vars(model))
        self.config = _of_size(model.config, shared.size)
        self._shared = shared

    def buffers(self) -> Iterator[torch.Tensor]:
        yield from super().buffers()
        yield from self._shared.tensors()

    def forward(
        self,
        tokens: torch.Tensor,
        angles: torch.Tensor,
        mask: torch.Tensor,
        cache: RaggedCache,
        keep: int,
        hidden_layers: tuple[int, ...] = (),
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `Forward.forward`, whose shapes these are; tokens and logits are the target's."""
        logits, states = super().forward(self._shared.read(tokens), angles, mask, cache, keep, hidden_layers)
        return self._shared.spread(logits), states


class TranslatedModel:
    """A transformers model behind shared tokens: the part of a model that the runner uses."""

    def __init__(self, model: Any, shared: SharedVocabulary) -> None:
        self._model, self._shared = model, shared
        self.config = _of_size(model.config, shared.size)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype

    def parameters(self) -> Iterator[torch.Tensor]:
        """The model's."""
        yield from self._model.parameters()

    def buffers(self) -> Iterator[torch.Tensor]:
        """The model's, and the tables."""
        yield from self._model.buffers()
        yield from self._shared.tensors()

    def num_parameters(self) -> int:
        return int(self._model.num_parameters())

    def __call__(self, *, input_ids: torch.Tensor, **given: Any) -> Any:
        """The output for int64 [rows, tokens], with logits over the target's vocabulary, [..., size]."""
        output = self._model(input_ids=self._shared.read(input_ids), **given)
        output.logits = self._shared.spread(output.logits)
        return output


def translate_model(model: Any, shared: SharedVocabulary) -> DirectLlama | TranslatedModel:
    """A draft, transformers' or a `DirectLlama`, that takes and gives the target's tokens."""
    return TranslatedLlama(model, shared) if isinstance(model, DirectLlama) else TranslatedModel(model, shared)


def shared_vocabulary(
    target: FolderTokenizer, target_path: str, draft: FolderTokenizer, draft_path: str, device: torch.device
) -> SharedVocabulary:
    """The tokens that a draft shares with its target.

    Raises:
        ModelError: a tokenizer does not define the bytes of its tokens, the draft has no token to read unknown ones
            as, or no token is shared.
    """
    where = f"draft {draft_path} cannot draft for target {target_path}"
    try:
        target_meanings, draft_meanings = meanings(target), meanings(draft)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    shared = sorted(
        (target_meanings[meaning], index) for meaning, index in draft_meanings.items() if meaning in target_meanings
    )
    if not shared:
        raise ModelError(f"{where}: the vocabularies share no token")
    unknown = _unknown(draft)
    if unknown is None:
        raise ModelError(f"{where}: its tokenizer names neither an unknown token nor an end of text")
    target_ids, draft_ids = torch.tensor(shared).unbind(1)
    reading = torch.full((target.vocabulary_size,), unknown)
    reading[target_ids] = draft_ids
    return SharedVocabulary(
        target.vocabulary_size, target_ids.to(device), draft_ids.contiguous().to(device), reading.to(device)
    )


def padded_vocabulary(target: FolderTokenizer, draft: FolderTokenizer, device: torch.device) -> SharedVocabulary:
    """The ids that a draft of its target's tokenizer shares with it: those of which both models have a row.

    The draft reads an id past its rows, which only the target's padding can emit, as its unknown token.
    """
    num_shared = min(target.vocabulary_size, draft.vocabulary_size)
    ids = torch.arange(num_shared, device=device)
    unknown = _unknown(draft) or 0
    reading = torch.full((target.vocabulary_size,), unknown if unknown < num_shared else 0, device=device)
    reading[:num_shared] = ids
    return SharedVocabulary(target.vocabulary_size, ids, ids, reading)


Meaning = tuple[str, bytes | str]


def meanings(tokenizer: FolderTokenizer) -> dict[Meaning, int]:
    """The id of every token of the model by its content: bytes, or a special token by its name.

    Where several tokens represent the same bytes it is the one of the lowest id, single bytes last.

    Raises:
        ModelError: the tokenizer is of another kind than those whose bytes are known.
    """
    raw = tokenizer.raw
    read = _reader(raw)
    # Added tokens are literal text; special ones are not.
    added = {str(token.content): bool(token.special) for token in raw.added_tokens_decoder.values()}
    ids_by_meaning: dict[Meaning, int] = {}
    bytes_alone: dict[Meaning, int] = {}
    for token, index in sorted(raw.get_vocab().items(), key=lambda token_and_id: int(token_and_id[1])):
        if index >= tokenizer.vocabulary_size:
            continue  # the model has no row for it
        if token in added:
            meaning: Meaning = ("special", token) if added[token] else ("text", token.encode())
        elif (content := read(token)) is None:
            continue
        else:
            meaning = ("text", content)
        (bytes_alone if _BYTE_TOKEN.match(token) else ids_by_meaning).setdefault(meaning, index)
    return bytes_alone | ids_by_meaning


def _reader(raw: Any) -> Callable[[str], bytes | None]:
    """The function that turns a token into its bytes; None for a token without bytes."""
    backend = getattr(raw, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str())["decoder"] if backend is not None else None
    kinds = {step["type"] for step in (decoder.get("decoders") or [decoder])} if decoder else set()
    if "ByteLevel" in kinds:
        alphabet = _byte_alphabet()
        return lambda token: (
            bytes(alphabet[character] for character in token)
            if all(character in alphabet for character in token)
            else None
        )
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentencepiece_bytes
    raise ModelError("its tokenizer or its target's is neither byte-level nor SentencePiece's: bytes are not known")


def _sentencepiece_bytes(token: str) -> bytes:
    byte = _BYTE_TOKEN.match(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE_MARK, " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: printable bytes are themselves, the others the characters from 256 on, in their order."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _unknown(draft: FolderTokenizer) -> int | None:
    ids = (draft.raw.unk_token_id, draft.raw.eos_token_id)
    return next((int(token_id) for token_id in ids if token_id is not None), None)


def _of_size(config: Any, size: int) -> Any:
    """A copy of a model's config that says how many tokens are taken and given."""
    changed = copy.copy(config)
    changed.vocab_size = size
    return changed
