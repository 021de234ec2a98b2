"""From endpoints that are measured through servers to the cost surfaces of these servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import product

from shadowspec.app.before_loading import load_target_tokenizer
from shadowspec.app.progress_bar import progress_bar
from shadowspec.config import Config, EndpointConfig
from shadowspec.errors import ConfigError, UsageError
from shadowspec.planning.cost_model import CostSurface
from shadowspec.servers.server_profile import ServerGrid, ServerProfile, profile_servers
from shadowspec.store import Store
from shadowspec.types import CostKey, ProfiledCosts, SpeculationConfig


@dataclass(frozen=True, slots=True)
class ServerCosts:
    """The costs of one endpoint's servers; `costs` holds the depths that were profiled there before, too."""

    endpoint: str
    measured: ServerProfile
    costs: ProfiledCosts
    surface: CostSurface  # of these costs


def select_served(config: Config, endpoint: str | None) -> dict[str, EndpointConfig]:
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


def profile_served(
    served: Mapping[str, EndpointConfig],
    loads: Sequence[int] | None,
    contexts: tuple[int, ...],
    kinds: Sequence[bool],
    rounds: int,
    store: Store | None,
) -> list[ServerCosts]:
    """The costs of each endpoint's servers for each kind of requests and each candidate, with a progress bar on stderr.

    Args:
        loads: None: each endpoint's.
        kinds: whether they are greedy.
        store: where the costs of each are appended once they are complete, and added to earlier ones; None: nowhere.
    """
    known = {} if store is None else dict(store.costs())
    grids = {
        name: [
            ServerGrid(tuple(loads or sorted(load.concurrency for load in endpoint.rule.loads)), contexts, kind, rounds)
            for kind in kinds
        ]
        for name, endpoint in served.items()
    }
    profiled = {name: _profiled(endpoint) for name, endpoint in served.items()}
    if nameless := [name for name, endpoint in served.items() if not endpoint.has_folder]:
        raise ConfigError(
            f"endpoints.{nameless[0]}: prompts are drawn from the vocabulary; set target, the folder of the tokenizer"
        )
    vocabularies = {name: load_target_tokenizer(endpoint).vocabulary_size for name, endpoint in served.items()}
    profiles = []
    with progress_bar() as bar:
        task = bar.add_task(
            "profiling",
            total=sum(grid.num_runs * len(profiled[name]) for name, of_kinds in grids.items() for grid in of_kinds),
            detail="",
        )
        for name, endpoint in served.items():
            for grid, candidate in product(grids[name], profiled[name]):
                bar.update(task, detail=f"{name}, {candidate.name}, {'greedy' if grid.is_greedy else 'sampled'}")
                on_run = partial(bar.update, task, advance=1)
                profiles.append(_profile(name, endpoint, candidate, grid, vocabularies[name], known, on_run))
                known[profiles[-1].costs.key] = profiles[-1].costs  # a later one may be the same pair at another depth
                if store is not None:
                    store.append_costs(profiles[-1].costs)
    return profiles


def _profiled(endpoint: EndpointConfig) -> Sequence[SpeculationConfig]:
    """The candidates that draft to one depth; without any the first, whose refusal says why."""
    return [config for config in endpoint.candidates if config.drafts_in_every_step] or endpoint.candidates[:1]


def _profile(
    name: str,
    endpoint: EndpointConfig,
    candidate: SpeculationConfig,
    grid: ServerGrid,
    vocab_size: int,
    known: Mapping[CostKey, ProfiledCosts],
    on_run: Callable[[], None],
) -> ServerCosts:
    assert endpoint.servers is not None, "only endpoints with servers are profiled"
    measured = profile_servers(
        endpoint.servers,
        candidate,
        grid,
        vocab_size=vocab_size,
        requests_per_slot=endpoint.rule.requests_per_slot,
        max_turns=endpoint.rule.max_turns,
        default_sampling=endpoint.rule.default_sampling,
        prompt_rules=endpoint.rule.prompt_rules,
        on_run=on_run,
    )
    key = CostKey.of(measured.config, is_greedy=grid.is_greedy)
    costs = ProfiledCosts(key, datetime.now(UTC), measured.points)
    if key in known:
        costs = costs.with_depths_of(known[key])
    return ServerCosts(name, measured, costs, CostSurface(costs.points))
