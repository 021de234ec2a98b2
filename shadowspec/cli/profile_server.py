"""`shadowspec profile-server`: the cost of a step of the servers, by load and context, for the depth that they run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.markup import escape

from shadowspec.app.profile_served import ServerCosts, profile_served, select_served
from shadowspec.app.progress_bar import notes
from shadowspec.cli.console import require_folder_of, results
from shadowspec.cli.options import (
    ConfigOption,
    ContextsOption,
    EndpointOption,
    IsGreedyOption,
    JsonOption,
    StoreOption,
    SurfaceOption,
)
from shadowspec.cli.profile_device import (
    MAX_CONTEXT,
    MAX_LOAD,
    ProfilePart,
    parse_numbers,
    points_of,
    show_profiles,
    surface_table,
)
from shadowspec.config import find_config, load_config
from shadowspec.store import Store, current
from shadowspec.text import DASH
from shadowspec.types import Place
from shadowspec.types.public_documents import PublicDocument, PublicValue, public


class AcceptanceAt(PublicValue, frozen=True, kw_only=True):
    """The accepted tokens at a load and context; milliseconds per token."""

    concurrency: Annotated[int, "speculative.concurrency"]
    context: Annotated[int, "speculative.context"]
    mean_acceptance_length: float | None
    accepted_token_ms: float | None
    accepted_token_error_ms: float | None


class ServerProfilePart(ProfilePart, frozen=True, kw_only=True):
    """The costs of an endpoint's servers; `points` hold the depths that were profiled there before, too."""

    counts_source: str
    num_speculative_tokens: Annotated[int, "config.config.num_speculative_tokens"]
    num_compared_outputs: Annotated[int, "num_compared"]
    num_same_outputs: Annotated[int, "num_same"]
    acceptance: Sequence[AcceptanceAt]


class ServerProfileDocument(PublicDocument, frozen=True, kw_only=True):
    """The profiles of `profile-server --json`, and of its file."""

    profiles: Sequence[ServerProfilePart]


def profile_server(
    config_path: ConfigOption = None,
    endpoint: EndpointOption = None,
    loads: Annotated[
        str | None,
        typer.Option("--loads", metavar="LIST", help="Concurrencies, such as 1,4,16; default: the endpoint's."),
    ] = None,
    contexts: ContextsOption = "64,512",
    is_greedy: IsGreedyOption = None,
    rounds: Annotated[int, typer.Option("--rounds", min=2, help="Measurements per point; the median counts.")] = 3,
    out: SurfaceOption = None,
    is_wanted: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the cost of a step of an endpoint's servers, and the acceptance that pays for speculation.

    The endpoint needs engine = "openai", and its servers no other clients meanwhile. A server runs one number of
    speculative tokens. To profile several, give each a server, or change it and run again with the same loads and
    contexts. Report and dashboard show predictions from these costs; no verdict uses them.
    """
    require_folder_of(out)
    config = load_config(find_config(config_path))
    served = select_served(config, endpoint)
    given = None if loads is None else parse_numbers("--loads", loads, MAX_LOAD)
    at = parse_numbers("--contexts", contexts, MAX_CONTEXT)
    kinds = (True, False) if is_greedy is None else (is_greedy,)
    is_stored = current(config.database_url) is not None if is_wanted is None else is_wanted
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(config.database_url)) if is_stored else None
        profiles = profile_served(served, given, at, kinds, rounds, store)
    for profile in profiles:
        _warn(profile)
    document = ServerProfileDocument(profiles=list(map(_shown, profiles)))
    show_profiles(profiles, document, None if as_json else _print, out, is_stored=is_stored, is_wanted=is_wanted)


def _warn(profile: ServerCosts) -> None:
    """Warn of servers whose acceptance is not real."""
    measured = profile.measured
    if measured.num_compared and not measured.num_same:
        notes.print(
            f"{profile.endpoint}: candidate {measured.config.config.name!r}: none of {measured.num_compared} greedy "
            "answers is the same from both servers. The "
            "speculative one simulates acceptance (rejection_sample_method synthetic, --spec-synth-len), or serves "
            "another target. Its costs are valid; do not measure acceptance or verdicts through it",
            markup=False,
        )


def _shown(profile: ServerCosts) -> ServerProfilePart:
    measured = profile.measured
    now = {(place.speculative.concurrency, place.speculative.context): place for place in measured.places}
    return public(
        ServerProfilePart,
        measured,
        measured.config,
        profile.costs,
        endpoints=[profile.endpoint],
        points=points_of(profile.surface),
        acceptance=now.values(),
    )


def _print(profile: ServerCosts) -> None:
    surface, config = profile.surface, profile.measured.config
    at = {point.place: point for point in surface.points}

    def step(place: Place) -> str:
        error = at[place].step_error_ms
        return f"{at[place].step_ms:.2f} \u00b1 {DASH if error is None else f'{error:.2f}'}"

    results.print(surface_table(f"{escape(config.config.name)} of {escape(profile.endpoint)}", surface, step))
    results.print(
        f"A step of {escape(config.engine)} on {escape(config.device)} ({config.dtype}) with its standard error over "
        "rounds, and the tokens per step from which on speculation is faster. "
        f"{'Greedy' if profile.costs.key.is_greedy else 'Sampled'} requests, in a queue at that load.",
        style="dim",
    )
