"""From a configuration and files to replayed traffic: models, reader and replayer put together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from shadowspec.app.logged_responses import Ended, logged_responses, model_tokenizers
from shadowspec.app.progress_bar import notes, progress_bar, track_records
from shadowspec.app.replayers import Asked, EndpointReplay, chosen_endpoints, load_endpoint, replayed_record
from shadowspec.config import Config, load_hash_secret
from shadowspec.engine import Models
from shadowspec.engine.replay.pooling import CounterPool
from shadowspec.engine.replay.replayer import Replayed
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.errors import RecordError
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.load_trace import ArrivalTimes
from shadowspec.tap.responses import LoggedCall, ResponseReader
from shadowspec.types import ExpectedCounts, FunnelKey, RecordKey, ReplayedRecord, SpeculationConfig, parse_slice_key

log = logging.getLogger(__name__)

WINDOW: Final = 512  # responses of an endpoint that are sorted by length and scored together

PoolKey = tuple[str, str, int]  # endpoint, slice ("": the whole endpoint), place of the config in `configs`


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """What became of one record: its counters for each config and depth, or where and why it ended."""

    key: RecordKey
    endpoint: str | None
    slice_key: str | None = None
    unit_key: str | None = None
    counts: Mapping[tuple[str, str], tuple[ExpectedCounts, ...]] = field(default_factory=dict)  # by config and rule
    num_near_ties: int = 0
    reason: str | None = None

    def document(self, depths: Sequence[int]) -> dict[str, Any]:
        """One line of `--out`."""
        document: dict[str, Any] = {"key": str(self.key), "endpoint": self.endpoint}
        if self.reason is not None:
            return {**document, "reason": self.reason}
        replays = [
            {"config": name, "verify_rule": rule, "num_speculative_tokens": depth, "expected": asdict(count)}
            for (name, rule), counts in self.counts.items()
            for depth, count in zip(depths, counts, strict=True)
        ]
        return {
            **document,
            "slice": parse_slice_key(self.slice_key or ""),
            "session": self.unit_key,
            "near_tie_tokens": self.num_near_ties,
            "replays": replays,
        }


@dataclass(slots=True)
class ReplayedTraffic:
    """What replaying files came to."""

    depths: tuple[int, ...]
    configs: Mapping[str, tuple[SpeculationConfig, ...]]  # by endpoint
    pools: dict[PoolKey, CounterPool] = field(default_factory=dict)
    funnel: Counter[FunnelKey] = field(default_factory=Counter)  # records that were not replayed
    refusals: dict[str, str] = field(default_factory=dict)  # the first message of each reason that replay itself gave
    num_replayed: int = 0
    num_near_ties: int = 0
    notes: Sequence[str] = ()  # what follows from times that are not the records'


def replay_files(
    config: Config,
    paths: Sequence[str],
    asked: Asked,
    *,
    max_requests: int | None,
    on_outcome: Callable[[RecordOutcome], None],
    on_replayed: Callable[[ReplayedRecord], None] | None = None,
) -> ReplayedTraffic:
    """Replay the responses in files of mirrored traffic, with a progress bar on stderr.

    Args:
        on_outcome: called for every record, in no particular order.
        on_replayed: called for every one that was replayed, with the configs by which it is stored (None: they are not
            needed, and no weights are loaded only for them).
    """
    chosen = chosen_endpoints(config, asked.endpoint)
    secret = load_hash_secret(config)
    with notes.status("loading models"):
        tokenizers = model_tokenizers(config)
        models = Models(config.engine)
        endpoints = {
            name: load_endpoint(endpoint, models, tokenizers[name], asked, is_stored=on_replayed is not None)
            for name, endpoint in chosen.items()
        }
    run = _Run(endpoints, asked.depths, on_outcome, on_replayed)
    rules = [endpoint.rule for endpoint in config.endpoints.values()]
    arrivals = None if config.given_arrivals is None else ArrivalTimes(config.given_arrivals)
    for path in paths:
        if max_requests is not None and run.done.num_replayed >= max_requests:
            break
        # What is stored is chosen by its time.
        reader = ResponseReader(
            rules,
            tokenizers,
            KeyedHash(secret),
            format=config.file_format,
            takes_untimed=on_replayed is None,
            arrivals=arrivals,
        )
        run.read(path, reader, max_requests)
    if arrivals is not None:
        run.done.notes = arrivals.trace.consequences(arrivals.num_given)
    return run.done


class _Run:
    """Reads files and adds up what replaying gives."""

    def __init__(
        self,
        endpoints: Mapping[str, EndpointReplay],
        depths: tuple[int, ...],
        on_outcome: Callable[[RecordOutcome], None],
        on_replayed: Callable[[ReplayedRecord], None] | None,
    ) -> None:
        self._endpoints, self._on_outcome, self._on_replayed = endpoints, on_outcome, on_replayed
        self._waiting: dict[str, list[tuple[LoggedCall, Response]]] = {name: [] for name in endpoints}
        self.done = ReplayedTraffic(depths, {name: endpoint.configs for name, endpoint in endpoints.items()})

    def read(self, path: str, reader: ResponseReader, max_requests: int | None) -> None:
        """Replay one file."""
        texts = {name: endpoint.texts for name, endpoint in self._endpoints.items()}
        with progress_bar() as bar:
            raws = track_records(path, bar, "replaying", lambda: f"{self.done.num_replayed} replayed")
            for response in logged_responses(raws, reader, texts):
                if isinstance(response, Ended):
                    self._end(response)
                    continue
                name = response[0].prompt.endpoint
                self._waiting[name].append(response)
                if len(self._waiting[name]) >= WINDOW:
                    self._replay(name)
                waiting = sum(len(responses) for responses in self._waiting.values())
                if max_requests is not None and self.done.num_replayed + waiting >= max_requests:
                    self._replay_waiting()
                    if self.done.num_replayed >= max_requests:  # else some were refused
                        break
            self._replay_waiting()

    def _replay_waiting(self) -> None:
        for name in self._endpoints:
            self._replay(name)

    def _replay(self, name: str) -> None:
        endpoint = self._endpoints[name]
        waiting, self._waiting[name] = self._waiting[name], []
        results = endpoint.replayer.replay([response for _, response in waiting])
        for (call, _), result in zip(waiting, results, strict=True):
            if isinstance(result, RecordError):
                self._end(Ended.from_error(call, result))
            else:
                self._add(name, endpoint, call, result)

    def _add(self, name: str, replay: EndpointReplay, call: LoggedCall, result: Replayed) -> None:
        done = self.done
        done.num_replayed += 1
        done.num_near_ties += result.num_near_ties
        for slice_key in ("", call.slice_key):
            for place, counts in enumerate(result.counts):
                pool = done.pools.setdefault((name, slice_key, place), CounterPool(done.depths))
                pool.add(call.unit_key, counts)
        by_config = {
            (config.name, config.verify_rule.value): counts
            for config, counts in zip(replay.configs, result.counts, strict=True)
        }
        if self._on_replayed is not None:
            self._on_replayed(replayed_record(call, replay.fingerprints, result))
        key = call.prompt.key
        self._on_outcome(RecordOutcome(key, name, call.slice_key, call.unit_key, by_config, result.num_near_ties))

    def _end(self, ended: Ended) -> None:
        if ended.refusal is not None:
            log.info("%s", ended.refusal)
            self.done.refusals.setdefault(ended.refusal.reason, str(ended.refusal))
        self.done.funnel[ended.end] += 1
        self._on_outcome(RecordOutcome(ended.key, ended.end[0], reason=ended.end[2]))
