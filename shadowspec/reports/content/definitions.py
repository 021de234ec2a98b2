"""What a report's figures and words mean, and the notes beside a test."""

from __future__ import annotations

from collections.abc import Mapping

from shadowspec.gate.verdict.figure_texts import Format, interval_text
from shadowspec.text import DASH, batch_change, figure, format_signed, number, percent, times
from shadowspec.types import Decision, FingerprintedConfig, FunnelCounter, TestResult, Verdict

VERDICT_MEANING = {
    Verdict.ENABLE: "every required test passed at its level",
    Verdict.DISABLE: "harm is proven (a bound, a difference of outputs, memory over budget), "
    "or a proven gain no longer holds",
    Verdict.HOLD: "not enough evidence for ENABLE or DISABLE yet",
}

COUNTER_MEANING = {
    FunnelCounter.MEASURED: "ran in both arms",
    FunnelCounter.FAILED: "chosen, but an arm failed; it counts with each test's worst value",
    FunnelCounter.SAMPLED_OUT: "usable, but outside the sample, or not its session's timed request",
    FunnelCounter.SHED: "chosen, but dropped because the engine was behind",
    FunnelCounter.UNSUPPORTED: "readable, but the shadow cannot reproduce it",
    FunnelCounter.MALFORMED: "unreadable",
    FunnelCounter.DUPLICATE: "read before",
    FunnelCounter.EXPIRED: "too old when it was read",
}

REPLAY_NOTE = (
    "Expected counts from logged responses, pooled, beside the engine's counts of the same time. No test uses replay."
)
AUDIT_NOTE = (
    "Replay of outputs of the speculative arm. The share of tokens accepted beyond replay's expectation has mean zero, "
    "or one within `audit_tolerance` if servers answer. An alarm means that engine or replay is wrong; it holds the "
    "slice until an operator clears it."
)

# (short name, sentence): each is one hover or one footnote away from every use of the word in a report
DEFINITIONS = {
    "verdict": (
        "Verdict",
        "ENABLE when every required test passes at one look; DISABLE when harm is proven; else HOLD with its "
        "reason. Verdicts come only from this measurement.",
    ),
    "speedup": (
        "Speedup, geometric mean",
        "Baseline over speculative end-to-end time of the same request (prefill and decode): the geometric mean over "
        "requests. The policy clips each; `clipped` says that it clipped a quarter of them or more. Above 1 is faster. "
        "This is the gain of a request; the ratio of total times is the gain in machine time.",
    ),
    "total-times": (
        "Ratio of total times",
        "Total baseline over total speculative end-to-end time, pooled over requests: the gain in machine time.",
    ),
    "request-speedup": ("Speedup per request", "Baseline over speculative end-to-end time of each request."),
    "acceptance": (
        "First token accepted",
        "First-position acceptance rate: the share of steps that accepted the first drafted token. It does not depend "
        "on K. With another acceptance_metric in the policy, it is the share of all drafted tokens. The gate caps the "
        "weight of a session, so that its estimate may differ from the pooled rate.",
    ),
    "tail": (
        "Slowed requests",
        "Share of requests that became slower by more than the policy's margin, beyond the noise of pairs.",
    ),
    "first-position": (
        "First-position acceptance rate",
        "Share of steps that accepted the first drafted token; it does not depend on K.",
    ),
    "bounds": (
        "Bounds",
        "Anytime-valid: they hold at every look, however often the gate looks. Brackets show [lower, upper]; a dash "
        "is an end without a bound yet. Each end is at the level of its run. A test fails at that level divided by the "
        "number of bounds that can disable.",
    ),
    "level": (
        "Level",
        "Largest probability of a false pass of this test, over all looks together. The levels of an endpoint share "
        "alpha, over all its life: of twenty endpoints at 5%, at most one false ENABLE is expected.",
    ),
    "units": (
        "Units",
        "A test counts blocks (requests that went through both arms together), clusters (sessions), requests or "
        "documents of task sets. It never counts tokens, which are not independent. 'Smallest n' is the fewest units "
        "at which it could pass; 'still needed' is an estimate.",
    ),
    "pooled": (
        "Pooled",
        "Counts are added up over requests, then one ratio is formed. A mean of the requests' ratios is another "
        "figure, and named so.",
    ),
    "mean-length": (
        "Mean acceptance length",
        "1 + accepted tokens / steps, with the bonus or recovered token. Plain steps are left out.",
    ),
    "tokens-per-pass": (
        "Tokens per target pass",
        "Output tokens over target forward passes. Every pass counts: prefill, steps, and plain steps, which emit one "
        "token each. It measures speculation on this traffic; the mean acceptance length measures the draft.",
    ),
    "draft-rate": ("Draft acceptance rate", "Accepted over drafted tokens; it falls as K grows."),
    "marginal": ("Marginal rate", "Steps that accepted position i, over all steps. 1 + their sum is the mean length."),
    "conditional": ("Conditional rate", "Steps that accepted position i, over those that accepted position i - 1."),
    "histogram": ("Accepted per step", "Share of steps that accepted exactly j drafted tokens."),
    "passes-saved": (
        "Target passes saved",
        "Output tokens minus target forward passes: the additional passes that plain decoding would have needed.",
    ),
    "end-to-end": ("End to end", "Prefill plus decode of the arm, milliseconds: the time a client waits."),
    "ttft": ("TTFT", "Time to first token: prefill of the arm, milliseconds, waiting included."),
    "tpot": ("TPOT", "Time per output token: decode time over the output tokens after the first, milliseconds."),
    "longest-gap": (
        "Longest gap",
        "The longest time between two arrivals of tokens within a request, milliseconds. The tokens of a step arrive "
        "together.",
    ),
    "realised-concurrency": (
        "Realised concurrency",
        "Mean number of requests in progress in the arm during each of these requests, itself included. In one batch "
        "it falls below the load as requests finish. A queue that refills slots (requests_per_slot) holds it up until "
        "it is empty.",
    ),
    "prefix-cache": (
        "Prefix cache",
        "Share of the prompts' tokens that each server reports as found in its prefix cache; plain sums over requests. "
        "The setting `prefix_cache` of the servers decides how much a request may find.",
    ),
    "queue": (
        "Queue",
        "Waiting time in a server's queue and for failed attempts, milliseconds. It is a part of the time to first "
        "token, and also shown separately.",
    ),
    "quantile": (
        "Quantile",
        "Exact order statistic over requests. It needs 1 / (1 - p) requests (p95: 20, p99: 100); with fewer it would "
        "be the maximum.",
    ),
    "divergence": (
        "First divergence",
        "A greedy request whose two outputs differ. A top-2 logit gap of the target there at or below the near-tie "
        "limit is a near-tie; above it a fault.",
    ),
    "z": (
        "Teacher-forced z",
        "Mean over emitted tokens of 1[token = argmax] - target(argmax): zero if sampling is right. The baseline's z "
        "shows the noise.",
    ),
    "displaced": (
        "Displaced KV tokens",
        "Extra peak memory of the speculative arm, in tokens of the target's KV cache that would have fitted in it. "
        "Through servers: the tokens by which the speculative server's KV cache is smaller.",
    ),
    "displaced_requests": (
        "Displaced requests",
        "The number of requests whose KV cache the displaced tokens are. In process these are requests of the blocks' "
        "mean length; through servers, of the greatest length that a server accepts.",
    ),
    "loops": (
        "Repetition loops",
        "Requests whose output ends in a repeating pattern. Loops are easy to draft and inflate acceptance.",
    ),
    "failures": (
        "Failures",
        "Counts of measured requests that have a flag, over those for which the flag is defined; plain sums. A "
        "suspected kind of failure compares a slice with the endpoint's other slices. No test and no verdict uses it.",
    ),
    "funnel": ("Funnel", "Every record read ends in exactly one counter, so the counters add up to the records read."),
    "sequence": (
        "Confidence sequence",
        "The estimate and its bounds after each unit, in folding order. The bounds hold over the whole path at once.",
    ),
    "by-context": (
        "By length of the prompt",
        "Measured requests by their prompt tokens, pooled within each range, without bounds. The cache is one "
        "request's KV cache at its end: of the target, or of target and draft.",
    ),
    "predicted": (
        "Predicted speedup",
        "End-to-end speedup of an average request of the slice, computed from the tokens per step and the measured "
        "costs of steps on this device. No verdict uses predictions.",
    ),
    "pays-from": (
        "Pays from",
        "Tokens per step (mean acceptance length) from which decoding is faster than the baseline at this load.",
    ),
    "frontier": (
        "Frontier",
        "The candidate with the largest predicted speedup at each load, and those whose bounds reach it. The bounds "
        "come only from the tokens per step.",
    ),
    "detector": (
        "Detector",
        "A statistic that the gate computes unit by unit after ENABLE. Drift of speedup, acceptance, the slowed share "
        "or z: it fires if a proven limit no longer holds, and ends the ENABLE. Prompt mix: an e-value against the "
        "slices' shares at ENABLE.",
    ),
    "age": ("Evidence age", "Time since the newest request in the evidence was made, whenever it was measured."),
}


def config_name(configs: Mapping[str, FingerprintedConfig], fingerprint: str) -> str:
    """The config's name; the beginning of its fingerprint where no config of it is known."""
    config = configs.get(fingerprint)
    return fingerprint[:12] if config is None else config.config.name


def test_notes(test: TestResult) -> list[str]:
    """The text beside a test: the details that a reader needs to weigh it."""
    figures = {"r1": None if test.dependence is None else test.dependence.r1, **test.figures}
    notes = [] if test.is_required else ["shown beside the required tests"]
    for name, (text, format_value) in _NOTES.items():
        value = figures.get(name)
        if value is not None:
            notes.append(text.format(value.replace("_", " ") if isinstance(value, str) else format_value(value)))
    if figures.get("num_repeated") == 0:
        notes.append("noise was not measured: no baseline ran twice")
    if (displaced := displaced_text(test)) is not None:
        notes.append(displaced)
    if test.betting is not None and test.betting.num_missing:
        notes.append(f"{test.betting.num_missing} missing, counted at the worst value")
    if test.state is not None and test.state.merged_units != 1:
        notes.append(f"restarted at unit {test.state.start_unit} with {test.state.merged_units} units merged")
    if test.betting is not None and test.betting.is_undecidable:
        notes.append("too near the threshold to decide")
    return notes


def displaced_text(test: TestResult) -> str | None:
    """What speculation displaces, in KV tokens and in requests as far as these are known; None of another test."""
    tokens, requests, held = (
        test.figures.get(name) for name in ("displaced_kv_tokens", "displaced_requests", "baseline_requests")
    )
    if not isinstance(tokens, int | float):
        return None
    words = f"{tokens:,.0f} KV tokens displaced"
    if not isinstance(requests, int | float):
        return words
    if isinstance(held, int | float):  # a server says how many it holds
        return f"{words}, {batch_change(held, held - requests)}"
    return f"{words}, the cache of {number(requests)} requests"


def find_test(decision: Decision | None, name: str) -> TestResult | None:
    """The decision's test of that name, as the gate stored it; None where it was not run."""
    return None if decision is None else decision.find_test(name)


def total_time_text(test: TestResult | None) -> str:
    """The ratio of total times (of the test of that name) with its bounds, which belongs beside a speedup."""
    return DASH if test is None or test.estimate is None else interval_text(test, times)


_NOTES: dict[str, tuple[str, Format]] = {
    "metric": ("{}", figure),
    "clipped_share": ("{} of requests clipped", percent),
    "carry_over": ("{} of it from the order of the arms", percent),
    "carry_over_error": ("± {}", percent),
    "without_carry_over": ("without that {}", times),
    "baseline_cached_share": ("prompt tokens cached: baseline {}", percent),
    "speculative_cached_share": ("speculative {}", percent),
    "num_slowed": ("{} requests slowed", figure),
    "noise_share": ("noise alone slows {}", percent),
    "tail_margin": ("slowed means by over {}", percent),
    "num_differing": ("{} outputs differ", figure),
    "num_faults": ("{} faults", figure),
    "num_near_ties": ("{} near-ties", figure),
    "num_unknown": ("{} unknown", figure),
    "near_tie_logit": ("near-tie up to a gap of {}", figure),
    "z_unclipped": ("mean z without the clip {}", format_signed),
    "baseline_z": ("the baseline's z {}", format_signed),
    "speculative_cost_per_million_tokens": ("{} per million output tokens", number),
    "baseline_cost_per_million_tokens": ("the baseline's {}", number),
    "r1": ("lag-1 autocorrelation {}", number),
}
