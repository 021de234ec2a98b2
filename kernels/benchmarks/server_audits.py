"""Audits of vLLM's counts by replay: outputs of two real servers, replayed by the process that measures them.

    make bench NAME=server_audits ARGS="--vllm-python PATH"     (PATH: the interpreter of vLLM's own environment)

The bundled pair in float32 (K = 4), measured by `run` and audited by `gate`: greedy requests of text-to-sql, and the
requests of story at temperature 0.8.  Every output is audited.  It measures vLLM twice: with sampled speculation as it
should be on a CPU (`engines/mend`), and as it is shipped, whose sampled drafts on a CPU are known to be wrong.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kernels.benchmarks.engines.servers import Environment, both_arms, served_endpoint, vllm_version
from kernels.benchmarks.engines.ways import PROBABILISTIC
from kernels.benchmarks.harness import answered, engine_machine, options, run_command, write
from shadowspec import demo

DEPTH, MAX_TOKENS = 4, 64
TEMPERATURES = {"text-to-sql": 0.0, "story": 0.8}  # by endpoint
BUILDS = {"mended": True, "shipped": False}
KEPT = ("slice", "num_units", "num_refused", "difference", "log10_capital", "log10_threshold", "is_alarm")
HEAD = """\
[database]
url = "sqlite:///{folder}/shadow.db"
[engine]
device = "cpu"
"""


def traffic(num_requests: int) -> str:
    """This number of records of each endpoint, as lines."""
    lines = []
    for name, temperature in TEMPERATURES.items():
        model = demo.SERVED_MODELS[name]
        for record in islice((each for each in answered() if each["request"]["model"] == model), num_requests):
            record["request"] |= {"temperature": temperature, "max_tokens": MAX_TOKENS}
            record["request"].pop("seed", None)
            del record["response"]  # it answers another request
            lines.append(json.dumps(record) + "\n")
    return "".join(lines)


def audits(environment: Environment, folder: Path, num_requests: int, *, is_fixed: bool) -> list[Mapping[str, Any]]:
    """What `gate` says of the endpoints' audits."""
    folder.mkdir()
    (folder / "traffic.jsonl").write_text(traffic(num_requests), encoding="utf-8")
    config = PROBABILISTIC.speculative_config(DEPTH)
    with both_arms(environment, config, folder, is_fixed=is_fixed) as servers:
        tables = [
            served_endpoint(
                name, servers, DEPTH, (4,), settings="sample_rate = 1.0\n", server_settings="audit_share = 1.0\n"
            )
            for name in TEMPERATURES
        ]
        (folder / "shadowspec.toml").write_text(HEAD.format(folder=folder) + "".join(tables), encoding="utf-8")
        shadowspec = partial(run_command, folder)
        shadowspec("db", "upgrade")
        shadowspec("run", "traffic.jsonl", "--json")
    found = json.loads(shadowspec("gate", "--json"))["audits"]
    return [{"endpoint": each["endpoint"]} | {name: each[name] for name in KEPT} for each in found if not each["slice"]]


def main() -> None:
    """Measure, print, and write the results."""
    parser = options(__doc__, "server_audits.json")
    Environment.add_options(parser)
    parser.add_argument("--requests", type=int, default=200, help="of each endpoint (default: %(default)s)")
    arguments = parser.parse_args()
    environment = Environment.of(arguments)
    with tempfile.TemporaryDirectory() as kept:
        found = {
            name: audits(environment, Path(kept).resolve() / name, arguments.requests, is_fixed=is_fixed)
            for name, is_fixed in BUILDS.items()
        }
    results = {
        "engine": f"vllm {vllm_version(environment)}",
        "machine": engine_machine(),
        "num_speculative_tokens": DEPTH,
        "temperatures": TEMPERATURES,
        "audits": found,
    }
    write(arguments.out, results)
    table = Table("vLLM", "endpoint", "audited", "refused", "difference", "capital", "alarm")
    for name, rows in found.items():
        for each in rows:
            capital = f"10^{each['log10_capital']:.1f} of 10^{each['log10_threshold']:.1f}"
            alarm = "yes" if each["is_alarm"] else "no"
            audited, refused, difference = each["num_units"], each["num_refused"], each["difference"]
            shown = "-" if difference is None else f"{difference:+.4f}"
            table.add_row(name, each["endpoint"], str(audited), str(refused), shown, capital, alarm)
    Console().print(table)


if __name__ == "__main__":
    main()
