"""What `try` and `doctor` say of a recording before anything is measured."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from shadowspec.app.try_out.sample import read_sample
from shadowspec.app.try_out.survey import Survey, refusals, remedy_for, survey_sample
from tests.builders.workspace import write_traffic
from tests.tap.mirror import RULE, SECRET, START, ByteTokenizer, chat, first_only


def surveyed(path: Path, records: list[dict[str, Any]]) -> Survey:
    write_traffic(path, records)
    rule = first_only(RULE)
    return survey_sample(read_sample(str(path)), rule, ByteTokenizer(), SECRET)


def test_what_duplicates_will_cost_is_counted(tmp_path: Path) -> None:
    """And named though other reasons are more frequent."""
    records = [chat(session_id=f"s{number}", request_id="-", response_id="r") for number in range(10)]
    others = [chat(status=500), chat(request_n=2), chat(request_echo=True), chat(request_logit_bias={"1": 1})] * 10
    survey = surveyed(tmp_path / "t.jsonl", [*records, *others])
    assert len(survey.requests) == len(survey.sessions) == 1
    assert survey.refused["duplicate"] == 9
    assert "duplicate: 9, ..." in refusals(survey.refused)
    assert "another request_id" in remedy_for(Counter(duplicate=9, failed_request=1))


def test_a_time_of_the_future_makes_no_span(tmp_path: Path) -> None:
    records = [chat(request_id=f"r{number}", timestamp=START + number) for number in range(3)]
    survey = surveyed(tmp_path / "t.jsonl", [*records, chat(timestamp="2099-01-01T00:00:00Z")])
    assert (survey.last - survey.first).total_seconds() == 2
    assert survey.refused == {"future:timestamp": 1}


def test_the_share_of_prompts_that_the_server_counts_otherwise(tmp_path: Path) -> None:
    length = surveyed(tmp_path / "t.jsonl", [chat()]).requests[0].num_prompt_tokens
    usages = [None, {"prompt_tokens": length}, {"prompt_tokens": length}, {"prompt_tokens": length + 1}]
    records = [chat(request_id=f"r{number}", response_usage=usage) for number, usage in enumerate(usages)]
    assert surveyed(tmp_path / "u.jsonl", records).mismatch == (
        "; the server counts another length of 33.3% of the prompts"
    )
    assert surveyed(tmp_path / "v.jsonl", records[:3]).mismatch == ""
