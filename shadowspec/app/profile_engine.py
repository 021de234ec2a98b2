"""From a configuration to the cost surfaces of its pairs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from shadowspec.app.before_loading import require_endpoints
from shadowspec.app.progress_bar import progress_bar
from shadowspec.config import Config
from shadowspec.engine import Models
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.profiling import ProfileGrid, max_depth, profile
from shadowspec.errors import NoDataError
from shadowspec.planning.cost_model import CostSurface
from shadowspec.types import CostKey, FingerprintedConfig, ProfiledCosts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Profile:
    """The costs of one pair under one verify rule, and the endpoints that have it as a candidate."""

    endpoints: tuple[str, ...]
    config: FingerprintedConfig
    costs: ProfiledCosts
    surface: CostSurface  # of these costs


def profile_pairs(
    config: Config, grids: Sequence[ProfileGrid], *, endpoint: str | None, on_profile: Callable[[Profile], None]
) -> list[Profile]:
    """Profile each pair once on each grid, with a progress bar on stderr.

    Candidates with adaptive depth are left out, with a warning; so are depths that a candidate's heads do not reach.

    Args:
        on_profile: called with every profile once it is complete.

    Raises:
        ConfigError: there is no such endpoint.
        NoDataError: no candidate drafts to a fixed depth.
    """
    require_endpoints(config)
    pairs: dict[tuple[str, str | None, str, str], _Pair] = {}
    for name, target, candidate in _candidates(config, endpoint):
        speculation_config = candidate.config.config
        if speculation_config.is_adaptive:
            log.warning("%s: %s drafts to a depth by its confidence and is not profiled", name, speculation_config.name)
            continue
        key = (
            speculation_config.target,
            speculation_config.draft,
            speculation_config.proposer,
            speculation_config.verify_rule.value,
        )
        if key not in pairs:
            own_grids = [reached for grid in grids if (reached := _limit_depths(grid, candidate)) is not None]
            pairs[key] = _Pair([], target, candidate, own_grids)
        pairs[key].endpoints.append(name)
    if not any(pair.grids for pair in pairs.values()):
        raise NoDataError("no candidate drafts to a fixed depth of the grid: there is nothing to profile")
    profiles = []
    with progress_bar() as bar:
        wanted = [(pair, grid) for pair in pairs.values() for grid in pair.grids]
        task = bar.add_task("profiling", total=sum(grid.num_runs for _, grid in wanted), detail="")
        for pair, grid in wanted:
            fingerprinted = pair.candidate.config
            bar.update(task, detail=f"{fingerprinted.config.name}, {'greedy' if grid.is_greedy else 'sampled'}")
            points = profile(pair.target, pair.candidate, grid, on_run=lambda: bar.update(task, advance=1))
            costs = ProfiledCosts(CostKey.of(fingerprinted, is_greedy=grid.is_greedy), datetime.now(UTC), tuple(points))
            profiles.append(Profile(tuple(dict.fromkeys(pair.endpoints)), fingerprinted, costs, CostSurface(points)))
            on_profile(profiles[-1])
    return profiles


@dataclass(frozen=True, slots=True)
class _Pair:
    """A target and a way of drafting for it, and where it is measured."""

    endpoints: list[str]
    target: LoadedModel
    candidate: Candidate
    grids: list[ProfileGrid]


def _limit_depths(grid: ProfileGrid, candidate: Candidate) -> ProfileGrid | None:
    """The grid without the depths that the candidate's heads do not reach; None where none is left."""
    most = max_depth(candidate)
    depths = tuple(depth for depth in grid.depths if most is None or depth <= most)
    if len(depths) < len(grid.depths):
        log.warning("%s drafts %s tokens at most: greater depths are not profiled", candidate.config.config.name, most)
    return replace(grid, depths=depths) if depths else None


def _candidates(config: Config, endpoint: str | None) -> Iterator[tuple[str, LoadedModel, Candidate]]:
    models = Models(config.engine)
    for name, endpoint_config in config.chosen(endpoint).items():
        rule = endpoint_config.rule
        ours = tuple(candidate for candidate in endpoint_config.candidates if not candidate.is_served_method)
        for served in set(endpoint_config.candidates).difference(ours):
            log.warning(
                "%s: a server drafts %s by its method %s: profile it with `shadowspec profile-server`",
                *(name, served.name, served.proposer),
            )
        if not ours:
            continue
        target, candidates = models.candidates(
            endpoint_config.target,
            ours,
            log.warning,
            rule.requests_per_slot,
            rule.default_sampling,
            rule.prompt_rules,
        )
        for candidate in candidates:
            yield name, target, candidate
