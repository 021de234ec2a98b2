"""The facts that a server's own pages report, by engine.

vLLM: the labels of `vllm:cache_config_info` on /metrics, and with `VLLM_SERVER_DEV_MODE=1` /server_info (its values
replace the labels').  SGLang: /server_info.  llama.cpp: /props.  A fact that a page does not report is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shadowspec.types.server_facts import Dtype, FactName, fact_text, known_dtype

Reported = tuple[tuple[str, str], ...]  # facts by name, in the order of their names

_VLLM_LABELS: Final[Mapping[FactName, str]] = {
    "kv_cache_dtype": "cache_dtype",
    "prefix_caching": "enable_prefix_caching",
}
_VLLM_CONFIG: Final[Mapping[FactName, tuple[str, str]]] = {  # table and key of `vllm_config`
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "prefix_caching": ("cache_config", "enable_prefix_caching"),
    "quantization": ("model_config", "quantization"),
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
    "data_parallel_size": ("parallel_config", "data_parallel_size"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "scheduling_policy": ("scheduler_config", "policy"),
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "attention_backend": ("attention_config", "backend"),
}
_RUNNER: Final = "VLLM_USE_V2_MODEL_RUNNER"
_SGLANG: Final[Mapping[FactName, str]] = {
    "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "quantization",
    "tensor_parallel_size": "tp_size",
    "data_parallel_size": "dp_size",
    "max_num_seqs": "max_running_requests",
    "scheduling_policy": "schedule_policy",
    "attention_backend": "attention_backend",
}
_SGLANG_OFF: Final[Mapping[FactName, str]] = {  # that are off where this is set
    "prefix_caching": "disable_radix_cache",
    "async_scheduling": "disable_overlap_schedule",
}


def vllm_facts(labels: Sequence[Mapping[str, str]], info: Mapping[str, Any]) -> Reported:
    """From the labels of each engine core's cache and from /server_info ({} without it).

    The number of blocks and what follows from it are measured at each start, and so are no facts.
    """
    facts: dict[str, str] = {}
    for name, label in _VLLM_LABELS.items():
        values = {one[label] for one in labels if label in one}
        if values:
            facts[name] = "/".join(sorted(_label_text(value) for value in values))
    sizes = {one.get("kv_offloading_size", "") for one in labels if "kv_offloading_size" in one}
    if sizes and sizes != {"None"}:
        facts["kv_offload"] = "/".join(sorted({fact_text(one.get("kv_offloading_backend")) for one in labels}))
    config = info.get("vllm_config")
    if isinstance(config, dict):
        for name, (table, key) in _VLLM_CONFIG.items():
            if isinstance(values_of := config.get(table), dict) and key in values_of:
                facts[name] = fact_text(values_of[key])
        if facts.get("attention_backend") == "none":
            del facts["attention_backend"]  # it chooses one, and does not say which
        transfer, lora = config.get("kv_transfer_config", ...), config.get("lora_config", ...)
        if isinstance(transfer, dict):
            facts["kv_offload"] = fact_text(transfer.get("kv_connector"))
        elif transfer is None:
            facts.setdefault("kv_offload", "none")
        if lora is not ...:
            facts["lora"] = fact_text(lora is not None)
    environment = info.get("vllm_env")
    if isinstance(environment, dict) and isinstance(is_second := environment.get(_RUNNER), bool):
        facts["model_runner"] = "v2" if is_second else "v1"
    return tuple(sorted(facts.items()))


def vllm_dtype(info: Mapping[str, Any]) -> Dtype | None:
    """The type in which vLLM computes, by /server_info; its `auto` is another one than a model's float32."""
    config = info.get("vllm_config")
    model = config.get("model_config") if isinstance(config, dict) else None
    return known_dtype(model.get("dtype")) if isinstance(model, dict) else None


def sglang_facts(info: Mapping[str, Any]) -> Reported:
    """From /server_info, which holds SGLang's start settings as it has completed them."""
    facts: dict[str, str] = {name: fact_text(info[key]) for name, key in _SGLANG.items() if key in info}
    facts |= {name: fact_text(not info[key]) for name, key in _SGLANG_OFF.items() if type(info.get(key)) is bool}
    if facts.get("max_num_seqs") == "none":
        del facts["max_num_seqs"]  # it follows from its memory
    if type(tiered := info.get("enable_hierarchical_cache")) is bool:
        backend = info.get("hicache_storage_backend")
        facts["kv_offload"] = fact_text(backend or "hicache") if tiered else "none"
    if "enable_lora" in info:
        facts["lora"] = fact_text(bool(info["enable_lora"] or info.get("lora_paths")))
    return tuple(sorted(facts.items()))


def llamacpp_facts(props: Mapping[str, Any]) -> Reported:
    """From /props: slots and the quantisation of the file."""
    keys: Mapping[FactName, str] = {"max_num_seqs": "total_slots", "quantization": "model_ftype"}
    return tuple(sorted((name, fact_text(props[key])) for name, key in keys.items() if key in props))


def _label_text(label: str) -> str:
    return {"True": "on", "False": "off"}.get(label, fact_text(label))
