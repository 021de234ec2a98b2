"""What is validated is the product's: candidates as its configuration gives them, with their own proposers."""

from __future__ import annotations

import pytest

from kernels.benchmarks.engines.candidates import SERVING_ENGINE, read_candidates
from kernels.benchmarks.engines.ours import Ours
from kernels.benchmarks.engines.ways import DEPTHS, SERVED, WAYS
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer
from shadowspec.servers.engines import rule_differences
from shadowspec.servers.engines.rules import used_rules
from shadowspec.types import VerifyRule


def test_every_deployment_has_a_candidate_with_the_engines_rules() -> None:
    named, plain = read_candidates(SERVING_ENGINE), read_candidates(None)
    assert list(named) == list(plain) == [(served.name, depth) for served in SERVED for depth in DEPTHS]
    for (name, depth), config in named.items():
        assert config.num_speculative_tokens == depth
        assert rule_differences(config, SERVING_ENGINE) == ()
        assert rule_differences(plain[name, depth], SERVING_ENGINE) != ()
    assert {name: used_rules(config) for (name, _), config in named.items()} == {
        "draft_model": {"draft_sampling": "temperature", "drafts_within_limit": False},
        "draft_model_probabilistic": {"draft_sampling": "temperature", "drafts_within_limit": False},
        "ngram": {"ngram_occurrence": "earliest", "drafts_within_limit": False},
    }
    for way in WAYS:
        config = named[way.served.name, DEPTHS[0]]
        assert config.verify_rule is (way.rule if way.rule is not VerifyRule.GREEDY else VerifyRule.GREEDY_DRAFT)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.name))
def test_the_loop_runs_the_products_own_proposers(way: object, ours: Ours) -> None:
    (found,) = [each for each in WAYS if each is way]
    proposer = ours.candidate(found, 4).proposer()
    assert type(proposer) is (NgramProposer if found.is_lookup else DraftModelProposer)
