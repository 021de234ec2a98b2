"""docs/research/validation.md and its picture, from the results and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kernels.benchmarks.validation.documents import REAL_MODEL
from kernels.benchmarks.validation.picture import picture
from kernels.benchmarks.validation.tables import (
    ALL,
    Row,
    acceptance_table,
    counted,
    equality_table,
    exceptions_table,
    is_apart,
    own_outputs_table,
    rules_table,
    speedup_table,
)
from shadowspec import metrics
from shadowspec.types.serving_engines import rule_word

SAMPLED = ("greedy_draft", "rejection", "ngram_sampled")
PAGE, PICTURE = "validation.md", "images/validation.svg"

_HEAD = """\
# Against vLLM

Written by `make validate-vllm` from `kernels/benchmarks/results/validation.json`; do not edit.

Do ShadowSpec's figures of acceptance and speedup hold on a serving engine that it does not contain? Both sides run
the bundled pair in float32 on {requests} prompts of the bundled traffic, as many of each of its endpoints (the
slices here). Answers have up to {max_tokens} tokens, and K is {depths}. vLLM {vllm} runs as OpenAI servers on the
same CPU. One server decodes plainly, and there is one for each way of drafting and K.

| way | vLLM's `--speculative-config` | requests | our rule | and our options |
| --- | --- | --- | --- | --- |
| `greedy` | `draft_model` | temperature 0 | `greedy` | {greedy} |
| `greedy_draft` | `draft_model` | temperature 0.8, top-p 0.95 | `greedy_draft` | {greedy_draft} |
| `rejection` | `draft_model`, `probabilistic` | temperature 0.8, top-p 0.95 | `rejection` | {rejection} |
| `ngram` | `ngram`, 2 to 4 tokens | temperature 0 | `greedy` | {ngram} |
| `ngram_sampled` | `ngram`, 2 to 4 tokens | temperature 0.8, top-p 0.95 | `greedy_draft` | {ngram_sampled} |

Our side is the product unchanged, with the options of an endpoint that names `{serving_engine}` ([engine
rules](../proposers.md#the-rules-of-serving-engines)). `loop` is the product's engine on the same prompts. `replay` is
the product's [replay](../replay.md) of the answers of vLLM's baseline server. Sampled requests went to servers with a
fix in memory for an error of vLLM 0.32 on CPUs ([below](#which-rules-differ)), greedy ones to vLLM as it is shipped.
Neither this comparison nor vLLM has run on a GPU. The results file has every cell by slice and depth.

![Our acceptance and predicted speedup against vLLM's]({picture})

## What came out

{verdicts}
"""
_RULES = """\
## Which rules differ

- **Counting.** vLLM counts a step before its output is cut at a stop or at the limit of tokens. Our counters stop at
  the last emitted token. The page compares rates of `loop` with vLLM's figure in vLLM's sense, and those of replay with
  vLLM's counts after our cut.
- **N-grams.** vLLM copies the tokens after the *earliest* occurrence; an endpoint that names no engine copies those
  after the latest. The last column shows the acceptance of that.
- **Sampled drafts.** With `probabilistic` vLLM samples drafts at the request's temperature only; an endpoint that names
  no engine cuts them by top-p, top-k and min-p too.
- **vLLM 0.32 on a CPU samples wrongly with drafts** ([issue 55005](https://github.com/vllm-project/vllm/issues/55005)):
  temperature, top-k and top-p of drafted positions are arbitrary contents of memory. As shipped, {impossible} of
  {shipped_requests} sampled outputs (`draft_model`, K = {shipped_depth}) hold a token that the target cannot have
  given; of the baseline server's {baseline_impossible}. Replay refuses them. The fix
  (`kernels/benchmarks/validation/mend`) gives the kernel's behaviour on GPUs.
"""
_EQUALITY = """\
## Greedy: request by request

Equal are the tokens, the steps with a draft, and their drafted and accepted tokens, in vLLM's sense: the last step
in full. "And after the cut": all of our counters too, which stop at the last emitted token. Where drafts are looked
up, the chunks of the stream give that cut, and it is not always known.
"""
_EXCEPTIONS = "A near-tie is a place where the two likeliest tokens lie at most {near_tie:g} logits apart.\n"
_OWN_OUTPUTS = """\
## Outputs of vLLM, replayed

Where a draft is certain of its token, an output determines exactly which of its tokens were accepted. Replay of the
speculative server's outputs therefore gives its counters, request by request. For `rejection` the table has the
difference in standard errors of the mean acceptance length. Unsure are requests of which vLLM does not say how much of
the last step was cut. The table leaves out outputs that replay refuses.
"""
_ACCEPTANCE = """\
## Acceptance rates

Accepted over drafted tokens of all slices, in percent, with vLLM's {level:.0%} interval (requests as units). `*`:
outside of it. `!`: outside of the interval of the difference, request by request. For sampled requests each side draws
separate outputs.
"""
_SPEEDUP = """\
## Speedup

End to end by the client's clock, prefill included: vLLM's baseline over its speculative server on blocks of the same
requests. The servers whose turn it is not are stopped (at most {idle:.1%} of a processor meanwhile). Each block goes
through the baseline, the speculative server and the baseline again. `measured` is the mean over {blocks} such turns,
with its 95% interval.

`predicted` is our engine's steps on these prompts times the servers' prices, which come of other requests right before
and right after each block. `*`: off by more than 10%. `!`: the wrong sign, where the interval excludes none. The prices
are this benchmark's, not those of `shadowspec profile-server` ([cost
model](../cost-model.md#the-engine-that-serves)). Lookups, sampled requests and llama.cpp were not timed here. Of like
blocks through the baseline server, one request at a time, the dearest step cost {spread:.1f} times the cheapest.
"""
_NO_SPEEDUP = """\
## Speedup

Not measured here yet: `make validate-vllm` compares predicted speedups with those of the servers on a machine that
nobody else uses meanwhile. It resumes where it stopped.
"""
_REAL_MODEL = """\
## A real language model

The same comparison of greedy requests with SmolLM2-135M-Instruct ([a real language model](real-model.md)): {requests}
public prompts of four classes, as chats, in float32. Answers have up to {max_tokens} tokens, and K is {depths}. The
draft is the target without three of its 30 layers. vLLM's further options: {flags}.

    python kernels/benchmarks/real_model/dequantised.py FOLDER
    python kernels/benchmarks/real_model/shortened.py FOLDER/model FOLDER/draft
    make validate-vllm ARGS="--vllm-python PATH --target FOLDER/model --draft FOLDER/draft --depths {depths} \\
        --prompts kernels/benchmarks/real_model/prompts.jsonl --requests {requests} --tokens {max_tokens}"

{verdicts}
"""


def page(document: Row) -> str:
    """The page in Markdown."""
    cells, speedups = document["cells"], document["speedups"]
    rules = {way: _rules_text(used) for way, used in document["drafting_rules"].items()}
    parts = [
        _HEAD.format(
            **rules,
            serving_engine=document["serving_engine"],
            requests=document["requests"],
            max_tokens=document["max_tokens"],
            depths=_depths(cells),
            vllm=document["vllm"]["vllm"],
            picture=PICTURE,
            verdicts="\n".join(f"- {line}" for line in verdicts(document)),
        ),
        _EQUALITY,
        *_equality(document),
    ]
    parts += [_OWN_OUTPUTS, own_outputs_table(document["own_outputs"]), _ACCEPTANCE.format(level=document["level"])]
    parts.append(acceptance_table([cell for cell in cells if cell["slice"] == ALL]))
    shipped = document["shipped"]
    differing = _RULES.format(
        impossible=shipped["impossible"],
        shipped_requests=shipped["requests"],
        shipped_depth=shipped["K"],
        baseline_impossible=shipped["baseline_impossible"],
    )
    parts += [differing, rules_table(cells)]
    idle = max((speedup["idle_cpu_share"] for speedup in speedups), default=0.0)
    spread = max((speedup["price_spread"] for speedup in speedups), default=1.0)
    blocks = max((cell["blocks"] for speedup in speedups for cell in speedup["cells"]), default=0)
    described = _SPEEDUP if speedups else _NO_SPEEDUP
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
        _REAL_MODEL.format(
            requests=found["requests"],
            max_tokens=found["max_tokens"],
            depths=_depths(found["equality"]),
            flags=" ".join(f"`{flag}`" for flag in found["vllm"]["flags"]) or "none",
            verdicts="\n".join(f"- {line}" for line in equality_verdicts(found)),
        ),
        *_equality(found),
        _ran_on(found),
    ]


def _equality(document: Row) -> list[str]:
    """How many requests are equal, and the others one by one."""
    equality = document["equality"]
    parts = [equality_table(equality)]
    if any(item["differences"] for item in equality):
        parts += [_EXCEPTIONS.format(near_tie=document["near_tie_logit"]), exceptions_table(equality)]
    return parts


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
        kinds = [each["kind"] for row in rows for each in row["differences"]]
        equal = _share(sum(row["equal"] for row in rows), sum(row["requests"] for row in rows))
        others = f"; the others: {counted(kinds)}" if kinds else ""
        lines.append(
            f"`{way}`: {equal} requests are equal in tokens, steps with a draft, drafted and accepted tokens{others}."
        )
    return lines


def verdicts(document: Row) -> list[str]:
    """What was to be shown, and how much of it holds."""
    lines = equality_verdicts(document)
    cells = document["cells"]
    lines.append(f"Acceptance rates by way, slice and K: {_inside(cells)}.")
    sampled = [cell for cell in cells if cell["way"] in SAMPLED]
    if sampled:
        apart = _share(sum(not is_apart(cell, "loop", "vllm") for cell in sampled), len(sampled))
        replay_apart = _share(sum(not is_apart(cell, "replay", "vllm_cut") for cell in sampled), len(sampled))
        lines.append(
            f"Of the sampled ways, within the {document['level']:.0%} interval of the difference, which covers both "
            f"sides' draws, lie {apart} cells of `loop` and {replay_apart} of `replay`."
        )
    for item in document["speedups"]:
        close = _share(sum(cell["is_close"] for cell in item["cells"]), len(item["cells"]))
        known = [cell["sign_is_right"] for cell in item["cells"] if cell["sign_is_right"] is not None]
        lines.append(
            f"`{item['way']}`: the predicted end-to-end speedup lies within 10% of the measured one in {close} cells "
            f"of slice, K and concurrency. It has the right sign in {_share(sum(known), len(known))} of those whose "
            "measured interval excludes none."
        )
        inside = _share(sum(cell["is_inside"] for cell in item["cells"]), len(item["cells"]))
        lines.append(f"`{item['way']}`: it lies within the measured 95% interval in {inside} cells.")
        if _is_calibrated([item]):
            calm = _share(sum(cell["baseline_again"]["is_close"] for cell in item["cells"]), len(item["cells"]))
            furthest = max(abs(cell["baseline_again"]["error"]) for cell in item["cells"])
            lines.append(
                f"The machine's drift: the baseline's blocks, sent again, took as long within 10% in {calm} cells, and "
                f"were off by {furthest:.1%} at most."
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
