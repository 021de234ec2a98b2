"""Replay stands beside the loop, marked as replay; audits that alarm cannot be overlooked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.audit_difference import AuditState
from shadowspec.reports.content.changes import ChangeKind
from shadowspec.reports.figures.replay_rows import ReplayRow, audit_rows, replay_rows
from shadowspec.reports.pages.timeline import override_changes
from shadowspec.reports.report import build_report, render_html, render_json, render_markdown
from shadowspec.types import AcceptanceSums, AuditedRun, Override, OverrideRecord, RecordKey, StoredAudit, Verdict
from tests.reports.worlds import NOW, START, MemorySource, config

CODE, CHAT = "prompt_class=code", "prompt_class=chat"
SHALLOW, DEEP = config("draft-k4", 2), config("draft-k8", 8)


def sums(slice_key: str, fingerprint: str, accepted_per_draft: float, units: int = 400) -> AcceptanceSums:
    """Sessions of 8 to 12 drafts that accept alike."""
    drafts = [8.0 + 4.0 * (place % 2) for place in range(units)]
    accepted = [accepted_per_draft * each for each in drafts]
    return AcceptanceSums(
        slice_key=slice_key,
        fingerprint=fingerprint,
        num_requests=2 * units,
        num_units=units,
        num_drafts=sum(drafts),
        num_draft_tokens=4.0 * sum(drafts),
        num_accepted_tokens=sum(accepted),
        num_first_accepted_tokens=sum(accepted) / 2.0,
        drafts_squares=sum(each**2 for each in drafts),
        accepted_drafts=sum(one * other for one, other in zip(accepted, drafts, strict=True)),
        accepted_squares=sum(each**2 for each in accepted),
        first_event=START,
        last_event=NOW,
    )


@pytest.fixture
def source() -> MemorySource:
    """Code is answered as the shadow's target would, chat is not; the deep config was only replayed."""
    made = MemorySource(configs={SHALLOW.fingerprint: SHALLOW})
    made.replayed_with = {config.fingerprint: config for config in (SHALLOW, DEEP)}
    made.replayed["editor"] = [
        sums(CODE, SHALLOW.fingerprint, 1.5),
        sums(CHAT, SHALLOW.fingerprint, 0.5),
        sums(CODE, DEEP.fingerprint, 2.25, units=50),
    ]
    made.looped["editor"] = [
        sums(CODE, SHALLOW.fingerprint, 1.5),
        sums(CHAT, SHALLOW.fingerprint, 1.0),
        sums("prompt_class=maths", SHALLOW.fingerprint, 4.0),  # never replayed: in nothing that stands beside replay
    ]
    runs = [AuditedRun(RecordKey("f", 0, line), SHALLOW.fingerprint, 21, 10, 2.0) for line in range(60)]
    sound = [replace(run, expected_accepted_tokens=10.0) for run in runs]
    refused = replace(runs[0], expected_accepted_tokens=None)
    made.audits["editor"] = [
        StoredAudit(CHAT, SHALLOW.fingerprint, AuditState(1).fold([*sound, refused], NOW).document()),
        StoredAudit(CODE, SHALLOW.fingerprint, AuditState(2).fold(runs, NOW).document()),
    ]
    return made


def rows_of(source: MemorySource, endpoint: str) -> tuple[ReplayRow, ...]:
    return replay_rows(source, source.replay_sums([endpoint]))[endpoint]


def test_rows_pool_and_stand_beside_the_loop(source: MemorySource) -> None:
    rows = {(row.slice_key, row.num_speculative_tokens): row for row in rows_of(source, "editor")}
    assert list(rows) == [("", 2), ("", 8), (CHAT, 2), (CODE, 2), (CODE, 8)]
    code = rows[CODE, 2]
    assert (code.num_requests, code.mean_acceptance_length, code.loop_mean_acceptance_length) == (800, 2.5, 2.5)
    assert code.first_position_acceptance_rate == pytest.approx(0.75)
    assert code.draft_acceptance_rate == pytest.approx(0.375)
    whole = rows["", 2]
    assert (whole.num_requests, whole.mean_acceptance_length, whole.loop_mean_acceptance_length) == (1600, 2.0, 2.25)
    deep = rows[CODE, 8]
    assert (deep.loop_num_requests, deep.loop_mean_acceptance_length) == (0, None)
    assert rows_of(source, "elsewhere") == ()


def test_audits_that_alarm_come_first(source: MemorySource) -> None:
    code, chat = audit_rows(source, ["editor"])["editor"]
    assert (code.slice_key, code.config_name, code.words) == (CODE, "draft-k4", "alarm since 2026-03-02 09:30 UTC")
    assert (chat.words, chat.state.num_refused, chat.state.difference) == ("no alarm in 60 outputs", 1, 0.0)
    assert audit_rows(source, ["elsewhere"]) == {"elsewhere": ()}


def test_every_format_shows_them(source: MemorySource) -> None:
    report = build_report(source, {"editor": GatePolicy(window_s=0.0)}, NOW, data_note="Made up.")
    for text in (render_html(report), render_markdown(report)):
        for word in (
            "Replay beside the engine",
            "Audit of the engine",
            "alarm since 2026-03-02",
        ):
            assert word in text
        assert "No test uses replay" in text.replace("\n", " ")
    (endpoint,) = json.loads(render_json(report))["endpoints"]
    assert {row["source"] for row in endpoint["replays"]} == {"replay"}
    chat = next(row for row in endpoint["replays"] if row["slice"] == {"prompt_class": "chat"})
    assert (chat["mean_acceptance_length"], chat["loop_mean_acceptance_length"]) == (1.5, 2.0)
    assert [row["is_alarm"] for row in endpoint["audits"]] == [True, False]
    assert endpoint["audits"][0]["log10_capital"] > endpoint["audits"][0]["log10_threshold"]


def test_without_replays_nothing_is_said(source: MemorySource) -> None:
    source.replayed, source.audits = {}, {}
    report = build_report(source, {"editor": GatePolicy(window_s=0.0)}, NOW, data_note="Made up.")
    for text in (render_html(report), render_markdown(report)):
        assert "Replay beside the engine" not in text
        assert "Audit of the engine" not in text


def test_the_audits_order_is_an_alarm_in_the_line_of_time() -> None:
    order = Override(3, "editor", CODE, None, Verdict.HOLD, "audit alarm: ...", "audit", START)
    by_hand = replace(order, override_id=4, author="ada")
    changes = override_changes([OverrideRecord(order, None), OverrideRecord(by_hand, None)], NOW)
    assert [change.kind for change in changes] == [ChangeKind.ALARM, ChangeKind.OVERRIDE]
