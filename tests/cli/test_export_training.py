"""`shadowspec export-training`: the log's conversations, each once, for nobody else's eyes, and a card of counts."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from shadowspec.app.training_export import ROLES
from tests.builders.workspace import NOON, Workspace, write_traffic

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Finds words",
            "parameters": {"type": "object", "properties": {"words": {"type": "string"}}},
        },
    }
]
KEYS = {"role", "content", "reasoning_content", "tool_calls", "tool_call_id"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def tool_call(arguments: str) -> dict[str, Any]:
    return {"id": "call-1", "type": "function", "function": {"name": "search", "arguments": arguments}}


def chat(
    number: int, messages: Sequence[Mapping[str, Any]], answer: Mapping[str, Any] | None, **body: Any
) -> dict[str, Any]:
    """A record of the chat API; without an answer it has no response."""
    reason = "tool_calls" if answer is not None and answer.get("tool_calls") else "stop"
    response = {
        "id": f"answer-{number}",
        "model": "m",
        "choices": [{"index": 0, "message": answer, "finish_reason": reason}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    }
    return {
        "timestamp": (NOON.timestamp() + number),
        "session_id": "session",
        "path": "/v1/chat/completions",
        "request": {"model": "m", "messages": list(messages), "temperature": 0.0, "max_tokens": 64, **body},
        **({} if answer is None else {"response": response}),
    }


@pytest.fixture
def export(workspace: Workspace, tmp_path: Path) -> Any:
    def run(records: Sequence[Any], *options: str) -> Any:
        write_traffic(tmp_path / "log.jsonl", records)
        return workspace.run("export-training", "-e", "letters", "--traffic", "log.jsonl", "-o", "data", *options)

    return run


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "data" / "conversations.jsonl").read_text("utf-8").splitlines()]


def plain(turn: Mapping[str, Any]) -> dict[str, Any]:
    """A turn without the keys that have no value."""
    assert set(turn) == KEYS, "every turn has every key"
    return {name: value for name, value in turn.items() if value is not None}


def reasons(document: Mapping[str, Any]) -> dict[str, int]:
    return {row["reason"]: row["num_records"] for row in document["funnel"]}


def test_the_file_says_what_the_log_says(workspace: Workspace, export: Any) -> None:
    """Turns of tools, reasoning and parts of text among them."""
    asked = [{"role": "system", "content": "Be short."}, user("Where is the \u00e9cole?")]
    called = assistant(None, tool_calls=[tool_call('{"words": "\u00e9cole", "depth": {"of": 2}}')])
    found = {"role": "tool", "tool_call_id": "call-1", "content": [{"type": "text", "text": "Here."}]}
    done = export(
        [
            chat(0, [user("Plain.")], assistant("Yes.")),
            chat(1, asked, called, tools=TOOLS),
            chat(2, [*asked, called, found], assistant("There.", reasoning_content="I think."), tools=TOOLS),
        ],
        "--json",
    )
    assert done.code == 0, done.err
    plain_row, with_tools = sorted(rows(workspace.folder), key=lambda row: len(row["conversations"]))
    assert [plain(turn) for turn in plain_row["conversations"]] == [user("Plain."), assistant("Yes.")]
    assert plain_row["tools"] is None
    assert json.loads(with_tools["tools"]) == TOOLS
    turns = [plain(turn) for turn in with_tools["conversations"]]
    (call,) = turns[2].pop("tool_calls")
    assert json.loads(call["function"].pop("arguments")) == {"words": "\u00e9cole", "depth": {"of": 2}}
    assert call == {"id": "call-1", "type": "function", "function": {"name": "search"}}
    assert turns == [
        *asked,
        assistant(""),
        {"role": "tool", "tool_call_id": "call-1", "content": "Here."},
        assistant("There.", reasoning_content="I think."),
    ]
    assert reasons(done.document) == {"continued_later": 1}
    assert {turn["role"] for row in rows(workspace.folder) for turn in row["conversations"]} <= ROLES


def test_the_first_line_has_a_value_for_every_key_that_some_line_has(workspace: Workspace, export: Any) -> None:
    """`datasets` takes the types of a file from its beginning."""
    called = assistant(None, tool_calls=[tool_call("{}")])
    found = {"role": "tool", "tool_call_id": "call-1", "content": "Here."}
    plain_ones = [chat(number, [user(f"Plain {number}.")], assistant("Yes.")) for number in range(5)]
    with_all = chat(9, [user("x"), called, found], assistant("y", reasoning_content="z"), tools=TOOLS)
    assert export([*plain_ones, with_all]).code == 0
    found_rows = rows(workspace.folder)
    assert len(found_rows) == 6
    assert found_rows[0]["tools"] is not None or found_rows[1]["tools"] is not None
    early = [turn for row in found_rows[:2] for turn in row["conversations"]]
    assert all(any(turn[name] is not None for turn in early) for name in KEYS)


@pytest.mark.parametrize("is_configured", [False, True])
def test_a_log_of_one_s_own_is_read_by_a_map(workspace: Workspace, export: Any, is_configured: bool) -> None:
    record = chat(1, [user("a question")], assistant("an answer"))
    own = {"call": record["request"], "reply": record["response"], "at": record["timestamp"]}
    if is_configured:
        path = workspace.folder / "shadowspec.toml"
        mirror = '[kafka]\nbootstrap_servers = ["localhost:1"]\ntopics = ["t"]\ngroup_id = "g"\n'
        table = 'map = { request = "call", response = "reply", time = "at" }\n'
        path.write_text(path.read_text(encoding="utf-8") + mirror + table, encoding="utf-8")
    mapped = () if is_configured else ("--map", "request=call,response=reply,time=at")
    done = export([own], "--json", *mapped)
    assert (done.code, done.document["num_conversations"]) == (0, 1), done.err
    (row,) = rows(workspace.folder)
    assert [turn["content"] for turn in row["conversations"]] == ["a question", "an answer"]


def test_a_streamed_answer_keeps_its_tool_calls_and_its_reasoning(workspace: Workspace, export: Any) -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "reasoning_content": "I "},
        {"reasoning_content": "think."},
        {"tool_calls": [{"index": 0, "id": "call-1", "function": {"name": "search", "arguments": '{"wor'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": 'ds": "a"}'}}]},
    ]
    chunks = [{"id": "a", "model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"id": "a", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    asked = {"model": "m", "messages": [user("x")], "tools": TOOLS, "stream": True}
    proxy = {"payload": {"request": json.dumps(asked), "response": text}, "meta": {"request_model": "m"}}
    entry = {  # of Kong's log, which holds a stream as it was sent
        "started_at": int(NOON.timestamp() * 1000),
        "upstream_uri": "/v1/chat/completions",
        "ai": {"proxy": proxy},
        "response": {"status": 200},
    }
    done = export([entry])
    assert done.code == 0, done.err
    (row,) = rows(workspace.folder)
    answer = plain(row["conversations"][1])
    assert answer["reasoning_content"] == "I think."
    assert json.loads(answer["tool_calls"][0]["function"]["arguments"]) == {"words": "a"}


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_other_apis_become_the_same_chat(workspace: Workspace, export: Any, api: str) -> None:
    record: dict[str, Any] = {"timestamp": NOON.isoformat(), "path": f"/v1/{api}"}
    if api == "responses":
        items = [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
            {"type": "function_call", "call_id": "call-1", "name": "search", "arguments": '{"words": "a"}'},
        ]
        record["request"] = {"model": "m", "input": "Where?"}
        record["response"] = {"model": "m", "status": "completed", "output": items, "usage": {"output_tokens": 3}}
    else:
        blocks = [
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "call-1", "name": "search", "input": {"words": "a"}},
        ]
        record["request"] = {"model": "m", "messages": [user("Where?")], "max_tokens": 64, "system": []}
        record["response"] = {"model": "m", "type": "message", "content": blocks, "stop_reason": "tool_use"}
    done = export([record])
    assert done.code == 0, done.err
    (row,) = rows(workspace.folder)
    assert [plain(turn) for turn in row["conversations"]] == [
        user("Where?"),
        assistant("Let me look.", tool_calls=[tool_call('{"words": "a"}')]),
    ]


def test_a_conversation_is_there_once_and_as_long_as_it_became(workspace: Workspace, export: Any) -> None:
    first, answer = [user("One.")], assistant("1")
    second = [*first, answer, user("Two.")]
    done = export(
        [
            chat(0, second, assistant("2")),  # the longer one first
            chat(1, first, answer),
            chat(2, first, answer),
            chat(3, first, assistant("other")),  # another answer is another conversation
            chat(4, [*second, assistant("2"), user("Three.")], assistant("3")),
        ],
        "--json",
    )
    texts = sorted([turn["content"] for turn in row["conversations"]] for row in rows(workspace.folder))
    assert texts == [["One.", "1", "Two.", "2", "Three.", "3"], ["One.", "other"]]
    assert reasons(done.document) == {"same_conversation": 2, "continued_later": 1}
    assert done.document["num_records_read"] == 5
    assert done.document["num_conversations"] == 2
    (counts,) = done.document["slices"]
    assert (counts["num_assistant_turns"], counts["num_prompt_tokens"], counts["num_output_tokens"]) == (4, 14, 6)


def test_only_the_chosen_slices_are_written(workspace: Workspace, export: Any) -> None:
    records = [chat(0, [user("a")], assistant("greedy")), chat(1, [user("b")], assistant("hot"), temperature=0.9)]
    done = export(records, "--slice", "sampling_regime=high", "--json")
    assert done.code == 0, done.err
    (row,) = rows(workspace.folder)
    assert row["conversations"][1]["content"] == "hot"
    assert [counts["slice"]["sampling_regime"] for counts in done.document["slices"]] == ["high"]
    assert reasons(done.document) == {"other_label": 1}
    wrong = workspace.run("export-training", "-e", "letters", "--traffic", "log.jsonl", "-o", "n", "--slice", "team=x")
    assert (wrong.code, "keeps no label 'team'" in wrong.err) == (2, True)


def test_slices_by_context_need_the_servers_count(workspace: Workspace, export: Any) -> None:
    uncounted = chat(1, [user("b")], assistant("2"))
    del uncounted["response"]["usage"]
    done = export([chat(0, [user("a")], assistant("1")), uncounted], "--slice", "context_bucket=<512", "--json")
    assert reasons(done.document) == {"no_prompt_token_count": 1}
    assert done.document["num_conversations"] == 1


def test_records_that_cannot_be_used_are_counted_by_reason(workspace: Workspace, export: Any) -> None:
    cut = chat(2, [user("c")], assistant("cut"))
    cut["response"]["choices"][0]["finish_reason"] = "length"
    completion = chat(4, [], assistant("e"))
    completion["path"], completion["request"] = "/v1/completions", {"model": "m", "prompt": "e"}
    completion["response"]["choices"][0] = {"text": "e", "finish_reason": "stop"}
    done = export(
        [
            chat(0, [user("a")], assistant("1")),
            "no record",
            chat(1, [user("b")], None),
            cut,
            chat(3, [{"role": "function", "content": "d"}, user("d")], assistant("4")),
            completion,
            chat(5, [user("f")], assistant("f", refusal="no")),
        ],
        "--json",
    )
    assert done.code == 0, done.err
    assert reasons(done.document) == {
        "not_an_object": 1, "no_response": 1, "cut_off": 1, "other_role": 1, "not_a_chat": 1, "answer_not_a_message": 1,
    }  # fmt: skip
    assert done.document["num_records_read"] == 7
    assert len(rows(workspace.folder)) == 1


def test_without_responses_there_is_no_folder_and_the_error_says_why(workspace: Workspace, export: Any) -> None:
    done = export([chat(number, [user("a")], None) for number in range(3)])
    assert done.code == 4
    assert "(no_response); record responses too" in done.err
    assert not (workspace.folder / "data").exists()
    assert not list(workspace.folder.glob(".data-*"))


def test_only_the_owner_can_read_what_is_written_and_nothing_is_overwritten(workspace: Workspace, export: Any) -> None:
    records = [chat(0, [user("a secret text")], assistant("another secret"))]
    assert export(records).code == 0
    folder = workspace.folder / "data"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
        "README.md": 0o600, "conversations.jsonl": 0o600,
    }  # fmt: skip
    again = export(records)
    assert (again.code, "is not empty" in again.err) == (2, True)


def test_the_card_says_what_is_there_and_holds_no_text(workspace: Workspace, export: Any) -> None:
    called = [user("a secret text")]
    records = [chat(0, called, assistant("another secret")), chat(5, called, None)]
    done = export(records, "--json")
    text = (workspace.folder / "data" / "README.md").read_text("utf-8")
    assert "secret" not in text
    digest = hashlib.sha256((workspace.folder / "data" / "conversations.jsonl").read_bytes()).hexdigest()
    assert done.document["sha256"] == {"conversations.jsonl": digest}
    for part in (digest, "2 read, 1 used", "| letters | unsupported | no_response | 1 |", "text of prompts", "0 (1)"):
        assert part in text, part
