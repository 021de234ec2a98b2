"""The configuration that opens a synthetic store: its endpoints, their slices and the gate's policy."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sqlalchemy import make_url

from kernels.benchmarks.large_store import DATA_NOTE
from kernels.benchmarks.large_store.world import SLICE_BY, SyntheticEndpoint, World

PRICE_PER_GPU_HOUR = 2.5  # made up, as everything else
OWNERS = ("assistants", "code tools", "search", "data")  # likewise


def config_text(world: World, url: str) -> str:
    """The configuration as TOML; a database URL with a password stays out of it, for SHADOWSPEC_DATABASE_URL."""
    lines = ["# The configuration of a synthetic store, as python -m kernels.benchmarks.large_store wrote it.", ""]
    if make_url(url).password is None:
        lines += ["[database]", f"url = {_string(url)}", ""]
    lines += [
        "[dashboard]",
        f"data_note = {_string(DATA_NOTE)}",
        f"price_per_gpu_hour = {PRICE_PER_GPU_HOUR}",
        "",
        "[gate]",
        f"max_hypotheses = {world.policy.max_hypotheses}",
        f"window_s = {world.policy.window_s:g}",
    ]
    for endpoint in world.endpoints:
        lines += _endpoint(endpoint)
    return "\n".join(lines) + "\n"


def _endpoint(endpoint: SyntheticEndpoint) -> Iterator[str]:
    loads = ", ".join(f"{{ concurrency = {load}, share = {1.0 / len(endpoint.loads)} }}" for load in endpoint.loads)
    yield from (
        "",
        f"[endpoints.{endpoint.name}]",
        f"target = {_string(endpoint.target)}",
        f"served_models = [{_string(endpoint.target)}]",
        f"sample_rate = {endpoint.sample_rate}",
        f"owner = {_string(OWNERS[sum(endpoint.name.encode()) % len(OWNERS)])}",
        f"slice_by = {json.dumps(SLICE_BY)}",
        'labels = { tier = ["free", "pro"] }',
        f"loads = [{loads}]",
    )
    for versions in endpoint.configs:
        config = versions[-1].config
        yield from (
            f"[[endpoints.{endpoint.name}.candidates]]",
            f"name = {_string(config.name)}",
            f"draft = {_string(config.draft or '')}",
            f"num_speculative_tokens = {config.num_speculative_tokens}",
        )


def _string(value: str) -> str:
    return json.dumps(value)  # a TOML basic string and a JSON string of these characters are the same
