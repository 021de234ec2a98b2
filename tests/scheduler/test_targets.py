"""Exports reach their targets: when something changes, with its reason, and only then."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from msgspec import structs

from shadowspec.app.scheduled_jobs import export_renderers
from shadowspec.config import Config
from shadowspec.errors import ConfigError
from shadowspec.scheduler.http_pages import serving
from shadowspec.scheduler.targets import require_target
from shadowspec.scheduler.verdict_metrics import VerdictMetrics
from shadowspec.store import Store
from shadowspec.types import Clearing, Override, SpeculationConfig, Verdict, VerifyRule
from tests.builders.waiting import wait_for
from tests.scheduler.worlds import config_of, scheduler_of
from tests.services import free_port
from tests.store import examples
from tests.store.saving import save_block

DRAFT = SpeculationConfig("small", "org/target", "org/draft", "draft_model", 4, VerifyRule.REJECTION)
HOURLY = 'cron = "@hourly"\ndoes = ["export"]\ntargets = ["out"]\n'
FILE = '[schedule.targets.out]\nkind = "file"\nformat = "vllm"\nendpoint = "letters"\npath = "{}"\n'


def endpoint(name: str, more: str = "") -> str:
    return (
        f'[endpoints.{name}]\ntarget = "t"\nserved_models = ["{name}"]\nmatch = {{ model = "{name}" }}\n'
        f'loads = [{{ concurrency = 4 }}]\nserving_engine = "vllm"\n{more}\n'
        f'[[endpoints.{name}.candidates]]\nname = "k4"\nproposer = "ngram"\nnum_speculative_tokens = 4\n'
    )


@pytest.fixture
def store(new_database: Callable[[str], str]) -> Iterator[Store]:
    """Endpoint letters is ENABLE, on evidence of an hour ago."""
    with Store.open(new_database("sqlite")) as opened:
        enable(opened, "letters")
        yield opened


def enable(store: Store, name: str, *, engine: str = "vllm/0.32.0", first: int = 1) -> None:
    now, lines = datetime.now(UTC), range(first, first + 2)
    store.save_fingerprints([replace(examples.config(), config=DRAFT)])
    block = examples.block(f"b{first}", lines)
    records = [structs.replace(examples.record(line, name), event_time=now - timedelta(hours=1)) for line in lines]
    save_block(store, replace(block, block=structs.replace(block.block, endpoint=name)), records)
    decision = examples.decision(Verdict.ENABLE, endpoint=name)
    tests = tuple(replace(test, unit="window") for test in decision.tests)
    store.append_decisions([replace(decision, config=DRAFT, decided_at=now, engine=engine, tests=tests)])


def configure(folder: Path, store: Store, *parts: str, job: str = HOURLY) -> Config:
    url = store.engine.url.render_as_string(hide_password=False)
    return config_of(folder, url, job, endpoint("letters"), *parts)


def kill(store: Store, name: str = "letters") -> int:
    order = Override(0, name, "", None, Verdict.DISABLE, "incident 7", "ada", datetime.now(UTC))
    return store.add_override(order)


def test_a_file_is_replaced_when_the_export_changes_and_only_then(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "speculation.json"
    scheduler = scheduler_of(configure(tmp_path, store, FILE.format(out)), store)
    assert scheduler.run_once()
    assert json.loads(out.read_text(encoding="utf-8"))["num_speculative_tokens"] == 4
    written = out.stat().st_ino
    assert scheduler.run_once()
    assert out.stat().st_ino == written, "an equal export leaves the file as it is"
    number = kill(store)
    assert scheduler.run_once()
    assert json.loads(out.read_text(encoding="utf-8")) is None
    store.clear_override(Clearing(number, "mended", "ada", datetime.now(UTC)))
    assert scheduler.run_once()
    assert json.loads(out.read_text(encoding="utf-8"))["num_speculative_tokens"] == 4


def test_an_override_reaches_the_target_long_before_the_job_s_next_time(store: Store, tmp_path: Path) -> None:
    out, stopped = tmp_path / "speculation.json", threading.Event()
    yearly = HOURLY.replace("@hourly", "0 0 1 1 *")
    scheduler = scheduler_of(configure(tmp_path, store, FILE.format(out), job=yearly), store)
    thread = threading.Thread(target=scheduler.run, args=(stopped,))
    thread.start()
    try:
        wait_for(lambda: out.exists() and "org/draft" in out.read_text(encoding="utf-8"))
        kill(store)
        wait_for(lambda: out.read_text(encoding="utf-8").strip() == "null")
    finally:
        stopped.set()
        thread.join()


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def deployed(tmp_path: Path) -> tuple[Path, Path]:
    """A repository with one commit, and a bare clone of it."""
    origin, clone = tmp_path / "origin", tmp_path / "clone.git"
    origin.mkdir()
    git(origin, "init", "--quiet", "--bare", "--initial-branch", "main")
    seed = tmp_path / "seed"
    git(tmp_path, "clone", "--quiet", str(origin), str(seed))
    (seed / "README").write_text("deployments\n", encoding="utf-8")
    git(seed, "add", "README")
    person = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    git(seed, *person, "commit", "--quiet", "--message", "Begin")
    git(seed, "push", "--quiet", "origin", "HEAD:main")
    git(tmp_path, "clone", "--quiet", "--bare", str(origin), str(clone))
    return origin, clone


def git_target(clone: Path, remote: str = 'remote = "origin"\n') -> str:
    return (
        '[schedule.targets.out]\nkind = "git"\nformat = "vllm"\nendpoint = "letters"\n'
        'path = "speculation/letters.json"\n'
        f'repository = "{clone}"\n{remote}'
    )


def test_a_branch_gets_a_commit_for_each_change_with_its_reason(
    store: Store, tmp_path: Path, deployed: tuple[Path, Path]
) -> None:
    origin, clone = deployed
    scheduler = scheduler_of(configure(tmp_path, store, git_target(clone)), store)
    for _ in range(2):
        assert scheduler.run_once()
    assert git(origin, "rev-list", "--count", "main") == "2", "one change, one commit"
    assert "small: on, 4 tokens, decision 1" in git(origin, "log", "-1", "--format=%B", "main")
    assert json.loads(git(origin, "show", "main:speculation/letters.json"))["model"] == "org/draft"
    assert git(origin, "show", "main:README") == "deployments", "the rest of the tree stays"
    kill(store)
    assert scheduler.run_once()
    assert "incident 7" in git(origin, "log", "-1", "--format=%B", "main")
    assert git(origin, "show", "main:speculation/letters.json") == "null"


def test_others_may_push_to_the_branch_meanwhile(store: Store, tmp_path: Path, deployed: tuple[Path, Path]) -> None:
    origin, clone = deployed
    scheduler = scheduler_of(configure(tmp_path, store, git_target(clone)), store)
    assert scheduler.run_once()
    seed = tmp_path / "seed"
    git(seed, "pull", "--quiet", "origin", "main")
    (seed / "README").write_text("more\n", encoding="utf-8")
    git(
        seed, "-c", "user.name=ada", "-c", "user.email=a@example.org", "commit", "--quiet", "--all", "--message", "More"
    )
    git(seed, "push", "--quiet", "origin", "HEAD:main")
    kill(store)
    assert scheduler.run_once()
    assert git(origin, "show", "main:README") == "more"
    assert git(origin, "show", "main:speculation/letters.json") == "null"


def test_a_target_that_fails_is_tried_again_and_says_why(store: Store, tmp_path: Path) -> None:
    config = configure(tmp_path, store, git_target(tmp_path / "nowhere"))
    assert scheduler_of(config, store).run_once()
    (delivery,) = store.deliveries()
    assert (delivery.state, delivery.last_error) == ("pending", "Git fetch")
    with pytest.raises(ConfigError, match="nowhere"):
        require_target(config.schedule.kept["out"])


@dataclass
class Cluster:
    """What Kubernetes' API does with server-side apply of a ConfigMap: an equal one keeps its version."""

    data: dict[str, str] | None = None
    version: int = 0
    calls: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    port: int = 0


@contextmanager
def kubernetes() -> Iterator[Cluster]:
    cluster = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send(200 if cluster.data is not None else 404)

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            headers = self.headers["Authorization"], self.headers["Content-Type"]
            cluster.calls.append((self.command, self.path, *headers))
            if body["data"] != cluster.data:
                cluster.data, cluster.version = body["data"], cluster.version + 1
            self.send(200)

        def send(self, status: int) -> None:
            body = json.dumps({"metadata": {"resourceVersion": str(cluster.version)}}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    cluster.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_config_map_is_applied_with_the_service_account(store: Store, tmp_path: Path) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("secret-token\n", encoding="utf-8")
    (account / "namespace").write_text("models", encoding="utf-8")
    with kubernetes() as cluster:
        target = (
            '[schedule.targets.out]\nkind = "config_map"\nformat = "vllm"\nendpoint = "letters"\nconfig_map = "spec"\n'
            f'key = "letters.json"\napi_url = "http://127.0.0.1:{cluster.port}"\naccount_folder = "{account}"\n'
        )
        scheduler = scheduler_of(configure(tmp_path, store, target), store)
        for _ in range(2):
            assert scheduler.run_once()
        assert cluster.version == 1
        kill(store)
        assert scheduler.run_once()
    assert cluster.data == {"letters.json": "null\n"}
    path = "/api/v1/namespaces/models/configmaps/spec?fieldManager=shadowspec&force=true"
    assert cluster.calls[0] == ("PATCH", path, "Bearer secret-token", "application/apply-patch+yaml")


def test_a_page_has_the_state_of_now_and_nothing_else_is_served(store: Store, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    page = f'[schedule.targets.flags]\nkind = "http"\nformat = "flagd"\n[schedule]\nmetrics_address = "{address}"\n'
    config = configure(tmp_path, store, page, job='cron = "@daily"\ndoes = ["gate"]\n')
    renderers = export_renderers(config, config.schedule.pages.values(), store)
    with serving(VerdictMetrics(store, config.terms), renderers, address):
        answer = urlopen(f"http://{address}/exports/flags")
        assert answer.headers["Content-Type"] == "application/json"
        assert set(json.load(answer)["flags"]["letters.num_speculative_tokens"]["variants"]) == {"off", "k4"}
        kill(store)
        url = f"http://{address}/exports/flags"
        wait_for(lambda: json.load(urlopen(url))["flags"]["letters.speculation"]["targeting"] == {})
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"http://{address}/exports/others")
        assert b"shadowspec_check" in urlopen(f"http://{address}/metrics").read()


def test_an_endpoint_that_cannot_be_exported_holds_no_other_one_up(store: Store, tmp_path: Path) -> None:
    """One's verdict is for another engine, and the other's ENABLE is killed: the routes of both are written."""
    enable(store, "code", engine="shadowspec-torch/0.1", first=11)
    out = tmp_path / "routes.yaml"
    pools = "[endpoints.{0}.pools]\nspeculative = '{0}-fast:80'\nplain = '{0}-plain:80'\n"
    target = (
        f'[schedule.targets.out]\nkind = "file"\nformat = "envoy"\npath = "{out}"\notherwise = "router:80"\n'
        + pools.format("letters") + endpoint("code", pools.format("code")).replace('serving_engine = "vllm"', "")
    )  # fmt: skip
    scheduler = scheduler_of(configure(tmp_path, store, target), store)
    assert scheduler.run_once()
    assert '"cluster": "shadowspec-letters-speculative"' in out.read_text(encoding="utf-8")
    kill(store)
    assert scheduler.run_once()
    text = out.read_text(encoding="utf-8")
    assert "speculative" not in text
    assert '"cluster": "shadowspec-code-plain"' in text


@pytest.mark.parametrize(
    ("job", "parts", "says"),
    [
        ('cron = "@daily"\ndoes = ["export"]\n', "", "a job that exports needs some"),
        (HOURLY, "", "there is no target 'out'"),
        (HOURLY.replace('"export"', '"gate", "export"'), FILE.format("x"), "does only that"),
        (HOURLY, FILE.format("x").replace("vllm", "vlm"), "did you mean vllm"),
        (HOURLY, FILE.format("x").replace('"file"', '"fil"'), "file, git, config_map, http"),
        (HOURLY, FILE.format("x").replace('"file"', '"http"'), "path"),
        (HOURLY, git_target(Path("x")).replace("speculation/", "../"), "within the repository"),
        ('cron = "@daily"\ndoes = ["gate"]\n', FILE.format("x").replace("file", "http").replace('path = "x"\n', ""),
         "metrics_address"),
    ],
)  # fmt: skip
def test_what_cannot_be_configured(store: Store, tmp_path: Path, job: str, parts: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        configure(tmp_path, store, parts, job=job)
