"""Engines, methods and exports, and how each was tested: names from the code, evidence as links to what ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from docs.generate.markdown import code, table
from shadowspec.config.sections import CandidateSection
from shadowspec.rollout.export.formats import FORMATS, ExportFormat
from shadowspec.servers.engines import ENGINES
from shadowspec.types.serving_engines import IN_PROCESS

_VLLM_RESULT = "[real servers, CPU](research/validation.md)"
_LLAMACPP_RESULT = "[real servers, CPU](research/validation-llamacpp.md)"
_FAKE = "[test server](../tests/servers/{})"
_SAMPLES = "[sample pages](../tests/servers/test_live.py)"
_NONE = "no"
_BY_HAND = "[by hand](export.md#how-this-is-checked)"
_RUN = "[it routes](routes.md#how-the-routes-were-tried)"

# By engine: how acceptance and latency were measured on it, and the live guard.
_MEASURED = {
    IN_PROCESS: "[real, CPU](research/benchmarks.md); [one GPU](engine.md#what-is-timed)",
    "vllm": f"{_VLLM_RESULT}; no GPU",
    "sglang": "[real servers, CPU](../tests/validation/test_recorded_sglang.py), with imitated kernels; no GPU",
    "tensorrt-llm": _FAKE.format("test_tensorrt_llm.py") + " only",
    "llama.cpp": f"{_LLAMACPP_RESULT}; no GPU",
}
_GUARDED = {
    IN_PROCESS: "",
    "vllm": "[real server, CPU](../tests/faults/results/live-guard.json)",
    "sglang": _SAMPLES,
    "tensorrt-llm": _SAMPLES,
    "llama.cpp": _SAMPLES,
}
# By method: in process, and through vLLM, SGLang and llama.cpp.
_METHODS = {
    "draft_model": (
        "[real, equal to vLLM and llama.cpp](research/validation.md)",
        _VLLM_RESULT,
        "[real servers, CPU](../tests/validation/test_recorded_sglang.py)",
        _LLAMACPP_RESULT,
    ),
    "heterogeneous_draft_model": ("[tests](../tests/engine/test_shared_vocabulary.py)", "", "", ""),
    "ngram": (
        "[real, equal to vLLM and llama.cpp](research/validation.md)",
        _VLLM_RESULT,
        "refused (a tree)",
        _LLAMACPP_RESULT,
    ),
    "suffix": ("[real](../kernels/benchmarks/results/lookup.json)", "as a named method", "", ""),
    "medusa": ("[real](../kernels/benchmarks/results/cost_model_medusa.json)", "as a named method, until 0.32", "", ""),
    "mlp_speculator": ("[tests](../tests/engine/heads/test_drafting.py)", "as a named method, until 0.32", "", ""),
    "eagle3": (
        "[tests](../tests/engine/heads/test_drafting.py)",
        "as a named method",
        _FAKE.format("test_sglang.py"),
        "",
    ),
}
_NAMED = (
    "",
    _FAKE.format("test_served_methods.py"),
    _FAKE.format("test_served_methods.py"),
    "not tried",
)
_EXPORTS = {
    "vllm": (
        "[fields of vLLM 0.32](../tests/rollout/export/test_engines.py)",
        _BY_HAND,
    ),
    "sglang": ("[fields of SGLang 0.5](../tests/rollout/export/test_engines.py)", _NONE),
    "tensorrt-llm": ("[fields of one commit](../tests/rollout/export/test_engines.py)", _NONE),
    "llama.cpp": ("[options](../tests/rollout/export/test_engines.py)", _NONE),
    ExportFormat.MODELOPT: ("[schema 1.0](../tests/rollout/export/test_modelopt.py)", _NONE),
    ExportFormat.FLAGD: (
        "[its JSON schemas and evaluator](../tests/rollout/export/test_flagd.py)",
        _BY_HAND,
    ),
    ExportFormat.LITELLM: ("[LiteLLM's router](../tests/rollout/export/test_routes.py)", _RUN),
    ExportFormat.HTTPROUTE: ("[schema of Gateway API 1.6](../tests/deploy/test_crds.py)", _NONE),
    ExportFormat.KSERVE: ("[documented fields](../tests/rollout/export/test_routes.py)", _NONE),
    ExportFormat.ENVOY: ("[order of routes](../tests/rollout/export/test_routes.py)", _RUN),
}


def engines() -> str:
    """What works with each engine."""
    names = [IN_PROCESS, *ENGINES]
    _require_same("engines", names, _MEASURED)
    rows = [(name, _MEASURED[name], _GUARDED[name], "yes" if name in FORMATS else "") for name in names]
    return table(("engine", "measured", "live guard", "export"), rows)


def methods() -> str:
    """How each method was tested on each engine."""
    names = CandidateSection.model_json_schema()["properties"]["proposer"]["enum"]
    _require_same("methods", names, _METHODS)
    rows = [(code(name), *_METHODS[name]) for name in names]
    rows.append(('`method = "NAME"`: any other', *_NAMED))
    return table(("method", IN_PROCESS, "vLLM", "SGLang", "llama.cpp"), rows)


def exports() -> str:
    """How each export was tested."""
    _require_same("exports", FORMATS, _EXPORTS)
    rows = [(code(form), *_EXPORTS[form]) for form in FORMATS]
    return table(("format", "in every test run, against", "read by the engine itself"), rows)


def _require_same(kind: str, names: Iterable[str], described: Mapping[str, object]) -> None:
    if set(names) != set(described):
        raise ValueError(f"{kind}: {sorted(set(names) ^ set(described))} must be in code and in this table")
