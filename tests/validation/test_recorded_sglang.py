"""Greedy answers of SGLang 0.5.23 and its own counts of them, against the product's loop in process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernels.benchmarks.engines.ours import Ours
from kernels.benchmarks.engines.ways import WAYS
from shadowspec.servers.engines import ENGINES
from shadowspec.servers.stream import Completion

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "sglang" / "answers_0_5_23.json").read_text("utf-8"))
ENGINE = ENGINES["sglang"](RECORDED["sglang"])


def completed(answer: dict[str, Any]) -> Completion:
    tokens = tuple(answer["tokens"])
    return Completion(
        token_ids=tokens,
        chunk_sizes=tuple(answer["chunk_sizes"]),
        text="",
        finish_reason=answer["finish_reason"],
        num_output_tokens=len(tokens),
        sent_s=0.0,
        first_token_s=0.1,
        last_token_s=0.2,
        speculation=answer["meta_info"],
    )


def test_what_sglang_counts_of_a_greedy_answer_is_what_our_loop_counts_of_it(ours: Ours) -> None:
    """Every counter, cut at the last token as ours are: outputs that end at a stop or at their length."""
    answers = RECORDED["answers"]
    assert {answer["finish_reason"] for answer in answers} == {"stop", "length"}
    greedy = next(way for way in WAYS if way.name == "greedy")
    prompts = [tuple(answer["prompt"]) for answer in answers]
    for answer, mine in zip(answers, ours.loop(greedy, prompts, RECORDED["max_tokens"], RECORDED["K"], 0), strict=True):
        theirs = ENGINE.count(completed(answer), len(answer["prompt"]), RECORDED["K"], drafts_always=True)
        assert theirs.is_sure
        assert (tuple(answer["tokens"]), theirs.counts) == (mine.tokens, mine.counts)
