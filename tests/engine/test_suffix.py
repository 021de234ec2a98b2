"""Drafting by suffix against a search through all tokens, and what is remembered of an endpoint's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.engine.proposers.recent_outputs import OutputsByEndpoint, RecentOutputs
from shadowspec.engine.proposers.suffix import SuffixOptions, SuffixText
from shadowspec.engine.proposers.suffix_automaton import NOTHING, ROOT, SuffixAutomaton
from shadowspec.types import (
    Arm,
    Block,
    FingerprintedConfig,
    RecordKey,
    SamplingParameters,
    ShadowPrompt,
    SpeculationConfig,
    VerifyRule,
)

Tokens = Sequence[int]

texts = st.lists(st.integers(0, 2), max_size=24)
options = st.builds(
    SuffixOptions,
    max_tree_depth=st.integers(2, 9),
    max_spec_factor=st.sampled_from([0.5, 1.0, 1.7, 4.0]),
    min_token_prob=st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]),
)


def ends(string: Tokens, text: Tokens) -> list[int]:
    """Where the string ends in the text, as often as it occurs."""
    size = len(string)
    return [at for at in range(size, len(text) + 1) if tuple(text[at - size : at]) == tuple(string)]


def occurrences(string: Tokens, corpus: Sequence[Tokens]) -> list[tuple[int, int]]:
    return [(number, at) for number, text in enumerate(corpus) for at in ends(string, text)]


def likeliest(string: Tokens, corpus: Sequence[Tokens]) -> int | None:
    """What follows most often; of equals what followed last."""
    followed: dict[int, list[tuple[int, int]]] = {}
    for number, at in occurrences(string, corpus):
        if at < len(corpus[number]):
            followed.setdefault(corpus[number][at], []).append((number, at))
    return max(followed, key=lambda token: (len(followed[token]), max(followed[token])), default=None)


def best_draft(
    text: Tokens, corpus: Sequence[Tokens], num_asking: int, chosen: SuffixOptions, count: int
) -> tuple[list[int], float]:
    """The rule by brute force: every length of match by itself, the longer one of equals."""
    best: list[int] = []
    best_score = 0.0
    for length in range(1, min(chosen.max_tree_depth - 1, len(text)) + 1):
        match = tuple(text[len(text) - length :])
        budget = min(count, int(length * chosen.max_spec_factor + 1e-6), chosen.max_tree_depth - length)
        tokens: list[int] = []
        score, probability = 0.0, 1.0
        before = len(occurrences(match, corpus)) + num_asking
        while len(tokens) < budget and (token := likeliest((*match, *tokens), corpus)) is not None:
            after = len(occurrences((*match, *tokens, token), corpus))
            probability *= after / before
            if probability < chosen.min_token_prob:
                break
            tokens.append(token)
            score += probability
            before = after
        if score >= best_score > 0.0 or score > best_score:
            best, best_score = tokens, score
    return best, best_score


def searched(text: Tokens, outputs: Sequence[Tokens], chosen: SuffixOptions, count: int) -> list[int]:
    """The draft by brute force over the text itself and the outputs."""
    rows, own_score = best_draft(text, [text], 0, chosen, count)
    other, other_score = best_draft(text, outputs, 1, chosen, count)
    return other if other_score > own_score else rows


@settings(max_examples=300, deadline=None)
@given(st.lists(texts, max_size=5), st.integers(0, 5), st.integers(2, 6))
def test_counts_are_those_of_a_search(corpus: list[list[int]], num_removed: int, depth: int) -> None:
    index = SuffixAutomaton(depth)
    for text in corpus:
        index.begin()
        for token in text:
            index.append(token)
    for text in corpus[:num_removed]:
        index.remove(text)
    left = corpus[num_removed:]
    strings = {tuple(text[at : at + size]) for text in corpus for size in range(1, depth + 1) for at in range(24)}
    for string in {*strings, (9,)} - {()}:
        state: int | None = ROOT
        for token in string:
            state = index.following[state].get(token) if state is not None else None
        count = 0 if state is None else index.counts[state]
        assert count == len(occurrences(string, left))
        if state is not None and len(string) < depth:
            wanted = likeliest(string, left)
            assert index.likeliest[state] == (NOTHING if wanted is None else wanted)


@settings(max_examples=300, deadline=None)
@given(st.lists(texts, max_size=4), texts, options, st.integers(1, 6))
def test_drafts_are_those_of_a_search(
    outputs: list[list[int]], text: list[int], chosen: SuffixOptions, count: int
) -> None:
    recent = RecentOutputs(chosen.max_tree_depth, 1_000)
    for number, output in enumerate(outputs):
        recent.add(RecordKey("f", 0, number), output)
    growing = SuffixText(chosen, recent.without(set()), text[:2])
    for at in range(2, len(text) + 1):
        assert growing.draft(count) == searched(text[:at], outputs, chosen, count)
        growing.extend(text[at : at + 1])
    alone = SuffixText(chosen, None, text)
    assert alone.draft(count) == searched(text, [], chosen, count)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), texts.filter(len)), max_size=14),
    st.sets(st.integers(0, 5), max_size=2),
    texts,
    st.integers(1, 50),
)
def test_what_is_remembered_is_bounded_and_the_newest(
    added: list[tuple[int, list[int]]], hidden: set[int], text: list[int], max_tokens: int
) -> None:
    """Against a list that is cut from its front: a request's own earlier output goes, then the oldest ones."""
    chosen = SuffixOptions(max_tree_depth=5, min_token_prob=0.0)
    recent = RecentOutputs(chosen.max_tree_depth, max_tokens)
    kept: list[tuple[int, list[int]]] = []
    for number, output in added:
        recent.add(RecordKey("f", 0, number), output)
        kept = [each for each in kept if each[0] != number] + [(number, output[-max_tokens:])]
        while sum(len(each[1]) for each in kept) > max_tokens:
            kept.pop(0)
        assert recent.num_tokens == sum(len(each[1]) for each in kept) <= max_tokens
    index = recent.without({RecordKey("f", 0, number) for number in hidden})
    outputs = [output for number, output in kept if number not in hidden]
    assert SuffixText(chosen, index, text).draft(4) == searched(text, outputs, chosen, 4)
    everything = [output for _, output in kept]
    assert SuffixText(chosen, recent.without(set()), text).draft(4) == searched(text, everything, chosen, 4)


def test_memory_does_not_grow_with_the_traffic() -> None:
    """States of removed outputs go too: a suffix automaton has at most twice as many states as tokens."""
    recent = RecentOutputs(24, 200)
    sizes = []
    for number in range(400):
        recent.add(RecordKey("f", 0, number), [(number * 7 + at * at) % 50 for at in range(40)])
        sizes.append(len(recent.without(set()).links))
    assert max(sizes) <= 2 * (200 + 200 + 40) + 1


def test_only_suffix_candidates_with_room_remember() -> None:
    def config(proposer: str, memory: int) -> SpeculationConfig:
        return SpeculationConfig("c", "t", None, proposer, 4, VerifyRule.GREEDY_DRAFT, suffix_memory_tokens=memory)

    assert RecentOutputs.of(config("suffix", 10)) is not None
    assert RecentOutputs.of(config("suffix", 0)) is None
    assert RecentOutputs.of(config("ngram", 10)) is None


def test_candidates_and_endpoints_remember_apart() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def block(line: int, endpoint: str = "e") -> Block:
        prompt = ShadowPrompt(RecordKey("f", 0, line), endpoint, now, {}, (1,), SamplingParameters())
        return Block(f"b{line}", line, endpoint, "", 1, (prompt,), (), Arm.BASELINE)

    config = SpeculationConfig("c", "t", None, "suffix", 4, VerifyRule.GREEDY_DRAFT)
    one, other = (FingerprintedConfig(config, "e/1", "cpu", "float32", {}, name) for name in ("one", "other"))
    outputs = OutputsByEndpoint()
    outputs.after(block(1), one, [(1, 2, 3)])
    outputs.after(block(2), one, [None])
    assert outputs.before(block(4), other) is None
    assert outputs.before(block(4, "elsewhere"), one) is None
    index = outputs.before(block(4), one)
    assert index is not None
    assert SuffixText(SuffixOptions(), index, [9, 1]).draft(2) == [2]


def test_a_longer_match_drafts_more_and_a_rare_one_less() -> None:
    chosen = SuffixOptions()
    text = SuffixText(chosen, None, [1, 2, 3, 4, 5, 6, 7, 8, 1])
    assert text.draft(8) == [2]
    text.extend([2, 3])
    assert text.draft(8) == [4, 5, 6]
    assert text.draft(2) == [4, 5]
    assert SuffixText(SuffixOptions(max_spec_factor=2.0), None, [1, 2, 3, 4, 5, 1, 2]).draft(8) == [3, 4, 5, 1]
    assert SuffixText(SuffixOptions(min_token_prob=0.6), None, [1, 2, 1]).draft(8) == []
    assert SuffixText(chosen, None, [1, 2, 3]).draft(8) == []


def test_a_deep_match_leaves_room_for_a_draft() -> None:
    """Match and draft together stay within the depth: of a long match a shorter end is taken."""
    text = SuffixText(SuffixOptions(max_tree_depth=6), None, [*range(20), *range(10)])
    assert text.draft(8) == [10, 11, 12]
