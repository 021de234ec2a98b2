"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from shadowspec.types import VerifyRule


class ReplayedRule(StrEnum):
    """The verify rules of the engine in this process; a server's is not known."""

    REJECTION = VerifyRule.REJECTION
    GREEDY_DRAFT = VerifyRule.GREEDY_DRAFT
    EXACT_MATCH = VerifyRule.EXACT_MATCH
    GREEDY = VerifyRule.GREEDY


ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration file; default: SHADOWSPEC_CONFIG, else ./shadowspec.toml."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]

# Of what is inferred from a recording.
ServedNamesOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="A name under which the target is served; may be repeated. Default: the one most records ask for.",
    ),
]

# Of a replay, in one process or on a cluster.
EndpointAloneOption: TypeAlias = Annotated[
    str | None, typer.Option("--endpoint", "-e", help="Replay this endpoint alone.")
]
VerifyRulesOption: TypeAlias = Annotated[
    list[ReplayedRule] | None,
    typer.Option(
        "--verify-rule", help="In place of the candidates' own rule for sampled requests; may be given repeatedly."
    ),
]


def chosen_rules(rules: list[ReplayedRule] | None) -> tuple[VerifyRule, ...]:
    """The rules that an option names; none: each candidate's."""
    return tuple(VerifyRule(rule.value) for rule in rules or ())


NearTieOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--near-tie", min=0.0, help="How far below the arg-max a greedy token may lie, in logits (default 0.25)."
    ),
]

# Of both profiles, of this device and of servers.
ContextsOption: TypeAlias = Annotated[str, typer.Option("--contexts", help="Prompt tokens: a list such as 128,1024.")]
IsGreedyOption: TypeAlias = Annotated[
    bool | None,
    typer.Option("--greedy/--sampled", help="Requests at temperature 0 alone, or at 0.8 alone; default: both."),
]
SurfaceOption: TypeAlias = Annotated[
    Path | None, typer.Option("--out", "-o", help="Write the cost surface there, as JSON.")
]
KeptOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--store/--no-store", help="Keep it in the database, for report and dashboard; default: if there is one."
    ),
]
