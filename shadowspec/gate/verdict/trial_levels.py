"""Runs of a hypothesis and their levels: which fingerprint it is about, when its tests restart, and at what level.

A hypothesis is endpoint x slice x load x the operator's name for a speculation config.  The config of the name
may change: other weights, another chat template, tokenizer, sampling or engine version make another fingerprint, and
figures of the old one do not apply to the new.  A new fingerprint, or an alarm of a drift detector, ends the run: the
next one starts with no evidence.

Levels go by a sequentially rejective graph (Bretz, Maurer, Brannath and Posch 2009, with tests that hold at any time):
the whole endpoint has one half of alpha, the slices have the other in `num_slots` equal parts, whether they have
entered or not.  A hypothesis's first run uses FIRST_RUN of its part, its k-th restart 6 / (pi k)**2 of the rest, its
reserve: a year of releases and every later one has a level.  ENABLE in a first run passes that run's level on: to the
slices that are left, in equal parts.  A slice that makes up its whole endpoint is the same hypothesis, at the same
level.

A slice that finds all slots taken may take the place of one that left the traffic, with none for `mix_window_s`.  The
slot's own hypothesis keeps its part, for it may return.  The k-th slice that does so, in the order of entry, gets
6 / (pi k)**2 of REUSED of the slices' half; so slices may follow each other without end.

Invariant: the chance that any ENABLE of a first run is false is at most FIRST_RUN * alpha.  Until the first false one,
only true ones have passed levels on.  With T of alpha for slices by then and m of them true nulls, the level of each
true null is at most FIRST_RUN * T / m, a number that does not depend on the data.  The sum over all true nulls is at
most FIRST_RUN * alpha, and each test falls at its level with at most that chance, at any look (Ville).  Restarts
use the rest, fixed for each hypothesis at its entry: the k-th level depends on k only, and the sum of 1 / k**2 over all
k >= 1 is pi**2 / 6, so that all of them together use no more than the reserve.

Slots use 1 - FIRST_RUN - REUSED of their parts for restarts.  Slices in the places of others have the difference, half
of alpha * REUSED, and neither get levels from others nor pass any on.  Which slice is the k-th depends on keys and
event times only, as entry and traffic do, and so does its part: it does not depend on outcomes.  Their parts sum to no
more than what they share, by the sum over k.  So all levels ever given to true nulls sum to no more than alpha.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict import reasons
from shadowspec.types import Decision, FingerprintedConfig, LevelGraph, ReasonCode, Supersession, Trial, Verdict

# A fingerprint that was replaced is current again only when its replacement has not been measured for so long:
# while workers are being restarted one by one, both are measured, and must not end each other's runs.
RETURN_AFTER = timedelta(hours=1)

FIRST_RUN = 0.9  # of a hypothesis's part of alpha
REUSED = 0.05  # of the slices' half of alpha, for slices that take the places of others

HypothesisId = tuple[str, int, str]  # slice key, concurrency, fingerprint
HypothesisName = tuple[str, int, str]  # slice key, concurrency, the config's name


@dataclass(frozen=True, slots=True)
class Seen:
    """When a fingerprint was first and last measured, and the event time up to which."""

    first: datetime
    last: datetime
    last_event: datetime | None = None  # None: `last` is an event time

    def join(self, other: Seen) -> Seen:
        """Both measured times."""
        events = [event for event in (self.last_event, other.last_event) if event is not None]
        return Seen(min(self.first, other.first), max(self.last, other.last), max(events, default=None))

    def is_long_after(self, other: Seen) -> bool:
        """Whether it was measured for RETURN_AFTER after the other was: by the workers' clocks and by event time.

        One worker's clock may be ahead of another's, and one partition's traffic behind another's; neither is a return.
        """
        later = self.last - other.last, (self.last_event or self.last) - (other.last_event or other.last)
        return min(later) > RETURN_AFTER


def hypothesis_id(decision: Decision) -> HypothesisId:
    """The identity of a decision's hypothesis within its endpoint."""
    return decision.slice_key, decision.concurrency, decision.fingerprint


def frozen_policy(policy: GatePolicy, previous: Decision | None) -> GatePolicy:
    """The policy with a hypothesis's parameters as they were fixed when it entered."""
    fixed = previous.frozen_parameters if previous else None
    return policy if fixed is None else policy.with_frozen_parameters(fixed)


def name_of(decision: Decision) -> HypothesisName:
    """The hypothesis that a decision is about, for any fingerprint."""
    return decision.slice_key, decision.concurrency, decision.config.name


def latest_by_name(decisions: Iterable[Decision]) -> dict[HypothesisName, Decision]:
    """Of each hypothesis the decision of its latest run that had a level: the most restarted one."""
    latest: dict[HypothesisName, tuple[int, Decision]] = {}
    for decision in decisions:
        run = decision.run
        if run is not None and run.num_restarts >= latest.get(name_of(decision), (0, decision))[0]:
            latest[name_of(decision)] = run.num_restarts, decision
    return {name: decision for name, (_, decision) in latest.items()}


def current_fingerprint(seen: Mapping[str, Seen]) -> str | None:
    """The current fingerprint of a config's name: the one that appeared last.

    An older one is current again when the newer has not been measured for RETURN_AFTER (`Seen.is_long_after`).  The
    result depends on the times of measurements, not on earlier results, so every gate gives the same; of several that
    appeared at the same time it is the last of `seen`.  None if `seen` is empty.
    """
    if not seen:
        return None
    place = {fingerprint: at for at, fingerprint in enumerate(seen)}
    newest = max(seen, key=lambda fingerprint: (seen[fingerprint].first, place[fingerprint]))
    returned = [fingerprint for fingerprint, times in seen.items() if times.is_long_after(seen[newest])]
    return max(returned, key=lambda fingerprint: (seen[fingerprint].last, place[fingerprint]), default=newest)


def current_configs(
    configs: Mapping[str, FingerprintedConfig], seen: Mapping[str, Seen]
) -> dict[str, FingerprintedConfig]:
    """The current config of each name, by fingerprint; where none of a name's was measured, all of them."""
    by_name: dict[str, dict[str, FingerprintedConfig]] = {}
    for fingerprint, config in sorted(configs.items()):
        by_name.setdefault(config.config.name, {})[fingerprint] = config
    current: dict[str, FingerprintedConfig] = {}
    for fingerprints in by_name.values():
        chosen = current_fingerprint({name: seen[name] for name in fingerprints if name in seen})
        current |= fingerprints if chosen is None else {chosen: fingerprints[chosen]}
    return current


def entered_in_order(
    positions: Mapping[HypothesisId, int | None],
    configs: Mapping[str, FingerprintedConfig],
    latest_rows: Iterable[Decision],
) -> list[HypothesisId]:
    """The hypotheses that have entered, in the order of entry, of the positions of their slices' entries (None: none).

    A hypothesis with a level has entered permanently: with any fingerprint, and also where the clusters that let it in
    are open again (an ended input that continues, and everything folded again).  Otherwise another would get its level.
    """
    held = latest_by_name(latest_rows)
    entered = {
        key: -1 if position is None else position
        for key, position in positions.items()
        if position is not None or (key[0], key[1], configs[key[2]].config.name) in held
    }
    return sorted(entered, key=lambda key: (entered[key], key))


def assign_trials(
    entered: Sequence[HypothesisId],
    configs: Mapping[str, FingerprintedConfig],
    latest_rows: Sequence[Decision],
    policy: GatePolicy,
    num_slices: int,
    passed: Collection[HypothesisName] = (),
    in_traffic: Collection[str] = (),
) -> dict[HypothesisId, Trial | None]:
    """The run of each hypothesis of `entered`, in the order of entry; None where no level is left.

    `latest_rows` are the endpoint's latest decisions, `num_slices` the slices that it ever had; `passed` reached ENABLE
    at this look; the slices `in_traffic` have traffic within `mix_window_s`.
    """
    latest, by_id = latest_by_name(latest_rows), {hypothesis_id(row): row for row in latest_rows}
    names: dict[HypothesisId, HypothesisName] = {key: (key[0], key[1], configs[key[2]].config.name) for key in entered}
    in_order = list(dict.fromkeys(names.values()))
    first = _assign_places(in_order, latest, policy, num_slices, in_traffic)
    trials: dict[HypothesisId, Trial | None] = {}
    for key, name in names.items():
        trial, before, same = first[name], latest.get(name), by_id.get(key)
        trials[key] = next_trial(before, same, key[2], trial) if trial else _without_part(before, same, key[2])
    runs = {name: row.run for name, row in latest.items() if row.run is not None}
    runs |= {names[key]: trial for key, trial in trials.items() if trial is not None}
    done = passing_runs(runs, passed)
    return {
        key: with_level(trial, names[key], done, passed) if trial and first[names[key]] else trial
        for key, trial in trials.items()
    }


def _assign_places(
    entered: Sequence[HypothesisName],
    latest: Mapping[HypothesisName, Decision],
    policy: GatePolicy,
    num_slices: int,
    in_traffic: Collection[str],
) -> dict[HypothesisName, Trial | None]:
    """The first run of each hypothesis under the graph, with its part of alpha."""
    held = {name: row.run for name, row in latest.items() if row.run is not None}
    graph = next((run.graph for run in held.values()), None) or _new_graph(entered, policy)
    num_endpoints = sum(not name[0] and not run.in_slot for name, run in held.items())
    num_slots = sum(run.in_slot for run in held.values())
    num_reused = max((run.reuse for run in held.values()), default=0)
    # Places that are taken by what has traffic; a load or candidate in a slot counts as having it.
    num_present = sum(not name[0] or name[0] in in_traffic for name, run in held.items() if run.in_slot or run.reuse)
    trials: dict[HypothesisName, Trial | None] = {}
    for name in entered:
        run, endpoint = held.get(name), trials.get(("", *name[1:]))
        if run is None or (name[0] and not run.in_slot and not run.reuse):
            new = Trial(0.0, None, graph, num_before=0 if run is None else run.num_restarts)
            if not name[0] and num_endpoints < graph.num_endpoints:
                num_endpoints, run = num_endpoints + 1, replace(new, share=graph.endpoint_share)
            elif name[0] and num_slices == 1 and endpoint is not None and not endpoint.in_slot:
                run = replace(new, share=endpoint.share)  # the same hypothesis: its part is counted once
            elif num_slots < graph.num_slots:
                num_slots, num_present = num_slots + 1, num_present + 1
                run = replace(new, share=graph.slot_share, in_slot=True)
            elif graph.reused and name[0] in in_traffic and num_present < graph.num_slots:
                num_reused, num_present = num_reused + 1, num_present + 1
                run = replace(new, share=reused_share(graph, num_reused), reuse=num_reused)
            else:
                run = None
        trials[name] = run
    return trials


def _new_graph(entered: Sequence[HypothesisName], policy: GatePolicy) -> LevelGraph:
    """The graph of an endpoint whose first hypotheses enter."""
    return _graph(policy, min(max(sum(not name[0] for name in entered), 1), policy.max_hypotheses))


def _graph(policy: GatePolicy, num_endpoints: int) -> LevelGraph:
    return LevelGraph(policy.alpha, num_endpoints, policy.max_hypotheses - num_endpoints, REUSED)


def first_level(policy: GatePolicy, num_endpoints: int) -> float:
    """The level of a whole endpoint's first run, where all its `num_endpoints` pairs of load and candidate enter."""
    return FIRST_RUN * _graph(policy, num_endpoints).endpoint_share


def shown_level(level: float | None, policy: GatePolicy) -> float:
    """The level at which tests are shown: that of their run, or of a first run where they have none."""
    if level is not None:
        return level
    graph = LevelGraph(policy.alpha, 1, policy.max_hypotheses - 1)
    return FIRST_RUN * (graph.slot_share if graph.num_slots else graph.endpoint_share)


def next_trial(latest: Decision | None, same: Decision | None, fingerprint: str, first: Trial) -> Trial:
    """The run that a look at `fingerprint` belongs to.

    `latest` is the latest decision on the hypothesis with any fingerprint, `same` the latest one with this
    fingerprint (None without one); `first` is a first run with the hypothesis's part of alpha.
    """
    if latest is None or latest.run is None:
        return first
    trial = replace(
        latest.run,
        share=first.share,
        graph=first.graph,
        num_before=first.num_before,
        in_slot=first.in_slot,
        reuse=first.reuse,
        has_passed=has_passed(latest),
    )
    if latest.fingerprint == fingerprint and not latest.ends_run:
        return trial
    goes_on = latest.fingerprint == fingerprint
    folded = same.run if same is not None else None
    return replace(
        trial,
        level=None,
        num_restarts=trial.num_restarts + 1,
        start_blocks=(folded.start_blocks + same.num_blocks) if folded and same else 0,
        start_clusters=(folded.start_clusters + passed_clusters(same)) if folded and same else 0,
        start_lost=trial.start_lost + latest.evidence.counts.num_lost,
        supersedes=None if goes_on else latest.fingerprint,
        reopens=goes_on and latest.reason_code == ReasonCode.REOPENED,
    )


def _without_part(latest: Decision | None, same: Decision | None, fingerprint: str) -> Trial | None:
    """The run of a hypothesis that has no part of alpha, in `next_trial`'s arguments; None where it never had one.

    A verdict in force stays.  No other hypothesis has a level; used levels stay used.
    """
    if latest is None or latest.run is None:
        return None
    trial = next_trial(latest, same, fingerprint, latest.run)
    goes_on = trial.num_restarts == latest.run.num_restarts
    return trial if goes_on and latest.verdict is not Verdict.HOLD else replace(trial, level=None)


def has_passed(decision: Decision) -> bool:
    """Whether the first run of its hypothesis under the graph reached ENABLE, at this look or before."""
    run = decision.run
    if run is None:
        return False
    is_enabled = decision.verdict is Verdict.ENABLE or (decision.watch is not None and bool(decision.watch.proven))
    return run.has_passed or (run.num_restarts == run.num_before and is_enabled)


def passing_runs(
    runs: Mapping[HypothesisName, Trial], passed: Collection[HypothesisName] = ()
) -> dict[HypothesisName, Trial]:
    """Those of the runs that pass their levels on: they reached ENABLE, earlier or (`passed`) at this look."""
    return {
        name: run for name, run in runs.items() if (run.in_slot or not name[0]) and (run.has_passed or name in passed)
    }


def with_level(
    trial: Trial,
    name: HypothesisName,
    done: Mapping[HypothesisName, Trial],
    passed: Collection[HypothesisName] = (),
) -> Trial:
    """The run with its level; `done` are those of the endpoint that pass their levels on."""
    num_restarts = trial.num_restarts - trial.num_before
    if num_restarts:
        reserve = 1.0 - FIRST_RUN - (trial.graph.reused if trial.in_slot else 0.0)
        return replace(trial, level=restart_level(trial.share, num_restarts, reserve))
    if trial.has_passed and trial.level is not None:
        return trial
    given = 0.0
    if trial.in_slot:
        others = [run for other, run in done.items() if other != name]
        given = sum(run.share for run in others) / (trial.graph.num_slots - sum(run.in_slot for run in others))
    return replace(trial, level=FIRST_RUN * (trial.share + given), has_passed=trial.has_passed or name in passed)


def restart_level(share: float, num_restarts: int, reserve: float = 1.0 - FIRST_RUN) -> float:
    """The level of restart `num_restarts` >= 1 of a hypothesis with this part of alpha, `reserve` of it for them."""
    return reserve * share * spent_part(num_restarts)


def reused_share(graph: LevelGraph, index: int) -> float:
    """The part of alpha of slice number `index` >= 1 that takes the place of another."""
    return 0.5 * graph.alpha * graph.reused * spent_part(index)


def spent_part(index: int) -> float:
    """The part of a reserve that its use number `index` >= 1 takes; over all uses, without end, they sum to 1."""
    return 6.0 / (math.pi * index) ** 2


def passed_clusters(decision: Decision) -> int:
    """Clusters of its run that came by, in evidence or beyond `max_clusters`: the next run begins after them."""
    return decision.num_clusters + decision.evidence.num_capped_clusters


def supersede(decision: Decision, by: str, now: datetime) -> Decision:
    """The row that takes an old fingerprint's verdict out of force: HOLD, its figures as they were."""
    return replace(
        decision,
        verdict=Verdict.HOLD,
        reason_code=ReasonCode.CHANGED_FINGERPRINT,
        reason=reasons.superseded(decision.verdict, decision.config.name, by, decision.num_clusters),
        clusters_needed=None,
        decided_at=now,
        ends_run=True,
        supersession=Supersession(by, decision.verdict),
        verdict_since=now,
    )


def is_superseded(decision: Decision) -> bool:
    """Whether the decision's fingerprint has been replaced."""
    return decision.supersession is not None


def superseded_rows(
    trials: Mapping[HypothesisId, Trial | None],
    previous: Mapping[HypothesisId, Decision],
    now: datetime,
) -> list[Decision]:
    """The rows that take the verdicts of replaced fingerprints out of force; each is written once."""
    replaced = []
    for (slice_key, concurrency, fingerprint), trial in trials.items():
        old = previous.get((slice_key, concurrency, trial.supersedes)) if trial and trial.supersedes else None
        if old is not None and not is_superseded(old):
            replaced.append(supersede(old, fingerprint, now))
    return replaced
