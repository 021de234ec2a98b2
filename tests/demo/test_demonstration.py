"""`shadowspec demo` on the bundled pair and traffic, a small share of it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from shadowspec import demo
from shadowspec.cli import main
from shadowspec.store import Store
from shadowspec.types import FunnelCounter
from tests.cli_process import run_command
from tests.identities import check_identities

REQUESTS = 48


@pytest.fixture(scope="module", params=[16, pytest.param(REQUESTS, marks=pytest.mark.all)])
def num_requests(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, num_requests: int) -> tuple[Path, str]:
    """The demo's folder and its JSON, after a run over the first requests."""
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["shadowspec", "demo", "--out", str(out), "--requests", str(num_requests), "--json"])
        written: list[str] = []
        patch.setattr(sys.stdout, "write", lambda text: written.append(text) or len(text))
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return out, "".join(written)


@pytest.mark.slow
def test_it_decides_on_what_it_measured(finished: tuple[Path, str], num_requests: int) -> None:
    out, printed = finished
    document = json.loads(printed)
    assert document["requests_measured"] == num_requests
    assert {decision["endpoint"] for decision in document["decisions"]} <= set(demo.SERVED_MODELS)
    # 48 requests at most are 12 blocks: too few for any ENABLE, whatever was measured.
    assert {decision["verdict"] for decision in document["decisions"]} <= {"HOLD", "DISABLE"}
    with Store.open(f"sqlite:///{out}/shadowspec.db") as store:
        runs = [run for endpoint in store.endpoints() for run in store.runs(endpoint)]
        assert len(runs) == num_requests
        for run in runs:
            assert run.failure is None
            assert run.counts is not None
            check_identities(run.counts)
        measured = sum(n for (_, counter, _), n in store.funnel().items() if counter is FunnelCounter.MEASURED)
        assert measured == num_requests


@pytest.mark.slow
def test_the_report_is_one_file_that_asks_the_network_for_nothing(finished: tuple[Path, str]) -> None:
    page = (finished[0] / "report.html").read_text(encoding="utf-8")
    assert demo.DATA_NOTE in page
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?:https?:)?//""", page)
    assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//", page)
    for endpoint in demo.SERVED_MODELS:
        assert endpoint in page


@pytest.mark.slow
def test_a_report_written_later_says_the_same_of_the_data(
    finished: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ("--config", str(finished[0] / "shadowspec.toml"))
    for span in ((), ("--period", "day")):
        done = run_command(monkeypatch, capsys, "report", *config, *span, "--json")
        assert done.document["data_note"] == demo.DATA_NOTE


def test_the_demo_departs_from_the_default_policy_in_four_values_only(tmp_path: Path) -> None:
    from dataclasses import asdict

    from shadowspec.config import load_config
    from shadowspec.gate.policy import GatePolicy

    path = tmp_path / "demo.toml"
    path.write_text(demo.demo_config(tmp_path, 0), encoding="utf-8")
    config = load_config(path, environment={})
    default = asdict(GatePolicy(window_s=0.0))
    for endpoint in config.endpoints.values():
        changed = {key for key, value in asdict(endpoint.policy).items() if value != default[key]}
        assert changed == {"max_hypotheses", "max_untimed_share", "min_span_s", "timed_positions", "serving_engine"}
        assert endpoint.policy.serving_engine == "shadowspec-torch", "of the endpoint, and no value of the policy"
    assert set(config.endpoints) == set(demo.SERVED_MODELS)
