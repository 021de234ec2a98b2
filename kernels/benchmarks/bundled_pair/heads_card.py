"""Write the card of the bundled heads: how they were trained, and what replay says of them beside n-gram.

python -m kernels.benchmarks.bundled_pair.heads_card --heads DIR --out MODEL_CARD.md [--requests N]
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from kernels.benchmarks.bundled_pair.acceptance import TrafficRequest, read_requests
from kernels.benchmarks.bundled_pair.card import number, percent, read_json, table
from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.engine.heads.loading import load_heads
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.replay.replayer import Drafting, Replayed, Replayer
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.metrics import ratio
from shadowspec.types import ExpectedCounts, RecordKey, SpeculationConfig, VerifyRule

log = logging.getLogger("kernels.benchmarks.bundled_pair.heads_card")

NUM_SPECULATIVE_TOKENS: Final = 4
HEADS: Final = ("medusa", "eagle3")
NGRAM: Final = "ngram"
TOGETHER: Final = "together"
REQUESTS: Final = 100  # of each endpoint: the law has no noise of its own, and more would take longer than it tells
COLUMNS: Final = (NGRAM, *HEADS, "draft_model")


@dataclass(frozen=True, slots=True)
class PassFigures:
    """One way of drafting on one endpoint's traffic; expectations given the responses, pooled over requests."""

    num_requests: int
    tokens_per_pass: float | None  # output tokens over the target's passes, prefill and plain steps among them
    acceptance_length: float | None  # 1 + accepted / steps that drafted
    drafting_share: float | None  # of the steps: n-gram drafts only where it finds something


def evenly(rows: Sequence[TrafficRequest], count: int) -> Sequence[TrafficRequest]:
    """So many of the rows, from all of them."""
    return rows[:: max(1, len(rows) // count)][:count]


def draftings(target: LoadedModel, heads: Path) -> list[Drafting]:
    """In the order of COLUMNS; every draft is its arg-max, which is what n-gram can be held against."""
    drafts: Mapping[str, Any] = {kind: load_heads(str(heads / kind), kind, target) for kind in HEADS} | {
        "draft_model": load_model(str(demo.DRAFT), target.model.device, target.model.dtype)
    }
    return [
        Drafting(
            SpeculationConfig(name, "", None, name, NUM_SPECULATIVE_TOKENS, VerifyRule.GREEDY_DRAFT), drafts.get(name)
        )
        for name in COLUMNS
    ]


def measure(heads: Path, requests: Mapping[str, Sequence[TrafficRequest]]) -> dict[str, dict[str, PassFigures]]:
    """Replay the requests' logged responses; figures by endpoint and way of drafting, and of all requests together."""
    target = load_model(str(demo.TARGET), torch.device("cpu"), torch.float32)
    replayer = Replayer(
        draftings(target, heads), [NUM_SPECULATIVE_TOKENS], end_token_ids=target.end_token_ids, target=target
    )
    figures: dict[str, dict[str, PassFigures]] = {}
    every: list[Replayed] = []
    for endpoint, rows in requests.items():
        responses = [
            Response(
                RecordKey(endpoint, 0, index), Request(row.prompt_token_ids, row.sampling, 0), row.output_token_ids
            )
            for index, row in enumerate(rows)
        ]
        replayed = [result for result in replayer.replay(responses) if isinstance(result, Replayed)]
        figures[endpoint] = _figures(replayed)
        every += replayed
        log.info("%s: %d of %d responses replayed", endpoint, len(replayed), len(responses))
    return figures | {TOGETHER: _figures(every)}


def _figures(replayed: Sequence[Replayed]) -> dict[str, PassFigures]:
    return {
        name: pass_figures([result.counts[column][0] for result in replayed]) for column, name in enumerate(COLUMNS)
    }


def pass_figures(counts: Sequence[ExpectedCounts]) -> PassFigures:
    """Of pooled counts; each request makes one pass more than steps, its prefill."""

    def total(name: str) -> float:
        return sum(float(getattr(each, name)) for each in counts)

    drafts, plain, accepted = total("num_drafts"), total("num_plain_steps"), total("num_accepted_tokens")
    length = ratio(accepted, drafts)
    return PassFigures(
        num_requests=len(counts),
        tokens_per_pass=ratio(total("num_output_tokens"), len(counts) + drafts + plain),
        acceptance_length=None if length is None else 1.0 + length,
        drafting_share=ratio(drafts, drafts + plain),
    )


def render(
    training: Mapping[str, Any], sizes: Mapping[str, int], figures: Mapping[str, Mapping[str, PassFigures]]
) -> str:
    """The card, Markdown.

    Args:
        training: `training.json`.
        sizes: bytes of each kind's folder.
        figures: by endpoint and way of drafting.
    """
    first, last = training["history"][0], training["history"][-1]
    heads = [
        (
            kind,
            f"{training['parameters'][kind]:,}",
            f"{sizes[kind] / 1e6:.1f} MB",
            number(first[f"{kind}_loss"]),
            number(last[f"{kind}_loss"]),
        )
        for kind in HEADS
    ]
    trained = (
        f"Trained together for {training['steps']:,} steps of {training['tokens_per_step']:,} tokens, seed "
        f"{training['seed']}, over {training['drafted_tokens']:,} of the 4,096 tokens. Losses are cross-entropies "
        f"against the target, weighed over four depths:"
    )
    passes = [
        (endpoint, figure[NGRAM].num_requests, *(number(figure[name].tokens_per_pass) for name in COLUMNS))
        for endpoint, figure in figures.items()
    ]
    lengths = [
        (endpoint, percent(figure[NGRAM].drafting_share), *(number(figure[name].acceptance_length) for name in COLUMNS))
        for endpoint, figure in figures.items()
    ]
    sections = (
        HEAD,
        trained,
        table(("heads", "parameters", "folder", "first loss", "last loss"), heads),
        PASSES,
        table(("endpoint", "requests", *COLUMNS), passes),
        LENGTHS,
        table(("endpoint", "steps in which n-gram drafts", *COLUMNS), lengths),
        LIMITS,
    )
    return "\n\n".join(sections) + "\n"


HEAD: Final = """# The bundled heads

Two kinds of heads over the bundled target's hidden states, small enough to ship, so that the proposers `medusa` and
`eagle3` can be tried and measured. `medusa` holds four heads of one residual layer each over a shared, reduced head, in
vLLM's layout; `eagle3` one layer that fuses the inputs of the target's layers 2, 5 and 7, in the format of the
speculators package. They learnt from the target's own distribution on the texts that the pair was trained on
([its card](../MODEL_CARD.md)), with the same documents held out, and never on a bundled prompt. Weights are bf16 and
licensed under Apache-2.0, as the rest of this repository is.

    python -m kernels.benchmarks.bundled_pair.heads --corpora DIR --target shadowspec/demo/pair/target --out DIR
    python -m kernels.benchmarks.bundled_pair.heads_card --heads DIR --out MODEL_CARD.md"""
PASSES: Final = """## Against n-gram

Output tokens per pass of the target on the bundled traffic, prefill and plain steps counted as passes: what every way
of drafting saves. Expectations by [replay](../../../docs/replay.md) of the logged responses at 4 speculative tokens,
pooled over requests; all draft their arg-max (`greedy_draft`), as n-gram cannot do otherwise."""
LENGTHS: Final = """Mean acceptance length, over the steps that drafted alone. N-gram drafts only where it finds
the last tokens again, and looks good there; in its other steps nothing is gained."""
LIMITS: Final = """## Limits

Trained for minutes on a CPU: published heads are trained on far more text and accept more. What they show is that the
loop drafts with them as their formats say, not what such heads can do. Where `ngram` stands above one of them in the
first table, that one does not pay there even before its own cost is looked at."""


def main() -> None:
    """Measure and write the card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=Path, required=True, help="folder with medusa, eagle3 and training.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each endpoint, evenly from all of it")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    sizes = {kind: sum(file.stat().st_size for file in (arguments.heads / kind).iterdir()) for kind in HEADS}
    requests = {name: evenly(rows, arguments.requests) for name, rows in read_requests(demo.TRAFFIC).items()}
    figures = measure(arguments.heads, requests)
    card = render(read_json(arguments.heads / "training.json"), sizes, figures)
    arguments.out.write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
