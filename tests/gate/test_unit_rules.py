"""What each rule on units is for: the product keeps its level in a world where breaking the rule does not.

Every world is at the boundary (a correct gate rejects in at most LEVEL of runs).  The product's own code makes the
units; then the same is asked of a copy of it that breaks one rule, of those that take long in `make test-all`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import ModuleType

import numpy as np
import pytest

from shadowspec.gate.evidence import agreement
from shadowspec.gate.evidence import clusters as open_clusters
from shadowspec.gate.evidence import speedup as latency
from shadowspec.gate.evidence.hypothesis import TestEvidence
from shadowspec.gate.evidence.series import BettingTest, UnitValues, unit_series
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.memory_store import MemoryKeys
from shadowspec.gate.stats import betting
from shadowspec.gate.verdict import required_tests as results
from shadowspec.gate.verdict import trial_levels
from shadowspec.tap import admission, blocks
from shadowspec.tap.endpoints import Load
from shadowspec.tap.hashing import KeyedHash
from shadowspec.types import Decision, RecordKey, SamplingParameters, ShadowPrompt, StoredRecord, Verdict
from shadowspec.worker import service
from tests.builders.decisions import configs, decision
from tests.fakes import endpoint_rule
from tests.gate.sabotage import sabotaged
from tests.gate.worlds import START, block_unit, cluster_unit, record_of, run_of
from tests.tap.mirror import RULE, SECRET, ByteTokenizer, admit, chat, raw

LEVELS = "shadowspec.gate.verdict.trial_levels"
LEVEL = 0.05
CLIP, MARGIN = math.log(2.0), math.log(1.05)
POLICY = GatePolicy(window_s=0.0)
# Three standard deviations above LEVEL in 200 runs; what the broken rules give is far beyond it.
MOST = 0.1


def ever_rejects(values: np.ndarray, weights: np.ndarray, lowest: float, highest: float, theta: float) -> bool:
    """Whether the lower test of these units rejects at any look."""
    sums = betting.Sums(values, weights)
    path = betting.log_capital_path(betting.UnitSeries(sums, sums, sums, lowest, highest).ratios("lower", theta))
    return bool(path.max() >= -math.log(LEVEL))


def speedup_rejects(values: Sequence[float]) -> bool:
    """The same for full blocks' mean log speedups."""
    return ever_rejects(np.array(values), np.ones(len(values)), -CLIP, CLIP, MARGIN)


# A session is timed once: sessions that span blocks made 27% false at 5%.


def timed_sessions(module: ModuleType, num_sessions: int, num_turns: int) -> list[list[str]]:
    """Per full block of 4, in start order, the sessions of its requests."""
    rule = replace(RULE, loads=(Load(4),), timed_positions=num_turns)
    decide = module.Admission([rule], {rule.name: ByteTokenizer()}, KeyedHash(SECRET))
    former = blocks.BlockFormer([rule])
    formed = []
    for line in range(num_sessions * num_turns):
        session = f"s{line % num_sessions}"
        fate = admit(decide, raw(chat(session_id=session, request_id=f"r{line}", response_id=None), line + 1))
        if isinstance(fate, module.Admitted):
            formed += former.add(fate.prompt, fate.concurrency)
    return [[str(prompt.session_hash) for prompt in block.requests] for block in formed]


def false_rate_of_sessions(module: ModuleType) -> float:
    """Sessions differ by a standard deviation of .3 in log speedup, their requests by .05, about the margin."""
    pattern = timed_sessions(module, 200, 4)
    index = {name: number for number, name in enumerate(sorted({name for block in pattern for name in block}))}
    places, rng, false = np.array([[index[name] for name in block] for block in pattern]), np.random.default_rng(1), 0
    for _ in range(400):
        normal = rng.normal(MARGIN, 0.3, len(index))[places] + rng.normal(0.0, 0.05, places.shape)
        false += speedup_rejects(np.clip(normal - MARGIN, -0.6, 0.6).mean(axis=1) + MARGIN)
    return false / 400


def test_a_session_is_timed_once() -> None:
    assert false_rate_of_sessions(admission) <= LEVEL
    every_turn = ('return Rejected(_make_row(reading, FunnelCounter.SAMPLED_OUT, "not_timed", *place))', "pass")
    assert false_rate_of_sessions(sabotaged("shadowspec.tap.admission", every_turn)) > MOST


# Blocks fold as sums over their full size: means of uneven blocks made 35% false.


def false_rate_of_uneven_blocks() -> float:
    """As many requests in blocks of 1 as in blocks of 4 of 4; the former gain what the latter lose."""
    rng, false = np.random.default_rng(2), 0
    for _ in range(60):
        made = []
        for sequence in range(80):
            size, gain = (1, 0.1) if rng.random() < 0.8 else (4, -0.1)
            logs = MARGIN + gain + rng.normal(0.0, 0.1, size)
            made.append(block_unit(sequence, [run_of(i, "b", log_speedup=float(log)) for i, log in enumerate(logs)]))
        ratios = latency.speedup_test(made, POLICY).series.ratios("lower", MARGIN)
        false += bool(betting.log_capital_path(ratios).max() >= -math.log(LEVEL))
    return false / 60


def test_a_block_folds_as_a_sum_over_its_full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert false_rate_of_uneven_blocks() <= LEVEL
    broken = sabotaged(
        "shadowspec.gate.evidence.series",
        ("np.ones_like(scores)), blocks.n_max", "np.ones_like(scores)), blocks.sum_by_block(np.ones_like(scores))"),
    )
    monkeypatch.setattr(latency, "block_series", broken.block_series)
    assert false_rate_of_uneven_blocks() > MOST


# Clusters enter in the order of their first event: entering as they close made 63 to 99% false.


def sessions_of_two_lengths(rng: np.random.Generator) -> tuple[list[StoredRecord], dict[str, bool]]:
    """100 sessions over 3 hours: half of one request, half of 8 requests, 25 minutes apart; and which are short."""
    records, is_short = [], {}
    for session in range(100):
        start, short = float(rng.uniform(0.0, 10_800.0)), bool(rng.random() < 0.5)
        is_short[f"session:s{session}"] = short
        for turn in range(1 if short else 8):
            records.append(record_of(10 * session + turn, at_s=start + 1_500.0 * turn, session=f"s{session}"))
    return records, is_short


def false_rate_of_entries(module: ModuleType) -> float:
    """Looks every 20 minutes; short sessions accept 60%, long ones 20%: 40% on average, which is the floor."""
    rng, false = np.random.default_rng(3), 0
    for _ in range(60):
        records, is_short = sessions_of_two_lengths(rng)
        rate_of = {key: rng.binomial(30, 0.6 if short else 0.2) / 30.0 for key, short in is_short.items()}
        has_rejected, table, progress, entered = False, MemoryKeys(), module.ClusterProgress(), []
        for minute in range(20, 400, 20):
            now = START + timedelta(minutes=minute)
            before = now - timedelta(minutes=20) if minute > 20 else START - timedelta(minutes=1)
            new = [record for record in records if record.event_time and before < record.event_time <= now]
            found = module.step(table, progress, new, POLICY, now, lambda *_: {})
            progress, entered = found.progress, [*entered, *found.entered]
            values = np.array([rate_of[cluster.key] for cluster in entered]) * 30 / 64
            weights = np.full(len(entered), 30 / 64)
            has_rejected |= len(entered) > 0 and ever_rejects(values, weights, 0.0, 1.0, POLICY.floor)
        false += has_rejected
    return false / 60


def test_clusters_enter_in_the_order_of_their_first_event() -> None:
    assert false_rate_of_entries(open_clusters) <= LEVEL


@pytest.mark.all
def test_clusters_that_enter_as_they_close_break_the_level() -> None:
    as_they_close = sabotaged(
        "shadowspec.gate.evidence.clusters",
        (
            "(open_key.first_event, open_key.key, open_key.slice_key)",
            "(open_key.closes_at, open_key.key, open_key.slice_key)",
        ),
        ("place = (rest.first_event, rest.key,", "place = (rest.closes_at, rest.key,"),
        ("table.take_waiting(_first_unclosed(table, opened, closed_by))", "table.take_waiting(None)"),
    )
    assert false_rate_of_entries(as_they_close) > 0.5


# Short blocks are not dissolved: dissolving made 8 to 100% false at low traffic.


def false_rate_of_hours(module: ModuleType) -> float:
    """Quiet hours with a request every 5 minutes, which lose; busy minutes with as many requests, which gain."""
    rule = endpoint_rule(name="one", served_models=("m",), slice_by=("prompt_class",))
    former, formed, now = module.BlockFormer([rule]), [], datetime(2026, 1, 1, tzinfo=UTC)
    for line in range(600):
        is_busy = line // 20 % 2 == 1
        now += timedelta(seconds=10) if is_busy else timedelta(minutes=5)
        key = RecordKey("f" * 64, 0, line)
        labels = {"prompt_class": "code", "gain": "0.1" if is_busy else "-0.1"}
        formed += former.add(ShadowPrompt(key, "one", now, labels, (1,), SamplingParameters()), 4)
    formed += former.drain()
    gains = [[float(prompt.labels["gain"]) for prompt in block.requests] for block in formed]
    rng, false = np.random.default_rng(5), 0
    weights = np.array([len(gain) / 4.0 for gain in gains])
    sums = np.array([sum(gain) / 4.0 for gain in gains])
    for _ in range(200):
        values = sums + weights * MARGIN + rng.normal(0.0, 0.1, len(gains)) * weights
        false += ever_rejects(values, weights, -CLIP, CLIP, MARGIN)
    return false / 200


def test_short_blocks_are_not_dissolved() -> None:
    assert false_rate_of_hours(blocks) <= LEVEL
    dissolving = ("return started + [_start(blocks, blocks.open.pop(place)) for place in overdue]",
                  "return [blocks.open.pop(place) for place in overdue][:0]")  # fmt: skip
    assert false_rate_of_hours(sabotaged("shadowspec.tap.blocks", dissolving)) > 0.5


# A slice's rate is fixed while anything that it feeds is undecided: steering made 93% false.


def false_rate_of_steering(module: ModuleType) -> float:
    """Four slices gain a little, a fifth loses four times as much: the endpoint as a whole is at its margin."""
    gains, rng, false = np.array([0.05] * 4 + [-0.2]), np.random.default_rng(6), 0
    rule = endpoint_rule(name="chat", served_models=("m",))
    for _ in range(60):
        rates = module.SliceRates({"chat": (4,)})
        rates.measure_with({"chat": ("f",)})
        verdicts: dict[tuple[str, int, str], tuple[Verdict, str]] = {}
        values: list[list[float]] = [[] for _ in range(6)]  # of each slice, then of the endpoint
        for step in range(150):
            for place, gain in enumerate(gains):
                if rng.random() < rates(rule, f"class={place}"):
                    value = float(np.clip(MARGIN + gain + rng.normal(0.0, 0.15), -CLIP, CLIP))
                    values[place].append(value)
                    values[5].append(value)
            if step % 5 == 4:
                for place, name in enumerate(("class=0", "class=1", "class=2", "class=3", "class=4", "")):
                    for verdict in _verdict(values[place]):
                        verdicts[name, 4, "f"] = verdict, ""
                rates.refresh({"chat": verdicts})
        false += verdicts.get(("", 4, "f")) == (Verdict.ENABLE, "")
    return false / 60


def _verdict(values: list[float]) -> list[Verdict]:
    sums = betting.Sums(np.array(values), np.ones(len(values)))
    series = betting.UnitSeries(sums, sums, sums, -CLIP, CLIP)
    sides = (("lower", Verdict.ENABLE), ("upper", Verdict.DISABLE))
    return [v for side, v in sides if betting.log_capital_path(series.ratios(side, MARGIN))[-1] >= -math.log(LEVEL)]


def test_a_slice_that_feeds_an_undecided_endpoint_keeps_its_rate() -> None:
    assert false_rate_of_steering(service) <= MOST


@pytest.mark.all
def test_a_rate_that_follows_its_slice_alone_breaks_the_level() -> None:
    steered = sabotaged("shadowspec.worker.service")
    edit = ('if not wanted or not wanted <= decided[""]:', "if not wanted:")
    steered.decided_slices = sabotaged("shadowspec.gate.verdict.lifecycle", edit).decided_slices
    assert false_rate_of_steering(steered) > 0.5


# The cluster is the unit, never the token: independent tokens made 68% false.


def false_rate_of_acceptance(acceptance_test: Callable[..., BettingTest]) -> float:
    """40 sessions of 30 steps, acceptance correlated within a session by .3, at the floor on average."""
    rng, false = np.random.default_rng(7), 0
    spread = 1.0 / 0.3 - 1.0
    for _ in range(60):
        accepted = rng.binomial(30, rng.beta(0.4 * spread, 0.6 * spread, 40))
        made = [cluster_unit(i, [run_of(i, "b", num_first_accepted=int(n))]) for i, n in enumerate(accepted)]
        path = betting.log_capital_path(acceptance_test(made, POLICY).series.ratios("lower", POLICY.floor))
        false += bool(path.max() >= -math.log(LEVEL))
    return false / 60


def test_the_cluster_is_the_unit_and_not_the_token() -> None:
    assert false_rate_of_acceptance(agreement.acceptance_test) <= LEVEL
    each_token = "Sums(np.repeat(weights * rates, scored.astype(int)), np.repeat(weights, scored.astype(int)))"
    by_token = sabotaged("shadowspec.gate.evidence.agreement", ("Sums(weights * rates, weights)", each_token))
    assert false_rate_of_acceptance(by_token.acceptance_test) > 0.3


# Levels: alpha / S with a growing S spends 3.6 alpha at 20 slices, alpha per slice 39% over ten of them.


def family_wise(module: ModuleType, num_slices: int) -> tuple[float, float]:
    """Sum of the parts of slices that enter one by one, and the chance that any exact test rejects falsely."""
    rows: list[Decision] = []
    for number in range(num_slices):
        entered = [(f"s{each:02d}", 4, "one") for each in range(number + 1)]
        trials = module.assign_trials(entered, configs("one"), rows, GatePolicy(window_s=0.0), num_slices)
        rows = [decision("one", trial, slice_key=slice_key) for (slice_key, *_), trial in trials.items()]
    shares = [row.run.share for row in rows if row.run is not None]
    return sum(shares), 1.0 - math.prod(1.0 - share for share in shares)


def test_the_slots_of_the_graph_are_no_more_than_were_declared() -> None:
    assert family_wise(trial_levels, 20)[0] == pytest.approx(0.025), "the endpoint has the other half"
    unguarded = sabotaged(LEVELS, ("elif num_slots < graph.num_slots:", "elif True:"))
    assert family_wise(unguarded, 20)[0] == pytest.approx(20 / 7 * 0.025)


# Dependent units wait or are merged: AR(1) .9 crosses in 45 to 59% of runs without the rule, 0 to 2% with it.


def false_rate_of_dependent_blocks(module: ModuleType, num_runs: int = 40) -> float:
    """Blocks that share an AR(1) shock of correlation .9 about the margin; looks every 20 blocks."""
    rng, false, definition = np.random.default_rng(8), 0, latency.speedup_test((), POLICY)
    for _ in range(num_runs):
        shocks = np.empty(400)
        shock = float(rng.standard_normal())
        for place in range(400):
            shock = 0.9 * shock + math.sqrt(1.0 - 0.81) * float(rng.standard_normal())
            shocks[place] = shock
        values = MARGIN + np.clip(0.2 * shocks, -0.6, 0.6)
        evidence = TestEvidence.empty(definition)
        for start in range(0, 400, 20):
            own = [
                UnitValues((value, 1.0), (value, 1.0), (value, 1.0)) for value in values[start : start + 20].tolist()
            ]
            evidence = evidence.fold(replace(definition, series=unit_series(own, -CLIP, CLIP)))
            found = results.betting_result(definition, evidence, POLICY, LEVEL)
            if found.outcome == "pass":
                action, state = module.after_dependence(found)
                if action == "count":
                    false += 1
                    break
                if action == "restart":
                    evidence = evidence.restart(state)
    return false / num_runs


def test_dependent_units_wait_or_are_merged() -> None:
    assert false_rate_of_dependent_blocks(results) <= LEVEL


@pytest.mark.all
def test_dependent_units_that_count_at_once_break_the_level() -> None:
    blind = sabotaged(
        "shadowspec.gate.verdict.required_tests",
        ("RESTART_AUTOCORRELATION = 0.2", "RESTART_AUTOCORRELATION = 9.2"),
        ("WAIT_AUTOCORRELATION + slack", "9.35 + slack"),
        ("agreement < 1.0", "agreement < -math.inf"),
    )
    assert false_rate_of_dependent_blocks(blind) > 0.3
