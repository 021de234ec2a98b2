"""Current decisions to be judged: one endpoint with slices, loads and candidates, made from what each should say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_decision import endpoint_decisions
from shadowspec.rollout.check.answer import CheckInput, EndpointTerms, Question
from shadowspec.store import Traffic
from shadowspec.types import Decision, FingerprintedConfig, Override, SpeculationConfig, TestResult, Verdict, VerifyRule

NOW = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
ENGINE = "vllm/0.32.0"
CODE, CHAT = "prompt_class=code,sampling_regime=greedy", "prompt_class=chat,sampling_regime=high"
SPEEDUP = {Verdict.ENABLE: (1.3, 1.1, 1.6), Verdict.HOLD: (1.2, 0.9, 1.5), Verdict.DISABLE: (0.8, 0.6, 0.95)}


def fingerprint(name: str, revision: str = "a") -> str:
    return f"{name}-{revision}".encode().hex().ljust(64, "0")


def config(name: str = "draft", revision: str = "a", *, engine: str = ENGINE) -> FingerprintedConfig:
    speculation = SpeculationConfig(name, "target", "draft", "draft_model", 4, VerifyRule.REJECTION)
    details = {"target_weights": f"weights-{revision}-0123456789"}
    return FingerprintedConfig(speculation, engine, "cpu", "float32", details, fingerprint(name, revision))


def decision(
    verdict: Verdict | str = Verdict.ENABLE,
    slice_key: str = "",
    *,
    load: int = 4,
    name: str = "draft",
    revision: str = "a",
    speedup: Sequence[float | None] | None = None,
    **changes: Any,
) -> Decision:
    verdict = Verdict(verdict)
    estimate, lower, upper = speedup or SPEEDUP[verdict]
    test = TestResult("speedup", "open", estimate, lower, upper, 1.05, 0.003, "window", 60, 27)
    judged = Decision(
        endpoint="chat",
        slice_key=slice_key,
        concurrency=load,
        config=config(name).config,
        fingerprint=fingerprint(name, revision),
        verdict=verdict,
        reason_code={"ENABLE": "all_tests_pass", "DISABLE": "slowdown", "HOLD": "too_few_units"}[verdict.value],
        reason=f"{verdict.value.lower()} for a reason",
        tests=(test,),
        num_clusters=40,
        num_blocks=60,
        clusters_needed=12 if verdict is Verdict.HOLD else None,
        decided_at=NOW - HOUR,
        engine=ENGINE,
        verdict_since=NOW - 3 * HOUR,
        decision_id=100 + load,
    )
    return replace(judged, **changes)


def traffic(
    weights: Mapping[str, float], *, load: int = 4, name: str = "draft", revision: str = "a", age: timedelta = 2 * HOUR
) -> list[Traffic]:
    return [
        Traffic(key, fingerprint(name, revision), load, weight, NOW - age, NOW - age) for key, weight in weights.items()
    ]


def check_input(
    decisions: Sequence[Decision],
    rows: Sequence[Traffic] | None = None,
    orders: Sequence[Override] = (),
    configs: Mapping[str, FingerprintedConfig] | None = None,
    **changes: Any,
) -> CheckInput:
    """Without rows: the slices share the traffic evenly, at every load and with every config decided."""
    if rows is None:
        keys = {(d.slice_key or CODE, d.fingerprint, d.concurrency) for d in decisions}
        rows = [Traffic(*key, 10.0, NOW - 2 * HOUR, NOW - 2 * HOUR) for key in sorted(keys)]
    if configs is None:
        configs = {each.fingerprint: each for name in ("draft", "other") for each in (config(name), config(name, "b"))}
    found = endpoint_decisions(decisions, None, orders, NOW, measured=rows, configs=configs)
    terms = EndpointTerms(
        GatePolicy(window_s=0.0),
        changes.pop("load_shares", {}),
        changes.pop("candidates", ()),
    )
    return replace(CheckInput(found, configs, list(rows), terms), **changes)


def question(**changes: Any) -> Question:
    return Question("chat", **changes)
