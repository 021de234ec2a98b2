"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from shadowspec.app.progress_bar import notes
from shadowspec.errors import UsageError
from shadowspec.tap.formats import FieldMap
from shadowspec.tap.load_trace import LoadTrace, read_trace
from shadowspec.text import plain_text, sentence
from shadowspec.types import VerifyRule


class ReplayedRule(StrEnum):
    """The verify rules of the engine in this process; a server's is not known."""

    REJECTION = VerifyRule.REJECTION
    GREEDY_DRAFT = VerifyRule.GREEDY_DRAFT
    EXACT_MATCH = VerifyRule.EXACT_MATCH
    GREEDY = VerifyRule.GREEDY


ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="Configuration file; default: SHADOWSPEC_CONFIG, else ./shadowspec.toml."
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]

# Of what is inferred from a recording.
ServedNamesOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="A name under which the target is served; repeat it for several. Default: the most frequent in the file.",
    ),
]

BaselineOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--baseline", metavar="URL", help="A server of the model without speculation; with --speculative."),
]
SpeculativeOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--speculative", metavar="URL", help="A server of it that speculates: a candidate. Repeat it for several."
    ),
]

EndpointOption: TypeAlias = Annotated[
    str | None, typer.Option("--endpoint", "-e", metavar="NAME", help="Only this endpoint; default: every one.")
]
OneEndpointOption: TypeAlias = Annotated[str, typer.Option("--endpoint", "-e", metavar="NAME", help="The endpoint.")]
SliceOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--slice", metavar="LABEL=VALUE", help="Only slices with this label; repeat it for several. Default: every one."
    ),
]
LoadOption: TypeAlias = Annotated[
    int | None, typer.Option("--load", min=1, help="Only this concurrency; default: every load.")
]
FilesArgument: TypeAlias = Annotated[
    list[str], typer.Argument(help="Files of JSON lines (gzip or not); - is standard input.")
]
MapOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--map",
        metavar="PART=PATH,...",
        help="Where lines hold the parts of a record: request=body,time=ts (docs/formats.md).",
    ),
]


def chosen_map(text: str | None) -> FieldMap | None:
    """The map that the option gives.

    Raises:
        UsageError: it is none.
    """
    try:
        return None if text is None else FieldMap.parse_option(text)
    except UsageError as error:
        raise UsageError(f"--{error}") from error


ArrivalsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--arrivals",
        metavar="FILE",
        help="Give the records the times of a trace of Azure, BurstGPT or Mooncake (docs/formats.md).",
    ),
]


def chosen_trace(path: str | None) -> LoadTrace | None:
    """The trace that the option names.

    Raises:
        InputError, NoDataError: as `read_trace`.
    """
    return None if path is None else read_trace(path)


def print_consequences(texts: Sequence[str]) -> None:
    """What follows from a trace's times, on stderr."""
    for text in texts:
        notes.print(sentence(plain_text(text)), markup=False, highlight=False, soft_wrap=True)


MaxRequestsOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--max-requests", metavar="N", min=1, help="Stop after N requests; default: read everything."),
]
MaxMessagesOption: TypeAlias = Annotated[
    int | None, typer.Option("--max-messages", metavar="N", min=1, help="Stop after N messages; default: send all.")
]
DEFAULT_MAX_AGE = "7d"  # as `served_decision.DEFAULT_MAX_AGE`
MaxAgeOption = Annotated[
    str,
    typer.Option(
        "--max-age",
        metavar="TIME",
        help="Accept only verdicts whose newest measured traffic is younger than this, such as 24h or 7d.",
    ),
]
ExpectEngineOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--expect-engine", metavar="ENGINE", help="Accept only verdicts measured on this engine."),
]

# Of a replay, in one process or on a cluster.
DepthsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--k", metavar="K", help="Numbers of speculative tokens: a range 1..8 or a list 1,2,4. Default: 1..8."
    ),
]
VerifyRulesOption: TypeAlias = Annotated[
    list[ReplayedRule] | None,
    typer.Option(
        "--verify-rule", help="Replaces the candidates' rule for sampled requests; repeat it for several rules."
    ),
]


def chosen_rules(rules: list[ReplayedRule] | None) -> tuple[VerifyRule, ...]:
    """The rules that the option names; empty: each candidate's."""
    return tuple(VerifyRule(rule.value) for rule in rules or ())


NearTieOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--near-tie", min=0.0, help="Accept greedy tokens up to this many logits below the arg-max. Default: 0.25."
    ),
]

# Of both profiles, of this device and of servers.
ContextsOption: TypeAlias = Annotated[
    str, typer.Option("--contexts", metavar="LIST", help="Prompt lengths in tokens, such as 128,1024.")
]
IsGreedyOption: TypeAlias = Annotated[
    bool | None,
    typer.Option("--greedy/--sampled", help="Only requests at temperature 0, or only at 0.8; default: both."),
]
SurfaceOption: TypeAlias = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Also write the cost surface to this file, as JSON.")
]
StoreOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--store/--no-store", help="Store the result for report and dashboard; default: if the database exists."
    ),
]
