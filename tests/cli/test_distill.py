"""`shadowspec distill`: a folder that the engine runs, figures that replay gives of it, and refusals that say why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from shadowspec.distill.draft_folder import write_first_layers
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.models import LoadedModel, load_model, load_weights
from shadowspec.types import SamplingParameters, VerifyRule
from tests.cli.conftest import Workspace, record, write_traffic
from tests.small_models import VOCABULARY, letter_tokenizer, save_model

NUM_RECORDS = 120
QUICK = ("--tokens-per-step", "256", "--learning-rate", "1e-3", "--epochs", "2")
CONSENT = ("--consent", "opted in, ticket 7")


@pytest.fixture(scope="module")
def target(tiny_pair: tuple[Path, Path]) -> LoadedModel:
    return load_model(str(tiny_pair[0]), torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def traffic(target: LoadedModel) -> list[dict[str, Any]]:
    """Records with what the target answers to them, sampled."""
    asked = [record(number, max_tokens=12, temperature=0.9) for number in range(NUM_RECORDS)]
    sampling = SamplingParameters(temperature=0.9, max_tokens=12)
    prompts = [tuple(target.tokenizer.encode(entry["request"]["prompt"])) for entry in asked]
    answers = decode_batch(
        target.model, [Request(prompt, sampling, number) for number, prompt in enumerate(prompts)], proposer=None,
        num_speculative_tokens=0, verify_rule=VerifyRule.REJECTION, end_token_ids=target.end_token_ids,
    ).decoded  # fmt: skip
    return [
        entry
        | {
            "response": {
                "model": "m",
                "choices": [{"text": "", "token_ids": list(answer.output), "finish_reason": answer.finish_reason}],
                "usage": {"completion_tokens": len(answer.output)},
            }
        }
        for entry, answer in zip(asked, answers, strict=True)
    ]


@pytest.fixture
def file(traffic: list[dict[str, Any]], tmp_path: Path) -> str:
    return str(write_traffic(tmp_path / "t.jsonl", traffic))


def test_a_draft_is_written_and_gains_what_replay_says_of_it(workspace: Workspace, file: str) -> None:
    result = workspace.run("distill", file, "-e", "letters", "--out", "new", *CONSENT, *QUICK, "--json")
    assert result.code == 0, result.err
    found = result.document
    assert sum(found["responses"].values()) == NUM_RECORDS
    assert found["looks"][-1]["overlap"] > found["looks"][0]["overlap"]
    whole = next(gain for gain in found["gains"] if not gain["slice"])
    assert whole["difference"] == pytest.approx(
        whole["first_position_acceptance_rate_after"] - whole["first_position_acceptance_rate_before"]
    )
    assert whole["difference_lower"] < whole["difference"] < whole["difference_upper"]
    assert whole["num_requests"] == found["responses"]["held_out"]

    # The folder is a candidate's draft like any other: replay of all the traffic finds it nearer than the old one.
    toml = workspace.folder / "shadowspec.toml"
    text = '[[endpoints.letters.candidates]]\nname = "new"\nproposer = "draft_model"\ndraft = "new"\n'
    toml.write_text(toml.read_text("utf-8") + text + "num_speculative_tokens = 3\n", encoding="utf-8")
    replayed = workspace.run("replay", file, "--k", "3", "--json")
    assert replayed.code == 0, replayed.err
    rates = {cell["config"]: cell["first_position_acceptance_rate"] for cell in replayed.document["replays"]}
    assert rates["new"] > rates["draft"]


def test_the_card_says_from_what_and_holds_no_text(workspace: Workspace, file: str) -> None:
    assert workspace.run("distill", file, "-e", "letters", "--out", "new", *CONSENT, *QUICK).code == 0
    card = (workspace.folder / "new" / "README.md").read_text("utf-8")
    assert "opted in, ticket 7" in card
    assert "| training |" in card
    assert "whole endpoint" in card
    prompts = {json.loads(line)["request"]["prompt"] for line in Path(file).read_text("utf-8").splitlines()}
    long = {prompt for prompt in prompts if len(prompt) > 3}  # shorter ones are part of any English word
    assert long
    assert not [prompt for prompt in long if prompt in card]
    assert "Nothing is known of it" not in card
    assert not list((workspace.folder / "new").glob(".*"))
    assert {path.suffix for path in (workspace.folder / "new").iterdir()} >= {".safetensors", ".json", ".md"}


def test_a_rare_slices_prompts_are_answered_anew_and_learnt_from(
    workspace: Workspace, traffic: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cooler = [
        entry | {"request": entry["request"] | {"temperature": 0.4}} if number % 10 == 0 else entry
        for number, entry in enumerate(traffic)
    ]
    path = str(write_traffic(tmp_path / "cooler.jsonl", cooler))
    arguments = ("distill", path, "-e", "letters", *CONSENT, *QUICK, "--json")
    found = workspace.run(*arguments, "--out", "new").document
    assert 0 < found["answered_anew"] <= 3 * 12
    card = " ".join((workspace.folder / "new" / "README.md").read_text("utf-8").split())
    assert f"It also learnt from {found['answered_anew']} answers (" in card

    monkeypatch.setattr("shadowspec.app.distill_draft.sample_answers", lambda *_, **__: [])
    without = workspace.run(*arguments, "--out", "other").document
    assert without["answered_anew"] == 0
    assert without["output_tokens_learnt_from"] < found["output_tokens_learnt_from"]


def test_a_table_is_shown_and_where_the_draft_is(workspace: Workspace, file: str) -> None:
    result = workspace.run("distill", file, "-e", "letters", "--out", "new", *CONSENT, *QUICK)
    assert result.code == 0, result.err
    assert "letters, whole endpoint" in result.out
    assert "overlap with the target" in result.out
    assert "the draft and its card are in new" in result.out


def test_the_draft_keeps_the_dtype_of_its_base(
    workspace: Workspace, file: str, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    result = workspace.run("distill", file, "-e", "letters", "--out", "new", *CONSENT, *QUICK)
    assert result.code == 0, result.err
    before, after = (
        json.loads((folder / "config.json").read_text("utf-8"))["dtype"] for folder in (tiny_pair[1], tmp_path / "new")
    )
    assert before == after == "float32"


LOOKUP = """[[endpoints.letters.candidates]]
name = "lookup"
proposer = "ngram"
num_speculative_tokens = 2
"""


def without_a_draft(workspace: Workspace) -> None:
    """Leave the endpoint with a candidate that has no model."""
    toml = workspace.folder / "shadowspec.toml"
    head, _, _ = toml.read_text("utf-8").partition("[[endpoints.letters.candidates]]")
    toml.write_text(head + LOOKUP, encoding="utf-8")


def test_a_draft_is_made_of_the_targets_first_layers(
    workspace: Workspace, file: str, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    without_a_draft(workspace)
    asked = ("distill", file, "-e", "letters", "--from-layers", "1", "--out", "new", *CONSENT, *QUICK, "--json")
    result = workspace.run(*asked)
    assert result.code == 0, result.err
    found = result.document
    assert (found["candidate"], found["from_layers"], found["num_speculative_tokens"]) == (None, 1, 2)
    whole = next(gain for gain in found["gains"] if not gain["slice"])
    assert whole["first_position_acceptance_rate_after"] > whole["first_position_acceptance_rate_before"]

    target, made = (
        json.loads((folder / "config.json").read_text("utf-8")) for folder in (tiny_pair[0], tmp_path / "new")
    )
    assert (target["num_hidden_layers"], made["num_hidden_layers"]) == (2, 1)
    assert target["dtype"] == made["dtype"]
    draft = load_model("new", torch.device("cpu"), torch.float32)  # which also probes it
    card = (tmp_path / "new" / "README.md").read_text("utf-8")
    assert "| began as | the target's first 1 of 2 layers, its embeddings and head |" in card
    assert f"| parameters | {draft.num_parameters:,} |" in card
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set(), "nothing is left behind"


def test_training_from_layers_begins_with_the_targets_weights(target: LoadedModel, tmp_path: Path) -> None:
    write_first_layers(target.path, 1, tmp_path / "cut")
    cut, whole = (load_weights(path, torch.float32).state_dict() for path in (str(tmp_path / "cut"), target.path))
    assert set(cut) == {name for name in whole if ".layers.1." not in name}
    assert all(torch.equal(weights, whole[name]) for name, weights in cut.items())


def test_what_a_config_says_of_each_layer_is_cut_with_them(tmp_path: Path) -> None:
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=64,
    )  # fmt: skip
    save_model(tmp_path / "target", Qwen3ForCausalLM(config), letter_tokenizer())
    write_first_layers(str(tmp_path / "target"), 2, tmp_path / "cut")
    assert json.loads((tmp_path / "cut" / "config.json").read_text("utf-8"))["layer_types"] == ["full_attention"] * 2
    assert load_model(str(tmp_path / "cut"), torch.device("cpu"), torch.float32).model.config.num_hidden_layers == 2


def test_all_endpoints_with_the_target_take_part_in_a_draft_of_its_layers(
    workspace: Workspace, traffic: list[dict[str, Any]], tiny_pair: tuple[Path, Path]
) -> None:
    without_a_draft(workspace)
    toml = workspace.folder / "shadowspec.toml"
    other = f'\n[endpoints.other]\ntarget = "{tiny_pair[0]}"\nserved_models = ["o"]\nmatch = {{ model = "o" }}\n'
    text = toml.read_text("utf-8") + other + LOOKUP.replace("letters", "other")
    toml.write_text(text, encoding="utf-8")
    mixed = [
        entry | {name: entry[name] | {"model": "om"[row % 2]} for name in ("request", "response")}
        for row, entry in enumerate(traffic)
    ]
    path = write_traffic(workspace.folder / "mixed.jsonl", mixed)
    result = workspace.run(
        "distill", str(path), "-e", "letters", "--from-layers", "1", "--out", "new", *CONSENT, *QUICK, "--json"
    )
    assert result.code == 0, result.err
    assert result.document["endpoints"] == ["letters", "other"]
    assert {gain["endpoint"] for gain in result.document["gains"]} == {"letters", "other"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--from-layers", "2"), "has 2: give 1 to 1"),
        (("--from-layers", "0"), "invalid value for '--from-layers'"),
        (("--from-layers", "1", "--candidate", "draft"), "--from-layers from the target: give one of them"),
    ],
)
def test_layers_that_cannot_be_taken_say_why(
    workspace: Workspace, file: str, arguments: tuple[str, ...], words: str
) -> None:
    result = workspace.run("distill", file, "-e", "letters", "--out", "new", *CONSENT, *arguments)
    assert result.code == 2
    assert words in " ".join(result.err.split())
    assert not (workspace.folder / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-e", "nowhere"), "no endpoint 'nowhere' is configured (configured: letters)"),
        (("-e", "letters", "--candidate", "other"), "endpoints.letters has no candidate 'other' (it has: draft)"),
        (("-e", "letters", "--where", "consent"), "--where 'consent': expected LABEL=VALUE"),
        (("-e", "letters", "--where", "a=b", "--where", "a=c"), "--where 'a=c': the label 'a' is given twice"),
        (("-e", "letters", "--where", "consent=yes"), "keeps no label 'consent' (its labels: prompt_class, "),
        (("-e", "letters", "--held-out", "0.9", "--validation", "0.2"), "leave some to train on"),
        (("-e", "letters", "--learning-rate", "0"), "--learning-rate must be above 0"),
    ],
)
def test_what_cannot_be_asked_says_what_is_wrong(
    workspace: Workspace, file: str, arguments: tuple[str, ...], words: str
) -> None:
    result = workspace.run("distill", file, "--out", "new", *CONSENT, *arguments)
    assert result.code == 2
    assert words in result.err
    assert not (workspace.folder / "new").exists()


def test_no_consent_no_training(workspace: Workspace, file: str) -> None:
    result = workspace.run("distill", file, "-e", "letters", "--out", "new", "--consent", " ")
    assert result.code == 2
    assert "--consent is empty; write why you may train" in result.err
    assert workspace.run("distill", file, "-e", "letters", "--out", "new").code == 2


def test_only_records_with_the_label_are_learnt_from(workspace: Workspace, traffic: list[dict[str, Any]]) -> None:
    toml = workspace.folder / "shadowspec.toml"
    head = "[endpoints.letters]\n"
    assert head in toml.read_text("utf-8")
    toml.write_text(toml.read_text("utf-8").replace(head, f'{head}labels = ["consent"]\n'), encoding="utf-8")
    mixed = [entry | {"metadata": {"consent": "yes" if row % 2 else "no"}} for row, entry in enumerate(traffic)]
    path = write_traffic(workspace.folder / "mixed.jsonl", mixed)
    result = workspace.run(
        "distill", str(path), "-e", "letters", "--where", "consent=yes", "--out", "new", *CONSENT, *QUICK, "--json"
    )
    assert result.code == 0, result.err
    assert sum(result.document["responses"].values()) == NUM_RECORDS // 2
    left = [row for row in result.document["funnel"] if row["reason"] == "other_label"]
    assert [row["num_records"] for row in left] == [NUM_RECORDS // 2]


def test_max_requests_is_of_all_files_together(workspace: Workspace, traffic: list[dict[str, Any]]) -> None:
    files = [
        str(write_traffic(workspace.folder / f"{first}.jsonl", traffic[first : first + 40])) for first in (0, 40, 80)
    ]
    limit = ("--max-requests", "60", "--json")
    result = workspace.run("distill", *files, "-e", "letters", "--out", "new", *CONSENT, *QUICK, *limit)
    assert result.code == 0, result.err
    assert sum(result.document["responses"].values()) == 60


def test_a_draft_whose_comparison_did_not_end_has_a_card_that_says_so(
    workspace: Workspace, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shadowspec.app.distill_draft.compare", interrupted)
    result = workspace.run("distill", file, "-e", "letters", "--out", "new", *CONSENT, *QUICK)
    assert result.code == 130
    assert "the draft is in new, and nothing is known of it" in result.err
    assert "again to go on" not in result.err
    card = (workspace.folder / "new" / "README.md").read_text("utf-8")
    assert "opted in, ticket 7" in card
    assert "Nothing is known of it" in card
    assert "whole endpoint" not in card


def test_nothing_that_is_there_is_written_over(workspace: Workspace, file: str) -> None:
    (workspace.folder / "new").mkdir()
    (workspace.folder / "new" / "mine").write_text("kept", encoding="utf-8")
    result = workspace.run("distill", file, "-e", "letters", "--out", "new", *CONSENT, *QUICK)
    assert result.code == 2
    assert "--out new: exists already and is not empty" in result.err
    assert (workspace.folder / "new" / "mine").read_text("utf-8") == "kept"


def test_traffic_without_responses_says_so(workspace: Workspace) -> None:
    path = write_traffic(workspace.folder / "bare.jsonl", [record(number) for number in range(4)])
    result = workspace.run("distill", str(path), "-e", "letters", "--out", "new", *CONSENT)
    assert result.code == 4
    assert "no record holds a response that can be learnt from (no_response)" in result.err
    assert not (workspace.folder / "new").exists()


def test_too_few_sessions_say_so(workspace: Workspace, traffic: list[dict[str, Any]]) -> None:
    path = write_traffic(workspace.folder / "few.jsonl", traffic[:3])
    result = workspace.run("distill", str(path), "-e", "letters", "--out", "new", *CONSENT)
    assert result.code == 4
    assert "more traffic is needed" in result.err


def test_lookup_has_nothing_to_train(workspace: Workspace, file: str) -> None:
    toml = workspace.folder / "shadowspec.toml"
    text = '[[endpoints.letters.candidates]]\nname = "lookup"\nproposer = "ngram"\nnum_speculative_tokens = 3\n'
    toml.write_text(toml.read_text("utf-8") + text, encoding="utf-8")
    result = workspace.run("distill", file, "-e", "letters", "--candidate", "lookup", "--out", "new", *CONSENT)
    assert result.code == 2
    assert "only a candidate with proposer = 'draft_model' can be distilled; --from-layers makes a draft" in result.err
