"""What `plan --fleet` prints of a large fleet: a summary of one screen, and every endpoint with --verbose."""

from __future__ import annotations

import pytest

from shadowspec.app.fleet_plans import FleetDocument, FleetEndpoint, FleetGroup
from shadowspec.cli import fleet_view
from shadowspec.reports.render.first_screen import MAX_LINES

DAY_S = 86_400.0


def endpoint(number: int, **changes: object) -> FleetEndpoint:
    values: dict[str, object] = {
        "endpoint": f"endpoint-{number:02d}",
        "measured_by": f"pair-{number:02d}",
        "blocks_per_hour": 1.0,
        "is_rate_assumed": False,
        "device_seconds_per_block": 12.0,
        "is_time_assumed": False,
        "device_hours_per_week": 0.5,
        "is_planned": True,
        "seconds_p90": 0.0,
        "waits": False,
        "verdict_delay_s": None,
    }
    return FleetEndpoint(**(values | changes))  # type: ignore[arg-type]


FLEET = [
    *(endpoint(number) for number in range(30)),
    *(endpoint(number, is_planned=False, seconds_p90=None, is_rate_assumed=True) for number in range(30, 36)),
    *(endpoint(number, seconds_p90=number * DAY_S) for number in range(36, 46)),
    endpoint(46, seconds_p90=None),
    endpoint(47, waits=True, verdict_delay_s=2 * DAY_S, seconds_p90=3 * DAY_S),
    endpoint(48, waits=True, verdict_delay_s=9 * DAY_S, seconds_p90=3 * DAY_S),
    endpoint(49, waits=True, seconds_p90=None),
]


def document(rows: list[FleetEndpoint]) -> FleetDocument:
    groups = [
        FleetGroup(
            measured_by=row.measured_by,
            is_served=True,
            num_engines=1,
            endpoints=[row.endpoint],
            busy_share=0.02 * place,
            block_wait_s=60.0,
            engines_needed=2 if row.endpoint == "endpoint-05" else 1,
        )
        for place, row in enumerate(rows)
    ]
    late = [row.endpoint for row in rows if row.is_planned and row.seconds_p90]
    return FleetDocument(decide_within_s=7 * DAY_S, endpoints=rows, groups=groups, not_decided=late)


def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rows: list[FleetEndpoint], *, is_whole: bool
) -> list[str]:
    monkeypatch.setattr(fleet_view, "is_verbose", lambda: is_whole)
    fleet_view.print_fleet(document(rows))
    return capsys.readouterr().out.splitlines()


def test_the_first_screen_has_those_that_wait_longest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = printed(capsys, monkeypatch, FLEET, is_whole=False)
    assert len(lines) <= MAX_LINES
    assert lines[0] == (
        "50 endpoints: 3 waiting, 1 not foreseeable, 10 undecided, 6 without a plan, 30 decided. "
        "Together they take 25 device hours a week."
    )
    shown = [line.split()[0] for line in lines if line.strip().startswith("endpoint-")]
    assert shown == [f"endpoint-{number}" for number in (49, 48, 47, 46, 45, 44, 43, 42, 41, 40)]
    assert "40 more endpoints not shown: 4 undecided, 6 without a plan, 30 decided." in lines
    assert [line.split(":")[0] for line in lines if ": 1 endpoint, busy" in line] == [
        "pair-05",
        "pair-49",
        "pair-48",
        "pair-47",
    ]
    assert "46 more groups not shown." in lines
    assert "by any number of devices: endpoint-48, endpoint-47, endpoint-45 and 9 more." in "\n".join(lines)
    assert not any("assumed" in line for line in lines), "no row that is shown has a star"
    assert "--verbose" in lines[-1]


def test_verbose_has_every_endpoint_and_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(printed(capsys, monkeypatch, FLEET, is_whole=True))
    for number in range(50):
        assert f"endpoint-{number:02d}" in text
        assert f"pair-{number:02d}: 1 endpoint, busy" in text
    assert "not shown" not in text
    assert "* assumed:" in text


def test_a_small_fleet_is_shown_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(capsys, monkeypatch, FLEET[-3:], is_whole=False)
    assert sum(line.strip().startswith("endpoint-") for line in lines) == 3
    assert not any("not shown" in line for line in lines)
