"""The traffic file: what the target really answers, in the form the tap reads, with bad lines where they are meant."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.benchmarks import bundled_pair
from kernels.benchmarks.bundled_pair import (
    BAD_KINDS,
    BAD_OF_EACH_KIND,
    ENDPOINTS,
    Document,
    Endpoint,
    TrafficMaker,
    load_model,
    load_tokenizer,
    make_traffic,
)
from kernels.benchmarks.decoding import in_batches
from shadowspec.engine.batch import Request
from shadowspec.tap.admission import Admission
from shadowspec.tap.endpoints import MatchRule
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.sources import RawRecord
from shadowspec.types import FunnelCounter, RecordKey, SamplingParameters
from shadowspec.types.prompt_rules import TemplateTraits
from tests.fakes import endpoint_rule
from tests.tap.mirror import admit

NUM_SESSIONS = 6
GREEDY_MODELS = {plan.served_model for plan in ENDPOINTS if plan.parameters["temperature"] == 0.0}
MAX_TOKENS = 6
ENDS = frozenset({2})  # of the pair
START = datetime(2023, 11, 16, 18, 15, tzinfo=UTC)
BAD_FATES = {
    ("malformed", "not_json"),
    ("malformed", "not_an_object"),
    ("unsupported", "truncated"),
    ("unsupported", "cache_hit"),
    ("unsupported", "image_content"),
    ("unsupported", "silent_experiment"),
    ("unsupported", "no_endpoint"),
    ("duplicate", "seen_before"),
}


def small(plan: Endpoint) -> Endpoint:
    return plan._replace(num_sessions=NUM_SESSIONS, parameters={**plan.parameters, "max_tokens": MAX_TOKENS})


@pytest.fixture(scope="module")
def make(
    pair_folder: Path, held_out: Sequence[Document], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Path]]:
    """Makes traffic from the small pair and documents; the same name is made once."""
    rng = random.Random(0)
    times = sorted(START + timedelta(seconds=rng.uniform(0, 3_600)) for _ in range(3_000))
    folder = tmp_path_factory.mktemp("traffic")

    def made(name: str, seed: int = 3) -> Path:
        out = folder / name / "traffic.jsonl.gz"
        if not out.exists():
            make_traffic(folder, out, seed, pair_folder / "target", folder)
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundled_pair, "ENDPOINTS", tuple(small(plan) for plan in ENDPOINTS))
        patch.setattr(bundled_pair, "read_documents", lambda _corpora: list(held_out))
        patch.setattr(bundled_pair, "read_trace", lambda _traces, _name: times)
        yield made


class PairTokenizer:
    """The pair's tokenizer as the tap asks for it."""

    context_length = 2_048

    def __init__(self, folder: Path) -> None:
        self._tokenizer = load_tokenizer(folder)
        self.vocabulary_size = 4_096

    def traits_of(self, tools: Any) -> TemplateTraits:
        return TemplateTraits()

    def render_chat(self, messages: Any, tools: Any) -> list[int]:
        text = self._tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])


def lines_of(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def objects(lines: Sequence[str]) -> list[dict[str, Any]]:
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def summary_of(path: Path) -> dict[str, Any]:
    return json.loads(path.with_name("traffic.summary.json").read_text())


def good_records(path: Path) -> list[dict[str, Any]]:
    return [record for record in objects(lines_of(path)) if not record["response"]["id"].startswith("resp-")]


def test_every_line_ends_where_it_is_meant_to(make: Callable[..., Path], pair_folder: Path) -> None:
    lines = lines_of(make("a"))
    rules = [
        endpoint_rule(plan.name, (plan.served_model,), MatchRule(model=plan.served_model), timed_positions=2)
        for plan in ENDPOINTS
    ]
    tokenizer = PairTokenizer(pair_folder / "target")
    admission = Admission(rules, {rule.name: tokenizer for rule in rules}, KeyedHash(b"a secret for the tests alone"))
    fates = [admit(admission, RawRecord(RecordKey("f", 0, number), line.encode())) for number, line in enumerate(lines)]
    ends = Counter((str(fate.record.counter), fate.record.reason) for fate in fates)
    bad = {end: count for end, count in ends.items() if end not in {("measured", None), ("sampled_out", "not_timed")}}
    assert bad == dict.fromkeys(BAD_FATES, BAD_OF_EACH_KIND)
    assert len(BAD_FATES) == len(BAD_KINDS)
    timed = Counter(fate.record.endpoint for fate in fates if fate.record.counter is FunnelCounter.MEASURED)
    assert all(NUM_SESSIONS // 2 <= timed[plan.name] <= NUM_SESSIONS for plan in ENDPOINTS)
    repeated = Counter(record["request_id"] for record in objects(lines))
    assert sum(count - 1 for count in repeated.values()) == BAD_OF_EACH_KIND  # the duplicates, and they alone
    times = [fate.record.event_time for fate in fates if fate.record.event_time is not None]
    assert times == sorted(times)


def test_prompt_tokens_are_the_servers_own(make: Callable[..., Path], pair_folder: Path) -> None:
    tokenizer = PairTokenizer(pair_folder / "target")
    for record in good_records(make("a")):
        request, response = record["request"], record["response"]
        if "messages" in request:
            assert tokenizer.render_chat(request["messages"], None) == response["prompt_token_ids"]
        else:
            assert tokenizer.encode(request["prompt"]) == response["choices"][0]["prompt_token_ids"]
        assert response["usage"]["completion_tokens"] == len(response["choices"][0]["token_ids"]) <= MAX_TOKENS


def test_greedy_answers_are_what_transformers_generates(make: Callable[..., Path], pair_folder: Path) -> None:
    target = load_model(pair_folder / "target")
    checked = 0
    for record in good_records(make("a")):
        if record["request"]["model"] not in GREEDY_MODELS:
            continue
        choice = record["response"]["choices"][0]
        ids = torch.tensor([record["response"].get("prompt_token_ids", choice.get("prompt_token_ids"))])
        with torch.inference_mode():
            generated = target.generate(ids, max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=0)
        assert generated[0, ids.shape[1] :].tolist() == choice["token_ids"]
        checked += 1
    assert checked >= NUM_SESSIONS * len(GREEDY_MODELS)


def test_sampled_answers_have_the_targets_distribution(pair_folder: Path) -> None:
    target = load_model(pair_folder / "target")
    sampling = SamplingParameters(temperature=0.8, top_p=0.5, max_tokens=1)
    prompt = (1, 40, 41, 42)
    draws = in_batches(target, [Request(prompt, sampling, seed) for seed in range(4_000)], end_token_ids=ENDS)
    with torch.inference_mode():
        logits = target(torch.tensor([prompt])).logits[0, -1].double()
    ordered, order = torch.softmax(logits / 0.8, -1).sort(descending=True)
    kept = int((ordered.cumsum(0) - ordered < 0.5).sum())
    head = ordered[:kept] / ordered[:kept].sum()
    counts = Counter(decoded.output[0] for decoded in draws)
    assert set(counts) <= set(order[:kept].tolist())
    top = min(50, kept)
    observed = torch.tensor([counts[int(token)] for token in order[:top]], dtype=torch.float64)
    expected = head[:top] * len(draws)
    # Chi-square per cell averages 1; 50 cells stay below 1.8 but once in 10,000 seeds.
    assert float(((observed - expected) ** 2 / expected).mean()) < 1.8


def test_an_answer_does_not_depend_on_its_batch(pair_folder: Path) -> None:
    target = load_model(pair_folder / "target")
    sampling = SamplingParameters(temperature=0.8, top_p=0.95, max_tokens=MAX_TOKENS)
    requests = [Request(tuple(range(7, 12 + index * 5 % 12)), sampling, index) for index in range(12)]
    together = [decoded.output for decoded in in_batches(target, requests, end_token_ids=ENDS)]
    parts = [requests[:5], requests[5:], *([request] for request in requests)]
    decoded = [one.output for part in parts for one in in_batches(target, part, end_token_ids=ENDS)]
    apart, alone = decoded[: len(requests)], decoded[len(requests) :]
    assert together == apart == alone
    assert len(set(alone)) == len(requests)


def test_sessions_keep_their_order_and_their_user(make: Callable[..., Path]) -> None:
    sessions: dict[str, list[dict[str, Any]]] = {}
    for record in good_records(make("a")):
        sessions.setdefault(record["session_id"], []).append(record)
    assert len(sessions) == NUM_SESSIONS * len(ENDPOINTS)
    for records in sessions.values():
        assert len({(r["user"], r["request"]["model"], r["metadata"]["tier"]) for r in records}) == 1
        prompts = [
            [
                message["content"]
                for message in record["request"].get("messages", [{"content": record["request"].get("prompt")}])
            ]
            for record in records
        ]
        assert all(len(" ".join(a)) <= len(" ".join(b)) for a, b in pairwise(prompts)) or (
            records[0]["request"]["model"] in {"demo-sql", "demo-json", "demo-story"}
        )


@pytest.mark.all
def test_the_same_seed_makes_the_same_file(make: Callable[..., Path]) -> None:
    first, again, other = make("a"), make("b"), make("c", seed=4)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    assert summary_of(first) == summary_of(again)


def test_answers_that_stand_in_the_training_text_are_dropped(pair_folder: Path, held_out: Sequence[Document]) -> None:
    plan = small(ENDPOINTS[0])
    free, counts = TrafficMaker(pair_folder / "target", list(held_out), 3).endpoint(plan)
    assert counts["answers_dropped"] == 0
    known = free[0][0].text
    documents = [*held_out, Document("prose", "training", False, text=f"so {known} indeed")]
    bound, counts = TrafficMaker(pair_folder / "target", documents, 3).endpoint(plan)
    assert known not in [answered.text for session in bound for answered in session]
    assert counts["answers_dropped"] >= 1
    assert all(len(session) >= 1 for session in bound)
