"""`shadowspec check` as CI runs it: exit codes, files, annotations, overrides, and what it may import."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import NullPool, make_url

from shadowspec.store import RoleKind, Store
from shadowspec.types import Stage
from tests.builders.shop import URL, Shop
from tests.rollout.check.worlds import CHAT, CODE, config, decision, fingerprint
from tests.store import examples

IN_PROCESS = "shadowspec-torch/0.1.0 torch/2.13.0 transformers/5.23.0"
CHECKOUT = Path(__file__).resolve().parents[3]


def test_each_verdict_has_its_exit_code(shop: Shop) -> None:
    for verdict, code in (("HOLD", 3), ("ENABLE", 0), ("DISABLE", 1)):
        shop.decide([decision(verdict)])
        result = shop.run("--endpoint", "chat")
        assert result.code == code, result.err
        assert result.out.startswith(f"{verdict} chat: ")
    shop.decide([decision("HOLD")])
    assert shop.run("-e", "chat", "--on-hold", "pass").code == 0
    warned = shop.run("-e", "chat", "--on-hold", "warn")
    assert (warned.code, "warning: HOLD" in warned.err) == (0, True)


def test_a_reader_sees_what_the_answer_rests_on(shop: Shop) -> None:
    shop.measure(CODE, 3, timedelta(hours=5))
    shop.measure(CHAT, 1, timedelta(hours=5))
    first, second, third = shop.decide([decision(), decision("HOLD", CODE), decision("DISABLE", CHAT)])
    brief = shop.run("-e", "chat")
    assert brief.code == 1
    assert len(brief.out.splitlines()) <= 25
    assert brief.out.startswith("DISABLE chat: speculation with draft must stay off (prompt_class=chat, ")
    assert "Disable for a reason." in brief.out
    assert "switches it on" not in brief.out, "the endpoint as a whole is ENABLE, and the answer is not"
    result = shop.run("-e", "chat", "--verbose")
    assert result.code == 1
    for said in (
        "DISABLE chat: speculation with draft must stay off (prompt_class=chat, sampling_regime=high)",
        f"config draft, fingerprint {fingerprint('draft')[:12]}, measured with vllm/0.32.0",
        "whole endpoint: ENABLE (must be ENABLE)",
        "speedup 1.30\u00d7 [1.10\u00d7, 1.60\u00d7], since 2026-03-02 06:30 UTC, evidence age 5 hours, traffic 100.0%",
        f"traffic 25.0%, decision {second}",
        f"traffic 75.0%, decision {third}",
        f"decision {first}",
        "disable for a reason",
    ):
        assert said in result.out
    document = shop.run("-e", "chat", "--json").document
    assert (document["schema_version"], document["outcome"], document["exit_code"]) == (1, "DISABLE", 1)
    assert [each["slice"].get("prompt_class") for each in document["findings"]] == [None, "code", "chat"]
    assert [each["is_blocking"] for each in document["findings"]] == [False, False, True]
    assert document["findings"][2]["loads"][0]["decision_id"] == second
    assert document["findings"][2]["traffic_share"] == 0.25
    assert 5 * 3600 <= document["findings"][0]["evidence_age_s"] < 6.1 * 3600


def test_what_is_asked_for_in_part(shop: Shop) -> None:
    shop.measure(CODE, 3)
    shop.measure(CHAT, 1)
    shop.decide([decision(), decision("HOLD", CODE), decision("ENABLE", CHAT)])
    assert shop.run("-e", "chat", "--slice", "prompt_class=code").code == 3
    assert shop.run("-e", "chat", "--slice", CHAT).code == 0
    assert shop.run("-e", "chat", "--load", "4").code == 0
    assert shop.run("-e", "chat", "--expect-fingerprint", fingerprint("draft")[:16]).code == 0
    assert shop.run("-e", "chat", "--model-revision", "weights-a", "--expect-engine", "vllm").code == 0
    for refused in (["--expect-fingerprint", "0" * 64], ["--model-revision", "0" * 40], ["--expect-engine", "sglang"]):
        assert shop.run("-e", "chat", *refused).code == 4


def test_a_version_of_an_engine_may_be_given_in_part(shop: Shop) -> None:
    shop.decide([decision()])
    assert shop.run("-e", "chat", "--expect-engine", "vllm 0.32").code == 0
    refused = shop.run("-e", "chat", "--expect-engine", "vllm 0.3")
    assert refused.code == 4
    assert "its engine is vllm/0.32.0, not vllm 0.3" in " ".join(refused.err.split())


@pytest.mark.parametrize("named", [None, "shadowspec-torch"])
def test_no_verdict_of_the_engine_in_process_passes_for_one_that_serves(shop: Shop, named: str | None) -> None:
    if named is not None:
        path = shop.folder / "shadowspec.toml"
        plain = path.read_text(encoding="utf-8")
        path.write_text(plain.replace('target = "target"', f'target = "target"\nserving_engine = "{named}"', 1))
    with Store.open(URL) as store:
        store.save_fingerprints([config("draft", "c", engine=IN_PROCESS)])
    shop.decide([decision(revision="c", engine=IN_PROCESS)])
    held = shop.run("-e", "chat")
    assert held.code == 3
    assert "The verdicts on chat are for shadowspec-torch, which serves no clients. ENABLE: enable for a" in held.out
    (load,) = shop.run("-e", "chat", "--json").document["findings"][0]["loads"]
    assert (load["outcome"], load["verdict"], load["off_because"]) == ("HOLD", "ENABLE", "not_for_serving")
    assert shop.run("-e", "chat", "--expect-engine", "transformers").code == 3, "an engine that could serve"
    asked = shop.run("-e", "chat", "--expect-engine", "shadowspec-torch")
    assert asked.code == 0
    assert "is proven for shadowspec-torch only" in asked.out


@pytest.mark.parametrize(
    ("rollout", "code", "says"),
    [
        ({"stage": Stage.SHADOW, "share": 0.0}, 3, "its stage is shadow, which serves 0% of the traffic. ENABLE: "),
        ({"stage": Stage.PARTIAL, "share": 0.1}, 0, "is proven here, for 10% of the traffic"),
        ({"stage": Stage.BROAD, "share": 1.0, "depth_caps": {"": 2}}, 3, "The rollout is at fewer tokens"),
        ({"stage": Stage.BROAD, "share": 1.0}, 0, "is proven here\n"),
    ],
)
def test_a_stage_that_serves_nothing_is_no_enable(shop: Shop, rollout: dict[str, Any], code: int, says: str) -> None:
    shop.decide([decision()])
    stage = replace(examples.rollout(), endpoint="chat", fingerprint=fingerprint("draft"), depth_caps={"": 4})
    with Store.open(URL) as store:
        store.append_rollouts([replace(stage, **rollout)])
    found = shop.run("-e", "chat")
    assert (found.code, says in found.out) == (code, True), found.out
    assert shop.run("-e", "chat", "--json").document["served_share"] == (rollout["share"] if code == 0 else 0.0)


@pytest.mark.parametrize(("verdict", "code"), [("ENABLE", 0), ("DISABLE", 1)])
def test_what_another_engine_measured_is_held_as_soon_as_the_serving_one_is_named(
    shop: Shop, verdict: str, code: int
) -> None:
    """Whether the gate has looked since or not."""
    shop.decide([decision(verdict)])
    assert shop.run("-e", "chat").code == code
    path = shop.folder / "shadowspec.toml"
    plain = path.read_text(encoding="utf-8")
    path.write_text(plain.replace('target = "target"', 'target = "target"\nserving_engine = "sglang"', 1))
    held = shop.run("-e", "chat")
    assert held.code == 3
    assert "Latency was measured on vllm/0.32.0, and sglang serves." in held.out
    assert shop.run("-e", "chat", "--json").document["findings"][0]["loads"][0]["reason_code"] == "other_engine"
    path.write_text(plain.replace('target = "target"', 'target = "target"\nserving_engine = "vllm 0.32"', 1))
    assert shop.run("-e", "chat").code == code


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["-e", "chatt"], 2, "no endpoint 'chatt'; did you mean chat? (known: chat, idle)"),
        (["-e", "idle"], 4, "nothing has been measured yet"),
        (["-e", "chat", "--slice", "tier=gold"], 2, "its labels: prompt_class, sampling_regime"),
        (["-e", "chat", "--slice", "prompt_class=maths"], 4, "prompt_class=code, sampling_regime=greedy"),
        (["-e", "chat", "--load", "8"], 2, "its loads: 4"),
        (["-e", "chat", "--max-age", "soon"], 2, "invalid duration"),
        (["-e", "chat", "--on-hold", "perhaps"], 2, "perhaps"),
        (["-e", "chat", "--github"], 2, "GITHUB_STEP_SUMMARY is not set"),
        ([], 2, "--endpoint"),
    ],
)
def test_what_cannot_be_answered(shop: Shop, arguments: list[str], code: int, says: str) -> None:
    shop.decide([decision(), decision("HOLD", CODE)])
    result = shop.run(*arguments)
    assert result.code == code
    assert says in " ".join(result.err.split())
    assert result.out == ""


@pytest.mark.parametrize(
    ("verdict", "more", "closed", "code"),
    [
        ("ENABLE", [], ["stdout"], 0),
        ("HOLD", ["--json"], ["stdout"], 3),
        ("HOLD", ["--on-hold", "warn"], ["stdout", "stderr"], 0),
        ("DISABLE", ["--junit", "out/junit.xml"], ["stdout"], 1),
    ],
)
def test_a_reader_that_has_left_changes_no_verdict(
    shop: Shop, verdict: str, more: list[str], closed: list[str], code: int
) -> None:
    shop.decide([decision(verdict)])
    assert run_unread(shop, closed, "check", "-e", "chat", *more) == code
    assert (shop.folder / "out/junit.xml").exists() == ("--junit" in more)


@pytest.mark.parametrize("arguments", [["check", "-e", "idle"], ["override", "list", "--json"]])
def test_no_other_end_reads_as_a_verdict(shop: Shop, arguments: list[str]) -> None:
    """Of a reader that has left: of an error's message and of another command's result."""
    assert run_unread(shop, ["stdout", "stderr"], *arguments) == 141
    if arguments[0] == "check":
        assert run_unread(shop, ["stdout"], *arguments) == 4


def run_unread(shop: Shop, closed: list[str], *arguments: str) -> int:
    """The exit code of a command of which nobody reads these streams."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        streams = {name: writing if name in closed else subprocess.DEVNULL for name in ("stdout", "stderr")}
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(CHECKOUT), str(CHECKOUT / "kernels")))}
        command = [sys.executable, "-m", "shadowspec", *arguments]
        return subprocess.run(command, cwd=shop.folder, env=environment, check=False, **streams).returncode
    finally:
        os.close(writing)


def test_stale_evidence_is_refused(shop: Shop) -> None:
    shop.measure(CODE, 1, timedelta(hours=50))
    shop.decide([decision()])
    assert shop.run("-e", "chat").code == 0
    assert shop.run("-e", "chat", "--max-age", "3d").code == 0
    result = shop.run("-e", "chat", "--max-age", "2d")
    assert result.code == 4
    assert "Stale: the newest evidence is 2 days old" in result.out


def test_a_new_fingerprint_ends_the_old_one_s_word(shop: Shop) -> None:
    shop.measure(CODE, 9, timedelta(hours=3))
    shop.decide([decision("ENABLE")])
    assert shop.run("-e", "chat").code == 0
    shop.measure(CODE, 1, revision="b")
    shop.decide([decision("ENABLE"), decision("HOLD", revision="b")])
    assert shop.run("-e", "chat").code == 3
    assert shop.run("-e", "chat", "--expect-fingerprint", fingerprint("draft", "a")).code == 4


def test_an_override_counts_as_the_verdict(shop: Shop) -> None:
    shop.decide([decision()])
    order = ["set", "--endpoint", "chat", "--verdict", "DISABLE", "--reason", "incident 7", "--author", "ops"]
    done = shop.run(*order, command="override")
    assert done.code == 0, done.err
    result = shop.run("-e", "chat")
    assert result.code == 1
    assert "by ops: incident 7" in result.out


def test_hold_is_refused_on_a_disable_and_has_no_effect_where_it_came_first(shop: Shop) -> None:
    shop.decide([decision()])
    hold = ["set", "-e", "chat", "--verdict", "HOLD", "--reason", "incident 7", "--author", "ops"]
    assert shop.run(*hold, command="override").code == 0
    assert shop.run("-e", "chat").code == 3
    (number,) = shop.decide([decision("DISABLE")])
    assert shop.run("-e", "chat", "--on-hold", "pass").code == 1
    refused = shop.run(*hold, command="override")
    assert refused.code == 2
    assert f"DISABLE by decision {number}. An override makes a verdict only safer, and HOLD is weaker" in refused.err
    assert shop.run(*hold[:4], "DISABLE", *hold[5:], command="override").code == 0


@pytest.mark.parametrize(("verdict", "code"), [("DISABLE", 1), ("HOLD", 3)])
def test_an_override_of_a_slice_that_was_never_decided_counts(shop: Shop, verdict: str, code: int) -> None:
    shop.measure(CODE, 9)
    shop.decide([decision()])
    assert shop.run("-e", "chat").code == 0
    order = [
        "set",
        "-e",
        "chat",
        "--slice",
        "prompt_class=riddle",
        "--verdict",
        verdict,
        "--reason",
        "incident",
        "--author",
        "ops",
    ]
    refused = shop.run(*order, command="override")
    assert (refused.code, "give --allow-unseen" in refused.err) == (2, True)
    assert shop.run(*order, "--allow-unseen", command="override").code == 0
    result = shop.run("-e", "chat", "--junit", "junit.xml")
    assert result.code == code
    said = " ".join(result.out.split())
    assert "(override 1: prompt_class=riddle) verdict " in said
    assert "Override 1 by ops: incident." in said
    assert 'name="override 1: prompt_class=riddle"' in (shop.folder / "junit.xml").read_text()
    (finding,) = (each for each in shop.run("-e", "chat", "--json").document["findings"] if each["override_id"])
    assert (finding["slice"], finding["outcome"], finding["is_blocking"]) == ({"prompt_class": "riddle"}, verdict, True)


def test_junit_and_github_are_written_also_where_there_is_no_answer(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = shop.folder / "summary.md"
    summary.write_text("# Before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    result = shop.run("-e", "idle", "--junit", "out/junit.xml", "--github")
    assert result.code == 4
    assert '<error type="refused" message="nothing has been measured yet' in (shop.folder / "out/junit.xml").read_text()
    assert summary.read_text(encoding="utf-8").startswith("# Before\n## shadowspec check: UNUSABLE\n")
    assert result.out.startswith("::error title=shadowspec%3A idle::nothing has been measured yet")


def test_nothing_that_is_printed_acts_as_a_workflow_command(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(shop.folder / "summary.md"))
    evil = "tier=::add-mask::x\n::error::boo\r##[error]%0A"
    shop.measure(evil, 1)
    shop.decide([decision(), decision("DISABLE", evil)])
    result = shop.run("-e", "chat", "--github")
    assert result.code == 1
    lines = result.out.splitlines()
    stop = re.fullmatch("::stop-commands::([0-9a-f]{32})", lines[0])
    assert stop is not None
    end = lines.index(f"::{stop[1]}::")
    (annotation,) = lines[end + 1 :]
    assert annotation.startswith("::error title=shadowspec%3A chat%2C tier=%3A%3Aadd-mask%3A%3Ax\ufffd%3A%3Aerror")
    assert "\ufffd##[error]%250A" in annotation
    with_document = shop.run("-e", "chat", "--github", "--json")
    assert json.loads(with_document.out)["exit_code"] == 1
    assert with_document.err.startswith("::error title=")


def test_an_unwritable_place_is_an_error(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.decide([decision()])
    (shop.folder / "file").write_text("")
    assert shop.run("-e", "chat", "--junit", "file/junit.xml").code == 2
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(shop.folder / "file" / "summary.md"))
    assert shop.run("-e", "chat", "--github").code == 2


@pytest.fixture
def reader(postgres_url: str) -> Iterator[str]:
    """A role that may log in; dropped after the database on which it has rights."""
    engine = sqlalchemy.create_engine(postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    name = f"reader_{uuid.uuid4().hex[:8]}"
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
    yield name
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP ROLE {name}")


@pytest.mark.integration
def test_a_reader_s_rights_on_postgres_suffice(
    shop: Shop, reader: str, new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = replace(shop, url=new_database("postgres"))
    there.measure(CODE, 3, timedelta(hours=5))
    there.measure(CHAT, 97, timedelta(hours=5))
    with Store.open(there.url) as store:
        store.grant(RoleKind.READER, reader)
    there.decide([decision(), decision("DISABLE", CODE), decision("ENABLE", CHAT)])
    url = make_url(there.url).set(username=reader).render_as_string(hide_password=False)
    monkeypatch.setenv("SHADOWSPEC_DATABASE_URL", url)
    passed = there.run("-e", "chat", "--max-age", "7h", "--verbose")
    assert passed.code == 0, passed.err
    assert "traffic 3.0%" in passed.out
    assert there.run("-e", "chat", "--slice", CODE).code == 1
    monkeypatch.setenv("SHADOWSPEC_DATABASE_URL", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    lost = there.run("-e", "chat", "--junit", "junit.xml")
    assert lost.code == 5
    assert "<error" in (shop.folder / "junit.xml").read_text(encoding="utf-8")


PROBE = """
import sys
sys.argv = ["shadowspec", "check", "--endpoint", "chat", "--junit", "junit.xml", "--github"]
from shadowspec.cli import main
try:
    main()
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def test_it_starts_without_what_it_does_not_need(shop: Shop) -> None:
    """What makes it start fast; how fast, kernels/benchmarks/gate.py measures."""
    shop.decide([decision()])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(CHECKOUT), str(CHECKOUT / "kernels"))),
        "GITHUB_STEP_SUMMARY": str(shop.folder / "summary.md"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=shop.folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    unwanted = {"torch", "transformers", "streamlit", "pandas", "scipy", "numpy", "kafka", "re2", "alembic", "jinja2"}
    assert unwanted & set(done.stderr.split()) == set()
    assert URL.removeprefix("sqlite:///") in {path.name for path in shop.folder.iterdir()}
