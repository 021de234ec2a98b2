"""Drafts without a model on the bundled traffic: prompt lookup against suffix drafts, with and without recent outputs.

    python -m kernels.benchmarks.lookup [--k K...] [--out FILE]

Every response of the traffic is replayed (`shadowspec replay`, no model, no clock), and the expected counters are added
up by prompt class.  `steps_per_token` are the target's passes after prefill over the tokens after the first: 1 without
speculation, and what a step costs is not in it.  The recent outputs of an endpoint are its responses replayed before,
in the order of the file, and those of suffix drafts come one after the other, so that no two of them overlap.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kernels.benchmarks.harness import options, write
from shadowspec import demo
from shadowspec.app.replay_records import ReplayedTraffic, replay_files
from shadowspec.app.replayers import Asked
from shadowspec.config import load_config
from shadowspec.metrics import ratio
from shadowspec.types import ExpectedCounts, parse_slice_key

EVERYTHING: Final = "all"
WAYS: Final = {
    "ngram": 'proposer = "ngram"',
    "suffix, request alone": 'proposer = "suffix"\nsuffix_memory_tokens = 0',
    "suffix": 'proposer = "suffix"',
}
SUMMED: Final = ("num_drafts", "num_plain_steps", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens")


def config_text(folder: Path) -> str:
    """The demo's configuration with these ways of drafting as the candidates of every endpoint."""
    blocks = []
    for block in demo.demo_config(folder, 0).split("\n[endpoints."):
        head, has_candidates, _ = block.partition("[[endpoints.")
        name = head.partition("]")[0]
        candidates = [
            f'[[endpoints.{name}.candidates]]\nname = "way-{number}"\n{way}\nnum_speculative_tokens = 8\n'
            for number, way in enumerate(WAYS.values())
        ]
        blocks.append(head + "\n".join(candidates) if has_candidates else block)
    return "\n[endpoints.".join(blocks)


def replayed(depths: tuple[int, ...]) -> ReplayedTraffic:
    """All responses of the bundled traffic."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shadowspec.toml"
        path.write_text(config_text(Path(folder)), encoding="utf-8")
        (Path(folder) / "demo.secret").write_text(demo.DEMO_SECRET, encoding="utf-8")
        return replay_files(
            load_config(path, {}),
            [str(demo.TRAFFIC)],
            Asked(depths, draft_only=True),
            max_requests=None,
            on_outcome=lambda _: None,
        )


def summed(done: ReplayedTraffic) -> dict[tuple[str, int, str], dict[str, float]]:
    """The counters of each prompt class, depth and way of drafting."""
    sums: dict[tuple[str, int, str], dict[str, float]] = defaultdict(
        lambda: dict.fromkeys((*SUMMED, "num_first_accepted", "num_requests"), 0.0)
    )
    for (_, slice_key, place), pool in done.pools.items():
        prompt_class = parse_slice_key(slice_key)["prompt_class"] if slice_key else EVERYTHING
        for depth, pooled in zip(done.depths, pool.pool(), strict=True):
            entry = sums[prompt_class, depth, list(WAYS)[place]]
            _add(entry, pooled.counts)
            entry["num_requests"] += pooled.num_requests
    return sums


def _add(entry: dict[str, float], counts: ExpectedCounts) -> None:
    for name in SUMMED:
        entry[name] += getattr(counts, name)
    entry["num_first_accepted"] += counts.num_accepted_tokens_per_pos[0]


def figures(entry: Mapping[str, float]) -> dict[str, float | None]:
    """The ratios of one cell."""
    steps = entry["num_drafts"] + entry["num_plain_steps"]
    return {
        "drafted_share_of_steps": ratio(entry["num_drafts"], steps),
        "first_position_acceptance_rate": ratio(entry["num_first_accepted"], entry["num_drafts"]),
        "draft_acceptance_rate": ratio(entry["num_accepted_tokens"], entry["num_draft_tokens"]),
        "mean_accepted_tokens": ratio(entry["num_accepted_tokens"], entry["num_drafts"]),
        "steps_per_token": ratio(steps, entry["num_output_tokens"] - entry["num_requests"]),
    }


def table(cells: list[dict[str, Any]], depth: int) -> str:
    """Markdown: a row a prompt class, three figures a way of drafting."""
    ways = list(WAYS)
    lines = [f"| K = {depth} | requests | " + " | ".join(ways) + " |", "|---|---|" + "---|" * len(ways)]
    by_class = {cell["prompt_class"]: cell["num_requests"] for cell in cells if cell["num_speculative_tokens"] == depth}
    for prompt_class in sorted(by_class, key=lambda name: (name == EVERYTHING, -by_class[name])):
        by_way = {
            cell["way"]: cell
            for cell in cells
            if (cell["prompt_class"], cell["num_speculative_tokens"]) == (prompt_class, depth)
        }
        shown = [
            " / ".join(
                f"{by_way[way][name]:.2f}"
                for name in ("drafted_share_of_steps", "draft_acceptance_rate", "steps_per_token")
            )
            for way in ways
        ]
        lines.append(f"| {prompt_class} | {by_class[prompt_class]:,.0f} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> None:
    """Replay, write the figures down, print the tables."""
    parser = options(__doc__, "lookup.json")
    parser.add_argument("--k", type=int, nargs="+", default=[4, 8])
    arguments = parser.parse_args()
    done = replayed(tuple(sorted(arguments.k)))
    cells = [
        {"prompt_class": name, "num_speculative_tokens": depth, "way": way, **entry, **figures(entry)}
        for (name, depth, way), entry in sorted(summed(done).items())
    ]
    document = {
        "requests_replayed": done.num_replayed,
        "not_replayed": {" ".join(map(str, key)): count for key, count in sorted(done.funnel.items(), key=str)},
        "ways": WAYS,
        "cells": cells,
    }
    write(arguments.out, document)
    for depth in done.depths:
        print(table(cells, depth) + "\n")


if __name__ == "__main__":
    main()
