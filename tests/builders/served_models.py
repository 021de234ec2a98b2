"""Test servers that serve a small model to both arms, and the configuration that names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shadowspec.servers import closed_loop
from shadowspec.servers.stream import Completion
from shadowspec.types import ArmTiming
from tests.builders.workspace import Workspace, record, write_traffic
from tests.servers.fake_server import FakeServer

SERVERS = """
[endpoints.letters.servers]
baseline_url = "{baseline}"
speculative_url = "{speculative}"
device = "a fake"
dtype = "float32"
first_token_timeout_s = 0.5
token_timeout_s = 0.5
max_attempts = 2
reachable_within_s = 0.0
max_model_len = {length}
prefix_cache = "off"
"""


def serve(workspace: Workspace, servers: tuple[FakeServer, FakeServer]) -> None:
    """Let the endpoint of the workspace be measured through these servers."""
    path = workspace.folder / "shadowspec.toml"
    workspace.replace_in_config("loads =", 'engine = "openai"\nrequests_per_slot = 2\nloads =')
    workspace.replace_in_config("[gate]", "[engine]\nwarmup_blocks = 0\n\n[gate]")
    tables = SERVERS.format(baseline=servers[0].url, speculative=servers[1].url, length=64)
    path.write_text(path.read_text(encoding="utf-8") + tables, encoding="utf-8")


def serve_several(workspace: Workspace, baseline: FakeServer, candidates: Mapping[str, FakeServer]) -> None:
    """Replace the endpoint's candidate by these names, each with its server and the depth of that server."""
    path = workspace.folder / "shadowspec.toml"
    serve(workspace, (baseline, baseline))
    text, table, rest = path.read_text(encoding="utf-8").partition("[[endpoints.letters.candidates]]")
    candidate, servers, settings = rest.partition("\n[endpoints.letters.servers]")
    text += servers + settings.replace(f'speculative_url = "{baseline.url}"\n', "")
    for name, server in candidates.items():
        text += f'[[endpoints.letters.servers.speculative]]\ncandidate = "{name}"\nurl = "{server.url}"\n'
        depth = f"tokens = {server.num_speculative_tokens}"
        text += table + candidate.replace('"draft"', f'"{name}"', 1).replace("tokens = 3", depth)
    path.write_text(text, encoding="utf-8")


def measured(workspace: Workspace, *numbers: int) -> Any:
    traffic = write_traffic(workspace.folder / "traffic.jsonl", [record(number) for number in numbers])
    return workspace.run("run", str(traffic), "--json")


def steady_timing(answer: Completion, concurrency: float) -> ArmTiming:
    """A request's times by its arm and its tokens: a verdict must not hang on what else the machine does."""
    per_token_ms = 2.0 if answer.speculation is None else 1.4
    jitter = 1.0 + (sum(answer.token_ids or ()) % 7) / 100.0
    decode_ms = per_token_ms * answer.num_output_tokens * jitter
    return replace(closed_loop.timing(answer, concurrency), queue_ms=0.0, prefill_ms=3.0, decode_ms=decode_ms)
