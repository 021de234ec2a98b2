"""`shadowspec distill` on the bundled pair: what a slice that the draft never saw gains, and what the others lose.

    make bench-distill    (or: python kernels/benchmarks/distillation.py [--shifted N] [--held-out SHARE] [--out FILE])

The shifted slice is code in capital letters, as old listings are: prompts of the bundled code completion in upper case,
answered by the bundled target, which then writes capitals too.  They are logged beside the bundled traffic of all six
endpoints.  The draft is distilled on all of it; acceptance on sessions held out, before and after, is replay's.  Then
the loop itself decodes the held-out requests with both drafts: its difference is to lie within the interval that
it and replay have together.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from bundled import answered
from rich.console import Console
from rich.progress import track
from scipy.stats import t as student

from shadowspec import demo
from shadowspec.app.distill_draft import Distilled, Wanted, distill_files
from shadowspec.config import load_config
from shadowspec.distill.comparison import half_width
from shadowspec.distill.examples import Example
from shadowspec.distill.training_settings import Settings, Shares
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.proposers import Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.types import SamplingParameters, VerifyRule

RESULTS = Path(__file__).parent / "results" / "distillation.json"
ENDPOINT = "code-completion"
LABEL, SHIFTED = "listing", "capitals"
SAMPLING = SamplingParameters(temperature=0.8, top_p=0.95, max_tokens=96)
BATCH = 64
DEPTH = 4
LEVEL = 0.99

Reals = npt.NDArray[np.float64]


def decoded(target: LoadedModel, requests: Sequence[Request], draft: LoadedModel | None, label: str) -> list[Decoded]:
    """The loop's own answers, in batches of prompts of like length; without a draft they are plain."""
    order = sorted(range(len(requests)), key=lambda row: len(requests[row].prompt))
    found: dict[int, Decoded] = {}
    for start in track(range(0, len(order), BATCH), label, console=Console(stderr=True)):
        rows = order[start : start + BATCH]
        proposer: Proposer | None = None
        if draft is not None:
            proposer = DraftModelProposer(draft.model, DEPTH, is_sampling=True)
        result = decode_batch(
            target.model,
            [requests[row] for row in rows],
            proposer=proposer,
            num_speculative_tokens=DEPTH if proposer else 0,
            verify_rule=VerifyRule.REJECTION,
            end_token_ids=target.end_token_ids,
            releases_slots=True,
        )
        found.update(zip(rows, result.decoded, strict=True))
    return [found[row] for row in range(len(requests))]


def in_capitals(target: LoadedModel, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same requests in capital letters, answered by the target, each a session of its own."""
    texts = [record["request"]["prompt"].upper() for record in records]
    prompts = [tuple(target.tokenizer.encode(text)) for text in texts]
    requests = [Request(prompt, SAMPLING, 7_000_000 + row) for row, prompt in enumerate(prompts)]
    answers = decoded(target, requests, None, "answering in capitals")
    return [
        {
            **{name: record[name] for name in ("timestamp", "path") if name in record},
            "session_id": f"capitals-{row}",
            "request_id": f"capitals-{row}",
            "metadata": {LABEL: SHIFTED},
            "request": {
                "model": demo.SERVED_MODELS[ENDPOINT], "prompt": text, "temperature": SAMPLING.temperature,
                "top_p": SAMPLING.top_p, "max_tokens": SAMPLING.max_tokens,
            },
            "response": {
                "choices": [
                    {"index": 0, "text": target.tokenizer.decode(answer.output), "finish_reason": answer.finish_reason,
                     "token_ids": list(answer.output)}
                ],
                "prompt_token_ids": list(request.prompt),
                "usage": {"completion_tokens": len(answer.output)},
            },
        }
        for row, (record, text, request, answer) in enumerate(zip(records, texts, requests, answers, strict=True))
    ]  # fmt: skip


def configuration(folder: Path) -> Path:
    """The demo's, with the slice by listing at the endpoint of code."""
    text = demo.demo_config(folder, 0)
    head = f"[endpoints.{ENDPOINT}]\n"
    assert head in text
    name = f'{head}labels = ["{LABEL}"]\nslice_by = ["{LABEL}"]\n'
    path = folder / "shadowspec.toml"
    path.write_text(text.replace(head, name), encoding="utf-8")
    (folder / "demo.secret").write_text(demo.DEMO_SECRET, encoding="utf-8")
    return path


def loop_sums(answers: Sequence[Decoded]) -> Reals:
    """Steps and those that accepted the first token, by request; [requests, 2]."""
    return np.array(
        [(answer.counts.num_drafts, answer.counts.num_accepted_tokens_per_pos[0]) for answer in answers], float
    )


def agreement(done: Distilled, target: LoadedModel, before: LoadedModel, after: LoadedModel) -> list[dict[str, Any]]:
    """The loop's difference in every slice beside replay's, over the same held-out requests."""
    held_out = done.split.held_out
    sums = []
    for course, (name, draft) in enumerate((("before", before), ("after", after))):
        requests = [
            replace(each.response.request, seed=9_000_000 + 1_000_000 * course + row)
            for row, each in enumerate(held_out)
        ]
        sums.append(loop_sums(decoded(target, requests, draft, f"the loop {name}")))
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, each in enumerate(held_out):
        rows[each.endpoint, ""].append(row)
        rows[each.endpoint, each.slice_key].append(row)
    found = []
    for gain in done.comparison.gains:
        if gain.num_sessions < 2:
            continue  # of one session there is no interval; the command's own table shows it
        entries = rows[gain.endpoint, gain.slice_key]
        looped, half = difference(held_out, entries, sums)
        assert gain.difference is not None
        assert gain.lower is not None
        assert gain.upper is not None
        # Replay's bounds are at 95%: widened to LEVEL as normal ones are.
        wider = float(student.ppf(0.5 + LEVEL / 2.0, max(1, gain.num_sessions - 1)))
        usual = float(student.ppf(0.975, max(1, gain.num_sessions - 1)))
        replay_half = (gain.upper - gain.lower) / 2.0 * wider / usual
        together = float(np.hypot(half, replay_half))
        found.append(
            {**asdict(gain), "loop_difference": looped, "loop_half_width": half,
             "agrees": bool(abs(looped - gain.difference) <= together)}
        )  # fmt: skip
    return found


def difference(held_out: Sequence[Example], rows: Sequence[int], sums: Sequence[Reals]) -> tuple[float, float]:
    """The loop's first-position acceptance after less that before, and half its interval over sessions."""
    units: dict[str, Reals] = {}
    for row in rows:
        unit = units.setdefault(held_out[row].unit_key, np.zeros((2, 2)))
        unit += np.stack([values[row] for values in sums])
    stacked = np.stack(list(units.values()))  # [sessions, 2 drafts, (steps, firsts)]
    steps, firsts = stacked.sum(0).T
    half = half_width(stacked, LEVEL)
    assert half is not None, "a slice that is compared has several sessions"
    return float(firsts[1] / steps[1] - firsts[0] / steps[0]), half


def main() -> None:
    """Make the traffic, distil, compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shifted", type=int, default=600, help="responses in capitals")
    parser.add_argument("--usual", type=int, default=4_000, help="bundled records beside them, at most")
    parser.add_argument("--held-out", type=float, default=0.3, help="share of sessions to judge by")
    parser.add_argument("--epochs", type=int, default=Settings().epochs)
    parser.add_argument("--learning-rate", type=float, default=Settings().learning_rate)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    target = load_model(str(demo.TARGET), torch.device("cpu"), torch.float32)
    before = load_model(str(demo.DRAFT), torch.device("cpu"), torch.float32)
    records = list(answered())
    code = [record for record in records if record["request"]["model"] == demo.SERVED_MODELS[ENDPOINT]]
    code = [item for item in code if isinstance(item["request"].get("prompt"), str)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        traffic = folder / "traffic.jsonl"
        every = [*records[: arguments.usual], *in_capitals(target, code[-arguments.shifted :])]
        traffic.write_text("".join(json.dumps(item) + "\n" for item in every), encoding="utf-8")
        wanted = Wanted(ENDPOINT, None, "public text", folder / "draft", Shares(held_out=arguments.held_out), {}, None)
        settings = Settings(epochs=arguments.epochs, learning_rate=arguments.learning_rate)
        began = time.perf_counter()
        done = distill_files(load_config(configuration(folder)), [str(traffic)], wanted, settings)
        seconds = time.perf_counter() - began
        after = load_model(str(done.out), torch.device("cpu"), torch.float32)
        cells = agreement(done, target, before, after)
    document = {
        "responses": {"training": len(done.split.training), "answered_anew": len(done.answers),
                      "validation": len(done.split.validation), "held_out": len(done.split.held_out)},
        "seconds": seconds,
        "steps": done.course.num_steps,
        "output_tokens_learnt_from": done.course.num_tokens,
        "stopped_early": done.course.stopped_early,
        "looks": [asdict(look) for look in done.course.looks],
        "blends": [{"share": blend.share, **asdict(blend.look)} for blend in done.course.blends],
        "share": done.course.blend.share,
        "refused": done.comparison.refused,
        "machine": {
            "processor": platform.machine(), "cpus": os.cpu_count(), "threads": torch.get_num_threads(),
            "torch": torch.__version__, "load_average": os.getloadavg()[0],
        },
        "slices": cells,
    }  # fmt: skip
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for cell in cells:
        Console().print({name: cell[name] for name in (
            "endpoint", "slice_key", "num_sessions", "before", "after", "difference", "lower", "upper",
            "loop_difference", "agrees",
        )})  # fmt: skip
    Console().print({"seconds": seconds, "all_agree": all(cell["agrees"] for cell in cells)})


if __name__ == "__main__":
    main()
