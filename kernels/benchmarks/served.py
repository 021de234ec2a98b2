"""What two real vLLM servers of the bundled pair show to the commands that a user has: `run`, `gate`, `report`.

    make bench NAME=served ARGS="WHAT --vllm-python PATH"     (PATH: the interpreter of vLLM's own environment)

The pair is in float32, without and with its draft (K = 4).  Nothing else may run meanwhile.  WHAT is one of these:

- verdicts, under the default policy, memory test included.  text-to-sql and translate are measured as they were
  recorded, one request at a time; api-json greedily, where every second session asks for its answer by a JSON schema: a
  slice, with the share of valid outputs of both arms.  The recording lasts an hour, and an ENABLE needs evidence of a
  week: only DISABLE can be reached.  With `--folder` a run that was stopped goes on where it stopped.
- audits of vLLM's counts by replay, of every output: greedy requests of text-to-sql, and those of story at temperature
  0.8.  vLLM is measured twice: with sampled speculation as it should be on a CPU (`engines/mend`), and as it is
  shipped, whose sampled drafts on a CPU are known to be wrong.
- costs: what `profile-server` predicts, on made-up prompts, of the traffic of all endpoints that is then timed in
  paired blocks, by the report.  Both servers run all the time, as for a user: the one that waits is not stopped.
- conversations of four turns, with the servers' prefix caches on, turn by turn.  Each turn's prompt is that of the turn
  before and 200 further tokens.  What the servers had cached does not depend on what else runs on the machine.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from kernels.benchmarks.engines.servers import (
    MAX_MODEL_LEN,
    SERVED_MODEL,
    Environment,
    Server,
    both_arms,
    served_endpoint,
    vllm_version,
)
from kernels.benchmarks.engines.ways import PROBABILISTIC
from kernels.benchmarks.harness import (
    RESULTS,
    answered,
    configuration,
    engine_machine,
    options,
    run_command,
    show,
    write,
)
from shadowspec import demo
from shadowspec.engine.tokenizer import load_tokenizer
from shadowspec.reports.figures.by_turn import TURN_HEAD, TurnRow

DEPTH = 4
TRAFFIC = "traffic.jsonl"
Document = dict[str, Any]
Config = Callable[[tuple[Server, Server]], Iterable[str]]  # the tables of a configuration, but for the database's


@contextmanager
def deployed(
    environment: Environment,
    folder: Path,
    records: Iterable[Mapping[str, Any]],
    config: Config,
    *,
    is_fixed: bool = True,
) -> Iterator[Callable[..., str]]:
    """Both servers at work, and a folder with traffic, configuration and database; gives the product's command."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TRAFFIC).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    with both_arms(environment, PROBABILISTIC.speculative_config(DEPTH), folder, is_fixed=is_fixed) as servers:
        text = f'[database]\nurl = "sqlite:///{folder}/shadow.db"\n' + "".join(config(servers))
        (folder / "shadowspec.toml").write_text(text, encoding="utf-8")
        shadowspec = partial(run_command, folder)
        shadowspec("db", "upgrade")
        yield shadowspec


def reported(shadowspec: Callable[..., str]) -> list[Document]:
    """What the report says of the endpoints."""
    document: Document = json.loads(shadowspec("report", "--format", "json", "--out", "-"))
    return list(document["endpoints"])


# Verdicts ---------------------------------------------------------------------------------------------------------

RECORDED = ("text-to-sql", "translate")  # greedy, as production asked for it
STRUCTURED = "api-json"
STRUCTURED_TOKENS = 96
# Without it a model that was not trained to stop fills its JSON with spaces up to the limit.
NO_SPACES = ("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}')
OF_A_HYPOTHESIS = (
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


def structured_traffic() -> Iterator[Document]:
    """The records of the three endpoints."""
    recorded, sessions = {demo.SERVED_MODELS[name] for name in RECORDED}, dict[str, int]()
    for record in answered():
        body = record["request"]
        if body["model"] == demo.SERVED_MODELS[STRUCTURED]:
            body |= {"temperature": 0.0, "max_tokens": STRUCTURED_TOKENS}
            if sessions.setdefault(record["session_id"], len(sessions)) % 2:
                schema = {"name": "api_document", "schema": SCHEMA, "strict": True}
                body["response_format"] = {"type": "json_schema", "json_schema": schema}
            del record["response"]  # it answers another request
            yield record
        elif body["model"] in recorded:
            yield record


def verdicts(environment: Environment, folder: Path, _number: int, _rounds: int) -> Document:
    """What was decided of every hypothesis, and why."""

    def config(servers: tuple[Server, Server]) -> list[str]:
        return [served_endpoint(name, servers, DEPTH, (1,)) for name in (*RECORDED, STRUCTURED)]

    environment = replace(environment, flags=(*NO_SPACES, *environment.flags))
    with deployed(environment, folder, structured_traffic(), config) as shadowspec:
        shadowspec("run", TRAFFIC, "--json")
        shadowspec("gate", "--json")
        endpoints = reported(shadowspec)
    hypotheses = [
        {"endpoint": endpoint["endpoint"]} | {name: hypothesis[name] for name in OF_A_HYPOTHESIS}
        for endpoint in endpoints
        for hypothesis in endpoint["hypotheses"]
    ]
    rows = []
    for hypothesis in hypotheses:
        decision, names = hypothesis["decision"] or {}, ", ".join(hypothesis["slice"].values())
        row = {"endpoint": hypothesis["endpoint"], "slice": names or "all", "verdict": hypothesis["verdict"]}
        rows.append(row | {"blocks": decision.get("num_blocks"), "reason": decision.get("reason")})
    show("verdicts", rows)
    return {"hypotheses": hypotheses}


# Audits -----------------------------------------------------------------------------------------------------------

MAX_TOKENS = 64
TEMPERATURES = {"text-to-sql": 0.0, "story": 0.8}  # by endpoint
BUILDS = {"mended": True, "shipped": False}
OF_AN_AUDIT = ("slice", "num_units", "num_refused", "difference", "log10_capital", "log10_threshold", "is_alarm")


def audited_traffic(number: int) -> Iterator[Document]:
    """This number of records of each endpoint."""
    for name, temperature in TEMPERATURES.items():
        model = demo.SERVED_MODELS[name]
        for record in islice((record for record in answered() if record["request"]["model"] == model), number):
            record["request"] |= {"temperature": temperature, "max_tokens": MAX_TOKENS}
            record["request"].pop("seed", None)
            del record["response"]  # it answers another request
            yield record


def audits(environment: Environment, folder: Path, number: int, _rounds: int) -> Document:
    """What `gate` says of the endpoints' audits, by build of vLLM."""
    every, audit = {"settings": "sample_rate = 1.0\n"}, {"server_settings": "audit_share = 1.0\n"}

    def config(servers: tuple[Server, Server]) -> list[str]:
        tables = [served_endpoint(name, servers, DEPTH, (4,), **every, **audit) for name in TEMPERATURES]
        return ['[engine]\ndevice = "cpu"\n', *tables]

    by_build = {}
    for build, is_fixed in BUILDS.items():
        with deployed(environment, folder / build, audited_traffic(number), config, is_fixed=is_fixed) as shadowspec:
            shadowspec("run", TRAFFIC, "--json")
        by_build[build] = [
            {"endpoint": audit["endpoint"]} | {name: audit[name] for name in OF_AN_AUDIT}
            for audit in json.loads(shadowspec("gate", "--json"))["audits"]
            if not audit["slice"]
        ]
    show("audits", [{"vLLM": build} | audit for build, rows in by_build.items() for audit in rows])
    return {"temperatures": TEMPERATURES, "audits": by_build}


# Costs ------------------------------------------------------------------------------------------------------------

LOADS = (1, 4)
CONTEXTS = (16, 128, 400)  # prompt tokens that are profiled; those of the traffic lie between
QUICK = configuration("quick.toml")


def first_requests(sessions: int) -> Iterator[Document]:
    """The first request of so many sessions of every endpoint."""
    by_model: dict[str, dict[str, Document]] = {model: {} for model in demo.SERVED_MODELS.values()}
    for record in answered():
        by_model[record["request"]["model"]].setdefault(record["session_id"], record)
    for records in by_model.values():
        yield from islice(records.values(), sessions)


def costs(environment: Environment, folder: Path, number: int, rounds: int) -> Document:
    """Profile one endpoint's servers, measure all traffic, and read the report's predictions that were timed, too."""
    settings = "max_new_tokens = 64\nrequests_per_slot = 4\n"

    def config(servers: tuple[Server, Server]) -> list[str]:
        tables = [served_endpoint(name, servers, DEPTH, LOADS, settings=settings) for name in demo.SERVED_MODELS]
        return [QUICK.format(positions=1), 'memory_budget_share = "none"\n', *tables]

    loads, contexts = (",".join(map(str, values)) for values in (LOADS, CONTEXTS))
    with deployed(environment, folder, first_requests(number), config) as shadowspec:
        shadowspec(
            "profile-server", "--endpoint", next(iter(demo.SERVED_MODELS)), "--loads", loads, "--contexts", contexts,
            "--rounds", str(rounds),
        )  # fmt: skip
        shadowspec("run", TRAFFIC, "--json")
        endpoints = reported(shadowspec)
    cells = [
        {"endpoint": endpoint["endpoint"], **cell}
        for endpoint in endpoints
        for cell in endpoint["predictions"]
        if cell["relative_error"] is not None
    ]
    named = ("endpoint", "tokens_per_step", "predicted_speedup", "measured_speedup", "relative_error")
    rows = [
        {"slice": ", ".join(cell["slice"].values()), "load": cell["load"]["concurrency"]}
        | {name: cell[name] for name in named}
        for cell in cells
    ]
    show("predictions", rows)
    errors = [abs(cell["relative_error"]) for cell in cells]
    return {
        "engine": cells[0]["engine"],
        "rounds": rounds,
        "median_absolute_error": statistics.median(errors),
        "within_10_percent": sum(error <= 0.1 for error in errors),
        "right_side_of_1": sum((cell["predicted_speedup"] > 1) == (cell["measured_speedup"] > 1) for cell in cells),
        "cells": cells,
    }


# Conversations ----------------------------------------------------------------------------------------------------

TURNS = 4
NEW_TOKENS = 32
TURN_TOKENS = 200  # by which each turn's prompt grows: above vLLM's block of 128 tokens on a CPU
START = datetime(2026, 1, 1, tzinfo=UTC)
PATIENT = f"""\
max_model_len = {MAX_MODEL_LEN}
prefix_cache = "on"
first_token_timeout_s = 900.0
token_timeout_s = 900.0
total_timeout_s = 1800.0
"""


def turns(sessions: int) -> Iterator[Document]:
    """So many conversations; the turns of all of them come in turn."""
    tokenizer = load_tokenizer(str(demo.TARGET))
    pieces: dict[str, list[int]] = defaultdict(list)  # of each endpoint, its requests' texts one after the other
    for record in answered():
        text = json.dumps(record["request"].get("messages") or record["request"].get("prompt"))
        pieces[record["request"]["model"]] += tokenizer.encode(text)
    tokens, needed = max(pieces.values(), key=len), TURNS * TURN_TOKENS
    if len(tokens) < sessions * needed:
        raise SystemExit(f"the bundled traffic has {len(tokens) // needed} such conversations")
    for turn in range(1, TURNS + 1):
        for session in range(sessions):
            prompt = tokens[session * needed :][: turn * TURN_TOKENS]
            yield {
                "timestamp": (START + timedelta(seconds=10 * turn)).isoformat(),
                "session_id": f"talk-{session}",
                "request_id": f"{session}-{turn}",
                "path": "/v1/completions",
                "request": {
                    "model": SERVED_MODEL, "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0.0,
                },
            }  # fmt: skip


def conversations(environment: Environment, folder: Path, number: int, _rounds: int) -> Document:
    """What the report says of the whole endpoint, by turn."""
    settings = 'requests_per_slot = 1\nslice_by = ["sampling_regime"]\n'

    def config(servers: tuple[Server, Server]) -> list[str]:
        table = served_endpoint(
            "talk", servers, DEPTH, (2,), model=SERVED_MODEL, settings=settings, server_settings=PATIENT
        )
        return [QUICK.format(positions=TURNS), table]

    environment = replace(environment, flags=("--enable-prefix-caching", *environment.flags))
    with deployed(environment, folder, turns(number), config) as shadowspec:
        shadowspec("run", TRAFFIC, "--json")
        shadowspec("gate", "--json")
        (endpoint,) = reported(shadowspec)
    whole = next(hypothesis for hypothesis in endpoint["hypotheses"] if not hypothesis["slice"])
    show(
        whole["decision"]["reason"],
        [dict(zip(TURN_HEAD, TurnRow(**row).cells, strict=True)) for row in whole["by_turn"]],
    )
    return {"num_failed": whole["num_failed"], "reason": whole["decision"]["reason"], "by_turn": whole["by_turn"]}


# By name: what measures it, its results, and how many requests of each endpoint (audits) or sessions.
MEASURES = {
    "verdicts": (verdicts, "server_verdicts.json", 0),
    "audits": (audits, "server_audits.json", 200),
    "costs": (costs, "server_costs.json", 48),
    "conversations": (conversations, "conversations.json", 8),
}


def main(arguments_given: Sequence[str] | None = None) -> None:
    """Measure, print, and write the results."""
    parser = options(__doc__)
    parser.add_argument("what", choices=MEASURES)
    Environment.add_options(parser)
    parser.add_argument(
        "--number", type=int, help="requests of each endpoint (audits: 200); sessions (costs: 48 of each)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of the profile (costs)")
    parser.add_argument("--folder", type=Path, help="database and logs, taken up where they are (default: a new one)")
    parser.add_argument("--out", type=Path, help="(default: among the committed results)")
    given = parser.parse_args(arguments_given)
    measure, results, number = MEASURES[given.what]
    environment = Environment.of(given)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (given.folder or Path(scratch)).resolve()
        measured = measure(environment, folder, given.number or number, given.rounds)
    document = {
        "engine": f"vllm {vllm_version(environment)}",
        "machine": engine_machine(),
        "num_speculative_tokens": DEPTH,
    }
    write(given.out or RESULTS / results, document | measured)


if __name__ == "__main__":
    main()
