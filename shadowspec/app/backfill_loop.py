"""From a configuration and places of logs to measured blocks, by engines on a cluster.

Only this process reads, decides which requests are measured and in which blocks, and writes: what `run` does with one
engine.  The actors only measure, each block whole and on one device.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from shadowspec.app.before_loading import load_tokenizers, open_keyed_hash, require_endpoints
from shadowspec.app.measure_files import (
    FileMeasurement,
    build_engines,
    new_pipeline,
    one_by_one,
    show_progress,
    unreadable_in,
)
from shadowspec.app.progress_bar import notes, progress_bar
from shadowspec.backfill.cluster import ActorPool, Actors, call_remotely
from shadowspec.backfill.connection import Resources
from shadowspec.backfill.logs import read_log
from shadowspec.backfill.places import describe_place
from shadowspec.config import Config, load_hash_secret
from shadowspec.errors import ConfigError
from shadowspec.store import Store
from shadowspec.tap.formats import FieldMap
from shadowspec.text import plural
from shadowspec.types import Block, BlockResult, FingerprintedConfig
from shadowspec.worker.engine_process import measure_timed
from shadowspec.worker.files import FileRun, Progress
from shadowspec.worker.recovery import Case

log = logging.getLogger(__name__)

DIED: Final = "engine_died"
FAILED: Final = "engine_failed"

Configs = Mapping[str, tuple[FingerprintedConfig, ...]]  # by endpoint


def loop_files(
    config: Config, files: Sequence[str], resources: Resources, actors: Actors, *, max_requests: int | None
) -> FileMeasurement:
    """Measure files of mirrored traffic on a cluster that is connected.

    Raises:
        ConfigError: an endpoint is measured through servers, or with a draft that remembers the outputs before.
        InputError: a file cannot be read; what was measured is kept.
    """
    require_measurable(config)
    load_hash_secret(config)  # refused before models are loaded
    with Store.open(config.database_url) as store:
        keyed_hash = open_keyed_hash(config, store)
        who = f"{plural(actors.number, 'actor')}, {plural(resources.nodes, 'node')}"
        notes.print(f"loading models: {who}", highlight=False)
        with notes.status("loading models"):
            configs: Configs = call_remotely(partial(_configs, config), actors)
        every = {fingerprinted.fingerprint: fingerprinted for group in configs.values() for fingerprinted in group}
        store.save_fingerprints(list(every.values()))
        before = store.funnel()
        tokenizers = load_tokenizers(config)
        pool: ActorPool[Block, BlockResult] = ActorPool(
            partial(_build, config, actors), partial(_fail_block, configs, DIED), actors
        )

        def measure(place: str, max_requests: int | None) -> Progress:
            with unreadable_in(describe_place(place)) as unreadable, progress_bar() as bar:
                task = bar.add_task(f"measuring {describe_place(place)}", total=None, detail="")
                pipeline = new_pipeline(config, tokenizers, keyed_hash, unreadable)
                show = partial(show_progress, bar, task)
                run = FileRun(pipeline, pool, store, max_requests=max_requests, on_progress=show)
                return run.run(read_log(place, is_mapped=isinstance(config.file_format, FieldMap)))

        progress = one_by_one(files, max_requests, measure)
        return FileMeasurement(progress, Counter(store.funnel()) - Counter(before))


def require_measurable(config: Config) -> None:
    """
    Raises:
        ConfigError: no endpoint is configured, or one cannot be measured by several engines at once.
    """
    require_endpoints(config)
    for name, endpoint in config.endpoints.items():
        if endpoint.servers is not None:
            raise ConfigError(
                f"{config.path}: endpoints.{name} is measured through servers, whose load would be that of all actors: "
                "measure it with `shadowspec run`"
            )
        for candidate in endpoint.candidates:
            if candidate.remembers:
                raise ConfigError(
                    f"{config.path}: endpoints.{name}: candidate {candidate.name!r} drafts from the outputs before, "
                    "and every actor would remember others: measure it with `shadowspec run`, or set "
                    "suffix_memory_tokens to 0"
                )


def _configs(config: Config) -> Configs:
    return {name: engine.configs for name, engine in build_engines(config).items()}


def _build(config: Config, actors: Actors) -> Callable[[Block], BlockResult]:
    """Load the engines of all endpoints, once in each actor."""
    import torch

    torch.set_num_threads(max(1, int(actors.cpus)))
    engines = build_engines(config)
    configs = {name: engine.configs for name, engine in engines.items()}

    def measure(block: Block) -> BlockResult:
        try:
            return measure_timed(engines[block.endpoint], block)
        except Exception as error:  # its text may quote a prompt
            log.warning("block %s ended in %s", block.block_id, type(error).__name__)
            return _fail_block(configs, FAILED, block)

    return measure


def _fail_block(configs: Configs, reason: str, block: Block) -> BlockResult:
    """A block whose requests have failed runs."""
    return Case(block, reason=reason).fail(configs[block.endpoint]).result
