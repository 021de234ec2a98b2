"""What a report's figures and words mean, and how each test's are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from shadowspec.text import DASH, batch_change, figure, format_signed, number, percent, times
from shadowspec.types import Decision, FingerprintedConfig, FunnelCounter, TestResult, Verdict

Format = Callable[[float | None], str]

VERDICT_MEANING = {
    Verdict.ENABLE: "every required test has been passed at this level, at every look",
    Verdict.DISABLE: "harm is proven (a bound has crossed, outputs differ, memory is over its budget), "
    "or a proven gain has drifted away",
    Verdict.HOLD: "not enough evidence for either word yet",
}

COUNTER_MEANING = {
    FunnelCounter.MEASURED: "run through both arms",
    FunnelCounter.FAILED: "chosen, but an arm failed; folded at each test's worst value",
    FunnelCounter.SAMPLED_OUT: "usable, not chosen: not in the sample, or not its session's timed request",
    FunnelCounter.SHED: "chosen, but dropped because the queue was full",
    FunnelCounter.UNSUPPORTED: "readable, but cannot be shadowed faithfully",
    FunnelCounter.MALFORMED: "not a readable record",
    FunnelCounter.DUPLICATE: "seen before",
    FunnelCounter.EXPIRED: "too old when it was read",
}

TEST_TITLE = {
    "speedup": "Speedup",
    "total_time": "Ratio of total times",
    "acceptance": "First token accepted",
    "tail": "Slowed requests",
    "parity_near_ties": "Parity, greedy near-ties",
    "parity_faults": "Parity, greedy faults",
    "parity_sampled": "Parity, sampled",
    "memory": "Memory budget",
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "cost": "Cost per output token over its limit",
    "structured_validity": "Valid structured output, difference",
    "score": "Score, difference",
    "p95": "p95 end to end, speculative over baseline",
    "p99": "p99 end to end, speculative over baseline",
}

REPLAY_NOTE = (
    "Expected counts given logged responses, pooled; what the loop counted in the same time is shown beside them. No "
    "test rests on replay. A difference beyond its limit is a production mismatch: production answers otherwise than "
    "the shadow's target, which says nothing against loop or replay."
)
AUDIT_NOTE = (
    "Outputs of the speculative loop, replayed. The share of tokens accepted beyond what replay expects has mean zero; "
    "an alarm says that loop or replay is wrong, and holds the slice until an operator clears it."
)

MEASURE_TITLE = {"end_to_end_ms": "End to end", "ttft_ms": "TTFT", "tpot_ms": "TPOT", "queue_ms": "Queue"}

# (short name, sentence): each is one hover or one footnote away from every use of the word in a report
DEFINITIONS = {
    "verdict": (
        "Verdict",
        "ENABLE when every required test passes at one look; DISABLE when harm is proven; else HOLD with its "
        "reason. Verdicts come from this measurement alone.",
    ),
    "speedup": (
        "Speedup, geometric mean",
        "Baseline over speculative end-to-end time of the same request (prefill and decode), as the geometric mean "
        "over requests with each request's log clipped as the policy says. Above 1 is faster. It says what a request "
        "gains; what the fleet pays is the ratio of total times, which stands beside it.",
    ),
    "total-times": (
        "Ratio of total times",
        "Total baseline over total speculative end-to-end time, pooled over requests: what the fleet pays.",
    ),
    "request-speedup": ("Speedup per request", "Each request's own baseline over speculative end-to-end time."),
    "acceptance": (
        "First token accepted",
        "First-position acceptance rate: share of propose-and-verify steps that accepted the first drafted token, the "
        "same for every K (or of all drafted tokens, where the policy's acceptance_metric says so). The gate's "
        "estimate caps the weight of a session and so may differ from the pooled rate.",
    ),
    "first-position": (
        "First-position acceptance rate",
        "Share of propose-and-verify steps that accepted the first drafted token; the same for every K.",
    ),
    "bounds": (
        "Bounds",
        "Anytime-valid: they hold at every look at once, however often the gate looked. Square brackets hold "
        "[lower, upper]; an end that the evidence does not bound yet is an em dash. Each end is at the level of its "
        "run. A test fails, and may disable, at that level divided by the number of bounds that can disable. Decisions "
        "by version 1 of the rules show the end by which a test can only fail at that smaller level.",
    ),
    "level": ("Level", "Largest probability of a false pass that this test may spend, over all looks together."),
    "units": (
        "Units",
        "What a test counts: blocks (requests that went through both arms together), clusters (sessions) or requests; "
        "never tokens, which are not independent. 'Smallest n' is the fewest units at which the test could pass; "
        "'still needed' is an estimate.",
    ),
    "pooled": (
        "Pooled",
        "Counts are added up over requests, then one ratio is formed; a mean of the requests' own ratios is another "
        "figure and is named so.",
    ),
    "mean-length": (
        "Mean acceptance length",
        "1 + accepted / drafts: tokens per propose-and-verify step, the bonus or recovered token included. Plain "
        "steps, in which nothing was drafted, are left out.",
    ),
    "tokens-per-pass": (
        "Tokens per target pass",
        "Output tokens over target forward passes. Every pass counts: the prefill, steps that drafted, and plain "
        "steps, which emit one token each. It says what speculation makes of the traffic; the mean acceptance length "
        "says what a draft is worth.",
    ),
    "draft-rate": ("Draft acceptance rate", "Accepted over drafted tokens; falls with K by itself."),
    "marginal": ("Marginal rate", "Steps that accepted position i, over all steps. 1 + their sum is the mean length."),
    "conditional": ("Conditional rate", "Steps that accepted position i, over those that accepted position i - 1."),
    "histogram": ("Accepted per step", "Share of propose-and-verify steps that accepted exactly j drafted tokens."),
    "passes-saved": (
        "Target passes saved",
        "Output tokens less target forward passes: passes that plain decoding would have needed beyond those made.",
    ),
    "end-to-end": ("End to end", "Prefill plus decode of the arm, milliseconds: what a client waited."),
    "ttft": ("TTFT", "Time to first token: prefill of the arm, milliseconds, waiting included."),
    "tpot": ("TPOT", "Time per output token: decode time over the output tokens after the first, milliseconds."),
    "longest-gap": (
        "Longest gap",
        "The longest time between two arrivals of tokens within a request, milliseconds; what one step emits arrives "
        "together.",
    ),
    "realised-concurrency": (
        "Realised concurrency",
        "Mean number of requests in progress in the arm while each of these requests was, itself included. In one "
        "batch it falls short of the load as requests finish; a queue that refills slots (requests_per_slot) keeps it "
        "up until it runs dry.",
    ),
    "prefix-cache": (
        "Prefix cache",
        "Share of the prompts' tokens that each server says it found in its prefix cache; plain sums over requests. "
        "Where whole conversations are measured, each begins cold in both arms, and a turn may find those before it.",
    ),
    "queue": (
        "Queue",
        "What a request waited in a server's queue and for attempts that came to nothing, milliseconds: a part of the "
        "time to first token, shown apart as well.",
    ),
    "derived-queue": (
        "Derived queue times",
        "What each arm would make of the recorded arrivals, first come, first served, with as many slots as the load: "
        "busy is the share of the slots' time that is asked for, the queue is the wait for a slot. Every request takes "
        "as long as it was measured to take there with all slots busy, which is the longest it takes. The other speeds "
        "of the arrivals are those at which the baseline is busy for 50, 80 and 95% of the time. The last figure is "
        "the baseline's mean time from arrival to last token over the speculative arm's.",
    ),
    "quantile": (
        "Quantile",
        "Exact order statistic over requests. Undefined below 1 / (1 - p) requests, where it would only be the maximum "
        "(p95: 20 requests, p99: 100).",
    ),
    "divergence": (
        "First divergence",
        "A greedy request whose two outputs differ. A top-2 logit gap of the target there at or below the near-tie "
        "limit is a near-tie; above it a fault.",
    ),
    "z": (
        "Teacher-forced z",
        "Mean over emitted tokens of 1[token = argmax] - target(argmax): zero if sampling is right. The baseline's own "
        "z is the noise floor.",
    ),
    "displaced": (
        "Displaced KV tokens",
        "Extra peak memory of the speculative arm, as tokens of the target's KV cache that would have fitted in it; "
        "through servers, the tokens by which the speculative server's KV cache holds less.",
    ),
    "displaced_requests": (
        "Displaced requests",
        "How many requests' KV cache the displaced tokens are: requests of the blocks' mean length in process, of the "
        "greatest length that a server accepts through servers.",
    ),
    "loops": (
        "Repetition loops",
        "Requests whose output ends in a repeating pattern. Loops are easy to draft and inflate acceptance.",
    ),
    "failures": (
        "Failures",
        "Counts of measured requests that have a flag, over those for which the flag is defined; plain sums. What is "
        "suspected compares a slice with the endpoint's others; it is no test, and no verdict reads it.",
    ),
    "funnel": ("Funnel", "Every record read ends in exactly one counter, so the counters add up to the records read."),
    "sequence": (
        "Confidence sequence",
        "The estimate and its bounds after each unit, in folding order. The bounds hold over the whole path at once.",
    ),
    "by-context": (
        "By length of the prompt",
        "Measured requests by their prompt tokens, pooled within each range, without bounds. The cache is what one "
        "request's keys and values take at its end, in the target alone or in target and draft.",
    ),
    "predicted": (
        "Predicted speedup",
        "What the measured costs of steps on this device make of the tokens per step: end to end, of an average "
        "request of the slice. A prediction is no evidence; no verdict rests on it.",
    ),
    "pays-from": (
        "Pays from",
        "Tokens per step (mean acceptance length) from which on decoding is faster than without speculation at this "
        "load.",
    ),
    "frontier": (
        "Frontier",
        "The way of drafting whose predicted speedup is largest at each load, and those whose bounds reach the best "
        "one's. The bounds are those of the tokens per step alone.",
    ),
    "detector": (
        "Detector",
        "A statistic that is folded unit by unit after ENABLE. Drift (of speedup, acceptance, the slowed share, and z "
        "on either side): it fires where what was proven no longer holds, and then ENABLE is taken back. "
        "Prompt mix: an e-value that the slices' shares are no longer those at ENABLE.",
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
    if (displaced := displaced_text(test)) is not None:
        notes.append(displaced)
    if test.betting is not None and test.betting.num_missing:
        notes.append(f"{test.betting.num_missing} missing, folded at the worst value")
    if test.state is not None and test.state.merged_units != 1:
        notes.append(f"restarted at unit {test.state.start_unit} with {test.state.merged_units} units merged")
    if test.betting is not None and test.betting.is_undecidable:
        notes.append("too near the threshold to tell")
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
    return next((test for test in decision.tests if test.name == name), None) if decision is not None else None


def interval_text(interval: TestResult, format_value: Format) -> str:
    """Estimate with bounds, as in `1.31x [1.12x, 1.54x]`."""
    return f"{format_value(interval.estimate)} [{format_value(interval.lower)}, {format_value(interval.upper)}]"


def shown_as(test_name: str) -> Format:
    """How a test's estimate, bounds and threshold are written."""
    if test_name in ("speedup", "total_time", "ttft", "tpot", "p95", "p99"):
        return times
    if test_name in ("acceptance", "tail", "parity_near_ties", "parity_faults", "cost"):
        return percent
    if test_name == "memory":
        return memory_figure
    return format_signed if test_name in ("parity_sampled", "structured_validity", "score") else figure


def memory_figure(value: float | None) -> str:
    """A share of the baseline's peak, or a whole number of KV tokens, as the policy's budget is set."""
    return figure(value) if value is None or (value == int(value) and abs(value) > 1) else percent(value)


def title_of_test(name: str) -> str:
    """The test's title; an unknown name is shown as words."""
    return TEST_TITLE.get(name, name.replace("_", " "))


def acceptance_title(tests: Iterable[TestResult | None]) -> str:
    """What the acceptance of these tests is a share of, for a heading over all of them."""
    metrics = {test.figures.get("metric") for test in tests if test is not None}
    if "draft_acceptance_rate" not in metrics:
        return TEST_TITLE["acceptance"]
    return "Drafted tokens accepted" if len(metrics) == 1 else "Accepted"


def title_of(test: TestResult) -> str:
    """The title of a test of a decision."""
    return acceptance_title([test]) if test.name == "acceptance" else title_of_test(test.name)


def total_time_text(test: TestResult | None) -> str:
    """The ratio of total times (of the test of that name), which belongs beside a speedup."""
    return DASH if test is None else times(test.estimate)


def bounds_text(test: TestResult) -> str:
    """[lower, upper]; none where the test has none (memory is measured, not estimated)."""
    if (test.lower is None and test.upper is None) or test.lower == test.upper:
        return DASH
    format_value = shown_as(test.name)
    return f"[{format_value(test.lower)}, {format_value(test.upper)}]"


def threshold_text(test: TestResult) -> str:
    """The threshold; the teacher-forced z has one on either side of 0."""
    threshold = shown_as(test.name)(test.threshold)
    return threshold.replace("+", "\u00b1") if test.name == "parity_sampled" else threshold


_NOTES: dict[str, tuple[str, Format]] = {
    "metric": ("{}", figure),
    "clipped_share": ("{} of requests clipped", percent),
    "baseline_cached_share": ("prompt tokens cached: baseline {}", percent),
    "speculative_cached_share": ("speculative {}", percent),
    "num_slowed": ("{} requests slowed", figure),
    "tail_margin": ("slowed means by over {}", percent),
    "num_differing": ("{} outputs differ", figure),
    "num_faults": ("{} faults", figure),
    "num_near_ties": ("{} near-ties", figure),
    "num_unknown": ("{} unknown", figure),
    "near_tie_logit": ("near-tie up to a gap of {}", figure),
    "z_unclipped": ("mean z without the clip {}", format_signed),
    "baseline_z": ("baseline's own z {}", format_signed),
    "speculative_cost_per_million_tokens": ("{} per million output tokens", number),
    "baseline_cost_per_million_tokens": ("baseline's own {}", number),
    "r1": ("lag-1 autocorrelation {}", number),
}
