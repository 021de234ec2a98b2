"""Every command as a user runs it, on a tiny pair: results, exit codes, resuming, and bad input."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowspec.cli import init
from shadowspec.config import load_config
from shadowspec.engine import Engine
from shadowspec.store import Store
from shadowspec.store.admin import schema as store_schema
from shadowspec.types import Block, BlockResult
from tests.builders.workspace import Workspace, record, write_traffic
from tests.identities import check_identities
from tests.small_models import letter_tokenizer, save_model, tiny_llama


@pytest.fixture
def traffic(workspace: Workspace) -> str:
    """Nine good records of nine sessions, and five bad ones."""
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    bad: list[Any] = [
        "not an object",
        record(50, model="other"),
        {**record(51), "path": "/v1/embeddings"},
        record(3),  # the same request id again
        {**record(52), "path": "/v1/chat/completions", "request": {
            "model": "m", "messages": [{"role": "user", "content": image}]}},
    ]  # fmt: skip
    return str(write_traffic(workspace.folder / "traffic.jsonl", [*(record(i) for i in range(9)), *bad]))


def test_the_whole_way(workspace: Workspace, traffic: str) -> None:
    assert workspace.run("db", "upgrade").code == 0
    doctor = workspace.run("doctor", "--json")
    assert doctor.code == 0, doctor.out
    done = workspace.run("run", traffic, "--json")
    assert done.code == 0, done.err
    assert done.document["records_read"] == 14
    assert done.document["requests_measured"] == 9
    assert done.document["blocks_measured"] == 5
    funnel = {(row["counter"], row["reason"]): row["num_records"] for row in done.document["funnel"]}
    assert sum(funnel.values()) == 14
    assert (funnel["measured", None], funnel["unsupported", "no_endpoint"]) == (9, 1)
    decided = workspace.run("gate", "--json")
    assert decided.code == 0, decided.err
    decisions = decided.document["decisions"]
    assert {tuple(d["slice"]) for d in decisions} == {(), ("prompt_class", "sampling_regime")}
    for decision in decisions:
        assert decision["verdict"] in {"ENABLE", "DISABLE", "HOLD"}
        assert {"speedup", "acceptance", "tail", "memory"} <= {test["name"] for test in decision["tests"]}
        for test in decision["tests"]:
            assert test["min_units"] >= 0
            assert test["outcome"] in {"pass", "fail", "open"}
    explained = workspace.run("gate", "--explain", str(decisions[0]["decision_id"]), "--json")
    assert explained.code == 0, explained.err
    explanation = explained.document["explanation"]
    assert {**explanation["decision"], "current_verdict": decisions[0]["verdict"]} == decisions[0]
    assert (explanation["num_runs"], explanation["differences"]) == (9, [])
    for decision in decisions:  # of the endpoint and of its slice
        shown = workspace.run("gate", "--explain", str(decision["decision_id"])).out
        assert "figures are the same" in shown
        assert "Speedup" in shown
        assert decision["reason"] in " ".join(shown.split())
        assert len(shown.splitlines()) <= 40
        whole = workspace.run("gate", "--explain", str(decision["decision_id"]), "--verbose").out
        assert "to pass at level" in " ".join(whole.split())
        assert "to pass at level" not in " ".join(shown.split())
    assert workspace.run("gate", "--explain", "999").code == 2
    assert workspace.run("report").code == 0
    page = (workspace.folder / "report.html").read_text(encoding="utf-8")
    assert "letters" in page
    workspace.replace_in_config("[gate]", "[dashboard]\nprice_per_gpu_hour = 2.5\n\n[gate]")
    report = json.loads(workspace.run("report", "--format", "json").out)
    assert report["schema_version"] == 1
    predicted = report["endpoints"][0]["predictions"]
    assert {each["price_per_hour"] for each in predicted} == {2.5}
    cost = predicted[0]["measured_cost"]["baseline"]  # a million tokens at so many ms each, in hours
    assert cost["cost_per_million_tokens"] == pytest.approx(cost["device_ms_per_token"] * 1_000 / 3_600 * 2.5)
    assert "letters" in workspace.run("gate").out


def test_a_decision_whose_rows_are_gone_is_explained_as_far_as_it_is_stored(workspace: Workspace, traffic: str) -> None:
    workspace.run("db", "upgrade")
    workspace.run("run", traffic)
    (decision, *_) = workspace.run("gate", "--json").document["decisions"]
    with Store.open(load_config(workspace.folder / "shadowspec.toml").database_url) as store:
        removal = store.retain(timedelta(days=1), is_forced=True, now=datetime.now(UTC) + timedelta(days=365_000))
    assert removal.num_runs == 9
    gone = workspace.run("gate", "--explain", str(decision["decision_id"]))
    assert gone.code == 4
    assert "runs are left" in gone.err
    assert decision["reason"] in " ".join(gone.out.split())


@pytest.mark.representative("span1")
@pytest.mark.parametrize("span", [(), ("--period", "day")])
def test_a_report_says_of_its_data_what_it_was_told(workspace: Workspace, traffic: str, span: tuple[str, ...]) -> None:
    workspace.migrate()
    workspace.run("run", traffic)
    assert workspace.run("report", *span, "--json").document["data_note"].startswith("Mirrored traffic")
    workspace.replace_in_config("[gate]", '[dashboard]\ndata_note = "A rehearsal."\n\n[gate]')
    assert workspace.run("report", *span, "--json").document["data_note"] == "A rehearsal."


def test_the_report_on_a_span_leaves_the_gating_report_alone(workspace: Workspace, traffic: str) -> None:
    workspace.migrate()
    workspace.run("run", traffic)
    assert "written: report.html" in workspace.run("report").err
    data = (workspace.folder / "report.html").read_bytes()
    assert "written: report-changes.html" in workspace.run("report", "--period", "day").err
    assert (workspace.folder / "report.html").read_bytes() == data
    assert b"Speculative decoding: changes" in (workspace.folder / "report-changes.html").read_bytes()


def test_where_nothing_was_measured_there_is_nothing_to_decide(workspace: Workspace) -> None:
    cut = record(0) | {
        "response": {"choices": [{"finish_reason": "stop", "text": "x"}]},
        "metadata": {"cache_hit": True},
    }
    path = write_traffic(workspace.folder / "useless.jsonl", [cut, "no object"])
    workspace.migrate()
    read = workspace.run("run", str(path))
    assert "next: shadowspec gate" not in read.err
    for command in (("gate",), ("gate", "-e", "letters"), ("gate", "--json")):
        bad(workspace, 4, "measured yet", command=command)


def test_rows_equal_records_and_identities_hold(workspace: Workspace, traffic: str) -> None:
    workspace.migrate()
    workspace.run("run", traffic)
    with Store.open("sqlite:///shadow.db") as store:
        assert sum(store.funnel().values()) == 14
        runs = store.runs("letters")
        assert len(runs) == 9
        for run in runs:
            assert run.counts is not None
            check_identities(run.counts)


def test_a_second_run_changes_nothing(workspace: Workspace, traffic: str) -> None:
    workspace.migrate()
    workspace.run("run", traffic)
    with Store.open("sqlite:///shadow.db") as store:
        before = store.runs("letters"), store.funnel()
    again = workspace.run("run", traffic, "--json")
    assert again.document["blocks_measured"] == 0
    assert again.document["requests_found"] == 9
    with Store.open("sqlite:///shadow.db") as store:
        assert (store.runs("letters"), store.funnel()) == before


@pytest.mark.representative("1")
@pytest.mark.parametrize("at", [0, 1, 3])
def test_an_interrupted_run_is_picked_up(
    workspace: Workspace, traffic: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.migrate()
    honest, seen = Engine.measure, []

    def interrupted(engine: Engine, block: Block) -> BlockResult:
        if len(seen) == at:
            raise KeyboardInterrupt
        seen.append(len(block.requests))
        return honest(engine, block)

    monkeypatch.setattr(Engine, "measure", interrupted)
    stopped = workspace.run("run", traffic)
    assert stopped.code == 130
    assert "again to resume" in stopped.err
    monkeypatch.setattr(Engine, "measure", honest)
    resumed = workspace.run("run", traffic, "--json")
    assert resumed.document["requests_found"] == sum(seen)
    assert resumed.document["blocks_measured"] == 5 - at
    with Store.open("sqlite:///shadow.db") as store:
        assert sum(store.funnel().values()) == 14
        assert len(store.runs("letters")) == 9


def test_gzip_and_max_requests(workspace: Workspace, traffic: str) -> None:
    workspace.migrate()
    packed = workspace.folder / "traffic.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(traffic).read_bytes()))
    done = workspace.run("run", str(packed), "--max-requests", "4", "--json")
    assert done.document["requests_measured"] == 4
    assert "stopped by --max-requests" in done.err
    # The same content has the same keys however it is packed.
    assert workspace.run("run", traffic, "--json").document["requests_measured"] == 5


@pytest.mark.all
def test_max_requests_is_of_all_files_together(workspace: Workspace) -> None:
    workspace.migrate()
    files = [
        str(write_traffic(workspace.folder / f"{first}.jsonl", [record(number) for number in range(first, first + 4)]))
        for first in (0, 10, 20)
    ]
    done = workspace.run("run", *files, "--max-requests", "6", "--json")
    assert (done.document["requests_measured"], done.document["records_read"]) == (6, 6)
    assert "stopped by --max-requests" in done.err
    # What is stored is no longer measured, and counts as none: the files go on where they were left.
    again = workspace.run("run", *files, "--max-requests", "100", "--json")
    assert (again.document["requests_measured"], again.document["requests_found"]) == (6, 6)
    assert "stopped by --max-requests" not in again.err


def bad(workspace: Workspace, code: int, *says: str, command: tuple[str, ...]) -> None:
    """The command ends with `code` and one message that says all of `says`; never a traceback."""
    result = workspace.run(*command)
    assert result.code == code, result.err + result.out
    text = " ".join((result.err + result.out).split())
    assert "Traceback" not in text
    for part in says:
        assert part in text


def test_bad_configuration(workspace: Workspace, traffic: str) -> None:
    workspace.replace_in_config("[gate]", "[gate]\nmarign = 0.1")
    bad(workspace, 2, "shadowspec.toml", "gate.marign", command=("run", traffic))
    workspace.replace_in_config("marign = 0.1", "margin = 'wide'")
    bad(workspace, 2, "margin", command=("gate",))
    workspace.replace_in_config("margin = 'wide'", "margin = ")
    bad(workspace, 2, "TOML", command=("gate",))
    bad(workspace, 2, "no such file", command=("gate", "--config", "elsewhere.toml"))
    (workspace.folder / "shadowspec.toml").unlink()
    bad(workspace, 2, "shadowspec init", command=("report",))
    assert workspace.run("init").code == 0
    bad(workspace, 2, "exists already", command=("init",))
    bad(workspace, 2, "shadowspec.toml exists already", command=("init", str(workspace.folder)))


@pytest.mark.parametrize(("given", "written"), [((), "shadowspec-torch"), (("vllm  0.32",), "vllm 0.32")])
def test_init_writes_the_serving_engine(workspace: Workspace, given: tuple[str, ...], written: str) -> None:
    done = workspace.run("init", "new.toml", *(f"--serving-engine={name}" for name in given))
    assert done.code == 0, done.err
    assert load_config(Path("new.toml")).endpoints["chat"].policy.serving_engine == written
    assert f"verdicts are for {written}" in done.err


def test_init_asks_for_the_serving_engine_at_a_terminal(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(question: str, **_: object) -> str:
        asked.append(question)
        return "sglang"

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", answer)
    assert init.choose_serving_engine(None, None) == "sglang"
    assert "Serving engine of your endpoint (vllm, sglang, llama.cpp" in asked[0]


def test_init_takes_one_engine_from_one_place(workspace: Workspace) -> None:
    bad(workspace, 2, "expected one engine", command=("init", "new.toml", "--serving-engine", "vllm sglang"))
    both = ("--serving-engine", "vllm", "--server", "http://127.0.0.1:1")
    bad(workspace, 2, "exclude each other; give one", command=("init", "new.toml", *both))
    assert not Path("new.toml").exists()


def test_bad_usage_is_two_and_never_a_verdict(workspace: Workspace) -> None:
    assert workspace.run("run").code == 2
    assert workspace.run("nonsense").code == 2
    assert workspace.run("gate", "--endpoint", "unknown").code == 2


def test_a_missing_secret_says_how_to_make_one(workspace: Workspace, traffic: str) -> None:
    (workspace.folder / "secret").unlink()
    bad(workspace, 2, "secret", "urandom", command=("run", traffic))


def test_bad_files(workspace: Workspace) -> None:
    workspace.migrate()
    bad(workspace, 2, "missing.jsonl", command=("run", "missing.jsonl"))
    (workspace.folder / "empty.jsonl").write_text("")
    bad(workspace, 4, "empty.jsonl", command=("run", "empty.jsonl"))
    bad(workspace, 2, "folder", command=("run", str(workspace.folder)))
    (workspace.folder / "broken.gz").write_bytes(b"\x1f\x8b" + b"junk" * 10)
    bad(workspace, 2, "broken.gz", command=("run", "broken.gz"))


def test_junk_long_lines_and_long_prompts_land_in_the_funnel(workspace: Workspace) -> None:
    workspace.migrate()
    path = workspace.folder / "junk.jsonl"
    long_prompt = record(1, prompt="a" * 300)
    five_megabytes = record(2, prompt="a" * 5_000_000)
    content = [json.dumps(item).encode() for item in (record(0), long_prompt, five_megabytes)]
    path.write_bytes(b"\n".join([bytes(range(256)).replace(b"\n", b""), b"\xff\xfe\x00", *content]) + b"\n")
    done = workspace.run("run", str(path), "--json")
    assert done.code == 0, done.err
    reported = [line.rsplit(": ", 1)[1] for line in done.err.splitlines() if f": {path}, line" in line]
    assert reported == [f"{path}, line 1, and 1 more line"]
    with Store.open("sqlite:///shadow.db") as store:
        counted = {(counter.value, reason): n for (_, counter, reason), n in store.funnel().items()}
        assert sum(counted.values()) == 5
        assert counted["unsupported", "longer_than_context"] == 2
        assert sum(n for (counter, _), n in counted.items() if counter == "malformed") == 2


def test_a_model_that_is_not_there_is_told_with_the_file_and_the_endpoint_that_ask_for_it(workspace: Workspace) -> None:
    workspace.migrate()
    (draft,) = (candidate.draft for candidate in load_config(Path("shadowspec.toml")).endpoints["letters"].candidates)
    workspace.replace_in_config(f'draft = "{draft}"', 'draft = "nowhere"')
    write_traffic(workspace.folder / "traffic.jsonl", [record(0)])
    done = workspace.run("run", "traffic.jsonl")
    assert done.code == 2
    assert "shadowspec.toml: endpoints.letters.candidates.draft.draft: " in " ".join(done.err.split())
    assert "nowhere" in done.err


def test_records_that_no_endpoint_matches_are_told_apart(workspace: Workspace) -> None:
    workspace.migrate()
    request = {"model": "unheard-of", "messages": [{"role": "user", "content": "canary"}]}
    record = {"timestamp": "2026-01-01T12:00:00Z", "session_id": "s", "path": "/v9/other", "request": request}
    path = workspace.folder / "other.jsonl"
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    done = workspace.run("run", str(path))
    assert done.code == 4
    assert "no record is of a configured endpoint (no_endpoint: 1); change an endpoint's `match`" in " ".join(
        done.err.split()
    )
    assert "canary" not in done.out + done.err


def test_a_binary_file_is_refused_before_models_are_loaded(workspace: Workspace) -> None:
    workspace.migrate()
    path = workspace.folder / "junk.bin"
    path.write_bytes(bytes(range(256)) * 10)
    done = workspace.run("run", str(path))
    assert (done.code, done.out) == (2, "")
    assert f"{path}: is binary; give JSON lines" in done.err.replace("\n", " ")
    assert "loading" not in done.err


def test_an_unforeseen_failure_is_70_with_its_traceback_too(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("shadowspec.cli.gate.find_config", fail)
    assert workspace.run("gate").code == 70
    assert "Traceback" not in workspace.run("gate").err
    reported = workspace.run("--verbose", "gate")
    assert (reported.code, "ZeroDivisionError" in reported.err) == (70, True)


def test_a_draft_with_another_tokenizer_is_refused(workspace: Workspace, traffic: str, tmp_path: Path) -> None:
    workspace.migrate()
    other = save_model(tmp_path / "other", tiny_llama(2), letter_tokenizer(first="b"))
    config = (workspace.folder / "shadowspec.toml").read_text(encoding="utf-8")
    draft = next(line for line in config.splitlines() if line.startswith("draft = "))
    workspace.replace_in_config(draft, f'draft = "{other}"')
    bad(workspace, 2, "tokenizers differ", str(other), command=("run", traffic))
    bad(workspace, 2, "tokenizers differ", command=("doctor",))


def test_unwritable_output(workspace: Workspace, traffic: str) -> None:
    workspace.migrate()
    workspace.run("run", traffic)
    (workspace.folder / "file").write_text("")
    bad(workspace, 2, "there is no folder file", command=("report", "--out", "file/report.html"))
    bad(workspace, 2, "--out file: is a file; give a folder", command=("demo", "--out", "file"))


def test_database_states(workspace: Workspace, traffic: str) -> None:
    bad(workspace, 2, "shadowspec db upgrade", command=("run", traffic))
    workspace.migrate()
    bad(workspace, 4, "shadowspec run", command=("gate",))
    assert workspace.run("db", "check").code == 0
    assert workspace.run("db", "current", "--json").document["revision"] == store_schema.head()
    workspace.replace_in_config("sqlite:///shadow.db", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    bad(workspace, 5, "127.0.0.1", command=("gate",))


def test_an_internal_error_shows_no_text_unasked(
    workspace: Workspace, traffic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.migrate()

    def broken(engine: Engine, block: Block) -> BlockResult:
        raise LookupError("the prompt was: abc")

    monkeypatch.setattr(Engine, "measure", broken)
    result = workspace.run("run", traffic)
    assert result.code == 70
    assert "LookupError" in result.err
    assert "abc" not in result.err


def test_prompt_text_is_nowhere_in_the_database(workspace: Workspace) -> None:
    workspace.migrate()
    path = write_traffic(workspace.folder / "t.jsonl", [record(0, prompt="cabbagebed"), record(1, prompt="cabbagebed")])
    workspace.run("run", str(path))
    stored = b"".join(file.read_bytes() for file in workspace.folder.glob("shadow.db*"))
    assert b"cabbagebed" not in stored
    assert b"session-0" not in stored
    assert b"request-0" not in stored
