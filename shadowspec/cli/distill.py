"""`shadowspec distill`: a draft made for the traffic of its endpoints."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.before_loading import require_inputs
from shadowspec.app.console import notes, print_json, results
from shadowspec.cli.options import ConfigOption, FilesArgument, JsonOption, MaxRequestsOption, OneEndpointOption
from shadowspec.cli.run import funnel_document, print_funnel
from shadowspec.config import find_config, load_config
from shadowspec.distill.training_settings import TOLERANCE, Settings, Shares
from shadowspec.errors import UsageError
from shadowspec.text import parse_labels, plural, slice_title
from shadowspec.types import parse_slice_key

if TYPE_CHECKING:
    from shadowspec.app.distill_draft import Distilled
    from shadowspec.distill.comparison import Gain

_DEFAULTS, _DEFAULT_SHARES = Settings(), Shares()


def distill(
    files: FilesArgument,
    endpoint: OneEndpointOption,
    consent: Annotated[
        str,
        typer.Option("--consent", metavar="TEXT", help="Why you may train on this traffic; the model card quotes it."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="New folder for the draft.")],
    candidate: Annotated[
        str | None,
        typer.Option("--candidate", metavar="NAME", help="The candidate to train, if several have a draft model."),
    ] = None,
    from_layers: Annotated[
        int | None,
        typer.Option(
            "--from-layers",
            min=1,
            metavar="N",
            help="Start from the target's first N layers, embeddings and head instead of a candidate's draft.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="LABEL=VALUE", help="Only records with this label; repeat it for several."),
    ] = None,
    epochs: Annotated[
        int, typer.Option("--epochs", min=1, help="Largest number of epochs; training stops earlier without progress.")
    ] = _DEFAULTS.epochs,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", min=0.0, help="The peak learning rate.")
    ] = _DEFAULTS.learning_rate,
    tokens_per_step: Annotated[
        int, typer.Option("--tokens-per-step", min=1, help="Output tokens per training step.")
    ] = _DEFAULTS.tokens_per_step,
    held_out: Annotated[
        float, typer.Option("--held-out", min=0.0, max=1.0, help="Share of sessions for the final comparison.")
    ] = _DEFAULT_SHARES.held_out,
    validation: Annotated[
        float, typer.Option("--validation", min=0.0, max=1.0, help="Share of sessions for early stopping.")
    ] = _DEFAULT_SHARES.validation,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the split and of the training order.")
    ] = _DEFAULTS.seed,
    max_requests: MaxRequestsOption = None,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a draft model on logged responses, and compare its acceptance before and after.

    Training starts from a candidate's draft, or with --from-layers from the first layers of the target. The draft goes
    to a new folder, with a model card; the configuration does not change. The comparison replays held-out sessions for
    every slice of every endpoint with the same models.
    """
    if not consent.strip():
        raise UsageError("--consent is empty; write why you may train on this traffic")
    if learning_rate == 0.0:
        raise UsageError("--learning-rate must be above 0")
    try:
        shares = Shares(validation, held_out)
    except ValueError as error:
        raise UsageError(f"--held-out {held_out} and --validation {validation}: {error}") from error
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: exists already and is not empty; choose another folder for the draft")
    labels = parse_labels(where or [], "--where")
    config = load_config(find_config(config_path))
    require_inputs(config, files, endpoint)
    from shadowspec.app.distill_draft import Wanted, distill_files

    wanted = Wanted(endpoint, candidate, consent.strip(), out, shares, labels, max_requests, from_layers)
    settings = Settings(epochs=epochs, learning_rate=learning_rate, tokens_per_step=tokens_per_step, seed=seed)
    done = distill_files(config, files, wanted, settings)
    if as_json:
        print_json(_document(done, files, from_layers))
    else:
        _print(done)


def _document(done: Distilled, files: list[str], from_layers: int | None) -> dict[str, Any]:
    course, parts = done.course, done.split
    return {
        "files": files,
        "out": str(done.out),
        "candidate": done.config.name if from_layers is None else None,
        "from_layers": from_layers,
        "num_speculative_tokens": done.config.num_speculative_tokens,
        "endpoints": list(done.endpoints),
        "responses": {
            "training": len(parts.training), "validation": len(parts.validation), "held_out": len(parts.held_out)
        },
        "answered_anew": len(done.answers),
        "steps": course.num_steps,
        "output_tokens_learnt_from": course.num_tokens,
        "stopped_early": course.stopped_early,
        "best_step": course.looks[course.best].step,
        "share_of_the_way": course.blend.share,
        "looks": [asdict(look) for look in course.looks],
        "blends": [
            {"share_of_the_way": blend.share, "overlap": blend.look.overlap, "most_lost": blend.loss(course.looks[0])}
            for blend in course.blends
        ],
        "gains": [_gain(gain) for gain in done.comparison.gains],
        "held_out_refused": done.comparison.refused,
        "funnel": funnel_document(done.funnel),
    }  # fmt: skip


def _gain(gain: Gain) -> dict[str, Any]:
    return {
        "endpoint": gain.endpoint,
        "slice": parse_slice_key(gain.slice_key),
        "num_requests": gain.num_requests,
        "num_sessions": gain.num_sessions,
        "first_position_acceptance_rate_before": gain.before,
        "first_position_acceptance_rate_after": gain.after,
        "difference": gain.difference,
        "difference_lower": gain.lower,
        "difference_upper": gain.upper,
        "mean_acceptance_length_before": gain.length_before,
        "mean_acceptance_length_after": gain.length_after,
    }


def _print(done: Distilled) -> None:
    from shadowspec.distill import card

    table = Table(
        title="first drafted token accepted on held-out sessions, with 95% bounds of the difference",
        title_justify="left", box=None, padding=(0, 0, 0, 1), pad_edge=False,
    )  # fmt: skip
    table.add_column("endpoint, slice", overflow="fold", min_width=24)
    for name in ("sessions", "before", "after", "points", f"tokens per step, K={done.config.num_speculative_tokens}"):
        table.add_column(name, justify="right", no_wrap=True)
    for gain in _select_gains(done):
        label = f"{gain.endpoint}, {slice_title(gain.slice_key)}"
        table.add_row(
            escape(label),
            f"{gain.num_sessions:,}",
            card.share(gain.before),
            card.share(gain.after),
            escape(card.difference(gain)),
            f"{card.length(gain.length_before)} → {card.length(gain.length_after)}",
        )
    results.print(table)
    course = done.course
    first, blend = course.looks[0], course.blend
    results.print(
        f"{plural(course.num_steps, 'step')} over {course.num_tokens:,} output tokens; retained: "
        f"{blend.share:.0%} of the way to step {course.looks[course.best].step}, "
        f"overlap with the target {first.overlap:.3f} → {blend.look.overlap:.3f} on validation sessions",
        highlight=False,
    )
    print_funnel(done.funnel, {})
    results.print(f"the draft and its card are in {done.out}", markup=False, highlight=False, soft_wrap=True)
    if course.blend.share == 0.0:
        why = "gained nothing" if course.best == 0 else "cost one slice too much at every share retained"
        notes.print(
            f"[bold]no better:[/] training {why} on validation sessions; the weights are those that it started from"
        )
    for gain in _select_gains(done):
        if gain.difference is not None and gain.difference < -TOLERANCE:
            notes.print(
                f"worse: {gain.endpoint}, {slice_title(gain.slice_key)} lost "
                f"{-100.0 * gain.difference:.1f} points; train on more of its traffic, or with a lower --learning-rate",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip


def _select_gains(done: Distilled) -> list[Gain]:
    """Slices only where an endpoint has several."""
    slices = dict.fromkeys(done.endpoints, 0)
    for gain in done.comparison.gains:
        slices[gain.endpoint] += 1
    return [gain for gain in done.comparison.gains if not gain.slice_key or slices[gain.endpoint] > 2]
