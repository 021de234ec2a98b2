"""Every sentence that says why a hypothesis has its verdict, and what to do about it: read them here in one sitting.

In: figures that the gate has found, and reason codes.
Out: texts for people.

A reason says what was seen, what is needed, and what to do, in sentences of at most 25 words.  It names no code; a
setting is named only as part of the remedy, in quotes.  `REASONS` has the same by code, without figures: the
documentation's page on HOLD and the next steps are made of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from shadowspec.gate.policy import UnprovableLimit
from shadowspec.gate.verdict.figure_texts import figures_text, limit_text, shown_as, subject_of, threshold_text
from shadowspec.text import figure, moment, percent, plural, span_text, times
from shadowspec.types import CachedPrompts, Override, ProvenBounds, ReasonCode, TestResult, Verdict

GATE_AGAIN: Final = "then run `shadowspec gate` again"
SEND_TRAFFIC: Final = f"send traffic, {GATE_AGAIN}"
CHECK_ENGINE: Final = "keep speculation off, and report the difference as an error of the engine or the server"
OTHER_DRAFT: Final = "keep speculation off; to try now, configure another draft or fewer speculative tokens"
_UNIT: Final[Mapping[str, str]] = {"cluster": "session"}  # as people call it


@dataclass(frozen=True, slots=True)
class ReasonText:
    """What a code means; for an operator the next `step` as an order, and a `note` on it."""

    meaning: str
    step: str
    note: str = ""


# 1. By code, without figures.

REASONS: Final[Mapping[ReasonCode, ReasonText]] = {
    ReasonCode.ALL_TESTS_PASS: ReasonText(
        "Every required test passes at this look.",
        "roll out by the policy's stages",
        "`shadowspec export` writes the configuration of the serving engine.",
    ),
    ReasonCode.SLOWDOWN: ReasonText(
        "The upper bound of the speedup is below its limit.",
        OTHER_DRAFT,
        "The limit is 1 + `margin`. New evidence may reopen it.",
    ),
    ReasonCode.TAIL_SLOWED: ReasonText(
        "More requests than the policy allows became much slower, beyond the noise of pairs.",
        OTHER_DRAFT,
        "The limits are `tail_share` and `tail_margin`. Or give the slow requests a slice.",
    ),
    ReasonCode.PARITY_FAULT: ReasonText(
        "A greedy output differs from the target's, and rounding does not explain it.",
        CHECK_ENGINE,
        "Its acceptance counts are not valid either.",
    ),
    ReasonCode.STREAM_FAULT: ReasonText(
        "A chat's stream with speculation is broken, or makes another message of the baseline's tokens.",
        "keep speculation off, and report it as an error of the server's template, parser or stream",
        "`shadowspec report` counts the kinds of faults.",
    ),
    ReasonCode.PARITY_BIASED: ReasonText(
        "Sampled outputs do not follow the target's distribution.",
        CHECK_ENGINE,
        "Compare `baseline_z` to see whether both arms have it.",
    ),
    ReasonCode.MEMORY_OVER_BUDGET: ReasonText(
        "A block took more memory than the policy's budget.",
        "keep speculation off; use a smaller draft or none, or review the memory budget in the policy",
        "The budgets are `memory_budget_share` and `memory_budget_tokens`.",
    ),
    ReasonCode.DRIFT: ReasonText(
        "A detector fired after ENABLE: speedup, acceptance or parity no longer keeps its promise.",
        "keep speculation off, and look for the cause under Changes in the dashboard; the next run decides again",
        "Causes: mix of slices, a new model, a new load.",
    ),
    ReasonCode.REOPENED: ReasonText(
        "A detector fired after DISABLE: new evidence refutes it. It stays in force until the next run decides.",
        f"keep speculation off and send traffic, {GATE_AGAIN}",
        "Changes in the dashboard shows the events since then.",
    ),
    ReasonCode.OVERRIDE: ReasonText(
        "An operator's override, an engine audit or the live guard keeps speculation off.",
        "see reason and author in `shadowspec override list`",
        "`shadowspec override clear ID` ends it.",
    ),
    ReasonCode.TOO_FEW_CLUSTERS: ReasonText(
        "Too few sessions have closed, so that no test is read yet.",
        SEND_TRAFFIC,
        "Testing starts at `entry_clusters`. A session closes when it is full, idle for `cluster_idle_s`, or at the "
        "end of a file.",
    ),
    ReasonCode.SMALL_SLICE: ReasonText(
        "The slice has a small share of its endpoint's requests of the last week, so that it takes no level.",
        "nothing needs to be done: the endpoint's verdict covers the slice",
        "Lower `entry_share` if such a slice must have a separate verdict.",
    ),
    ReasonCode.TOO_FEW_UNITS: ReasonText(
        "No test failed, and at least one is not decided yet, or its units are too few to judge their independence.",
        SEND_TRAFFIC,
        "`shadowspec plan` estimates sessions and time.",
    ),
    ReasonCode.MIN_SPAN: ReasonText(
        "Every required test passes, but the traffic covers less time or fewer days than the policy requires.",
        f"measure traffic over the missing time, {GATE_AGAIN}",
        "The limit is `min_span_s`. For a verdict on a recording only, use `shadowspec try`.",
    ),
    ReasonCode.CHANGED_FINGERPRINT: ReasonText(
        "The model, template, sampling defaults or engine changed, and the new fingerprint has too little evidence.",
        f"send traffic, or undo the change of model or engine, {GATE_AGAIN}",
        "The evidence of the old fingerprint does not count for the new one.",
    ),
    ReasonCode.POLICY_CHANGED: ReasonText(
        "The policy now asks for more than the bounds of this ENABLE prove.",
        f"send traffic, or restore the limit in the policy, {GATE_AGAIN}",
        "The bounds hold for all limits at once: ENABLE returns, at no cost, once they meet the policy.",
    ),
    ReasonCode.LOW_ACCEPTANCE: ReasonText(
        "The upper bound of the acceptance is below its limit, and no slowdown is proven.",
        "try another draft or fewer speculative tokens",
        "Distill a draft, or lower `floor` if only the speedup matters to you.",
    ),
    ReasonCode.COSTLIER: ReasonText(
        "Requests became faster on average, but the total time of all requests grew.",
        "try another draft or fewer speculative tokens",
        "Or give the long requests a slice, so that the short ones can be enabled.",
    ),
    ReasonCode.NEAR_TIES: ReasonText(
        "Greedy outputs differ by rounding in more requests than the policy allows.",
        "use the same dtype and kernels in both arms, or review `parity_margin` in the policy",
        "Such differences may be harmless.",
    ),
    ReasonCode.GUARDRAIL: ReasonText(
        "A guardrail of the policy failed.",
        "fix the figure that the reason names, or review its limit in the policy",
        "Guardrails are such as `ttft_margin` or `score_margin`.",
    ),
    ReasonCode.MIX_BOUND: ReasonText(
        "The policy requires bounds by slice, and these do not prove the speedup under the current mix.",
        f"send traffic of the slices with wide bounds, {GATE_AGAIN}",
        "The setting is `require_mix_bound`. Or decide by slice.",
    ),
    ReasonCode.CARRY_OVER: ReasonText(
        "Every test passes, but the order of the arms adds too much to the speedup.",
        "set `pause_s` under `[engine]`, or give the arms separate devices; rename the candidate, then send traffic",
        "The limit is `max_carry_over`. The baseline is slower right after speculation: heat, clocks or evicted "
        "caches.",
    ),
    ReasonCode.DEPENDENT: ReasonText(
        "A test crossed its bound, but units that follow each other resemble each other.",
        SEND_TRAFFIC,
        "The test waits, or merges units and starts again. Check that `session_id` is set.",
    ),
    ReasonCode.UNDECIDABLE: ReasonText(
        "The interval lies too near its limit, or as many sessions as the policy allows did not decide.",
        "try another candidate, or change the limit in the policy: the effect is too close to it",
        "More traffic does not help. The settings are `indifference` and `max_clusters`.",
    ),
    ReasonCode.FUTILE: ReasonText(
        "It is 95% sure, however often one looks, that a test will not reach its limit.",
        "try another candidate: the worker measures this one at `min_rate`",
        "Of those that would reach it, at most 5% end so.",
    ),
    ReasonCode.OTHER_ENGINE: ReasonText(
        "Latency was measured on another engine than the one that serves.",
        "measure through two servers of the serving engine (docs/servers.md)",
        "`serving_engine` names it. Acceptance may carry over; latency does not.",
    ),
    ReasonCode.NO_LEVEL_LEFT: ReasonText(
        "As many combinations of slice, load and candidate are judged as the policy allows.",
        "raise `max_hypotheses` in the policy, or configure fewer candidates, loads or labels",
        "With more hypotheses every test needs more evidence.",
    ),
    ReasonCode.UNPROVABLE: ReasonText(
        "A limit of today cannot be proven with a definition that was fixed when the hypothesis entered.",
        "change the limit in the policy: no evidence can prove it",
        "Or rename the candidate to begin a new hypothesis.",
    ),
    ReasonCode.MAY_REPLACE: ReasonText(
        "A second deployment, or a schedule at 0 tokens, passes every required test. It enables no speculation.",
        "change over to it (docs/ci.md); a schedule that is confirmed leaves the shadow",
    ),
    ReasonCode.MUST_NOT_REPLACE: ReasonText(
        "A second deployment is slower, accepts less, changes outputs or takes too much memory.",
        "keep the first deployment, and look at the figure that the reason names",
    ),
    ReasonCode.MISSING_DATA: ReasonText(
        "More requests than the policy allows failed or were shed.",
        f"see the failures in `shadowspec report`, fix their cause and measure again, {GATE_AGAIN}",
        "The limit is `max_missing`. Causes: time-outs, memory, an engine that is behind.",
    ),
    ReasonCode.LATE_DATA: ReasonText(
        "Too many requests came out of order, after their sessions or windows had entered the evidence.",
        f"keep each session in one partition of the mirror and in order, {GATE_AGAIN}",
        "The limit is `max_missing`. Check the mirror's clocks.",
    ),
    ReasonCode.PROMPT_MISMATCH: ReasonText(
        "Production's server counts other prompts than are rendered here.",
        "set `serving_engine` and give the chat template that serves, or log the prompts' token ids, "
        f"then measure again, {GATE_AGAIN}",
        "The limit is `max_prompt_mismatch`. Rename the candidate to begin evidence without those prompts.",
    ),
    ReasonCode.CACHE_MISMATCH: ReasonText(
        "Production finds more or less of its prompts in prefix caches than the baseline.",
        'set `prefix_cache = "as_served"`, raise `sample_rate` where the servers find less, or choose `"evicted"` '
        f"where they find more, then measure again, {GATE_AGAIN}",
        "The limit is `max_cache_gap`. Rename the candidate to begin evidence without cold caches.",
    ),
    ReasonCode.CHANGED_RATE: ReasonText(
        "The sampling rate changed within the evidence of a trial, so that its blocks do not have the traffic's mix.",
        f"rename the candidate, measure at one `sample_rate`, {GATE_AGAIN}",
        "Production verdicts weigh each request by its rate.",
    ),
    ReasonCode.UNTIMED: ReasonText(
        "Too many requests come later in their session than any request that is timed.",
        "raise `timed_positions` to the length of the long sessions and restart the worker, "
        f"then measure newer traffic, {GATE_AGAIN}",
        "The limit is `max_untimed_share`. A slowdown still ends in DISABLE.",
    ),
    ReasonCode.STALE_DATA: ReasonText(
        "The newest evidence is older than the policy allows.",
        f"measure newer traffic, {GATE_AGAIN}",
        "The limit is `max_evidence_age_s`. Check that the worker runs and the mirror has records.",
    ),
    ReasonCode.UNKNOWN_PARITY: ReasonText(
        "Parity was not measured for too many requests.",
        f"let the baseline's server return log probabilities (`score_logprobs`), {GATE_AGAIN}",
        "The limit is `max_missing`.",
    ),
    ReasonCode.UNKNOWN_MEMORY: ReasonText(
        "The policy has a memory budget, and no block reports memory.",
        "remove the memory budget from the policy, or measure on an engine that reports memory",
        'Both budgets off: "none".',
    ),
}


# 2. ENABLE and DISABLE, with figures.


def every_test_passes(speedup: TestResult) -> str:
    """The reason of an ENABLE."""
    return f"Every required test passes: the speedup is {figures_text(speedup)}, {limit_text(speedup)}."


def harmful(failed: TestResult, acceptance: TestResult | None) -> str:
    """A test whose bound proves harm; `acceptance` where it is below its limit too."""
    also = "" if acceptance is None else f" {_must_be(acceptance)}"
    return f"{_must_be(failed)}{also}"


def greedy_faults(number: int) -> str:
    """Outputs that rounding does not explain."""
    outputs = "1 greedy output differs" if number == 1 else f"{number:,} greedy outputs differ"
    return f"{outputs} from the target's by more than rounding, and none may."


def broken_streams(number: int) -> str:
    """Chats whose stream speculation breaks."""
    return f"{plural(number, 'chat')} streamed another message than its tokens make, and none may."


def over_budget(memory: TestResult) -> str:
    """Memory of speculation beyond the policy's budgets."""
    budgets = (
        ("extra_peak_share", "budget_share", "Speculation takes {} more memory, and the budget is {}."),
        (
            "displaced_kv_tokens",
            "budget_tokens",
            "Speculation displaces {} tokens of the KV cache, and the budget is {}.",
        ),
    )
    parts = []
    for measured_name, budget_name, text in budgets:
        measured, budget = memory.figures.get(measured_name), memory.figures.get(budget_name)
        if isinstance(measured, int | float) and isinstance(budget, int | float) and measured > budget:
            written = percent if budget_name == "budget_share" else figure
            parts.append(text.format(written(measured), written(budget)))
    return " ".join(parts)


_OFF: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.SLOWDOWN: "Keep speculation off, or try another draft or fewer speculative tokens.",
    ReasonCode.TAIL_SLOWED: "Keep speculation off, or try another draft or fewer speculative tokens.",
    ReasonCode.PARITY_FAULT: "Keep speculation off, and report the difference as an error of the engine.",
    ReasonCode.STREAM_FAULT: "Keep speculation off, and report it as an error of the server.",
    ReasonCode.PARITY_BIASED: "Keep speculation off, and report the difference as an error of the engine.",
    ReasonCode.MEMORY_OVER_BUDGET: "Keep speculation off, use a smaller draft, or raise the budget in the policy.",
}


def with_remedy(seen: str, code: str) -> str:
    """The reason of a DISABLE with what to do; of another verdict as it is."""
    return f"{seen} {_OFF[ReasonCode(code)]}" if code in _OFF else seen


def of_upgrade(*, is_passed: bool) -> str:
    """What to do after a verdict on a second deployment."""
    return "Change over to the second deployment." if is_passed else "Keep the first deployment, and find the cause."


def of_no_drafts(*, is_passed: bool) -> str:
    """What follows where the server's schedule drafts nothing."""
    if is_passed:
        return "The schedule drafts nothing at this load, which is confirmed to cost little. Keep the schedule."
    return "The schedule drafts nothing at this load, and still costs time. Send such loads to a plain server."


def revoked(reason: str) -> str:
    """A reason that ends an ENABLE at once."""
    return f"ENABLE is revoked. {reason}"


def covered_traffic(first: datetime, last: datetime) -> str:
    """Which traffic a verdict rests on."""
    return f"It rests on traffic of {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC."


def assumed_beyond(window_s: float) -> str:
    """What an ENABLE of windows assumes beyond them."""
    return f"It assumes that incidents of over {span_text(window_s)} are as frequent as in this traffic."


def only_this_recording(too_short: str | None) -> str:
    """The scope of a trial policy's verdict."""
    return (
        f"This trial speaks of its recording only{'' if too_short is None else f', with {too_short} for production'}."
    )


def measured_as(mode: str) -> str:
    """The mode of measuring, where it is not the usual one."""
    return f"It was {mode}."


_SCOPE: Final = ("It rests on ", "It assumes ", "This trial speaks ")
_SEND: Final = "Send "


def without_scope(reason: str) -> str:
    """A reason without the sentences on its traffic and scope, for a screen."""
    return _without(reason, *_SCOPE)


def without_sending(reason: str) -> str:
    """A reason without the order to send traffic: a recording has no more of it."""
    return _without(reason, _SEND)


def _without(reason: str, *beginnings: str) -> str:
    sentences = re.split(r"(?<=\.) (?=[A-Z0-9`])", reason)
    return " ".join(part for part in sentences if not part.startswith(beginnings))


# 3. HOLD: too little evidence.


def before_testing(num_closed: int, num_needed: int) -> str:
    """Sessions that have closed, of those that start the tests."""
    return (
        f"{num_closed:,} of the {plural(num_needed, 'session')} that start the tests have closed. "
        f"Send {plural(num_needed - num_closed, 'more session')}."
    )


def small_slice(share: float, needed: float) -> str:
    """A slice with too little traffic to be judged by itself."""
    return (
        f"The slice has {percent(share)} of its endpoint's requests of the last week, and needs {percent(needed)}. "
        "The endpoint's verdict covers it; lower `entry_share` in the policy to judge it by itself."
    )


def nothing_counts(test: TestResult) -> str:
    """An open test without units."""
    least = plural(test.min_units, unit_of(test))
    return f"Nothing counts yet for the {subject_of(test)}, and it needs at least {least}. Send traffic."


def no_evaluation(test: TestResult) -> str:
    """A test of task sets that were not evaluated."""
    return f"No task set was evaluated, and the policy limits the {subject_of(test)}. Run `shadowspec evaluate`."


def not_trending(test: TestResult) -> str:
    """An open test that more of the same traffic is not expected to decide."""
    return (
        f"{_must_be(test)} More of this traffic is not expected to prove it. "
        "Try another candidate, or a quiet machine if others share this one."
    )


def not_proven_yet(test: TestResult, more: str) -> str:
    """An open test; `more` is the evidence to send or evaluate, as an order."""
    if test.name == "stream":
        seen, most, limit = (
            percent(max(0.0, -(value or 0.0))) for value in (test.estimate, test.lower, test.threshold)
        )
        return (
            f"Speculation broke {seen} more of the chat streams than break without it. Up to {most} is not excluded "
            f"yet, and the limit is {limit}. {more}."
        )
    return f"The {subject_of(test)} is {figures_text(test)}, not yet proven to be {limit_text(test)}. {more}."


def send_sessions(number: int) -> str:
    """The order to send about so many sessions."""
    return f"Send about {plural(number, 'more session')}"


def send_units(test: TestResult, number: int) -> str:
    """The order to send about so many units of a test."""
    return f"Send about {plural(number, f'more {unit_of(test)}')}"


def evaluate_documents(number: int) -> str:
    """The order to evaluate about so many documents."""
    return f"Evaluate about {plural(number, 'more document')}"


_SPREAD: Final = "Send traffic that is spread over more time."


def independence_unknown(test: TestResult, units: str, more: int | None) -> str:
    """A test that crosses its limit on units that are too few to show that they are independent."""
    return f"{_crosses(test)}, but {units} are too few to judge whether they are independent. {_more(test, more)}"


def drifting_together(test: TestResult, units: str, agreement: float, more: int | None) -> str:
    """A test that crosses its limit by fewer standard errors of batches than a common drift of units may fake."""
    return (
        f"{_crosses(test)}, but its {units} might drift together. "
        f"Batches of them show {agreement:.0%} of the distance from the limit that rules it out. {_more(test, more)}"
    )


def resembling(test: TestResult, units: str, r1: float, allowed: float, remedy: str | None) -> str:
    """A test that crosses its limit on units of which neighbours resemble each other."""
    return (
        f"{_crosses(test)}, but of its {units} those that follow each other resemble each other. "
        f"Their correlation is {r1:.2f}, and the limit {allowed:.2f}. {_SPREAD if remedy is None else remedy}"
    )


def send_merged(test: TestResult, number: int, group: str) -> str:
    """The order to send units; all of them count in groups from then on."""
    return f"Send traffic for {plural(number, f'more {unit_of(test)}')}; all then count in {group}."


def _crosses(test: TestResult) -> str:
    return f"The {subject_of(test)} {'misses' if test.outcome == 'fail' else 'meets'} its limit"


def _more(test: TestResult, number: int | None) -> str:
    if number is None:
        return _SPREAD
    return f"Send traffic for about {plural(number, f'more {unit_of(test)}')}."


def alike(number: int) -> str:
    """More tests of which the same is true."""
    return f"The same is true of {plural(number, 'more test')}."


def days_missing(seen: int, needed: int) -> str:
    """Evidence from too few days, as a part of a sentence."""
    return f"evidence from {seen} of the {plural(needed, 'day')} needed"


def time_missing(seen_s: float, needed_s: float) -> str:
    """Evidence over too little time, as a part of a sentence."""
    return f"evidence over {span_text(seen_s)} of the {span_text(needed_s)} needed"


def days_needed(seen: int, needed: int) -> str:
    """Traffic of as many days, as something that is needed."""
    return f"traffic on {plural(needed, 'day')} ({seen} so far)"


def time_needed(seen_s: float, needed_s: float) -> str:
    """Traffic over as much time, as something that is needed."""
    return f"traffic over {span_text(needed_s)} ({span_text(seen_s)} so far)"


def too_short(missing: str) -> str:
    """Every test passes, on too little time."""
    return f"Every required test passes, but there is {missing}. Send traffic for longer."


# 4. HOLD: something changed.


def after_alarm(run: int, reason: str) -> str:
    """The run after the one that an alarm ended is not decided yet; `reason` is its reason."""
    return f"A drift alarm ended run {run}, and the next run is not decided yet. {reason}"


def after_refutation(run: int, reason: str) -> str:
    """The run after a DISABLE that was refuted is not decided yet; `reason` is its reason."""
    return f"New evidence refuted the DISABLE of run {run}, which stays in force until the next run decides. {reason}"


def promise_broken(test: TestResult, promise: float, number: int, verdict: Verdict, *, is_least: bool) -> str:
    """A detector's alarm: the figure that was promised at the verdict, and the units since then."""
    shows, held = "shows" if number == 1 else "show", "above" if is_least else "below"
    return (
        f"Since {verdict}, {plural(number, 'unit')} {shows} that the {subject_of(test)} no longer stays {held} "
        f"{shown_as(test.name)(promise)}."
    )


def alarmed(parts: Sequence[str]) -> str:
    """The end of an ENABLE by alarms."""
    return f"{' '.join(parts)} Look for the change, and send traffic for the next run."


def refuted(parts: Sequence[str]) -> str:
    """The end of a DISABLE by alarms."""
    return (
        f"New evidence refutes the DISABLE. {' '.join(parts)} "
        "Send traffic; the DISABLE stays in force until the next run decides."
    )


def new_fingerprint(before: str, reason: str) -> str:
    """A candidate that changed and waits for evidence; `reason` is its reason."""
    return f"The model, a setting or the engine changed; the fingerprint was {before[:12]} before. {reason}"


def superseded(verdict: Verdict, candidate: str, by: str, num_sessions: int) -> str:
    """The end of a verdict whose fingerprint was replaced."""
    return (
        f"{verdict} was superseded: the fingerprint of {candidate} is {by[:12]} now. "
        f"{plural(num_sessions, 'session')} of the old one do not count for it. Send traffic."
    )


def policy_asks_more(parts: Sequence[str]) -> str:
    """A policy that an ENABLE does not meet any more."""
    return (
        f"The policy now asks for more than ENABLE has proven. {' '.join(parts)} "
        "Send traffic, or restore the limit in the policy."
    )


def limit_moved(test: TestResult, at_enable: ProvenBounds | None) -> str:
    """A test whose limit has moved beyond its bounds."""
    shown = shown_as(test.name)
    then = "not required" if at_enable is None else f"[{shown(at_enable.lower)}, {shown(at_enable.upper)}]"
    return f"The {subject_of(test)} is {figures_text(test)} and was {then} at ENABLE; it must be {limit_text(test)}."


def there_is(missing: str) -> str:
    """Evidence over too little time, as a sentence."""
    return f"There is {missing}."


def overridden(order: Override) -> str:
    """An override over a decision, in its author's words."""
    said = order.reason.rstrip(".")
    return (
        f"Override {order.override_id} by {order.author}: {said}. "
        f"Keep speculation off; `shadowspec override clear {order.override_id}` ends the override."
    )


# 5. HOLD: a test failed, or cannot be decided.

_FAILED: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.LOW_ACCEPTANCE: "Try another draft or fewer speculative tokens.",
    ReasonCode.COSTLIER: "Try another draft or fewer speculative tokens.",
    ReasonCode.NEAR_TIES: "Use the same kernels in both arms, or review that limit in the policy.",
    ReasonCode.GUARDRAIL: "Change the candidate, or review that limit in the policy.",
}


def failed_limit(test: TestResult, code: ReasonCode) -> str:
    """A required test that failed, of a HOLD with this code."""
    return f"{_must_be(test)} {_FAILED[code]}"


def costlier(total_time: TestResult, *, is_upgrade: bool) -> str:
    """More time in total, of a HOLD although the speedup passes."""
    step = of_upgrade(is_passed=False) if is_upgrade else _FAILED[ReasonCode.COSTLIER]
    return f"{_must_be(total_time)} {step}"


def slices_prove(lower: float | None, limit: float) -> str:
    """The speedup that the bounds of the slices prove under the current mix."""
    proven = "no speedup" if lower is None else f"a speedup of {times(lower)}"
    return f"The slices' bounds prove {proven} under the current mix, and it must be above {times(limit)}."


def wide_slices(lower: float | None, limit: float) -> str:
    """The same as a reason."""
    return f"{slices_prove(lower, limit)} Send traffic of the slices with wide bounds."


def order_adds(added: float, error: float, limit: float, without: float) -> str:
    """What the order of the arms adds to the speedup."""
    return (
        f"The order of the arms adds {percent(added)} ± {percent(error)} to the speedup, and the limit is "
        f"{percent(limit)}. Without that it is {times(without)}. "
        "Set `pause_s` for the engine, and rename the candidate."
    )


_UNDECIDED: Final = "Try another candidate, or change that limit in the policy."


def not_decided_by(number: int, test: TestResult) -> str:
    """As many sessions as the policy allows did not decide."""
    return f"{plural(number, 'session')} did not decide the {subject_of(test)}, and no more count. {_UNDECIDED}"


def too_near(test: TestResult) -> str:
    """Bounds that lie around their limit."""
    return (
        f"The {subject_of(test)} is {figures_text(test)}, too near its limit of {threshold_text(test)} to decide. "
        f"{_UNDECIDED}"
    )


def hopeless(test: TestResult, certainty: float) -> str:
    """A test that will not reach its limit, shown with this certainty at every look."""
    return (
        f"{_must_be(test)} It is {certainty:.0%} sure not to be, so that few blocks are measured now. "
        "Try another candidate."
    )


def other_engine(measured: str, serving: str) -> str:
    """Latency of an engine that does not serve."""
    return (
        f"Latency was measured on {measured or 'an unknown engine'}, and {serving} serves. "
        f"Measure through two servers of {serving}."
    )


def no_level_left(slice_key: str, max_hypotheses: int) -> str:
    """A hypothesis that came after as many others as the policy allows."""
    what = "This slice is not judged by itself." if slice_key else "This candidate is not judged."
    return (
        f"{what} The policy allows {plural(max_hypotheses, 'combination')} of slice, load and candidate, and all are "
        "taken. Raise `max_hypotheses` in the policy, or configure fewer."
    )


def unprovable(found: UnprovableLimit) -> str:
    """A limit that no evidence can prove."""
    return (
        f"No evidence can prove a limit of {found.value:.3g} with the value {found.fixed_value:.3g} that was fixed "
        f"when the tests began. Change `{found.limit}` in the policy, or rename the candidate to fix `{found.fixed}` "
        "again."
    )


# 6. HOLD: the data cannot be judged.


def failed_requests(share: float, limit: float) -> str:
    """Requests without a result."""
    return (
        f"{percent(share)} of the requests failed or were shed, and the limit is {percent(limit)}. "
        "Find their cause in `shadowspec report`, and measure again."
    )


def late_requests(share: float, limit: float) -> str:
    """Requests that came after their session was counted."""
    return (
        f"{percent(share)} of the requests came after their session had been counted, and the limit is "
        f"{percent(limit)}. Send each session in order through one partition of the topic."
    )


def late_blocks(share: float, limit: float) -> str:
    """Blocks that came after their window was counted."""
    return (
        f"{percent(share)} of the blocks came after their window had been counted, and the limit is {percent(limit)}. "
        "Gate older sources before newer ones, and send each session in order."
    )


def other_prompts(share: float, number: int, limit: float) -> str:
    """Prompts that production's server counts otherwise."""
    return (
        f"Production's server counts another number of tokens in {percent(share)} of {plural(number, 'prompt')}, and "
        f"the limit is {percent(limit)}. Give servers and target the chat template that serves, and measure again."
    )


def caches_differ(production: float, baseline: float, cached: CachedPrompts, limit: float, remedy: str) -> str:
    """Prompts that production finds in its cache more or less often than the baseline does."""
    return (
        f"Production's cache held {percent(production)} of the prompt tokens of "
        f"{plural(cached.num_requests, 'request')}, and the baseline's {percent(baseline)}. "
        f"The limit of the difference is {percent(limit)}. {remedy}."
    )


def rates_changed(lowest: float, highest: float) -> str:
    """A sampling rate that changed within a trial."""
    return (
        f"The sampling rate was from {lowest:.3g} to {highest:.3g} within this evidence, and blocks need one rate. "
        "Rename the candidate: its evidence then begins again, at one rate."
    )


def never_timed(share: float, num_requests: int, positions: int, limit: float) -> str:
    """Requests that come too late in their session to be timed."""
    return (
        f"{percent(share)} of {plural(num_requests, 'request')} come after the first {positions} of their session "
        f"and are never timed; the limit is {percent(limit)}. Raise `timed_positions` for the worker."
    )


def too_old(newest: datetime, limit_s: float) -> str:
    """Evidence that is older than the policy allows."""
    return (
        f"The newest evidence is of {moment(newest)}, and may be at most {span_text(limit_s)} old. "
        "Measure newer traffic."
    )


def of_the_future(newest: datetime) -> str:
    """Evidence that has not happened yet."""
    return f"The newest evidence is of {moment(newest)}, which is still to come. Set the mirror's clocks right."


def parity_unknown(share: float | None, limit: float) -> str:
    """Requests of which nothing is known about parity; `share` is None where no request is."""
    of = "any request" if share is None else f"{percent(share)} of the requests"
    return (
        f"Whether both arms' outputs agree is unknown for {of}, and the limit is {percent(limit)}. "
        "Let the baseline's server return log probabilities (`score_logprobs` in the configuration)."
    )


def memory_unknown(num_blocks: int) -> str:
    """An engine that reports no memory, under a budget."""
    return (
        f"The policy has a memory budget, and the engine reports no memory of {plural(num_blocks, 'block')}. "
        "Remove the budget from the policy, or measure on another engine."
    )


def _must_be(test: TestResult) -> str:
    return f"The {subject_of(test)} is {figures_text(test)} and must be {limit_text(test)}."


def unit_of(test: TestResult) -> str:
    """The unit of a test, as people call it."""
    return _UNIT.get(test.unit, test.unit)
