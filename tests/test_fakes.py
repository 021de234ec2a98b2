"""The fakes that ship: they keep the identities that real runs keep, and are the same every time."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shadowspec import metrics
from shadowspec.tap.admission import Tokenizer
from shadowspec.types import SamplingParameters
from tests.fakes import FakeEngine, FakeEngineFactory, FakeTokenizer, Marks, fake_config
from tests.identities import check_identities
from tests.worker.blocks import block, prompt


@given(
    offset=st.integers(1, 10**9),
    depth=st.integers(1, 8),
    max_tokens=st.integers(1, 60),
    acceptance_rate=st.floats(0.0, 1.0),
    temperature=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 9),
)
def test_fake_figures_keep_the_identities(
    offset: int, depth: int, max_tokens: int, acceptance_rate: float, temperature: float, seed: int
) -> None:
    config = fake_config("any", depth)
    asked = replace(prompt(offset), sampling=SamplingParameters(temperature=temperature, max_tokens=max_tokens))
    given_block = block(asked)
    engine = FakeEngine((config,), seed=seed, acceptance_rate=acceptance_rate)
    (run,) = engine.measure(given_block).runs
    assert run.counts is not None
    assert run.baseline is not None
    assert run.speculative is not None
    assert run.parity is not None
    check_identities(run.counts)
    assert len(run.counts.acceptance_histogram) == depth + 1
    assert 1 <= run.counts.num_output_tokens <= max_tokens
    assert run.counts.num_prompt_tokens == len(asked.prompt_token_ids)
    assert run.baseline.num_output_tokens == run.speculative.num_output_tokens == run.counts.num_output_tokens
    assert run.speculative.decode_ms == pytest.approx(
        run.speculative.draft_ms + run.speculative.verify_ms + run.speculative.other_ms
    )
    assert (run.parity.z_tokens is None) is (temperature == 0.0)
    assert engine.measure(given_block).runs == (run,)


def test_acceptance_and_speedup_are_what_was_asked_for() -> None:
    engine = FakeEngine((fake_config("any", 4),), acceptance_rate=0.6, speedup=1.5)
    runs = engine.measure(block(*[prompt(i) for i in range(2_000)])).runs
    pooled = metrics.pool_counts(run.counts for run in runs if run.counts is not None)
    assert pooled is not None
    # The last step of a run is cut, which shortens the mean of 16 tokens at most a little.
    assert metrics.first_position_acceptance_rate(pooled) == pytest.approx(0.6, abs=0.03)
    total = [sum(timing.decode_ms for timing in timings if timing) for timings in
             ([run.baseline for run in runs], [run.speculative for run in runs])]  # fmt: skip
    assert total[0] / total[1] == pytest.approx(1.5)


def test_figures_depend_on_key_config_and_seed() -> None:
    first, second = fake_config("first"), fake_config("second")
    given_block = block(*[prompt(i) for i in range(20)])
    runs = FakeEngine((first, second)).measure(given_block).runs
    by_config = [[run.counts for run in runs if run.fingerprint == c.fingerprint] for c in (first, second)]
    assert by_config[0] != by_config[1]
    assert len(set(by_config[0])) > 10
    assert FakeEngine((first, second), seed=1).measure(given_block).runs != runs


def test_a_request_marked_as_too_large_fails_alone() -> None:
    runs = FakeEngine((fake_config(),), marks=Marks(oom=7)).measure(block(prompt(1), prompt(2, 7))).runs
    assert [run.failure for run in runs] == [None, "out_of_memory"]


def test_the_factory_travels() -> None:
    factory = FakeEngineFactory(("chat", "code"), seed=3, marks=Marks(kill=1))
    engines = pickle.loads(pickle.dumps(factory))()
    assert set(engines) == {"chat", "code"}
    assert engines["chat"] == FakeEngine(factory.configs, seed=3, marks=Marks(kill=1))


@given(st.text())
def test_the_tokenizer_stays_within_its_vocabulary(text: str) -> None:
    tokenizer: Tokenizer = FakeTokenizer()
    for tokens in (tokenizer.encode(text), tokenizer.render_chat([{"role": "user", "content": text}], [{"a": text}])):
        assert all(0 <= token < tokenizer.vocabulary_size for token in tokens)
    assert len(tokenizer.render_chat([], None)) == 0
