"""`evaluate`: a task set through both servers, from the harness's files to the gate, and no text on the way.

The harness is imitated by a program that writes the files of a real run (tests/data/lm_eval) with other scores.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shadowspec.app import evaluate_tasks
from shadowspec.errors import InputError
from shadowspec.quality.task_samples import read_samples
from shadowspec.store import Store
from shadowspec.types import PairedScore
from tests.builders.served_models import measured, serve, serve_several
from tests.builders.workspace import Workspace
from tests.servers.fake_server import FakeServer, running

RECORDED = Path(__file__).parents[1] / "data" / "lm_eval"
HARNESS = """\
#!{python}
import json, os, pathlib, sys
options, names = {{}}, iter(sys.argv[1:])
for name in names:
    options[name] = "" if name in ("--log_samples", "--apply_chat_template") else next(names)
plan = json.loads(pathlib.Path({plan!r}).read_text())
asked = dict(pair.split("=", 1) for pair in options["--model_args"].split(","))
with open(plan["asked"], "a") as log:
    log.write(json.dumps([options, asked, os.environ["OPENAI_API_KEY"], options["--output_path"]]) + "\\n")
if plan.get("fails"):
    print(plan["fails"], file=sys.stderr)
    sys.exit(3)
(arm,) = [each for each in plan["scores"] if asked["base_url"].startswith(each)]
folder = pathlib.Path(options["--output_path"]) / "m"
folder.mkdir(parents=True)
(folder / "results_now.json").write_text(json.dumps(plan["results"]))
with open(folder / "samples_sums_now.jsonl", "w") as samples:
    for number, score in enumerate(plan["scores"][arm]):
        row = plan["sample"] | {{"doc_id": number, "doc_hash": f"hash-{{number}}", "exact_match": score}}
        samples.write(json.dumps(row) + "\\n")
"""


class Harness:
    """The imitated harness, and what it was asked."""

    def __init__(self, folder: Path, servers: Sequence[FakeServer]) -> None:
        self.program, self._plan, self._asked = folder / "lm_eval", folder / "plan.json", folder / "asked.jsonl"
        self._urls = [server.url for server in servers]
        self.program.write_text(HARNESS.format(python=sys.executable, plan=str(self._plan)))
        self.program.chmod(0o755)

    def plans(self, *scores: list[Any], **changes: Any) -> None:
        """What it will find at each server, the baseline first; the changes go into the plan."""
        results = json.loads((RECORDED / "results.json").read_text())
        sample = json.loads((RECORDED / "samples.jsonl").read_text().splitlines()[0])
        plan = {
            "results": results,
            "sample": sample,
            "asked": str(self._asked),
            "scores": dict(zip(self._urls, scores, strict=True)),
        }
        self._plan.write_text(json.dumps(plan | changes))

    @property
    def asked(self) -> list[Any]:
        """By run: its options, its model's arguments, its key, and its folder."""
        return [json.loads(line) for line in self._asked.read_text().splitlines()]


@pytest.fixture
def servers() -> Iterator[tuple[FakeServer, FakeServer]]:
    pair = FakeServer(), FakeServer(3)
    with running(*pair):
        yield pair


@pytest.fixture
def served(workspace: Workspace, servers: tuple[FakeServer, FakeServer]) -> Workspace:
    serve(workspace, servers)
    workspace.migrate()
    return workspace


@pytest.fixture
def harness(served: Workspace, servers: tuple[FakeServer, FakeServer]) -> Harness:
    return Harness(served.folder, servers)


def evaluated(workspace: Workspace, harness: Harness, *arguments: str) -> Any:
    fixed = ("evaluate", "--endpoint", "letters", "--tasks", "sums", "--lm-eval", str(harness.program))
    return workspace.run(*fixed, *arguments)


def test_a_task_set_becomes_evidence_for_the_config_that_was_measured(served: Workspace, harness: Harness) -> None:
    served.replace_in_config("[gate]", "[gate]\ntask_margin = 0.05")
    assert measured(served, *range(6)).code == 0
    harness.plans([1.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0])
    done = evaluated(served, harness, "--limit", "4", "--json", "--", "--include_path", "tasks of ours")
    assert done.code == 0, done.err
    with Store.open("sqlite:///shadow.db") as store:
        (evaluation,) = store.evaluations("letters")
        measured_fingerprints = {run.fingerprint for run in store.runs("letters")}
    assert done.document["tasks"] == [
        {
            "config": "draft",
            "fingerprint": evaluation.fingerprint,
            "task": "sums",
            "metric": "exact_match,first-number",
            "num_documents": 4,
            "baseline": 0.75,
            "speculative": 0.5,
            "num_different": 1,
        }
    ]
    assert (done.document["num_documents"], done.document["num_new_documents"]) == (4, 4)

    # Both arms were asked alike, but for the server.
    (base, spec) = harness.asked
    assert base[0]["--include_path"] == "tasks of ours"
    assert (base[0]["--tasks"], base[0]["--limit"], base[0]["--model"]) == ("sums", "4", "local-completions")
    assert base[1] == spec[1] | {"base_url": base[1]["base_url"]}
    assert (base[1]["model"], base[1]["num_concurrent"]) == ("m", "2")
    assert base[1]["base_url"].endswith("/v1/completions")
    assert not Path(base[3]).exists(), "its folder holds prompts"

    # The evidence belongs to the fingerprint of the measured runs, and the gate counts it.
    assert measured_fingerprints == {evaluation.fingerprint}
    assert sorted(evaluation.documents.values(), key=repr) == sorted(
        [PairedScore(1.0, 1.0), PairedScore(0.0, 0.0), PairedScore(1.0, 0.0), PairedScore(1.0, 1.0)], key=repr
    )
    gated = served.run("gate", "--json")
    tests = [test for each in gated.document["decisions"] for test in each["tests"] if test["name"] == "task_score"]
    assert {(test["num_clusters"], test["estimate"], test["threshold"]) for test in tests} == {(4, -0.25, -0.05)}
    again = evaluated(served, harness)
    assert "0 new documents of 4" in again.out


@contextmanager
def descriptors_in(file: Path) -> Iterator[None]:
    """What this process and its children write to stdout and stderr, as the descriptors see it."""
    before = [(number, os.dup(number)) for number in (1, 2)]
    try:
        with file.open("wb") as taken:
            for number, _ in before:
                os.dup2(taken.fileno(), number)
            yield
    finally:
        for number, kept in before:
            os.dup2(kept, number)
            os.close(kept)


def test_no_text_leaves_the_harness(served: Workspace, harness: Harness) -> None:
    texts = json.loads((RECORDED / "samples.jsonl").read_text().splitlines()[0])
    harness.plans([1.0, 0.0], [1.0, 1.0])
    done = evaluated(served, harness, "--verbose")
    assert done.code == 0, done.err
    assert "set task_margin in the endpoint's policy" in done.err
    harness.plans([1.0], [1.0], fails="a prompt that was refused")
    with descriptors_in(served.folder / "descriptors"):
        failed = evaluated(served, harness, "--verbose")
    assert failed.code == 2
    assert b"refused" not in (served.folder / "descriptors").read_bytes()
    assert "lm_eval ended with exit code 3 at the baseline server" in failed.err
    assert "--output_path OUTPUT_FOLDER" in " ".join(failed.err.split()), "so that the operator can see its messages"
    written = "".join(each.out + each.err for each in (done, failed)).encode()
    written += b"".join(each.read_bytes() for each in served.folder.glob("shadow.db*") if each.is_file())
    for text in (texts["doc"]["question"], texts["arguments"]["gen_args_0"]["arg_0"], "hash-0", "refused"):
        assert text.encode() not in written


def test_the_key_is_in_the_environment_and_in_no_argument(
    served: Workspace,
    harness: Harness,
    servers: tuple[FakeServer, FakeServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served.replace_in_config('device = "a fake"', 'device = "a fake"\napi_key_variable = "OUR_KEY"')
    monkeypatch.setenv("OUR_KEY", "key-of-ours")
    for server in servers:
        server.key = "key-of-ours"
    harness.plans([1.0], [1.0])
    assert evaluated(served, harness, "--chat").code == 0
    for options, model, key, _ in harness.asked:
        assert key == "key-of-ours"
        assert key not in json.dumps([options, model])
        assert (options["--model"], "--apply_chat_template" in options) == ("local-chat-completions", True)
        assert model["base_url"].endswith("/v1/chat/completions")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--", "--limit", "3"), 2, "lm_eval's --limit is set by this command"),
        (("--", "--model_args=x=y"), 2, "lm_eval's --model_args is set by this command"),
        (("--metric", "bleu"), 2, "task sums has no metric bleu (it has: exact_match,first-number)"),
        (("--lm-eval", "nothing"), 2, "--lm-eval: nothing is not an executable file"),
    ],
)
def test_what_cannot_be_asked(
    served: Workspace, harness: Harness, arguments: tuple[str, ...], code: int, says: str
) -> None:
    harness.plans([1.0], [1.0])
    done = evaluated(served, harness, *arguments)
    assert (done.code, says in " ".join(done.err.split())) == (code, True), done.err
    with Store.open("sqlite:///shadow.db") as store:
        assert store.evaluations("letters") == []


def test_another_metric_is_another_measure(served: Workspace, harness: Harness) -> None:
    harness.plans([1.0], [1.0])
    assert evaluated(served, harness).code == 0
    sample = json.loads((RECORDED / "samples.jsonl").read_text().splitlines()[0])
    harness.plans([1.0], [1.0], sample=sample | {"filter": "another"})
    done = evaluated(served, harness)
    assert done.code == 2
    assert "was evaluated with this config by exact_match,first-number, and now by exact_match,another" in done.err
    harness.plans([1.0], [1.0])
    done = evaluated(served, harness, "--chat")
    assert "and now by exact_match,first-number (chat)" in done.err, "another way of asking"


def test_each_of_several_candidates_is_scored_beside_one_baseline(workspace: Workspace) -> None:
    with running(*(fakes := (FakeServer(), FakeServer(3), FakeServer(5)))):
        serve_several(workspace, fakes[0], {"k3": fakes[1], "k5": fakes[2]})
        workspace.migrate()
        harness = Harness(workspace.folder, fakes)
        harness.plans([1.0, 0.0], [1.0, 1.0], [0.0, 0.0])
        done = evaluated(workspace, harness, "--json")
        assert done.code == 0, done.err
        assert len(harness.asked) == 3
        found = [(task["config"], task["baseline"], task["speculative"]) for task in done.document["tasks"]]
        assert found == [("k3", 0.5, 1.0), ("k5", 0.5, 0.0)]
        assert len({task["fingerprint"] for task in done.document["tasks"]}) == 2
        assert (done.document["num_documents"], done.document["num_new_documents"]) == (4, 4)
        assert evaluated(workspace, harness, "--json").document["num_new_documents"] == 0


def test_a_server_that_is_replaced_meanwhile(
    served: Workspace, harness: Harness, servers: tuple[FakeServer, FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.plans([1.0], [1.0])
    ask = evaluate_tasks._ask

    def replaced(*arguments: Any) -> Any:
        servers[1].version = "0.33.0"
        return ask(*arguments)

    monkeypatch.setattr(evaluate_tasks, "_ask", replaced)
    done = evaluated(served, harness)
    assert (done.code, "it was vllm/0.32.0 and is now vllm/0.33.0" in done.err) == (5, True), done.err
    with Store.open("sqlite:///shadow.db") as store:
        assert store.evaluations("letters") == []


def test_an_endpoint_without_servers(workspace: Workspace) -> None:
    done = workspace.run("evaluate", "--endpoint", "letters", "--tasks", "sums")
    assert (done.code, "endpoint 'letters' does not have engine = \"openai\"" in done.err) == (2, True)


def test_an_answer_of_one_arm_only(served: Workspace, harness: Harness) -> None:
    harness.plans([1.0, 1.0], [1.0])
    done = evaluated(served, harness)
    assert (done.code, "the servers were asked different prompts" in done.err) == (2, True)


def folder_of(place: Path, rows: list[dict[str, Any]] | None = None, **changes: Any) -> Path:
    results = json.loads((RECORDED / "results.json").read_text())
    for name, change in changes.items():
        results[name]["sums"] |= change
    (place / "results_now.json").write_text(json.dumps(results))
    lines = (RECORDED / "samples.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines] if rows is None else rows
    (place / "samples_sums_now.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return place


def test_the_files_of_a_real_run(tmp_path: Path) -> None:
    (samples,) = read_samples(folder_of(tmp_path)).values()
    assert (samples.task, samples.metric) == ("sums", "exact_match,first-number")
    assert list(samples.scores.values()) == [0.0, 1.0, 0.0, 0.0]
    (last,) = read_samples(tmp_path, "exact_match,last-number").values()
    assert last.metric == "exact_match,last-number"
    (worse,) = read_samples(folder_of(tmp_path, higher_is_better={"exact_match": False})).values()
    assert list(worse.scores.values()) == [1.0, 0.0, 1.0, 1.0], "an error rate"
    with pytest.raises(InputError, match="speculation cannot change them; take tasks of output_type generate_until"):
        read_samples(folder_of(tmp_path, configs={"output_type": "multiple_choice"}))
    with pytest.raises(InputError, match="it did not finish"):
        read_samples(tmp_path / "nothing")


@pytest.mark.parametrize("value", [30.5, ["a secret answer", "a secret prompt"], None, -0.1])
def test_a_metric_that_is_no_score_quotes_nothing(tmp_path: Path, value: object) -> None:
    row = json.loads((RECORDED / "samples.jsonl").read_text().splitlines()[0]) | {"exact_match": value}
    with pytest.raises(InputError, match="choose another one with --metric") as raised:
        read_samples(folder_of(tmp_path, [row]))
    assert "secret" not in str(raised.value)


def test_a_score_that_is_not_defined_is_missing(tmp_path: Path) -> None:
    row = json.loads((RECORDED / "samples.jsonl").read_text().splitlines()[0]) | {"exact_match": float("nan")}
    (samples,) = read_samples(folder_of(tmp_path, [row])).values()
    assert list(samples.scores.values()) == [None]
