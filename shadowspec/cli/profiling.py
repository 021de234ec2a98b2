"""From a configuration to the cost surfaces of its pairs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from transformers.utils import logging as transformers_logging

from shadowspec.cli.console import progress_bar
from shadowspec.cli.pipeline import require_endpoints
from shadowspec.config import Config
from shadowspec.engine.candidate import Candidate, Models
from shadowspec.engine.cost_model import CostSurface
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.profiling import Grid, profile
from shadowspec.errors import NoDataError, UsageError
from shadowspec.types import FingerprintedConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Profile:
    """The costs of one pair under one verify rule, and the endpoints that have it as a candidate."""

    endpoints: tuple[str, ...]
    config: FingerprintedConfig
    surface: CostSurface
    is_greedy: bool


def profile_pairs(config: Config, grid: Grid, *, endpoint: str | None) -> list[Profile]:
    """Profile each pair once, with a progress bar on stderr; candidates without a draft model are left out, and told.

    Raises:
        UsageError: there is no such endpoint.
        NoDataError: no candidate drafts with a model.
    """
    require_endpoints(config)
    if endpoint is not None and endpoint not in config.endpoints:
        raise UsageError(f"--endpoint {endpoint}: not one of {', '.join(config.endpoints)}")
    pairs: dict[tuple[str, str | None, str], tuple[list[str], LoadedModel, Candidate]] = {}
    for name, target, candidate in _candidates(config, endpoint):
        own = candidate.config.config
        if not isinstance(candidate.draft, LoadedModel):
            log.warning("%s: %s drafts without a model of its own and is not profiled", name, own.name)
            continue
        key = (own.target, own.draft, own.verify_rule.value)
        pairs.setdefault(key, ([], target, candidate))[0].append(name)
    if not pairs:
        raise NoDataError("no candidate drafts with a model: there is nothing to profile")
    found = []
    with progress_bar() as bar:
        task = bar.add_task("profiling", total=grid.num_runs * len(pairs), detail="")
        for names, target, candidate in pairs.values():
            bar.update(task, detail=candidate.config.config.name)
            points = profile(target, candidate, grid, on_run=lambda: bar.update(task, advance=1))
            endpoints = tuple(dict.fromkeys(names))
            found.append(Profile(endpoints, candidate.config, CostSurface(points), grid.is_greedy))
    return found


def _candidates(config: Config, endpoint: str | None) -> Iterator[tuple[str, LoadedModel, Candidate]]:
    transformers_logging.disable_progress_bar()  # stderr is ours
    models = Models(config.engine.device, config.engine.dtype)
    for name, own in config.endpoints.items():
        if endpoint in (None, name):
            target, candidates = models.candidates(own.target, own.candidates, log.warning)
            for candidate in candidates:
                yield name, target, candidate
