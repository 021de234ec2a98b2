"""Small worlds of decisions, and how each peer reads what is exported, in our own words."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import dropwhile, groupby, pairwise
from pathlib import Path
from typing import Any

from shadowspec.gate.verdict.current_decision import Expectation, endpoint_decisions
from shadowspec.rollout.served_decision import ServedDecision, judge_decisions
from shadowspec.store import Traffic
from shadowspec.types import Decision, Rollout, SpeculationConfig, TestResult, Verdict, VerifyRule

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
WEEK = timedelta(days=7)
PEERS = Path(__file__).parents[2] / "data" / "peers"


def config(
    depth: int = 4,
    *,
    name: str | None = None,
    draft: str | None = "org/draft",
    proposer: str = "draft_model",
    rule: VerifyRule = VerifyRule.REJECTION,
    **options: Any,
) -> SpeculationConfig:
    draft = None if proposer in ("ngram", "suffix") else draft
    return SpeculationConfig(name or f"{proposer}-{depth}", "org/target", draft, proposer, depth, rule, **options)


def decision(
    verdict: Verdict = Verdict.ENABLE,
    *,
    load: int = 4,
    slice_key: str = "",
    endpoint: str = "chat",
    of: SpeculationConfig | None = None,
    fingerprint: str | None = None,
    lower: float | None = 1.2,
    decided_at: datetime = NOW - timedelta(hours=1),
    number: int = 1,
    engine: str = "engine/1",
    reason_code: str = "all_tests_pass",
) -> Decision:
    of = of or config()
    speedup = TestResult("speedup", "pass", 1.3, lower, 1.5, 1.05, 0.01, "window", 90, 27)
    return Decision(
        endpoint=endpoint,
        slice_key=slice_key,
        concurrency=load,
        config=of,
        fingerprint=fingerprint or f"fp-{of.name}",
        verdict=verdict,
        reason_code=reason_code,
        reason="as the test says",
        tests=(speedup,),
        num_clusters=90,
        num_blocks=90,
        clusters_needed=None,
        decided_at=decided_at,
        engine=engine,
        decision_id=number,
    )


def judged(
    decisions: Iterable[Decision],
    *,
    evidence_at: datetime = NOW - timedelta(hours=2),
    rollouts: Iterable[Rollout] = (),
    engine: str | None = None,
) -> list[ServedDecision]:
    """What the decisions export as, all with evidence of the same time."""
    decisions, rollouts = list(decisions), list(rollouts)
    measured = [
        Traffic(d.slice_key, d.fingerprint, d.concurrency, 1.0, evidence_at - WEEK, evidence_at) for d in decisions
    ]
    by_endpoint = groupby(sorted(decisions, key=lambda d: d.endpoint), key=lambda d: d.endpoint)
    found = [
        current
        for _, decisions in by_endpoint
        for current in judge_decisions(
            endpoint_decisions(list(decisions), None, (), NOW, measured=measured, configs={}).latest,
            now=NOW,
            max_age=WEEK,
            expected=Expectation(engine=engine),
            rollouts=rollouts,
        )
    ]
    return sorted(found, key=lambda current: decisions.index(current.decision))


def fields(peer: str) -> dict[str, Any]:
    """What a peer's configuration has, as it stands in tests/data/peers."""
    return dict(json.loads((PEERS / f"{peer}.json").read_text(encoding="utf-8"))["fields"])


def methods(peer: str) -> set[str]:
    """The drafting methods of a peer's version, where its list has them."""
    return set(json.loads((PEERS / f"{peer}.json").read_text(encoding="utf-8"))["methods"])


def vllm_depths(value: dict[str, Any] | None, max_batch_size: int, remarks: Iterable[str] = ()) -> list[int]:
    """The depth at batch sizes 1..max as vLLM 0.32 expands its ranges: gaps and the end keep the depth before them.

    The suffix method ends the server at a range of another depth; without ranges it is kept within what was measured
    by the server's own limit, which the remarks name.
    """
    if value is None:
        return [0] * max_batch_size
    if value["method"] == "suffix":
        assert "num_speculative_tokens_per_batch_size" not in value
        (limit,) = [int(found[1]) for each in remarks if (found := re.search(r"--max-num-seqs (\d+)", each))]
        return [value["num_speculative_tokens"]] * min(limit, max_batch_size)
    ranges = sorted(value["num_speculative_tokens_per_batch_size"])
    assert ranges[0][0] == 1, "vLLM refuses ranges that do not begin at 1"
    assert all(before[1] < after[0] for before, after in pairwise(ranges)), "ranges overlap"
    assert all(0 < first <= last and depth >= 0 for first, last, depth in ranges)
    assert value["num_speculative_tokens"] > 0
    started = [[depth for first, _, depth in ranges if first <= size][-1] for size in range(1, max_batch_size + 1)]
    return [min(depth, value["num_speculative_tokens"]) for depth in started]


def sglang_depths(
    flags: dict[str, Any], adaptive: dict[str, Any] | None, max_batch_size: int, graphs: tuple[int, ...] = ()
) -> list[int]:
    """The steps at batch sizes 1..max as SGLang 0.5.23 takes them, up to the largest that it lets run."""
    if "speculative-algorithm" not in flags:
        return [0] * max_batch_size
    running = range(1, min(max_batch_size, flags["max-running-requests"]) + 1)
    if not flags.get("speculative-adaptive") or flags["speculative-algorithm"] not in ("EAGLE", "EAGLE3"):
        return [flags["speculative-num-steps"] for _ in running]
    assert adaptive is not None
    entries = {int(key): entry["candidate_steps"] for key, entry in adaptive.items() if key.isdigit()}
    depths = []
    for size in running:
        padded = next((graph for graph in graphs if graph >= size), size)
        steps = entries[max([key for key in entries if key <= padded], default=min(entries))]
        assert len(steps) == 1, "more than one candidate step adapts by a mean that has no bound"
        depths += steps
    return depths


def llamacpp_flags(text: str) -> dict[str, str]:
    """The arguments of an export as a shell splits them, after the lines of comments."""
    lines = text.splitlines(keepends=True)
    arguments = shlex.split("".join(dropwhile(lambda line: line.startswith("#"), lines)))
    assert len(arguments) % 2 == 0
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def llamacpp_depths(flags: dict[str, str], max_batch_size: int) -> list[int]:
    """The depth at batch sizes 1..max: one depth up to as many slots as the server has."""
    if flags["--spec-type"] == "none":
        return [0] * max_batch_size
    depth = flags.get("--spec-draft-n-max", flags.get("--spec-ngram-simple-size-m", ""))
    return [int(depth)] * min(int(flags["--parallel"]), max_batch_size)


def tensorrt_depths(document: dict[str, Any], max_batch_size: int, *, keys_are_largest: bool, floor: int) -> list[int]:
    """The draft length at batch sizes 1..max as TensorRT-LLM takes it, up to the largest that it lets run.

    `keys_are_largest`: what the keys of the schedule mean, which has changed; `floor`: the draft length that some
    versions do not go below.
    """
    spec = document["speculative_config"]
    if spec is None:
        return [0] * max_batch_size
    assert not {"max_concurrency", "draft_len_schedule"} <= set(spec), "they exclude each other"
    schedule = {int(key): length for key, length in spec.get("draft_len_schedule", {}).items()}
    if schedule:
        assert schedule[min(schedule)] == spec["max_draft_len"] == max(schedule.values())
    depths = []
    for size in range(1, min(max_batch_size, document["max_batch_size"]) + 1):
        if schedule and keys_are_largest:
            length = next((schedule[key] for key in sorted(schedule) if size <= key), 0)
        elif schedule:
            length = schedule[max(key for key in schedule if key <= size)]
        else:
            length = spec["max_draft_len"] if size <= spec["max_concurrency"] else 0
        depths.append(max(length, floor))
    return depths
