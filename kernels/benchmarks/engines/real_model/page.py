"""docs/research/real-model.md and its picture, from the results and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kernels.benchmarks.engines.real_model.picture import picture
from kernels.benchmarks.engines.real_model.prompts import CLASSES
from kernels.benchmarks.harness import sections

PAGE, PICTURE = "real-model.md", "images/real-model.svg"
NOTHING_ON_A_GPU: Final = "Anything on a GPU: all engines ran on a CPU."

_TRUE: Final = {True: "yes", False: "**no**", None: "-"}
_TEXTS = sections("real-model.md")


def page(document: Mapping[str, Any]) -> str:
    """The page in Markdown."""
    cells, machine = document["cells"], document["machine"]
    note = f" {document['note']}" if document["note"] else ""
    noise = _TEXTS["noise"].format(
        load=document["highest_load"], limit=document["max_load"], cores=machine["cores"], note=note
    )
    options = document["vllm_options"]
    head = _TEXTS["head"].format(
        tokens=document["max_tokens"],
        requests=document["requests_per_class"],
        more=f" vLLM's servers ran with `{options}`." if options else "",
        picture=PICTURE,
        verdicts="\n".join(f"- {line}" for line in _came_out(cells)),
    )
    parts = [head, _TEXTS["measured"].format(noise=noise), _table(cells)]
    reasons = (*document["not_run"], NOTHING_ON_A_GPU)
    parts.append("## What has not run\n\n" + "".join(f"- {reason}\n" for reason in reasons))
    parts.append("Machine: " + ", ".join(f"{name} {value}" for name, value in machine.items()) + ".\n")
    return "\n".join(parts)


def _came_out(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for engine in dict.fromkeys(cell["engine"] for cell in cells):
        counted = Counter(cell["verdict"] for cell in cells if cell["engine"] == engine)
        lines.append(f"{engine}: {', '.join(f'{number} {verdict}' for verdict, number in sorted(counted.items()))}.")
    judged = [cell["is_true"] for cell in cells if cell["is_true"] is not None]
    lines.append(f"{sum(judged)} of {len(judged)} verdicts other than HOLD are true of the second run.")
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
        "| engine | candidate | class | requests | acceptance | speedup | gate's bounds | verdict | second run "
        "| true |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- | ---: | --- |",
    ]
    for cell in rows:
        failed = f" ({cell['num_failed']} failed)" if cell["num_failed"] else ""
        lines.append(
            f"| {cell['version']} | {cell['candidate']} | {cell['prompt_class'] or 'all'} "
            f"| {cell['num_requests']}{failed} | {_estimate(cell['acceptance'], 100, '%', 0)} "
            f"| {_estimate(cell['speedup'], 1, 'x', 2)} | {_bounds(cell['gate_speedup'])} | {cell['verdict'] or '-'} "
            f"| {_estimate(cell['second_speedup'], 1, 'x', 2)} | {_TRUE[cell['is_true']]} |"
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


def write_page(document: Mapping[str, Any], folder: Path) -> None:
    """Write the page and its picture into a folder of documentation."""
    (folder / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(document), encoding="utf-8")
    (folder / PICTURE).write_text(picture(document["cells"], CLASSES), encoding="utf-8")
