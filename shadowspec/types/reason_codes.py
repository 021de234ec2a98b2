"""The reason codes of decisions: when the gate gives each, and what to do about it.

Commands, dashboard and the documentation's page on HOLD show these texts, so that a code without one cannot be given.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self

GATE_AGAIN: Final = "then run `shadowspec gate` again"
SEND_TRAFFIC: Final = f"send traffic, {GATE_AGAIN}"


class ReasonCode(StrEnum):
    """Why a hypothesis has its verdict.

    `verdicts` that carry the code, `meaning`, and for an operator the next `step` as an order and a `note` on it.
    """

    verdicts: tuple[str, ...]
    meaning: str
    step: str
    note: str

    def __new__(cls, value: str, verdicts: str = "", meaning: str = "", step: str = "", note: str = "") -> Self:
        member = str.__new__(cls, value)  # the defaults are those of a lookup by value
        member._value_ = value
        member.verdicts, member.meaning = tuple(verdicts.split("/")), meaning
        member.step, member.note = step, note
        return member

    ALL_TESTS_PASS = (
        "all_tests_pass",
        "ENABLE",
        "Every required test passes at this look.",
        "roll out by the policy's stages",
        "`shadowspec export` writes the configuration of the serving engine.",
    )
    SLOWDOWN = (
        "slowdown",
        "DISABLE",
        "The upper bound of the speedup is below 1 + `margin`.",
        "keep speculation off; to try now, configure another draft or fewer speculative tokens",
        "Detectors reopen it when new evidence refutes it. A lower load can be a candidate too.",
    )
    TAIL_SLOWED = (
        "tail_slowed",
        "DISABLE",
        "More requests than `tail_share` became slower by `tail_margin`, beyond the noise of pairs.",
        "keep speculation off; to try now, configure another draft or fewer speculative tokens",
        "Or find the slow requests in the dashboard's explorer, and give them a slice.",
    )
    PARITY_FAULT = (
        "parity_fault",
        "DISABLE",
        "A greedy output differs from the target's, and rounding does not explain it.",
        "keep speculation off, and report the difference as an error of the engine or the server",
        "Its acceptance counts are not valid either.",
    )
    STREAM_FAULT = (
        "stream_fault",
        "DISABLE",
        "A chat's stream with speculation is broken, or makes another message of the baseline's tokens.",
        "keep speculation off, and report it as an error of the server's template, parser or stream",
        "`shadowspec report` counts the kinds of faults.",
    )
    PARITY_BIASED = (
        "parity_biased",
        "DISABLE",
        "Sampled outputs do not follow the target's distribution.",
        "keep speculation off, and report the difference as an error of the engine or the server",
        "Compare `baseline_z` to see whether both arms have it.",
    )
    MEMORY_OVER_BUDGET = (
        "memory_over_budget",
        "DISABLE",
        "A block took more memory than `memory_budget_share` or `memory_budget_tokens` allows.",
        "keep speculation off; use a smaller draft or none, or review the memory budget in the policy",
    )
    DRIFT = (
        "drift",
        "DISABLE/HOLD",
        "A detector fired after ENABLE: speedup, acceptance or parity no longer keeps its promise.",
        "keep speculation off, and look for the cause under Changes in the dashboard; the next run decides again",
        "Causes: mix of slices, a new model, a new load.",
    )
    REOPENED = (
        "reopened",
        "DISABLE",
        "A detector fired after DISABLE: new evidence refutes it.  It stays in force until the next run decides.",
        f"keep speculation off and send traffic, {GATE_AGAIN}",
        "Changes in the dashboard shows the events since then.",
    )
    OVERRIDE = (
        "override",
        "DISABLE/HOLD",
        "An operator's override, an engine audit or the live guard keeps speculation off.",
        "see reason and author in `shadowspec override list`",
        "`shadowspec override clear ID` ends it.",
    )
    TOO_FEW_CLUSTERS = (
        "too_few_clusters",
        "HOLD",
        "Fewer sessions than `entry_clusters` have closed, so that no test is read yet.",
        SEND_TRAFFIC,
        "A session closes when it is full, idle for `cluster_idle_s`, or at the end of a file.",
    )
    SMALL_SLICE = (
        "small_slice",
        "HOLD",
        "The slice has less than `entry_share` of its endpoint's requests of the last week, so that it takes no level.",
        "nothing needs to be done: the endpoint's verdict covers the slice",
        "Lower `entry_share` if such a slice must have a separate verdict.",
    )
    TOO_FEW_UNITS = (
        "too_few_units",
        "HOLD",
        "No test failed, and at least one is not decided yet, or its units are too few to judge their independence.",
        SEND_TRAFFIC,
        "`shadowspec plan` says how many sessions and how much time it takes, and names candidates that are "
        "never decided at this rate.",
    )
    MIN_SPAN = (
        "min_span",
        "HOLD",
        "Every required test passes, but the traffic covers less time or fewer days than `min_span_s`.",
        f"every test passes; measure traffic over the missing time, {GATE_AGAIN}",
        "For a verdict on a shorter recording only, use `shadowspec try`.",
    )
    CHANGED_FINGERPRINT = (
        "changed_fingerprint",
        "HOLD",
        "The model, template, sampling defaults or engine changed, and the new fingerprint has too little evidence.",
        f"send traffic, or undo the change of model or engine, {GATE_AGAIN}",
        "The evidence of the old fingerprint does not count for the new one.",
    )
    POLICY_CHANGED = (
        "policy_changed",
        "HOLD",
        "The policy now asks for more than the bounds of this ENABLE prove.",
        f"send traffic, or restore the limit in the policy, {GATE_AGAIN}",
        "The bounds hold for all limits at once: ENABLE returns, at no cost, once they meet the policy.",
    )
    LOW_ACCEPTANCE = (
        "low_acceptance",
        "HOLD",
        "The upper bound of the acceptance is below `floor`, and no slowdown is proven.",
        "try another draft or fewer speculative tokens",
        "Distill a draft, or lower `floor` if only the speedup matters to you.",
    )
    COSTLIER = (
        "costlier",
        "HOLD",
        "Requests became faster on average, but the total time of all requests grew.",
        "try another draft or fewer speculative tokens",
        "Or give the long requests a slice, so that the short ones can be enabled.",
    )
    NEAR_TIES = (
        "near_ties",
        "HOLD",
        "Greedy outputs differ by rounding in more requests than `parity_margin`.",
        "use the same dtype and kernels in both arms, or review `parity_margin` in the policy",
        "Such differences may be harmless.",
    )
    GUARDRAIL = (
        "guardrail",
        "HOLD",
        "A guardrail of the policy failed, such as `ttft_margin` or `score_margin`.",
        "fix the figure that the reason names, or review its limit in the policy",
    )
    MIX_BOUND = (
        "mix_bound",
        "HOLD",
        "`require_mix_bound` is set, and the slices' bounds do not prove the speedup under the current mix.",
        f"send traffic of the slices with wide bounds, {GATE_AGAIN}",
        "Or decide by slice.",
    )
    CARRY_OVER = (
        "carry_over",
        "HOLD",
        "Every test passes, but the order of the arms adds more than `max_carry_over` to the speedup.",
        "set `pause_s` under `[engine]`, or give the arms separate devices; rename the candidate, then send traffic",
        "The baseline is slower right after speculation: heat, clocks or evicted caches.",
    )
    DEPENDENT = (
        "dependent",
        "HOLD",
        "A test crossed its bound, but units that follow each other resemble each other.",
        SEND_TRAFFIC,
        "The test waits, or merges units and starts again. The reason has r1 and its limit. Check that `session_id` is "
        "set.",
    )
    UNDECIDABLE = (
        "undecidable",
        "HOLD",
        "The interval lies within `indifference` of its limit, or `max_clusters` sessions did not decide.",
        "try another candidate, or change the limit in the policy: the effect is too close to it",
        "More traffic does not help.",
    )
    FUTILE = (
        "futile",
        "HOLD",
        "At 95%, over all looks, a test that may disable misses its limit.",
        "try another candidate: the worker measures this one at `min_rate`",
        "At most 5% of hypotheses within their limits are called so.",
    )
    OTHER_ENGINE = (
        "other_engine",
        "HOLD",
        "Latency was measured on another engine than `serving_engine` names.",
        "measure through two servers of the serving engine (docs/servers.md)",
        "Acceptance carries over if the candidate drafts by the rules of that engine. Latency does not.",
    )
    NO_LEVEL_LEFT = (
        "no_level_left",
        "HOLD",
        "All `max_hypotheses` hypotheses have entered, so that no part of alpha is left for this one.",
        "raise `max_hypotheses` in the policy, or configure fewer candidates, loads or labels",
        "With more hypotheses every test needs more evidence.",
    )
    UNPROVABLE = (
        "unprovable",
        "HOLD",
        "A limit of today cannot be proven with a definition that was fixed when the hypothesis entered.",
        "change the limit in the policy: no evidence can prove it",
        "Or rename the candidate to begin a new hypothesis.",
    )
    MAY_REPLACE = (
        "may_replace",
        "HOLD",
        "A second deployment, or a schedule at 0 tokens, passes every required test. It enables no speculation.",
        "change over to it (docs/ci.md); a schedule that is confirmed leaves the shadow",
    )
    MUST_NOT_REPLACE = (
        "must_not_replace",
        "HOLD",
        "A second deployment is slower, accepts less, changes outputs or takes too much memory.",
        "keep the first deployment, and look at the figure that the reason names",
    )
    MISSING_DATA = (
        "missing_data",
        "HOLD",
        "More requests than `max_missing` failed or were shed.",
        f"see the failures in `shadowspec report`, fix their cause and measure again, {GATE_AGAIN}",
        "Causes: time-outs, memory, an engine that is behind.",
    )
    LATE_DATA = (
        "late_data",
        "HOLD",
        "More requests than `max_missing` came out of order, after their sessions or windows had entered the evidence.",
        f"keep each session in one partition of the mirror and in order, {GATE_AGAIN}",
        "Check the mirror's clocks.",
    )
    PROMPT_MISMATCH = (
        "prompt_mismatch",
        "HOLD",
        "Production's server counts other prompts than are rendered here, in more than `max_prompt_mismatch` of those "
        "that it counts (`usage.prompt_tokens`).",
        "set `serving_engine` and give the chat template that serves, or log the prompts' token ids, "
        f"then measure again, {GATE_AGAIN}",
        "Rename the candidate to begin evidence without those prompts. Where the server does not count whole prompts, "
        "raise the limit.",
    )
    CACHE_MISMATCH = (
        "cache_mismatch",
        "HOLD",
        "Production finds more or less of its prompts in prefix caches than the baseline, by more than `max_cache_gap` "
        "of their tokens.",
        'set `prefix_cache = "as_served"`, raise `sample_rate` where the servers find less, or choose `"evicted"` '
        f"where they find more, then measure again, {GATE_AGAIN}",
        "Sampled sessions share less than all of them. Rename the candidate to begin evidence without cold caches.",
    )
    CHANGED_RATE = (
        "changed_rate",
        "HOLD",
        "`sample_rate` changed within the evidence of a trial, so that its blocks do not have the mix of the traffic.",
        f"rename the candidate, measure at one `sample_rate`, {GATE_AGAIN}",
        "Production verdicts weigh each request by its rate.",
    )
    UNTIMED = (
        "untimed",
        "HOLD",
        "More requests than `max_untimed_share` come later in their session than any request that is timed.",
        "raise `timed_positions` to the length of the long sessions and restart the worker, "
        f"then measure newer traffic, {GATE_AGAIN}",
        "The share falls as newer requests come. A slowdown still ends in DISABLE. Raise the limit where late turns "
        "are known to be like the others.",
    )
    STALE_DATA = (
        "stale_data",
        "HOLD",
        "The newest evidence is older than `max_evidence_age_s`.",
        f"measure newer traffic, {GATE_AGAIN}",
        "Check that the worker runs and the mirror has records.",
    )
    UNKNOWN_PARITY = (
        "unknown_parity",
        "HOLD",
        "Parity was not measured for more requests than `max_missing`.",
        f"let the baseline's server return log probabilities (`score_logprobs`), {GATE_AGAIN}",
    )
    UNKNOWN_MEMORY = (
        "unknown_memory",
        "HOLD",
        "The policy has a memory budget, and no block reports memory.",
        "remove the memory budget from the policy, or measure on an engine that reports memory",
        'Both budgets off: "none".',
    )
