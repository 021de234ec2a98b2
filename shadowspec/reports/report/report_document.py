"""The report as one JSON document; every name carries its unit, an undefined figure is null."""

from __future__ import annotations

from typing import Any

from shadowspec.planning.frontier import Gain
from shadowspec.reports.figures.frontiers import SliceFrontier
from shadowspec.reports.figures.predictions import Prediction, predicted_device
from shadowspec.reports.figures.token_costs import DeviceTime
from shadowspec.reports.render.json_trees import (
    audit_document,
    fields_of,
    funnel_document,
    load,
    placed,
    plain,
    verdict_document,
)
from shadowspec.reports.report.report_model import SCHEMA_VERSION, EndpointReport, Report, ReportedHypothesis
from shadowspec.types import Arm, Override, parse_slice_key
from shadowspec.types.codec import encode
from shadowspec.types.decision_documents import shown_details

DECIDED = ("decision", "override", "speedup", "acceptance_interval", "endpoint")  # of a hypothesis, shown otherwise


def render_json(report: Report) -> str:
    """The whole report; `schema_version` changes when a name or a meaning does."""
    return encode(report_document(report)).decode()


def report_document(report: Report) -> dict[str, Any]:
    """The report as plain JSON values."""
    tree: dict[str, Any] = plain(
        {
            "schema_version": SCHEMA_VERSION,
            **fields_of(report, "title", "data_note", "generated_at", "last_measured", "newest_evidence"),
            "endpoints": [_endpoint(endpoint) for endpoint in report.endpoints],
            "funnel": funnel_document(report.total_funnel),
            "funnel_by_endpoint": [
                {"endpoint": funnel.endpoint, **funnel_document(funnel)} for funnel in report.funnels
            ],
            "speculation_configs": report.configs,
        }
    )
    return tree


def _endpoint(endpoint: EndpointReport) -> dict[str, Any]:
    return {
        "endpoint": endpoint.name,
        **fields_of(endpoint, "first_event", "last_event", "first_measured", "last_measured", "policy"),
        "production_cache": endpoint.production_cache,
        "loads": None if endpoint.loads is None else endpoint.loads.document(),
        "overrides": [_order(order) for order in endpoint.overrides],
        "hypotheses": [_hypothesis(hypothesis) for hypothesis in endpoint.hypotheses],
        "predictions": [_prediction(prediction, endpoint.price_per_hour) for prediction in endpoint.predictions],
        "frontier": [_frontier(frontier, endpoint.price_per_hour) for frontier in endpoint.frontiers],
        "replays": [
            {"source": "replay", "config": row.config_name, **placed(row, "config_name")} for row in endpoint.replays
        ],
        "audits": [audit_document(row) for row in endpoint.audits],
    }


def _hypothesis(hypothesis: ReportedHypothesis) -> dict[str, Any]:
    decision, order = hypothesis.decision, hypothesis.override
    return {
        **placed(hypothesis, "config_name", *DECIDED),
        "config": hypothesis.config_name,
        "verdict_engine": None if decision is None else decision.verdict_engine,
        "verdict": hypothesis.verdict,
        "measured_verdict": None if decision is None else (decision.override or decision).verdict,
        "override": None if order is None else _order(order),
        "decision": None if decision is None else {**verdict_document(decision), "details": shown_details(decision)},
    }


def _prediction(prediction: Prediction, price_per_hour: float | None) -> dict[str, Any]:
    cell, timed = prediction.cell, prediction.timed
    return {
        "slice": parse_slice_key(cell.slice_key),
        "load": load(cell.concurrency),
        "config": prediction.config.name,
        "num_speculative_tokens": prediction.config.num_speculative_tokens,
        **fields_of(cell, "fingerprint", "mean_acceptance_length", "tokens_per_step"),
        **fields_of(prediction, "engine", "device", "break_even_length", "measured_speedup"),
        "predicted_speedup": prediction.speedup,
        "relative_error": prediction.error,
        "predicted_target_passes_saved": prediction.target_passes_saved,
        "measured_target_passes_saved": None if timed is None else timed.target_passes_saved,
        "price_per_hour": price_per_hour,
        "predicted_cost": _cost(prediction.predicted_device, price_per_hour),
        "measured_cost": _cost(prediction.measured_device, price_per_hour),
        "cost_relative_error": prediction.cost_error,
        "why_not": prediction.reason,
    }


def _cost(device: DeviceTime, price_per_hour: float | None) -> dict[str, Any] | None:
    """Of an output token in either arm; without a price only device time."""
    if device.ms_per_token(Arm.BASELINE) is None:
        return None
    return {
        arm: {
            "device_ms_per_token": device.ms_per_token(arm),
            "cost_per_million_tokens": None if price_per_hour is None else device.cost_per_million(arm, price_per_hour),
        }
        for arm in Arm
    }


def _frontier(frontier: SliceFrontier, price_per_hour: float | None) -> dict[str, Any]:
    def shown(gain: Gain) -> dict[str, Any]:
        return {
            "config": gain.drafting.name,
            "num_speculative_tokens": gain.drafting.num_speculative_tokens,
            "mean_acceptance_length": gain.drafting.length.estimate,
            "predicted_speedup": gain.speedup,
            **fields_of(gain, "lower", "upper", "break_even_length", "target_passes_saved"),
            "cost": _cost(predicted_device(gain, frontier.work), price_per_hour),
        }

    return {
        "slice": parse_slice_key(frontier.slice_key),
        "engine": frontier.engine,
        "device": frontier.device,
        "mean_prompt_tokens": frontier.work.num_prompt_tokens,
        "mean_output_tokens": frontier.work.num_output_tokens,
        "loads": [
            {
                **fields_of(choice, "concurrency", "is_clear"),
                "best": None if choice.best is None else shown(choice.best),
                "contenders": [shown(gain) for gain in choice.contenders],
                "gains": [shown(gain) for gain in choice.gains],
            }
            for choice in frontier.choices
        ],
        "break_even_loads": frontier.crossings,
    }


def _order(order: Override) -> dict[str, Any]:
    return placed(order, "endpoint")
