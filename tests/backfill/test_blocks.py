"""The cut of a file into blocks: every record is in one of them, once, and the same content is cut the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from shadowspec.backfill.replay_blocks import UnreplayedBlock, Unused, unreplayed_blocks
from shadowspec.types import BlockPlace, FunnelCounter, FunnelKey

MALFORMED: FunnelKey = (None, FunnelCounter.MALFORMED, "no_json")
REFUSED: FunnelKey = ("chat", FunnelCounter.UNSUPPORTED, "no_token_ids")
NO_REASON: FunnelKey = (None, FunnelCounter.DUPLICATE, None)

Found = tuple[str, int] | Unused


def cut(found: list[Found], size: int = 2) -> list[UnreplayedBlock[int]]:
    return list(unreplayed_blocks("digest", iter(found), size))


def test_each_endpoint_fills_blocks_of_its_own_in_order() -> None:
    found: list[Found] = [("chat", 1), ("sql", 2), ("chat", 3), ("chat", 4), ("sql", 5), ("sql", 6)]
    assert [(block.place, block.endpoint, block.calls, block.is_last) for block in cut(found)] == [
        (BlockPlace("digest", 0), "chat", (1, 3), False),
        (BlockPlace("digest", 1), "sql", (2, 5), False),
        (BlockPlace("digest", 2), "chat", (4,), False),
        (BlockPlace("digest", 3), "sql", (6,), True),
    ]


def test_what_is_not_used_is_counted_in_the_block_that_comes_next() -> None:
    first, second = Unused(REFUSED, "[..]@1/0: no token ids"), Unused(REFUSED, "[..]@9/0: no token ids")
    one, two = cut([Unused(MALFORMED), first, ("chat", 1), second, ("chat", 2), Unused(NO_REASON), ("chat", 3)])
    assert one.funnel == {MALFORMED: 1, REFUSED: 2}
    assert one.messages == {"no_token_ids": "[..]@1/0: no token ids"}
    assert one.num_records == 5
    assert (two.calls, two.funnel, two.messages, two.num_records) == ((3,), {NO_REASON: 1}, {}, 2)


def test_a_last_block_holds_what_ended_after_all_responses() -> None:
    (one, two) = cut([("chat", 1), ("chat", 2), Unused(MALFORMED)])
    assert (one.endpoint, one.is_last, one.num_records) == ("chat", False, 2)
    assert (two.endpoint, two.calls, two.funnel, two.is_last) == (None, (), {MALFORMED: 1}, True)


def test_full_blocks_end_without_an_empty_one() -> None:
    assert [(block.calls, block.is_last) for block in cut([("chat", 1), ("chat", 2), ("chat", 3), ("chat", 4)])] == [
        ((1, 2), False),
        ((3, 4), True),
    ]


def test_a_file_without_records_has_an_empty_block() -> None:
    (only,) = cut([])
    assert (only.place.number, only.endpoint, only.calls, only.funnel, only.is_last) == (0, None, (), {}, True)
    assert only.num_records == 0


def test_blocks_are_cut_as_records_come() -> None:
    """A file is never held whole: a block is out as soon as the next one is full."""
    taken: list[int] = []

    def read_all() -> Iterator[tuple[str, int]]:
        for number in range(1000):
            taken.append(number)
            yield "chat", number

    first = next(unreplayed_blocks("digest", read_all(), 2))
    assert first.calls == (0, 1)
    assert len(taken) == 4


records = st.one_of(
    st.tuples(st.sampled_from(["chat", "sql", "sum"]), st.integers()),
    st.builds(Unused, st.sampled_from([MALFORMED, REFUSED, NO_REASON]), st.none() | st.text(max_size=3)),
)


@given(st.lists(records, max_size=40), st.integers(1, 7))
def test_every_record_is_in_one_block(found: list[Found], size: int) -> None:
    made = cut(found, size)
    assert [block.place for block in made] == [BlockPlace("digest", number) for number in range(len(made))]
    assert [block.is_last for block in made] == [False] * (len(made) - 1) + [True]
    assert sum(block.num_records for block in made) == len(found)
    for endpoint in ("chat", "sql", "sum"):
        blocks = [block for block in made if block.endpoint == endpoint]
        assert [call for block in blocks for call in block.calls] == [
            each[1] for each in found if not isinstance(each, Unused) and each[0] == endpoint
        ]
        assert all(len(block.calls) == size for block in blocks[:-1])
        assert all(1 <= len(block.calls) <= size for block in blocks[-1:])
    assert all(not block.calls for block in made if block.endpoint is None)
    ends: Counter[FunnelKey] = Counter()
    for block in made:
        ends.update(block.funnel)
    assert ends == Counter(each.end for each in found if isinstance(each, Unused))
    assert sum(1 for block in made if not block.num_records) <= (not found)
    assert cut(found, size) == made
