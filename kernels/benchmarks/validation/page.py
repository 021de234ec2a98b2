"""docs/research/validation.md and its picture, from the results and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kernels.benchmarks.validation.documents import REAL_MODEL
from kernels.benchmarks.validation.picture import picture
from kernels.benchmarks.validation.tables import (
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

`probabilistic` is a `draft_sample_method`. vLLM reports its counts for each request
(`metrics.speculative_decoding`, step by step). Our side is the product unchanged: the candidates of an endpoint with
`serving_engine = "{serving_engine}"`, read from a configuration file. They have the options of that engine ([engine
rules](../proposers.md#the-rules-of-serving-engines)). `loop` is the product's engine with their proposers on the same
prompts. `replay` is the product's [replay](../replay.md), with the same candidates, of the answers of vLLM's baseline
server.

Sampled requests went to servers with a fix in memory for an error of vLLM 0.32 on CPUs
([issue 55005](#which-rules-differ)). Greedy requests went to vLLM as it is shipped. Neither this comparison nor vLLM
has run on a GPU.

![Our acceptance and predicted speedup against vLLM's]({picture})

## What came out

{verdicts}
"""
_RULES = """\
## Which rules differ

- **Counting.** vLLM counts a step before its output is cut at a stop or at the limit of tokens. Our counters stop at
  the last emitted token. The page compares rates of `loop` with vLLM's figure in vLLM's sense (our cut tokens added).
  Replay cannot know the tokens beyond the end, so its rates are compared with vLLM's counts after our cut
  (`shadowspec/servers/acceptance_counts.py`).
- **N-grams.** Both look for the longest suffix that occurred before. vLLM copies the tokens after its *earliest*
  occurrence. `ngram` with `ngram_occurrence` = `earliest` does the same, and an endpoint that names vLLM has this
  option. Without a `serving_engine` it copies the tokens after the latest occurrence: the last table shows the
  acceptance of that.
- **Sampled drafts.** For `draft_sample_method` `probabilistic` vLLM samples drafts from the draft's softmax at the
  request's temperature: top-p, top-k and min-p cut only the target's distribution. `draft_sampling` = `temperature`
  does the same, and an endpoint that names vLLM has this option. Without a `serving_engine` they cut both. Either way
  the target's distribution is emitted. vLLM's rule accepts less where something is cut (last table).
- **vLLM 0.32 on a CPU samples wrongly with drafts.** Its `expand_kernel` for CPUs fills a copy of its output, so
  that temperature, top-k and top-p of drafted positions are arbitrary contents of memory ([issue
  55005](https://github.com/vllm-project/vllm/issues/55005)). As shipped, {impossible} of {shipped_requests} sampled
  outputs (`draft_model`, K = {shipped_depth}) hold a token that the target cannot have given; of the baseline
  server's {baseline_impossible}. Replay refuses them, as it would refuse a mirror's records. All sampled ways here
  therefore used servers with a fix in memory (`kernels/benchmarks/validation/mend`): the kernel's behaviour on GPUs.
  Greedy requests never come there.
- **Random numbers** of the two engines differ, so that sampled outputs do, and only rates can be compared. The exact
  comparison above uses the counts that follow from an output.
"""
_EQUALITY = """\
## Greedy: request by request

Equal are the tokens, the steps with a draft, and their drafted and accepted tokens, in vLLM's sense: the last step
in full. "And after the cut": all of our counters too, which stop at the last emitted token. Where drafts are looked
up, the chunks of the stream give that cut, and it is not always known. A single token at the end may be a step
without a draft, or one whose draft was rejected. A busy front end sends chunks together ([through
servers](../servers.md)). Then up to K drafted, and K - 1 accepted, tokens of the last step are counted otherwise than
here.
"""
_EXCEPTIONS = "A near-tie is a place where the two likeliest tokens lie at most {near_tie:g} logits apart.\n"
_OWN_OUTPUTS = """\
## Outputs of vLLM, replayed

Where a draft is certain of its token, an output determines exactly which of its tokens were accepted. Replay of the
speculative server's outputs therefore gives its counters, request by request, those of sampled requests too. For
`rejection` the table has the difference in standard errors of the mean acceptance length, as the law itself gives
them. Looked-up drafts that are not equal differ in the cut of their last step (above). Unsure are requests of which
vLLM does not say how much of the last step was cut. The table leaves out outputs that replay refuses, because the
target cannot have given them.
"""
_ACCEPTANCE = """\
## Acceptance rates

Accepted over drafted tokens, in percent, with vLLM's {level:.0%} interval (requests as units). `*`: outside of it.
`!`: outside of the interval of the difference, request by request, which is narrower where the same prompts are easy
or hard on both sides. For sampled requests each side draws separate outputs, and vLLM's interval covers only vLLM's
draws: some cells lie outside by chance. The section above compares the acceptance given the outputs, where nothing is
left to chance but for `rejection`.
"""
_SPEEDUP = """\
## Speedup

End to end by the client's clock, prefill included: vLLM's baseline over its speculative server on blocks of the same
requests. Blocks have four for each slot (two where eight run at once). The servers whose turn it is not are stopped
(at most {idle:.1%} of a processor meanwhile). Each block goes through the baseline, the speculative server and the
baseline again, within the same minute. `measured` is the mean over {blocks} such turns, with its 95% interval, of the
two baseline times' mean over the speculative time.

`predicted` is our engine's steps on these prompts times the servers' prices. For each load and K these are the
price of a step, and the time to the first token, linear in the prompt's length. Prices come of other requests, of all
slices, which go through each server right before and right after each block. Times of a minute are predicted at prices
of that minute. `in process` is our engine's speedup on the same blocks: latency is a property of the engine. `*`: off
by more than 10%. `!`: the wrong sign, where the interval excludes none.

The prices are this benchmark's, not those of `shadowspec profile-server`. The predictions of that command were compared
on two servers that shared cores ([cost model](../cost-model.md#the-engine-that-serves)). The table holds greedy
requests with a draft model. Lookups, sampled requests and llama.cpp were not timed here.

`at its prices` is the error of the same prediction with prices from the very blocks that it is compared with. It is
zero where our steps are the server's, because the fit then gives these blocks their totals. So it says nothing about
the form of the costs. The rest of `error` is prices that change between neighbouring blocks, and that form.
`baseline again` shows that change where nothing differs. It is the first of the two baseline times over the second, and
would be 1 on a machine that does not drift. Of like blocks through the baseline server, one request at a
time, the dearest step cost {spread:.1f} times the cheapest.
"""
_SPEEDUP_APART = """\
## Speedup

End to end by the client's clock, prefill included: vLLM's baseline over its speculative server on blocks of the same
requests. Blocks have four for each slot (three where eight run at once). The blocks follow each other, and the
servers whose turn it is not are stopped (at most {idle:.1%} of a processor meanwhile). `measured` is the mean over
blocks with its 95% interval. `predicted` is our engine's steps on these prompts times the server's costs, which come
of other requests. These costs are given for each load and K. They are the price of a step, and a line for the time to
the first token by the prompt's length. `in process` is our engine's speedup on the same blocks: latency is a property
of the engine. `*`: off by more than 10%. `!`: the wrong sign, where the interval excludes none.

`at its prices` is the error of the same prediction with prices from the very blocks that it is compared with. The rest
of it is acceptance, and the form of the costs. The rest of `error` is prices that change from one minute to the next.
Of like blocks through the baseline server, one request at a time, the dearest step cost {spread:.1f} times the
cheapest. `make validate-vllm` now takes prices right before and right after each block, and sends the baseline's blocks
twice to show that drift. These figures were timed before.
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
draft is the target without three of its 30 layers. It is nearly as dear as the target and makes nothing faster, but
much of it is accepted: the page compares counts with counts. vLLM's further options: {flags}.

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
    for way in dict.fromkeys(cell["way"] for cell in cells):
        parts += [f"### {way}\n", acceptance_table([cell for cell in cells if cell["way"] == way])]
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
    described = (_SPEEDUP if _is_calibrated(speedups) else _SPEEDUP_APART) if speedups else _NO_SPEEDUP
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
        used = document["drafting_rules"][way]
        lines.append(
            f"`{way}`: {equal} requests (prompts and K) are equal in tokens, steps with a draft, drafted and accepted "
            f"tokens{others}. Our side is the product's proposer with the options of an endpoint that names "
            f"`{document['serving_engine']}` ({_rules_text(used)})."
        )
    return lines


def verdicts(document: Row) -> list[str]:
    """What was to be shown, and how much of it holds."""
    lines = equality_verdicts(document)
    cells = document["cells"]
    for way in dict.fromkeys(cell["way"] for cell in cells):
        entries = [cell for cell in cells if cell["way"] == way]
        lines.append(f"`{way}`, acceptance rates by slice and K: {_inside(entries)}.")
    sampled = [cell for cell in cells if cell["way"] in SAMPLED]
    if sampled:
        apart = _share(sum(not is_apart(cell, "loop", "vllm") for cell in sampled), len(sampled))
        replay_apart = _share(sum(not is_apart(cell, "replay", "vllm_cut") for cell in sampled), len(sampled))
        lines.append(
            f"All sampled ways together, against vLLM with that fix: {_inside(sampled)}. That interval covers only "
            f"vLLM's draws. Within the {document['level']:.0%} interval of the difference, which covers both sides' "
            f"draws, lie {apart} cells of `loop` and {replay_apart} of `replay`."
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
        largest = max(abs(cell["error_at_own_prices"]) for cell in item["cells"])
        lines.append(
            f"`{item['way']}`: it lies within the measured 95% interval in {inside} cells. With the prices of the same "
            f"blocks it lies within {largest:.1%} of the measured speedup in every cell, because our steps are the "
            "server's."
        )
        if _is_calibrated([item]):
            calm = _share(sum(cell["baseline_again"]["is_close"] for cell in item["cells"]), len(item["cells"]))
            furthest = max(abs(cell["baseline_again"]["error"]) for cell in item["cells"])
            lines.append(
                f"Calibration of `{item['way']}`: the baseline's blocks went through the same server again after the "
                f"speculative turn. They took as long within 10% in {calm} cells. At most they were off by "
                f"{furthest:.1%}. That is the machine's drift."
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
