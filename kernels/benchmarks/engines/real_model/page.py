"""docs/research/real-model.md and its picture, from the results and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kernels.benchmarks.engines.real_model.picture import picture
from kernels.benchmarks.engines.real_model.prompts import CLASSES
from kernels.benchmarks.harness import sections

PAGE, PICTURE = "real-model.md", "images/real-model.svg"
ALL: Final = "all"
BUSY: Final = 1.5  # processes that want a core, from which times are said to be worth little
NOTHING_ON_A_GPU: Final = "Anything on a GPU: all engines ran on a CPU."

_TEXTS = sections("real-model.md")


def page(document: Mapping[str, Any]) -> str:
    """The page in Markdown."""
    cells = document["cells"]
    machine = document["machine"]
    load, cores = document["mean_load"], int(machine["cores"])
    note = f" {document['note']}" if document["note"] else ""
    noise = _TEXTS["noise"].format(load=load, cores=cores, note=note) if load > BUSY * cores else ""
    head = _TEXTS["head"].format(
        tokens=document["max_tokens"],
        more="".join(f" {line}" for line in _settings(document)),
        picture=PICTURE,
        verdicts="\n".join(f"- {verdict}" for verdict in _verdicts(document)),
    )
    parts = [head, _TEXTS["measured"].format(noise=noise)]
    parts.append(_table([cell for cell in cells if cell["prompt_class"] == ""]))
    if document["replays"]:
        parts += [
            _TEXTS["replay"].format(
                requests=document["replays"]["requests_replayed"], tokens=document["logged_tokens"]
            ),
            _replays(document["replays"]),
        ]
    if document["draft"]:
        parts.append(_draft(document["draft"]))
    parts.append(
        "## What has not run\n\n" + "".join(f"- {reason}\n" for reason in (*document["not_run"], NOTHING_ON_A_GPU))
    )
    parts.append("Machine: " + ", ".join(f"{name} {value}" for name, value in machine.items()) + ".\n")
    return "\n".join(parts)


def _settings(document: Mapping[str, Any]) -> list[str]:
    """What else was set, as far as the results say it."""
    lines = []
    if number := document.get("max_hypotheses"):
        lines.append(f"`max_hypotheses = {number}`, because two candidates have ten hypotheses.")
    if options := document.get("vllm_options"):
        lines.append(f"vLLM's servers ran with `{options}`.")
    return lines


def _verdicts(document: Mapping[str, Any]) -> list[str]:
    lines = []
    cells = document["cells"]
    for engine in dict.fromkeys(cell["engine"] for cell in cells):
        mine = [cell for cell in cells if cell["engine"] == engine]
        for candidate in dict.fromkeys(cell["candidate"] for cell in mine):
            rows = {cell["prompt_class"]: cell for cell in mine if cell["candidate"] == candidate}
            words = ", ".join(
                f"{name} {rows[name]['acceptance']['value']:.0%}"
                for name in CLASSES
                if name in rows and rows[name]["acceptance"]
            )
            lines.append(f"{engine}, `{candidate}`: acceptance {words or 'unknown, nothing was drafted'}.")
    compared = [cell for cell in cells if cell["prompt_class"] == "" and cell["num_diverged"] is not None]
    diverged, faults = (sum(cell[key] or 0 for cell in compared) for key in ("num_diverged", "num_faults"))
    requests = sum(cell["num_requests"] - cell["num_failed"] for cell in compared)
    others = f" {faults} of the others differ where the target was in no doubt." if diverged else ""
    lines.append(
        f"{requests - diverged} of {requests} speculative outputs equal the baseline's token by token.{others}"
    )
    return lines


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| engine | candidate | requests | steps with a draft | acceptance | tokens per step | speedup | gate's bounds "
        "| verdict |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for cell in rows:
        failed = f" ({cell['num_failed']} failed)" if cell["num_failed"] else ""
        per_step = "-" if cell["tokens_per_step"] is None else f"{cell['tokens_per_step']:.2f}"
        lines.append(
            f"| {cell['engine']} | {cell['candidate']} | {cell['num_requests']}{failed} | {cell['num_drafts']} "
            f"| {_estimate(cell['acceptance'], 100, '%', 0)} | {per_step} | {_estimate(cell['speedup'], 1, 'x', 2)} "
            f"| {_bounds(cell['gate_speedup'])} | {cell['verdict'] or '-'} |"
        )
    return "\n".join(lines) + "\n"


def _estimate(estimate: Mapping[str, Any] | None, scale: float, unit: str, digits: int) -> str:
    if estimate is None:
        return "-"
    value = f"{scale * estimate['value']:.{digits}f}{unit}"
    if estimate["lower"] is None:
        return value
    return f"{value} [{scale * estimate['lower']:.{digits}f}, {scale * estimate['upper']:.{digits}f}]"


def _bounds(estimate: Mapping[str, Any] | None) -> str:
    if estimate is None or estimate["lower"] is None or estimate["upper"] is None:
        return "-"
    return f"[{estimate['lower']:.2f}, {estimate['upper']:.2f}]"


def _replays(replays: Mapping[str, Any]) -> str:
    depths = sorted({row["num_speculative_tokens"] for row in replays["rows"]})
    heads = " | ".join(f"K={depth}" for depth in depths)
    lines = [f"| candidate | first position | {heads} |", "| --- | ---: |" + " ---: |" * len(depths)]
    mine = [row for row in replays["rows"] if row["prompt_class"] == ""]
    for candidate in dict.fromkeys(row["candidate"] for row in mine):
        rows = {row["num_speculative_tokens"]: row for row in mine if row["candidate"] == candidate}
        first = rows[depths[0]]["first_position_acceptance_rate"]
        lengths = " | ".join(_length(rows[depth]) if depth in rows else "-" for depth in depths)
        lines.append(f"| {candidate} | {'-' if first is None else f'{first:.0%}'} | {lengths} |")
    return "\n".join(lines) + "\n"


def _length(row: Mapping[str, Any]) -> str:
    if row["length"] is None:
        return "-"
    if row["lower"] is None:
        return f"{row['length']:.2f}"
    return f"{row['length']:.2f} [{row['lower']:.2f}, {row['upper']:.2f}]"


def _draft(draft: Mapping[str, Any]) -> str:
    def first(name: str) -> str:
        value = draft[name]
        return "-" if value is None else f"{value:.0%}"

    return _TEXTS["draft"].format(
        layers=draft["layers"], depth=draft["depth"], parameters=draft["parameters"],
        share=draft["parameters"] / draft["target_parameters"], training=draft["training"],
        held_out=draft["held_out"], first_before=first("first_before"), first_after=first("first_after"),
    )  # fmt: skip


def write_page(document: Mapping[str, Any], folder: Path) -> None:
    """Write the page and its picture into a folder of documentation."""
    (folder / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(document), encoding="utf-8")
    (folder / PICTURE).write_text(picture(document["cells"], CLASSES), encoding="utf-8")
