"""Methods by which servers draft: their names, and the meaning of settings under a server's keys."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

# Methods that have a draft in every step, as models and heads do.  Lookups may find none, and of a method that is not
# known it is not assumed.  By `plain_method`.
DRAFTING_ALWAYS: Final = frozenset(
    {
        *("draft_model", "draft_target", "heterogeneous_draft_model", "standalone"),
        *("eagle", "eagle3", "p_eagle", "medusa", "mlp_speculator", "mtp", "dflash"),
        *("dspark", "draft_simple", "draft_eagle3", "draft_dflash", "draft_dspark"),
    }
)
LOOKUPS: Final = ("ngram", "suffix")  # proposers that copy from texts and need no draft; engines' names begin so
METHOD_KEYS: Final = ("method", "speculative_algorithm", "spec_type", "decoding_type")  # as engines name them
DEPTH_KEYS: Final = ("num_speculative_tokens", "speculative_num_steps", "spec_draft_n_max", "max_draft_len")
# Methods that draft a block in one pass.  SGLang counts the window that is verified, which begins with the last token,
# and takes no depth of them.
BLOCK_METHODS: Final = frozenset({"dflash", "dspark"})
WINDOW_KEYS: Final = ("speculative_num_draft_tokens", "speculative_dflash_block_size")
STEPS_KEY: Final = "speculative_num_steps"
SCHEDULE_KEY: Final = "num_speculative_tokens_per_batch_size"  # vLLM's: [first, last, tokens] of each range, from 1 on
DRAFT_KEYS: Final = ("model", "speculative_draft_model_path", "spec_draft_model", "speculative_model")


def plain_method(name: str) -> str:
    """A method's name as it is compared: "EAGLE3" is "eagle3", "p-eagle" is "p_eagle".

    The multi-token prediction of any model is `mtp` ("deepseek_mtp" too), and NEXTN is `eagle`.
    """
    plain = name.lower().replace("-", "_")
    if plain.endswith("_mtp"):
        return "mtp"
    return "eagle" if plain == "nextn" else plain


def is_same_method(one: str, other: str) -> bool:
    """Whether two names are those of one method."""
    return plain_method(one) == plain_method(other)


def drafts_in_every_step(method: str) -> bool:
    """Whether a method is known to have a draft in every step."""
    return plain_method(method) in DRAFTING_ALWAYS


def is_lookup(method: str) -> bool:
    """Whether a method copies from texts, by whatever further name: it has no weights of a draft."""
    return plain_method(method).startswith(LOOKUPS)


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings as canonical JSON: the same text for any order of their keys.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def plain_key(key: str) -> str:
    """A key as an engine's source spells it: `--speculative-num-steps` is `speculative_num_steps`."""
    return key.lstrip("-").replace("-", "_")


def setting(settings: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """The value under the first of these keys that is there, however it is spelled; None where none is."""
    plain = {plain_key(key): value for key, value in settings.items()}
    return next((plain[key] for key in keys if plain.get(key) is not None), None)


def contradiction(settings: Mapping[str, Any], method: str, num_speculative_tokens: int) -> str | None:
    """The server setting that contradicts this method or depth; None without one."""
    named = setting(settings, METHOD_KEYS)
    if named is not None and not is_same_method(str(named), method):
        return f"method is {method!r}, and {_name_of(settings, METHOD_KEYS)} {named!r}"
    is_block = plain_method(method) in BLOCK_METHODS
    window = setting(settings, WINDOW_KEYS) if is_block else None
    if window is not None and window != num_speculative_tokens + 1:
        return (
            f"num_speculative_tokens is {num_speculative_tokens}, and of {_name_of(settings, WINDOW_KEYS)} {window!r} "
            "the first token is not drafted"
        )
    depth = setting(settings, tuple(key for key in DEPTH_KEYS if not (is_block and key == STEPS_KEY)))
    if depth is not None and depth != num_speculative_tokens:
        return f"num_speculative_tokens is {num_speculative_tokens}, and {_name_of(settings, DEPTH_KEYS)} {depth!r}"
    return None


def _name_of(settings: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """The key as it was written."""
    return next(key for wanted in keys for key in settings if plain_key(key) == wanted)


def exported_settings(text: str) -> dict[str, Any]:
    """The start settings in a file that `shadowspec export` wrote: JSON, arguments of a command, or flat YAML.

    Raises:
        ValueError: it holds no settings of speculation; the message says what it is.
    """
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
    try:
        if text.lstrip().startswith("{"):
            read: dict[str, Any] = json.loads(text)
        elif lines and lines[0].startswith("--"):
            parts = shlex.split(lines[0])
            read = {plain_key(name): _scalar(value) for name, value in zip(parts[::2], parts[1::2], strict=True)}
        else:
            read = {plain_key(name): json.loads(value) for name, value in (line.split(": ", 1) for line in lines)}
    except ValueError:
        raise ValueError("cannot be read as a server's settings: JSON, arguments or flat YAML") from None
    if setting(read, METHOD_KEYS) in (None, "none") or type(setting(read, DEPTH_KEYS)) is not int:
        raise ValueError("speculation is off there, or no method and depth are named: there is nothing to confirm")
    return read


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def scheduled_depth(settings: Mapping[str, Any], batch_size: int) -> int | None:
    """The tokens that a schedule among the settings drafts at a batch size; None without one.

    A size that no range holds gets the depth of the range before it, as vLLM has it.
    """
    ranges = settings.get(SCHEDULE_KEY)
    if not isinstance(ranges, list):
        return None
    return next((depth for first, _, depth in reversed(ranges) if first <= batch_size), None)


def is_reported(value: Any, reported: str) -> bool:
    """Whether a setting's value is the one that a server reports as text."""
    if not isinstance(value, list | dict):
        return str(value) == reported
    try:
        return settings_text({"": value}) == settings_text({"": ast.literal_eval(reported)})
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
