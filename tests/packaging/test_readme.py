"""What is read first: README, its first example with the screen that it shows, and the pages for jobs."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from shadowspec.servers import judging
from tests.builders.served_models import steady_timing
from tests.builders.workspace import NOON, record, write_traffic
from tests.cli_process import run_command
from tests.packaging.doc_commands import ROOT, commands
from tests.servers.fake_server import FakeServer, running

README, INDEX = ROOT / "README.md", ROOT / "docs/index.md"
JOBS = sorted((ROOT / "docs/jobs").glob("*.md"))
NUM_SESSIONS = 200


def num_words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


def test_readme_can_be_read_in_a_few_minutes() -> None:
    assert num_words(README) <= 800


def test_the_documentation_has_at_most_60_000_words() -> None:
    assert sum(map(num_words, (ROOT / "docs").rglob("*.md"))) < 60_000


@pytest.mark.parametrize("page", JOBS, ids=lambda path: path.stem)
def test_a_page_for_a_job_is_short_and_linked_above_the_reference(page: Path) -> None:
    assert num_words(page) <= 900
    title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    assert title.startswith("I ")
    for index in (README, INDEX):
        above = index.read_text(encoding="utf-8").split("\n## Reference")[0]
        assert f"[{title}]({page.relative_to(index.parent)})" in above


@pytest.mark.slow
def test_its_first_example_shows_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On imitated servers with steady times; only the time that measuring took is not compared."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(judging, "timing", steady_timing)
    begin = NOON - timedelta(days=1)
    records = (
        record(number, model="my-model", max_tokens=12)
        | {"timestamp": (begin + timedelta(seconds=10 * number)).isoformat()}
        for number in range(NUM_SESSIONS)
    )
    write_traffic(tmp_path / "traffic.jsonl", records)
    pip, example, *_ = commands(README)
    assert (pip.words[:2], example.words[:2]) == (("pip", "install"), ("shadowspec", "try"))
    servers = [FakeServer(depth, model="my-model", tells_cached=True, step_s=0.0) for depth in (0, 3)]
    with running(*servers):
        urls = {f"http://localhost:{8000 + place}": server.url for place, server in enumerate(servers)}
        done = run_command(monkeypatch, capsys, *(urls.get(word, word) for word in example.words[1:]))
    assert done.code == 0, done.err
    shown = README.read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    assert _steady(done.out) == _steady(shown), done.out


def _steady(screen: str) -> str:
    """The screen without the time that measuring took."""
    return re.sub(r"measured in [^.]+\.", "measured in TIME.", screen).strip()
