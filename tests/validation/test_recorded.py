"""The product's proposers against answers that vLLM 0.32.0 gave: tokens, steps, drafted and accepted counts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernels.benchmarks.engines.collecting import Answered, Prompt
from kernels.benchmarks.engines.comparing import own_outputs
from kernels.benchmarks.engines.counted import Counted
from kernels.benchmarks.engines.ours import Ours
from kernels.benchmarks.engines.ways import WAYS, Way
from shadowspec.types import ExpectedCounts

# Written by `make validate-vllm`'s servers: a few of its 300 requests, at K = 4 and 64 tokens.
RECORDED = json.loads((Path(__file__).parents[1] / "data" / "vllm" / "answers_0_32_0.json").read_text(encoding="utf-8"))
DEPTH, MAX_TOKENS = RECORDED["K"], RECORDED["max_tokens"]
BY_NAME = {way.name: way for way in WAYS}


@dataclass(frozen=True)
class Requests:
    """What was asked in one way, and how vLLM counted it."""

    way: Way
    prompts: list[Prompt]
    theirs: list[Counted]

    @classmethod
    def of(cls, name: str) -> Requests:
        way = BY_NAME[name]
        prompts = [tuple(each["prompt"]) for each in RECORDED["ways"][name]]
        answers = [Answered.read(each["answer"]) for each in RECORDED["ways"][name]]
        theirs = [
            Counted.of_server(answer, len(prompt), DEPTH, drafts_always=not way.is_lookup)
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        return cls(way, prompts, theirs)

    def num_equal(self, ours: Ours) -> int:
        """Requests that our loop decodes to the same tokens in the same steps."""
        loop = ours.loop(self.way, self.prompts, MAX_TOKENS, DEPTH, 0)
        return sum(
            (mine.tokens, mine.uncut) == (other.tokens, other.uncut)
            for mine, other in zip(loop, self.theirs, strict=True)
        )

    def expected(self, ours: Ours, *, names_engine: bool = True) -> list[ExpectedCounts]:
        """What our replay expects vLLM to have accepted in giving its outputs."""
        outputs = [each.tokens for each in self.theirs]
        found = ours.replayed(self.way, self.prompts, outputs, [DEPTH], names_engine=names_engine)
        assert None not in found, "vLLM's target is ours"
        return [each[0] for each in found if each is not None]


@pytest.mark.parametrize("name", ["greedy", "ngram"])
def test_greedy_requests_take_the_steps_that_they_took_on_vllm(name: str, ours: Ours) -> None:
    asked = Requests.of(name)
    assert sum(each.uncut.num_accepted_tokens for each in asked.theirs) > 0
    assert asked.num_equal(ours) == len(asked.prompts)


def test_another_rule_takes_other_steps(ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the serving engine, which is what the comparison must not pass."""
    asked = Requests.of("ngram")
    monkeypatch.setattr(ours, "_configured", ours._by_default)
    assert asked.num_equal(ours) < len(asked.prompts)


@pytest.mark.parametrize("name", ["greedy_draft", "ngram_sampled"])
def test_sampled_outputs_say_what_vllm_accepted_of_drafts_that_are_certain(name: str, ours: Ours) -> None:
    asked = Requests.of(name)
    found = own_outputs(asked.theirs, asked.expected(ours), is_certain=True)
    assert found["equal"] == found["requests"] > 1
    if name == "ngram_sampled":
        other = own_outputs(asked.theirs, asked.expected(ours, names_engine=False), is_certain=True)
        assert other["equal"] < other["requests"], "the two rules can be told apart"
