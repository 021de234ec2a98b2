"""`shadowspec live` on real sockets and a real Postgres, up to what `check`, `export` and reports say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kernels.benchmarks.pools import PoolWorld, draw_windows
from shadowspec.config import load_config
from shadowspec.live.guard import windows_to_alarm
from shadowspec.live.pressure import Measure, windows_to_pressure
from shadowspec.rollout.endpoint_run import advance_rollouts
from shadowspec.store import RoleKind, Store
from shadowspec.types import (
    Composition,
    EvidenceSummary,
    Pool,
    SpeculationConfig,
    Stage,
    TestResult,
    Verdict,
    VerifyRule,
)
from shadowspec.types.settings import GuardPolicy
from tests.cli_process import Result, run_command
from tests.servers.metric_server import Production, producing
from tests.services import PATIENCE_S
from tests.store import examples
from tests.store.saving import save_block

PROMISE = 0.6
LABELS = {"prompt_class": "chat", "sampling_regime": "greedy"}
SLICE = "prompt_class=chat,sampling_regime=greedy"
DRAFT = SpeculationConfig("draft", "target", "draft", "draft_model", 4, VerifyRule.REJECTION)
CONFIG = """\
[database]
url = "{url}"
[endpoints.chat]
target = "target"
served_models = ["m"]
loads = [{{ concurrency = 4 }}]
[endpoints.chat.live]
metrics_urls = {urls}
timeout_s = 2.0
interval_s = 1.0
run_length = 1000
[[endpoints.chat.candidates]]
name = "draft"
draft = "draft"
num_speculative_tokens = 4
"""
Shell = Callable[..., Result]


@pytest.fixture
def production() -> Iterator[Production]:
    watched = Production()
    with producing(watched):
        yield watched


@pytest.fixture
def shell(
    new_database: Callable[[str], str],
    production: Production,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Shell:
    """The command line in a folder whose endpoint chat is enabled at 60% and read from the replica."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHADOWSPEC_DATABASE_URL", raising=False)
    url = new_database("postgres")
    Path("shadowspec.toml").write_text(CONFIG.format(url=url, urls=json.dumps([production.url])), encoding="utf-8")
    now = datetime.now(UTC)
    with Store.open(url) as store:
        store.save_fingerprints([replace(examples.config(), config=DRAFT)])
        measured = examples.block("b", range(1, 3))
        block = replace(measured, block=structs.replace(measured.block, slice_key=SLICE))
        records = [
            structs.replace(examples.record(line), event_time=now, slice_key=SLICE, labels=LABELS, sampling_rate=1.0)
            for line in (1, 2)
        ]
        save_block(store, block, records)
        tests = (TestResult("speedup", "pass", 1.3, 1.2, 1.5, 1.05, 0.003, "window", 60, 27),)
        decision = replace(
            examples.decision(Verdict.ENABLE),
            config=DRAFT,
            decided_at=now,
            engine="vllm/0.32.0",
            tests=tests,
            watch=examples.watched(drift_acceptance=0.4, advisory_acceptance=PROMISE),
            verdict_since=now - timedelta(hours=1),
            evidence=EvidenceSummary(newest_evidence=now),
            composition=Composition(is_named=True),
        )
        store.append_decisions([decision])

    def run(*arguments: str) -> Result:
        return run_command(monkeypatch, capsys, *arguments)

    return run


def read(shell: Shell) -> dict[str, Any]:
    (entry,) = shell("live", "--json").document["endpoints"]
    return dict(entry)


@pytest.mark.integration
def test_production_s_load_weighs_the_loads_of_the_evidence(shell: Shell, production: Production) -> None:
    """Read by `live`, said by check, report and gate: 2, 4 and 40 requests at once, of which 4 were measured."""
    assert "Production's load is not measured" in shell("check", "-e", "chat", "--verbose").out
    for running in (1, 0, 2, 4, 40):  # the first reading begins the counting
        production.running, production.waiting, production.kv_use = running, running // 2, running / 50
        production.preemptions = int(running > 10)
        production.serve(drafts=1_000, rate=0.7)
        read(shell)
    found = shell("check", "-e", "chat", "--json").document["loads"]
    assert found["words"] == "on up to 4, not measured above"
    assert found["demand"]["readings"] == {"0": 1, "2": 1, "4": 1, "40": 1}
    assert found["demand"]["covered_share"] == pytest.approx(6 / 46)
    assert [each["factor"] for each in found["demand"]["speedups"]] == [1.0, 1.5, 2.0]
    assert found["demand"]["pressure"] == {
        "kv_use_median": 0.04,
        "kv_use_p95": 0.8,
        "kv_use_highest": 0.8,
        "waiting_p95": 20,
        "waiting_highest": 20,
        "preemptions_per_thousand": 25.0,
    }
    memory = (
        "memory: KV cache in use 4% (median), 80% (95%), 80% (highest); 20 requests wait (95%), 20 at most; "
        "25 preemptions per thousand requests"
    )
    assert memory in shell("report", "--format", "md").out.replace("\\", "")
    said = "to cover the rest, add load 40 to endpoints.chat.loads"
    assert said in (checked := shell("check", "-e", "chat", "--verbose").out)
    assert memory in checked
    assert said in shell("report", "--format", "md").out
    shell("report", "--out", "report.html")
    assert said in Path("report.html").read_text(encoding="utf-8")
    (endpoint,) = shell("report", "--json").document["endpoints"]
    assert endpoint["loads"] == found
    assert "by the verdicts: on at batch sizes up to 4, off above" in shell("export", "--format", "vllm").err


@pytest.mark.integration
def test_a_server_short_of_memory_is_switched_off(shell: Shell, production: Production) -> None:
    """A fifth of the requests is preempted, while the draft accepts what was promised."""
    production.kv_use, production.waiting, production.preemptions = 0.5, 0, 0
    read(shell)
    stated = windows_to_pressure(0.2, Measure.PREEMPTED, 0.01, GuardPolicy(run_length=1_000))
    assert stated is not None
    production.kv_use, production.waiting = 0.99, 12
    for _ in range(stated - 1):
        production.serve(drafts=1_000, rate=0.7, requests=100)
        production.preemptions += 20
        entry = read(shell)
        assert entry["override_id"] is None
    (replica,) = entry["replicas"]
    window, pressure = replica["window"], replica["pressure"]
    assert (window["kv_use"], window["num_waiting"], window["num_preemptions"]) == (0.99, 12, 20)
    assert (pressure["measure"], pressure["limit"], pressure["share"]) == ("preempted_requests", 0.01, 0.2)
    assert (pressure["num_windows"], pressure["threshold"]) == (stated - 1, 1_000.0)
    delays = pressure["windows_to_alarm"]
    assert delays["at_twice_the_limit"] > stated >= delays["at_everything"] > 0
    production.serve(drafts=1_000, rate=0.7, requests=100)
    production.preemptions += 20
    said = shell("live").out
    name = production.url.removeprefix("http://")
    assert f"{name}: 99.0% of the KV cache in use, 12 waiting, 20 preempted; since ENABLE 20.0% of its requests" in said
    assert "sets DISABLE: live alarm: memory pressure since ENABLE" in said
    assert "ALARM" in said
    checked = shell("check", "-e", "chat")
    assert (checked.code, "memory pressure since ENABLE" in checked.out) == (1, True)
    assert flags(shell)["defaultVariant"] == "off"


def flags(shell: Shell) -> dict[str, Any]:
    flag = shell("export", "--format", "flagd").document["flags"]["chat.speculation"]
    return dict(flag)


@pytest.mark.integration
def test_a_bad_draft_in_production_is_switched_off(shell: Shell, production: Production) -> None:
    """Good windows, a restart in the middle, a reading that fails; then a bad draft, up to where all is off."""
    assert shell("check", "-e", "chat").code == 0
    assert flags(shell)["targeting"] != {}, "on for somebody"
    assert read(shell)["replicas"][0]["outcome"] == "first"

    # 1. Good windows, and a server that begins anew.
    for turn in range(6):
        if turn == 3:
            production.answer = (503, {}, b"")
            assert shell("live").code == 5, "no replica could be read"
            production.answer = None
            production.restart(started_at=datetime.now(UTC).timestamp())
        production.serve(drafts=1_000, rate=0.7)
        entry = read(shell)
        replica = entry["replicas"][0]
        assert replica["window"]["num_drafts"] == 1_000, "nothing is counted twice, nothing made up"
        assert replica["outcome"] == ("reset" if turn == 3 else "window")
        assert replica["window"]["num_failed_scrapes"] == (1 if turn == 3 else 0)
        assert entry["override_id"] is None
    assert entry["promise"]["rate"] == PROMISE
    assert replica["since_enable"]["rate"] == pytest.approx(0.7)

    # 2. A bad draft, as deep as another: other labels, another series.
    production.restart(depth=6, started_at=datetime.now(UTC).timestamp())
    stated = windows_to_alarm(PROMISE, 0.05, GuardPolicy(run_length=1_000))
    assert stated == entry["promise"]["windows_to_alarm"]["at_zero"] + 1
    number = 0
    while entry["override_id"] is None and number < stated:
        production.serve(drafts=1_000, rate=0.05)
        entry, number = read(shell), number + 1
    assert entry["override_id"] is not None
    assert number >= 5

    # 3. Everything that acts on verdicts says off.
    checked = shell("check", "-e", "chat")
    assert checked.code == 1
    assert "live alarm" in checked.out
    assert flags(shell)["targeting"] == {}
    assert flags(shell)["defaultVariant"] == "off"
    for engine in ("vllm", "sglang"):
        assert "draft_model" not in shell("export", "--format", engine).out
    report = shell("report", "--format", "md", "--out", "report.md")
    assert report.code == 0
    assert "live alarm: at least 60.0% was promised at ENABLE" in Path("report.md").read_text(encoding="utf-8")
    since = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    period = shell("report", "--format", "json", "--since", since, "--out", "period.json")
    assert period.code == 0, period.err
    changes = json.loads(Path("period.json").read_text(encoding="utf-8"))["changes"]
    assert [each["kind"] for each in changes if "live guard" in each["why"]] == ["alarm"]

    # 4. Cleared, with a good draft: on again, and quiet.
    shell("override", "clear", str(entry["override_id"]), "--reason", "mended", "--author", "ada")
    production.restart(started_at=datetime.now(UTC).timestamp())
    for _ in range(3):
        production.serve(drafts=1_000, rate=0.7)
        assert read(shell)["override_id"] is None
    assert shell("check", "-e", "chat").code == 0


@pytest.mark.integration
def test_what_it_prints(shell: Shell, production: Production) -> None:
    shell("live")
    production.serve(drafts=1_000, rate=0.7)
    shown = shell("live")
    assert shown.code == 0
    for said in ("window", "1,000", "70.0%", "60.0%", "70.0% in 1"):
        assert said in shown.out
    production.answer = (302, {"Location": "http://elsewhere.example/"}, b"")
    refused = shell("live")
    assert refused.code == 5
    assert "points to elsewhere.example" in refused.out
    assert "points to elsewhere.example" in refused.err
    found = shell("doctor", "--json").document["checks"]
    (entry,) = [each for each in found if each["check"] == "live chat"]
    assert (entry["ok"], "points to elsewhere.example" in entry["found"]) == (False, True)
    production.answer = None
    (entry,) = [each for each in shell("doctor", "--json").document["checks"] if each["check"] == "live chat"]
    assert entry["ok"]
    assert entry["found"].startswith(
        "1 replica of vllm read; 1 count drafts; memory pressure is not watched on 127.0.0.1:"
    )
    production.preemptions = 0
    (entry,) = [each for each in shell("doctor", "--json").document["checks"] if each["check"] == "live chat"]
    assert (entry["ok"], entry["found"]) == (True, "1 replica of vllm read; 1 count drafts")


@pytest.mark.integration
def test_a_page_that_does_not_show_the_acceptance_is_said_everywhere(shell: Shell, production: Production) -> None:
    """As of a version that counts drafted and accepted tokens and no drafts."""
    production.serve(drafts=1_000, rate=0.05)
    page = "".join(f"{line}\n" for line in production.page().splitlines() if "num_drafts" not in line)
    production.answer = (200, {}, page.encode())
    name = production.url.removeprefix("http://")
    said = f"{name}: the promise of this ENABLE is not watched: its page lacks counters that first_position"
    assert said in shell("live").out
    assert "its page lacks counters" in read(shell)["replicas"][0]["unwatched"]
    checked = shell("check", "-e", "chat")
    assert (checked.code, said in checked.err) == (0, True)
    (cause,) = shell("check", "-e", "chat", "--json").document["unwatched"].items()
    assert said.startswith(f"{cause[0]}: ")
    assert "its page lacks counters" in cause[1]
    found = [each for each in shell("doctor", "--json").document["checks"] if each["check"] == "live chat"]
    assert [(each["ok"], "is not watched" in each["found"]) for each in found] == [(False, True)]
    production.answer = None
    assert read(shell)["replicas"][0]["unwatched"] is None
    assert "not watched" not in shell("check", "-e", "chat").err
    assert shell("check", "-e", "chat", "--json").document["unwatched"] == {}
    (entry,) = [each for each in shell("doctor", "--json").document["checks"] if each["check"] == "live chat"]
    assert entry["ok"]


@pytest.mark.integration
def test_one_replica_s_impossible_counter_costs_no_other_its_reading(shell: Shell, production: Production) -> None:
    broken, config = Production(), Path("shadowspec.toml")
    with producing(broken):
        both = f'["{production.url}", "{broken.url}"]'
        text = config.read_text(encoding="utf-8")
        config.write_text(text.replace(json.dumps([production.url]), both), encoding="utf-8")
        assert shell("live").code == 0
        production.serve(drafts=1_000, rate=0.7)
        broken.tokens = 2**64
        once = shell("schedule", "--once")
        name = broken.url.removeprefix("http://")
        said = f"live evidence of chat: {name}: vllm:generation_tokens_total is not a count"
        assert (once.code, said in once.err) == (5, True)
        with Store.open(load_config(config).database_url) as store:
            (window,) = store.live_windows("chat")
        assert (f"http://{window.replica}", window.counts.num_drafts) == (production.url, 1_000)


@pytest.mark.integration
def test_a_plain_pool_is_the_control_of_a_partial_rollout(shell: Shell, production: Production, tmp_path: Path) -> None:
    """From both pools' pages to the comparison that `live` shows and by which `gate` moves the stage back."""
    plain = Production(depth=None)
    with producing(plain):
        config = Path("shadowspec.toml")
        named = f'plain_metrics_urls = ["{plain.url}"]\ntimeout_s = 2.0'
        text = config.read_text(encoding="utf-8").replace("timeout_s = 2.0", named)
        config.write_text(text + "[endpoints.chat.gate.rollout]\nmax_slowdown = 0.01\n", encoding="utf-8")
        since = datetime.now(UTC) - timedelta(days=3)
        with Store.open(load_config(config).database_url) as store:
            store.append_rollouts([replace(examples.rollout(), fingerprint="fp", since=since, alarms=())])
        for _ in range(2):
            shown = shell("live")
        assert f"{plain.url.removeprefix('http://')}, plain" in shown.out.replace("\n", "")
        assert "control hold: the pools are not compared yet: no interval is over" in shown.out
        with Store.open(load_config(config).database_url) as store:
            assert {each.replica: each.pool for each in store.live_windows("chat")} == {
                production.url.removeprefix("http://"): Pool.SPECULATIVE,
                plain.url.removeprefix("http://"): Pool.PLAIN,
            }
            drawn = list(draw_windows(PoolWorld("drawn", "", speedup=0.8, days=2.0), seed=1))
            shift = since - drawn[0].began_at
            moved = [replace(each, began_at=each.began_at + shift, ended_at=each.ended_at + shift) for each in drawn]
            with store.live_session("chat") as session:
                session.keep([], moved)
        (entry,) = shell("live", "--json").document["endpoints"]
        (control,) = entry["controls"]
        assert {each["replica"]: each["pool"] for each in entry["replicas"]} == {
            production.url.removeprefix("http://"): "speculative",
            plain.url.removeprefix("http://"): "plain",
        }
        assert (control["load"], control["verdict"]) == ({"concurrency": 4}, "revert")
        assert control["promised_speedup"] == 1.2
        end_to_end = control["comparisons"][0]
        assert (end_to_end["name"], end_to_end["tolerated"]) == ("end_to_end_s", pytest.approx(1 / 1.01))
        assert end_to_end["lower"] < 0.8 < end_to_end["upper"] < 0.9
        checks = shell("doctor", "--json").document["checks"]
        (entry,) = [each for each in checks if each["check"] == "live chat"]
        assert entry["found"].startswith("2 replicas of vllm read; 1 count drafts; control: 1 plain replica; memory")
        plain.depth, plain.per_pos, plain.drafts = 4, [1] * 4, 1
        checks = shell("doctor", "--json").document["checks"]
        (entry,) = [each for each in checks if each["check"] == "live chat"]
        assert "of plain_metrics_urls, but drafts; start it without speculation" in entry["found"]
        endpoint = load_config(config).endpoints["chat"]
        with Store.open(load_config(config).database_url) as store:
            (step,) = advance_rollouts(store, "chat", endpoint.policy, endpoint.rollout, datetime.now(UTC))
        assert (step.rollout.stage, step.rollout.reason_code) == (Stage.SHADOW, "control")
        assert "production is worse with speculation: end-to-end time 0.8" in step.rollout.reason
        assert shell("live", "--json").document["endpoints"][0]["controls"] == []


@pytest.mark.integration
def test_what_is_not_configured_is_said(shell: Shell) -> None:
    assert "no endpoint 'sql' is configured" in shell("live", "-e", "sql").err
    path = Path("shadowspec.toml")
    text = path.read_text(encoding="utf-8")
    begin, end = text.index("[endpoints.chat.live]"), text.index("[[endpoints")
    path.write_text(text[:begin] + text[end:], encoding="utf-8")
    missing = shell("live", "-e", "chat")
    assert (missing.code, "endpoints.chat.live: is missing" in missing.err) == (2, True)


@pytest.mark.all
@pytest.mark.integration
def test_the_scheduler_reads_too(shell: Shell, production: Production) -> None:
    """`schedule --once` reads once more, without any job; --list names what is read."""
    shell("live")
    production.serve(drafts=1_000, rate=0.7)
    assert shell("schedule", "--once").code == 0
    entry = read(shell)
    assert entry["replicas"][0]["since_enable"]["num_windows"] == 1
    listed = shell("schedule", "--list", "--json").document
    assert [each["endpoint"] for each in listed["live"]] == ["chat"]
    assert listed["live"][0]["interval_s"] == 1.0


@pytest.mark.integration
def test_a_scheduler_that_leads_reads_again_and_again(
    shell: Shell, production: Production, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its own interval, and with a role of kind `scheduler` in the database."""
    import threading
    import time

    from shadowspec.app.written_reports import period_settings
    from shadowspec.config import load_config
    from shadowspec.rollout.endpoint_run import GatePolicies
    from shadowspec.scheduler.leader import Scheduler

    config, stopped = load_config(tmp_path / "shadowspec.toml", {}), threading.Event()
    with Store.open(config.database_url) as store:
        policies = GatePolicies({"chat": config.endpoints["chat"].policy}, {})
        scheduler = Scheduler(store, config.schedule, {}, policies, period_settings(config), config.live_jobs(), {})
        thread = threading.Thread(target=scheduler.run, args=(stopped,))
        thread.start()
        deadline = time.monotonic() + PATIENCE_S
        while len(store.live_windows("chat")) < 3 and time.monotonic() < deadline:
            production.serve(drafts=100, rate=0.7)
            time.sleep(0.3)
        stopped.set()
        thread.join(PATIENCE_S)
        found = store.live_windows("chat")
    assert len(found) >= 3
    assert all(0.5 < each.seconds < PATIENCE_S for each in found)


@pytest.mark.all
@pytest.mark.integration
def test_the_gates_role_may_read_and_order(shell: Shell, production: Production, tmp_path: Path) -> None:
    import sqlalchemy

    from shadowspec.config import load_config
    from shadowspec.live.watch import watch

    url = load_config(tmp_path / "shadowspec.toml", {}).database_url
    owner = sqlalchemy.make_url(url)
    role = f"live_{owner.database}"[:60]
    with Store.open(url) as store:
        engine = sqlalchemy.create_engine(owner, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'x'"))
        engine.dispose()
        store.grant(RoleKind.GATE, role)
    render_as_string = owner.set(username=role, password="x").render_as_string(hide_password=False)
    text = (tmp_path / "shadowspec.toml").read_text(encoding="utf-8")
    (tmp_path / "shadowspec.toml").write_text(text.replace(url, render_as_string), encoding="utf-8")
    for _ in range(16):
        assert shell("live").code == 0
        production.serve(drafts=1_000, rate=0.0)
    with Store.open(render_as_string) as store:
        assert [each.override.author for each in store.overrides("chat")] == ["live guard"]
        watched = watch(store, "chat", ["a"], None, GuardPolicy(), datetime.now(UTC))
    assert watched.promise is None
