"""`shadowspec profile-server`: the cost of a step of the servers, by load and context, for the depth that they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape

from shadowspec.app.progress_bar import notes, progress_bar
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
    config_document,
    parse_numbers,
    point_documents,
    show_profiles,
    surface_table,
)
from shadowspec.config import Config, EndpointConfig, find_config, load_config
from shadowspec.errors import UsageError
from shadowspec.planning.cost_model import CostSurface
from shadowspec.servers.server_profile import ServerGrid, ServerProfile, profile_servers
from shadowspec.store import Store, current
from shadowspec.text import DASH
from shadowspec.types import CostKey, Place, ProfiledCosts


@dataclass(frozen=True, slots=True)
class ServerCosts:
    """The costs of one endpoint's servers; `costs` holds the depths that were profiled there before, too."""

    endpoint: str
    measured: ServerProfile
    costs: ProfiledCosts
    surface: CostSurface  # of these costs


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
    """Measure the cost of a step of an endpoint's two servers, and the acceptance that pays for speculation.

    The endpoint needs engine = "openai", and its servers no other clients meanwhile. A server runs one number of
    speculative tokens. To profile several, change its configuration and run the command again with the same loads and
    contexts. Report and dashboard show predictions from these costs; no verdict uses them.
    """
    require_folder_of(out)
    config = load_config(find_config(config_path))
    served = _select_served(config, endpoint)
    wanted = _numbers_of(loads, served)
    at = parse_numbers("--contexts", contexts, MAX_CONTEXT)
    kinds = (True, False) if is_greedy is None else (is_greedy,)
    is_stored = current(config.database_url) is not None if is_wanted is None else is_wanted
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(config.database_url)) if is_stored else None
        profiles = []
        for profile in _profiles(served, wanted, at, kinds, rounds, {} if store is None else store.costs()):
            profiles.append(profile)
            if store is not None:
                store.append_costs(profile.costs)
    for profile in profiles:
        _warn(profile)
    show_profiles(profiles, _document, None if as_json else _print, out, is_stored=is_stored, is_wanted=is_wanted)


def _select_served(config: Config, endpoint: str | None) -> dict[str, EndpointConfig]:
    """The endpoints that are measured through servers.

    Raises:
        UsageError: none is.
    """
    chosen = {name: settings for name, settings in config.chosen(endpoint).items() if settings.servers is not None}
    if not chosen:
        who = "no endpoint has" if endpoint is None else f"endpoint {endpoint!r} does not have"
        raise UsageError(
            f'{who} engine = "openai": add its servers (docs/servers.md), or use `shadowspec profile-device`'
        )
    return chosen


def _numbers_of(loads: str | None, served: Mapping[str, EndpointConfig]) -> dict[str, tuple[int, ...]]:
    """The loads of each endpoint."""
    if loads is not None:
        return dict.fromkeys(served, parse_numbers("--loads", loads, MAX_LOAD))
    return {name: tuple(sorted(load.concurrency for load in endpoint.rule.loads)) for name, endpoint in served.items()}


def _profiles(
    served: Mapping[str, EndpointConfig],
    loads: Mapping[str, tuple[int, ...]],
    contexts: tuple[int, ...],
    kinds: tuple[bool, ...],
    rounds: int,
    known: Mapping[CostKey, ProfiledCosts],
) -> Iterator[ServerCosts]:
    """One for each endpoint and kind of requests, with a progress bar on stderr."""
    from shadowspec.engine.tokenizer import load_tokenizer

    grids = {name: [ServerGrid(loads[name], contexts, kind, rounds) for kind in kinds] for name in served}
    vocabularies = {name: load_tokenizer(endpoint.target).vocabulary_size for name, endpoint in served.items()}
    with progress_bar() as bar:
        task = bar.add_task(
            "profiling",
            total=sum(server_grid.num_runs for server_grids in grids.values() for server_grid in server_grids),
            detail="",
        )
        for name, endpoint in served.items():
            for grid in grids[name]:
                bar.update(task, detail=f"{name}, {'greedy' if grid.is_greedy else 'sampled'}")
                yield _profile(name, endpoint, grid, vocabularies[name], known, lambda: bar.update(task, advance=1))


def _profile(
    name: str,
    endpoint: EndpointConfig,
    grid: ServerGrid,
    vocab_size: int,
    known: Mapping[CostKey, ProfiledCosts],
    on_run: Callable[[], None],
) -> ServerCosts:
    assert endpoint.servers is not None, "only endpoints with servers are profiled"
    measured = profile_servers(
        endpoint.servers,
        endpoint.candidates[0],
        grid,
        vocab_size=vocab_size,
        requests_per_slot=endpoint.rule.requests_per_slot,
        max_turns=endpoint.rule.max_turns,
        default_sampling=endpoint.rule.default_sampling,
        on_run=on_run,
    )
    key = CostKey.of(measured.config, is_greedy=grid.is_greedy)
    costs = ProfiledCosts(key, datetime.now(UTC), measured.points)
    if key in known:
        costs = costs.with_depths_of(known[key])
    return ServerCosts(name, measured, costs, CostSurface(costs.points))


def _warn(profile: ServerCosts) -> None:
    """Warn of servers whose acceptance is not real."""
    measured = profile.measured
    if measured.num_compared and not measured.num_same:
        notes.print(
            f"{profile.endpoint}: none of {measured.num_compared} greedy answers is the same from both servers. The "
            "speculative one simulates acceptance (rejection_sample_method synthetic, --spec-synth-len), or serves "
            "another target. Its costs are valid; do not measure acceptance or verdicts through it",
            markup=False,
        )


def _document(profile: ServerCosts) -> dict[str, Any]:
    measured, config = profile.measured, profile.measured.config
    now = {(place.speculative.concurrency, place.speculative.context): place for place in measured.places}
    return {
        **config_document([profile.endpoint], config, profile.costs),
        "counts_source": config.counts_source,
        "num_speculative_tokens": config.config.num_speculative_tokens,
        "num_compared_outputs": measured.num_compared,
        "num_same_outputs": measured.num_same,
        "points": point_documents(profile.surface),
        "acceptance": [
            {
                "concurrency": concurrency,
                "context": context,
                "mean_acceptance_length": place.mean_acceptance_length,
                "accepted_token_ms": place.accepted_token_ms,
                "accepted_token_error_ms": place.accepted_token_error_ms,
            }
            for (concurrency, context), place in now.items()
        ],
    }


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
