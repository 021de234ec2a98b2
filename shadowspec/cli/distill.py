"""`shadowspec distill`: a draft made for its endpoints' own traffic."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.console import notes, print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption
from shadowspec.cli.run import funnel_document, print_funnel
from shadowspec.distill.training_settings import TOLERANCE, Settings, Shares
from shadowspec.text import plural

if TYPE_CHECKING:
    from shadowspec.app.distill_draft import Distilled
    from shadowspec.distill.comparison import Gain

_DEFAULTS, _DEFAULT_SHARES = Settings(), Shares()


def distill(
    files: Annotated[list[str], typer.Argument(help="Files of JSON lines with responses (gzip or not); - is stdin.")],
    endpoint: Annotated[str, typer.Option("--endpoint", "-e", help="Whose candidate's draft is trained.")],
    consent: Annotated[
        str, typer.Option("--consent", help="On what ground this traffic may be trained on; the model card states it.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="New folder for the draft.")],
    candidate: Annotated[
        str | None, typer.Option("--candidate", help="Which one, where the endpoint has several draft models.")
    ] = None,
    from_layers: Annotated[
        int | None,
        typer.Option(
            "--from-layers",
            min=1,
            help="Begin as the target's first layers, this many, with its embeddings and head, instead of a "
            "candidate's draft.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="Only records with this label, such as consent=yes; may be given repeatedly."),
    ] = None,
    epochs: Annotated[
        int, typer.Option("--epochs", min=1, help="At most; training stops when it gets no better.")
    ] = _DEFAULTS.epochs,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", min=0.0, help="At its highest.")
    ] = _DEFAULTS.learning_rate,
    tokens_per_step: Annotated[
        int, typer.Option("--tokens-per-step", min=1, help="Output tokens that each step of the training learns from.")
    ] = _DEFAULTS.tokens_per_step,
    held_out: Annotated[
        float, typer.Option("--held-out", min=0.0, max=1.0, help="Share of sessions to judge the result by.")
    ] = _DEFAULT_SHARES.held_out,
    validation: Annotated[
        float, typer.Option("--validation", min=0.0, max=1.0, help="Share of sessions that say when to stop.")
    ] = _DEFAULT_SHARES.validation,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Draws the parts and the order of training.")
    ] = _DEFAULTS.seed,
    max_requests: Annotated[
        int | None, typer.Option("--max-requests", min=1, help="Use so many responses at most.")
    ] = None,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a draft on the target's distribution over logged responses, and say what that gained.

    It begins as the draft of a candidate, or with --from-layers as the first layers of the target, where there is no
    draft to begin from.

    The new draft is a folder of its own, with a model card; nothing that is configured changes. Acceptance before and
    after is that of sessions held out, by exact replay, for every slice of every endpoint with the same pair.
    """
    from shadowspec.app.distill_draft import Wanted, distill_files
    from shadowspec.config import find_config, load_config
    from shadowspec.errors import UsageError

    if not consent.strip():
        raise UsageError("--consent must say on what ground this traffic may be trained on")
    if learning_rate == 0.0:
        raise UsageError("--learning-rate must be above 0: a draft that does not move learns nothing")
    try:
        shares = Shares(validation, held_out)
    except ValueError as error:
        raise UsageError(f"--held-out {held_out} and --validation {validation}: {error}") from error
    labels = parse_labels(where or [])
    wanted = Wanted(endpoint, candidate, consent.strip(), out, shares, labels, max_requests, from_layers)
    settings = Settings(epochs=epochs, learning_rate=learning_rate, tokens_per_step=tokens_per_step, seed=seed)
    done = distill_files(load_config(find_config(config_path)), files, wanted, settings)
    if as_json:
        print_json(_document(done, files, from_layers))
    else:
        _print(done)


def parse_labels(given: list[str]) -> dict[str, str]:
    """The labels of `name=value`s.

    Raises:
        UsageError: one is none, or a name comes twice.
    """
    from shadowspec.errors import UsageError

    labels = {}
    for text in given:
        name, is_pair, value = text.partition("=")
        if not (is_pair and name and value):
            raise UsageError(f"--where {text}: must be NAME=VALUE, such as consent=yes")
        if name in labels:
            raise UsageError(f"--where {text}: {name!r} was asked for before, and a record has a label once")
        labels[name] = value
    return labels


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
    from shadowspec.types import parse_slice_key

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
        label = f"{gain.endpoint}, {gain.slice_key.replace(',', ', ') or '(whole endpoint)'}"
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
        f"{plural(course.num_steps, 'step')} over {course.num_tokens:,} output tokens; kept: "
        f"{blend.share:.0%} of the way to step {course.looks[course.best].step}, "
        f"overlap with the target {first.overlap:.3f} → {blend.look.overlap:.3f} on validation sessions",
        highlight=False,
    )
    print_funnel(done.funnel, {})
    results.print(f"the draft and its card are in {done.out}", markup=False, highlight=False, soft_wrap=True)
    if course.blend.share == 0.0:
        why = "gained nothing" if course.best == 0 else "cost a slice too much, however little of it was kept,"
        notes.print(f"[bold]no better:[/] training {why} on validation sessions; the weights are the base's")
    for gain in _select_gains(done):
        if gain.difference is not None and gain.difference < -TOLERANCE:
            notes.print(
                f"worse: {gain.endpoint}, {gain.slice_key or '(whole endpoint)'} lost "
                f"{-100.0 * gain.difference:.1f} points; more of its traffic, or a lower --learning-rate, may keep it",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip


def _select_gains(done: Distilled) -> list[Gain]:
    """Slices only where an endpoint has several."""
    slices = dict.fromkeys(done.endpoints, 0)
    for gain in done.comparison.gains:
        slices[gain.endpoint] += 1
    return [gain for gain in done.comparison.gains if not gain.slice_key or slices[gain.endpoint] > 2]
