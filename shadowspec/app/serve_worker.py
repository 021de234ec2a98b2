"""The worker put together: topics, pipeline, engine processes, store, dead letters, metrics and health."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from shadowspec.app.before_loading import open_keyed_hash, require_mirror
from shadowspec.config import Config, load_hash_secret
from shadowspec.errors import ServiceUnavailableError
from shadowspec.store import Store
from shadowspec.tap.admission import Admission
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.dead_letter_topic import DeadLetterWriter
from shadowspec.tap.formats import MessageFormat
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
    """Builds the configured engines on one device, in the process that calls it."""

    config: Config
    device: str

    def __call__(self) -> Mapping[str, ConfiguredEngine]:
        from shadowspec.app.measure_files import build_engines

        engine = replace(self.config.engine, device=self.device)
        return build_engines(replace(self.config, engine=engine))


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


@contextmanager
def serving(
    config: Config, tokenizers: Mapping[str, Tokenizer], factories: Sequence[EngineFactory]
) -> Iterator[Service]:
    """A worker ready to run; everything it owns is closed at the end.

    Raises:
        ConfigError: nothing to consume or to measure is configured, or there is no secret.
        ServiceUnavailableError: broker or database cannot be reached or refuse.
    """
    kafka = require_mirror(config)
    rules = [endpoint.rule for endpoint in config.endpoints.values()]
    telemetry = Telemetry()
    rates = SliceRates({name: tuple(load.concurrency for load in e.rule.loads) for name, e in config.endpoints.items()})
    with ExitStack() as stack:
        load_hash_secret(config)  # refused before anything is waited for
        store = stack.enter_context(patiently(lambda: Store.open(config.database_url)))
        admission = Admission(rules, tokenizers, open_keyed_hash(config, store), rates)
        writer = stack.enter_context(patiently(lambda: DeadLetterWriter(kafka)))
        tap = stack.enter_context(patiently(lambda: KafkaTap(kafka)))
        supervisor = Supervisor(factories, store, config.worker, on_restart=telemetry.engine_restarted)
        stack.enter_context(supervisor)
        pipeline = Pipeline(
            admission,
            BlockFormer(rules),
            joiner=Joiner(DEFAULT_WINDOW),
            message_format=MessageFormat(kafka.format),
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
        stack.enter_context(HealthServer(host.strip("[]"), int(port), telemetry, service.conditions))
        yield service
