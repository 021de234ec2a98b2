"""docs/research/real-model.md and its picture, from the results and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kernels.benchmarks.engines.real_model.picture import picture, short_name
from kernels.benchmarks.engines.real_model.prompts import CLASSES
from kernels.benchmarks.harness import sections
from shadowspec.types import Verdict

PAGE, PICTURE = "real-model.md", "images/real-model.svg"
NOTHING_ON_A_GPU: Final = "Anything on a GPU."

_TRUE: Final = {True: "yes", False: "**no**", None: "-"}
_TEXTS = sections("real-model.md")
Row = Mapping[str, Any]


def page(document: Mapping[str, Any]) -> str:
    """The page in Markdown."""
    sittings = document["sittings"]
    head = _TEXTS["head"].format(picture=PICTURE, verdicts="\n".join(f"- {line}" for line in _came_out(sittings)))
    lacking: dict[str, list[str]] = {}
    for sitting in sittings:
        for way in sitting["not_run"]:
            lacking.setdefault(way, []).append(short_name(sitting))
    missing = [f"{way}: {', '.join(names)}." for way, names in lacking.items()]
    return "\n".join(
        [
            head,
            _TEXTS["measured"],
            _table(sittings),
            "## What has not run\n\n" + "".join(f"- {reason}\n" for reason in (*missing, NOTHING_ON_A_GPU)),
            "## How each engine was measured\n\n" + "".join(map(_how, sittings)),
            "".join(f"Machine: {each}.\n" for each in dict.fromkeys(map(_machine, sittings))),
        ]
    )


def _how(sitting: Row) -> str:
    options = f" Its servers ran with `{sitting['options']}`." if sitting["options"] else ""
    note = f" {sitting['note']}" if sitting["note"] else ""
    return _TEXTS["how"].format(
        name=short_name(sitting),
        version=next((cell["version"] for cell in sitting["cells"]), ""),
        revision=sitting["machine"]["revision"][:8],
        requests=sitting["requests_per_class"],
        tokens=sitting["max_tokens"],
        limit=sitting["max_load"],
        load=sitting["highest_load"],
        more=options + note,
    )


def _machine(sitting: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in sitting["machine"].items() if name != "revision")


def _different(sitting: Row) -> list[Row]:
    """The cells; where there is one class, it is all."""
    has_one = len(sitting["classes"]) == 1
    return [cell for cell in sitting["cells"] if not (has_one and cell["prompt_class"])]


def _came_out(sittings: Sequence[Row]) -> list[str]:
    lines = []
    for sitting in sittings:
        counted = Counter(cell["verdict"] for cell in _different(sitting))
        lines.append(
            f"{short_name(sitting)}: {', '.join(f'{number} {verdict}' for verdict, number in sorted(counted.items()))}."
        )
    cells = [cell for sitting in sittings for cell in _different(sitting)]
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


def _table(sittings: Sequence[Row]) -> str:
    lines = [
        "| engine | candidate | class | acceptance | speedup | gate's bounds | verdict | second run | true |",
        "| --- | --- | --- | ---: | ---: | ---: | --- | ---: | --- |",
    ]
    for sitting in sittings:
        of_all = {cell["candidate"]: cell["verdict"] for cell in sitting["cells"] if not cell["prompt_class"]}
        for cell in sitting["cells"]:
            if cell["prompt_class"] and cell["verdict"] in (Verdict.HOLD, of_all[cell["candidate"]]):
                continue  # the picture has it
            failed = f" ({cell['num_failed']} failed)" if cell["num_failed"] else ""
            lines.append(
                f"| {short_name(sitting)} | {cell['candidate']} | {cell['prompt_class'] or 'all'}{failed} "
                f"| {_estimate(cell['acceptance'], 100, '%', 0)} "
                f"| {_estimate(cell['speedup'], 1, 'x', 2)} | {_bounds(cell['gate_speedup'])} "
                f"| {cell['verdict'] or '-'} | {_estimate(cell['second_speedup'], 1, 'x', 2)} "
                f"| {_TRUE[cell['is_true']]} |"
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
    (folder / PICTURE).write_text(picture(document["sittings"], CLASSES), encoding="utf-8")
