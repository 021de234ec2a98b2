"""A model folder's tokenizer, which needs no weights: the tap renders and counts prompts with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, TokenizersBackend
from transformers import __version__ as transformers_version
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging as transformers_logging

from shadowspec.errors import ModelError
from shadowspec.model_folder import AGAIN, TargetTokenizer, require_settings, require_tokenizer
from shadowspec.model_folder.encoder import Encoder

transformers_logging.disable_progress_bar()  # stderr is ours

DEFAULT_ROPE = "default"  # which transformers has no function of
_NAME = re.compile(r"'[\w.-]+'")  # the whole text of an error about a name that is not in a table


@dataclass(frozen=True, slots=True)
class FolderTokenizer(TargetTokenizer):
    """A folder's tokenizer as transformers loads it."""

    raw: Any  # transformers'
    context_length: int  # tokens
    vocabulary_size: int
    _encoder: Encoder | None = field(repr=False, compare=False)  # None: transformers' class adds to its library's ids

    @classmethod
    def of(cls, raw: Any, context_length: int, vocabulary_size: int) -> FolderTokenizer:
        """Of a tokenizer that transformers loaded."""
        return cls(raw, context_length, vocabulary_size, _encoder_of(raw))

    def with_context(self, length: int) -> FolderTokenizer:
        return replace(self, context_length=length)

    def template_of(self, tools: Sequence[Mapping[str, Any]] | None) -> str | None:
        if not self.raw.chat_template:
            return None
        try:
            return str(self.raw.get_chat_template(tools=list(tools) if tools else None))
        except ValueError:  # of several, none is for such a request
            return None

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        return str(
            self.raw.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                add_generation_prompt=True,
                tokenize=False,
            )
        )

    def _all_ids(self, texts: Sequence[str], *, adds_special: bool) -> list[list[int]]:
        if self._encoder is None:
            return [list(self.raw(text, add_special_tokens=adds_special)["input_ids"]) for text in texts]
        return self._encoder.all_ids(texts, adds_special=adds_special)

    def _text(self, token_ids: Sequence[int], *, skips_special: bool) -> str:
        return str(self.raw.decode(list(token_ids), skip_special_tokens=skips_special))


def load_config(path: str) -> Any:
    """The transformers config of a model folder.

    Raises:
        ModelError: the folder is missing, or states what cannot be read or run.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(f"model folder {path} does not exist (models are read from local folders)")
    require_settings(f"model folder {path}", folder)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a foreign file may make transformers raise anything
        raise unloadable(path, error) from error
    for kind in _rope_types(config.get_text_config()):
        if kind != DEFAULT_ROPE and kind not in ROPE_INIT_FUNCTIONS:
            known = ", ".join(sorted((DEFAULT_ROPE, *ROPE_INIT_FUNCTIONS)))
            raise ModelError(
                f"model folder {path}: config.json: transformers {transformers_version} does not know the rope type "
                f"{kind!r}; correct it to a known one ({known}), or install a newer version"
            )
    return config


def _rope_types(config: Any) -> Iterator[str]:
    """The kinds of rotary positions that a config names: one, or one for each type of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    for settings in (parameters, *parameters.values()):
        if isinstance(settings, Mapping) and (kind := settings.get("rope_type") or settings.get("type")) is not None:
            yield str(kind)


def load_tokenizer(path: str) -> FolderTokenizer:
    """The tokenizer of a model folder, without its weights; that of a vision-language model reads text alone.

    Raises:
        ModelError: the folder is missing, its config or tokenizer cannot be read, or it states no context length.
    """
    config = load_config(path).get_text_config()
    if not getattr(config, "max_position_embeddings", None):
        raise ModelError(f"{path}: {config.model_type} states no context length (max_position_embeddings)")
    name = f"model folder {path}"
    require_tokenizer(name, Path(path))
    try:
        raw = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # likewise
        require_tokenizer(name, Path(path), is_thorough=True)
        raise unloadable(path, error) from error
    return FolderTokenizer.of(raw, int(config.max_position_embeddings), int(config.vocab_size))


def _encoder_of(raw: Any) -> Encoder | None:
    """What computes the ids that transformers' tokenizer would; None: its class adds to them."""
    is_plain = getattr(type(raw), "_encode_plus", None) is TokenizersBackend._encode_plus  # noqa: SLF001
    if not is_plain or raw.split_special_tokens:
        return None
    backend = raw.backend_tokenizer
    backend.no_truncation()  # as transformers sets it for a text that is to be neither cut nor filled
    backend.no_padding()
    return Encoder(backend)


def unloadable(path: str, error: Exception) -> ModelError:
    """The one line to show for a folder that transformers cannot load."""
    what = " ".join(str(error).split())[:300]  # one line
    if isinstance(error, KeyError) and _NAME.fullmatch(what):
        what = f"it does not know {what}, which a file of the folder names"
    elif isinstance(error, (LookupError, TypeError, AttributeError, ArithmeticError)) or not what:
        what = f"{type(error).__name__}: {what}"  # the text speaks of transformers' code
    return ModelError(
        f"model folder {path} cannot be loaded by transformers {transformers_version}: {what}; check that the "
        f"folder is complete, or {AGAIN}"
    )


def check_tokenizers(target_path: str, target: FolderTokenizer, draft_path: str, draft: FolderTokenizer) -> None:
    """Whether a draft uses its target's tokens; rows that only pad a model's vocabulary may differ in number.

    Raises:
        ModelError: vocabularies or special tokens differ.
    """
    where = f"draft {draft_path} cannot draft for target {target_path}"
    remedy = "give a draft with the target's tokenizer, or take the proposer heterogeneous_draft_model, which drafts "
    remedy += "the tokens that both have"
    target_vocabulary, draft_vocabulary = target.raw.get_vocab(), draft.raw.get_vocab()
    if target_vocabulary != draft_vocabulary:
        tokens = target_vocabulary.keys() | draft_vocabulary.keys()
        changed = sum(1 for token in tokens if draft_vocabulary.get(token) != target_vocabulary.get(token))
        raise ModelError(f"{where}: the tokenizers differ ({changed} tokens have another id or are missing); {remedy}")
    if set(target.raw.all_special_ids) != set(draft.raw.all_special_ids):
        raise ModelError(f"{where}: the tokenizers' special tokens differ; {remedy}")


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
