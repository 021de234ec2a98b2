"""The worker's pipeline over raw records."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from shadowspec.tap.admission import Admission
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.endpoints import EndpointRule, Load, MatchRule
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.joining import Joiner
from shadowspec.tap.sources import RawRecord
from shadowspec.types import PartitionId, RecordKey
from shadowspec.worker.pipeline import Pipeline
from tests.fakes import FakeTokenizer, endpoint_rule, fake_config
from tests.faults.traffic import messages

SECRET = b"a secret for the tests alone"
CONFIG = fake_config()
RULES = (
    endpoint_rule(
        name="chat", served_models=("chat-model",), match=MatchRule(model="chat-model"), sample_rate=0.8,
        loads=(Load(4),), block_max_wait=timedelta(seconds=60),
    ),
    endpoint_rule(
        name="code", served_models=("code-model",), match=MatchRule(model="code-model"), loads=(Load(2), Load(4)),
        block_max_wait=timedelta(seconds=90),
    ),
)  # fmt: skip
TOKENIZERS = {rule.name: FakeTokenizer() for rule in RULES}


class Letters:
    """Dead letters kept in a list."""

    def __init__(self) -> None:
        self.sent: list[tuple[RecordKey, str, str]] = []

    def send(self, raw: RawRecord, stage: str, reasons: Mapping[str, int]) -> None:
        self.sent.append((raw.key, stage, ", ".join(reasons)))


def pipeline(
    letters: Letters | None = None, rules: Sequence[EndpointRule] = RULES, elsewhere: Collection[str] = ()
) -> tuple[Pipeline, Admission]:
    measured = [rule for rule in rules if rule.name not in elsewhere]
    tokenizers = {rule.name: FakeTokenizer() for rule in measured}
    admission = Admission(rules, tokenizers, KeyedHash(SECRET), elsewhere=elsewhere)
    joiner = Joiner(timedelta(minutes=5))
    return Pipeline(admission, BlockFormer(measured), joiner=joiner, dead_letters=letters), admission


def raw_records(count: int, seed: int, num_partitions: int) -> dict[PartitionId, list[RawRecord]]:
    """The traffic by partition, with the gaps that compaction leaves."""
    draw = random.Random(seed)
    placed: dict[PartitionId, list[RawRecord]] = {}
    for message in messages(count, seed):
        assert message.key is not None
        partition = PartitionId("topic", sum(message.key) % num_partitions)
        entry = placed.setdefault(partition, [])
        offset = entry[-1].key.offset + draw.choice([1, 1, 1, 3]) if entry else draw.randint(0, 5)
        key = RecordKey("topic", partition.partition, offset, message.timestamp_ms or 0)
        entry.append(RawRecord(key, message.value, message_key=message.key))
    return placed
