"""What would be left to the polling process if others decoded for it: an upper bound, as nothing waits here.

    python -m kernels.benchmarks.tap_pool [MESSAGES]

Processor time per message, in memory, of the benchmark's messages with token ids, everything measured.  Others would
read; the poller would poll, pickle messages, unpickle what was read, and decide.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Sequence
from itertools import pairwise

from kernels.benchmarks.tap import ENDPOINT, SECRET, endpoint, records
from shadowspec import demo
from shadowspec.engine.tokenizer import load_tokenizer
from shadowspec.gc_control import gc_paused
from shadowspec.tap.admission import Admission, Admitted
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.reading import Reading
from shadowspec.tap.routing import Hints
from shadowspec.tap.sources import RawRecord
from shadowspec.types import RecordKey

MESSAGES_PER_POLL = 500
HINTS = Hints(ENDPOINT)


def read(admission: Admission, raws: Sequence[RawRecord]) -> list[Reading]:
    """What a decoding process would do."""
    opened = [each for raw in raws for each in open_message(raw, MessageFormat.AUTO)]
    return admission.reader.read([(each, HINTS) for each in opened])


def decide(admission: Admission, former: BlockFormer, readings: Sequence[Reading]) -> None:
    """What only one process can do, in the order of delivery."""
    for fate in map(admission.decide, readings):
        if isinstance(fate, Admitted):
            former.add(fate.prompt, fate.concurrency)


def main(count: int = 5_000) -> None:
    """Read, send and decide them, and print what each took."""
    tokenizer = load_tokenizer(str(demo.TARGET))
    rule = endpoint(1.0)
    admission, former = Admission([rule], {ENDPOINT: tokenizer}, KeyedHash(SECRET)), BlockFormer([rule])
    raws = [
        RawRecord(RecordKey(ENDPOINT, 0, number, 1_760_000_000_000), value, None, session)
        for number, (session, value) in enumerate(records(count, tokenizer, with_ids=True))
    ]
    clock, spent = time.process_time, [0.0] * 4
    for at in range(0, count, MESSAGES_PER_POLL):
        polled = raws[at : at + MESSAGES_PER_POLL]
        with gc_paused():
            times = [clock()]
            pickle.dumps(polled, pickle.HIGHEST_PROTOCOL)
            times.append(clock())
            readings = read(admission, polled)
            times.append(clock())
            sent = pickle.dumps(readings, pickle.HIGHEST_PROTOCOL)
            times.append(clock())
            back = pickle.loads(sent)  # noqa: S301 - our own, of the line above
            times.append(clock())
            decide(admission, former, back)
            times.append(clock())
        steps = [after - before for before, after in pairwise(times)]
        spent = [so_far + steps[place] for so_far, place in zip(spent, (0, 1, 3, 4), strict=True)]
    for name, seconds in zip(("pickle messages", "read them", "unpickle what was read", "decide"), spent, strict=True):
        print(f"{name}: {seconds / count * 1e6:.1f} us")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
