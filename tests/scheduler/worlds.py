"""Small configurations, stores with something to report on, and letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shadowspec.app.scheduled_jobs import export_renderers
from shadowspec.config import Config, load_config
from shadowspec.reports.period.period_build import PeriodSettings
from shadowspec.rollout.endpoint_run import GatePolicies
from shadowspec.scheduler.cron import crons_of
from shadowspec.scheduler.leader import Scheduler
from shadowspec.store import Store
from shadowspec.types import Period, Verdict
from tests.store import examples

FOLDER = '[schedule.receivers.folder]\nkind = "folder"\nfolder = "{}"\nformats = ["json"]\n'
SECRET = "hunter2-very-secret"


def email(name: str, port: int, **keys: str) -> str:
    entry = {"kind": "email", "host": "127.0.0.1", "security": "none", "sender": "gate@example.org", **keys}
    lines = [f'{key} = "{value}"' for key, value in entry.items()]
    return "\n".join([f"[schedule.receivers.{name}]", *lines, f"port = {port}", 'to = ["team@example.org"]\n'])


def webhook(name: str) -> str:
    return f'[schedule.receivers.{name}]\nkind = "webhook"\nurl_variable = "HOOK_{name.upper()}"\n'


def config_of(folder: Path, url: str, job: str, *receivers: str) -> Config:
    path = folder / "shadowspec.toml"
    path.write_text(f'[database]\nurl = "{url}"\n[schedule.jobs.often]\n{job}\n' + "".join(receivers), encoding="utf-8")
    return load_config(path, {})


def scheduler_of(config: Config, store: Store, policies: Mapping[str, Any] | None = None) -> Scheduler:
    crons = crons_of(config.path, config.schedule.jobs)
    gates = GatePolicies({name: endpoint.policy for name, endpoint in config.endpoints.items()}, dict(policies or {}))
    renderers = export_renderers(config, config.schedule.kept.values(), store)
    return Scheduler(store, config.schedule, crons, gates, PeriodSettings(data_note="Made up."), {}, renderers)


def fill(store: Store) -> None:
    """A verdict that changed an hour ago."""
    now = datetime.now(UTC)
    store.save_fingerprints([examples.config()])
    for hours, verdict in ((48, Verdict.HOLD), (1, Verdict.ENABLE)):
        decision = replace(examples.decision(verdict), decided_at=now - timedelta(hours=hours))
        store.append_decisions([decision])


def make_due(store: Store, job: str = "often", ago: timedelta = timedelta(hours=3)) -> datetime:
    """Let the job have run last at the hour so long ago, so that each hour since is due."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    store.begin_periods([Period(job, hour - ago, hour - ago, hour - ago)])
    return hour
