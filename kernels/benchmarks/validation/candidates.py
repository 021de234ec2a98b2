"""The candidates that are validated, as the product reads them: of an endpoint that names its engine, or none."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from shadowspec.config import load_config
from shadowspec.types import SpeculationConfig

from .pair import BUNDLED, Pair
from .ways import DEPTHS, SERVED

SERVING_ENGINE = "vllm 0.32"
ENDPOINT = "validated"


def read_candidates(serving_engine: str | None, pair: Pair = BUNDLED) -> dict[tuple[str, int], SpeculationConfig]:
    """The candidate of each deployment and K, as the product's configuration gives it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shadowspec.toml"
        path.write_text(configuration(serving_engine, pair), encoding="utf-8")
        found = {each.name: each for each in load_config(path, {}).endpoints[ENDPOINT].candidates}
    return {(served.name, depth): found[f"{served.name}-k{depth}"] for served in SERVED for depth in DEPTHS}


def configuration(serving_engine: str | None, pair: Pair) -> str:
    """The file: one endpoint, with a candidate for every deployment and K."""
    endpoint: dict[str, object] = {"target": pair.target.as_posix(), "served_models": ["bundled"]}
    if serving_engine is not None:
        endpoint["serving_engine"] = serving_engine
    tables = [_table(f"[endpoints.{ENDPOINT}]", endpoint)]
    for served in SERVED:
        for depth in DEPTHS:
            named = {"name": f"{served.name}-k{depth}", "num_speculative_tokens": depth}
            tables.append(_table(f"[[endpoints.{ENDPOINT}.candidates]]", named | served.candidate_of(pair)))
    return "\n".join(tables)


def _table(head: str, values: dict[str, object]) -> str:
    return "\n".join([head, *(f"{name} = {json.dumps(value)}" for name, value in values.items()), ""])
