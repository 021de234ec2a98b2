"""The target's answers to the training prompts, as a mirror would have logged them; what is answered is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from rich.progress import track

from kernels.benchmarks.engines.real_model.prompts import Prompt, record
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.models import load_model
from shadowspec.types import SamplingParameters, VerifyRule

BATCH: Final = 16


def answer(model: Path, prompts: Sequence[Prompt], max_tokens: int, out: Path) -> None:
    """Append the greedy answers of those prompts that the file does not have yet, batch by batch."""
    known: set[str] = set()
    if out.exists():
        whole = [line for line in out.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
        out.write_text("".join(whole), encoding="utf-8")  # without a line that was cut short
        known = {json.loads(line)["request_id"] for line in whole}
    left = [(number, prompt) for number, prompt in enumerate(prompts) if prompt.source not in known]
    if not left:
        return
    target = load_model(str(model), torch.device("cpu"), torch.float32)
    rendered = {
        prompt.source: tuple(target.tokenizer.render_chat([{"role": "user", "content": prompt.text}], None))
        for _, prompt in left
    }
    sampling = SamplingParameters(temperature=0.0, max_tokens=max_tokens)
    batches = [left[start : start + BATCH] for start in range(0, len(left), BATCH)]
    for batch in track(batches, f"answering {len(left)} training prompts", console=Console(stderr=True)):
        answers = decode_batch(
            target.model,
            [Request(rendered[prompt.source], sampling, number) for number, prompt in batch],
            proposer=None,
            num_speculative_tokens=0,
            verify_rule=VerifyRule.REJECTION,
            end_token_ids=target.end_token_ids,
            releases_slots=True,
        ).decoded
        with out.open("a", encoding="utf-8") as file:
            for (number, prompt), decoded in zip(batch, answers, strict=True):
                text = target.tokenizer.decode(decoded.output)
                file.write(json.dumps(record(prompt, number, max_tokens, decoded.output, text)) + "\n")
