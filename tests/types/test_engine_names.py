"""Engines are named as people name them, and found in what a config says measured it."""

from __future__ import annotations

import pytest

from shadowspec.types.serving_engines import (
    is_for_serving,
    is_measured_on,
    parse_engines,
    verdict_engine,
    verdict_engine_text,
)

IN_PROCESS = "shadowspec-torch/0.1.0 torch/2.13.0+cu130 transformers/5.23.0"


@pytest.mark.parametrize(
    ("expected", "measured", "is_met"),
    [
        ("vllm", "vllm/0.32.0", True),
        ("vLLM", "vllm/0.32.0", True),
        ("vllm/0.32.0", "vllm/0.32.0", True),
        ("vllm 0.32.0", "vllm/0.32.0", True),
        ("vllm 0.32", "vllm/0.32.0", True),
        ("vllm v0.32", "vllm/0.32.0", True),
        ("vllm/0.32", "vllm/0.32.0rc1", True),
        ("vllm/0.32", "vllm/v0.32.1", True),
        ("vllm 0.32", "vllm/0.320.0", False),
        ("vllm 0.32.0", "vllm/0.32.0rc1", False),
        ("vllm 0.32.0", "vllm/0.32", False),
        ("vllm 0.31", "vllm/0.32.0", False),
        ("vllm", IN_PROCESS, False),
        ("vllm", "vllm-ascend/0.32.0", False),
        ("torch", IN_PROCESS, True),
        ("torch/2.13.0", IN_PROCESS, True),
        ("shadowspec-torch torch 2.13", IN_PROCESS, True),
        ("torch vllm", IN_PROCESS, False),
        ("tensorrt-llm", "tensorrt_llm/1.2", True),
        ("llama.cpp", "llamacpp/b1", True),
        ("sglang", "unknown/unknown", False),
        ("vllm", "", False),
        ("", IN_PROCESS, False),
        ("  ", IN_PROCESS, False),
    ],
)
def test_a_name_and_as_much_of_a_version_as_is_given(expected: str, measured: str, is_met: bool) -> None:
    assert is_measured_on(expected, measured) is is_met


@pytest.mark.parametrize(
    ("serving", "measured", "name", "is_serving"),
    [
        ("vllm 0.32", IN_PROCESS, "vllm 0.32", True),
        ("shadowspec-torch", IN_PROCESS, "shadowspec-torch", False),
        (None, IN_PROCESS, "shadowspec-torch", False),
        (None, "vllm/0.32.0", "vllm", True),
        (None, "", "unknown", False),
    ],
)
def test_a_verdict_is_for_what_serves_and_else_for_what_measured(
    serving: str | None, measured: str, name: str, is_serving: bool
) -> None:
    assert verdict_engine(serving, measured) == name
    assert is_for_serving(serving, measured) is is_serving
    assert verdict_engine_text(serving, measured).startswith(name)
    assert ("names no serving_engine" in verdict_engine_text(serving, measured)) is (serving is None)


def test_a_version_belongs_to_the_name_before_it() -> None:
    assert [(engine.name, engine.version) for engine in parse_engines("vllm 0.32 torch/2.13 x 1 2")] == [
        ("vllm", "0.32"),
        ("torch", "2.13"),
        ("x", "1"),
        ("2", ""),
    ]
