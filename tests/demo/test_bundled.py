"""What is bundled keeps its promises: enough traffic, told apart as it should be, no loops, small files."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kernels.benchmarks.bundled_pair import BAD_KINDS, BAD_OF_EACH_KIND
from shadowspec import demo
from shadowspec.config import load_config
from shadowspec.quality.outputs import is_repetition_loop
from shadowspec.tap.admission import Admission, Admitted
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.sources import read_records
from shadowspec.types import Block, FunnelCounter, SamplingRegime, StoredRecord
from shadowspec.types.prompt_rules import TemplateTraits
from tests.tap.mirror import admit

MAX_LOOP_SHARE = 0.10
MAX_PAIR_BYTES = 40 * 1_000_000
MAX_TRAFFIC_BYTES = 3 * 1_000_000
MAIN_SLICE_BLOCKS = 70  # full ones, that an endpoint needs for a verdict to be within reach
MAIN_CLASS_SHARE = 0.95


class GivenTokens:
    """The traffic brings its prompt tokens, so that nothing is left to tokenise."""

    context_length = 2_048
    vocabulary_size = 4_096

    def traits_of(self, tools: Any) -> TemplateTraits:
        return TemplateTraits()

    def render_chat(self, messages: Any, tools: Any) -> list[int]:
        raise AssertionError("a record without prompt tokens")

    def encode(self, text: str) -> list[int]:
        raise AssertionError("a record without prompt tokens")


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> list[EndpointRule]:
    folder = tmp_path_factory.mktemp("demo")
    path = folder / "shadowspec.toml"
    path.write_text(demo.demo_config(folder, seed=0), encoding="utf-8")
    return [endpoint.rule for endpoint in load_config(path, environment={}).endpoints.values()]


@pytest.fixture(scope="module")
def whole(rules: list[EndpointRule]) -> list[StoredRecord]:
    """Every line's fate if all sessions were sampled."""
    tokenizer = GivenTokens()
    every = [replace(rule, sample_rate=1.0) for rule in rules]
    admission = Admission(every, {rule.name: tokenizer for rule in rules}, KeyedHash(demo.DEMO_SECRET.encode()))
    return [admit(admission, raw).record for raw in read_records(str(demo.TRAFFIC))]


@pytest.fixture(scope="module")
def admitted(rules: list[EndpointRule]) -> tuple[list[StoredRecord], list[Admitted], list[Block]]:
    """Every line's fate under the demo's own configuration, and the blocks that are formed."""
    tokenizer = GivenTokens()
    admission = Admission(rules, {rule.name: tokenizer for rule in rules}, KeyedHash(demo.DEMO_SECRET.encode()))
    former = BlockFormer(rules)
    fates = [admit(admission, raw) for raw in read_records(str(demo.TRAFFIC))]
    timed = [fate for fate in fates if isinstance(fate, Admitted)]
    blocks = [block for one in timed for block in former.add(one.prompt, one.concurrency)]
    return [fate.record for fate in fates], timed, [*blocks, *former.drain()]


def usable(records: Sequence[StoredRecord]) -> list[StoredRecord]:
    return [one for one in records if one.counter in {FunnelCounter.MEASURED, FunnelCounter.SAMPLED_OUT}]


def test_there_is_enough_of_everything(whole: list[StoredRecord]) -> None:
    records = usable(whole)
    assert len(records) >= 3_000
    by_endpoint = Counter(record.endpoint for record in records)
    assert set(by_endpoint) == set(demo.SERVED_MODELS)
    regimes = {(record.endpoint, record.labels["sampling_regime"]) for record in records}
    assert len(regimes) == len(by_endpoint)  # each endpoint samples in one way
    large = {regime for endpoint, regime in regimes if by_endpoint[endpoint] >= 1_000}
    assert SamplingRegime.GREEDY in large
    assert len(large) >= 2
    sessions = {record.session_hash for record in records}
    assert 2.0 <= len(records) / len(sessions) <= 3.0


def test_each_endpoint_is_mostly_of_one_class(whole: list[StoredRecord]) -> None:
    classes: dict[str | None, Counter[str]] = defaultdict(Counter)
    for record in usable(whole):
        classes[record.endpoint][record.labels["prompt_class"]] += 1
    for counted in classes.values():
        assert counted.most_common(1)[0][1] >= MAIN_CLASS_SHARE * counted.total()


def test_two_endpoints_have_the_blocks_for_a_verdict(
    admitted: tuple[list[StoredRecord], list[Admitted], list[Block]],
) -> None:
    full = Counter((block.endpoint, block.slice_key) for block in admitted[2] if len(block.requests) == block.n_max)
    assert sum(count >= MAIN_SLICE_BLOCKS for count in full.values()) >= 2


def test_bad_lines_show_with_their_reasons(
    whole: list[StoredRecord], admitted: tuple[list[StoredRecord], list[Admitted], list[Block]]
) -> None:
    def refused(records: Sequence[StoredRecord]) -> Counter[tuple[str, str | None]]:
        return Counter((record.counter, record.reason) for record in records if record not in usable([record]))

    assert len(refused(whole)) == len(BAD_KINDS)
    assert set(refused(whole).values()) == {BAD_OF_EACH_KIND}
    shown = set(refused(admitted[0]))
    assert shown <= set(refused(whole))
    assert len(shown) >= len(BAD_KINDS) - 1  # not every body is read: all of one kind may be of sessions not sampled


def test_arrivals_span_one_hour(admitted: tuple[list[StoredRecord], list[Admitted], list[Block]]) -> None:
    times = [record.event_time for record in admitted[0] if record.event_time is not None]
    assert times == sorted(times)
    assert 3_000 < (times[-1] - times[0]).total_seconds() < 3_600


def test_few_answers_are_stuck_in_a_loop() -> None:
    loops: dict[str, list[bool]] = defaultdict(list)
    for line in gzip.decompress(demo.TRAFFIC.read_bytes()).decode().splitlines():
        if line.startswith("[") or not line.endswith("}"):
            continue  # bad on purpose
        record = json.loads(line)
        loops[record["request"]["model"]].append(is_repetition_loop(record["response"]["choices"][0]["token_ids"]))
    for model in demo.SERVED_MODELS.values():
        assert sum(loops[model]) < MAX_LOOP_SHARE * len(loops[model])


def test_the_target_had_the_lowest_held_out_loss() -> None:
    assert "The target has the lowest loss in every domain." in (demo.TRAFFIC.parent / "MODEL_CARD.md").read_text(
        encoding="utf-8"
    )


def test_the_files_are_small() -> None:
    pair = [path for folder in (demo.TARGET, demo.DRAFT) for path in folder.iterdir()]
    assert sum(path.stat().st_size for path in pair) <= MAX_PAIR_BYTES
    assert demo.TRAFFIC.stat().st_size <= MAX_TRAFFIC_BYTES
