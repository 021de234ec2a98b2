"""The loop on a GPU: tokens per second against transformers, a step against what the weights take, waits per step.

    python -m kernels.benchmarks.gpu_decode [--rounds N] [--out FILE]

A target of 1B size (16 layers of 2,048, a vocabulary of 128,256) with random weights, in bfloat16; K = 4.  Its draft is
its first two layers with its embeddings and head, and the other layers add little, so that much is accepted, as of a
trained draft (tokens per step are shown).  One process, the contestants in turn within each round, medians over rounds;
the first round warms up and records.  Nothing else may run meanwhile.

Ways of running: steps launched anew, as recorded passes (CUDA graphs), and recorded with Triton's kernels.  A step at
batch 1 is held against the target's weights at the bandwidth that a copy on the device reaches.  Waits of the host are
counted by a profile of two lengths: what they differ by, for each step that they differ by.  Recorded passes are timed
with sampled requests too, with top-p and without, because finding its edge takes passes over the vocabulary.

Outputs are compared on the bundled pair, whose prompts differ in length: the greedy tokens of both arms, each way, with
transformers' plain generation of one request after the other on the same device.  In float32 all are to be equal; in
bfloat16 rounding may decide between two tokens.  Each table is written to the file when it is measured.

`--small` runs all of it in small wherever it is: on a CPU a recorded pass is called again, kernels run in Triton's
interpreter, and waits are not counted.  Its figures say that the script runs and nothing else.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from kernels.benchmarks.decode import load_theirs, theirs_assisted, theirs_outputs, theirs_plain
from kernels.benchmarks.harness import RESULTS, code_prompts, engine_machine, in_turn, options, show, write
from kernels.benchmarks.rerun import Rerun
from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import ArmResult, Decoded, decode_batch
from shadowspec.engine.device import choose_device, choose_kernels, device_name
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.profiling import num_steps
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.static_passes import CudaGraphs, PassRecorder, StaticPasses
from shadowspec.types import SamplingParameters, VerifyRule

Result = TypeVar("Result")
NUM_SPECULATIVE_TOKENS = 4
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")  # calls in which the host waits
DAMPED = 0.1  # of what they would add, in the layers that the draft lacks
COPIED_BYTES = 2**31  # by which the bandwidth is measured


@dataclass(frozen=True, slots=True)
class LoopSizes:
    """What is run.  Widths of the target are (layers, hidden, intermediate, heads, heads of keys and values)."""

    vocabulary: int
    target: tuple[int, int, int, int, int]
    draft: int  # layers, the target's first
    prompt: int  # tokens
    output: int
    requests: int  # at once
    assisted: int  # of these, what transformers' assisted generation is given, one after the other


FULL = LoopSizes(128_256, (16, 2_048, 8_192, 32, 8), 2, 128, 64, 16, 1)
SMALL = LoopSizes(512, (2, 64, 128, 4, 2), 1, 8, 12, 2, 1)


SAMPLED = {"temperature 0.7": 1.0, "temperature 0.7, top-p 0.9": 0.9}  # top-p


class RunningWay:
    """A way of running a pair: with passes recorded or launched anew, with kernels or without."""

    def __init__(self, name: str, target: DirectLlama, draft: DirectLlama) -> None:
        self.name, self.target, self.draft = name, target, draft
        device = target.device
        self.kernels = choose_kernels("triton" if name.endswith("triton") else "torch", device)
        passes = [None, None]
        if name.startswith("recorded"):
            passes = [
                StaticPasses(direct_llama, lambda: recorder(device), self.kernels) for direct_llama in (target, draft)
            ]
        self.target_passes, self.draft_passes = passes

    def decode(self, requests: list[Request], *, speculates: bool) -> ArmResult[Decoded]:
        """One arm."""
        is_greedy = requests[0].sampling.temperature == 0.0
        proposer = DraftModelProposer(
            self.draft, NUM_SPECULATIVE_TOKENS, is_sampling=not is_greedy,
            passes=self.draft_passes, kernels=self.kernels,
        )  # fmt: skip
        return decode_batch(
            self.target, requests, proposer=proposer if speculates else None,
            num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
            verify_rule=VerifyRule.GREEDY if is_greedy else VerifyRule.REJECTION, end_token_ids=frozenset(),
            passes=self.target_passes, kernels=self.kernels,
        )  # fmt: skip


def recorder(device: torch.device) -> PassRecorder:
    """CUDA graphs where there are any."""
    return CudaGraphs(device) if device.type == "cuda" else Rerun()


def random_pair(sizes: LoopSizes, device: torch.device) -> tuple[Any, Any]:
    """A target with random weights and its draft, as transformers runs them; each time the same."""
    target = random_model(sizes.target, sizes.vocabulary, device)
    draft = random_model((sizes.draft, *sizes.target[1:]), sizes.vocabulary, device)
    with torch.no_grad():
        for layer in target.model.layers[sizes.draft :]:
            for added in (layer.self_attn.o_proj, layer.mlp.down_proj):
                added.weight.mul_(DAMPED)
    kept = draft.state_dict().keys()
    draft.load_state_dict({name: weight for name, weight in target.state_dict().items() if name in kept})
    return target, draft


def random_model(
    widths: tuple[int, int, int, int, int], vocabulary: int, device: torch.device, context: int = 4_096
) -> Any:
    """A Llama with random weights as transformers runs it; each time the same.  `context`: tokens, at most."""
    layers, hidden, intermediate, heads, kv_heads = widths
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=context,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype_on(device), attn_implementation="sdpa")
    return model.eval()


def dtype_on(device: torch.device) -> torch.dtype:
    """Bfloat16 on a GPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def seconds(work: Callable[[], Result], device: torch.device) -> tuple[float, Result]:
    """How long the work takes on the device, and its result."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began, result


@dataclass(slots=True)
class Contestant:
    """One of those who decode in turn: transformers, or an arm of ours in one way."""

    name: str
    decode: Callable[[], int | ArmResult[Decoded]]  # its number of tokens, or our arm
    labels: dict[str, Any] = field(default_factory=dict)  # of our arms
    rates: list[float] = field(default_factory=list)  # tokens per second
    longest: list[Decoded] = field(default_factory=list)  # of our arms: of each time the request of most steps

    def run(self, device: torch.device) -> None:
        """Decode once."""
        taken, result = seconds(self.decode, device)
        if isinstance(result, int):
            self.rates.append(result / taken)
        else:
            self.rates.append(sum(len(decoded.output) for decoded in result.decoded) / taken)
            self.longest.append(max(result.decoded, key=num_steps))


def contestants(
    ways: list[RunningWay], theirs: tuple[Any, Any], requests: list[Request], sizes: LoopSizes
) -> list[Contestant]:
    """Transformers, and both arms each way, at all requests at once and at one."""
    return [
        Contestant("transformers assisted, one by one", lambda: theirs_assisted(*theirs, requests[: sizes.assisted])),
        Contestant(f"transformers plain, {sizes.requests} at once", lambda: theirs_plain(theirs[0], requests)),
        Contestant("transformers plain, 1 at once", lambda: theirs_plain(theirs[0], requests[:1])),
        *arms(ways, requests),
    ]


def arms(ways: list[RunningWay], requests: list[Request], **labels: str) -> list[Contestant]:
    """Both arms each way, at all requests at once and at one."""
    return [
        Contestant(
            f"{arm}, {len(some)} at once, {way.name}",
            partial(way.decode, some, speculates=arm == "speculative"),
            labels | {"arm": arm, "at_once": len(some), "way": way.name},
        )
        for way in ways
        for arm in ("baseline", "speculative")
        for some in (requests, requests[:1])
    ]


def race(raced: list[Contestant], rounds: int, device: torch.device) -> None:
    """All in turn in each round; the first round warms up and counts for nothing."""
    in_turn(dict(enumerate(partial(contestant.run, device) for contestant in raced)), rounds)  # names may repeat
    for contestant in raced:
        del contestant.rates[0], contestant.longest[:1]


def sampled_rates(raced: list[Contestant]) -> list[dict[str, Any]]:
    """Tokens per second of our arms."""
    return [contestant.labels | {"tokens_per_second": statistics.median(contestant.rates)} for contestant in raced]


def rates(raced: list[Contestant]) -> list[dict[str, Any]]:
    """Tokens per second."""
    assisted = statistics.median(raced[0].rates)
    return [
        {
            "contestant": contestant.name,
            "tokens_per_second": statistics.median(contestant.rates),
            "lowest": min(contestant.rates),
            "highest": max(contestant.rates),
            "ratio_to_assisted": statistics.median(contestant.rates) / assisted,
        }
        for contestant in raced
    ]


def bandwidth(device: torch.device, sizes: LoopSizes) -> float:
    """Bytes per second that a copy reads and writes on the device, the best of many."""
    count = COPIED_BYTES if sizes is FULL else 2**22
    source = torch.ones(count, dtype=torch.uint8, device=device)
    goal = torch.empty_like(source)
    taken = []
    for _ in range(20):
        taken.append(seconds(lambda: goal.copy_(source), device)[0])
    return 2 * count / min(taken)


def steps(raced: list[Contestant], floor_ms: float) -> list[dict[str, Any]]:
    """A step of our arms; the baseline's at one request beside the time to read the weights."""
    rows = []
    for contestant in raced:
        if not contestant.longest:
            continue
        step_ms = statistics.median(decoded.timing.decode_ms / num_steps(decoded) for decoded in contestant.longest)
        per_step = (len(contestant.longest[-1].output) - 1) / num_steps(contestant.longest[-1])
        is_bound = contestant.labels["arm"] == "baseline" and contestant.labels["at_once"] == 1
        ratio = step_ms / floor_ms if is_bound else None
        rows.append(contestant.labels | {"tokens_per_step": per_step, "step_ms": step_ms, "ratio_to_weights": ratio})
    return rows


def waits_per_step(way: RunningWay, requests: list[Request], *, speculates: bool) -> float | None:
    """How often the host waits for the device in a step; None on a CPU, where it never does."""
    if way.target.device.type != "cuda":
        return None
    counted, made = [], []
    for share in (8, 2):
        short_requests = [shortened(request, request.sampling.max_tokens // share) for request in requests]
        way.decode(short_requests, speculates=speculates)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            result = way.decode(short_requests, speculates=speculates)
        counted.append(sum(event.count for event in profile.key_averages() if event.key in WAITS))
        made.append(max(num_steps(decoded) for decoded in result.decoded))
    return (counted[1] - counted[0]) / (made[1] - made[0])


def equal_outputs(names: Sequence[str], sizes: LoopSizes, device: torch.device) -> list[dict[str, Any]]:
    """How many requests of the bundled pair have, each way and in each arm, the greedy tokens of transformers."""
    requests = [Request(prompt, greedy(sizes.output), 0) for prompt in code_prompts(sizes.requests)]
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        theirs, target, draft = (
            load_theirs(folder, dtype).to(device) for folder in (demo.TARGET, demo.TARGET, demo.DRAFT)
        )
        expected = [theirs_outputs(theirs, [request])[0].tolist() for request in requests]
        pair = DirectLlama(target), DirectLlama(draft)
        for name in names:
            way = RunningWay(name, *pair)
            for arm in ("baseline", "speculative"):
                decoded = way.decode(requests, speculates=arm == "speculative").decoded
                equal = sum(list(ours.output) == tokens for ours, tokens in zip(decoded, expected, strict=True))
                kind = str(dtype).removeprefix("torch.")
                rows.append({"dtype": kind, "arm": arm, "way": name, "requests": len(requests), "equal": equal})
    return rows


def shortened(request: Request, max_tokens: int) -> Request:
    """The request with so many tokens of output."""
    return Request(request.prompt, greedy(max_tokens), request.seed)


def greedy(max_tokens: int) -> SamplingParameters:
    """Greedy to the full length."""
    return SamplingParameters(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def sampled_to(max_tokens: int, top_p: float) -> SamplingParameters:
    """Sampled at temperature 0.7 to the full length."""
    return SamplingParameters(temperature=0.7, top_p=top_p, max_tokens=max_tokens, ignore_eos=True)


def main() -> None:
    """Run everything, print tables and write the results."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="try the script, with or without a GPU")
    parser.add_argument("--out", type=Path, help="default: gpu_decode.json among the results; with --small nowhere")
    arguments = parser.parse_args()
    is_gpu = torch.cuda.is_available()
    if not is_gpu and not arguments.small:
        sys.exit("torch finds no GPU; --small tries the script without one")
    if not is_gpu and "TRITON_INTERPRET" not in os.environ:  # which has to be set before triton is first imported
        os.execve(sys.executable, sys.orig_argv, os.environ | {"TRITON_INTERPRET": "1"})  # noqa: S606
    device = choose_device("auto")
    sizes, rounds = (SMALL, 1) if arguments.small else (FULL, arguments.rounds)

    their_target, their_draft = random_pair(sizes, device)
    target, draft = map(DirectLlama, random_pair(sizes, device))
    names = ("launched", "recorded", "recorded, triton")
    ways = [RunningWay(name, target, draft) for name in names]
    generator = torch.Generator().manual_seed(3)
    prompts = torch.randint(1, sizes.vocabulary, (sizes.requests, sizes.prompt), generator=generator).tolist()
    requests = [Request(tuple(prompt), greedy(sizes.output), seed) for seed, prompt in enumerate(prompts)]
    bytes_per_second = bandwidth(device, sizes)
    floor_ms = 1e3 * sum(weight.nbytes for weight in target.parameters()) / bytes_per_second
    document: dict[str, Any] = {
        "is_small": arguments.small,
        "device": device_name(device),
        "recorder": recorder(device).name,
        "machine": engine_machine(),
        "rounds": rounds,
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
        "num_parameters": {"target": target.num_parameters(), "draft": draft.num_parameters()},
        "bytes_per_second": bytes_per_second,
        "floor_ms": floor_ms,
    }

    out = arguments.out or (None if arguments.small else RESULTS / "gpu_decode.json")

    def add(title: str, rows: list[dict[str, Any]]) -> None:
        document[title] = rows
        document["kernels_ran"] = {way.name: way.kernels.ran() for way in ways if way.kernels is not None}
        if out is not None:
            write(out, document)
        show(f"{title.replace('_', ' ')}{', in small: means nothing' if arguments.small else ''}", rows)

    add("equal_outputs", equal_outputs(names, sizes, device))
    raced = contestants(ways, (their_target, their_draft), requests, sizes)
    race(raced, rounds, device)
    add("rates", rates(raced))
    add("steps", steps(raced, floor_ms))
    sampled = [
        contestant
        for name, top_p in SAMPLED.items()
        for contestant in arms(
            ways[1:],
            [Request(request.prompt, sampled_to(sizes.output, top_p), request.seed) for request in requests],
            sampling=name,
        )
    ]
    race(sampled, rounds, device)
    add("sampled_rates", sampled_rates(sampled))
    counted = [
        {"arm": arm, "way": way.name, "waits": waits_per_step(way, requests[:1], speculates=arm == "speculative")}
        for way in ways
        for arm in ("baseline", "speculative")
    ]
    add("waits_per_step", counted)


if __name__ == "__main__":
    main()
