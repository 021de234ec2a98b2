"""Jobs with events: each alarm, reversion and change of a verdict is reported at once, once, with its evidence."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowspec.config import Config
from shadowspec.errors import ConfigError
from shadowspec.scheduler.leader import Scheduler
from shadowspec.store import Store
from shadowspec.types import GUARD, Override, Period, Stage, Verdict
from tests.builders.waiting import wait_for
from tests.scheduler.receivers import mail_server, web_server
from tests.scheduler.worlds import FOLDER, config_of, email, fill, scheduler_of, webhook
from tests.store import examples

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:apprise", "ignore:.*is deprecated and slated for removal:DeprecationWarning"
)

HOUR = timedelta(hours=1)
PUBLIC = '[dashboard]\npublic_url = "https://spec.example.org/"\n'


@pytest.fixture
def store(new_database: Callable[[str], str]) -> Iterator[Store]:
    with Store.open(new_database("sqlite")) as opened:
        yield opened


def url_of(store: Store) -> str:
    return store.engine.url.render_as_string(hide_password=False)


def job(*events: str, receivers: str = "folder") -> str:
    return f"on = {json.dumps(events)}\nreceivers = ['{receivers}']"


def configure(folder: Path, store: Store, *events: str) -> Config:
    return config_of(folder, url_of(store), job(*events), FOLDER.format(folder / "sent"))


def look(config: Config, store: Store) -> list[dict[str, Any]]:
    """Every report in the folder after one look, in the order of their times."""
    assert scheduler_of(config, store).run_once()
    folder = config.path.parent / "sent"
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def begin(store: Store, ago: timedelta = 2 * HOUR) -> None:
    moment = datetime.now(UTC) - ago
    store.begin_periods([Period("often", moment, moment, moment)])


def alarm(store: Store, ago: timedelta = HOUR) -> None:
    moment = datetime.now(UTC) - ago
    store.add_override(Override(0, "chat", "", None, Verdict.DISABLE, "acceptance fell", GUARD, moment))


def kinds(report: dict[str, Any]) -> list[str]:
    return [change["kind"] for change in report["changes"]]


def test_a_change_of_a_verdict_is_reported_once(store: Store, tmp_path: Path) -> None:
    config = configure(tmp_path, store, "verdict")
    begin(store)
    fill(store)
    (report,) = look(config, store)
    assert [change["what"] for change in report["changes"]] == ["HOLD to ENABLE"]
    assert len(look(config, store)) == 1
    assert len(store.deliveries()) == 1


def test_only_the_events_of_the_job_are_reported(store: Store, tmp_path: Path) -> None:
    config = configure(tmp_path, store, "alarm")
    begin(store)
    fill(store)
    assert look(config, store) == []
    alarm(store)
    (report,) = look(config, store)
    assert kinds(report) == ["alarm"]


@pytest.mark.parametrize(("after", "is_event"), [(Stage.SHADOW, True), (Stage.BROAD, False)])
def test_a_reversion_is_a_step_back(store: Store, tmp_path: Path, after: Stage, is_event: bool) -> None:
    config = configure(tmp_path, store, "reversion")
    begin(store)
    store.save_fingerprints([examples.config()])
    now = datetime.now(UTC)
    store.append_rollouts([replace(examples.rollout(Stage.PARTIAL), decided_at=now - 3 * HOUR)])
    store.append_rollouts([replace(examples.rollout(after), decided_at=now - HOUR)])
    assert [kinds(report) for report in look(config, store)] == ([["rollout"]] if is_event else [])


def test_nothing_from_before_the_job_existed_is_reported(store: Store, tmp_path: Path) -> None:
    config = configure(tmp_path, store, "verdict", "alarm")
    fill(store)
    alarm(store)
    assert look(config, store) == []
    assert look(config, store) == []


def test_a_gate_that_runs_is_waited_for(store: Store, tmp_path: Path) -> None:
    """Its decisions may have times of before the look."""
    config = config_of(
        tmp_path, url_of(store), job("alarm"), FOLDER.format(tmp_path / "sent"), examples_endpoint(tmp_path)
    )
    begin(store)
    alarm(store)
    with store.endpoint_lock("chat"):
        assert look(config, store) == []
    assert len(look(config, store)) == 1


def examples_endpoint(folder: Path) -> str:
    """The table of an endpoint, so that its gate has a lock."""
    return (
        '[endpoints.chat]\ntarget = "t"\nserved_models = ["m"]\nmatch = { model = "m" }\n'
        "loads = [{ concurrency = 4 }]\n"
        '[[endpoints.chat.candidates]]\nname = "k4"\nproposer = "ngram"\nnum_speculative_tokens = 4\n'
    )


def test_a_leader_that_dies_between_the_two_writes_loses_nothing(store: Store, tmp_path: Path) -> None:
    config = configure(tmp_path, store, "alarm")
    begin(store)
    alarm(store)
    moment = datetime.now(UTC) - timedelta(minutes=1)
    store.begin_periods([Period("often", moment, moment - 2 * HOUR)])  # begun, and not prepared
    (report,) = look(config, store)
    assert kinds(report) == ["alarm"]


def test_a_day_without_events_is_not_read_again(store: Store, tmp_path: Path) -> None:
    config = configure(tmp_path, store, "alarm")
    begin(store, ago=timedelta(days=3))
    assert look(config, store) == []
    last = store.last_period("often")
    assert last is not None
    assert last.until is not None
    assert datetime.now(UTC) - last.until < HOUR


def test_mail_and_chat_get_the_alarm_with_a_link_while_a_scheduler_leads(store: Store, tmp_path: Path) -> None:
    with mail_server() as mailbox, web_server() as hook, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOOK_CHAT", f"json://127.0.0.1:{hook.port}/hook")
        wanted = "on = ['alarm', 'verdict']\nreceivers = ['team', 'chat']"
        config = config_of(tmp_path, url_of(store), wanted, email("team", mailbox.port), webhook("chat"), PUBLIC)
        begin(store)
        stopped = threading.Event()
        scheduler: Scheduler = scheduler_of(config, store)
        scheduler._reports = replace(scheduler._reports, dashboard_url=config.dashboard.public_url)
        thread = threading.Thread(target=scheduler.run, args=(stopped,))
        thread.start()
        try:
            alarm(store, ago=timedelta(seconds=2))
            wait_for(lambda: mailbox.mails and hook.posts)
        finally:
            stopped.set()
            thread.join()
    (mail,) = mailbox.mails
    assert mail["Subject"] == "ShadowSpec often: 1 alarm"
    link = "https://spec.example.org/evidence?endpoint=chat"
    plain, page = (mail.get_body((kind,)).get_content() for kind in ("plain", "html"))  # type: ignore[union-attr]
    assert f"({link})" in plain
    assert f'href="{link}"' in page
    ((_, _, body),) = hook.posts
    assert link in json.dumps(body)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("receivers = ['folder']", "give either cron"),
        ("cron = '@daily'\non = ['alarm']\nreceivers = ['folder']", "give either cron"),
        ("on = ['storm']\nreceivers = ['folder']", "on"),
        ("on = ['alarm', 'alarm']\nreceivers = ['folder']", "twice"),
        ("on = ['alarm']\ndoes = ['gate', 'report']\nreceivers = ['folder']", "only reports"),
        ("on = ['alarm']", "receivers"),
    ],
)
def test_what_cannot_be_configured(store: Store, tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config_of(tmp_path, url_of(store), text, FOLDER.format(tmp_path / "sent"))


def test_an_address_that_is_none_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="public_url"):
        config_of(tmp_path, url_of(store), job("alarm"), FOLDER.format("sent"), '[dashboard]\npublic_url = "spec"\n')
