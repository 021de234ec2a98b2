"""The metrics: each is documented as it is, counts what it says, and has a bounded number of series."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from shadowspec.types import FunnelCounter, WriteOutcome
from shadowspec.worker.telemetry import MAX_LABEL_VALUES, OTHER, Telemetry
from tests.fakes import FakeEngine, Marks, fake_config
from tests.worker.blocks import block, prompt

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^- `(shadowspec_\w+)` \((counter|gauge|histogram)(?:; ([\w, ]*))?\): .+$", re.MULTILINE)
CONFIG = fake_config("fast", 3)
OOM = 100


def exercised() -> Telemetry:
    """Telemetry on which everything has happened once."""
    telemetry = Telemetry()
    telemetry.funnel({("chat", FunnelCounter.SHED, "queue"): 3, (None, FunnelCounter.MALFORMED, None): 1})
    telemetry.lag({("prompts", 0): 7, ("prompts", 1): 0})
    telemetry.record_backpressure(is_paused=True, num_unfinished=5, num_waiting=4)
    telemetry.engine(num_queued=2, num_in_flight=3)
    telemetry.record_ready(["chat", "code"], {"chat"})
    telemetry.record_configs([CONFIG])
    telemetry.engine_restarted("engine_died")
    given = structs.replace(
        block(prompt(1), prompt(2), prompt(3, OOM), fillers=[prompt(9)]), slice_key="prompt_class=code"
    )
    result = FakeEngine((CONFIG,), marks=Marks(oom=OOM)).measure(given)
    telemetry.record_block(
        replace(result, num_out_of_memory=2), {prompt(3).key: "engine_stalled"}, 1.5, "engine_stalled"
    )
    telemetry.record_write(WriteOutcome(num_new_runs=2, num_new_records=9, num_new_blocks=1), 0.02)
    telemetry.commit_failed()
    telemetry.dead_letter("decode")
    telemetry.record_loss("prompts", 1, 40)
    return telemetry


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return telemetry.registry.get_sample_value(f"shadowspec_{name}", labels)


def test_the_documentation_names_every_metric_with_its_type_and_labels() -> None:
    documented = {
        name: (kind, {label for label in labels.strip().split(", ") if label})
        for name, kind, labels in ROW.findall(DOCUMENT.read_text())
    }
    real = {}
    for family in exercised().registry.collect():
        samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        assert samples, f"{family.name} is not exercised here"
        name = family.name + ("_total" if family.type == "counter" else "")
        real[name] = (family.type, set(samples[0].labels) - {"le"})
    assert documented == real


def test_what_prometheus_reads() -> None:
    text = exercised().exposition().decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    assert "shadowspec_records" in families
    assert "_created" not in text


def test_a_measured_block() -> None:
    telemetry = exercised()
    result = FakeEngine((CONFIG,)).measure(block(prompt(1), prompt(2)))
    counts = [run.counts for run in result.runs if run.counts is not None]
    labels = {"endpoint": "chat", "slice": "prompt_class=code", "config": CONFIG.fingerprint[:12]}
    for name, expected in {
        "drafts_total": sum(c.num_drafts for c in counts),
        "draft_tokens_total": sum(c.num_draft_tokens for c in counts),
        "accepted_tokens_total": sum(c.num_accepted_tokens for c in counts),
        "first_position_accepted_total": sum(c.num_accepted_tokens_per_pos[0] for c in counts),
    }.items():
        assert expected > 0
        assert value(telemetry, name, **labels) == expected
    assert value(telemetry, "runs_total", **labels, failure="") == 2
    assert value(telemetry, "runs_total", **labels, failure="out_of_memory") == 1
    assert value(telemetry, "poisoned_requests_total", endpoint="chat", reason="engine_stalled") == 1
    assert value(telemetry, "failed_blocks_total", endpoint="chat", reason="engine_stalled") == 1
    assert value(telemetry, "out_of_memory_total", endpoint="chat") == 2
    assert value(telemetry, "batch_requests_sum", endpoint="chat") == 4
    assert value(telemetry, "block_seconds_sum", endpoint="chat") == 1.5
    baseline = [run.baseline for run in result.runs if run.baseline is not None]
    mean_steps = [timing.decode_ms / (timing.num_output_tokens - 1) / 1e3 for timing in baseline]
    assert value(telemetry, "step_seconds_sum", endpoint="chat", arm="baseline") == pytest.approx(sum(mean_steps))
    speculative = [(run.speculative, run.counts) for run in result.runs if run.speculative and run.counts]
    mean_steps = [timing.decode_ms / counted.num_drafts / 1e3 for timing, counted in speculative]
    assert value(telemetry, "step_seconds_sum", endpoint="chat", arm="speculative") == pytest.approx(sum(mean_steps))


def test_a_block_that_was_never_measured_took_no_time() -> None:
    telemetry = Telemetry()
    telemetry.record_block(FakeEngine((CONFIG,)).measure(block(prompt(1))), seconds=0.0)
    assert value(telemetry, "block_seconds_count", endpoint="chat") is None


def test_the_lag_of_a_revoked_partition_is_gone() -> None:
    telemetry = exercised()
    assert value(telemetry, "consumer_lag_messages", topic="prompts", partition="0") == 7
    telemetry.lag({("prompts", 1): 2})
    assert value(telemetry, "consumer_lag_messages", topic="prompts", partition="0") is None
    assert value(telemetry, "consumer_lag_messages", topic="prompts", partition="1") == 2


def test_slices_are_bounded() -> None:
    telemetry = Telemetry()
    engine = FakeEngine((CONFIG,))
    for number in range(MAX_LABEL_VALUES + 20):
        telemetry.record_block(engine.measure(structs.replace(block(prompt(number)), slice_key=f"tenant={number}")))
    series = [
        sample.labels["slice"]
        for family in telemetry.registry.collect()
        for sample in family.samples
        if sample.name == "shadowspec_runs_total"
    ]
    assert len(series) == MAX_LABEL_VALUES + 1
    labels = {"endpoint": "chat", "slice": OTHER, "config": CONFIG.fingerprint[:12], "failure": ""}
    assert value(telemetry, "runs_total", **labels) == 20


def test_two_workers_in_one_process_count_apart() -> None:
    first, second = Telemetry(), Telemetry()
    first.commit_failed()
    assert value(second, "commit_failures_total") == 0
