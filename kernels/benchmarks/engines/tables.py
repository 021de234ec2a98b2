"""The tables of docs/research/validation.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kernels.benchmarks.engines.comparing import DRAFT_NEAR_TIE, EXACT, FAULT, NEAR_TIE

ALL = "all"  # slices together
NOTHING = "-"

Row = Mapping[str, Any]


def counted(kinds: Sequence[str]) -> str:
    """How many differences there are of each kind, in words."""
    words = {NEAR_TIE: "near-ties of the target", DRAFT_NEAR_TIE: "near-ties of the draft", FAULT: "faults"}
    return ", ".join(f"{kinds.count(kind)} {word}" for kind, word in words.items() if kind in kinds) or "none"


def equality(
    entries: Sequence[Row], columns: Mapping[str, str], counts: Mapping[str, Callable[[Row], str]], near_tie: float
) -> list[str]:
    """How many requests are equal, and the others one by one.

    Args:
        columns: heads of an entry's further figures, by name.
        counts: what both sides counted of a request that is not equal, by head.
        near_tie: the gap up to which rounding may choose another token, in logits.
    """
    names = ("way", "K", "requests", "equal")
    rows = (
        (
            *(entry[name] for name in (*names, *columns)),
            counted([difference["kind"] for difference in entry["differences"]]),
        )
        for entry in entries
    )
    parts = [table((*names, *columns.values(), "exceptions"), rows)]
    exceptions = [
        (
            *(entry["way"], entry["K"], difference["request"]),
            NOTHING if difference["position"] is None else difference["position"],
            NOTHING if difference["top_two_gap"] is None else f"{difference['top_two_gap']:.1g}",
            difference["kind"].replace("_", " "),
            *(count(difference) for count in counts.values()),
        )
        for entry in entries
        for difference in entry["differences"]
    ]
    if exceptions:
        parts.append(f"A near-tie is a place where the two likeliest tokens lie at most {near_tie:g} logits apart.\n")
        parts.append(table(("way", "K", "request", "parts at token", "top-2 gap", "kind", *counts), exceptions))
    return parts


def acceptance_table(cells: Sequence[Row]) -> str:
    """Rates of each way, all slices together."""
    return table(
        ("way", "K", "vLLM", "loop", "vLLM, cut", "replay", "tokens per step: vLLM", "loop"),
        (
            (
                cell["way"],
                cell["K"],
                f"{100 * cell['vllm']:.1f} ± {100 * cell['vllm_half_width']:.1f}",
                _marked(cell, "loop", "vllm"),
                f"{100 * cell['vllm_cut']:.1f} ± {100 * cell['vllm_cut_half_width']:.1f}",
                _marked(cell, "replay", "vllm_cut"),
                f"{cell['vllm_mean_acceptance_length']:.2f}",
                f"{cell['loop_mean_acceptance_length']:.2f}",
            )
            for cell in cells
        ),
    )


def is_apart(cell: Row, ours: str, theirs: str) -> bool:
    """Whether the two rates differ by more than the interval of their difference allows."""
    return bool(abs(cell[ours] - cell[theirs]) > cell[f"{ours}_difference_half_width"] + EXACT)


def _marked(cell: Row, ours: str, theirs: str) -> str:
    apart = "!" if is_apart(cell, ours, theirs) else ""
    return f"{100 * cell[ours]:.1f}" + ("" if cell[f"{ours}_is_inside"] else "*") + apart


def rules_table(cells: Sequence[Row]) -> str:
    """What a candidate would have accepted whose endpoint names no serving engine, where its rules are others."""
    rates = ("vllm_cut", "replay", "replay_by_default")
    return table(
        ("way", "K", "vLLM, cut", "replay, vLLM named", "replay, no engine named"),
        (
            (cell["way"], cell["K"], *(f"{100 * cell[name]:.1f}" for name in rates))
            for cell in cells
            if cell["slice"] == ALL and cell["replay_by_default"] is not None
        ),
    )


def speedup_table(cells: Sequence[Row]) -> str:
    """Predicted and measured speedups of one way."""
    return table(
        ("slice", "K", "at once", "measured", "predicted", "error"),
        (
            (
                *(cell[name] for name in ("slice", "K", "concurrency")),
                f"{cell['measured']:.2f}x [{cell['lower']:.2f}, {cell['upper']:.2f}]",
                f"{cell['predicted']:.2f}x"
                + ("" if cell["is_close"] else "*")
                + ("!" if cell["sign_is_right"] is False else ""),
                f"{cell['error']:+.1%}",
            )
            for cell in cells
        ),
    )


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """In Markdown, the first column left and the others right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"
