"""docs/research/validation.md and its picture, from the results and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kernels.benchmarks.engines.documents import REAL_MODEL
from kernels.benchmarks.engines.picture import picture
from kernels.benchmarks.engines.tables import (
    ALL,
    Row,
    acceptance_table,
    counted,
    equality,
    is_apart,
    rules_table,
    speedup_table,
)
from kernels.benchmarks.harness import sections
from shadowspec import metrics
from shadowspec.servers.engines.rules import rule_word

SAMPLED = ("greedy_draft", "rejection", "ngram_sampled")
PAGE, PICTURE = "validation.md", "images/validation.svg"

_TEXTS = sections("validation.md")
EQUALITY = {"equal_cut": "and after the cut", "num_drafts": "steps with a draft", "num_accepted_tokens": "accepted"}
COUNTS: dict[str, Callable[[Row], str]] = {
    "steps: ours, vLLM's": lambda row: ", ".join(map(str, row["num_drafts"])),
    "accepted: ours, vLLM's": lambda row: ", ".join(map(str, row["num_accepted_tokens"])),
}


def page(document: Row) -> str:
    """The page in Markdown."""
    cells, speedups = document["cells"], document["speedups"]
    rules = {way: _rules_text(used) for way, used in document["drafting_rules"].items()}
    parts = [
        _TEXTS["head"].format(
            **rules,
            serving_engine=document["serving_engine"],
            requests=document["requests"],
            max_tokens=document["max_tokens"],
            depths=_depths(cells),
            vllm=document["vllm"]["vllm"],
            picture=PICTURE,
            verdicts="\n".join(f"- {line}" for line in verdicts(document)),
        ),
        _TEXTS["equality"],
        *_equality(document),
    ]
    parts.append(_TEXTS["acceptance"].format(level=document["level"]))
    parts.append(acceptance_table([cell for cell in cells if cell["slice"] == ALL]))
    shipped = document["shipped"]
    differing = _TEXTS["rules"].format(
        impossible=shipped["impossible"],
        shipped_requests=shipped["requests"],
        shipped_depth=shipped["K"],
        baseline_impossible=shipped["baseline_impossible"],
    )
    parts += [differing, rules_table(cells)]
    idle = max((speedup["idle_cpu_share"] for speedup in speedups), default=0.0)
    spread = max((speedup["price_spread"] for speedup in speedups), default=1.0)
    blocks = max((cell["blocks"] for speedup in speedups for cell in speedup["cells"]), default=0)
    described = _TEXTS["speedup"] if speedups else _TEXTS["no_speedup"]
    parts.append(described.format(idle=idle, spread=spread, blocks=blocks))
    for speedup in speedups:
        parts += [f"### {speedup['way']}\n", speedup_table(speedup["cells"])]
    if speedups and document["timed_on"] != document["machine"]:
        parts.append(f"Speedups were timed earlier: {_machine_text(document['timed_on'])}.\n")
    parts.append(_ran_on(document))
    if REAL_MODEL in document:
        parts += _real_model(document[REAL_MODEL])
    return "\n".join(parts)


def _real_model(found: Row) -> list[str]:
    """The section of another pair."""
    return [
        _TEXTS["real_model"].format(
            requests=found["requests"],
            max_tokens=found["max_tokens"],
            depths=_depths(found["equality"]),
            flags=" ".join(f"`{flag}`" for flag in found["vllm"]["flags"]) or "none",
        ),
        *_equality(found),
        _ran_on(found),
    ]


def _equality(document: Row) -> list[str]:
    return equality(document["equality"], EQUALITY, COUNTS, document["near_tie_logit"])


def _depths(rows: Sequence[Row]) -> str:
    return ", ".join(map(str, sorted({row["K"] for row in rows})))


def _ran_on(document: Row) -> str:
    return f"{_machine_text(document['machine'])}; vLLM's threads: {document['vllm']['threads_bind']}.\n"


def _inside(cells: Sequence[Row]) -> str:
    """How many cells of either of our figures lie within the interval of vLLM's."""
    looped = _share(sum(cell["loop_is_inside"] for cell in cells), len(cells))
    replayed = _share(sum(cell["replay_is_inside"] for cell in cells), len(cells))
    return f"within vLLM's interval lie {looped} cells of `loop` and {replayed} of `replay`"


def _machine_text(machine: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def _rules_text(used: Mapping[str, str | bool]) -> str:
    """Options with their values, as a cell of a table has them."""
    return ", ".join(f"`{option}` = `{rule_word(value)}`" for option, value in used.items())


def equality_verdicts(document: Row) -> list[str]:
    """How many greedy requests are equal; each line names the proposer, and the option that decides."""
    lines = []
    for way in dict.fromkeys(row["way"] for row in document["equality"]):
        rows = [row for row in document["equality"] if row["way"] == way]
        kinds = [difference["kind"] for row in rows for difference in row["differences"]]
        equal = _share(sum(row["equal"] for row in rows), sum(row["requests"] for row in rows))
        others = f"; the others: {counted(kinds)}" if kinds else ""
        lines.append(f"`{way}`: {equal} requests are equal{others}.")
    return lines


def verdicts(document: Row) -> list[str]:
    """What was to be shown, and how much of it holds."""
    lines = equality_verdicts(document)
    cells = document["cells"]
    known = [row for row in document["own_outputs"] if "equal" in row]
    alike = _share(sum(row["equal"] for row in known), sum(row["requests"] for row in known))
    lines.append(f"Replay of vLLM's outputs gives its counters in {alike} requests whose cut is known.")
    lines.append(f"Acceptance rates by way, slice and K: {_inside(cells)}.")
    sampled = [cell for cell in cells if cell["way"] in SAMPLED]
    if sampled:
        apart = _share(sum(not is_apart(cell, "loop", "vllm") for cell in sampled), len(sampled))
        replay_apart = _share(sum(not is_apart(cell, "replay", "vllm_cut") for cell in sampled), len(sampled))
        lines.append(
            f"Of the sampled ways, within the {document['level']:.0%} interval of the difference lie {apart} cells of "
            f"`loop` and {replay_apart} of `replay`."
        )
    for speedup in document["speedups"]:
        close = _share(sum(cell["is_close"] for cell in speedup["cells"]), len(speedup["cells"]))
        known = [cell["sign_is_right"] for cell in speedup["cells"] if cell["sign_is_right"] is not None]
        lines.append(
            f"`{speedup['way']}`: the predicted end-to-end speedup lies within 10% of the measured one in {close} "
            f"cells of slice, K and concurrency. It has the right sign in {_share(sum(known), len(known))} of those "
            "whose measured interval excludes none."
        )
        inside = _share(sum(cell["is_inside"] for cell in speedup["cells"]), len(speedup["cells"]))
        lines.append(f"`{speedup['way']}`: it lies within the measured 95% interval in {inside} cells.")
        if _is_calibrated([speedup]):
            calm = _share(sum(cell["baseline_again"]["is_close"] for cell in speedup["cells"]), len(speedup["cells"]))
            furthest = max(abs(cell["baseline_again"]["error"]) for cell in speedup["cells"])
            lines.append(
                f"The machine's drift: the baseline's blocks, sent again, took as long within 10% in {calm} cells. "
                f"At most they were off by {furthest:.1%}."
            )
    return lines


def _is_calibrated(speedups: Sequence[Row]) -> bool:
    """Whether the baseline's blocks were timed twice, and prices between them; older results were not."""
    return all("baseline_again" in cell for speedup in speedups for cell in speedup["cells"])


def _share(part: int, whole: int) -> str:
    share = metrics.ratio(part, whole)
    return f"{part} of {whole}" if share is None else f"{part} of {whole} ({share:.1%})"


def write_page(document: Row, folder: Path) -> None:
    """Write the page and its picture into a folder of documentation."""
    (folder / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(document), encoding="utf-8")
    (folder / PICTURE).write_text(picture(document), encoding="utf-8")
