"""Verdicts as metrics: what a scrape of a real socket says of a store."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shadowspec.errors import ConfigError
from shadowspec.gate.policy import GatePolicy
from shadowspec.rollout.check.answer import EndpointTerms
from shadowspec.scheduler.http_pages import serving
from shadowspec.scheduler.verdict_metrics import VerdictMetrics
from shadowspec.store import Store
from shadowspec.types import GUARD, Decision, EvidenceSummary, Override, Stage, TestResult, Verdict
from tests.services import PATIENCE_S, free_port
from tests.store import examples

APART = ("verdict", "bound", "stage", "outcome")
TERMS = EndpointTerms(GatePolicy(window_s=0.0))
Samples = dict[tuple[str, str], float]


@pytest.fixture
def store(new_database: Callable[[str], str]) -> Iterator[Store]:
    with Store.open(new_database("sqlite")) as opened:
        opened.save_fingerprints([examples.config()])
        opened.append_decisions([enabled()])
        yield opened


def enabled() -> Decision:
    """An ENABLE for an engine that serves, on evidence of now."""
    speedup = TestResult("speedup", "pass", 1.3, 1.1, 1.6, 1.05, 0.025, "window", 30, 27)
    now = datetime.now(UTC)
    decided = replace(examples.decision(Verdict.ENABLE), tests=(speedup,), engine="vllm/0.32.0", decided_at=now)
    return replace(decided, evidence=EvidenceSummary(newest_evidence=now))


def scrape(store: Store) -> Samples:
    """By name and the label that tells samples of a family apart; the other labels are the same in all of them."""
    address = f"127.0.0.1:{free_port()}"
    with (
        serving(VerdictMetrics(store, {"chat": TERMS}), {}, address),
        urllib.request.urlopen(f"http://{address}/metrics") as answer,
    ):
        text = answer.read().decode()
    return {
        (sample.name, next((sample.labels[each] for each in APART if each in sample.labels), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_verdict_in_force_is_one_and_the_others_are_zero(store: Store) -> None:
    found = scrape(store)
    assert {verdict: found["shadowspec_verdict", verdict] for verdict in Verdict} == {
        Verdict.ENABLE: 1.0,
        Verdict.DISABLE: 0.0,
        Verdict.HOLD: 0.0,
    }
    assert found["shadowspec_alarm", ""] == 0.0


def test_the_check_s_answer_is_a_metric(store: Store) -> None:
    """At the stage that the rollout is in, under overrides, over all candidates."""

    def outcomes() -> list[str]:
        return [name for (family, name), value in scrape(store).items() if family == "shadowspec_check" and value]

    assert outcomes() == ["ENABLE"]
    other = replace(enabled(), config=replace(examples.CONFIG, name="other"), fingerprint="other", verdict=Verdict.HOLD)
    store.save_fingerprints([replace(examples.config(), config=other.config, fingerprint="other")])
    store.append_decisions([other])
    assert outcomes() == ["ENABLE"], "of two candidates the better one answers"
    store.append_rollouts([replace(examples.rollout(Stage.SHADOW), share=0.0)])
    assert outcomes() == ["HOLD"]
    store.add_override(Override(0, "chat", "", None, Verdict.DISABLE, "incident", "ada", datetime.now(UTC)))
    assert outcomes() == ["DISABLE"]


def test_figures_of_the_decision(store: Store) -> None:
    found, (decision,) = scrape(store), store.latest_decisions("chat")
    speedup = next(test for test in decision.tests if test.name == "speedup")
    assert found["shadowspec_speedup_ratio", "lower"] == speedup.lower
    assert found["shadowspec_evidence_sessions", ""] == decision.num_clusters


def test_an_alarm_takes_the_verdict_out_of_force(store: Store) -> None:
    now = datetime.now(UTC)
    store.add_override(Override(0, "chat", "", None, Verdict.DISABLE, "acceptance fell", GUARD, now))
    found = scrape(store)
    assert found["shadowspec_verdict", "ENABLE"] == 0.0
    assert found["shadowspec_verdict", "DISABLE"] == 1.0
    assert found["shadowspec_alarm", ""] == 1.0


def test_an_operators_order_is_no_alarm(store: Store) -> None:
    now = datetime.now(UTC)
    expired = Override(
        0, "chat", "", None, Verdict.DISABLE, "old", GUARD, now - timedelta(days=2), now - timedelta(days=1)
    )
    store.add_override(expired)
    store.add_override(Override(0, "chat", "", None, Verdict.HOLD, "incident", "ada", now))
    found = scrape(store)
    assert (found["shadowspec_verdict", "HOLD"], found["shadowspec_alarm", ""]) == (1.0, 0.0)


def test_a_rollout_has_one_stage(store: Store) -> None:
    store.append_rollouts([replace(examples.rollout(Stage.PARTIAL), share=0.1)])
    found = scrape(store)
    assert [found["shadowspec_rollout_stage", stage] for stage in Stage] == [0.0, 1.0, 0.0]
    assert found["shadowspec_rollout_share_ratio", ""] == 0.1


def test_an_address_that_is_taken_is_named(store: Store) -> None:
    address = f"127.0.0.1:{free_port()}"
    metrics = VerdictMetrics(store)
    with (
        serving(metrics, {}, address),
        pytest.raises(ConfigError, match=f"metrics_address {address}: cannot be listened on"),
        serving(metrics, {}, address),
    ):
        pass


def test_a_client_that_says_nothing_is_let_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowspec.scheduler.http_pages.REQUEST_TIMEOUT_S", 0.1)
    port = free_port()
    with (
        serving(VerdictMetrics(store), {}, f"127.0.0.1:{port}"),
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as silent,
    ):
        assert silent.recv(1) == b""
