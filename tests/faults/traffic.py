"""The traffic of the fault test, and what must come of it whatever happens meanwhile.

Sessions are keyed, so each stays in its partition; some records are malformed or unsupported on purpose.
What is expected is computed by admitting every message once, in the order of its partition, in this process.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shadowspec.tap.admission import Admission, Admitted, Tokenizer
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.sources import RawRecord
from shadowspec.types import FunnelKey, RecordKey
from tests.kafka_topics import Message

START_MS = 1_700_000_000_000
BAD_SHARE = 0.02  # of each kind
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "nobody", "looks"]


def messages(count: int, seed: int, models: Sequence[str] = ("chat-model", "code-model")) -> list[Message]:
    """`count` messages of sessions of one to six requests, interleaved, half a second apart."""
    draw = random.Random(seed)
    sessions: list[tuple[str, str, int]] = []
    made: list[Message] = []
    for number in range(count):
        if not sessions or draw.random() < 0.3:
            sessions.append((f"session-{seed}-{number}", draw.choice(models), draw.randint(1, 6)))
        index = draw.randrange(len(sessions))
        session, model, left = sessions[index]
        if left == 1:
            sessions.pop(index)
        else:
            sessions[index] = (session, model, left - 1)
        made.append(
            Message(_value(draw, number, session, model), session.encode(), timestamp_ms=START_MS + 500 * number)
        )
    return made


def _value(draw: random.Random, number: int, session: str, model: str) -> bytes:
    if draw.random() < BAD_SHARE:
        return draw.choice([b"{", b"\xff\x00", b"[1, 2]", json.dumps({"request": 3}).encode()])
    request = {
        "model": model,
        "prompt": " ".join(draw.choices(WORDS, k=draw.randint(3, 30))),
        "max_tokens": draw.randint(1, 24),
        "temperature": draw.choice([0.0, 0.8]),
    }
    if draw.random() < BAD_SHARE:
        request["logit_bias"] = {"5": 1}
    record = {
        "timestamp": START_MS / 1000 + number / 2,
        "session_id": session,
        "request_id": f"request-{number}",
        "path": "/v1/completions",
        "request": request,
    }
    return json.dumps(record).encode()


@dataclass(frozen=True, slots=True)
class Expected:
    """What must stand in the database and on the dead-letter topic."""

    measured: frozenset[RecordKey]
    funnel: Mapping[FunnelKey, int]
    malformed: frozenset[tuple[int, int]]  # partition, offset


def expected(
    delivered: Iterable[RawRecord], rules: Sequence[EndpointRule], tokenizers: Mapping[str, Tokenizer], secret: bytes
) -> Expected:
    """The fates of all messages, each partition in the order of its offsets."""
    admission = Admission(rules, tokenizers, KeyedHash(secret))
    measured: set[RecordKey] = set()
    funnel: Counter[FunnelKey] = Counter()
    malformed: set[tuple[int, int]] = set()
    for raw in sorted(delivered, key=lambda raw: (raw.key.partition, raw.key.offset)):
        for opened in open_message(raw, MessageFormat.AUTO):
            fate = admission.admit(opened)
            record = fate.record
            funnel[record.endpoint, record.counter, record.reason] += 1
            if isinstance(fate, Admitted):
                measured.add(opened.key)
            if record.counter == "malformed":
                malformed.add((raw.key.partition, raw.key.offset))
    return Expected(frozenset(measured), funnel, frozenset(malformed))
