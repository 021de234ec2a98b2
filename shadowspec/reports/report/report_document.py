"""The report as one JSON document; every name carries its unit, an undefined figure is null."""

from __future__ import annotations

import json

from shadowspec.planning.frontier import Gain
from shadowspec.reports.figures.frontiers import SliceFrontier
from shadowspec.reports.figures.predictions import Prediction, predicted_device
from shadowspec.reports.figures.token_costs import DeviceTime
from shadowspec.reports.rendering import Json, audit_document, funnel_document, plain, replay_document, verdict_document
from shadowspec.reports.report.report_model import SCHEMA_VERSION, Report, ReportedHypothesis
from shadowspec.types import Arm, Override, parse_slice_key
from shadowspec.types.decision_documents import shown_details


def render_json(report: Report) -> str:
    """The whole report; `schema_version` changes when a name or a meaning does."""
    return json.dumps(report_document(report), ensure_ascii=False, allow_nan=False)


def report_document(report: Report) -> dict[str, Json]:
    """The report as plain JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "title": report.title,
        "data_note": report.data_note,
        "generated_at": plain(report.generated_at),
        "last_measured": plain(report.last_measured),
        "newest_evidence": plain(report.newest_evidence),
        "endpoints": [
            {
                "endpoint": endpoint.name,
                "first_event": plain(endpoint.first_event),
                "last_event": plain(endpoint.last_event),
                "first_measured": plain(endpoint.first_measured),
                "last_measured": plain(endpoint.last_measured),
                "policy": plain(endpoint.policy),
                "production_cache": plain(endpoint.production_cache),
                "loads": None if endpoint.loads is None else endpoint.loads.document(),
                "overrides": [_order(order) for order in endpoint.overrides],
                "hypotheses": [_hypothesis(h) for h in endpoint.hypotheses],
                "predictions": [
                    _prediction(prediction, endpoint.price_per_hour) for prediction in endpoint.predictions
                ],
                "frontier": [_frontier(frontier, endpoint.price_per_hour) for frontier in endpoint.frontiers],
                "replays": [replay_document(row) for row in endpoint.replays],
                "audits": [audit_document(row) for row in endpoint.audits],
            }
            for endpoint in report.endpoints
        ],
        "funnel": funnel_document(report.total_funnel),
        "funnel_by_endpoint": [{"endpoint": f.endpoint, **funnel_document(f)} for f in report.funnels],
        "speculation_configs": [plain(config) for config in report.configs],
    }


def _hypothesis(h: ReportedHypothesis) -> dict[str, Json]:
    measured = {
        name: plain(getattr(h, name))
        for name in (
            "num_requests",
            "num_failed",
            "num_blocks",
            "num_short_blocks",
            "acceptance",
            "latency",
            "parity",
            "memory",
            "kv_cache",
            "num_repetition_loops",
            "repetition_loop_share",
            "by_context",
            "by_turn",
            "failures",
            "sequences",
        )
    }
    return {
        "slice": dict[str, Json](parse_slice_key(h.slice_key)),
        "load": {"concurrency": h.concurrency},
        "config": h.config_name,
        "fingerprint": h.fingerprint,
        "engine": h.engine,
        "verdict_engine": None if h.decision is None else h.decision.verdict_engine,
        "verdict": None if h.verdict is None else h.verdict.value,
        "measured_verdict": _measured_verdict(h),
        "override": None if h.override is None else _order(h.override),
        "decision": None
        if h.decision is None
        else {**verdict_document(h.decision), "details": plain(shown_details(h.decision))},
        **measured,
    }


def _prediction(prediction: Prediction, price_per_hour: float | None) -> dict[str, Json]:
    cell = prediction.cell
    return {
        "slice": dict[str, Json](parse_slice_key(cell.slice_key)),
        "load": {"concurrency": cell.concurrency},
        "config": prediction.config.name,
        "num_speculative_tokens": prediction.config.num_speculative_tokens,
        "fingerprint": cell.fingerprint,
        "engine": prediction.engine,
        "device": prediction.device,
        "mean_acceptance_length": plain(cell.mean_acceptance_length),
        "tokens_per_step": plain(cell.tokens_per_step),
        "break_even_length": plain(prediction.break_even_length),
        "predicted_speedup": plain(prediction.speedup),
        "measured_speedup": plain(prediction.measured_speedup),
        "relative_error": plain(prediction.error),
        "predicted_target_passes_saved": plain(prediction.target_passes_saved),
        "measured_target_passes_saved": plain(
            None if prediction.timed is None else prediction.timed.target_passes_saved
        ),
        "price_per_hour": price_per_hour,
        "predicted_cost": _cost(prediction.predicted_device, price_per_hour),
        "measured_cost": _cost(prediction.measured_device, price_per_hour),
        "cost_relative_error": plain(prediction.cost_error),
        "why_not": prediction.reason,
    }


def _cost(device: DeviceTime, price_per_hour: float | None) -> Json:
    """Of an output token in either arm; without a price only device time."""
    if device.ms_per_token(Arm.BASELINE) is None:
        return None
    return {
        arm.value: {
            "device_ms_per_token": plain(device.ms_per_token(arm)),
            "cost_per_million_tokens": None
            if price_per_hour is None
            else plain(device.cost_per_million(arm, price_per_hour)),
        }
        for arm in Arm
    }


def _frontier(frontier: SliceFrontier, price_per_hour: float | None) -> dict[str, Json]:
    def gain(found: Gain) -> dict[str, Json]:
        return {
            "config": found.drafting.name,
            "num_speculative_tokens": found.drafting.num_speculative_tokens,
            "mean_acceptance_length": plain(found.drafting.length.estimate),
            "predicted_speedup": plain(found.speedup),
            "lower": plain(found.lower),
            "upper": plain(found.upper),
            "break_even_length": plain(found.break_even_length),
            "target_passes_saved": plain(found.target_passes_saved),
            "cost": _cost(predicted_device(found, frontier.work), price_per_hour),
        }

    return {
        "slice": dict[str, Json](parse_slice_key(frontier.slice_key)),
        "engine": frontier.engine,
        "device": frontier.device,
        "mean_prompt_tokens": plain(frontier.work.num_prompt_tokens),
        "mean_output_tokens": plain(frontier.work.num_output_tokens),
        "loads": [
            {
                "concurrency": choice.concurrency,
                "best": None if choice.best is None else gain(choice.best),
                "contenders": [gain(each) for each in choice.contenders],
                "gains": [gain(each) for each in choice.gains],
                "is_clear": choice.is_clear,
            }
            for choice in frontier.choices
        ],
        "break_even_loads": [plain(each) for each in frontier.crossings],
    }


def _measured_verdict(h: ReportedHypothesis) -> Json:
    """The gate's verdict, before overrides."""
    if h.decision is None:
        return None
    measured = h.decision.override.verdict if h.decision.override else h.decision.verdict
    return plain(measured)


def _order(order: Override) -> Json:
    return {
        "override_id": order.override_id,
        "slice": dict[str, Json](order.slice_labels),
        "load": None if order.concurrency is None else {"concurrency": order.concurrency},
        "verdict": order.verdict.value,
        "reason": order.reason,
        "author": order.author,
        "created_at": plain(order.created_at),
        "expires_at": plain(order.expires_at),
    }
