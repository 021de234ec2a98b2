"""Which kinds of failure are suspected: on what figures, against which slices, and where nothing is said."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.reports.figures.taxonomy import (
    BEYOND_SHARE,
    EARLY_SHARE,
    GAP,
    MIN_BROKEN,
    MIN_REQUESTS,
    FailureKind,
    SliceFigures,
    suspicions,
)
from tests.store.strategies import FAILURE_NAMES

DRAFTS = 1_000.0


def figures(
    slice_key: str, acceptance: float | None = 0.6, requests: int = 100, counts: Mapping[str, int] | None = None
) -> SliceFigures:
    drafts = 0.0 if acceptance is None else DRAFTS
    return SliceFigures(slice_key, requests, drafts, drafts * (acceptance or 0.0), counts or {})


def kinds(figures: SliceFigures, *others: SliceFigures) -> list[FailureKind]:
    return [each.kind for each in suspicions(figures, others)]


CODE, CHAT = "prompt_class=code,sampling_regime=greedy", "prompt_class=chat,sampling_regime=greedy"
CHAT_HOT = "prompt_class=chat,sampling_regime=high"


def test_a_slice_that_lags_behind_other_content_is_of_another_domain() -> None:
    (found,) = suspicions(figures(CHAT, 0.35), [figures(CODE, 0.6)])
    assert found.kind is FailureKind.DOMAIN_MISMATCH
    assert found.figures == ("acceptance 35.0% against 60.0% of 1 slice of other content",)
    assert kinds(figures(CODE, 0.6), figures(CHAT, 0.35)) == [], "the one in front fails in nothing"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("tool_calling", FailureKind.TOOL_CALLING), ("structured", FailureKind.STRUCTURED_OUTPUT),
     ("code", FailureKind.DOMAIN_MISMATCH)],
)  # fmt: skip
def test_content_is_named_by_its_class(name: str, kind: FailureKind) -> None:
    assert kinds(figures(f"prompt_class={name},sampling_regime=greedy", 0.3), figures(CHAT, 0.6)) == [kind]


def test_a_regime_is_held_against_cooler_ones_of_the_same_content() -> None:
    assert kinds(figures(CHAT_HOT, 0.4), figures(CHAT, 0.6)) == [FailureKind.SAMPLING_REGIME]
    assert kinds(figures(CHAT, 0.4), figures(CHAT_HOT, 0.6)) == [], "cooler ones are not expected to lag"
    assert kinds(figures(CHAT_HOT, 0.4), figures(CODE, 0.6)) == [], "two labels differ: either may be why"


def test_a_context_is_held_against_shorter_ones() -> None:
    short, long = (f"prompt_class=chat,context_bucket={name}" for name in ("<512", "8k-32k"))
    assert kinds(figures(long, 0.4), figures(short, 0.6)) == [FailureKind.LONG_CONTEXT]
    assert kinds(figures(short, 0.4), figures(long, 0.6)) == []
    assert kinds(figures("prompt_class=chat,context_bucket=huge", 0.4), figures(short, 0.6)) == []


def test_several_kinds_at_once_each_with_its_figures() -> None:
    slice_figures = figures(CHAT_HOT, 0.2, counts={"looked_at": 100, "beyond_draft_context": 40})
    found = suspicions(slice_figures, [figures(CHAT, 0.5), figures("prompt_class=code,sampling_regime=high", 0.5)])
    assert [each.kind for each in found] == [
        FailureKind.DOMAIN_MISMATCH,
        FailureKind.SAMPLING_REGIME,
        FailureKind.LONG_CONTEXT,
    ]
    assert found[2].figures == ("40 of 100 requests are longer than the draft's context (40.0%)",)


def test_peers_are_pooled() -> None:
    others = [figures(CODE, 0.9, 10), figures("prompt_class=maths,sampling_regime=greedy", 0.1, 10)]
    assert kinds(figures(CHAT, 0.41), *others) == [], "together they stand at one half"
    assert kinds(figures(CHAT, 0.39), *others) == [FailureKind.DOMAIN_MISMATCH]


@pytest.mark.parametrize("requests", [MIN_REQUESTS - 1, MIN_REQUESTS])
def test_few_requests_say_nothing(requests: int) -> None:
    expected = [FailureKind.DOMAIN_MISMATCH] if requests >= MIN_REQUESTS else []
    assert kinds(figures(CHAT, 0.1, requests), figures(CODE, 0.9)) == expected
    assert kinds(figures(CHAT, 0.1), figures(CODE, 0.9, requests)) == expected
    counts = {"looked_at": 100, "early_known": requests, "early_rejections": requests}
    assert kinds(figures(CHAT, None, counts=counts)) == expected


def test_the_gap_is_one_tenth() -> None:
    assert kinds(figures(CHAT, 0.6 - GAP + 0.001), figures(CODE, 0.6)) == []
    assert kinds(figures(CHAT, 0.6 - GAP - 0.001), figures(CODE, 0.6)) == [FailureKind.DOMAIN_MISMATCH]


def test_shares_speak_without_anything_to_compare_with() -> None:
    early = {"looked_at": 200, "early_known": 100, "early_rejections": round(100 * EARLY_SHARE)}
    assert kinds(figures("", None, counts=early)) == [FailureKind.DOMAIN_MISMATCH]
    assert kinds(figures("prompt_class=structured", None, counts=early)) == [FailureKind.STRUCTURED_OUTPUT]
    assert kinds(figures("", None, counts=early | {"early_rejections": early["early_rejections"] - 1})) == []
    beyond = {"looked_at": 100, "beyond_draft_context": round(100 * BEYOND_SHARE)}
    assert kinds(figures("", None, counts=beyond)) == [FailureKind.LONG_CONTEXT]
    assert kinds(figures("", None, counts=beyond | {"beyond_draft_context": 4})) == []


@pytest.mark.parametrize(
    ("contract", "kind"),
    [("json", FailureKind.STRUCTURED_OUTPUT), ("sql", FailureKind.STRUCTURED_OUTPUT),
     ("tool_call", FailureKind.TOOL_CALLING)],
)  # fmt: skip
def test_a_speculative_arm_that_breaks_more_contracts(contract: str, kind: FailureKind) -> None:
    def counts(base: int, spec: int, of: int) -> dict[str, int]:
        return {
            f"{contract}_baseline_invalid": base, f"{contract}_baseline_valid": of - base,
            f"{contract}_speculative_invalid": spec, f"{contract}_speculative_valid": of - spec,
            f"{contract}_speculative_unfinished": 1_000,
        }  # fmt: skip

    assert kinds(figures("", counts=counts(2, 2 + MIN_BROKEN, 100))) == [kind]
    assert kinds(figures("", counts=counts(2, 1 + MIN_BROKEN, 20))) == [], "too few to be more than chance"
    assert kinds(figures("", counts=counts(2, 2 + MIN_BROKEN, 1_000))) == [], "too small a share"
    assert kinds(figures("", counts=counts(9, 0, 20))) == [], "the baseline's own"
    assert kinds(figures("", counts=counts(0, 19, 19))) == [], "too few outputs"


SLICES = st.builds(
    SliceFigures,
    st.sampled_from(
        ["", CODE, CHAT, CHAT_HOT, "prompt_class=structured", "tier=pro,context_bucket=2k-8k", "odd"]
    ).filter(lambda key: key != "odd"),
    st.integers(0, 1_000),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
    st.dictionaries(st.sampled_from(FAILURE_NAMES), st.integers(0, 1_000)),
)


@given(SLICES, st.lists(SLICES, max_size=4))
def test_whatever_the_counts_it_says_something_or_nothing(figures: SliceFigures, others: list[SliceFigures]) -> None:
    found = suspicions(figures, others)
    assert [each.kind for each in found] == [kind for kind in FailureKind if kind in {each.kind for each in found}]
    assert all(each.figures for each in found)
    assert suspicions(figures, others[::-1]) == found or len(others) > 1
