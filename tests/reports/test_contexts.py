"""By length of the prompt: every request in one range, figures pooled within it, and in every form of the report."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.gate.policy import GatePolicy
from shadowspec.reports.figures.tally import CacheCost, ContextPoint, Tally, by_context
from shadowspec.reports.report import Report, build_report, render_html, render_json, render_markdown
from shadowspec.tap.context_buckets import SHORTEST_RANGE, prompt_range
from tests.reports.worlds import NOW, MemorySource, add_slice, counts_of

CODE = "prompt_class=code,sampling_regime=greedy"


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (0, "<64"), (63, "<64"), (64, "64-128"), (127, "64-128"), (128, "128-256"), (511, "256-512"), (512, "512-1k"),
        (1_023, "512-1k"), (1_024, "1k-2k"), (2_047, "1k-2k"), (2_048, "2k-4k"), (131_072, "128k-256k"),
    ],
)  # fmt: skip
def test_ranges_double(tokens: int, name: str) -> None:
    assert prompt_range(tokens) == name


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=30))
def test_every_request_is_in_one_range_and_ranges_rise(lengths: list[int]) -> None:
    points = [ContextPoint(tokens, 8, Tally(num_runs=1)) for tokens in lengths]
    found = by_context(points, None)
    assert sum(row.num_requests for row in found) == len(lengths)
    assert [row.name for row in found] == list(dict.fromkeys(prompt_range(tokens) for tokens in sorted(lengths)))
    assert all(row.mean_acceptance_length is None and row.baseline_cache_bytes is None for row in found)


def tallied(drafts: int, accepted: int, first: int, baseline_ms: float, speculative_ms: float) -> Tally:
    return Tally(
        num_drafts=drafts, num_accepted_tokens=accepted, num_first_accepted_tokens=first,
        baseline_ms=baseline_ms, speculative_ms=speculative_ms,
    )  # fmt: skip


def test_figures_are_pooled_within_a_range() -> None:
    short, long = SHORTEST_RANGE // 2, 3 * SHORTEST_RANGE
    points = [
        ContextPoint(short, 10, tallied(10, 20, 8, 30.0, 10.0)),
        ContextPoint(long, 20, tallied(30, 30, 15, 50.0, 50.0)),
        ContextPoint(long + 10, 30, tallied(10, 30, 9, 50.0, 30.0)),
    ]
    first, second = by_context(points, CacheCost(target=100, draft=10))
    assert (first.mean_acceptance_length, first.first_position_acceptance_rate) == (3.0, 0.8)
    assert first.ratio_of_total_times == 3.0
    assert (second.mean_acceptance_length, second.ratio_of_total_times) == (1.0 + 60 / 40, 100 / 80)
    assert first.baseline_cache_bytes == 100 * (short + 10)
    assert first.speculative_cache_bytes == 110 * (short + 10)
    assert second.baseline_cache_bytes == 100 * (long + (20 + 10 + 30) / 2)


def world() -> MemorySource:
    """Requests of four lengths, of which the longer ones accept less."""
    source = MemorySource()
    add_slice(source, "editor", CODE, num_blocks=20, speedup=1.4, rate=0.7, seed=3)
    draw = random.Random(1)
    runs = source.measured_runs["editor"]
    for place, run in enumerate(runs):
        counts = counts_of(draw, (0.8, 0.7, 0.6, 0.4)[place % 4], 32)
        runs[place] = replace(run, counts=replace(counts, num_prompt_tokens=(40, 200, 700, 1_800)[place % 4]))
    return source


def report_of(source: MemorySource) -> Report:
    return build_report(source, {"editor": GatePolicy(window_s=0.0)}, NOW, data_note="Made up.")


def test_every_form_of_the_report_shows_them() -> None:
    report = report_of(world())
    whole = report.endpoints[0].hypotheses[0]
    assert [row.name for row in whole.by_context] == ["<64", "128-256", "512-1k", "1k-2k"]
    lengths = [row.mean_acceptance_length or 0.0 for row in whole.by_context]
    assert lengths == sorted(lengths, reverse=True)
    caches = [row.speculative_cache_bytes or 0.0 for row in whole.by_context]
    assert caches == sorted(caches)
    assert sum(row.num_requests for row in whole.by_context) == whole.num_requests
    page, text = render_html(report), render_markdown(report)
    assert "By length of the prompt" in page
    assert "512-1k" in page
    assert "| 512-1k | 20 |" in text
    document = json.loads(render_json(report))["endpoints"][0]["hypotheses"][0]
    assert [row["name"] for row in document["by_context"]] == ["<64", "128-256", "512-1k", "1k-2k"]


def test_one_range_is_no_table() -> None:
    source = MemorySource()
    add_slice(source, "editor", CODE, num_blocks=4, speedup=1.4, rate=0.7)
    assert "Prompt tokens</th>" not in render_html(report_of(source))
