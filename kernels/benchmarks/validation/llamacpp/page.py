"""docs/research/validation-llamacpp.md, from the results and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels.benchmarks.validation.comparing import DRAFT_NEAR_TIE, FAULT, NEAR_TIE
from kernels.benchmarks.validation.documents import REAL_MODEL
from kernels.benchmarks.validation.llamacpp.comparing import ACCEPTED, DRAFTED, NEAR_TIE_GAP, PLAIN, STEPS
from kernels.benchmarks.validation.llamacpp.ways import NGRAM, WAYS, Way
from kernels.benchmarks.validation.tables import ALL

PAGE = "validation-llamacpp.md"
Row = Mapping[str, Any]

_HEAD = """\
# Against llama.cpp

Written by `make validate-llamacpp` from `kernels/benchmarks/results/validation-llamacpp.json`; do not edit.

Are the steps, drafts and acceptance that ShadowSpec measures those of llama.cpp? Both sides run the bundled pair in
float32 (keys and values too, and without flash attention). The prompts are {requests} of the bundled traffic (sampled:
{sampled}), as many of each of its endpoints (the slices here). Answers have up to {max_tokens} tokens, and K is
{depths}.
`llama-server` ({version}) runs on the same CPU, once for each way of drafting and K. It answers eight requests at a
time. ShadowSpec reads the same counts when it measures an endpoint ([through
servers](../servers.md#other-servers)): of every request, step by step, from `timings`.

| way | `llama-server` | requests | our rule |
| --- | --- | --- | --- |
| `greedy` | `--spec-type draft-simple` | temperature 0 | `greedy` |
| `exact_match` | `--spec-type draft-simple` | temperature 0.8, top-p 0.95 | `exact_match` |
| `ngram` | `--spec-type ngram-simple`, {ngram} tokens | temperature 0 | `greedy` |
| `ngram_sampled` | `--spec-type ngram-simple`, {ngram} tokens | temperature 0.8, top-p 0.95 | `exact_match` |

Our side (`loop`) is the product's engine in process, unchanged: its candidates are those of an endpoint with
`serving_engine = "llama.cpp"`, which draft by llama.cpp's [rules](../proposers.md#the-rules-of-serving-engines).
Neither this comparison nor llama.cpp has run on a GPU. The results file has every cell by slice.

## What came out

{verdicts}
"""
_EQUALITY = """\
## Greedy: request by request

Equal are the tokens, the steps with and without a draft, and the drafted and accepted tokens, in llama.cpp's sense. A
drafted end token counts as not accepted, unless it is the draft's last one. "By our counters": equal in every counter
of ours too, by position and cut at the last emitted token. "Unsure" are requests of which llama.cpp does not say
whether the end token had been drafted. Its counts have one accepted token fewer where it had. "Hidden": some tokens end
within a character and came without an event of the stream. Their ids were asked for once more.
"""
_OWN_OUTPUTS = """\
## Outputs of llama.cpp, replayed

A draft is certain of its token here, so that an output determines exactly which tokens of the drafts along it were
accepted. [Replay](../replay.md) of the speculative server's outputs therefore gives its counters, request by request
and position by position, those of sampled requests too. Unsure requests are left out.
"""
_ARMS = """\
## llama.cpp's two arms

Requests whose tokens are the same from the speculative server and from the baseline server. Both draw the same random
numbers for the same places, so that sampled outputs are the same too, but for rounding. `gap`: of the greedy requests
that part, the largest difference of the target's two likeliest logits at that place.
"""
_ACCEPTANCE = """\
## Acceptance rates

Accepted over drafted tokens of all slices, in percent, with llama.cpp's {level:.0%} interval (requests as units). `*`:
ours lies outside of it. `!`: outside of the interval of the difference, request by request. For sampled requests each
side draws separate outputs.
"""
_BUILDING = """\
## Building llama.cpp

The source distribution of `llama-cpp-python` (MIT) holds all of it:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36
    tar xzf llama_cpp_python-0.3.36.tar.gz && cd llama_cpp_python-0.3.36/vendor/llama.cpp
    cmake -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \\
        -DLLAMA_BUILD_EXAMPLES=OFF -DBUILD_SHARED_LIBS=OFF
    ninja -C build llama-server
    make validate-llamacpp ARGS="--server build/bin/llama-server --source ."
"""
_REAL_MODEL = """\
## A real language model

The same comparison of greedy requests with SmolLM2-135M-Instruct ([a real language model](real-model.md)): {requests}
public prompts of four classes (the slices), as chats, in float32. Answers have up to {max_tokens} tokens, and K is
{depths}. A draft is the target without three of its 30 layers.

    python kernels/benchmarks/real_model/dequantised.py FOLDER
    python kernels/benchmarks/real_model/shortened.py FOLDER/model FOLDER/draft
    make validate-llamacpp ARGS="--server PATH/llama-server --source PATH --target FOLDER/model --draft FOLDER/draft \\
        --prompts kernels/benchmarks/real_model/prompts.jsonl --requests {requests} --tokens {max_tokens} \\
        --depths {depths} --threads 1"

{verdicts}
"""


def write_page(document: Row, docs: Path) -> None:
    """Write the page."""
    head = _HEAD.format(
        requests=document["requests"],
        max_tokens=document["max_tokens"],
        sampled=document["sampled_requests"],
        depths=", ".join(map(str, document["depths"])),
        version=document["llamacpp"],
        ngram=NGRAM,
        verdicts="\n".join(_verdicts(document)),
    )
    parts = [head, _EQUALITY, *_equality(document["equality"])]
    parts += [_OWN_OUTPUTS, own_outputs_table(document["own_outputs"])]
    parts += [_ARMS, arms_table(document["arms"]), _ACCEPTANCE.format(level=document["level"])]
    parts.append(acceptance_table(document["cells"]))
    if REAL_MODEL in document:
        parts += _real_model(document[REAL_MODEL])
    (docs / PAGE).write_text("\n".join([*parts, _BUILDING]), encoding="utf-8")


def _real_model(found: Row) -> list[str]:
    """The section of another pair."""
    depths = ", ".join(map(str, found["depths"]))
    head = _REAL_MODEL.format(
        requests=found["requests"],
        max_tokens=found["max_tokens"],
        depths=depths,
        verdicts="\n".join(_verdicts(found)),
    )
    return [
        head,
        *_equality(found["equality"]),
        own_outputs_table(found["own_outputs"]),
        acceptance_table(found["cells"]),
    ]


def _equality(equality: Sequence[Row]) -> list[str]:
    """How many requests are equal, and the others one by one."""
    parts = [equality_table(equality)]
    if differing := exceptions_table(equality):
        parts += [
            f"A near-tie is a place where the two likeliest tokens lie at most {NEAR_TIE_GAP:g} logits apart.\n",
            differing,
        ]
    return parts


def _of(way: Way, rows: Sequence[Row]) -> list[Row]:
    return [each for each in rows if each["way"] == way.name]


def _verdicts(document: Row) -> list[str]:
    lines = []
    for way in WAYS:
        cells = _of(way, document["cells"])
        if entries := _of(way, document["equality"]):
            equal, every, ours = (sum(each[name] for each in entries) for name in ("equal", "requests", "equal_cut"))
            kinds = counted([each["kind"] for entry in entries for each in entry["differences"]])
            lines.append(
                f"- `{way.name}`: {equal} of {every} ({equal / every:.1%}) requests are equal in tokens, steps, "
                f"drafted and accepted tokens, as llama.cpp counts a drafted end token. By our counters: {ours}. "
                f"Exceptions: {kinds}."
            )
        elif cells:
            inside = sum(each["is_inside"] for each in cells)
            lines.append(
                f"- `{way.name}`: within llama.cpp's interval lie {inside} of {len(cells)} ({inside / len(cells):.1%}) "
                "cells of `loop`."
            )
    return lines


def counted(kinds: Sequence[str]) -> str:
    """How many differences there are of each kind, in words."""
    words = {NEAR_TIE: "near-ties of the target", DRAFT_NEAR_TIE: "near-ties of the draft", FAULT: "faults"}
    return ", ".join(f"{kinds.count(kind)} {word}" for kind, word in words.items() if kind in kinds) or "none"


def equality_table(equality: Sequence[Row]) -> str:
    """How many requests are equal."""
    names = ("way", "K", "requests", "equal", "equal_cut", "unsure", "hidden", STEPS, DRAFTED, ACCEPTED)
    heads = ("way", "K", "requests", "equal", "by our counters", "unsure", "hidden")
    rows = (
        (*(entry[name] for name in names), counted([each["kind"] for each in entry["differences"]]))
        for entry in equality
    )
    return _table((*heads, "steps with a draft", "drafted", "accepted", "exceptions"), rows)


def exceptions_table(equality: Sequence[Row]) -> str:
    """Every request that is not equal; "" where all are."""
    rows = [
        (
            entry["way"], entry["K"], each["request"], "-" if each["position"] is None else each["position"],
            "-" if each["top_two_gap"] is None else f"{each['top_two_gap']:.1e}", each["kind"],
            *(f"{each['ours'][name]}, {each['theirs'][name]}" for name in (STEPS, PLAIN, DRAFTED, ACCEPTED)),
        )
        for entry in equality
        for each in entry["differences"]
    ]  # fmt: skip
    head = ("way", "K", "request", "parts at token", "top-2 gap", "kind")
    counts = ("steps: ours, theirs", "plain steps", "drafted", "accepted")
    return _table((*head, *counts), rows) if rows else ""


def own_outputs_table(audits: Sequence[Row]) -> str:
    """How many requests were counted as their outputs say."""
    names = ("way", "K", "requests", "equal", "unsure")
    heads = ("way", "K", "requests", "equal to replay", "unsure")
    return _table(heads, ([each[name] for name in names] for each in audits))


def arms_table(arms: Sequence[Row]) -> str:
    """How many requests both arms answered with the same tokens."""
    return _table(
        ("way", "K", "requests", "same tokens", "gap"),
        (
            (
                each["way"], each["K"], each["requests"], each["equal"],
                "-" if each["largest_gap"] is None else f"{each['largest_gap']:.1e}",
            )
            for each in arms
        ),
    )  # fmt: skip


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
    return _table(("way", "K", "llama.cpp", "loop"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"
