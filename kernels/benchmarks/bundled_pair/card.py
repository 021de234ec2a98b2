"""Write the model card of the bundled pair from what was trained and what was measured.

python -m kernels.benchmarks.bundled_pair.card --pair DIR --corpora DIR --traffic FILE.jsonl.gz --out MODEL_CARD.md
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.benchmarks.bundled_pair.acceptance import (
    NUM_SPECULATIVE_TOKENS,
    EndpointFigures,
    SessionCorrelation,
    measure,
)
from kernels.benchmarks.bundled_pair.ngram import ORDER, held_out_ngram_losses
from kernels.benchmarks.bundled_pair.traffic import summary_path
from shadowspec.errors import InputError
from shadowspec.metrics import ratio

DOMAIN_SOURCES = {
    "code": ("Python's standard library {python}", "PSF-2.0"),
    "sql": ("PostgreSQL 15's scripts; text-to-SQL made from templates", "PostgreSQL; Apache-2.0 (ours)"),
    "json": ("API documents of the Gorilla APIZoo", "Apache-2.0"),
    "maths": ("GSM8K (training split; the test split is held out)", "MIT"),
    "prose": ("novels of Project Gutenberg, Tiny Shakespeare", "public domain"),
    "translation": ("PostgreSQL 15's message catalogues, six languages", "PostgreSQL"),
}


@dataclass(frozen=True, slots=True)
class CardInputs:
    """Everything that the card says: the training's report, the traffic's summary, and what was measured."""

    training: Mapping[str, Any]
    ngram_losses: Mapping[str, float]
    traffic: Mapping[str, Any]
    figures: Mapping[str, EndpointFigures]
    python_version: str


def number(value: float | None, digits: int = 2) -> str:
    """A figure of the card."""
    return "undefined" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share of the card."""
    return "undefined" if value is None else f"{100 * value:.1f} %"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table, Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _correlation(correlation: SessionCorrelation) -> str:
    if correlation.icc is None:
        return "undefined"
    return f"{correlation.icc:.2f} ({number(correlation.lower)} to {number(correlation.upper)})"


def _models(inputs: CardInputs) -> str:
    target, draft = inputs.training["target"], inputs.training["draft"]
    rows = [
        (name, f"{shape['parameters']:,}", shape["layers"], shape["hidden_size"])
        for name, shape in (("target", target), ("draft", draft))
    ]
    size_ratio = ratio(target["parameters"], draft["parameters"])
    return (
        "# The bundled pair\n\n"
        "Two small Llama models that share one byte-level BPE tokenizer of 4,096 tokens and a context of 2,048. "
        "They exist so that the whole of ShadowSpec runs on a laptop with weights that were really trained. They "
        "continue text of the six kinds below and are of no other use.\n\n"
        + table(("model", "parameters", "layers", "width"), rows)
        + f"\n\nThe target has {number(size_ratio, 1)} times the draft's parameters. Weights are stored in bf16 and "
        "run in fp32 on a CPU. The weights are licensed under Apache-2.0, as the rest of this repository is."
    )


def _training(inputs: CardInputs) -> str:
    training = inputs.training
    losses = training["held_out_loss"]
    rows = []
    for domain, tokens in training["training_tokens"].items():
        source, licence = DOMAIN_SOURCES[domain]
        rows.append((domain, source.format(python=inputs.python_version), licence, f"{tokens:,}"))
    loss_rows = [
        (domain, number(losses["target"][domain], 3), number(losses["draft"][domain], 3), number(ngram, 3))
        for domain, ngram in inputs.ngram_losses.items()
    ]
    lost = [
        domain
        for domain, ngram in inputs.ngram_losses.items()
        if losses["target"][domain] >= min(ngram, losses["draft"][domain])
    ]
    verdict = (
        "The target has the lowest loss in every domain."
        if not lost
        else f"The target does not have the lowest loss in: {', '.join(lost)}."
    )
    return (
        "## Training\n\n"
        + table(("domain", "source", "licence", "training tokens"), rows)
        + f"\n\nBoth models learnt together for {training['steps']:,} steps of {training['tokens_per_step']:,} tokens "
        "(every eighth step of two rows at the full context): the target from the text, the draft from the target's "
        f"distribution. The draft went on alone for {training['draft_steps']:,} steps against the finished target. "
        f"Seed {training['seed']}. The last logged losses were "
        f"{number(training['history'][-1]['target_loss'])} (target) and "
        f"{number(training['history'][-1]['draft_loss'])} (draft, against the target).\n\n"
        "Loss on held-out text, nats per token, beside an interpolated Kneser-Ney "
        f"{ORDER}-gram over the same training tokens:\n\n"
        + table(("domain", "target", "draft", f"{ORDER}-gram"), loss_rows)
        + f"\n\n{verdict}"
    )


def _acceptance(inputs: CardInputs) -> str:
    rows = []
    for name, figures in inputs.figures.items():
        parameters = inputs.traffic["endpoints"][name]["parameters"]
        sampling = ", ".join(f"{key} {value}" for key, value in parameters.items())
        rows.append(
            (
                name,
                sampling,
                figures.num_requests,
                number(figures.acceptance_length),
                percent(figures.first_position_rate),
                number(figures.greedy_acceptance_length),
                percent(figures.greedy_first_position_rate),
                _correlation(figures.correlation),
            )
        )
    return (
        f"## Acceptance\n\nMeasured by the engine's own loop on the bundled traffic, {NUM_SPECULATIVE_TOKENS} "
        "speculative tokens, draft-model proposer; sampled requests under the rejection rule. Mean acceptance length "
        "includes the bonus or recovered token; both figures are pooled over steps. The last column is the intraclass "
        "correlation of first-position acceptance per request within sessions, with a 95 % bootstrap interval over "
        "sessions.\n\n"
        + table(
            (
                "endpoint",
                "sampling",
                "requests",
                "mean acceptance length",
                "first position",
                "length, greedy",
                "first position, greedy",
                "correlation within sessions",
            ),
            rows,
        )
    )


def _outputs(inputs: CardInputs) -> str:
    rows = [
        (
            name,
            percent(figures.logged_loop_share),
            percent(figures.speculative_loop_share),
            percent(figures.greedy_loop_share),
        )
        for name, figures in inputs.figures.items()
    ]
    return (
        "## Repetition loops\n\nA loop is easy to draft and inflates acceptance. An output counts as one if its tail "
        "repeats with a period of at most 32 tokens over its last max(3 periods, 12) tokens.\n\n"
        + table(("endpoint", "logged answers", "speculative outputs", "greedy outputs"), rows)
    )


def _contamination(inputs: CardInputs) -> str:
    rows = [
        (
            name,
            row["prompt_texts_checked"],
            row["prompt_texts_dropped"],
            row["answers_checked"],
            row["answers_dropped"],
            row["records"],
        )
        for name, row in inputs.traffic["endpoints"].items()
    ]
    return (
        "## Contamination\n\nNo bundled prompt or continuation shares a run of 13 lower-cased words with a training "
        "document (a text of fewer words does not stand in one whole). What did was dropped while the traffic was "
        "made, and `python -m kernels.benchmarks.bundled_pair.contamination` checks the finished file. API documents "
        "are asked for with an instruction one word away from the training documents' own, and with a shortened "
        "purpose: the instruction and a product's name alone are a run of 13 words. Prompt texts are the distinct "
        "questions, answers in a history and whole prompts that the held-out documents gave; answers are the target's "
        "own.\n\n" + table(("endpoint", "prompt texts", "dropped", "answers", "dropped", "records bundled"), rows)
    )


LIMITS = """## Limits

Models of this size repeat themselves, invent facts, and get most sums wrong; nothing they say is worth reading.
Their acceptance says nothing about any other pair. Held-out text comes from the same sources as the training text:
other files, problems, books, messages and API entries, and schemas whose tables the training text never names.
Dropping answers that stand in the training text removes what the target knows by heart, which is also what a draft
predicts best."""


def render(inputs: CardInputs) -> str:
    """The model card, Markdown."""
    sections = (
        _models(inputs), _training(inputs), _acceptance(inputs), _outputs(inputs), _contamination(inputs), LIMITS
    )  # fmt: skip
    return "\n\n".join(sections) + "\n"


def read_json(path: Path) -> Any:
    """The JSON document at `path`.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def main() -> None:
    """Measure and write the card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", type=Path, required=True, help="folder with target, draft and training.json")
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--traffic", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    training = read_json(arguments.pair / "training.json")
    inputs = CardInputs(
        training=training,
        traffic=read_json(summary_path(arguments.traffic)),
        ngram_losses=held_out_ngram_losses(arguments.pair, arguments.corpora, training["seed"]),
        figures=measure(arguments.pair, arguments.traffic),
        python_version=platform.python_version(),
    )
    arguments.out.write_text(render(inputs), encoding="utf-8")


if __name__ == "__main__":
    main()
