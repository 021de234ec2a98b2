"""Four-turn conversations through two real vLLM servers with their prefix caches on, turn by turn.

    make bench NAME=conversations ARGS="--vllm-python PATH"     (PATH: the interpreter of vLLM's own environment)

The bundled pair in float32, without and with its draft (K = 4).  A conversation is made of bundled prompts: each turn's
prompt is that of the turn before and 200 further tokens.  They are measured by the commands that a user has (`run`,
`gate`, `report`), with `prefix_cache = "on"`.  What the servers had cached does not depend on what else runs on the
machine; times do.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kernels.benchmarks.engines.servers import MAX_MODEL_LEN, SERVED_MODEL, Environment, both_arms, vllm_version
from kernels.benchmarks.engines.ways import PROBABILISTIC
from kernels.benchmarks.harness import answered, options, run_command, write
from shadowspec import demo
from shadowspec.engine.tokenizer import load_tokenizer
from shadowspec.reports.by_turn import TURN_HEAD, TurnRow

DEPTH = 4
TURNS = 4
NEW_TOKENS = 32
TURN_TOKENS = 200  # by which each turn's prompt grows: above vLLM's block of 128 tokens on a CPU
START = datetime(2026, 1, 1, tzinfo=UTC)
FLAGS = ("--enable-prefix-caching",)
CONFIG = """\
[database]
url = "sqlite:///{folder}/shadow.db"
[engine]
warmup_blocks = 1
audit_share = 0.0
[gate]
min_span_s = 0.0
timed_positions = {turns}
entry_clusters = 2
[endpoints.talk]
engine = "openai"
target = "{target}"
served_models = ["{served}"]
match = {{ model = "{served}" }}
requests_per_slot = 1
serving_engine = "vllm"
slice_by = ["sampling_regime"]
loads = [{{ concurrency = 2 }}]
[endpoints.talk.servers]
baseline_url = "{baseline_url}"
speculative_url = "{speculative_url}"
device = "cpu"
dtype = "float32"
max_model_len = {length}
prefix_cache = "on"
first_token_timeout_s = 900.0
token_timeout_s = 900.0
total_timeout_s = 1800.0
[[endpoints.talk.candidates]]
name = "draft-k{depth}"
proposer = "draft_model"
draft = "{draft}"
num_speculative_tokens = {depth}
"""


def traffic(sessions: int) -> str:
    """So many conversations, as lines; the turns of all of them come in turn."""
    tokenizer = load_tokenizer(str(demo.TARGET))
    pieces: dict[str, list[int]] = defaultdict(list)  # of each endpoint, its requests' texts one after the other
    for record in answered():
        text = json.dumps(record["request"].get("messages") or record["request"].get("prompt"))
        pieces[record["request"]["model"]] += tokenizer.encode(text)
    (tokens, *_) = sorted(pieces.values(), key=len, reverse=True)
    needed = TURNS * TURN_TOKENS
    if len(tokens) < sessions * needed:
        raise SystemExit(f"the bundled traffic has {len(tokens) // needed} such conversations")
    lines = []
    for turn in range(1, TURNS + 1):
        for session in range(sessions):
            body = {
                "model": SERVED_MODEL,
                "prompt": tokens[session * needed :][: turn * TURN_TOKENS],
                "max_tokens": NEW_TOKENS,
                "temperature": 0.0,
            }
            at = START + timedelta(seconds=10 * turn)
            record = {"timestamp": at.isoformat(), "session_id": f"talk-{session}", "path": "/v1/completions"}
            lines.append(json.dumps(record | {"request": body, "request_id": f"{session}-{turn}"}) + "\n")
    return "".join(lines)


def measured(folder: Path) -> Mapping[str, Any]:
    """What the report says of the whole endpoint."""
    shadowspec = partial(run_command, folder)
    shadowspec("db", "upgrade")
    shadowspec("run", "traffic.jsonl", "--json")
    shadowspec("gate", "--json")
    (endpoint,) = json.loads(shadowspec("report", "--format", "json", "--out", "-"))["endpoints"]
    return next(each for each in endpoint["hypotheses"] if not each["slice"])


def main() -> None:
    """Measure, print, and write the results."""
    parser = options(__doc__, "conversations.json")
    Environment.add_options(parser)
    parser.add_argument("--vllm-flags", default="", help="further flags of both servers, separated by spaces")
    parser.add_argument("--sessions", type=int, default=8)
    arguments = parser.parse_args()
    environment = replace(Environment.of(arguments), flags=(*FLAGS, *arguments.vllm_flags.split()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "traffic.jsonl").write_text(traffic(arguments.sessions), encoding="utf-8")
        with both_arms(environment, PROBABILISTIC.speculative_config(DEPTH), folder) as (baseline, speculative):
            text = CONFIG.format(
                folder=folder, turns=TURNS, target=demo.TARGET, draft=demo.DRAFT, served=SERVED_MODEL, depth=DEPTH,
                length=MAX_MODEL_LEN, baseline_url=baseline.url, speculative_url=speculative.url,
            )  # fmt: skip
            (folder / "shadowspec.toml").write_text(text, encoding="utf-8")
            found = measured(folder)
    results = {
        "engine": f"vllm {vllm_version(environment)}",
        "num_speculative_tokens": DEPTH,
        "num_failed": found["num_failed"],
        "reason": found["decision"]["reason"],
        "by_turn": found["by_turn"],
    }
    write(arguments.out, results)
    table = Table(*TURN_HEAD)
    for row in found["by_turn"]:
        table.add_row(*TurnRow(**row).cells)
    console = Console()
    console.print(table)
    console.print(results["reason"])


if __name__ == "__main__":
    main()
