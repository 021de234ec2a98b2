"""docs/research/validation-llamacpp.md, from the results and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kernels.benchmarks.engines.documents import REAL_MODEL
from kernels.benchmarks.engines.llamacpp.comparing import ACCEPTED, DRAFTED, NEAR_TIE_GAP, PLAIN, STEPS
from kernels.benchmarks.engines.llamacpp.ways import NGRAM, WAYS, LlamaWay
from kernels.benchmarks.engines.tables import ALL, counted, equality, table
from kernels.benchmarks.harness import sections

PAGE = "validation-llamacpp.md"
Row = Mapping[str, Any]
COLUMNS = {"equal_cut": "by our counters", "unsure": "unsure", "hidden": "hidden", STEPS: "steps with a draft"}
COLUMNS |= {DRAFTED: "drafted", ACCEPTED: "accepted"}
COUNTS = {"steps: ours, theirs": STEPS, "plain steps": PLAIN, "drafted": DRAFTED, "accepted": ACCEPTED}

_TEXTS = sections("validation-llamacpp.md")


def write_page(document: Row, docs: Path) -> None:
    """Write the page."""
    head = _TEXTS["head"].format(
        requests=document["requests"],
        max_tokens=document["max_tokens"],
        sampled=document["sampled_requests"],
        depths=", ".join(map(str, document["depths"])),
        version=document["llamacpp"],
        ngram=NGRAM,
        verdicts="\n".join(_verdicts(document)),
    )
    parts = [head, _TEXTS["equality"], *_equality(document)]
    parts.append(_TEXTS["acceptance"].format(level=document["level"]))
    parts.append(acceptance_table(document["cells"]))
    if REAL_MODEL in document:
        parts += _real_model(document[REAL_MODEL])
    (docs / PAGE).write_text("\n".join([*parts, _TEXTS["building"]]), encoding="utf-8")


def _real_model(found: Row) -> list[str]:
    """The section of another pair."""
    depths = ", ".join(map(str, found["depths"]))
    head = _TEXTS["real_model"].format(
        requests=found["requests"], max_tokens=found["max_tokens"], depths=depths, verdicts=_replayed(found)
    )
    return [head, *_equality(found), acceptance_table(found["cells"])]


def _equality(document: Row) -> list[str]:
    counts = {head: partial(_both_sides, name) for head, name in COUNTS.items()}
    return equality(document["equality"], COLUMNS, counts, NEAR_TIE_GAP)


def _both_sides(name: str, difference: Row) -> str:
    return f"{difference['ours'][name]}, {difference['theirs'][name]}"


def _of(way: LlamaWay, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["way"] == way.name]


def _replayed(document: Row) -> str:
    equal, every = (sum(row[name] for row in document["own_outputs"]) for name in ("equal", "requests"))
    return f"Replay of llama.cpp's outputs gives its counters in {equal} of {every} requests that are sure."


def _verdicts(document: Row) -> list[str]:
    lines = []
    for way in WAYS:
        cells = _of(way, document["cells"])
        if entries := _of(way, document["equality"]):
            equal, every, ours = (sum(entry[name] for entry in entries) for name in ("equal", "requests", "equal_cut"))
            kinds = counted([difference["kind"] for entry in entries for difference in entry["differences"]])
            lines.append(
                f"- `{way.name}`: {equal} of {every} ({equal / every:.1%}) requests are equal, {ours} by our counters. "
                f"Exceptions: {kinds}."
            )
        elif cells:
            inside = sum(cell["is_inside"] for cell in cells)
            lines.append(
                f"- `{way.name}`: within llama.cpp's interval lie {inside} of {len(cells)} ({inside / len(cells):.1%}) "
                "cells of `loop`."
            )
    lines.append(f"- {_replayed(document)}")
    if arms := document.get("arms"):
        equal, every = (sum(row[name] for row in arms) for name in ("equal", "requests"))
        lines.append(f"- llama.cpp's two arms gave the same tokens in {equal} of {every} requests, sampled ones too.")
    return lines


def acceptance_table(cells: Sequence[Row]) -> str:
    """Both sides' rates of each way, all slices together."""
    rows = []
    for cell in cells:
        if cell["slice"] != ALL:
            continue
        is_apart = abs(cell["loop"] - cell["llamacpp"]) > cell["difference_half_width"] + 1e-9
        marks = ("" if cell["is_inside"] else "*") + ("!" if is_apart else "")
        theirs = f"{100 * cell['llamacpp']:.1f} ± {100 * cell['llamacpp_half_width']:.1f}"
        rows.append((cell["way"], cell["K"], theirs, f"{100 * cell['loop']:.1f}{marks}"))
    return table(("way", "K", "llama.cpp", "loop"), rows)
