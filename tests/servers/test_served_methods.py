"""Methods by which servers draft: measured by their own names, checked against what the servers say of themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shadowspec.config.sections import CandidateSection
from shadowspec.engine.replay.replayer import require_replayable
from shadowspec.errors import ConfigError, InputError, ModelError
from shadowspec.servers.connecting import connect
from shadowspec.servers.probing import probe_both, remarks
from shadowspec.servers.server_profile import ServerGrid, profile_servers
from shadowspec.types import SpeculationConfig, VerifyRule
from shadowspec.types.costs import CostKey
from shadowspec.types.exactness import lossy_setting
from shadowspec.types.served_methods import drafts_in_every_step, exported_settings, is_same_method, settings_text
from tests.builders.server_blocks import COLD, block, settings
from tests.identities import check_identities
from tests.servers.fake_server import FakeServer, running
from tests.servers.fake_sglang import FakeSglang

Pair = tuple[FakeServer, FakeServer]


def method(name: str, /, depth: int = 3, **given: Any) -> SpeculationConfig:
    text = settings_text(given)
    return SpeculationConfig(name, "t", None, name, depth, VerifyRule.SERVER, backend="openai", speculative_config=text)


def fingerprint(pair: Pair, config: SpeculationConfig) -> str:
    engine = connect(settings(pair), [config], COLD, requests_per_slot=3, default_sampling={})
    return engine.configs[0].fingerprint


@pytest.mark.representative("detailed-mtp", "none-dflash", "none-later")
@pytest.mark.parametrize("name", ["mtp", "dflash", "p-eagle", "later"])
@pytest.mark.parametrize("level", ["detailed", "none"])
def test_a_server_that_drafts_by_its_own_method_is_measured(name: str, level: str) -> None:
    """By its answers, or, where those say nothing, by vLLM's counters: of a method that always drafts."""
    with running(*(pair := (FakeServer(), FakeServer(3, level=level)))):
        if (name, level) == ("later", "none"):
            with pytest.raises(ModelError, match="--per-request-spec-decode-metrics detailed"):
                fingerprint(pair, method(name))
            return
        engine = connect(settings(pair), [method(name)], COLD, requests_per_slot=3, default_sampling={})
        result = engine.measure(block(3))
    assert [run.failure for run in result.runs] == [None] * 3
    for run in result.runs:
        assert run.counts is not None
        check_identities(run.counts)
        assert run.served is not None
        if name == "later":  # a step may have had no draft, so that the last one may be unsure
            assert run.served.counts_source in ("response", "response_unsure")
        else:
            assert run.served.counts_source == ("counters" if level == "none" else "response")


@pytest.mark.parametrize(
    ("said", "name", "error"),
    [
        ({"method": "eagle3"}, "mtp", "method is 'mtp', and the speculative server says that it drafts by 'eagle3'"),
        ({"method": "mtp"}, "deepseek_mtp", None),  # as vLLM calls it from then on
        ({"method": "p_eagle"}, "p-eagle", None),
        ({}, "mtp", None),
    ],
)
def test_a_method_that_vllm_says_otherwise_is_an_error_that_names_both(
    said: dict[str, Any], name: str, error: str | None
) -> None:
    with running(*(pair := (FakeServer(), FakeServer(3, drafting=said)))):
        if error is None:
            assert fingerprint(pair, method(name))
            return
        with pytest.raises(ModelError, match=error):
            fingerprint(pair, method(name))


@pytest.mark.parametrize("where", ["reported", "configured"])
@pytest.mark.parametrize("method_of_sampling", ["fly", "synthetic", "standard", "block"])
def test_a_server_that_accepts_more_than_the_target_would_draw_is_not_measured(
    method_of_sampling: str, where: str
) -> None:
    setting: dict[str, Any] = {"rejection_sample_method": method_of_sampling}
    reported, configured = (setting, {}) if where == "reported" else ({}, setting)
    with running(*(pair := (FakeServer(), FakeServer(3, drafting={"method": "mtp", **reported})))):
        if method_of_sampling in ("fly", "synthetic"):
            with pytest.raises(ModelError, match=f"rejection_sample_method = {method_of_sampling} .* lossless"):
                fingerprint(pair, method("mtp", **configured))
        else:
            assert fingerprint(pair, method("mtp", **configured))


@pytest.mark.parametrize(
    ("settings_of", "lossy"),
    [
        ({"--speculative-accept-threshold-single": 0.9}, "speculative_accept_threshold_single = 0.9"),
        ({"speculative_accept_threshold_acc": 1.0}, None),
        ({"use_relaxed_acceptance_for_thinking": True}, "use_relaxed_acceptance_for_thinking = True"),
        ({"use_relaxed_acceptance_for_thinking": False}, None),
        ({"--spec-synth-len": 3}, "spec_synth_len = 3"),
        ({"rejection_sample_method": None}, None),
        ({"rejection_sample_method": "later"}, "rejection_sample_method = later"),
    ],
)
def test_settings_of_other_engines_that_change_the_output_are_known(
    settings_of: dict[str, Any], lossy: str | None
) -> None:
    assert lossy_setting(settings_of) == lossy


def test_a_server_that_trims_drafts_after_counting_them_has_a_censored_acceptance() -> None:
    """vLLM's adaptive verification: the counts say how many tokens were scheduled."""
    trimming = {"method": "mtp", "enable_adaptive_verification": True}
    with running(*(pair := (FakeServer(), FakeServer(3, drafting=trimming)))):
        assert "acceptance is censored: a lower bound" in told(pair, method("mtp"))
        engine = connect(settings(pair), [method("mtp")], COLD, requests_per_slot=3, default_sampling={})
        (run, *_) = engine.measure(block(3)).runs
        assert run.served is not None
        assert run.served.counts_source == "response_censored"
        pair[1].level = "none"
        with pytest.raises(ModelError, match="does not report its accepted tokens"):
            fingerprint(pair, method("mtp"))
        pair[1].level, pair[1].drafting = "detailed", {"method": "mtp", "enable_adaptive_verification": False}
        assert "censored" not in told(pair, method("mtp"))


@pytest.mark.parametrize(("algorithm", "name", "is_same"), [("EAGLE", "NEXTN", True), ("EAGLE3", "EAGLE", False)])
def test_a_method_that_sglang_says_otherwise_is_an_error_that_names_both(
    algorithm: str, name: str, is_same: bool
) -> None:
    with running(*(pair := (FakeSglang(), FakeSglang(3, algorithm=algorithm)))):
        if is_same:
            assert fingerprint(pair, method(name))
            return
        with pytest.raises(ModelError, match=f"method is '{name}'.* drafts by '{algorithm}'"):
            fingerprint(pair, method(name))


def test_another_depth_is_an_error_that_names_both() -> None:
    with (
        running(*(pair := (FakeServer(), FakeServer(3)))),
        pytest.raises(ModelError, match="num_speculative_tokens is 4, and the speculative server drafts 3"),
    ):
        fingerprint(pair, method("mtp", 4))


def told(pair: Pair, config: SpeculationConfig) -> str:
    return "; ".join(remarks(*probe_both(settings(pair)), config))


def test_what_a_server_does_not_say_of_its_method_is_said_to_be_unchecked() -> None:
    config = method("mtp", draft_tensor_parallel_size=2, quantization="fp8", nested={"a": 1})
    with running(*(pair := (FakeServer(), FakeServer(3)))):
        assert "'mtp' and its speculative_config are unchecked" in told(pair, config)
        assert "unchecked" not in told(pair, replace(config, speculative_config=None, proposer="eagle3"))
        pair[1].drafting = {"method": "mtp", "draft_tensor_parallel_size": 2}
        assert "does not say nested, quantization: unchecked" in told(pair, config)
        pair[1].drafting |= {"quantization": "fp8", "nested": {"a": 1}}
        assert "speculative_config" not in told(pair, config)


@pytest.mark.parametrize("changed", [{"draft_tensor_parallel_size": 1}, {"nested": {"a": 2}}, {"quantization": None}])
def test_a_setting_that_the_server_says_otherwise_is_an_error_that_names_both(changed: dict[str, Any]) -> None:
    said = {"draft_tensor_parallel_size": 2, "quantization": "fp8", "nested": {"a": 1}}
    with running(*(pair := (FakeServer(), FakeServer(3, drafting={"method": "mtp", **said})))):
        assert fingerprint(pair, method("mtp", **said))
        pair[1].drafting = {"method": "mtp", **said, **changed}
        (name,) = changed
        with pytest.raises(ModelError, match=f"speculative_config has {name} = .*, and the speculative server says"):
            fingerprint(pair, method("mtp", **said))


SCHEDULE = [[1, 2, 3], [3, 8, 2], [9, 2147483647, 0]]
EXPORTED: dict[str, Any] = {
    "method": "draft_model",
    "model": "org/draft",
    "num_speculative_tokens": 3,
    "num_speculative_tokens_per_batch_size": SCHEDULE,
}


def test_an_exported_file_is_a_candidate_that_the_server_must_run_as_it_is(tmp_path: Path) -> None:
    """One flag changed is another configuration, and a hidden schedule confirms nothing."""
    file = tmp_path / "speculation.json"
    file.write_text(json.dumps(EXPORTED) + "\n")
    section = CandidateSection(name="confirmed", exported=str(file))  # type: ignore[call-arg]
    assert (section.method, section.num_speculative_tokens, section.draft) == ("draft_model", 3, "org/draft")
    config = method("draft_model", **section.speculative_config)
    assert [config.depth_at(load) for load in (1, 2, 3, 8, 9, 100)] == [3, 3, 2, 2, 0, 0]
    assert not config.drafts_in_every_step
    with running(*(pair := (FakeServer(), FakeServer(3, drafting=EXPORTED)))):
        engine = connect(settings(pair), [config], COLD, requests_per_slot=3, default_sampling={})
        assert [run.failure for run in engine.measure(block(3)).runs] == [None] * 3
        pair[1].drafting = EXPORTED | {"num_speculative_tokens_per_batch_size": [[1, 2147483647, 3]]}
        with pytest.raises(ModelError, match=r"num_speculative_tokens_per_batch_size = .* says"):
            fingerprint(pair, config)
        pair[1].drafting = None
        with pytest.raises(ModelError, match=r"by which schedule it drafts.*VLLM_SERVER_DEV_MODE"):
            fingerprint(pair, config)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (json.dumps(EXPORTED), EXPORTED),
        (
            "# of decisions 1\n--spec-type draft-simple --spec-draft-model 'a b' --spec-draft-n-max 5 --parallel 2\n",
            {"spec_type": "draft-simple", "spec_draft_model": "a b", "spec_draft_n_max": 5, "parallel": 2},
        ),
        (
            '# of decisions 1\nspeculative-algorithm: "EAGLE3"\nspeculative-num-steps: 5\nmax-running-requests: 2\n',
            {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 5, "max_running_requests": 2},
        ),
        ("null\n", "cannot be read"),
        ("--spec-type none\n", "speculation is off"),
        ("{", "cannot be read"),
        ("max_batch_size: 8\nspeculative_config:\n  max_draft_len: 5\n", "cannot be read"),
    ],
)
def test_exports_are_read_as_settings(text: str, found: dict[str, Any] | str) -> None:
    if isinstance(found, str):
        with pytest.raises(ValueError, match=found):
            exported_settings(text)
    else:
        assert exported_settings(text) == found


def test_settings_are_part_of_the_fingerprint_whatever_their_order() -> None:
    with running(*(pair := (FakeServer(), FakeServer(3)))):
        first = fingerprint(pair, method("mtp", a=1, b={"c": [1, 2], "d": 3}))
        assert first == fingerprint(pair, method("mtp", b={"d": 3, "c": [1, 2]}, a=1))
        others = [method("mtp"), method("mtp", a=1, b={"c": [2, 1], "d": 3}), method("dflash", a=1)]
        others.append(replace(method("mtp"), draft="org/draft"))
        assert len({first, *(fingerprint(pair, each) for each in others)}) == 5


def test_a_servers_method_is_not_replayed() -> None:
    with pytest.raises(ConfigError, match="a server drafts it by its method mtp, which cannot be replayed"):
        require_replayable(method("mtp"))


def test_costs_belong_to_the_settings_but_not_to_the_depth() -> None:
    with running(*(pair := (FakeServer(), FakeServer(3)))):
        engine = connect(settings(pair), [method("mtp", 3, num_speculative_tokens=3, a=1)], COLD, requests_per_slot=1,
                         default_sampling={})  # fmt: skip
    key = CostKey.of(engine.configs[0], is_greedy=True)
    assert key.serves(method("mtp", 4, num_speculative_tokens=4, a=1))
    assert not key.serves(method("mtp", 4, a=2))
    assert not key.serves(method("dflash", 4, a=1))
    assert not key.serves(replace(method("mtp"), speculative_config=None))


def test_a_method_that_may_not_draft_in_every_step_is_not_profiled() -> None:
    with (
        running(*(pair := (FakeServer(), FakeServer(3)))),
        pytest.raises(InputError, match="later drafts depends on the text, or is not known"),
    ):
        profile_servers(settings(pair), method("later"), ServerGrid((1,), (8,)), vocab_size=64, requests_per_slot=1,
                        default_sampling={})  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("mtp", "MTP", True),
        ("qwen3_next_mtp", "mtp", True),
        ("NEXTN", "EAGLE", True),
        ("p-eagle", "P_EAGLE", True),
        ("eagle", "eagle3", False),
        ("ngram", "ngram_gpu", False),
    ],
)
def test_names_of_methods(one: str, other: str, is_same: bool) -> None:
    assert is_same_method(one, other) is is_same


def test_only_known_methods_are_taken_to_draft_in_every_step() -> None:
    assert all(map(drafts_in_every_step, ("draft_model", "eagle3", "p-eagle", "deepseek_mtp", "NEXTN", "dflash")))
    assert not any(map(drafts_in_every_step, ("ngram", "suffix", "ngram_gpu", "later")))
