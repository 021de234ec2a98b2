"""ModelOpt: `speculation_profile.json`, schema 1.0: how good a draft is, for planners and synthetic sampling.

Read in Model-Optimizer's source (fields, version and licence: tests/data/peers/modelopt.json), and relied upon here:
- entry i of both rate vectors is about drafted token i + 1; the histogram is keyed by the tokens emitted in a step,
  which is one more than were accepted;
- the mean is per step, equals 1 + the sum of the marginal rates, and the marginal rates never rise;
- a checkpoint is named by the last two parts of its path;
- `measured: false`, with rates of 0 and no mean, means "nothing to rely on": where nothing was counted, where outputs
  were not the target's, and under an operator's override.  The profile enables nothing, so that measured rates are
  exported for any verdict, which is in `measurement_conditions`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from shadowspec.errors import NoDataError
from shadowspec.metrics import (
    conditional_acceptance_rates,
    marginal_acceptance_rates,
    mean_acceptance_length,
    pool_counts,
)
from shadowspec.rollout.export.load_schedule import Schedule
from shadowspec.rollout.served_decision import Off, ServedDecision
from shadowspec.servers.engines.export_parts import Export
from shadowspec.servers.engines.rules import used_rules
from shadowspec.types import FingerprintedConfig, ReasonCode, SpeculationConfig, SpeculationCounts, Verdict

SCHEMA_VERSION = "1.0"
TOLERANCE = 0.02  # ModelOpt's, of the mean's consistency with the rates
DIGITS = 6
PARITY_CODES = (
    ReasonCode.PARITY_FAULT,
    ReasonCode.PARITY_BIASED,
)  # outputs were not the target's, and so neither are the counts
BLOCKED = "blocked"  # a decision that is on by itself, and off for the sake of a slice
# They always draft all they may: a shallower draft is a prefix of a deeper one.
CHAIN_METHODS = ("draft_model", "heterogeneous_draft_model", "medusa", "mlp_speculator", "eagle", "eagle3")


def render(
    schedule: Schedule,
    counts: Mapping[str, Mapping[str, SpeculationCounts]],
    configs: Mapping[str, FingerprintedConfig],
) -> Export:
    """The profile of the draft that the schedule names.

    `counts` are pooled per slice by fingerprint, and per fingerprint by its name in `configs`.

    Raises:
        NoDataError: nothing was decided, or the counts behind the decision contradict each other.
    """
    served = _choose(schedule)
    by_slice = counts.get(served.decision.fingerprint, {})
    total = pool_counts(by_slice.values()) if _is_reliable(schedule, served) else None
    profile = _profile(schedule, served, total, by_slice, configs[served.decision.fingerprint])
    missing = _missing(schedule, served)
    remarks = () if missing is None else (f"the profile enables nothing: {schedule.endpoint} is off: {missing}",)
    return Export(json.dumps(profile, indent=2) + "\n", remarks=remarks)


def checkpoint_id(path: str | None) -> str | None:
    """The last two parts of a path, which leave out where it lies on somebody's machine."""
    parts = [part for part in (path or "").replace("\\", "/").split("/") if part]
    return "/".join(parts[-2:]) or None


def _is_chain(config: SpeculationConfig) -> bool:
    is_known = not config.is_adaptive and not config.is_served_method
    return is_known and config.proposer in CHAIN_METHODS


def _choose(schedule: Schedule) -> ServedDecision:
    """The decision of the profile: the deepest of those that are on, else the first."""
    if not schedule.served_decisions:
        raise NoDataError(f"nothing has been decided on endpoint {schedule.endpoint}: run `shadowspec gate` first")
    ids = set(schedule.decision_ids)
    behind = [served for served in schedule.served_decisions if served.decision.decision_id in ids] or list(
        schedule.served_decisions
    )
    return max(behind, key=lambda served: (served.num_speculative_tokens, served.speedup_lower))


def _is_reliable(schedule: Schedule, served: ServedDecision) -> bool:
    """Whether the measured acceptance is reliable, regardless of speed and memory."""
    is_ordered_off = bool(schedule.orders) or served.off is Off.OVERRIDDEN
    return schedule.is_on or not (is_ordered_off or served.decision.reason_code in PARITY_CODES)


def _missing(schedule: Schedule, served: ServedDecision) -> str | None:
    """Why speculation is off; None where it is on."""
    if schedule.is_on:
        return None
    return served.reason or "a slice or an override keeps it off for the whole server"


def _profile(
    schedule: Schedule,
    served: ServedDecision,
    counts: SpeculationCounts | None,
    by_slice: Mapping[str, SpeculationCounts],
    measured: FingerprintedConfig,
) -> dict[str, object]:
    config = served.decision.config
    depth = config.num_speculative_tokens
    mean = None if counts is None else mean_acceptance_length(counts)
    marginal = _rates(marginal_acceptance_rates(counts) if counts else (None,) * depth)
    conditional = _rates(conditional_acceptance_rates(counts) if counts else (None,) * depth)
    return {
        "schema_version": SCHEMA_VERSION,
        "measured": mean is not None,
        "method": config.proposer,
        "draft_checkpoint": _checkpoint(config.draft, "draft", measured),
        "target_model": _checkpoint(config.target, "target", measured),
        "num_speculative_tokens": depth,
        "block_size": None,
        "max_supported_k": depth,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": conditional,
        "marginal_accept_rates": marginal,
        "mean_accept_length": None if mean is None else round(mean, DIGITS),
        "mean_accept_length_per_request": None,  # counts are kept pooled
        "accept_length_model": "chain_analytic" if _is_chain(config) else "measured_per_k",
        "accept_length_by_k": {} if mean is None else {str(depth): round(mean, DIGITS)},
        "acceptance_length_histogram": None if counts is None else _histogram(counts),
        "per_category": _categories(by_slice) if mean is not None else None,
        "measurement_conditions": _conditions(schedule, served, counts, measured),
        "validation": None if counts is None or mean is None else _validation(mean, marginal, counts),
    }


def _rates(rates: Sequence[float | None]) -> list[float]:
    """Undefined is 0 here: ModelOpt's convention for a position that was never reached."""
    return [round(rate or 0.0, DIGITS) for rate in rates]


def _histogram(counts: SpeculationCounts) -> dict[str, int]:
    """Steps by the tokens that they emitted; lengths that never occurred are left out."""
    return {str(accepted + 1): steps for accepted, steps in enumerate(counts.acceptance_histogram) if steps}


def _categories(by_slice: Mapping[str, SpeculationCounts]) -> dict[str, object]:
    means = {slice_key: mean_acceptance_length(counts) for slice_key, counts in sorted(by_slice.items())}
    return {
        slice_key: {"mean_accept_length": round(mean, DIGITS)} for slice_key, mean in means.items() if mean is not None
    }


def _validation(mean: float, marginal: Sequence[float], counts: SpeculationCounts) -> dict[str, object]:
    """ModelOpt's two checks.

    Raises:
        NoDataError: one fails, which happens only if the stored counts contradict each other.
    """
    steps = sum(counts.acceptance_histogram)
    reported = 1.0 + sum(j * n for j, n in enumerate(counts.acceptance_histogram)) / steps if steps else mean
    implied = 1.0 + sum(marginal)
    delta = abs(implied - reported)
    violations = [position for position in range(1, len(marginal)) if marginal[position] > marginal[position - 1]]
    if delta > TOLERANCE or violations:
        raise NoDataError(
            f"the stored counts contradict each other: a mean length of {reported:.4f} from the histogram, "
            f"{implied:.4f} from the positions"
        )
    return {
        "mean_consistency": {
            "implied_mean_accept_length": round(implied, DIGITS),
            "reported_mean_accept_length": round(reported, DIGITS),
            "abs_delta": round(delta, DIGITS),
            "tolerance": TOLERANCE,
            "passed": True,
        },
        "marginal_monotonicity": {"passed": True, "violations": []},
    }


def _checkpoint(path: str | None, role: str, measured: FingerprintedConfig) -> dict[str, str] | None:
    name = checkpoint_id(path)
    if name is None:
        return None
    return {"id": name, **measured.digests(role)}


def _conditions(
    schedule: Schedule, served: ServedDecision, counts: SpeculationCounts | None, measured: FingerprintedConfig
) -> dict[str, object]:
    decision = served.decision
    return {
        "dataset": f"mirrored traffic of endpoint {schedule.endpoint}",
        "concurrency": sorted({served.decision.concurrency for served in schedule.served_decisions}),
        "engine": measured.engine,
        "device": measured.device,
        "dtype": measured.dtype,
        "verify_rule": decision.config.verify_rule.value,
        **used_rules(decision.config),
        "num_steps": None if counts is None else counts.num_drafts,
        "is_cut_at_the_last_token": True,  # drafted tokens after the last emitted one count in no figure
        "verdict": Verdict.ENABLE.value if schedule.is_on else (served.off or BLOCKED).upper(),
        "missing": _missing(schedule, served),
        "fingerprint": decision.fingerprint,
        "decisions": sorted(
            number
            for served in schedule.served_decisions
            if (number := served.decision.decision_id) is not None
            and (not schedule.is_on or number in schedule.decision_ids)
            and served.decision.fingerprint == decision.fingerprint
        ),
    }
