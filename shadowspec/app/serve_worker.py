"""The worker put together: topics, pipeline, engine processes, store, dead letters, metrics and health."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from shadowspec.app.before_loading import open_keyed_hash, require_mirror
from shadowspec.app.measure_files import build_engines
from shadowspec.app.measuring_groups import measuring_groups
from shadowspec.config import Config, EndpointConfig, load_hash_secret
from shadowspec.errors import ServiceUnavailableError
from shadowspec.store import Store
from shadowspec.tap.admission import Admission
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.dead_letter_topic import DeadLetterWriter
from shadowspec.tap.joining import DEFAULT_WINDOW, Joiner
from shadowspec.tap.kafka.consumer import KafkaTap
from shadowspec.tap.reading import Tokenizer
from shadowspec.tap.sources import RawRecord
from shadowspec.worker.background import FIRST_WAIT_S, MAX_WAIT_S
from shadowspec.worker.engine_process import EngineFactory
from shadowspec.worker.health import HealthServer
from shadowspec.worker.pipeline import Pipeline
from shadowspec.worker.service import Service, SliceRates
from shadowspec.worker.supervisor import Supervisor
from shadowspec.worker.telemetry import Telemetry

if TYPE_CHECKING:
    from shadowspec.worker.engine_process import ConfiguredEngine

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 60.0  # for a service to come up; after that its address is probably wrong


@dataclass(frozen=True, slots=True)
class ConfiguredEngines:
    """Builds the engines of a configuration's endpoints on one device, in the process that calls it.

    Servers that are away are not waited for there: the supervisor tries again.
    """

    config: Config
    device: str

    @property
    def endpoints(self) -> Collection[str]:
        return self.config.endpoints.keys()

    def __call__(self) -> Mapping[str, ConfiguredEngine]:
        config = replace(
            self.config,
            engine=replace(self.config.engine, device=self.device),
            endpoints={name: _impatient(endpoint) for name, endpoint in self.config.endpoints.items()},
        )
        return build_engines(config)


def _impatient(endpoint: EndpointConfig) -> EndpointConfig:
    servers = endpoint.servers
    return endpoint if servers is None else replace(endpoint, servers=replace(servers, reachable_within_s=0.0))


def engine_factories(config: Config) -> list[ConfiguredEngines]:
    """One for each device of each group of endpoints that are measured by the same."""
    return [
        ConfiguredEngines(replace(config, endpoints={name: config.endpoints[name] for name in group.endpoints}), device)
        for group in measuring_groups(config)
        for device in group.devices
    ]


@dataclass(frozen=True, slots=True)
class _Letters:
    """Dead letters with the name of the topic that they came from, counted."""

    writer: DeadLetterWriter
    tap: KafkaTap
    telemetry: Telemetry

    def send(self, raw: RawRecord, stage: str, reasons: Mapping[str, int]) -> None:
        self.writer.send(raw, stage, reasons, self.tap.topic_of(raw.key.source) or raw.key.source)
        self.telemetry.dead_letter(stage)


def patiently(connect: Callable[[], T]) -> T:
    """Connect to a service that may be on its way up; a worker is often started together with it.

    Raises:
        ServiceUnavailableError: it refuses for good, or is still away after PATIENCE_S.
    """
    deadline, wait_s = time.monotonic() + PATIENCE_S, FIRST_WAIT_S
    while True:
        try:
            return connect()
        except ServiceUnavailableError as error:
            if not error.is_retryable or time.monotonic() + wait_s > deadline:
                raise
            log.warning("%s; trying again", error)
        time.sleep(wait_s)
        wait_s = min(MAX_WAIT_S, 2 * wait_s)


def shard_group(group_id: str, endpoints: Iterable[str]) -> str:
    """The consumer group of workers that measure only these endpoints: each of them reads the whole topic."""
    return f"{group_id}.{'+'.join(endpoints)}"


@contextmanager
def serving(
    config: Config,
    tokenizers: Mapping[str, Tokenizer],
    factories: Sequence[EngineFactory],
    endpoints: Collection[str] | None = None,
) -> Iterator[Service]:
    """A worker ready to run; everything it owns is closed at the end.

    Args:
        endpoints: those that it measures, in a consumer group of this worker and its like (None: all, in the
            configured group).

    Raises:
        ConfigError: nothing to consume or to measure is configured, or there is no secret.
        ServiceUnavailableError: broker or database cannot be reached or refuse.
    """
    kafka = require_mirror(config)
    every_rule = [endpoint.rule for endpoint in config.endpoints.values()]
    rules, elsewhere = every_rule, frozenset[str]()
    if endpoints is not None:
        rules = [rule for rule in every_rule if rule.name in endpoints]
        elsewhere = frozenset(config.endpoints).difference(endpoints)
        kafka = replace(kafka, group_id=shard_group(kafka.group_id, [rule.name for rule in rules]))
    telemetry = Telemetry()
    rates = SliceRates({rule.name: tuple(load.concurrency for load in rule.loads) for rule in rules})
    with ExitStack() as stack:
        load_hash_secret(config)  # refused before anything is waited for
        store = stack.enter_context(patiently(lambda: Store.open(config.database_url)))
        admission = Admission(every_rule, tokenizers, open_keyed_hash(config, store), rates, elsewhere)
        writer = stack.enter_context(patiently(lambda: DeadLetterWriter(kafka)))
        tap = stack.enter_context(patiently(lambda: KafkaTap(kafka)))
        supervisor = Supervisor(factories, store, config.worker, on_restart=telemetry.engine_restarted)
        stack.enter_context(supervisor)
        pipeline = Pipeline(
            admission,
            BlockFormer(rules),
            joiner=Joiner(DEFAULT_WINDOW),
            message_format=kafka.message_format,
            routing=kafka.routing,
            dead_letters=_Letters(writer, tap, telemetry),
        )
        service = Service(
            tap,
            pipeline,
            admission,
            supervisor,
            store,
            writer,
            rates,
            rules,
            consumer=kafka.group_id,
            settings=config.worker,
            telemetry=telemetry,
        )
        host, _, port = config.worker.health_address.rpartition(":")
        health = HealthServer(host.strip("[]"), int(port), telemetry, service.conditions, lambda: service.waiting)
        stack.enter_context(health)
        yield service
