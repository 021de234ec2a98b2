"""The Triton kernels against their torch twins on a GPU: time of fused verification, memory of replay scoring.

    python -m kernels.benchmarks.kernel_costs [--rounds N] [--out FILE]

Verification: 32 requests, K=4, a vocabulary of 151,936; twin and kernels take turns in each round, each round is
many repetitions between two CUDA events, and the least of the rounds counts; called from Python, and replayed from
a CUDA graph, where launches cost nothing.  Scoring: peak memory beside the inputs at growing vocabularies.  Nothing
else may run on the device meanwhile.  `--small` runs the same code at small sizes wherever it is, in Triton's
interpreter where there is no GPU: it tries this script, its times mean nothing and its memory is not measured.

Not named kernels.py: a script's folder comes first where modules are looked for, and transformers takes a module of
that name for the package that it probes for.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from kernels.benchmarks.harness import RESULTS, options, show, write

CASES = (("greedy_draft", False), ("rejection", True), ("exact_match", False))
MIB = 2**20


@dataclass(frozen=True, slots=True)
class KernelSizes:
    """What is run."""

    rows: int
    depth: int
    vocabulary: int
    repetitions: int  # between two events
    scored_rows: int
    hidden: int
    scored_vocabularies: tuple[int, ...]


FULL = KernelSizes(32, 4, 151_936, 20, 2_048, 2_048, (16_384, 32_768, 65_536, 151_936))
SMALL = KernelSizes(2, 1, 40, 1, 3, 8, (20, 40))


def a_step(rule: Any, has_draft_probs: bool, dtype: torch.dtype, sizes: KernelSizes, device: torch.device) -> Any:
    """A step of sampled rows whose drafts are accepted now and then."""
    from shadowspec_kernels.step import Step

    generator = torch.Generator(device).manual_seed(1)
    shape = (sizes.rows, sizes.depth, sizes.vocabulary)
    logits = torch.randn((sizes.rows, sizes.depth + 1, sizes.vocabulary), generator=generator, device=device)
    noise = torch.randn(shape, generator=generator, device=device) / 4
    draft_probs = torch.softmax(3.0 * logits[:, :-1] + noise, -1)
    uniforms = torch.rand((2, sizes.rows, sizes.depth + 1), generator=generator, device=device)
    return Step(
        rule,
        (3.0 * logits).to(dtype),
        draft_probs.argmax(-1),
        torch.full((sizes.rows,), sizes.depth, device=device),
        draft_probs if has_draft_probs else None,
        uniforms[0, :, :-1],
        uniforms[1],
        torch.full((sizes.rows,), 0.8, device=device),
    )


def elapsed_ms(call: Callable[[], object], repetitions: int, device: torch.device) -> float:
    """Milliseconds of one call, the mean of many in a row."""
    if device.type != "cuda":
        begin = time.perf_counter()
        for _ in range(repetitions):
            call()
        return (time.perf_counter() - begin) * 1e3 / repetitions
    begin_event, end_event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin_event.record()
    for _ in range(repetitions):
        call()
    end_event.record()
    end_event.synchronize()
    return float(begin_event.elapsed_time(end_event)) / repetitions


def replayed(call: Callable[[], object]) -> Callable[[], object]:
    """The call's launches, captured in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def verification_costs(sizes: KernelSizes, rounds: int, device: torch.device) -> list[dict[str, Any]]:
    """Twin and kernels in turn, for each rule and dtype."""
    from shadowspec_kernels import reference, verification

    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        for rule, has_draft_probs in CASES:
            step = a_step(rule, has_draft_probs, dtype, sizes, device)
            step.check()
            expected, verified = reference.verify(step), verification.verify(step)
            is_equal = (expected.num_accepted == verified.num_accepted) & (expected.next_tokens == verified.next_tokens)
            calls: dict[str, Callable[[], object]] = {
                "torch": lambda step=step: reference.verify(step),  # type: ignore[misc]
                "triton": lambda step=step: verification.verify(step),  # type: ignore[misc]
            }
            if device.type == "cuda":
                calls |= {f"{name}_graph": replayed(call) for name, call in calls.items()}
            least = dict.fromkeys(calls, float("inf"))
            for _ in range(rounds):
                for name, call in calls.items():
                    least[name] = min(least[name], elapsed_ms(call, sizes.repetitions, device))
            row = {
                "rule": rule,
                "dtype": str(dtype).removeprefix("torch."),
                "logits_mib": step.logits.numel() * step.logits.element_size() / MIB,
                "rows_equal": int(is_equal.sum()),
                "rows": sizes.rows,
                **{f"{name}_ms": value for name, value in least.items()},
                "ratio": least["torch"] / least["triton"],
                "ratio_graph": least["torch_graph"] / least["triton_graph"] if "torch_graph" in least else None,
            }
            rows.append(row)
    return rows


def peak_bytes(call: Callable[[], object], device: torch.device) -> int | None:
    """Memory that the call needs beside what is allocated already; None on a CPU, where torch does not count it."""
    if device.type != "cuda":
        call()
        return None
    call()  # compiles, and loads what is loaded once
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held


def scoring_costs(sizes: KernelSizes, rounds: int, device: torch.device) -> list[dict[str, Any]]:
    """Peak memory and time of twin and kernel by vocabulary."""
    from shadowspec_kernels import reference, scoring

    generator = torch.Generator(device).manual_seed(2)
    hidden = torch.randn((sizes.scored_rows, sizes.hidden), generator=generator, device=device).to(torch.bfloat16)
    temperature = torch.ones(sizes.scored_rows, device=device)
    rows = []
    for vocabulary in sizes.scored_vocabularies:
        head = torch.randn((vocabulary, sizes.hidden), generator=generator, device=device).to(torch.bfloat16)
        head /= sizes.hidden**0.5
        tokens = torch.randint(vocabulary, (sizes.scored_rows,), generator=generator, device=device)
        given = (hidden, head, tokens, temperature)
        calls: dict[str, Callable[[], object]] = {
            "torch": lambda given=given: reference.score(*given),  # type: ignore[misc]
            "triton": lambda given=given: scoring.score(*given),  # type: ignore[misc]
        }
        row: dict[str, Any] = {"vocabulary": vocabulary, "rows": sizes.scored_rows, "hidden": sizes.hidden}
        difference = reference.score(*given).log_probs - scoring.score(*given).log_probs
        row["largest_difference"] = float(difference.abs().max())
        for name, call in calls.items():
            peak = peak_bytes(call, device)
            row[f"{name}_peak_mib"] = peak / MIB if peak is not None else None
            row[f"{name}_ms"] = min(elapsed_ms(call, sizes.repetitions, device) for _ in range(rounds))
        rows.append(row)
    return rows


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures were measured on."""
    is_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if is_gpu else f"{platform.machine()}, Triton's interpreter",
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "triton")},
    }


def main() -> None:
    """Run all comparisons, print tables and write the results."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="try the script, with or without a GPU")
    parser.add_argument("--out", type=Path, help="default: kernels.json among the results; none with --small")
    arguments = parser.parse_args()
    is_gpu = torch.cuda.is_available()
    if not is_gpu and not arguments.small:
        sys.exit(
            "torch finds no GPU, and times of Triton's interpreter mean nothing; --small tries the script without one"
        )
    if not is_gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is first imported

    device = torch.device("cuda" if is_gpu else "cpu")
    sizes = SMALL if arguments.small else FULL
    rounds = 1 if arguments.small else arguments.rounds
    verified, scored = verification_costs(sizes, rounds, device), scoring_costs(sizes, rounds, device)
    show("fused verification", verified)
    show("replay scoring", scored)
    out = arguments.out or (None if arguments.small else RESULTS / "kernels.json")
    if out is not None:
        document = {"machine": machine(device), "rounds": rounds, "verification": verified, "scoring": scored}
        out.parent.mkdir(parents=True, exist_ok=True)
        write(out, document)


if __name__ == "__main__":
    main()
