"""Settings under which a server's output is not the target's, or its counts of accepted tokens say less than they seem.

Engines accept more than the target would draw where they are told to (lossy), and vLLM trims drafts by a budget while
its counts still say how many were scheduled (censored).  A verdict speaks of lossless speculation: a lossy server is
not measured, because no promise of this product would hold of it.  Times of a censored one are measured as usual, and
its acceptance is a lower bound.

Keys are those that engines give them (`served_methods.plain_key`), and are read in a candidate's `speculative_config`
and in what a server reports.  Sources: vLLM 0.33 (`config/speculative.py`), SGLang 0.5.23
(`arg_groups/fields/`), TensorRT-LLM (`llmapi/llm_args.py`), llama.cpp (`common/arg.cpp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shadowspec.types.served_methods import plain_key

# By key the values, in lower case, under which the output is the target's; one that is not set is always so.
EXACT_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "rejection_sample_method": frozenset({"standard", "block"}),  # else "fly", or "synthetic": accepts by chance
    "speculative_accept_threshold_single": frozenset({"1", "1.0"}),
    "speculative_accept_threshold_acc": frozenset({"1", "1.0"}),
    "use_relaxed_acceptance_for_thinking": frozenset({"false"}),
    "posterior_threshold": frozenset(),  # typical acceptance
    "spec_synth_len": frozenset(),
    "spec_synth_rates": frozenset(),
}
CENSORING: Final = ("enable_adaptive_verification",)
UNSET: Final = ("none", "null", "")


def lossy_setting(settings: Mapping[str, Any]) -> str | None:
    """The setting by which the server emits other tokens than the target would, as `key = value`; None without one."""
    for key, value in settings.items():
        exact = EXACT_VALUES.get(plain_key(key))
        if exact is not None and _word(value) not in (*exact, *UNSET):
            return f"{plain_key(key)} = {value}"
    return None


def censoring_setting(settings: Mapping[str, Any]) -> str | None:
    """The setting by which counts of drafted tokens include some that were never verified; None without one."""
    plain = {plain_key(key): _word(value) for key, value in settings.items()}
    return next((key for key in CENSORING if plain.get(key) == "true"), None)


def _word(value: Any) -> str:
    return str(value).lower()
