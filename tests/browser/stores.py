"""The states that a page is looked at in, each a configuration on a real database."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy
from sqlalchemy import make_url

from kernels.benchmarks.large_store.config import config_text
from kernels.benchmarks.large_store.filling import Size, fill
from kernels.benchmarks.large_store.world import make_world
from shadowspec import demo as bundled
from shadowspec.store import Store
from shadowspec.store.admin import schema
from shadowspec.types import ReasonCode, Verdict
from tests.store import examples, saving

PASSWORD = "canary-password-7f3a"
PROMPT, SESSION, USER, REQUEST = "canaryprompt9c1e", "canary-session-11d8", "canary-user-42bb", "canary-request-e07f"
SECRET = "canary-secret-0123456789abcdef-2d6c"  # that ids are hashed with
CANARIES = (PASSWORD, PROMPT, SESSION, USER, REQUEST, SECRET)
DEMO_REQUESTS = 60
DEMO_ENDPOINTS = ("text-to-sql", "code-completion")
SMALL = Size(num_slices=20, num_days=20, num_runs=20_000, num_looks=8, live_interval_s=900.0)
LARGE = Size(
    num_slices=200, num_days=90, num_runs=150_000, num_looks=12, live_interval_s=900.0
)  # a full board over a full span


@dataclass(frozen=True)
class State:
    """A configuration, and what a page on it must say and must not."""

    name: str
    config: Path


def with_password(url: str) -> str:
    """The URL with a password in it, which the test server does not ask for and no page may show."""
    return make_url(url).set(password=PASSWORD).render_as_string(hide_password=False)


def empty(url: str, folder: Path) -> State:
    """A migrated store with nothing in it."""
    schema.upgrade(url)
    return State("empty", _write(folder, "empty", url, _bare(url)))


def unconfigured(url: str, folder: Path) -> State:
    """A migrated store and a configuration without an endpoint."""
    schema.upgrade(url)
    return State("unconfigured", _write(folder, "unconfigured", url, f"[database]\nurl = {json.dumps(url)}\n"))


def measured(url: str, folder: Path) -> State:
    """One measured block, on which the gate has not decided."""
    schema.upgrade(url)
    _save_block(url)
    return State("measured", _write(folder, "measured", url, _bare(url)))


def first_blocks(url: str, folder: Path) -> State:
    """One measured block and the first decision: no test has a bound yet."""
    schema.upgrade(url)
    _save_block(url)
    blank = {"estimate": None, "lower": None, "upper": None, "num_units": 0}
    decided = examples.decision(Verdict.HOLD)
    tests = tuple(replace(test, **blank) for test in decided.tests)
    first = replace(decided, reason_code=ReasonCode.TOO_FEW_CLUSTERS, reason="1 of 18 sessions", tests=tests)
    with Store.open(url) as store:
        store.append_decisions([replace(first, num_clusters=1, num_blocks=1, clusters_needed=17)])
    return State("first", _write(folder, "first", url, _bare(url)))


def _save_block(url: str) -> None:
    with Store.open(url) as store:
        store.save_fingerprints([examples.config()])
        saving.save_block(store, examples.block("b", range(4)), [examples.record(line) for line in range(4)])


def synthetic(name: str, url: str, folder: Path, *, size: Size, days_ago: int = 0) -> State:
    """A synthetic store whose last event is so many days old."""
    fill(url, size, datetime.now(UTC) - timedelta(days=days_ago))
    return State(name, _write(folder, name, url, config_text(make_world(size.num_slices, size.seed), url)))


def demo(url: str, folder: Path) -> State:
    """The real demo's models on a part of its traffic, with a canary in each prompt and id, measured and decided."""
    text = bundled.demo_config(folder, seed=0)
    sqlite = json.dumps(f"sqlite:///{folder.as_posix()}/shadowspec.db")
    assert sqlite in text, "the demo's database is where it says"
    config = _write(folder, "demo", url, text.replace(sqlite, json.dumps(url)))
    (folder / "demo.secret").write_text(SECRET, encoding="utf-8")
    traffic = folder / "traffic.jsonl"
    traffic.write_text("".join(f"{line}\n" for line in _with_canaries()), encoding="utf-8")
    for command in (["db", "upgrade"], ["run", str(traffic), "--max-requests", str(DEMO_REQUESTS)], ["gate"]):
        _run(*command, "--config", str(config))
    return State("demo", config)


def _with_canaries() -> Iterator[str]:
    """The demo's records of a few endpoints, without their answers: to be measured, they need none."""
    models = {bundled.SERVED_MODELS[name] for name in DEMO_ENDPOINTS}
    with gzip.open(bundled.TRAFFIC, "rt", encoding="utf-8") as lines:
        for line in lines:
            if not any(f'"model":"{model}"' in line for model in models):
                continue  # another endpoint's, or one of the demo's own bad lines
            record = json.loads(line)
            record.pop("response")
            record["session_id"] = f"{SESSION}-{record['session_id']}"
            record["user"] = f"{USER}-{record['user']}"
            record["request_id"] = f"{REQUEST}-{record['request_id']}"
            request = record["request"]
            if "messages" in request:
                request["messages"][-1]["content"] += f"\n{PROMPT}"
            else:
                request["prompt"] += f"\n{PROMPT}"
            yield json.dumps(record)


def _run(*arguments: str) -> None:
    command = [sys.executable, "-m", "shadowspec", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"


def behind(url: str, folder: Path) -> State:
    """A database without tables, which `db upgrade` has to make first."""
    schema.migrate(url, "base")
    return State("behind", _write(folder, "behind", url, _bare(url)))


def away(port: int, folder: Path) -> State:
    """A database that nothing listens for."""
    url = f"postgresql+psycopg://shadowspec@127.0.0.1:{port}/nowhere"
    return State("away", _write(folder, "away", url, _bare(url)))


def _bare(url: str) -> str:
    """The smallest configuration that has an endpoint."""
    return "\n".join(
        (
            "[database]",
            f"url = {json.dumps(url)}",
            "[endpoints.chat]",
            'target = "models/target"',
            'served_models = ["chat"]',
            "[[endpoints.chat.candidates]]",
            'name = "draft-k4"',
            'draft = "models/draft"',
            "num_speculative_tokens = 4",
            "",
        )
    )


def _write(folder: Path, name: str, url: str, text: str) -> Path:
    """Write the configuration, its database with a password that must stay where it is."""
    path = folder / f"{name}.toml"
    plain = json.dumps(url)
    assert plain in text, "the configuration names its database"
    given = with_password(url) if sqlalchemy.make_url(url).get_backend_name() == "postgresql" else url
    text = text.replace(plain, json.dumps(given)).replace("[dashboard]\n", '[dashboard]\nlocal_role = "operator"\n')
    path.write_text(text, encoding="utf-8")
    return path
