"""Tokens per second of our loop against transformers' own generation, on the bundled pair.

    python -m kernels.benchmarks.decode [--rounds N] [--out FILE]

One process, the contestants in turn within each round, medians over rounds; quote the ratios.  Compared are
our speculative loop at 16 requests and at 1 against transformers' assisted generation (which takes one
request at a time; num_assistant_tokens=K, constant schedule, confidence threshold 0), greedy and sampled,
and our baseline arm against transformers' plain generate, both at batch 16.  Transformers runs its own copies of
the pair, as it loads them, in the same float32 with sdpa attention.  Nothing else may run meanwhile.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from kernels.benchmarks.decoding import one_arm
from kernels.benchmarks.harness import code_prompts, engine_machine, in_turn, options, ratios, show, write
from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.types import SamplingParameters

NUM_SPECULATIVE_TOKENS = 4
NUM_REQUESTS = 16
MAX_TOKENS = 64
SAMPLING = {
    "greedy": SamplingParameters(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True),
    "sampled": SamplingParameters(temperature=0.7, max_tokens=MAX_TOKENS, ignore_eos=True),
}


def ours(target: LoadedModel, draft: LoadedModel | None, requests: list[Request]) -> int:
    """Decode with our loop (without a draft: the baseline arm); the number of tokens."""
    drafting = None if draft is None else draft.model
    result = one_arm(target.model, drafting, requests, NUM_SPECULATIVE_TOKENS, releases_slots=True)
    return sum(len(decoded.output) for decoded in result.decoded)


def load_theirs(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model as transformers runs it."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()


@torch.inference_mode()
def theirs_assisted(target: Any, draft: Any, requests: list[Request]) -> int:
    """transformers' assisted generation, one request after the other; the number of tokens."""
    draft.generation_config.num_assistant_tokens = NUM_SPECULATIVE_TOKENS
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    tokens = 0
    for request in requests:
        prompt = torch.tensor([request.prompt], device=target.device)
        out = target.generate(
            prompt, attention_mask=torch.ones_like(prompt), assistant_model=draft, **_settings(request)
        )
        tokens += out.shape[1] - prompt.shape[1]
    return tokens


def theirs_plain(target: Any, requests: list[Request]) -> int:
    """transformers' plain generation of the whole batch; the number of tokens."""
    return theirs_outputs(target, requests).numel()


@torch.inference_mode()
def theirs_outputs(target: Any, requests: list[Request]) -> torch.Tensor:
    """The tokens [requests, new tokens] of transformers' plain generation of the whole batch, left-padded."""
    longest = max(len(request.prompt) for request in requests)
    device = target.device
    padded = torch.tensor([[0] * (longest - len(r.prompt)) + list(r.prompt) for r in requests], device=device)
    mask = torch.tensor([[0] * (longest - len(r.prompt)) + [1] * len(r.prompt) for r in requests], device=device)
    out = target.generate(padded, attention_mask=mask, **_settings(requests[0]))
    return out[:, longest:]


def _settings(request: Request) -> dict[str, Any]:
    sampling = request.sampling
    is_greedy = sampling.temperature == 0.0
    chosen: dict[str, Any] = {"max_new_tokens": sampling.max_tokens, "do_sample": not is_greedy, "eos_token_id": None}
    return chosen if is_greedy else {**chosen, "temperature": sampling.temperature, "top_k": 0}


def tokens_per_second(contestant: Callable[[], int]) -> float:
    """One timed call."""
    started = time.perf_counter()
    tokens = contestant()
    return tokens / (time.perf_counter() - started)


def main() -> None:
    """Run all comparisons, print a table and write the results."""
    parser = options(__doc__, "decode.json")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()

    device = torch.device("cpu")
    target = load_model(str(demo.TARGET), device, torch.float32)
    draft = load_model(str(demo.DRAFT), device, torch.float32)
    their_target, their_draft = load_theirs(demo.TARGET), load_theirs(demo.DRAFT)
    prompts = code_prompts(NUM_REQUESTS)
    contests: dict[str, tuple[Callable[[], int], Callable[[], int]]] = {}
    for name, sampling in SAMPLING.items():
        batch = [Request(prompt, replace(sampling), seed) for seed, prompt in enumerate(prompts)]
        contests[f"speculative, 16 requests, {name}"] = (
            lambda batch=batch: ours(target, draft, batch),  # type: ignore[misc]
            lambda batch=batch: theirs_assisted(their_target, their_draft, batch),  # type: ignore[misc]
        )
        contests[f"speculative, 1 request, {name}"] = (
            lambda batch=batch: sum(ours(target, draft, [request]) for request in batch[:4]),  # type: ignore[misc]
            lambda batch=batch: theirs_assisted(their_target, their_draft, batch[:4]),  # type: ignore[misc]
        )
        contests[f"baseline, 16 requests, {name}"] = (
            lambda batch=batch: ours(target, None, batch),  # type: ignore[misc]
            lambda batch=batch: theirs_plain(their_target, batch),  # type: ignore[misc]
        )
    sides = {(name, place): side for name, pair in contests.items() for place, side in enumerate(pair)}
    rates = in_turn({key: partial(tokens_per_second, side) for key, side in sides.items()}, arguments.rounds)
    rows = []
    for name in contests:
        mine, other = rates[name, 0], rates[name, 1]
        medians = map(statistics.median, (mine, other))
        row = zip(("ours_tokens_per_second", "transformers_tokens_per_second"), medians, strict=True)
        rows.append({"comparison": name, **dict(row), **ratios(mine, other)})
    show("tokens per second", rows)
    document = {
        "rounds": arguments.rounds,
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
        "max_tokens": MAX_TOKENS,
        "forward": target.forward_name,
        "machine": engine_machine(),
        "results": rows,
    }
    write(arguments.out, document)


if __name__ == "__main__":
    main()
