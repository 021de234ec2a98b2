"""Prompts that production's server counts otherwise are a figure of every place that shows where records ended."""

from __future__ import annotations

from typing import Any

from tests.builders.workspace import Workspace, record, write_traffic

NUM_RECORDS, NUM_OTHER = 12, 3


def counted(number: int) -> dict[str, Any]:
    """A record whose server counted its prompt, three of them with a token more; the last has no count."""
    made = record(number)
    num_tokens = len(made["request"]["prompt"]) + (number < NUM_OTHER)
    usage = {} if number == NUM_RECORDS else {"usage": {"prompt_tokens": num_tokens, "completion_tokens": 2}}
    return made | {"response": {"model": "m", "choices": [{"text": "ab", "finish_reason": "stop"}], **usage}}


def test_run_and_report_say_how_many_prompts_have_another_length(workspace: Workspace) -> None:
    workspace.migrate()
    traffic = write_traffic(workspace.folder / "traffic.jsonl", map(counted, range(NUM_RECORDS + 1)))
    measured = workspace.run("run", str(traffic), "--json")
    assert measured.code == 0, measured.err
    document = measured.document
    assert (document["num_compared_prompts"], document["num_other_prompts"]) == (NUM_RECORDS, NUM_OTHER)
    again = workspace.run("run", str(traffic))
    assert "the server counts another length of 25.0% of 12 prompts" in again.out
    assert workspace.run("gate").code == 0
    report = workspace.run("report", "--json").document
    assert report["prompts"] == [
        {"endpoint": "letters", "config": "draft", "num_compared_prompts": 12, "num_other_prompts": 3, "share": 0.25}
    ]
