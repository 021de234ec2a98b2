"""Outputs of servers are replayed in this process: honest counts agree with replay, wrong ones hold the endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
import torch
from transformers import AutoModelForCausalLM

from shadowspec.config import load_config
from shadowspec.errors import ConfigError
from shadowspec.store import Store
from tests.builders.served_models import serve
from tests.builders.workspace import Workspace, record, write_traffic
from tests.servers.fake_server import FakeServer, running
from tests.services import PATIENCE_S

DEPTH, NUM_TOKENS, NUM_REQUESTS = 3, 12, 24


class GreedyModel:
    """The arg-max of a folder's model, by transformers, one whole forward pass for each token."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._known: dict[tuple[int, ...], int] = {}

    def continued(self, tokens: list[int], count: int) -> list[int]:
        """The next tokens, this many; a probe's prompt may have tokens that the small model lacks."""
        found = [token % self._model.config.vocab_size for token in tokens]
        with torch.inference_mode():
            for _ in range(count):
                if (place := tuple(found)) not in self._known:
                    self._known[place] = int(self._model(torch.tensor([found])).logits[0, -1].argmax())
                found.append(self._known[place])
        return found[len(tokens) :]


@dataclass
class PairServer(FakeServer):
    """Answers greedily as its target does, and counts what it accepts of its draft; a lying one counts nothing."""

    target: GreedyModel | None = None
    draft: GreedyModel | None = None
    is_lying: bool = False

    def output(self, body: dict[str, Any]) -> list[int]:
        assert self.target is not None
        assert body["temperature"] == 0.0
        return self.target.continued(body["prompt"], body["max_tokens"])

    def num_accepted(self, body: dict[str, Any], before: list[int], step: int) -> int:
        if self.draft is None or self.target is None:
            return 0
        tokens = [*body["prompt"], *before]
        pairs = zip(self.target.continued(tokens, DEPTH), self.draft.continued(tokens, DEPTH), strict=True)
        number = next((place for place, (one, other) in enumerate(pairs) if one != other), DEPTH)
        return 0 if self.is_lying else number


@pytest.fixture
def served(workspace: Workspace, tiny_pair: tuple[Path, Path]) -> Iterator[tuple[Workspace, PairServer]]:
    """The endpoint of the workspace, measured through servers of its pair, every output audited."""
    target, draft = (GreedyModel(folder) for folder in tiny_pair)
    baseline, speculative = PairServer(target=target), PairServer(DEPTH, target=target, draft=draft)
    with running(baseline, speculative):
        serve(workspace, (baseline, speculative))
        workspace.replace_in_config("max_attempts = 2", "max_attempts = 2\naudit_share = 1.0")
        for name in ("first_token_timeout_s", "token_timeout_s"):  # a model answers
            workspace.replace_in_config(f"\n{name} = 0.5", f"\n{name} = {PATIENCE_S}")
        workspace.migrate()
        yield workspace, speculative


def measure(workspace: Workspace) -> Any:
    # A token that ends a text would end the output: the server above knows none.
    lines = [record(number, max_tokens=NUM_TOKENS, ignore_eos=True) for number in range(NUM_REQUESTS)]
    done = workspace.run("run", str(write_traffic(workspace.folder / "traffic.jsonl", lines)), "--json")
    assert done.code == 0, done.err
    return done


def stored(workspace: Workspace) -> list[tuple[int, int, float, float]]:
    """Tokens, accepted and expected tokens, and tolerance of every audited run."""
    engine = sqlalchemy.create_engine(f"sqlite:///{workspace.folder / 'shadow.db'}")
    with engine.connect() as connection:
        names = "num_output_tokens, num_accepted_tokens, expected_accepted_tokens, tolerance"
        rows = connection.execute(sqlalchemy.text(f"SELECT {names} FROM audits")).all()
    engine.dispose()
    return [tuple(row) for row in rows]


def test_honest_counts_are_those_of_replay(served: tuple[Workspace, PairServer]) -> None:
    workspace, _ = served
    measure(workspace)
    rows = stored(workspace)
    with Store.open(f"sqlite:///{workspace.folder / 'shadow.db'}") as store:
        runs = store.runs("letters")
        assert {run.failure for run in runs} == {None}
    assert len(rows) == len(runs) == NUM_REQUESTS
    assert sum(accepted for _, accepted, *_ in rows) == sum(
        run.counts.num_accepted_tokens for run in runs if run.counts
    )
    assert sum(accepted for _, accepted, *_ in rows) > NUM_REQUESTS
    for tokens, accepted, expected, tolerance in rows:
        assert (tokens, tolerance) == (NUM_TOKENS, 0.02)
        assert expected == pytest.approx(accepted, abs=1e-6)  # greedy: certain
    (audit, *others) = workspace.run("gate", "--json").document["audits"]
    assert audit["num_units"] == NUM_REQUESTS
    assert audit["difference"] == pytest.approx(0.0, abs=1e-9)
    assert not any(each["is_alarm"] for each in (audit, *others))


def test_a_server_that_counts_too_little_is_held(served: tuple[Workspace, PairServer]) -> None:
    workspace, speculative = served
    speculative.is_lying = True
    measure(workspace)
    done = workspace.run("gate", "--json")
    assert any(each["is_alarm"] for each in done.document["audits"])
    (override, *_) = workspace.run("override", "list", "--json").document["overrides"]
    assert (override["author"], override["verdict"]) == ("audit", "HOLD")


def test_what_is_not_drawn_is_not_replayed(served: tuple[Workspace, PairServer]) -> None:
    workspace, _ = served
    workspace.replace_in_config("audit_share = 1.0", "audit_share = 0.5")
    measure(workspace)
    assert 0 < len(stored(workspace)) < NUM_REQUESTS


def test_counts_of_another_answer_are_not_audited(served: tuple[Workspace, PairServer]) -> None:
    workspace, speculative = served
    speculative.level = "none"  # acceptance is then counted on a repeated request
    lines = [record(number, max_tokens=NUM_TOKENS, ignore_eos=True) for number in range(4)]
    done = workspace.run("run", str(write_traffic(workspace.folder / "traffic.jsonl", lines)))
    assert done.code == 2
    assert "servers.audit_share: answers of vllm/0.32.0 do not report accepted tokens" in done.err


def test_doctor_names_who_is_audited(served: tuple[Workspace, PairServer]) -> None:
    workspace, _ = served
    (finding,) = [each for each in workspace.run("doctor", "--json").document["checks"] if each["check"] == "audits"]
    assert finding["found"] == "100% of the outputs of letters's servers are replayed"


def replace_candidate(workspace: Workspace, candidate: str) -> None:
    text = (workspace.folder / "shadowspec.toml").read_text(encoding="utf-8")
    draft = next(line for line in text.splitlines() if line.startswith("draft ="))
    workspace.replace_in_config(f'proposer = "draft_model"\n{draft}', candidate)


def test_looked_up_drafts_are_taken(served: tuple[Workspace, PairServer]) -> None:
    workspace, _ = served
    replace_candidate(workspace, 'proposer = "ngram"')
    assert load_config(workspace.folder / "shadowspec.toml", {}).endpoints["letters"].loads_models


@pytest.mark.parametrize("candidate", ['method = "mtp"', 'proposer = "suffix"'])
def test_drafts_that_no_output_shows_are_refused(served: tuple[Workspace, PairServer], candidate: str) -> None:
    workspace, _ = served
    replace_candidate(workspace, candidate)
    with pytest.raises(ConfigError, match=r"servers\.audit_share: drafts of candidate 'draft' do not follow from an"):
        load_config(workspace.folder / "shadowspec.toml", {})


def test_a_target_without_weights_is_named(served: tuple[Workspace, PairServer]) -> None:
    workspace, _ = served
    folder = workspace.folder / "tokenizer"
    folder.mkdir()
    text = (workspace.folder / "shadowspec.toml").read_text(encoding="utf-8")
    target = next(line for line in text.splitlines() if line.startswith("target ="))
    source = Path(target.split('"')[1])
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    workspace.replace_in_config(target, f'target = "{folder}"')
    lines = [record(number, max_tokens=NUM_TOKENS, ignore_eos=True) for number in range(4)]
    done = workspace.run("run", str(write_traffic(workspace.folder / "traffic.jsonl", lines)))
    assert done.code == 2
    assert str(folder) in done.err
