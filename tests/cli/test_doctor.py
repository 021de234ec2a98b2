"""`shadowspec doctor` on what an operator writes wrong: schedule, receivers, scores."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from tests.builders.workspace import Workspace

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:apprise", "ignore:.*is deprecated and slated for removal:DeprecationWarning"
)

SCHEDULE = """
[schedule.jobs.weekly]
cron = "0 7 * * 1"
receivers = ["here", "mail", "chat"]
[schedule.receivers.here]
kind = "folder"
folder = "reports/weekly"
[schedule.receivers.mail]
kind = "email"
host = "mail.example.org"
sender = "shadowspec@example.org"
to = ["team@example.org"]
username = "shadowspec"
password_variable = "MAIL_PASSWORD"
[schedule.receivers.chat]
kind = "webhook"
url_file = "chat_url"
"""


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """One mail server whose name is known."""

    def resolve(host: str, *_: object, **__: object) -> list[object]:
        if host != "mail.example.org":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return []

    monkeypatch.setattr("shadowspec.scheduler.receivers.socket.getaddrinfo", resolve)


@pytest.fixture
def scheduled(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A whole schedule with which nothing is wrong."""
    workspace.migrate()
    path = workspace.folder / "shadowspec.toml"
    path.write_text(path.read_text(encoding="utf-8") + SCHEDULE, encoding="utf-8")
    (workspace.folder / "chat_url").write_text("json://127.0.0.1:9/hook", encoding="utf-8")
    monkeypatch.setenv("MAIL_PASSWORD", "of the mail server")
    return workspace


def wrong(workspace: Workspace, code: int) -> dict[str, Any]:
    """What is wrong, by the name of the check."""
    done = workspace.run("doctor", "--json")
    assert done.code == code, done.out
    return {each["check"]: each["found"] for each in done.document["checks"] if not each["ok"]}


def test_a_schedule_is_looked_over_and_nothing_is_sent_or_made(scheduled: Workspace) -> None:
    done = scheduled.run("doctor", "--json")
    assert done.code == 0, done.out
    found = {each["check"]: each["found"] for each in done.document["checks"]}
    assert found["schedule"].startswith("1 job; next due 20")
    assert [found[f"receiver {name}"] for name in ("here", "mail", "chat")] == ["of weekly"] * 3
    assert not (scheduled.folder / "reports").exists()
    assert "of the mail server" not in done.out


def test_without_a_schedule_there_is_nothing_to_check(workspace: Workspace) -> None:
    workspace.migrate()
    done = workspace.run("doctor", "--json")
    assert done.code == 0, done.out
    assert "no job is configured" in done.out
    assert "receiver" not in done.out


def test_how_the_engine_would_run_is_said(workspace: Workspace) -> None:
    workspace.migrate()
    done = workspace.run("doctor", "--json")
    found = {each["check"]: each["found"] for each in done.document["checks"]}
    assert found["device"].endswith("float32, passes: dynamic, kernels: torch")
    workspace.replace_in_config(
        "[endpoints.letters]", '[engine]\ndevice = "cpu"\npasses = "graphs"\n\n[endpoints.letters]'
    )
    assert "CUDA graphs need a GPU" in wrong(workspace, 2)["device"]


def test_a_cron_expression_that_cannot_be_read(scheduled: Workspace) -> None:
    scheduled.replace_in_config("0 7 * * 1", "0 25 * * 1")
    assert "schedule.jobs.weekly.cron" in wrong(scheduled, 2)["schedule"]


def test_secrets_that_are_not_there(scheduled: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAIL_PASSWORD")
    (scheduled.folder / "chat_url").unlink()
    found = wrong(scheduled, 2)
    assert found == {
        "receiver mail": "the variable MAIL_PASSWORD is not set",
        "receiver chat": "chat_url: cannot be read (FileNotFoundError)",
    }


def test_a_webhook_whose_url_is_none(scheduled: Workspace) -> None:
    (scheduled.folder / "chat_url").write_text("no-such-service://token", encoding="utf-8")
    found = wrong(scheduled, 2)["receiver chat"]
    assert "token" not in found


def test_a_mail_server_that_nobody_knows(scheduled: Workspace) -> None:
    scheduled.replace_in_config("mail.example.org", "mial.example.org")
    assert wrong(scheduled, 5) == {"receiver mail": "host mial.example.org: no address is known of it"}


def test_certificates_that_are_not_there(scheduled: Workspace) -> None:
    scheduled.replace_in_config('username = "shadowspec"', 'username = "shadowspec"\nca_file = "ca.pem"')
    assert wrong(scheduled, 2) == {"receiver mail": "ca_file ca.pem: cannot be read"}


def test_a_folder_that_cannot_be(scheduled: Workspace) -> None:
    (scheduled.folder / "reports").write_text("a file")
    assert "reports is not a folder" in wrong(scheduled, 2)["receiver here"]


def test_a_folder_that_may_not_be_written_to(scheduled: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    may = os.access
    monkeypatch.setattr("shadowspec.scheduler.receivers.os.access", lambda *item: item[1] == os.R_OK and may(*item))
    assert "cannot be written to" in wrong(scheduled, 2)["receiver here"]  # the system lets root write anywhere


@pytest.mark.parametrize(
    ("margin", "scores", "wanted"),
    [
        ("score_margin", "[]", "a function of yours"),
        ("score_margin", '["json_valid"]', "a function of yours"),
        ("validity_margin", '["json:dumps"]', '"json_valid" or "contract_valid"'),
    ],
)
def test_a_margin_on_scores_that_nobody_gives(workspace: Workspace, margin: str, scores: str, wanted: str) -> None:
    workspace.migrate()
    workspace.replace_in_config("[gate]", f"[gate]\n{margin} = 0.1")
    workspace.replace_in_config("served_models", f"scores = {scores}\nserved_models")
    found = wrong(workspace, 2)
    assert list(found) == ["scores"]
    assert f"endpoints.letters.scores: add {wanted}, because the policy sets {margin}" in found["scores"]


def test_a_margin_on_task_sets_that_no_server_can_answer(workspace: Workspace) -> None:
    workspace.migrate()
    workspace.replace_in_config("[gate]", "[gate]\ntask_margin = 0.1")
    found = wrong(workspace, 2)
    assert list(found) == ["scores"]
    assert "endpoints.letters: the policy sets task_margin, and a task set needs servers to ask" in found["scores"]


def test_scores_that_a_margin_asks_for(workspace: Workspace) -> None:
    workspace.migrate()
    workspace.replace_in_config("[gate]", "[gate]\nvalidity_margin = 0.1")
    workspace.replace_in_config("served_models", 'scores = ["json_valid"]\nserved_models')
    assert wrong(workspace, 0) == {}


def test_a_weak_or_open_secret_is_warned_of(workspace: Workspace) -> None:
    workspace.migrate()
    secret = workspace.folder / "secret"

    def found(text: str, mode: int) -> str:
        secret.write_text(text, encoding="utf-8")
        secret.chmod(mode)
        document = workspace.run("doctor", "--json").document
        return next(str(each["found"]) for each in document["checks"] if each["check"] == "secret")

    assert found("0123456789abcdef", 0o600) == "16 bytes"
    assert "warning: it has few different characters; make one with: head -c 32" in found("aaaaaaab" * 4, 0o600)
    assert "warning: secret can be read by others; chmod 600 secret" in found("0123456789abcdef", 0o644)
