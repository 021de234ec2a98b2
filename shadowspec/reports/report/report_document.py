"""The report as one JSON document; every name carries its unit, an undefined figure is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal, Self

from shadowspec.planning.demand import LoadsPart
from shadowspec.planning.frontier import Crossing, Gain
from shadowspec.reports.figures.frontiers import SliceFrontier
from shadowspec.reports.figures.predictions import Prediction, predicted_device
from shadowspec.reports.figures.replay_rows import ReplayRow
from shadowspec.reports.figures.token_costs import DeviceTime
from shadowspec.reports.render.json_parts import AuditPart, FunnelPart, ReportedDecision
from shadowspec.reports.report.report_model import EndpointReport, Report, ReportedHypothesis
from shadowspec.types import Arm, FingerprintedConfig, Override, Verdict
from shadowspec.types.codec import encode
from shadowspec.types.public_documents import AtLoad, Labels, PublicDocument, PublicValue, public, shows


@shows(Override, "endpoint")
class ReportedOverride(PublicValue, frozen=True, kw_only=True):
    """An override in force at the endpoint; a load that is null is every load."""


@shows(ReportedHypothesis, "endpoint", "speedup", "acceptance_interval")
class HypothesisPart(PublicValue, frozen=True, kw_only=True):
    """A hypothesis and what was measured for it.  `verdict` is in force, `measured_verdict` the gate's."""

    config: Annotated[str, "config_name"]
    verdict_engine: Annotated[str | None, "decision.verdict_engine"]
    verdict: Verdict | None
    measured_verdict: Verdict | None
    override: ReportedOverride | None
    decision: ReportedDecision | None

    @classmethod
    def of(cls, value: ReportedHypothesis) -> Self:
        decision = value.decision and (value.decision.override or value.decision)
        return public(cls, value, measured_verdict=decision and decision.verdict)


class ArmCost(PublicValue, frozen=True, kw_only=True):
    """An output token in one arm; without a price only device time."""

    device_ms_per_token: float | None
    cost_per_million_tokens: float | None


class PredictionPart(PublicValue, frozen=True, kw_only=True):
    """A prediction beside what was measured."""

    slice: Annotated[Labels, "cell.slice_key"]
    load: Annotated[AtLoad, "cell.concurrency"]
    config: Annotated[str, "config.name"]
    num_speculative_tokens: Annotated[int, "config.num_speculative_tokens"]
    fingerprint: Annotated[str, "cell.fingerprint"]
    mean_acceptance_length: Annotated[float | None, "cell.mean_acceptance_length"]
    tokens_per_step: Annotated[float | None, "cell.tokens_per_step"]
    engine: str
    device: str
    break_even_length: float | None
    measured_speedup: float | None
    predicted_speedup: Annotated[float | None, "speedup"]
    relative_error: Annotated[float | None, "error"]
    predicted_target_passes_saved: Annotated[float | None, "target_passes_saved"]
    measured_target_passes_saved: Annotated[float | None, "timed.target_passes_saved"]
    price_per_hour: float | None
    predicted_cost: Mapping[Arm, ArmCost] | None
    measured_cost: Mapping[Arm, ArmCost] | None
    cost_relative_error: Annotated[float | None, "cost_error"]
    why_not: Annotated[str | None, "reason"]


@shows(Gain, "concurrency", "baseline_ms", "speculative_ms")
class GainPart(PublicValue, frozen=True, kw_only=True):
    """What a way of drafting is predicted to gain at a load."""

    config: Annotated[str, "drafting.name"]
    num_speculative_tokens: Annotated[int, "drafting.num_speculative_tokens"]
    mean_acceptance_length: Annotated[float, "drafting.length.estimate"]
    predicted_speedup: Annotated[float, "speedup"]
    cost: Mapping[Arm, ArmCost] | None


class ChoicePart(PublicValue, frozen=True, kw_only=True):
    """The best way of drafting at a load, and those that may be as good."""

    concurrency: float
    is_clear: bool
    best: GainPart | None
    contenders: Sequence[GainPart]
    gains: Sequence[GainPart]


class FrontierPart(PublicValue, frozen=True, kw_only=True):
    """The predicted best way of drafting for a slice over its loads."""

    slice: Labels
    engine: str
    device: str
    mean_prompt_tokens: Annotated[float, "work.num_prompt_tokens"]
    mean_output_tokens: Annotated[float, "work.num_output_tokens"]
    loads: Sequence[ChoicePart]
    break_even_loads: Annotated[Sequence[Crossing], "crossings"]


@shows(ReplayRow)
class ReplayPart(PublicValue, frozen=True, kw_only=True):
    """Replay's acceptance, with the loop's beside it."""

    source: Literal["replay"] = "replay"
    config: Annotated[str, "config_name"]


@shows(EndpointReport, "price_per_hour")
class EndpointPart(PublicValue, frozen=True, kw_only=True):
    """One endpoint."""

    endpoint: Annotated[str, "name"]
    loads: LoadsPart | None
    overrides: Sequence[ReportedOverride]
    hypotheses: Sequence[HypothesisPart]
    predictions: Sequence[PredictionPart]
    frontier: Annotated[Sequence[FrontierPart], "frontiers"]
    replays: Sequence[ReplayPart]
    audits: Sequence[AuditPart]

    @classmethod
    def of(cls, value: EndpointReport) -> Self:
        price = value.price_per_hour
        return public(
            cls,
            value,
            predictions=[_prediction(prediction, price) for prediction in value.predictions],
            frontier=[_frontier(frontier, price) for frontier in value.frontiers],
        )


class EndpointFunnel(FunnelPart, frozen=True, kw_only=True):
    """Where the records of an endpoint ended; null: those that match none."""

    endpoint: str | None


class PromptPart(PublicValue, frozen=True, kw_only=True):
    """Measured prompts that production's server counted, and those of which it counts another length."""

    endpoint: str
    config: Annotated[str, "config_name"]
    num_compared_prompts: Annotated[int, "num_compared"]
    num_other_prompts: Annotated[int, "num_other"]
    share: float | None


class CachePart(PublicValue, frozen=True, kw_only=True):
    """The share of measured prompt tokens that production and each server found in prefix caches, where all say so."""

    endpoint: str
    config: Annotated[str, "config_name"]
    num_requests: int
    num_prompt_tokens: int
    production_share: float | None
    baseline_share: float | None
    speculative_share: float | None


class ReportDocument(PublicDocument, frozen=True, kw_only=True):
    """The whole report: of the values inside ShadowSpec what readers need, without what draws its pages."""

    title: str
    data_note: str
    generated_at: datetime
    last_measured: datetime | None
    newest_evidence: datetime | None
    endpoints: Sequence[EndpointPart]
    funnel: Annotated[FunnelPart, "total_funnel"]
    funnel_by_endpoint: Annotated[Sequence[EndpointFunnel], "funnels"]
    prompts: Sequence[PromptPart]
    caches: Sequence[CachePart]
    speculation_configs: Annotated[Sequence[FingerprintedConfig], "configs"]


def render_json(report: Report) -> str:
    """The whole report."""
    return encode(public(ReportDocument, report)).decode()


def _prediction(prediction: Prediction, price_per_hour: float | None) -> PredictionPart:
    return public(
        PredictionPart,
        prediction,
        price_per_hour=price_per_hour,
        predicted_cost=_cost(prediction.predicted_device, price_per_hour),
        measured_cost=_cost(prediction.measured_device, price_per_hour),
    )


def _frontier(frontier: SliceFrontier, price_per_hour: float | None) -> FrontierPart:
    def shown(gain: Gain) -> GainPart:
        return public(GainPart, gain, cost=_cost(predicted_device(gain, frontier.work), price_per_hour))

    loads = [
        public(
            ChoicePart,
            choice,
            best=None if choice.best is None else shown(choice.best),
            contenders=list(map(shown, choice.contenders)),
            gains=list(map(shown, choice.gains)),
        )
        for choice in frontier.choices
    ]
    return public(FrontierPart, frontier, loads=loads)


def _cost(device: DeviceTime, price_per_hour: float | None) -> dict[Arm, ArmCost] | None:
    """Of an output token in either arm."""
    if device.ms_per_token(Arm.BASELINE) is None:
        return None
    return {
        arm: ArmCost(
            device_ms_per_token=device.ms_per_token(arm),
            cost_per_million_tokens=None if price_per_hour is None else device.cost_per_million(arm, price_per_hour),
        )
        for arm in Arm
    }
