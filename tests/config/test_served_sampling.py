"""How production samples requests that set nothing, by engine, generation config and configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shadowspec.app.before_loading import sampling_doubt
from shadowspec.config import Config, load_config
from shadowspec.config.served_sampling import served_sampling
from shadowspec.errors import ModelError

STATED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05}
CONFIG = """
[endpoints.chat]
target = "{target}"
served_models = ["m"]
{more}
[[endpoints.chat.candidates]]
name = "n"
proposer = "ngram"
num_speculative_tokens = 4
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05, '
        '"eos_token_id": 2}'
    )
    return folder


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("vllm", STATED),
        ("vllm 0.32", STATED),
        ("VLLM/0.33.0", STATED),
        ("sglang", STATED),
        ("llama.cpp", {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}),
        ("tensorrt-llm", {}),
        ("shadowspec-torch", {}),
        ("another", {}),
        (None, {}),
    ],
)
def test_the_generation_config_is_applied_where_the_engine_applies_it(
    engine: str | None, expected: dict[str, float], target: Path
) -> None:
    sampling = served_sampling(target, engine, configured={})
    assert sampling.defaults == expected
    assert sampling.is_applied == (expected == STATED)
    assert ("because" in sampling.text, "does not apply: where" in sampling.text) == (
        sampling.is_applied,
        not sampling.is_applied,
    )
    assert "generation_config.json" in sampling.text


ALL = frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})


@pytest.mark.parametrize(
    ("engine", "left_out", "is_greedy", "expected"),
    [
        ("llama.cpp", ALL, False, True),
        ("llama.cpp", ALL - {"temperature"}, False, True),  # its own top_k, top_p and min_p
        ("llama.cpp", ALL - {"temperature"}, True, False),
        ("llama.cpp", {"repetition_penalty"}, False, False),
        ("llama.cpp", {"temperature"}, True, True),
        ("vllm", ALL - {"temperature"}, True, True),  # its generation config may state a penalty
        ("vllm", {"top_k"}, True, False),
        ("vllm", {"top_k"}, False, True),
        ("vllm", {"presence_penalty"}, False, False),
        (None, {"top_k"}, False, True),
    ],
)
def test_a_default_matters_where_a_request_leaves_its_parameter_out(
    engine: str | None, left_out: frozenset[str], expected: bool, is_greedy: bool
) -> None:
    assert bool(served_sampling(None, engine, configured={}).mattering(left_out, is_greedy=is_greedy)) is expected


def test_an_engine_that_reads_no_generation_config_is_not_asked_for_it(target: Path) -> None:
    assert "generation_config" not in served_sampling(None, "llama.cpp", configured={}).text
    assert "generation_config" in served_sampling(None, "llama.cpp", applies=True, configured={}).text
    assert "generation_config.json is not known" in served_sampling(None, "vllm", configured={}).text
    assert "generation_config.json is not known" in served_sampling(None, "another", configured={}).text
    assert served_sampling(target, "shadowspec-torch", configured={}).mattering({"top_k"}, is_greedy=False)


def test_the_endpoint_says_otherwise(target: Path) -> None:
    ignored = served_sampling(target, "vllm", applies=False, configured={})
    assert ignored.defaults == {}
    assert "which is not applied (applies_generation_config = false)" in ignored.text
    assert served_sampling(target, "another", applies=True, configured={}).defaults == STATED
    assert served_sampling(target, None, applies=True, configured={}).defaults == STATED
    own = served_sampling(target, "vllm", configured={"temperature": 0.2, "presence_penalty": 1.0})
    assert own.defaults == STATED | {"temperature": 0.2, "presence_penalty": 1.0}
    assert "temperature=0.2" in own.text


def test_a_folder_that_states_nothing_changes_nothing(tmp_path: Path) -> None:
    sampling = served_sampling(tmp_path / "none", "vllm", configured={})
    assert (sampling.defaults, sampling.max_new_tokens) == ({}, None)
    assert sampling.text == "requests that set none get plain sampling at temperature 1"
    (tmp_path / "generation_config.json").write_text('{"temperature": 1.0, "top_p": 1.0}')
    assert served_sampling(tmp_path, "vllm", configured={}).text == sampling.text


def loaded(target: Path, more: str) -> Config:
    path = target.parent / "shadowspec.toml"
    path.write_text(CONFIG.format(target=target, more=more))
    return load_config(path, environment={})


def rule(target: Path, more: str) -> Any:
    return loaded(target, more).endpoints["chat"].rule


def test_the_configuration_takes_them_up(target: Path) -> None:
    assert rule(target, 'serving_engine = "vllm"').default_sampling == STATED
    assert rule(target, 'serving_engine = "vllm"\napplies_generation_config = false').default_sampling == {}
    assert rule(target, "").default_sampling == {}
    configured = rule(target, 'serving_engine = "sglang"\ndefault_sampling = { top_k = -1 }')
    assert configured.default_sampling == STATED | {"top_k": -1}


def test_an_output_limit_is_applied_where_the_engine_applies_it(target: Path) -> None:
    (target / "generation_config.json").write_text('{"max_new_tokens": 64}')
    assert rule(target, 'serving_engine = "vllm"').max_new_tokens == 64
    assert rule(target, 'serving_engine = "vllm"\nmax_new_tokens = 32').max_new_tokens == 32
    assert rule(target, 'serving_engine = "vllm"\nmax_new_tokens = 100').max_new_tokens == 64
    assert rule(target, 'serving_engine = "sglang"').max_new_tokens is None
    assert rule(target, "applies_generation_config = false\nserving_engine = 'vllm'").max_new_tokens is None
    assert "outputs of at most 64 tokens" in loaded(target, 'serving_engine = "vllm"').endpoints["chat"].sampling.text


def test_a_damaged_file_is_left_to_what_measures(target: Path) -> None:
    """A configuration is read where no model is needed, too."""
    (target / "generation_config.json").write_text('{"temperature": "hot"}')
    with pytest.raises(ModelError, match='temperature cannot be "hot"'):
        served_sampling(target, "vllm", configured={})
    sampling = loaded(target, 'serving_engine = "vllm"\ndefault_sampling = { top_p = 0.5 }').endpoints["chat"].rule
    assert sampling.default_sampling == {"top_p": 0.5}


def test_seeds_that_mean_none_are_the_engines(target: Path) -> None:
    assert rule(target, 'serving_engine = "vllm"').unseeded == {-1}
    assert rule(target, 'serving_engine = "llama.cpp"').unseeded == {-1, 2**32 - 1}
    assert rule(target, "").unseeded == {-1}


def test_servers_of_an_engine_with_defaults_that_the_endpoint_lacks_are_told(target: Path) -> None:
    def doubt(more: str, engine: str = "vllm/0.32.0") -> str | None:
        return sampling_doubt(loaded(target, more).endpoints["chat"], engine)

    assert "(vllm/0.32.0) samples requests that set nothing with min_p=0.1, repetition_penalty=1.05" in str(doubt(""))
    assert "temperature=0.8" in str(doubt("", "llama.cpp/b1"))
    assert doubt("", "tensorrt-llm/1.0") is None
    assert doubt('serving_engine = "vllm"') is None
    assert doubt("applies_generation_config = false") is None
    assert doubt("applies_generation_config = true") is None
    (target / "generation_config.json").unlink()
    assert doubt("") is None
