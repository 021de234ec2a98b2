"""Request parameters: which are read, which change nothing, and which make a record unsupported.

A parameter that would change the output and that the engine does not implement makes the record unsupported: measuring
it without the parameter would measure another request.  A parameter that is not listed here might be such a one, and
is treated as one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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

# Change the delivery, billing or logging of the answer, not its text.
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
    "guided_whitespace_pattern": ((None,), "grammar_option"),
    "functions": ((None, []), "functions"),
    "function_call": ((None, "none", "auto"), "functions"),
    "modalities": ((None, ["text"]), "modalities"),
    "audio": ((None,), "audio_content"),
    "web_search_options": ((None,), "web_search"),
    "prompt_embeds": ((None,), "prompt_embeds"),
}

# Restrict the output, beside `response_format`, `tool_choice` and strict tools: vLLM's field, its older ones, SGLang's.
# Servers enforce them; the in-process engine does not, so that there they are supported at None only.
CONSTRAINING: Final = frozenset(
    {
        "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "guided_decoding_backend", "json_schema", "regex", "ebnf", "structural_tag",
    }
)  # fmt: skip

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

# Tell a server how much to think.  A chat that travels whole has them; nowhere else do they become tokens.
THINKING: Final = frozenset(
    {
        "thinking", "enable_thinking", "thinking_token_budget", "thinking_budget", "max_thinking_tokens", "reasoning",
        "separate_reasoning", "stream_reasoning", "reasoning_format",
    }
)  # fmt: skip

# Of the APIs that people call (OpenAI, Anthropic, vLLM, SGLang, llama.cpp, TGI, Ollama) and in no table above.  A
# reason names these alone: any other name is the client's own word, which may be anything.
NAMED: Final = frozenset(
    {
        "prediction", "input", "instructions", "previous_response_id", "include", "truncation",
        "text", "background", "conversation", "system", "stop_sequences", "mcp_servers", "container", "betas",
        "top_a", "tfs_z", "typical_p", "mirostat", "mirostat_tau", "mirostat_eta", "dynatemp_range",
        "dynatemp_exponent", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
        "dry_sequence_breakers", "xtc_probability", "xtc_threshold", "top_n_sigma", "repeat_penalty", "repeat_last_n",
        "penalize_nl", "n_predict", "n_probs", "n_keep", "samplers", "cache_prompt", "id_slot", "grammar",
        "grammar_lazy", "lora", "lora_path", "adapter_id", "no_repeat_ngram_size", "encoder_repetition_penalty",
        "epsilon_cutoff", "eta_cutoff", "smoothing_factor", "guidance_scale", "negative_prompt", "watermark",
        "custom_params", "custom_logit_processor", "session_params",
        "return_hidden_states", "stop_regex", "no_stop_trim", "kv_transfer_params", "vllm_xargs",
        "options", "keep_alive", "format", "think", "raw",
        "images", "top_n_tokens", "decoder_input_details", "best_of_sequences", "web_search", "plugins", "models",
        "route", "provider", "transforms", "max_tool_calls", "tool_resources",
    }
)  # fmt: skip

# An operator's remedies by reason; the other reasons need none.
REMEDIES: Final[Mapping[str, str]] = dict.fromkeys(
    ("grammar", "forced_tool_choice"),
    'constrained outputs are measured through servers, which enforce them: engine = "openai" (docs/servers.md)',
) | {
    "future:timestamp": "times that are still to come by this computer's clock: write them in UTC or with an offset, "
    "and set the mirror's clock. `try` also reads a log without times (--map without time)",
    "no_timestamp": "only `shadowspec try` and `replay --no-store` read records without times: write them into the "
    "log, or give their place with --map (docs/formats.md)",
    "no_sampling": "only `shadowspec try` reads records without sampling parameters: write them into the log, or give "
    "their place with --map (docs/formats.md)",
    "only_hashes": "Dynamo's request trace holds hashes of prompts: set "
    "DYN_REQUEST_TRACE_RECORDS=request_end,request_payload,tool (docs/formats.md)",
    "no_response": "a replay needs the logged responses: capture them too (docs/capture.md)",
    "strict_tools": "servers can be asked for strict calls where [endpoints.NAME.servers] names tool_call_format",
}


def unsupported_error(reason: str) -> RecordError:
    """The error of a record that is well formed but that the loop cannot measure as it was served."""
    return RecordError(FunnelCounter.UNSUPPORTED, reason)


def unknown_parameter_error(name: str) -> RecordError:
    """The error of a record with a parameter that cannot be measured; the reason names it if an API has it."""
    tables = (PASSED, NEUTRAL, CONSTRAINING, RENDERING, THINKING, NAMED)
    is_named = any(name in table for table in tables)
    return unsupported_error(f"unknown_parameter:{name}" if is_named else "unknown_parameter")


def shared_fields(
    request: Mapping[str, Any],
    shared: Collection[str],
    refused: Mapping[str, str],
    *,
    ignored: Collection[str],
    unset: Collection[object] = (None,),
) -> dict[str, Any]:
    """The fields of another API's request that a chat has under the same name and meaning.

    Args:
        refused: by name, why a request that sets the field is no chat.
        ignored: fields that are read elsewhere, or change no output.
        unset: values by which a refused field is not set.

    Raises:
        RecordError: unsupported: a refused field is set, or a field is unknown.
    """
    body: dict[str, Any] = {}
    for name, value in request.items():
        if name in shared:
            body[name] = value
        elif name in refused:
            if value not in unset:
                raise unsupported_error(refused[name])
        elif name not in ignored and value is not None:
            raise unknown_parameter_error(name)
    return body


def tool_fields(
    request: Mapping[str, Any], tool_of: Callable[[Any], Any], choice_of: Callable[[Any], Any]
) -> dict[str, Any]:
    """A chat's `tools` and `tool_choice`, from another API's fields of these names, where they are given.

    Raises:
        RecordError: malformed: the tools are no list; or as the two functions raise it.
    """
    tools, choice = request.get("tools"), request.get("tool_choice")
    if tools is not None and not isinstance(tools, list):
        raise malformed_error("invalid:request.tools")
    fields = {} if tools is None else {"tools": [tool_of(tool) for tool in tools]}
    return fields if choice is None else fields | {"tool_choice": choice_of(choice)}


def malformed_error(reason: str) -> RecordError:
    """The error of a record that cannot be read."""
    return RecordError(FunnelCounter.MALFORMED, reason)
