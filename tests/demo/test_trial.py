"""`shadowspec try` on the bundled pair and the demo's traffic: six models in one recording, of which it takes one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from shadowspec import demo
from tests.cli_process import run_command


@pytest.mark.all
@pytest.mark.slow
def test_it_takes_the_busiest_model_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--target", str(demo.TARGET), "--draft", str(demo.DRAFT), "--traffic", str(demo.TRAFFIC))
    done = run_command(
        monkeypatch, capsys, "try", *options, "--minutes", "1e-9", "--out", str(tmp_path / "try"), "--json"
    )
    assert done.code == 0, done.err
    assert (done.document["requests_measured"], done.document["ended_by"]) == (4, "time")
    whole = [each for each in done.document["decisions"] if not each["slice"]]
    assert {each["speculation_config"]["name"] for each in whole} == {"draft-k4", "ngram-k4", "suffix-k8"}
    written = tomllib.loads((tmp_path / "try/shadowspec.toml").read_text(encoding="utf-8"))
    (endpoint,) = written["endpoints"].values()
    (name,) = endpoint["served_models"]
    assert name in demo.SERVED_MODELS.values()
    assert all(other in done.err for other in set(demo.SERVED_MODELS.values()) - {name})
    assert written["gate"]["timed_positions"] == 3, "the median session's requests"
    assert "not usable: " in done.err, "the demo has bad lines"
    assert "other_model" not in done.err, "named by their models already"
