"""`schedule` and `report --period` as people type them, and what a wrong configuration is told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from shadowspec.config import load_config
from shadowspec.errors import ConfigError
from shadowspec.scheduler.cron import crons_of
from shadowspec.store import Store
from tests.cli_process import run_command
from tests.scheduler.worlds import FOLDER, config_of, email, fill, make_due

JOB = 'cron = "0 * * * *"\nreceivers = ["folder"]'


@pytest.fixture
def config(new_database: Callable[[str], str], tmp_path: Path) -> Path:
    """A configuration whose job is due for two periods."""
    url = new_database("sqlite")
    written_config = config_of(tmp_path, url, JOB, FOLDER.format(tmp_path / "reports"))
    with Store.open(url) as store:
        fill(store)
        make_due(store, ago=timedelta(hours=2))
    return written_config.path


def test_once_does_what_is_due_and_the_list_shows_it(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, capsys, "schedule", "--once", "--config", str(config)).code == 0
    listed = run_command(monkeypatch, capsys, "schedule", "--list", "--json", "--config", str(config)).document
    assert listed["schema_version"] == 1
    assert [each["state"] for each in listed["deliveries"]] == ["sent", "sent"]
    (job,) = listed["jobs"]
    assert job["last_due_at"] == listed["deliveries"][0]["due_at"] < job["next_due_at"]
    shown = run_command(monkeypatch, capsys, "schedule", "--list", "--config", str(config)).out
    assert "often" in shown
    assert "sent" in shown


def test_once_says_what_was_not_delivered(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text().replace('["folder"]', '["folder", "dead"]') + email("dead", 1))
    done = run_command(monkeypatch, capsys, "schedule", "--once", "--json", "--config", str(config))
    assert done.code == 5
    assert {(each["receiver"], each["last_error"]) for each in done.document["deliveries"]} == {
        ("dead", "ConnectionRefusedError 111")
    }


def test_a_jobs_last_report_can_be_had_again(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, capsys, "report", "--period", "often", "--config", str(config)).code == 2
    run_command(monkeypatch, capsys, "schedule", "--once", "--config", str(config))
    again = run_command(monkeypatch, capsys, "report", "--period", "often", "--json", "--config", str(config)).document
    newest = sorted((config.parent / "reports").glob("*.json"))[-1]
    sent = json.loads(newest.read_text())
    assert {**again, "generated_at": ""} == {**sent, "generated_at": "", "data_note": again["data_note"]}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--until", "2026-01-02"), "--until needs --since"),
        (("--since", "yesterday"), "must be a date or a time"),
        (("--since", "2026-01-02", "--until", "2026-01-01"), "before --until"),
        (("--since", "2126-01-02"), "before --until"),
        (("--period", "fortnight"), "give day, week, often"),
        (("--period", "day", "--since", "2026-01-01"), "excludes --since"),
    ],
)
def test_spans_that_cannot_be_meant_are_refused(
    options: tuple[str, ...],
    says: str,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = run_command(monkeypatch, capsys, "report", *options, "--config", str(config))
    assert done.code == 2
    assert says in done.err


@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_a_span_is_reported_in_every_format(
    form: str, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--since", "2020-01-01", "--format", form, "--out", "-", "--config", str(config))
    said = run_command(monkeypatch, capsys, "report", *options)
    assert said.code == 0
    assert "HOLD to ENABLE" in said.out


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('cron = "0 * * * *"', 'cron = "0 * * *"', "schedule.jobs.often.cron: cron '0 \\* \\* \\*' must have 5 fields"),
        ('cron = "0 * * * *"', "", "schedule.jobs.often: cron: give either cron"),
        ('["folder"]', '["nobody"]', "schedule: .*there is no receiver 'nobody'"),
        ('receivers = ["folder"]', 'does = ["gate"]\nreceivers = ["folder"]', "schedule.jobs.often: receivers"),
        ('kind = "folder"', 'kind = "pigeon"', "schedule.receivers.folder.kind"),
        (
            'kind = "folder"',
            'kind = "folder"\nhost = "x"',
            "folder.host: is not a known key of a receiver of kind 'folder'",
        ),
        (
            'kind = "folder"',
            'kind = "webhook"',
            "schedule.receivers.folder.folder: is not a known key of a receiver of kind 'webhook'",
        ),
        ('cron = "0', 'time_zone = "Mars/Base"\ncron = "0', "schedule.jobs.often.time_zone: .*'Mars/Base'"),
        ('formats = ["json"]', 'format = "json"', "schedule.receivers.folder.format: is not a known key"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(before: str, after: str, says: str, config: Path) -> None:
    text = config.read_text()
    assert before in text
    config.write_text(text.replace(before, after))
    with pytest.raises(ConfigError) as caught:
        crons_of(config, load_config(config, {}).schedule.jobs)
    assert re.search(says, str(caught.value)), str(caught.value)
    assert str(config) in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"username": "gate"}, "username: needs password_variable or password_file"),
        ({"username": "gate", "password_variable": "P"}, "a password is not sent over a connection"),
        ({"sender": "nobody"}, "sender"),
    ],
)
def test_a_mail_server_is_told_what_it_needs(keys: dict[str, str], says: str, config: Path) -> None:
    config.write_text(config.read_text() + email("mail", 25, **keys))
    with pytest.raises(ConfigError, match=re.escape("schedule.receivers.mail") + f".*{says}"):
        load_config(config, {})


def test_secrets_that_are_not_there_are_found_at_the_start(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = '[schedule.receivers.chat]\nkind = "webhook"\nurl_variable = "NO_SUCH_VARIABLE"\n'
    config.write_text(config.read_text().replace('["folder"]', '["chat"]') + hook)
    done = run_command(monkeypatch, capsys, "schedule", "--config", str(config))
    assert done.code == 2
    assert "schedule.receivers.chat: the variable NO_SUCH_VARIABLE is not set" in done.err


@pytest.mark.all
def test_it_starts_without_torch(config: Path) -> None:
    program = (
        "import sys; sys.argv = ['shadowspec', 'schedule', '--once', '--config', sys.argv[1]]\n"
        "from shadowspec.cli import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "assert not {'torch', 'transformers', 'streamlit'} & sys.modules.keys()"
    )
    for arguments in (["-m", "shadowspec", "schedule", "--help"], ["-c", program, str(config)]):
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
