"""Verdicts through two real vLLM servers under the default policy, memory test included; and structured output.

    make bench NAME=server_verdicts ARGS="--vllm-python PATH"     (PATH: the interpreter of vLLM's own environment)

The bundled pair in float32, without and with its draft (K = 4), measured by the commands that a user has (`run`,
`gate`, `report`).  Three endpoints of the bundled traffic:

- text-to-sql and translate as they were recorded, one request at a time;
- api-json, greedy, whose every second session asks for its answer by a JSON schema: a slice, with the share of valid
  outputs of both arms.

The policy is the default.  The recording lasts an hour, and an ENABLE needs evidence of a week: only DISABLE can be
reached.  What is measured is kept in `--folder`: a run that was stopped goes on where it stopped.  Nothing else may run
meanwhile.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kernels.benchmarks.engines.servers import Environment, Server, both_arms, served_endpoint, vllm_version
from kernels.benchmarks.engines.ways import PROBABILISTIC
from kernels.benchmarks.harness import answered, engine_machine, options, run_command, write
from shadowspec import demo

DEPTH = 4
RECORDED = ("text-to-sql", "translate")  # greedy, as production asked for it
STRUCTURED = "api-json"
STRUCTURED_TOKENS = 96
# Without it a model that was not trained to stop fills its JSON with spaces up to the limit.
FLAGS = ("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}')
KEPT = (
    "slice", "load", "config", "engine", "verdict", "decision", "num_requests", "num_failed", "num_blocks",
    "acceptance", "parity", "kv_cache", "failures",
)  # fmt: skip
TEXT = {"type": "string", "maxLength": 80}
SCHEMA = {
    "type": "object",
    "properties": {"api_name": TEXT, "api_call": TEXT},
    "required": ["api_name", "api_call"],
    "additionalProperties": False,
}
HEAD = """\
[database]
url = "sqlite:///{folder}/shadow.db"
"""


def traffic() -> str:
    """The records of the three endpoints, as lines."""
    recorded = {demo.SERVED_MODELS[name] for name in RECORDED}
    lines, sessions = [], dict[str, int]()
    for record in answered():
        body = record["request"]
        if body["model"] == demo.SERVED_MODELS[STRUCTURED]:
            body |= {"temperature": 0.0, "max_tokens": STRUCTURED_TOKENS}
            if sessions.setdefault(record["session_id"], len(sessions)) % 2:
                schema = {"name": "api_document", "schema": SCHEMA, "strict": True}
                body["response_format"] = {"type": "json_schema", "json_schema": schema}
            del record["response"]  # it answers another request
        elif body["model"] not in recorded:
            continue
        lines.append(json.dumps(record) + "\n")
    return "".join(lines)


def configuration(folder: Path, baseline: Server, speculative: Server) -> str:
    """The endpoints, measured through the two servers under the default policy."""
    return HEAD.format(folder=folder) + "".join(
        served_endpoint(name, (baseline, speculative), DEPTH, (1,)) for name in (*RECORDED, STRUCTURED)
    )


def judged(folder: Path) -> list[Mapping[str, Any]]:
    """What the report says of every hypothesis, once all traffic is measured."""
    shadowspec = partial(run_command, folder)
    shadowspec("db", "upgrade")
    shadowspec("run", "traffic.jsonl", "--json")
    shadowspec("gate", "--json")
    document = json.loads(shadowspec("report", "--format", "json", "--out", "-"))
    return [
        {"endpoint": item["endpoint"]} | {name: each[name] for name in KEPT}
        for item in document["endpoints"]
        for each in item["hypotheses"]
    ]


def main() -> None:
    """Measure, print, and write the results."""
    parser = options(__doc__, "server_verdicts.json")
    Environment.add_options(parser)
    parser.add_argument("--folder", type=Path, help="database and logs, taken up where they are (default: a new one)")
    arguments = parser.parse_args()
    environment = replace(Environment.of(arguments), flags=FLAGS)
    with ExitStack() as stack:
        folder = (arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "traffic.jsonl").write_text(traffic(), encoding="utf-8")
        config = PROBABILISTIC.speculative_config(DEPTH)
        servers = stack.enter_context(both_arms(environment, config, folder))
        (folder / "shadowspec.toml").write_text(configuration(folder, *servers), encoding="utf-8")
        found = judged(folder)
    results = {
        "engine": f"vllm {vllm_version(environment)}",
        "machine": engine_machine(),
        "num_speculative_tokens": DEPTH,
        "hypotheses": found,
    }
    write(arguments.out, results)
    show(found)


def show(found: list[Mapping[str, Any]]) -> None:
    """What was decided of every hypothesis, and why."""
    table = Table("endpoint", "slice", "verdict", "blocks", "reason")
    for each in found:
        decision = each["decision"] or {}
        names = ", ".join(each["slice"].values()) or "all"
        blocks = str(decision.get("num_blocks"))
        table.add_row(each["endpoint"], names, each["verdict"], blocks, decision.get("reason"))
    Console().print(table)


if __name__ == "__main__":
    main()
