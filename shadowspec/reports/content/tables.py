"""Each table of the reports, the dashboard and the terminal, written once: its columns, what they mean, its cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from shadowspec.gate.verdict.figure_texts import bounds_text, shown_as, threshold_text, title_of
from shadowspec.reports.content.chart_values import Shares
from shadowspec.reports.content.content_blocks import Cell, Column, Table, table
from shadowspec.reports.content.definitions import COUNTER_MEANING, test_notes
from shadowspec.reports.figures.by_turn import TURN_HEAD, TurnRow
from shadowspec.reports.figures.chats import PART_HEAD, PartRow
from shadowspec.reports.figures.failure_rows import FailureRow
from shadowspec.reports.figures.funnel import UNMATCHED, CacheRow, Funnel, PromptRow
from shadowspec.reports.figures.predictions import PREDICTION_HEAD, Prediction, prediction_cells
from shadowspec.reports.figures.replay_rows import AuditRow, ReplayRow
from shadowspec.reports.figures.tally import ContextRow
from shadowspec.servers.engines.rules import rule_texts
from shadowspec.text import (
    DASH,
    byte_size,
    figure,
    format_signed,
    milliseconds,
    number,
    percent,
    plural,
    slice_title,
    times,
)
from shadowspec.types import Arm, FingerprintedConfig, TestResult

TESTS: Final = (
    Column("Test", meaning="The test, and below it the figures that help to weigh it."),
    Column(
        "Outcome",
        meaning="pass: the figure is proven to be on the right side of its limit; fail: it is proven to be on the "
        "wrong side.",
        is_whole=True,
    ),
    Column("Estimate", True, meaning="Of the units measured so far.", is_whole=True),
    Column("Bounds", True, "bounds", "Anytime-valid: they hold at every look, however often the gate looks."),
    Column("Threshold", True, meaning="The limit that the bound must pass.", is_whole=True),
    Column("Level", True, "level", "Largest probability of a false pass, over all looks together."),
    Column("n", True, "units", "Blocks, clusters (sessions) or requests; never tokens."),
    Column("Smallest n", True, meaning="The fewest units at which the test could pass."),
    Column("Still needed", True, meaning="Units until the test may pass: an estimate."),
)


def tests_table(tests: Iterable[TestResult]) -> Table:
    """Each test with estimate, bounds, threshold, units, and what it still needs."""
    empty = "No test has been run on this hypothesis yet."
    return table("Tests of the hypothesis", TESTS, map(_test, tests), empty=empty)


def narrow_tests_table(tests: Iterable[TestResult]) -> Table:
    """The same for a terminal: without level and smallest n, and without the figures beside a test."""
    whole = tests_table(tests)
    kept = [place for place, column in enumerate(whole.columns) if column.title not in ("Level", "Smallest n")]
    rows = ([Cell(row[0].text), *(row[place] for place in kept[1:])] for row in whole.rows)
    return table(whole.name, [whole.columns[place] for place in kept], rows, empty=whole.empty)


def _test(test: TestResult) -> list[Cell | str]:
    tone = test.outcome if test.outcome in ("pass", "fail") else "open"
    notes = test_notes(test)
    needed = DASH if test.units_needed is None else f"about {plural(test.units_needed, test.unit)}"
    return [
        Cell(title_of(test), (" \u00b7 ".join(notes),) if notes else (), is_strong=True),
        Cell(test.outcome, tone=tone),
        shown_as(test.name)(test.estimate),
        bounds_text(test),
        threshold_text(test),
        figure(test.alpha),
        plural(test.num_units, test.unit),
        f"{test.min_units:,}",
        Cell(needed, hover="" if test.units_needed is not None else "decided, or unknown"),
    ]


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One measure of one arm; `quantiles` are (text, why it is none) in the order of `LATENCY_SHARES`."""

    measure: Cell
    arm: Arm
    quantiles: tuple[Cell, ...]
    num_requests: int | None


LATENCY_SHARES: Final = (0.5, 0.95, 0.99)


def latency_table(rows: Iterable[LatencyRow], resolution: str = "") -> Table:
    """Quantiles of both arms; `resolution` says how exact they are."""
    quantiles = (
        Column(
            f"p{100 * share:g}",
            True,
            meaning=f"Smallest latency that {percent(share, 0)} of requests do not exceed.{resolution}",
        )
        for share in LATENCY_SHARES
    )
    columns = (
        Column("Measure", meaning="End to end is prefill and decode of the arm; TTFT is its prefill; TPOT is decode "
               "per output token after the first."),
        Column("Arm", meaning="Both arms ran the same requests."),
        *quantiles,
        Column("Requests", True, meaning="Timed in both arms."),
    )  # fmt: skip
    return table(
        "Latency of both arms",
        columns,
        (
            [
                row.measure,
                row.arm.value,
                *row.quantiles,
                DASH if row.num_requests is None else f"{row.num_requests:,}",
            ]
            for row in rows
        ),
    )


def arm_means_table(rows: Iterable[tuple[Cell, Arm, str]]) -> Table:
    """Figures of each arm that are no quantiles: mean of a request, or a share of all."""
    columns = (
        Column("Measure", meaning="A mean or a share, over the requests that were timed in both arms."),
        Column("Arm", meaning="Both arms ran the same requests."),
        Column("Value", True),
    )
    return table("Both arms on average", columns, ([measure, arm.value, value] for measure, arm, value in rows))


def failures_table(rows: Iterable[FailureRow]) -> Table:
    """Each failure with its count, what it is a share of, and what it means."""
    columns = (
        Column("Failure", meaning="A property of a measured request."),
        Column("Requests", True, meaning="Requests that have it."),
        Column("Of", True, meaning="Requests for which it is defined."),
        Column("Share", True, meaning="The first count over the second; plain, not weighted."),
    )
    return table(
        "Failures of measured requests",
        columns,
        ([Cell(row.title, (row.definition,)), f"{row.count:,}", f"{row.of:,}", percent(row.share)] for row in rows),
    )


def turns_table(rows: Iterable[TurnRow]) -> Table:
    """What prefix caches held, turn by turn."""
    head = (Column(name, is_number=place > 0) for place, name in enumerate(TURN_HEAD))
    return table("Prefix cache", tuple(head), (row.cells for row in rows))


def parts_table(rows: Iterable[PartRow]) -> Table:
    """Reasoning and answer of chats."""
    head = (Column(name, is_number=place > 0) for place, name in enumerate(PART_HEAD))
    return table("Reasoning and answer", tuple(head), (row.cells for row in rows))


def contexts_table(rows: Iterable[ContextRow]) -> Table:
    """Measured requests by the length of their prompts."""
    columns = (
        Column("Prompt tokens"),
        Column("Requests", True),
        Column("Tokens per step", True, "mean-length"),
        Column("1st position", True, "first-position"),
        Column("Ratio of total times", True, "total-times"),
        Column("Cache, baseline", True),
        Column("Cache, speculative", True),
    )
    return table(
        "By length of the prompt",
        columns,
        (
            [
                row.name,
                f"{row.num_requests:,}",
                number(row.mean_acceptance_length),
                percent(row.first_position_acceptance_rate),
                times(row.ratio_of_total_times),
                _bytes(row.baseline_cache_bytes),
                _bytes(row.speculative_cache_bytes),
            ]
            for row in rows
        ),
    )


def _bytes(value: float | None) -> str:
    return DASH if value is None else byte_size(int(value))


def replays_table(rows: Iterable[ReplayRow]) -> Table:
    """Replay's acceptance at each K, and what the loop counted."""
    columns = (
        Column("Slice"),
        Column("Config, rule", meaning="The rule is that by which the target accepts a proposed token."),
        Column("K", True, meaning="Number of speculative tokens."),
        Column("Requests", True, meaning="Logged responses that were replayed."),
        Column(
            "Length, replay",
            True,
            "mean-length",
            "Expected mean acceptance length, from logged responses, pooled. No test uses it.",
        ),
        Column(
            "Length, engine", True, "mean-length", "Mean acceptance length that the engine counted in the same time."
        ),
        Column("First position", True, "first-position", "First-position acceptance rate by replay, pooled."),
    )
    return table(
        "Replay beside the engine",
        columns,
        (
            [
                slice_title(row.slice_key),
                Cell(f"{row.config_name}, {row.verify_rule.replace('_', ' ')}", hover=row.fingerprint),
                f"K = {row.num_speculative_tokens}",  # a phone shows no heads
                f"{row.num_requests:,}",
                number(row.mean_acceptance_length),
                number(row.loop_mean_acceptance_length),
                percent(row.first_position_acceptance_rate),
            ]
            for row in rows
        ),
    )


def audits_table(rows: Iterable[tuple[str, AuditRow]]) -> Table:
    """Audits, each with its endpoint."""
    columns = (
        Column("Endpoint", meaning="The endpoint of the outputs."),
        Column("Slice", meaning="The whole endpoint contains every slice's outputs."),
        Column("Config", meaning="The config whose outputs were replayed."),
        Column(
            "Audit",
            meaning="An alarm means that engine or replay is wrong. It sets an override HOLD until an operator "
            "clears it.",
        ),
        Column(
            "Difference",
            True,
            meaning="Share of tokens that the engine accepted beyond replay's expectation: zero if both are right.",
        ),
        Column(
            "Capital, alarm at",
            True,
            meaning="Highest capital of the bets against zero, and the capital at which the alarm fires.",
        ),
        Column("Outputs", True, meaning="Audited so far."),
        Column("Refused", True, meaning="Outputs that the target cannot have produced; the parity tests judge them."),
    )
    return table(
        "Audits of the engine",
        columns,
        (
            [
                endpoint,
                slice_title(row.slice_key),
                Cell(row.config_name, hover=row.fingerprint),
                Cell(row.words, tone="fail" if row.state.has_alarmed else "", is_strong=row.state.has_alarmed),
                format_signed(row.state.difference),
                row.capital_text,
                f"{row.state.num_units:,}",
                f"{row.state.num_refused:,}",
            ]
            for endpoint, row in rows
        ),
    )


_PREDICTION_TERMS: Final = {
    "Tokens per step": "mean-length",
    "Pays from": "pays-from",
    "Predicted": "predicted",
    "Measured": "total-times",
    "Passes saved": "passes-saved",
}


def predictions_table(predictions: Iterable[Prediction], price_per_hour: float | None) -> Table:
    """What the cost model predicts for every measured cell, beside what was measured there."""
    columns = (
        Column(name, is_number=place > 2, term=_PREDICTION_TERMS.get(name, ""))
        for place, name in enumerate(PREDICTION_HEAD)
    )
    rows = (prediction_cells(prediction, price_per_hour) for prediction in predictions)
    return table("Predicted by the cost model", tuple(columns), rows, look="dense wide")


def funnel_table(funnels: Sequence[Funnel], total: Funnel) -> Table:
    """Where the records of each endpoint ended, and those of all."""
    counters = (Column(row.title, True, meaning=COUNTER_MEANING[row.counter]) for row in total.rows)
    columns = (Column("Endpoint"), Column("read", True), *counters)
    shown = [*(funnel for funnel in funnels if funnel.num_records), total]
    return table(
        "Where the records ended",
        columns,
        (_funnel_row(funnel, is_total=funnel is total) for funnel in shown) if total.num_records else (),
        empty="No record has been read.",
        look="plain",
    )


def funnel_summary(funnels: Sequence[Funnel], total: Funnel) -> Table:
    """The same for a terminal: counters that are 0 everywhere take no room."""
    whole = funnel_table(funnels, total)
    kept = [0, 1, *(place for place, row in enumerate(total.rows, start=2) if row.num_records)]
    columns = [whole.columns[place] for place in kept]
    return table(whole.name, columns, ([row[place] for place in kept] for row in whole.rows), empty=whole.empty)


def _funnel_row(funnel: Funnel, *, is_total: bool) -> list[Cell | str]:
    parts = tuple((row.title, row.num_records, row.counter.value) for row in funnel.rows)
    name = "all" if is_total else UNMATCHED if funnel.endpoint is None else funnel.endpoint
    picture = Shares(parts, f"{funnel.num_records:,} records by counter") if funnel.num_records else None
    return [
        Cell(name, picture=picture, is_strong=is_total),
        Cell(f"{funnel.num_records:,}", is_strong=is_total),
        *(Cell(f"{row.num_records:,}", tone="" if row.num_records else "soft") for row in funnel.rows),
    ]


def reasons_table(funnels: Iterable[Funnel]) -> Table:
    """Why records were not measured, by endpoint and counter."""
    columns = (Column("Endpoint"), Column("Counter"), Column("Reason"), Column("Records", True))
    return table(
        "Reasons",
        columns,
        (
            [funnel.endpoint or UNMATCHED, row.title, Cell(reason, is_code=True), f"{count:,}"]
            for funnel in funnels
            for row in funnel.rows
            for reason, count in row.reasons
        ),
        empty="No record has a reason.",
    )


def prompts_table(prompts: Iterable[PromptRow]) -> Table:
    """How many measured prompts production's server counts otherwise, by endpoint and config."""
    columns = (Column("Endpoint"), Column("Config"), Column("Prompts counted", True), Column("Of another length", True))
    return table(
        "Prompts that production's server counts",
        columns,
        ([row.endpoint, row.config_name, f"{row.num_compared:,}", percent(row.share)] for row in prompts),
        empty="Production's answers count no prompt.",
    )


def caches_table(caches: Iterable[CacheRow]) -> Table:
    """What production and the servers found in prefix caches, by endpoint and config."""
    columns = (
        Column("Endpoint"),
        Column("Config"),
        Column("Requests", True),
        Column("Prompt tokens", True),
        Column("Cached, production", True),
        Column("Cached, baseline", True),
        Column("Cached, speculative", True),
    )
    return table(
        "Prompt tokens in prefix caches",
        columns,
        (
            [
                row.endpoint,
                row.config_name,
                f"{row.num_requests:,}",
                f"{row.num_prompt_tokens:,}",
                percent(row.production_share),
                percent(row.baseline_share),
                percent(row.speculative_share),
            ]
            for row in caches
        ),
        empty="No request has the cached tokens of production and both servers.",
    )


def configs_table(configs: Iterable[FingerprintedConfig]) -> Table:
    """Every measured config: what drafts, by which rules, on which engine."""
    columns = (
        Column("Config"),
        Column("Target, draft"),
        Column("Proposer"),
        Column("K", True),
        Column("Verify rule"),
        Column("Engine, device, dtype"),
        Column("Fingerprint"),
    )
    return table(
        "Speculation configs",
        columns,
        map(_config, configs),
        empty="No speculation config has been measured yet.",
        look="plain",
    )


def _config(fingerprinted: FingerprintedConfig) -> list[Cell | str]:
    config = fingerprinted.config
    served = ("the server's method", str(config.speculative_config)) if config.is_served_method else ()
    details = [(name.replace("_", " "), value) for name, value in sorted(fingerprinted.details.items())]
    in_full = "; ".join([fingerprinted.fingerprint, *(f"{name} {value}" for name, value in details)])
    return [
        config.name,
        Cell(config.target, (config.draft,) if config.draft else (), is_code=True),
        Cell(config.title, (*served, *rule_texts(config))),
        str(config.num_speculative_tokens),
        Cell(config.verify_rule.value.replace("_", " "), ("greedy requests: greedy",)),
        Cell(fingerprinted.engine, (f"{fingerprinted.device}, {fingerprinted.dtype}, {config.backend}",)),
        Cell(
            fingerprinted.fingerprint[:16],
            tuple(f"{name} {value[:12]}" for name, value in details),
            hover=in_full,
            is_code=True,
        ),
    ]


def quantile_cell(value: float | None, needs: int, num_requests: int) -> Cell:
    """A quantile in milliseconds; where it has too few requests, how many it needs."""
    if value is not None:
        return Cell(milliseconds(value))
    return Cell(f"{DASH} (n < {needs})", tone="soft", hover=f"needs {needs} requests, has {num_requests}")
