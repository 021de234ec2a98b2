"""A folder's tokenizer read from tokenizer.json as it is, without transformers: for prompts that servers measure.

transformers reads most folders in the same way.  What it would add to the file is refused here: a folder without the
file, tokens that only tokenizer_config.json has, a context that config.json does not state.

In: a folder's path.  Out: its tokenizer.  Imports: types, errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from shadowspec.errors import ModelError
from shadowspec.model_folder.chat_template import render_template
from shadowspec.model_folder.encoder import Encoder
from shadowspec.model_folder.folder_files import AGAIN, CONFIG, read_object, require_settings, require_tokenizer
from shadowspec.model_folder.target_tokenizer import TargetTokenizer
from shadowspec.types.extras import ENGINE, install_command

FILE: Final = "tokenizer.json"
SETTINGS: Final = "tokenizer_config.json"
TEMPLATE: Final = "chat_template.jinja"
TEMPLATES: Final = "additional_chat_templates"  # a folder; each template by its file's name
DEFAULT, WITH_TOOLS = "default", "tool_use"  # names of templates where there are several
LENGTHS: Final = ("max_position_embeddings", "n_positions")  # of a context, by the names of configs
ENGINE_READS: Final = f"or read it by transformers ({install_command(ENGINE)})"


class OnlyTransformersError(ModelError):
    """A folder that is whole, and that only transformers can read."""


@dataclass(frozen=True, slots=True)
class PlainTokenizer(TargetTokenizer):
    """tokenizer.json and the chat templates beside it."""

    context_length: int
    vocabulary_size: int
    _backend: Tokenizer = field(repr=False, compare=False)
    _encoder: Encoder = field(repr=False, compare=False)
    _templates: Mapping[str, str] = field(repr=False)  # by name
    _special_tokens: Mapping[str, str]

    def with_context(self, length: int) -> PlainTokenizer:
        return replace(self, context_length=length)

    def template_of(self, tools: Sequence[Mapping[str, Any]] | None) -> str | None:
        wanted = WITH_TOOLS if tools and WITH_TOOLS in self._templates else DEFAULT
        return self._templates.get(wanted)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        return render_template(self.template_of(tools) or "", messages, tools, self._special_tokens)

    def _all_ids(self, texts: Sequence[str], *, adds_special: bool) -> list[list[int]]:
        return self._encoder.all_ids(texts, adds_special=adds_special)

    def _text(self, token_ids: Sequence[int], *, skips_special: bool) -> str:
        return str(self._backend.decode(list(token_ids), skip_special_tokens=skips_special))


def load_plain_tokenizer(path: str) -> PlainTokenizer:
    """The tokenizer of a model folder, without its weights; that of a vision-language model reads text alone.

    Raises:
        OnlyTransformersError: only transformers can read it; the message says what it lacks.
        ModelError: the folder is missing or damaged.
    """
    folder, name = Path(path), f"model folder {path}"
    if not folder.is_dir():
        raise ModelError(f"{name} does not exist (models are read from local folders)")
    require_settings(name, folder)
    config = read_object(name, folder / CONFIG) or {}
    config = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    require_tokenizer(name, folder)
    if not (folder / FILE).is_file():
        raise OnlyTransformersError(f"{name}: has no {FILE}; add it, {ENGINE_READS}")
    length = next((value for key in LENGTHS if type(value := config.get(key)) is int and value > 0), None)
    if length is None:
        raise OnlyTransformersError(f"{name}: {CONFIG} states no context length ({LENGTHS[0]}); add it, {ENGINE_READS}")
    settings = read_object(name, folder / SETTINGS) or {}
    try:
        backend = Tokenizer.from_file(str(folder / FILE))
    except Exception as error:  # the library raises nothing narrower
        require_tokenizer(name, folder, is_thorough=True)
        raise ModelError(f"{name}: {FILE} cannot be read ({' '.join(str(error).split())[:300]}); {AGAIN}") from error
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(settings.get("split_special_tokens"))
    special = _special_tokens(settings)
    if missing := sorted(token for token in _named_tokens(settings, special) if backend.token_to_id(token) is None):
        raise OnlyTransformersError(
            f"{name}: {SETTINGS} names tokens that {FILE} lacks ({len(missing)}); add them, {ENGINE_READS}"
        )
    rows = config.get("vocab_size")
    size = rows if type(rows) is int else backend.get_vocab_size()
    return PlainTokenizer(length, size, backend, Encoder(backend), _templates(name, folder, settings), special)


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that have a name, such as `bos_token`; templates show some of them."""
    named = {key: value for key, value in settings.items() if key.endswith("_token")}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def _named_tokens(settings: Mapping[str, Any], special: Mapping[str, str]) -> set[str]:
    """Every token that tokenizer_config.json names."""
    added = settings.get("added_tokens_decoder")
    tokens = added.values() if isinstance(added, dict) else ()
    contents = {token.get("content") for token in tokens if isinstance(token, dict)}
    return {token for token in (*contents, *special.values()) if isinstance(token, str)}


def _templates(name: str, folder: Path, settings: Mapping[str, Any]) -> Mapping[str, str]:
    """The chat templates by name: those of files where there are any, else those of tokenizer_config.json."""
    files = {path.stem: path for path in (folder / TEMPLATES).glob("*.jinja")}
    if (folder / TEMPLATE).is_file():
        files[DEFAULT] = folder / TEMPLATE
    try:
        if files:
            return {template: file.read_text(encoding="utf-8") for template, file in files.items()}
        stated = settings.get("chat_template") or ()
        listed = [{"name": DEFAULT, "template": stated}] if isinstance(stated, str) else stated
        return {str(template["name"]): str(template["template"]) for template in listed}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{name}: a chat template cannot be read ({type(error).__name__}); {AGAIN}") from error
