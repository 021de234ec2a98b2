"""Request parameters: which are read, which change nothing, and which make a record unsupported.

A parameter that would change what is generated and that the loop does not implement makes the record
unsupported: measuring it without the parameter would measure another request.  A parameter that nobody
listed here might be such a one, and is treated as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from shadowspec.errors import RecordError
from shadowspec.types import FunnelCounter

# Read by the adapter and implemented by the loop.
READ: Final = frozenset(
    {
        "model", "messages", "prompt", "prompt_token_ids", "tools", "tool_choice", "response_format",
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "max_tokens", "max_completion_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "seed",
    }
)  # fmt: skip

# Change how the answer is delivered, billed or logged, not what is generated.
HARMLESS: Final = frozenset(
    {
        "stream", "stream_options", "user", "metadata", "store", "service_tier", "logprobs", "top_logprobs",
        "return_token_ids", "return_tokens_as_token_ids", "include_stop_str_in_output", "skip_special_tokens",
        "spaces_between_special_tokens", "detokenize", "parallel_tool_calls", "priority", "request_id",
        "cache_salt", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "extra_headers",
        "include_reasoning", "timeout",
    }
)  # fmt: skip

PASSED: Final = READ | HARMLESS

# Supported at these values only; otherwise the reason code says which feature is missing.
NEUTRAL: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "n": ((None, 1), "several_choices"),
    "best_of": ((None, 1), "several_choices"),
    "logit_bias": ((None, {}), "logit_bias"),
    "echo": ((None, False), "echo"),
    "suffix": ((None, ""), "suffix"),
    "use_beam_search": ((None, False), "beam_search"),
    "length_penalty": ((None, 1), "beam_search"),
    "prompt_logprobs": ((None, False), "prompt_logprobs"),
    "allowed_token_ids": ((None,), "allowed_token_ids"),
    "bad_words": ((None, []), "bad_words"),
    "logits_processors": ((None, []), "logits_processors"),
    "truncate_prompt_tokens": ((None,), "truncate_prompt_tokens"),
    "structured_outputs": ((None,), "grammar"),
    "guided_json": ((None,), "grammar"),
    "guided_regex": ((None,), "grammar"),
    "guided_choice": ((None,), "grammar"),
    "guided_grammar": ((None,), "grammar"),
    "guided_decoding_backend": ((None,), "grammar"),
    "guided_whitespace_pattern": ((None,), "grammar"),
    "functions": ((None, []), "functions"),
    "function_call": ((None, "none", "auto"), "functions"),
    "modalities": ((None, ["text"]), "modalities"),
    "audio": ((None,), "audio_content"),
    "web_search_options": ((None,), "web_search"),
    "prompt_embeds": ((None,), "prompt_embeds"),
}

# Change how messages become tokens: nothing to see where the record holds the prompt's token ids.
RENDERING: Final[Mapping[str, tuple[Any, ...]]] = {
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "add_generation_prompt": (None, True),
    "continue_final_message": (None, False),
    "add_special_tokens": (None,),
    "documents": (None, []),
    "reasoning_effort": (None,),
    "verbosity": (None,),
    "mm_processor_kwargs": (None, {}),
}

_SAFE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")


def unsupported_error(reason: str) -> RecordError:
    """The error of a record that is well formed but that the loop cannot measure as it was served."""
    return RecordError(FunnelCounter.UNSUPPORTED, reason)


def malformed_error(reason: str) -> RecordError:
    """The error of a record that cannot be read."""
    return RecordError(FunnelCounter.MALFORMED, reason)


def check_parameters(body: Mapping[str, Any], *, has_prompt_token_ids: bool, is_format_enforced: bool) -> None:
    """Refuse a request that asks for what the loop does not do.

    Args:
        body: the request as it was sent.
        has_prompt_token_ids: the record holds the rendered prompt, so that rendering parameters do not matter.
        is_format_enforced: production enforced `response_format` by a mask on the grammar.

    Raises:
        RecordError: unsupported, with the feature or "unknown_parameter:NAME" as the reason.
    """
    for name, value in body.items():
        if name in PASSED:
            continue
        if name in NEUTRAL:
            neutral, reason = NEUTRAL[name]
            if not _is_one_of(value, neutral):
                raise unsupported_error(reason)
        elif name in RENDERING:
            if not has_prompt_token_ids and not _is_one_of(value, RENDERING[name]):
                raise unsupported_error(f"rendering_parameter:{name}")
        elif value is not None:
            raise unsupported_error(f"unknown_parameter:{name}" if _SAFE_NAME.fullmatch(name) else "unknown_parameter")
    _check_response_format(body.get("response_format"), is_format_enforced)
    _check_tools(body)


def _check_response_format(response_format: Any, is_enforced: bool) -> None:
    if response_format is None:
        return
    if not isinstance(response_format, Mapping):
        raise malformed_error("invalid:request.response_format")
    kind = response_format.get("type")
    if kind == "text" or (kind == "json_object" and not is_enforced):
        return
    raise unsupported_error("grammar")


def _check_tools(body: Mapping[str, Any]) -> None:
    """A forced or strict tool call is decoded under a grammar; a free one is ordinary text."""
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise unsupported_error("forced_tool_choice")
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():  # what is no list is refused with the body
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and function.get("strict") is True:
            raise unsupported_error("grammar")


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Equality that does not take True for 1."""
    return any(value == candidate and isinstance(value, bool) == isinstance(candidate, bool) for candidate in allowed)
