"""Steps of models of real size on a CPU: against the memory's bandwidth, the forward on torch, llama.cpp and vLLM.

    python -m kernels.benchmarks.llm_cpu [--shapes 135M,360M] [--rounds N] [--threads N] [--out FILE]

Llamas with SmolLM2's sizes and random weights, float32; the compiled forward also over bfloat16 and int8 weights.
One process, the contestants in turn within each round, medians over rounds; the first round warms up; quote the
ratios.  Nothing else may run meanwhile.

- floor: the time in which all weights that a step multiplies are read once (a sum over as many numbers).
- step: one token of one request after a context, by the compiled forward and by that on torch, and a verification pass
  of five tokens.  Also beside a process that keeps one processor busy.
- baseline: tokens per second of the baseline arm at 1, 4 and 8 requests at once, from each request's first token on.
  llama.cpp's server is asked the same prompts, as many at once, for as many tokens; without `--llama-server` it is left
  out.  `--llama-source` has its converter, whose Python (`--llama-python`) needs `sentencepiece` and `protobuf`.
  vLLM's server (`--vllm-python`: the interpreter of its environment) is asked likewise, timed by the arrival of its
  streamed tokens, and stopped while others are timed.
- memory: what the engine counts, and what a process holds of the machine's memory after a batch, less what it held
  before the model was loaded.

With `--processor-time` floor and steps alone are measured, on one thread, by the processor time that they take: figures
that others on the same processors change little.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import torch

from kernels.benchmarks.decoding import resident_bytes
from kernels.benchmarks.engines import servers as vllm_servers
from kernels.benchmarks.engines.llamacpp.servers import Binary, add_llama_options, check_llama_options, running
from kernels.benchmarks.gpu_decode import random_model
from kernels.benchmarks.harness import engine_machine, in_turn, options, show, write
from kernels.benchmarks.validate_llamacpp import gguf_of
from shadowspec import demo
from shadowspec.engine import llama
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.runner import Runner
from shadowspec.engine.tokenizer import load_tokenizer
from shadowspec.types import SamplingParameters
from shadowspec_kernels.llama_cpu import WeightMemory

VOCABULARY = 49_152
BATCHES = (1, 4, 8)
VERIFIED = 5  # tokens of a verification pass
PROMPT, CONTEXT = 32, 128  # tokens: of a request, and before a timed step
STEPS = 5  # of which a timed one is the mean
# Layers, hidden, intermediate, heads, heads of keys and values.
SHAPES = {"135M": (30, 576, 1_536, 9, 3), "360M": (32, 960, 2_560, 15, 5), "small": (2, 64, 128, 4, 2)}
COMPILED, ON_TORCH, LLAMACPP, VLLM = "compiled", "torch", "llama.cpp", "vLLM"
# Engines of ours, by the dtype of the weights that their steps multiply.
ENGINES = {
    COMPILED: torch.float32,
    "compiled, bfloat16": torch.bfloat16,
    "compiled, int8": torch.int8,
    ON_TORCH: torch.float32,
}
WAIT_S = 600.0


def direct(shape: str, engine: str) -> DirectLlama:
    """The model by the compiled forward, or by that on torch, which it takes without a compiler."""
    least, llama.LEAST_COMPILED = llama.LEAST_COMPILED, sys.maxsize if engine == ON_TORCH else 0  # type: ignore[misc]
    try:
        made = DirectLlama(random_model(SHAPES[shape], VOCABULARY, torch.device("cpu")), ENGINES[engine])
    finally:
        llama.LEAST_COMPILED = least  # type: ignore[misc]
    if made.forward_name != ("direct_llama" if engine == ON_TORCH else "compiled_llama"):
        raise SystemExit("the compiled forward is not available here; the log says why")
    return made


def requests(count: int, output: int) -> list[Request]:
    """Greedy requests of random tokens."""
    prompts = torch.randint(0, VOCABULARY, (count, PROMPT), generator=torch.Generator().manual_seed(1)).tolist()
    sampling = SamplingParameters(temperature=0.0, max_tokens=output, ignore_eos=True)
    return [Request(tuple(prompt), sampling, seed) for seed, prompt in enumerate(prompts)]


def rate(decode_ms: Iterable[float], count: int, output: int) -> float:
    """Tokens per second after the first tokens, by the slowest of the requests."""
    return count * (output - 1) * 1e3 / max(decode_ms)


def our_rate(model: DirectLlama, count: int, output: int) -> float:
    """Tokens per second of the baseline arm after the first tokens."""
    result = decode_batch(model, requests(count, output), end_token_ids=frozenset())
    return rate((decoded.timing.decode_ms for decoded in result.decoded), count, output)


def their_rate(server: vllm_servers.EngineServer, count: int, output: int) -> float:
    """Likewise of llama.cpp, by its own clock."""

    def ask(request: Request) -> float:
        body = {
            "prompt": list(request.prompt), "n_predict": output, "temperature": 0.0, "ignore_eos": True,
            "cache_prompt": False,
        }  # fmt: skip
        answer = httpx.post(f"{server.url}/completion", json=body, timeout=WAIT_S, trust_env=False)
        answer.raise_for_status()
        if answer.json()["timings"]["predicted_n"] != output:
            raise SystemExit("llama-server answered with another number of tokens than it was asked for")
        return float(answer.json()["timings"]["predicted_ms"])

    return asked_rate(ask, count, output)


def asked_rate(ask: Callable[[Request], float], count: int, output: int) -> float:
    """Tokens per second of a server that is asked `count` requests at once; `ask` gives milliseconds."""
    with ThreadPoolExecutor(count) as threads:
        return rate(threads.map(ask, requests(count, output)), count, output)


def streamed_rate(server: vllm_servers.Server, count: int, output: int) -> float:
    """Likewise of vLLM, from the arrival of the first token to that of the last."""

    def ask(request: Request) -> float:
        body = {
            "model": vllm_servers.SERVED_MODEL, "prompt": list(request.prompt), "max_tokens": output,
            "temperature": 0.0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        arrivals, usage = [], {}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=WAIT_S, trust_env=False) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    usage = chunk.get("usage") or usage
                    if chunk["choices"]:
                        arrivals.append(time.perf_counter())
        if usage["completion_tokens"] != output:
            raise SystemExit("vLLM answered with another number of tokens than it was asked for")
        return (arrivals[-1] - arrivals[0]) * 1e3

    server.resume()
    try:
        return asked_rate(ask, count, output)
    finally:
        server.pause()


class Stepper:
    """A row with a context, of which steps are timed."""

    def __init__(self, model: DirectLlama, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._runner = Runner(model, 1, CONTEXT + VERIFIED)
        with torch.inference_mode():
            self._runner.prefill([list(range(CONTEXT))])

    @torch.inference_mode()
    def ms(self, tokens: int) -> float:
        """Milliseconds of a pass of so many tokens."""
        given, lengths = torch.arange(tokens)[None], torch.tensor([CONTEXT])
        began = self._clock()
        for _ in range(STEPS):
            self._runner.step(given, lengths, CONTEXT, tokens)
        return (self._clock() - began) * 1e3 / STEPS


class Reading:
    """Memory of the weights' size, which is read once."""

    def __init__(self, entries: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        shape = torch.Size((1, entries))
        self._numbers = WeightMemory([shape], torch.float32).hold(torch.ones(1).expand(shape))

    def ms(self) -> float:
        """Milliseconds of the best of a few."""
        times = []
        for _ in range(STEPS):
            began = self._clock()
            self._numbers.sum()
            times.append((self._clock() - began) * 1e3)
        return min(times)


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """A process that takes one processor."""
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        process.terminate()
        process.join()


def memory_of(shape: str, engine: str) -> dict[str, Any]:
    """What one model holds, in this process, which does nothing else."""
    decode_batch(direct("small", engine), requests(1, 4), end_token_ids=frozenset())  # all code is loaded
    before = resident_bytes()
    model = direct(shape, engine)
    result = decode_batch(model, requests(1, CONTEXT), end_token_ids=frozenset())
    weights = sum(tensor.nbytes for tensor in model.parameters())
    counted = weights + sum(tensor.nbytes for tensor in model.buffers())
    return {
        "forward": engine,
        "weights_mib": weights / 2**20,
        "cache_mib": result.cache_bytes / 2**20,
        "counted_ratio": (counted + result.cache_bytes) / (weights + result.cache_bytes),
        "resident_ratio": (resident_bytes() - before) / (weights + result.cache_bytes),
    }


@dataclass(frozen=True, slots=True)
class AskedRates:
    """What is measured."""

    rounds: int
    output: int
    threads: int
    by_processor_time: bool


def measure(
    shape: str, server: vllm_servers.EngineServer | None, vllm: vllm_servers.Server | None, asked: AskedRates
) -> dict[str, Any]:
    """All contests of one shape."""
    models = {engine: direct(shape, engine) for engine in ENGINES}
    clock = time.thread_time if asked.by_processor_time else time.perf_counter
    steppers = {engine: Stepper(model, clock) for engine, model in models.items()}
    first = models[COMPILED]
    reading = Reading(first.num_parameters(), clock)
    contests: dict[str, Callable[[], float]] = {"floor_ms": reading.ms}
    for engine, stepper in steppers.items():
        contests[f"step_ms, {engine}"] = lambda stepper=stepper: stepper.ms(1)  # type: ignore[misc]
        contests[f"pass of {VERIFIED}_ms, {engine}"] = lambda stepper=stepper: stepper.ms(VERIFIED)  # type: ignore[misc]
    for batch in () if asked.by_processor_time else BATCHES:
        for engine, model in models.items():
            contests[f"tokens/s at {batch}, {engine}"] = lambda m=model, b=batch: our_rate(m, b, asked.output)  # type: ignore[misc]
        if server is not None:
            contests[f"tokens/s at {batch}, {LLAMACPP}"] = lambda b=batch: their_rate(server, b, asked.output)  # type: ignore[misc]
        if vllm is not None:
            contests[f"tokens/s at {batch}, {VLLM}"] = lambda b=batch: streamed_rate(vllm, b, asked.output)  # type: ignore[misc]
    taken = in_turn(contests, asked.rounds, shape)
    if not asked.by_processor_time:
        with busy_neighbour():
            for engine, stepper in steppers.items():
                taken[f"step_ms beside a busy process, {engine}"] = [stepper.ms(1) for _ in range(asked.rounds)]
    measured = () if asked.by_processor_time else models
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return {
        "shape": shape,
        "parameters": first.num_parameters(),
        "medians": medians,
        "ranges": {name: [min(values), max(values)] for name, values in taken.items()},
        "ratios": ratios(taken),
        "memory": [_in_process_of_its_own(shape, engine, asked.threads) for engine in measured],
    }


def ratios(found: dict[str, list[float]]) -> dict[str, float]:
    """Medians of the ratios within each round."""

    def ratio(first: str, second: str) -> float:
        return statistics.median(a / b for a, b in zip(found[first], found[second], strict=True))

    passes = f"pass of {VERIFIED}_ms, "
    named = {
        "step to floor": (f"step_ms, {COMPILED}", "floor_ms"),
        "step to floor, torch": (f"step_ms, {ON_TORCH}", "floor_ms"),
        f"pass of {VERIFIED} to step": (passes + COMPILED, f"step_ms, {COMPILED}"),
        f"pass of {VERIFIED} to step, torch": (passes + ON_TORCH, f"step_ms, {ON_TORCH}"),
    }
    for engine in list(ENGINES)[1:-1]:
        named[f"step, {engine} to {COMPILED}"] = (f"step_ms, {engine}", f"step_ms, {COMPILED}")
        named[f"pass of {VERIFIED} to step, {engine}"] = (passes + engine, f"step_ms, {engine}")
    for batch in BATCHES:
        for engine in (*list(ENGINES)[1:], LLAMACPP, VLLM):
            named[f"tokens/s at {batch}, compiled to {engine}"] = (
                f"tokens/s at {batch}, {COMPILED}",
                f"tokens/s at {batch}, {engine}",
            )
    return {name: ratio(*pair) for name, pair in named.items() if pair[1] in found}


def _in_process_of_its_own(shape: str, engine: str, threads: int) -> dict[str, Any]:
    script = [sys.executable, "-m", "kernels.benchmarks.llm_cpu"]
    command = [*script, "--memory-of", shape, engine, "--threads", str(threads)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    return dict(json.loads(ran.stdout))


def saved(shape: str, arguments: argparse.Namespace) -> Path:
    """The model's folder, with the bundled tokenizer: prompts are token ids."""
    folder: Path = arguments.folder / shape
    if not folder.exists():
        random_model(SHAPES[shape], VOCABULARY, torch.device("cpu")).save_pretrained(folder)
        load_tokenizer(str(demo.TARGET)).raw.save_pretrained(folder)
    return folder


def main() -> None:
    """Measure every shape, print tables and write the results."""
    parser = options(__doc__, "llm_cpu.json")
    parser.add_argument("--shapes", default="135M,360M", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=int, default=32, help="tokens of a request")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--processor-time", action="store_true", help="on one thread, where others use the machine")
    add_llama_options(parser)
    vllm_servers.Environment.add_options(parser, is_required=False)
    parser.add_argument("--folder", type=Path, help="for the models that servers read (default: a temporary one)")
    parser.add_argument("--memory-of", nargs=2, metavar=("SHAPE", "FORWARD"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.processor_time:
        arguments.threads = 1
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of is not None:
        sys.stdout.write(json.dumps(memory_of(*arguments.memory_of)))
        return
    check_llama_options(parser, arguments)

    results = []
    with ExitStack() as stack:
        if arguments.folder is None:
            arguments.folder = Path(stack.enter_context(TemporaryDirectory()))
        arguments.folder.mkdir(parents=True, exist_ok=True)
        version = vllm_version = None
        if arguments.vllm_python is not None:
            environment = vllm_servers.Environment.of(arguments)
            vllm_version = vllm_servers.vllm_version(environment)
        for shape in arguments.shapes.split(","):
            with ExitStack() as of_shape:
                server = vllm = None
                if vllm_version is not None:
                    log = arguments.folder / f"{shape}-vllm.log"
                    vllm = of_shape.enter_context(
                        vllm_servers.running(environment, None, log, is_fixed=False, target=saved(shape, arguments))
                    )
                    vllm.pause()
                if arguments.llama_server is not None:
                    source, python = arguments.llama_source, arguments.llama_python
                    file = gguf_of(saved(shape, arguments), source, python, arguments.folder)
                    binary = Binary(arguments.llama_server, file, file, arguments.threads)
                    version = binary.version()
                    log = arguments.folder / f"{shape}.log"
                    server = of_shape.enter_context(running(binary, ["--spec-type", "none"], log))
                asked = AskedRates(arguments.rounds, arguments.output, arguments.threads, arguments.processor_time)
                results.append(measure(shape, server, vllm, asked))
            show(f"{shape}: medians", [{"what": name, "": value} for name, value in results[-1]["medians"].items()])
            show(f"{shape}: ratios", [{"what": name, "": value} for name, value in results[-1]["ratios"].items()])
            if results[-1]["memory"]:
                show(f"{shape}: memory", results[-1]["memory"])
    document = {
        "rounds": arguments.rounds,
        "clock": "processor time of one thread" if arguments.processor_time else "wall",
        "output_tokens": arguments.output,
        "context": CONTEXT,
        "llama.cpp": version,
        "vllm": vllm_version,
        "machine": engine_machine() | {"threads": str(arguments.threads)},
        "results": results,
    }
    write(arguments.out, document)


if __name__ == "__main__":
    main()
