"""Chats in reports: the faults of their streams by arm, and reasoning beside answer."""

from __future__ import annotations

from dataclasses import replace

from shadowspec.reports.figures.chats import PartRow, StreamFigures, part_rows, stream_figures
from shadowspec.types import ArmTiming, Run, StreamParity, Thinking
from tests.gate.worlds import run_of

WHOLE = StreamParity("whole", "whole", is_stream_fault=False)


def thought(index: int, thinking: Thinking | None) -> Run:
    run = run_of(index, "b")
    arms = [ArmTiming(0.0, 5.0, decode, num_output_tokens=20) for decode in (100.0, 60.0)]
    return replace(run, baseline=arms[0], speculative=arms[1], stream=WHOLE, thinking=thinking)


def test_faults_are_counted_by_arm_and_kind() -> None:
    streams = [
        WHOLE,
        StreamParity("whole", "message", is_stream_fault=True),
        StreamParity("marker", "marker", is_stream_fault=False),
        StreamParity("whole", "marker", is_stream_fault=False),
        None,
    ]
    found = stream_figures(replace(run_of(place, "b"), stream=stream) for place, stream in enumerate(streams))
    assert found == StreamFigures(4, 1, {"marker": 1}, {"marker": 2, "message": 1})
    assert found.text == (
        "4 chats streamed, faults of baseline and speculation: marker: 1 and 2, message: 0 and 1. "
        "1 fault proven to be speculation's."
    )
    assert stream_figures([run_of(0, "b")]) is None
    clean = stream_figures([replace(run_of(0, "b"), stream=WHOLE)])
    assert clean is not None
    assert clean.text == "1 chat streamed, no fault in either arm."


def test_reasoning_and_answer_add_up_to_the_whole() -> None:
    run = thought(0, Thinking(8, 6, 40.0, 20.0, 2, 6, 3))
    assert run.counts is not None
    rows = part_rows([run, thought(1, None), thought(2, Thinking(None, 6, 40.0, 20.0))])
    counts = run.counts
    rest = (counts.num_accepted_tokens - 3) / (counts.num_draft_tokens - 6)
    assert rows == (
        PartRow("reasoning", 8, 6, 40.0, 20.0, 0.5),
        PartRow("answer", 12, 14, 60.0, 40.0, rest),
    )
    assert [row.ratio_of_total_times for row in rows] == [2.0, 1.5]
    assert part_rows([thought(1, None)]) == ()
