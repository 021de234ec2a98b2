"""The model card of a distilled draft: its sources, training and gains; no text of any request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from shadowspec.distill.answers import MIN_TEMPERATURE
from shadowspec.distill.comparison import LEVEL, Comparison, Gain
from shadowspec.distill.examples import MAX_TIMES, Split
from shadowspec.distill.training import Course
from shadowspec.distill.training_settings import TOLERANCE, Settings
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.text import slice_title


@dataclass(frozen=True, slots=True)
class Origin:
    """A draft's sources: weights, data and settings."""

    target_weights: str  # digests, as in fingerprints
    base_weights: str
    candidate: str | None  # whose draft it was; None: it began as the target's first layers
    first_layers: int | None  # of the target, that it began as; None: it began as a candidate's draft
    num_target_layers: int
    num_parameters: int
    num_speculative_tokens: int
    verify_rule: str
    consent: str
    first_event: datetime
    last_event: datetime
    engine: str
    device: str


def card(
    origin: Origin,
    split: Split,
    answers: Sequence[Response],
    settings: Settings,
    course: Course,
    comparison: Comparison | None,
) -> str:
    """Markdown.

    Args:
        answers: the target's further answers, training examples beside the logged ones.
        comparison: None without one: the card then calls the gain unknown.
    """
    parts = "\n".join(
        f"| {name} | {len(examples):,} | {len({(each.endpoint, each.unit_key) for each in examples}):,} "
        f"| {sum(len(each.response.output) for each in examples):,} |"
        for name, examples in (
            ("training", split.training), ("validation", split.validation), ("held out", split.held_out)
        )
    )  # fmt: skip
    looks = "\n".join(
        f"| {look.step:,} | {look.epoch:.2f} | {look.divergence:.4f} | {look.overlap:.4f} |" for look in course.looks
    )
    blends = "\n".join(
        f"| {blend.share:.0%} | {blend.look.overlap:.4f} | {blend.loss(course.looks[0]):+.4f} |"
        for blend in course.blends
    )
    tokens = sum(len(answer.output) for answer in answers)
    began = (
        f"candidate {origin.candidate}"
        if origin.first_layers is None
        else f"the target's first {origin.first_layers} of {origin.num_target_layers} layers, its embeddings and head"
    )
    end = "stopped early, for it got no better" if course.stopped_early else "continued to the end"
    return f"""\
# A draft distilled on its target

Made by `shadowspec distill` for speculative decoding with one target. It has no other use. By itself it writes worse
than that target, and with another target its acceptance is unknown.

| | |
|---|---|
| target (sha256 over its weights) | `{origin.target_weights}` |
| began from (sha256 over its weights) | `{origin.base_weights}` |
| began as | {began} |
| parameters | {origin.num_parameters:,} |
| judged at | K = {origin.num_speculative_tokens}, rule {origin.verify_rule} |
| engine, device | {origin.engine}, {origin.device} |

## Training data

Logged responses of {origin.first_event:%Y-%m-%d %H:%M} to {origin.last_event:%Y-%m-%d %H:%M} UTC. Consent to train
on them, as it was given: {origin.consent}. Weights may hold parts of their training data: treat them as you treat that
traffic.

| part | responses | sessions | output tokens |
|---|---|---|---|
{parts}

A session is in one part, drawn by hash (seed {settings.seed}). The draft learnt from the logged responses of the
training part. It also learnt from {len(answers):,} answers ({tokens:,} output tokens) that the target generated again.
These are for the same prompts, of slices with few tokens, drawn at temperature {MIN_TEMPERATURE:g} where the request's
is lower.

## How

The target's distribution over the whole vocabulary, at temperature 1, at every token of a response (forward KL).
AdamW, learning rate {settings.learning_rate:g} at its highest, at least {settings.tokens_per_step:,} output tokens a
step, {course.num_steps:,} steps over {course.num_tokens:,} output tokens. Training {end}. On the validation sessions:

| step | epoch | KL, nats per token | overlap |
|---|---|---|---|
{looks}

KL is the mean over tokens. The overlap is the mean of the sum of min(target, draft) at the requests' temperatures. At
temperature 0 it is the share whose likeliest tokens are one. Tokens of slices with few count up to {MAX_TIMES} times in
it. It is largest at step {course.looks[course.best].step:,}. On the way from the first weights to those (weight
interpolation):

| share of the way | overlap | most that a slice lost |
|---|---|---|
{blends}

The weights are those at {course.blend.share:.0%}: the largest overlap of those at which no slice lost more than
{TOLERANCE:g}.

## Gains

{NOT_COMPARED if comparison is None else _gains(origin, comparison)}
"""


NOT_COMPARED = """\
Nothing is known of it: the held-out sessions were not replayed with both drafts, or none of them could be."""


def _gains(origin: Origin, comparison: Comparison) -> str:
    rows = "\n".join(gain_row(gain) for gain in comparison.gains)
    return f"""\
On the held-out sessions, by exact replay at K = {origin.num_speculative_tokens}. The table has the share of steps that
accept the first drafted token, its difference with {LEVEL:.0%} bounds over sessions, and the mean acceptance length.

{GAIN_HEADER}
{rows}"""


GAIN_HEADER = """\
| endpoint | slice | requests | sessions | before | after | difference [bounds] | tokens per step |
|---|---|---|---|---|---|---|---|"""


def gain_row(gain: Gain) -> str:
    """A row of Markdown."""
    return (
        f"| {gain.endpoint} | {slice_title(gain.slice_key)} | {gain.num_requests:,} "
        f"| {gain.num_sessions:,} | {share(gain.before)} | {share(gain.after)} | {difference(gain)} "
        f"| {length(gain.length_before)} → {length(gain.length_after)} |"
    )


def share(value: float | None) -> str:
    """A share in percent."""
    return "-" if value is None else f"{value:.1%}"


def difference(gain: Gain) -> str:
    """In percentage points, with its bounds."""
    if gain.difference is None:
        return "-"
    found = f"{100.0 * gain.difference:+.1f}"
    if gain.lower is None or gain.upper is None:
        return found
    return f"{found} [{100.0 * gain.lower:+.1f}, {100.0 * gain.upper:+.1f}]"


def length(value: float | None) -> str:
    """A mean acceptance length."""
    return "-" if value is None else f"{value:.2f}"
