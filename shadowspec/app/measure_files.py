"""From a configuration to a running pipeline: models, engines, admission, blocks and store put together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.progress import Progress as Bar
from rich.progress import TaskID

from shadowspec.app.before_loading import (
    connect_servers,
    load_scorers,
    open_keyed_hash,
    open_tokenizers,
    require_endpoints,
)
from shadowspec.app.progress_bar import notes, progress_bar
from shadowspec.config import Config, load_hash_secret
from shadowspec.servers.measure_servers import ServerEngine
from shadowspec.store import Store
from shadowspec.tap.admission import Admission
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.joining import DEFAULT_WINDOW, Joiner
from shadowspec.tap.load_trace import ArrivalTimes
from shadowspec.tap.reading import Tokenizer
from shadowspec.tap.sources import STANDARD_INPUT, RawRecord, read_records
from shadowspec.text import plural
from shadowspec.types import FunnelKey
from shadowspec.worker.files import BlockRunner, FileRun, InProcess, Progress
from shadowspec.worker.pipeline import Pipeline

if TYPE_CHECKING:
    from shadowspec.engine import Engine


@dataclass(slots=True)
class _Lines:
    """Those of one reason."""

    first: int
    last: int  # that was sent: of a line that is an array each record may be
    number: int = 1

    def add(self, line: int) -> None:
        self.first = min(self.first, line)  # halves that waited for their other half come late
        self.number += line != self.last
        self.last = line


class Unreadable:
    """Takes a file's dead letters: the first line of each reason is remembered, the others are counted."""

    def __init__(self, path: str) -> None:
        """`path` as messages name it; - is standard input."""
        self._name = "standard input" if path == STANDARD_INPUT else path
        self._noun = "row" if path.endswith(".parquet") else "line"
        self._lines: dict[str, _Lines] = {}  # by reason

    def send(self, raw: RawRecord, stage: str, reasons: Mapping[str, int]) -> None:
        """Take a message; of a file, the offset is the line."""
        line = raw.key.offset
        for reason in reasons:
            if reason in self._lines:
                self._lines[reason].add(line)
            else:
                self._lines[reason] = _Lines(line, line)

    def tell(self) -> None:
        """Say on stderr where they are, if there is one."""
        for reason, line in self._lines.items():
            more = f", and {plural(line.number - 1, f'more {self._noun}')}" if line.number > 1 else ""
            where = f"{self._name}, {self._noun} {line.first}{more}"
            notes.print(f"{reason}: {where}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def unreadable_in(path: str) -> Iterator[Unreadable]:
    """Takes a file's dead letters, and reports them at the end, also if the file was not read to its end."""
    unreadable = Unreadable(path)
    try:
        yield unreadable
    finally:
        unreadable.tell()


log = logging.getLogger(__name__)


def build_engines(config: Config) -> Mapping[str, Engine | ServerEngine]:
    """The engine of each endpoint; models are loaded once and shared, pairs are checked, servers are looked at.

    Raises:
        ConfigError: a function that scores outputs is not there, or what judges SQL; or models are to be loaded, and
            the extra `engine` is not installed.
        ModelError: a model cannot be loaded, or a pair does not fit together.
        ServiceUnavailableError: a server gives no usable answer.
    """
    if any(endpoint.loads_models for endpoint in config.endpoints.values()):
        from shadowspec.app.model_engines import build_model_engines

        return build_model_engines(config)
    scorers = load_scorers(config)  # without torch: a fleet has a process for each pair of servers
    return {name: connect_servers(config, endpoint, scorers[name]) for name, endpoint in config.endpoints.items()}


@dataclass(frozen=True, slots=True)
class FileMeasurement:
    """What measuring files came to: how far each was read, and where the records newly counted ended."""

    progress: tuple[Progress, ...]
    funnel: Mapping[FunnelKey, int]


def measure_files(config: Config, paths: Sequence[str], *, max_requests: int | None) -> FileMeasurement:
    """Measure files of mirrored traffic one after the other, with a progress bar on stderr."""
    require_endpoints(config)
    load_hash_secret(config)  # refused before models are loaded
    with Store.open(config.database_url) as store:
        with notes.status("loading models"):
            engines = build_engines(config)
        return measure_with(config, engines, store, paths, max_requests=max_requests)


def measure_with(
    config: Config,
    engines: Mapping[str, Engine | ServerEngine],
    store: Store,
    paths: Sequence[str],
    *,
    max_requests: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> FileMeasurement:
    """`measure_files` with engines that are loaded and a store that is open.

    Args:
        engines: by endpoint.
        on_progress: called after every record and block in place of the progress bar; what it raises ends measuring,
            and what was measured is stored.
    """
    for engine in {id(engine): engine for engine in engines.values()}.values():
        store.save_fingerprints(engine.configs)
    before = store.funnel()
    runner = InProcess(engines)
    with open_tokenizers(config) as tokenizers:
        measure = partial(_measure_file, config, open_keyed_hash(config, store), runner, tokenizers, store, on_progress)
        progress = one_by_one(paths, max_requests, measure)
    in_process = (engine for engine in engines.values() if not isinstance(engine, ServerEngine))
    if ran := next((engine.kernels_ran() for engine in in_process), {}):  # of all: they share what runs kernels
        log.info("rows that kernels took, by backend: %s", ran)
    return FileMeasurement(progress, Counter(store.funnel()) - Counter(before))


def one_by_one(
    paths: Iterable[str], max_requests: int | None, measure: Callable[[str, int | None], Progress]
) -> tuple[Progress, ...]:
    """Measure files one after the other, until this number of requests is measured in all (None: every one).

    Args:
        measure: measures one file, and stops reading it after this number of requests.
    """
    measured: list[Progress] = []
    for path in paths:
        left = None if max_requests is None else max_requests - sum(progress.requests_measured for progress in measured)
        if left is not None and left <= 0:
            break
        measured.append(measure(path, left))
    return tuple(measured)


def _measure_file(
    config: Config,
    keyed_hash: KeyedHash,
    runner: BlockRunner,
    tokenizers: Mapping[str, Tokenizer],
    store: Store,
    on_progress: Callable[[Progress], None] | None,
    path: str,
    max_requests: int | None,
) -> Progress:
    with unreadable_in(path) as unreadable:
        pipeline = new_pipeline(config, tokenizers, keyed_hash, unreadable)
        if on_progress is not None:
            run = FileRun(pipeline, runner, store, max_requests=max_requests, on_progress=on_progress)
            return run.run(read_records(path))
        with progress_bar() as bar:
            return _measure_with_bar(bar, pipeline, runner, store, path, max_requests)


def _measure_with_bar(
    bar: Bar, pipeline: Pipeline, runner: BlockRunner, store: Store, path: str, max_requests: int | None
) -> Progress:
    records: Iterable[RawRecord] = read_records(path)
    total = None
    if path != STANDARD_INPUT:
        # Decoding is cheap beside measuring, so the file is held once in order to know its length.
        records = list(records)
        total = len(records)
    task = bar.add_task(f"measuring {path}", total=total, detail="")
    show = partial(show_progress, bar, task)
    return FileRun(pipeline, runner, store, max_requests=max_requests, on_progress=show).run(records)


def new_pipeline(
    config: Config, tokenizers: Mapping[str, Tokenizer], keyed_hash: KeyedHash, unreadable: Unreadable
) -> Pipeline:
    """The pipeline of one file: what a session was is forgotten with it."""
    rules = [endpoint.rule for endpoint in config.endpoints.values()]
    admission = Admission(rules, tokenizers, keyed_hash)
    return Pipeline(
        admission,
        BlockFormer(rules),
        joiner=Joiner(DEFAULT_WINDOW),
        message_format=config.file_format,
        dead_letters=unreadable,
        keeps_messages=False,  # of a file none is poisoned, and it is there to be read again
        arrivals=None if config.given_arrivals is None else ArrivalTimes(config.given_arrivals),
    )


def show_progress(bar: Bar, task: TaskID, progress: Progress) -> None:
    """How far a file is measured."""
    measured_before = f", {progress.requests_found} requests found" if progress.requests_found else ""
    bar.update(
        task, completed=progress.records_read, detail=f"{progress.blocks_measured} blocks measured{measured_before}"
    )
