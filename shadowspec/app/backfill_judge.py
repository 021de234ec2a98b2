"""What a backfill does on the cluster: files are read in blocks, and the responses of each are replayed.

Nothing here knows the database.  An error is reported by its kind only: its text may quote a prompt.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from shadowspec.app.logged_responses import Ended, EndpointTexts, logged_responses, model_tokenizers
from shadowspec.app.replay_records import WINDOW
from shadowspec.app.replayers import Asked, EndpointReplay, chosen_endpoints, load_endpoint, replayed_record
from shadowspec.backfill.cluster import Actors, Judge
from shadowspec.backfill.logs import read_log
from shadowspec.backfill.places import describe_place
from shadowspec.backfill.replay_blocks import UnreplayedBlock, Unused, unreplayed_blocks
from shadowspec.config import Config, EndpointConfig
from shadowspec.engine import Models
from shadowspec.engine.models import load_end_token_ids
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.errors import ConfigError, InputError, RecordError, ShadowSpecError
from shadowspec.gc_control import give_back
from shadowspec.tap.formats import FieldMap
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.responses import LoggedCall, ResponseReader
from shadowspec.types import BackfilledBlock, BlockPlace, FingerprintedConfig, ReplayedRecord

log = logging.getLogger(__name__)

Call = tuple[LoggedCall, Response]
Finished = Mapping[str, tuple[set[int], bool]]  # of each source: its finished blocks, and whether these are all


@dataclass(frozen=True, slots=True)
class FileRead:
    """A file read to its end, or why it was not.  `num_blocks` None: all were finished, and nothing was cut again."""

    place: str
    source: str | None
    num_blocks: int | None = None
    error: ShadowSpecError | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A block as it is written."""

    block: BackfilledBlock
    records: tuple[ReplayedRecord, ...] = field(repr=False)
    messages: Mapping[str, str]  # the first of each reason why a record was refused


@dataclass(frozen=True, slots=True)
class FailedBlock:
    """A block that raised what nobody foresaw; its text may quote a prompt, so that the kind is all that is said."""

    place: BlockPlace
    kind: str


def chosen_parallel(config: Config, endpoint: str | None) -> dict[str, EndpointConfig]:
    """The endpoints with the candidates whose acceptance of a response depends only on that response.

    Raises:
        ConfigError: one has none.
    """
    chosen: dict[str, EndpointConfig] = {}
    for name, chosen_endpoint in chosen_endpoints(config, endpoint).items():
        alone = tuple(candidate for candidate in chosen_endpoint.candidates if not candidate.remembers)
        if not alone:
            raise ConfigError(
                f"{config.path}: endpoints.{name}: its candidates draft from the outputs before, whose order blocks do "
                "not keep: replay them with `shadowspec replay`, or set suffix_memory_tokens to 0"
            )
        for candidate in chosen_endpoint.candidates:
            if candidate.remembers:
                log.warning("left out: candidate %r of %s drafts from the outputs before", candidate.name, name)
        chosen[name] = replace(chosen_endpoint, candidates=alone)
    return chosen


def read_file(
    config: Config, asked: Asked, secret: bytes, finished: Finished, place: str
) -> Iterator[UnreplayedBlock[Call] | FileRead]:
    """The blocks of a file that are still to do, then what was read of it."""
    source = None
    try:
        raws = read_log(place, is_mapped=isinstance(config.file_format, FieldMap))
        first = next(raws)
        source = first.key.source
        numbers, is_whole = finished.get(source, (set(), False))
        if is_whole:
            yield FileRead(place, source)
            return
        tokenizers = model_tokenizers(config)
        texts = {
            name: EndpointTexts(tokenizers[name], load_end_token_ids(endpoint.target, tokenizers[name]))
            for name, endpoint in chosen_parallel(config, asked.endpoint).items()
        }
        rules = [endpoint.rule for endpoint in config.endpoints.values()]
        reader = ResponseReader(rules, tokenizers, KeyedHash(secret), format=config.file_format)
        responses = (_tag_endpoint(response) for response in logged_responses(chain([first], raws), reader, texts))
        count = 0
        for block in unreplayed_blocks(source, responses, WINDOW):
            count = block.place.number + 1
            if block.place.number not in numbers:
                yield block
        yield FileRead(place, source, count)
    except ShadowSpecError as error:
        yield FileRead(place, source, error=error)
    except Exception as error:  # its text may quote a prompt
        yield FileRead(
            place, source, error=InputError(f"{describe_place(place)}: reading it ended in {type(error).__name__}")
        )


def build_judge(config: Config, asked: Asked, actors: Actors) -> Judge:
    """Load the models of all endpoints, once in each actor."""
    import torch

    torch.set_num_threads(max(1, int(actors.cpus)))
    endpoints = _load(config, asked)

    def judge(row: UnreplayedBlock[Call] | FileRead) -> Judged | FailedBlock | FileRead:
        if isinstance(row, FileRead):
            return row
        try:
            return _judge(row, endpoints)
        except Exception as error:
            return FailedBlock(row.place, type(error).__name__)
        finally:
            give_back()

    return judge


def fail_block(row: UnreplayedBlock[Call] | FileRead) -> FailedBlock | FileRead:
    """What becomes of a block that ends every process that judges it."""
    return row if isinstance(row, FileRead) else FailedBlock(row.place, "a process that died")


def _judge(block: UnreplayedBlock[Call], endpoints: Mapping[str, EndpointReplay]) -> Judged:
    funnel, messages = Counter(block.funnel), dict(block.messages)
    records: list[ReplayedRecord] = []
    num_near_ties = 0
    if block.endpoint is not None:
        endpoint = endpoints[block.endpoint]
        results = endpoint.replayer.replay([response for _, response in block.calls])
        for (call, _), result in zip(block.calls, results, strict=True):
            if isinstance(result, RecordError):
                ended = Ended.from_error(call, result)
                funnel[ended.end] += 1
                messages.setdefault(result.reason, str(result))
            else:
                records.append(replayed_record(call, endpoint.fingerprints, result))
                num_near_ties += result.num_near_ties
    backfilled = BackfilledBlock(
        place=block.place,
        is_last=block.is_last,
        num_records=block.num_records,
        num_replayed=len(records),
        num_near_ties=num_near_ties,
        funnel=funnel,
        last_event=max((record.event_time for record in records), default=None),
    )
    return Judged(backfilled, tuple(records), messages)


def _load(config: Config, asked: Asked) -> dict[str, EndpointReplay]:
    tokenizers = model_tokenizers(config)
    models = Models(config.engine)
    return {
        name: load_endpoint(endpoint, models, tokenizers[name], asked, is_stored=True)
        for name, endpoint in chosen_parallel(config, asked.endpoint).items()
    }


def fingerprints(config: Config, asked: Asked) -> dict[str, tuple[tuple[FingerprintedConfig, ...], ...]]:
    """What is asked for of each endpoint, by way of drafting and depth; the models are loaded for it."""
    return {name: tuple(tuple(group) for group in replay.fingerprints) for name, replay in _load(config, asked).items()}


def _tag_endpoint(response: Call | Ended) -> tuple[str, Call] | Unused:
    if isinstance(response, Ended):
        return Unused(response.end, str(response.refusal) if response.refusal is not None else None)
    return response[0].prompt.endpoint, response
