"""Numbers and names as people read them.  An undefined figure is an em dash; the reason stands beside it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from shadowspec.types import FunnelCounter, TestResult, Verdict, parse_slice_key

DASH = "\u2014"
MINUS = "\u2212"

VERDICT_MEANING = {
    Verdict.ENABLE: "every required test has been passed at this level, at every look",
    Verdict.DISABLE: "harm is proven: a bound has crossed, outputs differ, or memory is over its budget",
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
    "acceptance": "Acceptance",
    "tail": "Slowed requests",
    "parity_near_ties": "Parity, greedy near-ties",
    "parity_faults": "Parity, greedy faults",
    "parity_sampled": "Parity, sampled",
    "memory": "Memory",
}

MEASURE_TITLE = {"end_to_end_ms": "End to end", "ttft_ms": "TTFT", "tpot_ms": "TPOT", "queue_ms": "Queue"}

# (short name, sentence): each is one hover or one footnote away from every use of the word in a report
DEFINITIONS = {
    "verdict": (
        "Verdict",
        "ENABLE when every required test passes at one look; DISABLE when harm is proven; else HOLD with its "
        "reason. Verdicts come from this measurement alone.",
    ),
    "speedup": (
        "Speedup",
        "Baseline over speculative end-to-end time of the same request (prefill and decode, no queue time), as the "
        "geometric mean over requests with each request's log clipped as the policy says. Above 1 is faster.",
    ),
    "total-times": (
        "Ratio of total times",
        "Total baseline over total speculative end-to-end time, pooled over requests: what the fleet pays.",
    ),
    "request-speedup": ("Speedup per request", "Each request's own baseline over speculative end-to-end time."),
    "acceptance": (
        "Acceptance",
        "First-position acceptance rate: share of propose-and-verify steps that accepted the first drafted token, the "
        "same for every K (or the draft acceptance rate, where the policy's acceptance_metric says so). The gate's "
        "estimate caps the weight of a session and so may differ from the pooled rate.",
    ),
    "first-position": (
        "First-position acceptance rate",
        "Share of propose-and-verify steps that accepted the first drafted token; the same for every K.",
    ),
    "bounds": (
        "Bounds",
        "Anytime-valid: they hold at every look at once, however often the gate looked. Square brackets hold "
        "[lower, upper]; an end that the evidence does not bound yet is an em dash.",
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
        "1 + accepted / drafts: tokens per propose-and-verify step, the bonus or recovered token included.",
    ),
    "draft-rate": ("Draft acceptance rate", "Accepted over drafted tokens; falls with K by itself."),
    "marginal": ("Marginal rate", "Steps that accepted position i, over all steps. 1 + their sum is the mean length."),
    "conditional": ("Conditional rate", "Steps that accepted position i, over those that accepted position i - 1."),
    "histogram": ("Accepted per step", "Share of propose-and-verify steps that accepted exactly j drafted tokens."),
    "passes-saved": (
        "Target passes saved",
        "Output tokens less target forward passes: passes that plain decoding would have needed beyond those made.",
    ),
    "end-to-end": ("End to end", "Prefill plus decode of the arm, milliseconds; queue time is not in it."),
    "ttft": ("TTFT", "Time to first token: prefill of the arm, milliseconds, without queue time."),
    "tpot": ("TPOT", "Time per output token: decode time over the output tokens after the first, milliseconds."),
    "queue": ("Queue", "The shadow's own waiting time, milliseconds; shown apart and never judged."),
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
        "Extra peak memory of the speculative arm, as tokens of the target's KV cache that would have fitted in it.",
    ),
    "loops": (
        "Repetition loops",
        "Requests whose output ends in a repeating pattern. Loops are easy to draft and inflate acceptance.",
    ),
    "funnel": ("Funnel", "Every record read ends in exactly one counter, so the counters add up to the records read."),
    "sequence": (
        "Confidence sequence",
        "The estimate and its bounds after each unit, in folding order. The bounds hold over the whole path at once.",
    ),
    "age": ("Evidence age", "Time since the newest block was measured."),
}


def test_notes(test: TestResult) -> list[str]:
    """What stands beside a test, in words: the details that a reader needs to weigh it."""
    details = test.details
    notes = [] if details.get("is_required", 1) else ["shown beside the required tests"]
    for name, (text, shown) in _NOTES.items():
        value = details.get(name)
        if value is not None:
            notes.append(text.format(value.replace("_", " ") if isinstance(value, str) else shown(value)))
    if details.get("num_missing"):
        notes.append(f"{details['num_missing']} missing, folded at the worst value")
    if (merged := details.get("merged_units")) and merged != 1:
        notes.append(f"restarted at unit {details.get('start_unit')} with {merged} units merged")
    if details.get("is_undecidable"):
        notes.append("too near the threshold to tell")
    return notes


def shown_as(test_name: str) -> Callable[[float | None], str]:
    """How a test's estimate, bounds and threshold are written."""
    if test_name in ("speedup", "total_time"):
        return times
    if test_name in ("acceptance", "tail", "parity_near_ties", "parity_faults"):
        return percent
    if test_name == "memory":
        return memory_figure
    return signed if test_name == "parity_sampled" else figure


def memory_figure(value: float | None) -> str:
    """A share of the baseline's peak, or a whole number of KV tokens, as the policy's budget is set."""
    return figure(value) if value is None or (value == int(value) and abs(value) > 1) else percent(value)


def title_of_test(name: str) -> str:
    """The test's title; an unknown name is shown as words."""
    return TEST_TITLE.get(name, name.replace("_", " "))


def slice_title(slice_key: str) -> str:
    """The values of a slice's labels, for people; the whole endpoint has none."""
    return " \u00b7 ".join(parse_slice_key(slice_key).values()) if slice_key else "whole endpoint"


def bounds_text(test: TestResult) -> str:
    """[lower, upper]; none where the test has none (memory is measured, not estimated)."""
    if (test.lower is None and test.upper is None) or test.lower == test.upper:
        return DASH
    shown = shown_as(test.name)
    return f"[{shown(test.lower)}, {shown(test.upper)}]"


def threshold_text(test: TestResult) -> str:
    """The threshold; the teacher-forced z has one on either side of 0."""
    shown = shown_as(test.name)(test.threshold)
    return shown.replace("+", "\u00b1") if test.name == "parity_sampled" else shown


def plural(number: int, noun: str) -> str:
    """`1 block`, `1,200 blocks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number(value: float | None, digits: int = 2) -> str:
    """A fixed-point number with a true minus sign."""
    return DASH if value is None else f"{value:,.{digits}f}".replace("-", MINUS)


def figure(value: float | None) -> str:
    """A number of unknown kind: whole if it is whole, else four significant digits."""
    if value is None:
        return DASH
    return (f"{value:,.0f}" if value == int(value) else f"{value:,.4g}").replace("-", MINUS)


def percent(value: float | None, digits: int = 1) -> str:
    """A share of 1 as per cent."""
    return DASH if value is None else f"{100 * value:.{digits}f}%".replace("-", MINUS)


def times(value: float | None) -> str:
    """A speedup such as 1.32x."""
    return DASH if value is None else f"{value:.2f}\u00d7"


def signed(value: float | None, digits: int = 4) -> str:
    """A number whose sign matters."""
    return DASH if value is None else f"{value:+.{digits}f}".replace("-", MINUS)


def milliseconds(value: float | None) -> str:
    """Three significant digits, from microseconds to seconds."""
    if value is None:
        return DASH
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    if value >= 1000:
        return f"{value / 1000:.2f} s"
    if value >= 100:
        return f"{value:.0f} ms"
    return f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def byte_size(value: int) -> str:
    """Binary units."""
    size = float(value)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return (f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}").replace("-", MINUS)
        size /= 1024
    return f"{size:.2f} GiB".replace("-", MINUS)


def moment(value: datetime | None) -> str:
    """UTC to the minute."""
    return DASH if value is None else f"{value:%Y-%m-%d %H:%M} UTC"


def age(span: timedelta | None) -> str:
    """The largest fitting unit, rounded down."""
    if span is None:
        return DASH
    seconds = max(0, int(span.total_seconds()))
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size:
            return plural(seconds // size, unit)
    return "under a minute"


_NOTES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "metric": ("{}", figure),
    "clipped_share": ("{} of requests clipped", percent),
    "num_slowed": ("{} requests slowed", figure),
    "tail_margin": ("slowed means by over {}", percent),
    "num_differing": ("{} outputs differ", figure),
    "num_faults": ("{} faults", figure),
    "num_near_ties": ("{} near-ties", figure),
    "num_unknown": ("{} unknown", figure),
    "near_tie_logit": ("near-tie up to a gap of {}", figure),
    "baseline_z": ("baseline's own z {}", signed),
    "displaced_kv_tokens": ("{} KV tokens displaced", figure),
    "r1": ("lag-1 autocorrelation {}", number),
}
