"""What a validation against llama.cpp collects, compares and writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernels.benchmarks.engines.comparing import DRAFT_NEAR_TIE, FAULT, NEAR_TIE, own_outputs
from kernels.benchmarks.engines.llamacpp import page
from kernels.benchmarks.engines.llamacpp.asking import LlamaAnswer, ask, keep, kept
from kernels.benchmarks.engines.llamacpp.comparing import as_llamacpp, equality
from kernels.benchmarks.engines.llamacpp.ours import LlamaCppOurs
from kernels.benchmarks.engines.llamacpp.ways import WAYS, LlamaWay
from kernels.benchmarks.engines.servers import SERVED_MODEL
from shadowspec.servers.engines import rule_differences
from shadowspec.servers.engines.rules import used_rules
from shadowspec.types import ExpectedCounts, SamplingParameters, SpeculationCounts, VerifyRule
from tests.servers.fake_llamacpp import FakeLlamaCpp
from tests.servers.fake_server import running

PROMPTS = [(5, 6, 7), (5, 6, 7, 8), (9, 9)]
RESULTS = Path(__file__).parents[2] / "kernels" / "benchmarks" / "results" / "validation-llamacpp.json"
DOCS = Path(__file__).parents[2] / "docs" / "research"
GREEDY, LOOKED_UP = WAYS[0], WAYS[2]


def asked(server: FakeLlamaCpp) -> list[LlamaAnswer]:
    sampling = SamplingParameters(temperature=0.0, max_tokens=12, ignore_eos=True)
    with running(server):
        return ask(server.url, PROMPTS, sampling, server.num_speculative_tokens, drafts_always=True)


def test_every_request_is_asked_once_with_its_counts_and_tokens(tmp_path: Path) -> None:
    server = FakeLlamaCpp(3, model=SERVED_MODEL)
    found = asked(server)
    for prompt, each in zip(PROMPTS, found, strict=True):
        body = {"prompt": list(prompt), "n_predict": 12}
        steps = [(drafted, accepted) for drafted, accepted, _ in server.steps(body)[1:] if drafted]
        assert each.tokens == tuple(server.output(body))
        assert (each.counts.num_drafts, each.counts.num_draft_tokens) == (len(steps), sum(one for one, _ in steps))
        assert each.counts.num_accepted_tokens == sum(accepted for _, accepted in steps)
        assert (each.is_sure, each.num_hidden) == (True, 0)
    assert len(server.bodies) == len(PROMPTS)
    keep(tmp_path / "answers.json", found)
    assert kept(tmp_path / "answers.json") == found
    assert kept(tmp_path / "others.json") is None


def test_tokens_without_an_event_are_asked_for_once_more() -> None:
    whole = asked(FakeLlamaCpp(3, model=SERVED_MODEL))
    found = asked(FakeLlamaCpp(3, model=SERVED_MODEL, hidden=frozenset({2, 5})))
    assert [each.tokens for each in found] == [each.tokens for each in whole]
    assert [each.num_hidden for each in found] == [2] * len(PROMPTS)


def counted(
    accepted: int, *, drafted: int = 12, cut_draft: int = 0, cut_accepted: int = 0, cut: int = 0
) -> LlamaAnswer:
    """Four steps of three drafted tokens."""
    counts = SpeculationCounts(4, drafted - cut_draft, accepted, (4, 1, 1), (0, 3, 0, 1), 1 + 4 + accepted - cut, 5, 0,
                               cut, cut_draft, cut_accepted)  # fmt: skip
    return LlamaAnswer((7,) * counts.num_output_tokens, "stop", counts)


def test_a_drafted_end_token_counts_as_llama_cpp_counts_it() -> None:
    """The output ends with the second of three drafted tokens, and the third was accepted too."""
    within = counted(8, cut=1, cut_draft=1, cut_accepted=1)
    assert as_llamacpp(within, is_ours=True)["num_accepted_tokens"] == 7
    assert as_llamacpp(within, is_ours=True)["num_draft_tokens"] == 12
    assert as_llamacpp(within, is_ours=False)["num_accepted_tokens"] == 9
    last = counted(8, cut=1)
    assert as_llamacpp(last, is_ours=True)["num_accepted_tokens"] == 8, "the draft's last token counts"
    at_limit = replace(within, finish_reason="length")
    assert as_llamacpp(at_limit, is_ours=True)["num_accepted_tokens"] == 9


class Models:
    """Gaps as they are given."""

    def __init__(self, target: float, draft: float) -> None:
        self.top_two_gap = lambda *_: target
        self.smallest_draft_gap = lambda *_: draft


@pytest.mark.parametrize(
    ("way", "other", "gaps", "kind"),
    [
        (GREEDY, {"tokens": (7, 8)}, (1e-6, 1.0), NEAR_TIE),
        (GREEDY, {"tokens": (7, 8)}, (1.0, 1e-6), FAULT),
        (GREEDY, {"counts": counted(7).counts}, (1.0, 1e-6), DRAFT_NEAR_TIE),
        (GREEDY, {"counts": counted(7).counts}, (1e-6, 1.0), FAULT),
        (LOOKED_UP, {"counts": counted(7).counts}, (1e-6, 1e-6), FAULT),
        (GREEDY, {}, (1.0, 1.0), None),
    ],
)
def test_a_request_that_differs_has_its_cause(
    way: Any, other: dict[str, Any], gaps: tuple[float, float], kind: str | None
) -> None:
    mine = counted(8)
    found = equality(way, Models(*gaps), [(5,)], [replace(mine, **other)], [mine])  # type: ignore[arg-type]
    assert [each["kind"] for each in found["differences"]] == ([] if kind is None else [kind])
    assert found["equal"] == found["equal_cut"] == (kind is None)


def test_an_output_says_what_was_accepted_where_its_end_is_sure() -> None:
    counts = counted(8).counts
    said = ExpectedCounts(
        4.0, 12.0, 8.0, (4.0, 1.0, 1.0), (0.0, 3.0, 0.0, 1.0), counts.num_output_tokens, 5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    )
    theirs = [counted(8), replace(counted(7), is_sure=False), counted(7)]
    assert own_outputs(theirs, [said] * 3, is_certain=True) == {"requests": 2, "unsure": 1, "equal": 1}


@pytest.fixture(scope="module")
def ours() -> LlamaCppOurs:
    return LlamaCppOurs()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.name))
def test_our_side_drafts_by_the_rules_of_an_endpoint_that_llama_cpp_serves(way: LlamaWay, ours: LlamaCppOurs) -> None:
    config = ours.candidate(way, 4).config.config
    assert rule_differences(config, "llama.cpp") == ()
    assert used_rules(config)["drafts_within_limit"] is True
    assert (config.num_speculative_tokens, config.verify_rule) == (4, VerifyRule.EXACT_MATCH)
    prompts = [tuple(range(5 + row, 15 + row)) * 4 for row in range(6)]
    loop = ours.loop(way, prompts, 11, 4)
    again = ours.replayed(way, prompts, [each.tokens for each in loop], 11, 4)
    assert own_outputs(loop, again, is_certain=True) == {"requests": 6, "unsure": 0, "equal": 6}
    assert sum(each.counts.num_draft_tokens for each in loop) > 0
    assert all(each.counts.num_cut_draft_tokens == 0 for each in loop if each.finish_reason == "length")


def test_the_page_is_that_of_the_committed_results(tmp_path: Path) -> None:
    page.write_page(json.loads(RESULTS.read_text(encoding="utf-8")), tmp_path)
    assert (tmp_path / page.PAGE).read_text(encoding="utf-8") == (DOCS / page.PAGE).read_text(encoding="utf-8")


def test_at_least_98_percent_of_greedy_requests_are_equal_and_no_other_is_without_a_cause() -> None:
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    for found, requests in ((document, 300), (document["real_model"], 100)):
        assert {entry["requests"] for entry in found["equality"]} == {requests}
    for entry in (*document["equality"], *document["real_model"]["equality"]):
        assert entry["equal"] >= 0.98 * entry["requests"]
        assert [each for each in entry["differences"] if each["kind"] == FAULT] == []
