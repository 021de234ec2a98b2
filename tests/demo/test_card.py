"""The model card: it says what was measured, also where that is not flattering."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernels.benchmarks.bundled_pair.acceptance import EndpointFigures, SessionCorrelation
from kernels.benchmarks.bundled_pair.card import DOMAIN_SOURCES, CardInputs, read_json, render
from kernels.benchmarks.bundled_pair.train import DOMAIN_SHARES
from shadowspec.errors import InputError

FIGURES = EndpointFigures(
    num_requests=321,
    acceptance_length=2.345,
    first_position_rate=0.678,
    greedy_acceptance_length=3.456,
    greedy_first_position_rate=0.789,
    correlation=SessionCorrelation(0.31, 0.22, 0.40, 100, 321),
    logged_loop_share=0.041,
    speculative_loop_share=0.052,
    greedy_loop_share=0.063,
)


def inputs(**changes: Any) -> CardInputs:
    losses = dict.fromkeys(DOMAIN_SHARES, 2.0)
    training = {
        "seed": 7,
        "steps": 1_234,
        "draft_steps": 56,
        "tokens_per_step": 4_608,
        "target": {"parameters": 9_000_000, "layers": 8, "hidden_size": 320},
        "draft": {"parameters": 1_000_000, "layers": 1, "hidden_size": 192},
        "training_tokens": dict.fromkeys(DOMAIN_SHARES, 1_000_000),
        "held_out_loss": {"target": losses, "draft": dict.fromkeys(DOMAIN_SHARES, 2.5)},
        "history": [{"step": 0, "target_loss": 8.3, "draft_loss": 8.2}],
    }
    endpoint = {
        "parameters": {"temperature": 0.3, "max_tokens": 40},
        "records": 321,
        "prompt_texts_checked": 400,
        "prompt_texts_dropped": 17,
        "answers_checked": 350,
        "answers_dropped": 19,
    }
    made = CardInputs(
        training=training,
        ngram_losses=dict.fromkeys(DOMAIN_SHARES, 3.0),
        traffic={"endpoints": {"text-to-sql": endpoint}},
        figures={"text-to-sql": FIGURES},
        python_version="3.11.9",
    )
    return replace(made, **changes)


def test_every_measured_figure_stands_in_the_card() -> None:
    card = render(inputs())
    for figure in ("2.35", "67.8 %", "3.46", "78.9 %", "0.31 (0.22 to 0.40)", "4.1 %", "5.2 %", "6.3 %"):
        assert figure in card
    for figure in ("| 400 | 17 | 350 | 19 | 321 |", "1,234 steps", "9.0 times", "3.000", "standard library 3.11.9"):
        assert figure in card
    assert "The target has the lowest loss in every domain." in card


@pytest.mark.parametrize("changed", ["maths", "code"])
def test_a_domain_that_the_target_loses_is_named(changed: str) -> None:
    losses = dict.fromkeys(DOMAIN_SHARES, 3.0) | {changed: 1.9}
    assert f"does not have the lowest loss in: {changed}." in render(inputs(ngram_losses=losses))


def test_an_undefined_figure_is_called_so() -> None:
    figures = replace(FIGURES, acceptance_length=None, correlation=SessionCorrelation(None, None, None, 1, 1))
    assert render(inputs(figures={"text-to-sql": figures})).count("undefined") == 2


def test_every_domain_has_its_source_and_licence() -> None:
    assert set(DOMAIN_SOURCES) == set(DOMAIN_SHARES)


def test_a_missing_report_is_named(tmp_path: Any) -> None:
    with pytest.raises(InputError, match=r"training\.json"):
        read_json(tmp_path / "training.json")
