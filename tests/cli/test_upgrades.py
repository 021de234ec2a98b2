"""`check --upgrade`: a second deployment is measured beside the first, and may replace it or not; it is no ENABLE."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shadowspec.servers import closed_loop, judging
from shadowspec.servers.stream import Completion
from shadowspec.store import Store
from shadowspec.types import ArmTiming, Verdict
from tests.builders.served_models import serve
from tests.builders.workspace import Workspace, record, write_traffic
from tests.cli_process import Result
from tests.servers.fake_server import FakeServer, running

OLD, NEW = "0.32.0", "0.33.0"
NARROW = "log_speedup_clip = 0.25\n"
Pair = tuple[FakeServer, FakeServer]


class Stopwatch:
    """Times as two deployments would have them: those of the second are longer by a factor."""

    def __init__(self, second: FakeServer, factor: float) -> None:
        self.second, self.factor, self.number = second, factor, 0

    def timing(self, answer: Completion, concurrency: float) -> ArmTiming:
        """The fake servers' answers differ in `queue_ms`, which tells whose answer it is."""
        self.number += 1
        noise = 1.0 + 0.01 * ((37 * self.number) % 11 - 5)
        is_second = answer.queue_ms == self.second.queue_ms
        decode_ms = 100.0 * noise * (self.factor if is_second else 1.0)
        return replace(
            closed_loop.timing(answer, concurrency), queue_ms=0.0, prefill_ms=3.0, decode_ms=decode_ms, other_ms=0.0
        )


@pytest.fixture
def upgraded(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that measures an endpoint through two deployments."""
    with ExitStack() as stack:

        def upgrade(
            pair: Pair,
            factor: float = 1.0,
            number: int = 200,
            drafts: int = 0,
            gate: str = NARROW,
            units: str = "hours",
        ) -> Result:
            for server in pair:
                server.step_s, server.tells_queue = 0.0, True
            pair[0].queue_ms, pair[1].queue_ms = 0.25, 0.5
            monkeypatch.setattr(judging, "timing", Stopwatch(pair[1], factor).timing)
            stack.enter_context(running(*pair))
            serve(workspace, pair)
            path = workspace.folder / "shadowspec.toml"
            text, _, servers = path.read_text(encoding="utf-8").partition("[[endpoints.letters.candidates]]")
            candidate = f'name = "next"\nkind = "deployment"\nnum_speculative_tokens = {drafts}\n'
            text += f"[[endpoints.letters.candidates]]\n{candidate}[endpoints.letters.servers]"
            text += servers.partition("[endpoints.letters.servers]")[2]
            if units == "hours":
                text = re.sub("min_span_s = .*\nwindow_s = .*", "min_span_s = 86400.0", text)
            text = text.replace("[gate]", f"[gate]\n{gate}")
            path.write_text(text, encoding="utf-8")
            workspace.migrate()
            begin = datetime.now(UTC) - timedelta(hours=number)
            records = [
                record(place, max_tokens=6) | {"timestamp": (begin + timedelta(hours=place)).isoformat()}
                for place in range(number)
            ]
            done = workspace.run("run", str(write_traffic(workspace.folder / "traffic.jsonl", records)), "--json")
            assert done.code == 0, done.err
            gated = workspace.run("gate", "--json")
            assert gated.code == 0, gated.err
            return gated

        yield upgrade


def whole(gated: Result) -> dict[str, Any]:
    (decision,) = [each for each in gated.document["decisions"] if not each["slice"]]
    return dict(decision)


def test_a_new_version_of_equal_speed_may_replace_the_old_one_and_is_no_enable(
    workspace: Workspace, upgraded: Any
) -> None:
    decision = whole(upgraded((FakeServer(version=OLD), FakeServer(version=NEW))))
    assert (decision["verdict"], decision["reason_code"]) == ("HOLD", "may_replace"), decision["reason"]
    done = workspace.run("check", "--endpoint", "letters", "--upgrade")
    assert done.code == 0, done.err
    text = " ".join(done.out.split())
    assert text.startswith("REPLACE letters: next may replace the deployment that serves")
    assert "the deployment that serves runs vllm/0.32.0, the other one vllm/0.33.0" in text.lower()
    assert "ENABLE" not in text
    document = workspace.run("check", "--endpoint", "letters", "--upgrade", "--json").document
    assert (document["outcome"], document["is_upgrade"], document["exit_code"]) == ("REPLACE", True, 0)
    assert {load["verdict"] for finding in document["findings"] for load in finding["loads"]} == {"HOLD"}

    done = workspace.run("check", "--endpoint", "letters")
    assert (done.code, "ask with --upgrade" in done.err) == (2, True)
    exported = workspace.run("export", "vllm", "--endpoint", "letters")
    assert "num_speculative_tokens" not in exported.out, "nothing switches speculation on"
    with Store.open(f"sqlite:///{workspace.folder}/shadow.db") as store:
        assert {row.verdict for row in store.latest_decisions()} == {Verdict.HOLD}
        assert {run.counts.num_drafts for run in store.runs("letters") if run.counts} == {0}
    assert workspace.run("report", "--format", "md").code == 0
    assert "letters REPLACE" in " ".join(workspace.run("gate").out.split())


def test_a_replacement_that_blocks_prove_holds_for_the_recording_only(workspace: Workspace, upgraded: Any) -> None:
    gated = upgraded((FakeServer(version=OLD), FakeServer(version=NEW)), units="blocks")
    assert whole(gated)["reason_code"] == "may_replace"
    done = workspace.run("check", "--endpoint", "letters", "--upgrade")
    assert (done.code, done.out) == (4, "")
    assert "the units of its verdict are blocks (window_s = 0)" in " ".join(done.err.split())


def test_one_that_is_slower_by_a_tenth_is_refused(workspace: Workspace, upgraded: Any) -> None:
    decision = whole(upgraded((FakeServer(version=OLD), FakeServer(version=NEW)), factor=1.1, number=320))
    assert (decision["verdict"], decision["reason_code"]) == ("HOLD", "must_not_replace")
    done = workspace.run("check", "--endpoint", "letters", "--upgrade")
    assert done.code == 1, done.err
    assert "KEEP letters: next must not replace the deployment that serves" in done.out
    assert "letters KEEP" in " ".join(workspace.run("gate").out.split())
    assert "must be above 0.95\N{MULTIPLICATION SIGN}" in " ".join(done.out.split())


def test_a_changed_output_refuses_unless_a_score_judges_quality(workspace: Workspace, upgraded: Any) -> None:
    gated = upgraded((FakeServer(version=OLD), FakeServer(version=NEW, lost_token=2)), number=24)
    assert whole(gated)["reason_code"] == "must_not_replace"
    assert "differ from the target's" in workspace.run("check", "--endpoint", "letters", "--upgrade").out


def test_a_score_in_place_of_parity(workspace: Workspace, upgraded: Any) -> None:
    pair = FakeServer(version=OLD), FakeServer(version=NEW, lost_token=2)
    decision = whole(upgraded(pair, number=24, gate="score_margin = 0.05\n"))
    assert decision["reason_code"] != "must_not_replace"
    with Store.open(f"sqlite:///{workspace.folder}/shadow.db") as store:
        (row,) = [row for row in store.latest_decisions() if not row.slice_key]
    required = {test.name for test in row.tests if test.is_required}
    assert "score" in required
    assert not required & {"parity_near_ties", "parity_faults", "acceptance"}


class Accepting(FakeServer):
    """Accepts the first drafted token in some of its steps."""

    share = 10

    def num_accepted(self, body: dict[str, Any], before: list[int], step: int) -> int:
        return int((3 * sum(body["prompt"]) + step) % 10 < self.share)


class Rejecting(Accepting):
    share = 4


def test_both_acceptances_stay_and_a_loss_beyond_the_noise_refuses(workspace: Workspace, upgraded: Any) -> None:
    decision = whole(upgraded((Accepting(3, version=OLD), Rejecting(3, version=NEW)), drafts=3))
    (kept,) = [test for test in decision["tests"] if test["name"] == "acceptance_kept"]
    assert (kept["outcome"], decision["reason_code"]) == ("fail", "must_not_replace")
    assert -0.8 < kept["upper"] < -0.02
    done = workspace.run("check", "--endpoint", "letters", "--upgrade")
    assert done.code == 1
    said = " ".join(done.out.split())
    assert re.search(r"Acceptance 1\.000 in the deployment that serves, 0\.[3-6]\d\d in the other", said)
