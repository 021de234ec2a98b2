"""vLLM's side of `vllm.py`, for vLLM's own interpreter: takes prompts, gives back tokens, counts and seconds.

One JSON document a line.  The first one to come in says how to build the engine, and is answered with what was built;
every further one is a list of batches, each a list of prompts.  vLLM's offline engine is asked directly: no server and
no HTTP lie between the clock and the engine.  Run it with `python -P`, lest `vllm.py` beside it be taken for vLLM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import vllm
from vllm import LLM, SamplingParams

WARM_TOKENS = 8  # decoded untimed before a timed batch: the process has been stopped meanwhile


def build(settings: dict[str, Any]) -> LLM:
    """The engine of these settings; without `draft` it decodes plainly."""
    draft = settings["draft"]
    return LLM(
        model=settings["target"],
        dtype="float32",
        max_model_len=settings["max_model_len"],
        max_num_seqs=settings["concurrency"],
        # Prompts come back round after round, and are to be prefilled every time, as ours are.
        enable_prefix_caching=False,
        speculative_config=None
        if draft is None
        else {"method": "draft_model", "model": draft, "num_speculative_tokens": settings["num_speculative_tokens"]},
        per_request_spec_decode_metrics="none" if draft is None else "detailed",
        seed=0,
    )


def answer(engine: LLM, prompts: list[list[int]], max_tokens: int) -> tuple[float, list[dict[str, Any]]]:
    """Seconds that a batch takes, and for each prompt its output and what was drafted and accepted step by step."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    began = time.perf_counter()
    answers = engine.generate(asked, sampling, use_tqdm=False)
    seconds = time.perf_counter() - began
    outputs = []
    for each in answers:
        output = each.outputs[0]
        metrics = output.spec_decode_metrics
        outputs.append(
            {
                "tokens": list(output.token_ids),
                "drafted": list(metrics.per_step_drafted) if metrics is not None else [],
                "accepted": list(metrics.per_step_accepted) if metrics is not None else [],
            }
        )
    return seconds, outputs


def main() -> None:
    """Answer until the input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what vLLM prints is no reply
    settings = json.loads(sys.stdin.readline())
    engine = build(settings)
    built = {"vllm": vllm.__version__, "torch": torch.__version__, "threads": torch.get_num_threads()}
    print(json.dumps(built), file=replies, flush=True)
    for line in sys.stdin:
        batches = json.loads(line)
        answer(engine, batches[0], WARM_TOKENS)
        total, every = 0.0, []
        for batch in batches:
            seconds, outputs = answer(engine, batch, settings["max_tokens"])
            total += seconds
            every += outputs
        print(json.dumps({"seconds": total, "outputs": every}), file=replies, flush=True)


if __name__ == "__main__":
    main()
