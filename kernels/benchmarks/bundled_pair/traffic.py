"""Make the bundled traffic: held-out prompts, answers of the bundled target, arrival times of a public trace.

python -m kernels.benchmarks.bundled_pair.traffic --pair DIR --corpora DIR --traces DIR --out FILE.jsonl.gz [--seed S]

Prompts and continuations that occur in the training text are dropped (see `contamination`), and the rest of
the session stays if two of its requests do.  What was dropped, and what the answers look like, is written
beside the traffic as `FILE.summary.json`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from kernels.benchmarks.bundled_pair.arrivals import Arrivals, read_trace
from kernels.benchmarks.bundled_pair.contamination import TrainingText, contaminated
from kernels.benchmarks.bundled_pair.corpora import Document, read_documents
from kernels.benchmarks.bundled_pair.prompts import ENDPOINTS, EndpointPlan, Prompt, Session, candidate_sessions
from kernels.benchmarks.bundled_pair.records import Record, public_id, record, with_bad_lines
from kernels.benchmarks.bundled_pair.responses import (
    load_model,
    load_tokenizer,
    prompt_token_ids,
    request_seed,
    respond,
)
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import Decoded
from shadowspec.quality.outputs import is_repetition_loop
from shadowspec.types import SamplingParameters

log = logging.getLogger("kernels.benchmarks.bundled_pair.traffic")

SURPLUS = 1.15  # sessions answered per session needed in each round; the rest of the loss makes another round
SESSIONS_PER_USER = 1.5
PRO_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Answered:
    """One request with its answer."""

    prompt: Prompt
    token_ids: tuple[int, ...]
    decoded: Decoded
    text: str


@dataclass(frozen=True, slots=True)
class EndpointTraffic:
    """The sessions that an endpoint ends up with, and how many texts were dropped on the way."""

    plan: EndpointPlan
    sessions: tuple[tuple[Answered, ...], ...]
    num_texts: int
    num_texts_dropped: int
    num_answers: int
    num_answers_dropped: int

    def summary(self) -> dict[str, Any]:
        answers = [answered for session in self.sessions for answered in session]
        prompt_tokens = sorted(len(answered.token_ids) for answered in answers)
        loops = sum(is_repetition_loop(answered.decoded.output) for answered in answers)
        return {
            "domain": self.plan.domain,
            "parameters": dict(self.plan.parameters),
            "arrivals": self.plan.trace,
            "sessions": len(self.sessions),
            "records": len(answers),
            "session_sizes": dict(sorted(Counter(len(session) for session in self.sessions).items())),
            "prompt_tokens_p5_p50_p95_max": [
                int(np.quantile(prompt_tokens, share, method="inverted_cdf")) for share in (0.05, 0.5, 0.95, 1.0)
            ],
            "prompts_of_600_tokens_or_more": sum(tokens >= 600 for tokens in prompt_tokens),
            "output_tokens": sum(len(answered.decoded.output) for answered in answers),
            "finished_by_stop": sum(answered.decoded.finish_reason == "stop" for answered in answers),
            "repetition_loops": loops,
            "prompt_texts_checked": self.num_texts,
            "prompt_texts_dropped": self.num_texts_dropped,
            "answers_checked": self.num_answers,
            "answers_dropped": self.num_answers_dropped,
        }


class TrafficMaker:
    """The target with its tokenizer, and the training text that nothing bundled may occur in."""

    def __init__(self, pair: Path, documents: Sequence[Document], seed: int) -> None:
        self.tokenizer = load_tokenizer(pair / "target")
        self._target = load_model(pair / "target")
        self._held_out = [document for document in documents if document.held_out]
        self._training = TrainingText(document for document in documents if not document.held_out)
        self._seed = seed

    def endpoint(self, plan: EndpointPlan) -> EndpointTraffic:
        """Answer candidate sessions round by round until the endpoint has its sessions or none is left."""
        candidates = candidate_sessions(plan, self._held_out, self._training, self.count_tokens, self._seed)
        remaining = iter(candidates.sessions)
        kept: list[tuple[Answered, ...]] = []
        num_answers = num_dropped = 0
        while len(kept) < plan.num_sessions:
            missing = plan.num_sessions - len(kept)
            sessions = list(islice(remaining, max(8, int(missing * SURPLUS))))
            if not sessions:
                log.warning("%s: only %d of %d sessions", plan.name, len(kept), plan.num_sessions)
                break
            rows = self._answer(plan, sessions)
            flat = [answered for row in rows for answered in row]
            flags = contaminated(self._training, [(answered.prompt.pieces, answered.text) for answered in flat])
            dropped = {id(answered) for answered, flag in zip(flat, flags, strict=True) if flag}
            num_answers += len(flat)
            num_dropped += len(dropped)
            for row in rows:
                clean = tuple(answered for answered in row if id(answered) not in dropped)
                if len(clean) >= min(2, len(row)):
                    kept.append(clean)
            log.info("%s: %d of %d sessions", plan.name, len(kept), plan.num_sessions)
        return EndpointTraffic(
            plan,
            tuple(kept[: plan.num_sessions]),
            candidates.num_texts,
            candidates.num_texts_dropped,
            num_answers,
            num_dropped,
        )

    def count_tokens(self, text: str) -> int:
        return len(self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    def _answer(self, plan: EndpointPlan, sessions: Sequence[Session]) -> list[list[Answered]]:
        sampling = SamplingParameters(**plan.parameters)
        prompts = [prompt for session in sessions for prompt in session.prompts]
        ids = [prompt_token_ids(self.tokenizer, prompt) for prompt in prompts]
        # The seed is the prompt's own, so that an answer does not depend on which round asked for it.
        requests = [Request(row, sampling, request_seed(self._seed, plan.name, *row)) for row in ids]
        decoded = respond(self._target, requests)
        answers = iter(
            Answered(prompt, row, result, self.tokenizer.decode(list(result.output), skip_special_tokens=True))
            for prompt, row, result in zip(prompts, ids, decoded, strict=True)
        )
        return [list(islice(answers, len(session.prompts))) for session in sessions]


def timed_records(traffic: EndpointTraffic, arrivals: Arrivals, rng: random.Random) -> list[Record]:
    """The endpoint's records with times, sessions and users."""
    plan = traffic.plan
    num_users = max(1, round(len(traffic.sessions) / SESSIONS_PER_USER))
    tiers = ["pro" if rng.random() < PRO_SHARE else "free" for _ in range(num_users)]
    records: list[Record] = []
    for index, session in enumerate(traffic.sessions):
        user = rng.randrange(num_users)
        for position, (answered, time) in enumerate(zip(session, arrivals.session(len(session)), strict=True)):
            records.append(
                record(
                    plan,
                    answered.prompt,
                    answered.token_ids,
                    answered.decoded,
                    answered.text,
                    time=time,
                    session_id=public_id("session", plan.name, index),
                    user=public_id("user", plan.name, user),
                    tier=tiers[user],
                    request_id=public_id("req", plan.name, index, position),
                )
            )
    return records


def make_traffic(pair: Path, corpora: Path, traces: Path, out: Path, seed: int) -> None:
    """Write the traffic file and its summary."""
    maker = TrafficMaker(pair, read_documents(corpora), seed)
    rng = random.Random(f"traffic:{seed}")
    arrivals = {name: Arrivals(read_trace(traces, name), rng) for name in ("code", "conv")}
    records: list[Record] = []
    summaries: dict[str, Any] = {}
    for plan in ENDPOINTS:
        traffic = maker.endpoint(plan)
        records += timed_records(traffic, arrivals[plan.trace], rng)
        summaries[plan.name] = traffic.summary()
    records.sort(key=lambda row: (row["timestamp"], row["request_id"]))
    lines = with_bad_lines(records, rng)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Without a time and a name in its header the file is the same for the same input.
    out.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), compresslevel=9, mtime=0))
    summary = {"seed": seed, "lines": len(lines), "records": len(records), "endpoints": summaries}
    summary_path(out).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def summary_path(traffic: Path) -> Path:
    """Where the summary of a traffic file lies: beside it."""
    return traffic.with_name(traffic.name.removesuffix(".gz").removesuffix(".jsonl") + ".summary.json")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", type=Path, required=True, help="folder with the models target and draft")
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--traces", type=Path, required=True, help="folder with azure_llm_2023")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    make_traffic(arguments.pair, arguments.corpora, arguments.traces, arguments.out, arguments.seed)


if __name__ == "__main__":
    main()
