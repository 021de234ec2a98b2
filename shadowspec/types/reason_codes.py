"""The reason codes of decisions: when the gate gives each, and what to do about it.

The documentation's page on HOLD is made from these texts, so that a code without one cannot be given.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class ReasonCode(StrEnum):
    """Why a hypothesis has its verdict: `verdicts` that carry the code, `meaning`, and `remedy` for an operator."""

    verdicts: tuple[str, ...]
    meaning: str
    remedy: str

    def __new__(cls, value: str, verdicts: str = "", meaning: str = "", remedy: str = "") -> Self:  # by value: a lookup
        member = str.__new__(cls, value)
        member._value_ = value
        member.verdicts, member.meaning, member.remedy = tuple(verdicts.split("/")), meaning, remedy
        return member

    ALL_TESTS_PASS = (
        "all_tests_pass",
        "ENABLE",
        "Every required test passes at this look.",
        "Roll out by the policy's stages; `shadowspec export` writes the configuration of the serving engine.",
    )
    SLOWDOWN = (
        "slowdown",
        "DISABLE",
        "The upper bound of the speedup is below 1 + `margin`.",
        "Leave speculation off here. Try a smaller K, another proposer, or a lower load as a new candidate.",
    )
    TAIL_SLOWED = (
        "tail_slowed",
        "DISABLE",
        "More requests than `tail_share` became slower by `tail_margin`.",
        "Leave speculation off here, or find the slow requests in the dashboard's explorer and give them a slice.",
    )
    PARITY_FAULT = (
        "parity_fault",
        "DISABLE",
        "A greedy output differs from the target's, and rounding does not explain it.",
        "Report it as an error of the engine or the server; its acceptance counts are not valid either.",
    )
    PARITY_BIASED = (
        "parity_biased",
        "DISABLE",
        "Sampled outputs do not follow the target's distribution.",
        "Report it as an error of the engine or the server; compare `baseline_z` to see whether both arms have it.",
    )
    MEMORY_OVER_BUDGET = (
        "memory_over_budget",
        "DISABLE",
        "A block took more memory than `memory_budget_share` or `memory_budget_tokens` allows.",
        "Use a smaller draft or a proposer without one, or review the budget in the policy.",
    )
    DRIFT = (
        "drift",
        "DISABLE/HOLD",
        "A detector fired after ENABLE: speedup, acceptance or parity no longer keeps its promise.",
        "Look at Changes in the dashboard: mix of slices, a new model, a new load. The next run decides again.",
    )
    OVERRIDE = (
        "override",
        "DISABLE/HOLD",
        "An operator's override, an engine audit or the live guard keeps speculation off.",
        "`shadowspec override list` shows reason and author; `shadowspec override clear ID` ends it.",
    )
    CHANGED_RULES = (
        "changed_rules",
        "DISABLE/HOLD",
        "The run began under an older version of the gate's rules, and ended undecided.",
        "Nothing: the next look begins a run under the current rules.",
    )
    TOO_FEW_CLUSTERS = (
        "too_few_clusters",
        "HOLD",
        "Fewer sessions than `entry_clusters` have closed, so that no test is read yet.",
        "Send more sessions. A session closes when it is full, idle for `cluster_idle_s`, or at the end of a file.",
    )
    TOO_FEW_UNITS = (
        "too_few_units",
        "HOLD",
        "No test failed, and at least one is not decided yet.",
        "Send more traffic. `shadowspec plan` says how many sessions and how much time it takes, and names candidates "
        "that are never decided at this rate.",
    )
    MIN_SPAN = (
        "min_span",
        "HOLD",
        "Every required test passes, but the traffic covers less time or fewer days than `min_span_s`.",
        "Measure a week of traffic. For a verdict on a shorter recording only, use `shadowspec try`.",
    )
    CHANGED_FINGERPRINT = (
        "changed_fingerprint",
        "HOLD",
        "The model, template, sampling defaults or engine changed, and the new fingerprint has too little evidence.",
        "Send more traffic, or undo the change. The evidence of the old fingerprint does not count for the new one.",
    )
    LOW_ACCEPTANCE = (
        "low_acceptance",
        "HOLD",
        "The upper bound of the acceptance is below `floor`, and no slowdown is proven.",
        "Distill or replace the draft, or lower `floor` if only the speedup matters to you.",
    )
    COSTLIER = (
        "costlier",
        "HOLD",
        "Requests became faster on average, but the total time of all requests grew.",
        "Look at the long requests; give them a slice, so that the short ones can be enabled.",
    )
    NEAR_TIES = (
        "near_ties",
        "HOLD",
        "Greedy outputs differ by rounding in more requests than `parity_margin`.",
        "Check that both arms use the same dtype and kernels; review `parity_margin` if such differences are harmless.",
    )
    GUARDRAIL = (
        "guardrail",
        "HOLD",
        "A guardrail of the policy failed, such as `ttft_margin` or `score_margin`.",
        "The reason names the test. Fix the measured property, or review the limit.",
    )
    MIX_BOUND = (
        "mix_bound",
        "HOLD",
        "`require_mix_bound` is set, and the slices' bounds do not prove the speedup under the current mix.",
        "Send traffic of the slices with wide bounds, or decide by slice.",
    )
    DEPENDENT = (
        "dependent",
        "HOLD",
        "A test crossed its bound, but its units are not shown to be independent.",
        "Send more traffic: the test waits, or merges units and starts again. Check that `session_id` is set.",
    )
    UNDECIDABLE = (
        "undecidable",
        "HOLD",
        "The interval lies within `indifference` of its limit, or `max_clusters` sessions did not decide.",
        "Treat the gain as too small to matter, and leave speculation off. More traffic does not help.",
    )
    OTHER_ENGINE = (
        "other_engine",
        "HOLD",
        "Latency was measured on another engine than `serving_engine` names.",
        "Measure through two servers of that engine. Acceptance carries over, latency does not.",
    )
    NO_LEVEL_LEFT = (
        "no_level_left",
        "HOLD",
        "All `max_hypotheses` hypotheses have entered, so that no part of alpha is left for this one.",
        "Slice by fewer labels, compare fewer candidates, or raise `max_hypotheses` (every test then needs more).",
    )
    UNPROVABLE = (
        "unprovable",
        "HOLD",
        "A limit of today cannot be proven with a definition that was fixed when the hypothesis entered.",
        "Change the limit that the reason names, or rename the candidate to begin a new hypothesis.",
    )
    MISSING_DATA = (
        "missing_data",
        "HOLD",
        "More requests than `max_missing` failed or were shed.",
        "Find the cause in the funnel and the worker's log: time-outs, memory, an engine that is behind.",
    )
    LATE_DATA = (
        "late_data",
        "HOLD",
        "More requests than `max_missing` came out of order, after their sessions had entered the evidence.",
        "Check clocks and partitions of the mirror; one session belongs in one partition.",
    )
    STALE_DATA = (
        "stale_data",
        "HOLD",
        "The newest evidence is older than `max_evidence_age_s`.",
        "Check that the worker runs and the mirror has records.",
    )
    UNKNOWN_PARITY = (
        "unknown_parity",
        "HOLD",
        "Parity was not measured for more requests than `max_missing`.",
        "For servers: let the baseline return log probabilities (`score_logprobs`).",
    )
    UNKNOWN_MEMORY = (
        "unknown_memory",
        "HOLD",
        "The policy has a memory budget, and no block reports memory.",
        'Use servers that report their KV cache, or set both budgets to "none".',
    )
