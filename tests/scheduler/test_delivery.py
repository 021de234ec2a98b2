"""What receivers get over real sockets, and what is kept when they do not take it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowspec.config import Config
from shadowspec.errors import ConfigError
from shadowspec.scheduler.job_settings import WebhookSettings
from shadowspec.scheduler.receivers import require_secret
from shadowspec.store import Store
from shadowspec.types import Delivery, DeliveryState
from tests.scheduler.receivers import certified, mail_server, web_server
from tests.scheduler.worlds import FOLDER, SECRET, config_of, email, fill, make_due, scheduler_of, webhook

# Plugins of apprise that we do not use import what Python is about to drop.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:apprise", "ignore:.*is deprecated and slated for removal:DeprecationWarning"
)

JOB = 'cron = "0 * * * *"\nreceivers = [{}]'
NO_WAIT = "\n[schedule]\nretry_first_s = 0.001\nretry_longest_s = 0.001\nmax_attempts = 3\n"


@pytest.fixture
def filled(new_database: Callable[[str], str]) -> Any:
    url = new_database("sqlite")
    with Store.open(url) as store:
        fill(store)
        yield url, store


def once(config: Config, store: Store) -> list[Delivery]:
    """Do what is due; the deliveries, oldest first."""
    assert scheduler_of(config, store).run_once()
    return sorted(store.deliveries(), key=lambda each: (each.due_at, each.receiver))


def open_again(store: Store) -> None:
    """Let every waiting delivery be due now."""
    for each in store.deliveries():
        if each.state is DeliveryState.PENDING:
            store.keep_delivery(replace(each, next_attempt_at=datetime.now(UTC)))


def test_a_mail_has_both_halves_and_the_key_that_is_logged(filled: Any, tmp_path: Path) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=2))
    with mail_server() as mailbox:
        config = config_of(tmp_path, url, JOB.format('"team"'), email("team", mailbox.port))
        found = once(config, store)
    assert [each.state for each in found] == [DeliveryState.SENT, DeliveryState.SENT]
    assert [mail["Message-ID"] for mail in mailbox.mails] == [each.message_id for each in found]
    assert len({each.message_id for each in found}) == 2
    mail = mailbox.mails[-1]
    assert mail["To"] == "team@example.org"
    assert mail["From"] == "gate@example.org"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert [part.get_content_type() for part in mail.walk()] == ["multipart/alternative", "text/plain", "text/html"]
    plain, page = (mail.get_body((kind,)).get_content() for kind in ("plain", "html"))  # type: ignore[union-attr]
    for text in (plain, page):
        assert "ENABLE" in text
        assert "not yet" in text
    assert "<script" not in page
    subjects = " ".join(each["Subject"] for each in mailbox.mails)
    assert "1 verdict change" in subjects


def test_a_server_that_fails_is_tried_again_with_the_same_key(filled: Any, tmp_path: Path) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=1))
    with mail_server() as mailbox:
        mailbox.answers = ["451 try later"]
        config = config_of(tmp_path, url, JOB.format('"team"') + NO_WAIT, email("team", mailbox.port))
        (waiting,) = once(config, store)
        assert (waiting.state, waiting.attempts) == (DeliveryState.PENDING, 1)
        assert waiting.last_error == "SMTPDataError 451"
        assert mailbox.mails == []
        open_again(store)
        (sent,) = once(config, store)
    assert (sent.state, sent.attempts, sent.last_error) == (DeliveryState.SENT, 2, None)
    assert [mail["Message-ID"] for mail in mailbox.mails] == [waiting.message_id]


def test_a_delivery_is_given_up_in_the_end(filled: Any, tmp_path: Path) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=1))
    with mail_server() as mailbox:
        mailbox.refused = {"team@example.org"}
        config = config_of(tmp_path, url, JOB.format('"team"') + NO_WAIT, email("team", mailbox.port))
        for _ in range(5):
            (found,) = once(config, store)
            open_again(store)
    assert (found.state, found.attempts) == (DeliveryState.FAILED, 3)
    assert found.last_error == "SMTPRecipientsRefused"


def test_one_that_fails_holds_up_no_other(filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=1))
    with mail_server() as mailbox, web_server() as hook:
        hook.answers = [503]
        monkeypatch.setenv("HOOK_CHAT", f"json://127.0.0.1:{hook.port}/a")
        (tmp_path / "blocked").write_text("a file where a folder should be")
        receivers = (FOLDER.format(tmp_path / "blocked"), email("team", mailbox.port), webhook("chat"))
        names = '"folder", "chat", "team", "dead"'
        receivers += (email("dead", 1),)
        found = once(config_of(tmp_path, url, JOB.format(names), *receivers), store)
    by_name = {each.receiver: (each.state, each.last_error) for each in found}
    assert by_name == {
        "team": (DeliveryState.SENT, None),
        "chat": (DeliveryState.PENDING, "WebhookError 503"),
        "dead": (DeliveryState.PENDING, "ConnectionRefusedError 111"),
        "folder": (DeliveryState.PENDING, "FileExistsError 17"),
    }


def test_a_webhook_gets_a_few_lines_and_the_key(filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=1))
    with web_server() as hook:
        monkeypatch.setenv("HOOK_CHAT", f"json://127.0.0.1:{hook.port}/{SECRET}")
        (found,) = once(config_of(tmp_path, url, JOB.format('"chat"'), webhook("chat")), store)
    ((path, headers, body),) = hook.posts
    assert path == f"/{SECRET}"
    assert headers["Idempotency-Key"] == found.idempotency_key
    assert "verdict change" in body["title"] + body["message"]
    assert "Report " in body["message"]
    assert found.message_id is None


@pytest.mark.parametrize("status", [301, 302, 303, 307])
def test_a_webhook_that_redirects_has_taken_nothing(
    filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=1))
    with web_server() as hook:
        hook.answers = [status]
        monkeypatch.setenv("HOOK_CHAT", f"json://127.0.0.1:{hook.port}/a")
        (found,) = once(config_of(tmp_path, url, JOB.format('"chat"'), webhook("chat")), store)
    assert (found.state, found.last_error, hook.posts) == (DeliveryState.PENDING, f"WebhookError {status}", [])


def test_without_its_extra_a_webhook_names_it_and_the_others_are_sent(
    filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=1))
    monkeypatch.setitem(sys.modules, "apprise", None)
    monkeypatch.setenv("HOOK_CHAT", "json://127.0.0.1:1/a")
    receivers = (FOLDER.format(tmp_path / "reports"), webhook("chat"))
    config = config_of(tmp_path, url, JOB.format('"folder", "chat"'), *receivers)
    found = {each.receiver: each.state for each in once(config, store)}
    assert found == {"folder": DeliveryState.SENT, "chat": DeliveryState.PENDING}
    assert "a webhook needs the extra `schedule`: pip install 'shadowspec[schedule]'" in caplog.text
    with pytest.raises(ConfigError, match="needs the extra `schedule`"):
        require_secret(config.schedule.receivers["chat"])


def test_slack_is_spoken_to_in_its_own_words(filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=1))
    monkeypatch.setenv("HOOK_CHAT", "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ")
    with web_server() as hook:
        monkeypatch.setattr("apprise.plugins.slack.NotifySlack.webhook_url", f"http://127.0.0.1:{hook.port}")
        (found,) = once(config_of(tmp_path, url, JOB.format('"chat"'), webhook("chat")), store)
    assert found.state is DeliveryState.SENT
    ((path, _, body),) = hook.posts
    assert path == "/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
    assert "ENABLE" in json.dumps(body["attachments"])


def test_teams_is_spoken_to_in_its_own_words(filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=1))
    context, certificate = certified(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with web_server(context) as hook:
        monkeypatch.setenv("HOOK_CHAT", f"workflows://127.0.0.1:{hook.port}/flow/{SECRET}/")
        (found,) = once(config_of(tmp_path, url, JOB.format('"chat"'), webhook("chat")), store)
    assert found.state is DeliveryState.SENT
    ((_, _, body),) = hook.posts
    (card,) = body["attachments"]
    assert card["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert "ENABLE" in json.dumps(card["content"])


def test_folders_hold_a_file_per_period_and_a_repeat_changes_nothing(filled: Any, tmp_path: Path) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=3))
    receiver = FOLDER.format(tmp_path / "reports").replace('["json"]', '["html", "md", "json"]')
    config = config_of(tmp_path, url, JOB.format('"folder"'), receiver)
    found = once(config, store)
    names = {path.name for path in (tmp_path / "reports").iterdir()}
    assert names == {f"often-{each.due_at:%Y%m%dT%H%M%SZ}.{form}" for each in found for form in ("html", "md", "json")}
    store.keep_delivery(replace(found[0], state=DeliveryState.SENDING))  # as somebody leaves it who dies
    assert once(config, store)[0].attempts == 2
    assert {path.name for path in (tmp_path / "reports").iterdir()} == names
    spans = [json.loads(path.read_text()) for path in sorted((tmp_path / "reports").glob("*.json"))]
    assert [each["until"] for each in spans[:-1]] == [each["since"] for each in spans[1:]]
    assert sum(len(each["changes"]) for each in spans) == 1


def test_a_password_is_read_when_it_is_needed_and_shown_nowhere(
    filled: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=1))
    context, certificate = certified(tmp_path)
    password = tmp_path / "password"
    password.write_text(SECRET)
    keys = {"security": "starttls", "username": "gate", "password_file": str(password), "ca_file": str(certificate)}
    with (
        caplog.at_level(logging.DEBUG),
        mail_server(tls_context=context, require_starttls=True, wants_login=True) as box,
    ):
        config = config_of(tmp_path, url, JOB.format('"team"') + NO_WAIT, email("team", box.port, **keys))
        (refused,) = once(config, store)
        assert refused.last_error == "SMTPAuthenticationError 535"
        password.write_text("right\n")
        open_again(store)
        (sent,) = once(config, store)
    assert sent.state is DeliveryState.SENT
    assert box.logins[-1] == ("gate", "right")
    assert ("gate", SECRET) in box.logins
    assert SECRET not in caplog.text
    assert SECRET not in repr(config)
    assert SECRET not in json.dumps([repr(each) for each in store.deliveries()])


def test_urls_of_webhooks_are_in_no_log(
    filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=1))
    heard: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = heard.append  # type: ignore[method-assign]
    monkeypatch.setattr(logging.getLogger(), "handlers", [listener])
    with caplog.at_level(logging.DEBUG), web_server() as hook:
        hook.answers = [500]
        monkeypatch.setenv("HOOK_CHAT", f"json://{SECRET}:{SECRET}@127.0.0.1:{hook.port}/{SECRET}")
        (found,) = once(config_of(tmp_path, url, JOB.format('"chat"'), webhook("chat")), store)
        assert found.last_error == "WebhookError 500"
        monkeypatch.setenv("HOOK_CHAT", f"nonsense://{SECRET}/{SECRET}")
        with pytest.raises(ConfigError, match="apprise does not know its URL") as refused:
            require_secret(WebhookSettings("chat", url_variable="HOOK_CHAT"))
    assert SECRET not in str(refused.value)
    assert SECRET not in "".join(record.getMessage() for record in heard)


def test_what_nobody_receives_any_more_is_given_up(filled: Any, tmp_path: Path) -> None:
    url, store = filled
    make_due(store, ago=timedelta(hours=1))
    config = config_of(tmp_path, url, JOB.format('"dead"'), email("dead", 1))
    (waiting,) = once(config, store)
    assert waiting.state is DeliveryState.PENDING
    assert store.abandon_deliveries(["other"], "NotConfigured") == 1
    assert [each.last_error for each in store.deliveries()] == ["NotConfigured"]
