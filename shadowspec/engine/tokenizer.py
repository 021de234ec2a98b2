"""A model folder's tokenizer, which needs no weights: the tap renders and counts prompts with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, TokenizersBackend

from shadowspec.errors import ModelError, RecordError
from shadowspec.types import FunnelCounter

# Exceptions of transformers for a folder that is missing, truncated, of an unknown kind or inconsistent.
PROBED_CHARACTERS = 16  # of a token of context; four is usual

LOADING_ERRORS = (OSError, ValueError, KeyError, RuntimeError, ImportError)


@dataclass(frozen=True, slots=True)
class FolderTokenizer:
    """The target's tokenizer as the tap needs it: token ids as the server would see them."""

    raw: Any  # transformers'
    context_length: int  # tokens
    vocabulary_size: int
    # What computes the ids without offsets and masks, in about two thirds of the time; None where the class adds to it.
    _backend: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        is_plain = getattr(type(self.raw), "_encode_plus", None) is TokenizersBackend._encode_plus  # noqa: SLF001
        backend = self.raw.backend_tokenizer if is_plain and not self.raw.split_special_tokens else None
        if backend is not None:  # as transformers sets it for a text that is to be neither cut nor filled
            backend.no_truncation()
            backend.no_padding()
        object.__setattr__(self, "_backend", backend)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """Token ids of a conversation with the assistant's turn opened.

        Raises:
            RecordError: the target has no chat template, or its template refuses these messages.
        """
        if not self.raw.chat_template:
            raise RecordError(FunnelCounter.UNSUPPORTED, "no_chat_template", "the target has no chat template")
        try:
            rendered = self.raw.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                add_generation_prompt=True,
                tokenize=False,
            )
        except Exception as error:
            # Templates may raise anything; the text of the error may quote the prompt, so it is dropped.
            raise RecordError(
                FunnelCounter.UNSUPPORTED, "chat_template_refused", "the target's chat template refused the messages"
            ) from error
        return self._prompt_ids(rendered, adds_special=False)

    def encode(self, text: str) -> list[int]:
        """Token ids of a completion prompt, special tokens included.

        Raises:
            RecordError: the text is many contexts long.
        """
        return self._prompt_ids(text, adds_special=True)

    def encode_output(self, text: str) -> list[int]:
        """Token ids of generated text: no special token is added."""
        return self._ids(text, adds_special=False)

    def _prompt_ids(self, text: str, *, adds_special: bool) -> list[int]:
        # A text of many contexts is refused by its beginning: the whole of it takes seconds.
        begin = self.context_length * PROBED_CHARACTERS
        if len(text) > begin and len(self._ids(text[:begin], adds_special=adds_special)) > 2 * self.context_length:
            raise RecordError(FunnelCounter.UNSUPPORTED, "longer_than_context")
        return self._ids(text, adds_special=adds_special)

    def _ids(self, text: str, *, adds_special: bool) -> list[int]:
        if self._backend is None:
            return list(self.raw(text, add_special_tokens=adds_special)["input_ids"])
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=adds_special)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of output tokens, special tokens left out; for stop strings, and whether text re-tokenises."""
        return str(self.raw.decode(list(token_ids), skip_special_tokens=True))

    def decode_marked(self, token_ids: Sequence[int]) -> str:
        """The same with its special tokens, by which some models mark tool calls."""
        return str(self.raw.decode(list(token_ids), skip_special_tokens=False))

    def digest(self) -> str:
        """sha256 of vocabulary, special tokens and chat template; hex."""
        content = {
            "vocabulary": sorted(self.raw.get_vocab().items()),
            "special": sorted(str(token) for token in self.raw.all_special_tokens),
            "template": self.raw.chat_template if isinstance(self.raw.chat_template, str) else None,
        }
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def load_config(path: str) -> Any:
    """The transformers config of a model folder.

    Raises:
        ModelError: the folder is missing or its config cannot be read.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(f"model folder {path} does not exist (models are read from local folders)")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except LOADING_ERRORS as error:
        raise unloadable(path, error) from error


def load_tokenizer(path: str) -> FolderTokenizer:
    """The tokenizer of a model folder, without its weights.

    Raises:
        ModelError: the folder is missing, its config or tokenizer cannot be read, or it states no context length.
    """
    config = load_config(path)
    if not getattr(config, "max_position_embeddings", None):
        raise ModelError(f"{path}: {config.model_type} states no context length (max_position_embeddings)")
    try:
        raw = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except LOADING_ERRORS as error:
        raise unloadable(path, error) from error
    return FolderTokenizer(raw, int(config.max_position_embeddings), int(config.vocab_size))


def unloadable(path: str, error: Exception) -> ModelError:
    """The one line to show for a folder that transformers cannot load."""
    first_line = str(error).strip().split("\n")[0][:300]
    return ModelError(f"model folder {path} cannot be loaded: {first_line}")


def check_tokenizers(target_path: str, target: FolderTokenizer, draft_path: str, draft: FolderTokenizer) -> None:
    """Whether a draft uses its target's tokens.

    Raises:
        ModelError: vocabularies or special tokens differ.
    """
    where = f"draft {draft_path} cannot draft for target {target_path}"
    sizes = target.vocabulary_size, draft.vocabulary_size
    if sizes[0] != sizes[1]:
        raise ModelError(f"{where}: vocabulary sizes differ ({sizes[1]} against {sizes[0]})")
    target_vocabulary, draft_vocabulary = target.raw.get_vocab(), draft.raw.get_vocab()
    if target_vocabulary != draft_vocabulary:
        changed = sum(1 for token, index in target_vocabulary.items() if draft_vocabulary.get(token) != index)
        raise ModelError(
            f"{where}: the tokenizers differ ({changed} tokens have another id or are missing); the proposer "
            "heterogeneous_draft_model drafts the tokens that both have"
        )
    if set(target.raw.all_special_ids) != set(draft.raw.all_special_ids):
        raise ModelError(f"{where}: the tokenizers' special tokens differ")


def check_contexts(target_path: str, target: FolderTokenizer, draft_path: str, draft: FolderTokenizer) -> None:
    """Whether a draft can follow its target to the end of its context.

    Raises:
        ModelError: the draft's context is too short.
    """
    where = f"draft {draft_path} cannot follow target {target_path} to its end"
    if draft.context_length < target.context_length:
        raise ModelError(
            f"{where}: its context of {draft.context_length} tokens is shorter than the target's "
            f"{target.context_length}"
        )
