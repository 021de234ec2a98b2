"""Servers count before the cut: their figures made ours, against the loop's own counting of the same steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.engine.batch import Request, Row
from shadowspec.servers.engines.llamacpp import LlamaCpp
from shadowspec.servers.engines.sglang import Sglang
from shadowspec.servers.engines.vllm import Vllm
from shadowspec.servers.last_step import Ending, VerifyStep, possible_endings
from shadowspec.servers.metrics_page import counts_between, parse
from shadowspec.servers.step_counts import Accepted, UncountableError, from_counters
from shadowspec.servers.stream import Completion
from shadowspec.types import LiveCounts, SamplingParameters, SpeculationCounts
from tests.identities import check_identities

WIDTH = 4
Steps = list[tuple[int, int]]  # drafted and accepted of each; 0 drafted: a plain step


def loop(steps: Steps, max_tokens: int) -> tuple[SpeculationCounts, Completion, Steps, bool | None]:
    """The steps through the in-process engine's own row, until it ends; what a server would have sent and said."""
    most = min(max_tokens, 1 + sum(accepted + 1 for _, accepted in steps))
    row = Row(Request((1, 2, 3), SamplingParameters(max_tokens=most), 0), WIDTH, frozenset(), None)
    sizes = [row.emit([7])]
    taken: Steps = []
    for drafted, accepted in steps:
        if row.finish_reason is not None:
            break
        sizes.append(row.emit([7] * (accepted + 1)))
        row.note_step(drafted, accepted, sizes[-1])
        taken.append((drafted, accepted))
    answer = Completion(tuple(row.output), tuple(sizes), "", "length", len(row.output), 0.0, 1.0, 2.0)
    return row.counts(), answer, taken, row.was_rejected_early()


def said(steps: Steps, *, says_empty: bool = False) -> dict[str, Any]:
    """What a server reports; some also report the steps without a draft, as of 0 tokens."""
    rows = [step for step in steps if step[0] or says_empty]
    return {
        "num_spec_steps": len(rows),
        **({"per_step_drafted": [d for d, _ in rows], "per_step_accepted": [a for _, a in rows]} if rows else {}),
    }


def from_steps(metrics: dict[str, Any], answer: Completion, *lengths: int, drafts_always: bool) -> Accepted:
    return Vllm().count(replace(answer, speculation=metrics), *lengths, drafts_always=drafts_always)


def from_meta_info(meta: dict[str, Any], answer: Completion, *lengths: int) -> Accepted:
    return Sglang().count(replace(answer, speculation=meta), *lengths, drafts_always=True)


ALWAYS = st.lists(st.tuples(st.just(WIDTH), st.integers(0, WIDTH)), min_size=1, max_size=30)
SOMETIMES = st.lists(
    st.one_of(st.just((0, 0)), st.integers(1, WIDTH).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d)))),
    min_size=1,
    max_size=30,
)


@given(ALWAYS, st.integers(1, 60), st.booleans())
def test_steps_that_all_had_drafts_count_as_the_loop_counts_them(steps: Steps, most: int, are_merged: bool) -> None:
    """Wherever the output ends, and also where chunks of the stream came together or no ids came at all."""
    expected, answer, taken, early = loop(steps, most)
    if are_merged:
        answer = Completion(answer.token_ids, (len(answer.token_ids or ()),), "", "length", answer.num_output_tokens,
                            0.0, 1.0, 2.0)  # fmt: skip
    found = from_steps(said(taken), answer, 3, WIDTH, drafts_always=True)
    check_identities(found.counts)
    assert found.is_sure
    assert found.counts == expected
    assert found.is_early_rejection == early


@given(st.lists(st.one_of(st.just((0, 0)), st.tuples(st.just(WIDTH), st.integers(0, WIDTH))), max_size=30))
def test_empty_drafts_that_are_reported_are_plain_steps_of_a_draft_that_is_always_there(steps: Steps) -> None:
    expected, answer, taken, early = loop([(WIDTH, 1), *steps, (WIDTH, 2)], 100)
    found = from_steps(said(taken, says_empty=True), answer, 3, WIDTH, drafts_always=True)
    assert (found.counts, found.is_early_rejection) == (expected, early)


@pytest.mark.parametrize(("accepted", "number", "wanted"), [(0, 20, True), (2, 20, False), (0, 15, None)])
def test_a_draft_that_is_rejected_from_the_start_is_flagged(accepted: int, number: int, wanted: bool | None) -> None:
    _, answer, taken, early = loop([(WIDTH, accepted)] * number, 100)
    assert from_steps(said(taken), answer, 3, WIDTH, drafts_always=True).is_early_rejection is early is wanted


@given(SOMETIMES, st.integers(1, 60), st.booleans())
def test_steps_without_drafts_are_seen_in_the_stream(steps: Steps, most: int, says_empty: bool) -> None:
    """All but one figure is the loop's: whether a last single token was a plain step's nobody says."""
    expected, answer, taken, early = loop(steps, most)
    found = from_steps(said(taken, says_empty=says_empty), answer, 3, WIDTH, drafts_always=False)
    check_identities(found.counts)
    assert found.counts == expected or not found.is_sure
    drafted = found.counts.num_draft_tokens - expected.num_draft_tokens
    is_single = bool(taken) and taken[-1][1] == 0 and taken[-1][0] > 1 and answer.chunk_sizes[-1] == 1
    assert drafted in ((0, taken[-1][0] - 1) if is_single else (0,))
    assert found.counts.num_cut_draft_tokens + drafted == expected.num_cut_draft_tokens
    for name in ("num_drafts", "num_accepted_tokens", "acceptance_histogram", "num_plain_steps", "num_cut_steps",
                 "num_cut_accepted_tokens", "num_accepted_tokens_per_pos", "num_output_tokens"):  # fmt: skip
        assert getattr(found.counts, name) == getattr(expected, name), name
    assert found.is_early_rejection == early


def merged(sizes: tuple[int, ...], data: st.DataObject, most: int = 3) -> tuple[int, ...]:
    """Some chunks of a stream come together."""
    rows = list(sizes)
    for _ in range(data.draw(st.integers(0, most))):
        if len(rows) > 1:
            place = data.draw(st.integers(0, len(rows) - 2))
            rows[place : place + 2] = [sum(rows[place : place + 2])]
    return tuple(rows)


@given(SOMETIMES, st.integers(1, 60), st.data())
def test_chunks_that_came_together_leave_only_the_last_step_unsure(
    steps: Steps, most: int, data: st.DataObject
) -> None:
    """Steps with a draft and their first positions are the loop's, the rest is within one step; sure means equal."""
    expected, answer, taken, early = loop(steps, most)
    sizes = merged(answer.chunk_sizes, data)
    found = from_steps(said(taken), replace(answer, chunk_sizes=sizes), 3, WIDTH, drafts_always=False)
    check_identities(found.counts)
    counts, theirs = found.counts, expected
    assert counts == theirs or not found.is_sure
    assert counts.num_drafts == theirs.num_drafts
    assert counts.num_accepted_tokens_per_pos[0] == theirs.num_accepted_tokens_per_pos[0]
    assert found.is_early_rejection == early
    wrong = abs(counts.num_accepted_tokens - theirs.num_accepted_tokens)
    assert wrong <= Vllm().uncertain_tokens("length", WIDTH, drafts_always=False)


def test_which_counts_may_be_wrong_is_known_before_a_draft() -> None:
    cases = [
        (Vllm(), "stop", True, 0),
        (Vllm(), "stop", False, WIDTH - 1),
        (LlamaCpp(), "stop", True, 1),
        (LlamaCpp(), "length", True, 0),
        (Sglang(), "stop", True, 0),
    ]
    for engine, reason, always, expected in cases:
        assert engine.uncertain_tokens(reason, WIDTH, drafts_always=always) == expected


SHORT = st.lists(st.one_of(st.just(0), st.integers(1, 3)), min_size=1, max_size=5)  # 0: plain; else accepted + 1 of 2


@given(SHORT, st.integers(1, 8), st.data())
def test_the_stories_are_all_that_there_are(emitted: list[int], most: int, data: st.DataObject) -> None:
    """Against every sequence of steps that there can be, written out: which of them give this stream's chunks."""
    steps: Steps = [(2, size - 1) if size else (0, 0) for size in emitted]
    _, answer, taken, _ = loop(steps, most)
    sizes = merged(answer.chunk_sizes, data)
    number = answer.num_output_tokens
    rows = [step for step in taken if step[0]]
    borders = set(accumulate(sizes))
    fits = set()
    for num_plain in range(number):
        for places in combinations(range(num_plain + len(rows)), len(rows)):
            drafts = iter(rows)
            course = [next(drafts) if place in places else None for place in range(num_plain + len(rows))]
            ends = list(accumulate((1 if step is None else step[1] + 1 for step in course), initial=1))
            if ends[-1] < number or (len(ends) > 1 and ends[-2] >= number):
                continue  # it would have gone on, or ended sooner
            if borders <= {*ends[:-1], number}:
                last = course[-1] if course else None
                emits = number - ends[-2] if len(ends) > 1 else 0
                fits.add(Ending(num_plain, None if last is None else VerifyStep(*last, emits)))
    assert set(possible_endings(rows, number, sizes)) == fits


def test_a_stream_that_fits_two_stories_is_not_sure() -> None:
    """One token at the end: a step without a draft, or the last draft rejected whole."""
    answer = Completion((7,) * 4, (1, 1, 1, 1), "", "length", 4, 0.0, 1.0, 2.0)
    assert not from_steps(said([(WIDTH, 0)]), answer, 3, WIDTH, drafts_always=False).is_sure
    assert from_steps(said([(1, 0)]), answer, 3, WIDTH, drafts_always=False).is_sure, "both are counted alike"


def counted(steps: Steps, answer: Completion, **changes: int) -> LiveCounts:
    accepted = [took for _, took in steps]
    per_pos = tuple(sum(took > place for took in accepted) for place in range(WIDTH))
    values = {"num_requests": 1, "num_output_tokens": answer.num_output_tokens, "num_draft_tokens": WIDTH * len(steps)}
    return LiveCounts(num_drafts=len(steps), num_accepted_tokens=sum(accepted), num_accepted_tokens_per_pos=per_pos,
                    **values | changes)  # fmt: skip


@given(ALWAYS, st.integers(1, 60))
def test_counters_around_one_request_count_as_the_loop_does(steps: Steps, most: int) -> None:
    expected, answer, taken, _ = loop(steps, most)
    found = from_counters(counted(taken, answer), answer, 3, WIDTH)
    assert found.counts == expected
    assert found.is_early_rejection is None, "the order of the steps is not known"


def meta_info(steps: Steps, **changes: Any) -> dict[str, Any]:
    """As SGLang says it: the histogram is as long as it has to be."""
    accepted = [took for _, took in steps]
    histogram = [accepted.count(number) for number in range(max(accepted, default=-1) + 1)]
    said = {"spec_verify_ct": len(steps), "spec_num_proposed_drafts": WIDTH * len(steps), "num_retractions": 0}
    return said | {"spec_correct_drafts_histogram": histogram} | changes


@given(ALWAYS, st.integers(1, 60))
def test_a_histogram_of_steps_counts_as_the_loop_does(steps: Steps, most: int) -> None:
    expected, answer, taken, _ = loop(steps, most)
    found = from_meta_info(meta_info(taken) if taken else {}, answer, 3, WIDTH)
    assert found.counts == expected
    assert found.is_sure
    assert found.is_early_rejection is None, "the order of the steps is not known"


@given(ALWAYS, st.integers(2, 60), st.data())
def test_a_histogram_and_chunks_that_came_together_leave_only_the_last_step_unsure(
    steps: Steps, most: int, data: st.DataObject
) -> None:
    """What was accepted in all and at the first position is the loop's all the same."""
    expected, answer, taken, _ = loop(steps, most)
    sizes = list(answer.chunk_sizes)
    place = data.draw(st.integers(0, max(0, len(sizes) - 2)))
    sizes[place : place + 2] = [sum(sizes[place : place + 2])]
    found = from_meta_info(meta_info(taken) if taken else {}, replace(answer, chunk_sizes=tuple(sizes)), 3, WIDTH)
    check_identities(found.counts)
    counts, theirs = found.counts, expected
    assert found.is_sure == (len(answer.chunk_sizes) == 1)
    assert (counts.num_drafts, counts.num_accepted_tokens) == (theirs.num_drafts, theirs.num_accepted_tokens)
    assert counts.num_accepted_tokens_per_pos[0] == theirs.num_accepted_tokens_per_pos[0]
    assert counts.num_cut_accepted_tokens == theirs.num_cut_accepted_tokens
    assert 0 <= counts.num_draft_tokens - theirs.num_draft_tokens < WIDTH


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_retractions": 1}, "thrown out"),
        ({"num_retractions": None, "total_retractions": 2}, "thrown out"),
        ({"spec_verify_ct": None}, "no histogram"),
        ({"spec_correct_drafts_histogram": None}, "no histogram"),
        ({"spec_correct_drafts_histogram": [0, -1, 2]}, "no histogram"),
        ({"spec_correct_drafts_histogram": [0, 0, 3]}, "other steps"),
        ({"spec_correct_drafts_histogram": [1, 0, 1, 0, 0, 0]}, "drafts 5 tokens in a step, and 4"),
        ({"spec_num_proposed_drafts": 9}, "drafts 5 tokens in a step, and 4"),
        ({"spec_num_proposed_drafts": 6}, "drafts 3 tokens in a step, and 4"),
        ({"spec_num_correct_drafts": 5}, "other accepted tokens"),
        ({"spec_correct_drafts_histogram": [2]}, "do not add up"),
        ({"spec_correct_drafts_histogram": [0, 0, 0, 0, 2]}, "do not add up"),
    ],
)
def test_a_histogram_that_does_not_add_up_counts_nothing(changes: dict[str, Any], says: str) -> None:
    _, answer, taken, _ = loop([(WIDTH, 2)] * 2, 8)
    with pytest.raises(UncountableError, match=says):
        from_meta_info(meta_info(taken, **changes), answer, 3, WIDTH)


def test_an_older_name_of_the_histogram_is_known() -> None:
    expected, answer, taken, _ = loop([(WIDTH, 2), (WIDTH, 0)], 8)
    said = meta_info(taken)
    said["spec_accept_histogram"] = said.pop("spec_correct_drafts_histogram")
    assert from_meta_info(said, answer, 3, WIDTH).counts == expected


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_requests": 2}, "another request"),
        ({"num_output_tokens": 99}, "another request"),
        ({"num_draft_tokens": 11}, "fewer tokens"),
    ],
)
def test_a_window_that_another_request_fell_into_counts_nothing(changes: dict[str, int], says: str) -> None:
    _, answer, taken, _ = loop([(WIDTH, 2)] * 3, 8)
    with pytest.raises(UncountableError, match=says):
        from_counters(counted(taken, answer, **changes), answer, 3, WIDTH)


def test_chunks_that_came_together_leave_counters_uncertain() -> None:
    _, answer, taken, _ = loop([(WIDTH, 2)] * 3, 8)
    merged = Completion(answer.token_ids, (1, 7), "", "length", 8, 0.0, 1.0, 2.0)
    with pytest.raises(UncountableError, match="came together"):
        from_counters(counted(taken, answer), merged, 3, WIDTH)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"num_spec_steps": 2}, "not detailed"),
        ({"num_spec_steps": 1, "per_step_accepted": [3], "per_step_drafted": [2]}, "more than it drafted"),
        ({"num_spec_steps": 2, "per_step_accepted": [2, 1], "per_step_drafted": [2, 2]}, "drafts 2 tokens in a step"),
        ({"num_spec_tokens": 2} | said([(WIDTH, 4), (WIDTH, 1)]), "drafts 2 tokens in a step"),
        ({"num_draft_tokens": 9} | said([(WIDTH, 4), (WIDTH, 1)]), "not those of its steps"),
        ({"acceptance_histogram": [0, 2, 0, 0, 0]} | said([(WIDTH, 4), (WIDTH, 1)]), "not those of its steps"),
        ({"num_draft_tokens": 4} | said([(WIDTH, 4), (WIDTH, 1)]), "not those of its steps"),
        ({"num_accepted_draft_tokens": 4} | said([(WIDTH, 4), (WIDTH, 1)]), "not those of its steps"),
        ({"num_spec_steps": 1, "per_step_accepted": [1], "per_step_drafted": [0]}, "more than it drafted"),
        ({"num_spec_steps": 1, "per_step_accepted": [5], "per_step_drafted": [9]}, "drafts 9 tokens in a step"),
        ({"num_spec_steps": 1, "per_step_accepted": ["4"], "per_step_drafted": [4]}, "something else than counts"),
        ({"num_spec_steps": 3, "per_step_accepted": [4, 4, 4], "per_step_drafted": [4, 4, 4]}, "do not add up"),
    ],
)
def test_what_does_not_add_up_is_not_made_up(entry: dict[str, Any], says: str) -> None:
    _, answer, _, _ = loop([(WIDTH, 4), (WIDTH, 1)], 8)
    with pytest.raises(UncountableError, match=says):
        from_steps(entry, answer, 3, WIDTH, drafts_always=True)


PAGE = """\
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 4.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="another"} 50.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 60.0
vllm:generation_tokens_total{engine="1",model_name="m"} 1.0
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 20.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 9.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 6.0
"""


def counters_of(
    drafts: int, drafted: int, accepted: int, per_pos: tuple[int, ...], requests: int, tokens: int
) -> LiveCounts:
    return LiveCounts(drafts, drafted, accepted, per_pos, num_requests=requests, num_output_tokens=tokens)


def test_counters_are_summed_over_engines_and_of_one_model() -> None:
    counters = Vllm().counters_on(PAGE, "m")
    assert counters is not None
    assert replace(counters, num_failed_requests=None) == counters_of(10, 20, 9, (6, 3), 7, 61)
    plain = "".join(line + "\n" for line in PAGE.splitlines() if "spec_decode" not in line)
    assert (parse(plain, Vllm.metrics, "m").is_known, Vllm().counters_on(plain, "m")) == (True, None)
    assert not parse("# TYPE sglang:x counter\nsglang:x_total 1\n", Vllm.metrics, "m").is_known
    with pytest.raises(ValueError, match="not in Prometheus' text format"):
        Vllm().counters_on("<html>\n", "m")


def test_a_server_that_began_anew_is_noticed() -> None:
    earlier, later = counters_of(10, 20, 9, (6, 3), 7, 61), counters_of(12, 24, 10, (7, 3), 8, 70)
    assert counts_between(later, earlier) == counters_of(2, 4, 1, (1, 0), 1, 9)
    assert counts_between(earlier, later) is None
    assert counts_between(counters_of(12, 24, 10, (7, 3, 0), 8, 70), earlier) is None
