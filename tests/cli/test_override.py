"""`override set`, `clear` and `list`, as an operator uses them."""

from __future__ import annotations

import pytest

from shadowspec.store import Store
from shadowspec.types import Verdict
from tests.builders.workspace import Workspace, record, write_traffic
from tests.store import examples

WHO = ("--reason", "it answers nonsense", "--author", "ada")


@pytest.fixture
def decided(workspace: Workspace) -> Workspace:
    """A database in which the configured endpoint has a current ENABLE."""
    workspace.migrate()
    with Store.open("sqlite:///shadow.db") as store:
        store.save_fingerprints([examples.config()])
        store.append_decisions([examples.decision(Verdict.ENABLE, endpoint="letters")])
    return workspace


def test_set_list_clear(decided: Workspace) -> None:
    done = decided.run("override", "set", "--endpoint", "letters", *WHO)
    assert (done.code, done.out.strip()) == (0, "override 1: letters is DISABLE until it is cleared")
    assert done.err == ""
    listed = decided.run("override", "list")
    assert "it answers nonsense" in listed.out
    assert "in force" in listed.out
    cleared = decided.run("override", "clear", "1", "--reason", "mended", "--author", "grace")
    assert (cleared.code, cleared.out.strip()) == (0, "override 1 is cleared: letters")
    assert "no override is in force" in decided.run("override", "list").out
    assert "cleared by grace: mended" in decided.run("override", "list", "--all").out
    again = decided.run("override", "clear", "1", "--reason", "mended", "--author", "grace")
    assert (again.code, "cleared before, by grace" in again.err) == (2, True)


def test_json(decided: Workspace) -> None:
    document = decided.run(
        "override", "set", "-e", "letters", "--slice", "sampling_regime=high", "--slice", "prompt_class=code",
        "--load", "8", "--verdict", "hold", "--expires-in", "12h", "--allow-unseen", *WHO, "--json",
    ).document  # fmt: skip
    assert document["schema_version"] == 1
    assert document["num_decisions_covered"] == 0
    stored_override = document["override"]
    assert stored_override["slice"] == {"prompt_class": "code", "sampling_regime": "high"}
    assert (stored_override["verdict"], stored_override["load"], stored_override["is_active"]) == (
        "HOLD",
        {"concurrency": 8},
        True,
    )
    assert stored_override["expires_at"] > stored_override["created_at"]
    assert decided.run("override", "list", "--json").document["overrides"] == [stored_override]
    unknown = decided.run("override", "list", "--endpoint", "leters", "--json")
    assert (unknown.code, "no endpoint 'leters'; did you mean letters? (known: letters)" in unknown.err) == (2, True)
    cleared = decided.run("override", "clear", "1", "--reason", "mended", "--author", "grace", "--json").document
    assert cleared["override"]["cleared_by"] == "grace"
    assert not cleared["override"]["is_active"]


def test_what_covers_nothing_yet_is_said(decided: Workspace) -> None:
    order = ("override", "set", "-e", "letters", "--slice", "prompt_class=code", *WHO)
    refused = decided.run(*order)
    assert (refused.code, "no measured record of endpoint 'letters' has prompt_class=code" in refused.err) == (2, True)
    done = decided.run(*order, "--allow-unseen")
    assert done.code == 0
    assert "it covers no decision yet" in done.err


def test_of_an_endpoint_that_was_taken_from_the_configuration_any_slice_can_be_kept_off(workspace: Workspace) -> None:
    traffic = write_traffic(workspace.folder / "t.jsonl", [record(0)])
    workspace.migrate()
    assert workspace.run("run", str(traffic)).code == 0
    workspace.replace_in_config("endpoints.letters", "endpoints.words")
    done = workspace.run("override", "set", "-e", "letters", "--slice", "prompt_class=code", "--allow-unseen", *WHO)
    assert (done.code, done.out.strip()) == (
        0, "override 1: letters, prompt_class=code is DISABLE until it is cleared"
    )  # fmt: skip
    with Store.open("sqlite:///shadow.db") as store:
        store.save_fingerprints([examples.config()])
        store.append_decisions([examples.decision(Verdict.ENABLE, endpoint="letters")])
    refused = workspace.run("override", "set", "-e", "letters", "--slice", "prompt_klass=code", *WHO)
    assert (refused.code, "is not sliced by 'prompt_klass'" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-e", "leters", *WHO), "there is no endpoint 'leters'; did you mean letters? (known: letters)"),
        (("-e", "letters", *WHO, "--verdict", "ENABLE"), "'ENABLE' is not one of 'disable', 'hold'"),
        (("-e", "letters", *WHO, "--slice", "code"), "--slice 'code': expected LABEL=VALUE, such as prompt_class=code"),
        (("-e", "letters", *WHO, "--slice", "a=b,c=d"), "endpoint 'letters' is not sliced by 'a'"),
        (("-e", "letters", *WHO, "--slice", "a=b", "--slice", "a=c"), "'a' is given twice; give it once"),
        (("-e", "letters", *WHO, "--load", "77"), "endpoint 'letters' has no load 77 (its loads: 2, 4)"),
        (
            ("-e", "letters", *WHO, "--slice", "prompt_klass=code"),
            "endpoint 'letters' is not sliced by 'prompt_klass' (its labels: prompt_class, sampling_regime)",
        ),
        (("-e", "letters", *WHO, "--expires-in", "0h"), "invalid duration"),
        (("-e", "letters", *WHO, "--expires-in", "soon"), "invalid duration"),
        (("-e", "letters", "--reason", " ", "--author", "ada"), "--reason must be one line"),
        (("-e", "letters", "--reason", "two\nlines", "--author", "ada"), "must be one line of 1 to"),
        (("-e", "letters", "--reason", "why"), "--author"),
        (
            ("-e", "letters", "--reason", "why", "--author", "Live  Guard"),
            "is reserved for orders that ShadowSpec sets",
        ),
        (("-e", "letters", "--reason", "why", "--author", "audit"), "is reserved for orders that ShadowSpec sets"),
        (("-e", "letters", "--author", "ada"), "--reason"),
        (WHO, "--endpoint"),
    ],
)
def test_what_cannot_be_set(decided: Workspace, arguments: tuple[str, ...], says: str) -> None:
    done = decided.run("override", "set", *arguments)
    assert done.code == 2
    assert says in done.err
    with Store.open("sqlite:///shadow.db") as store:
        assert store.overrides() == []
