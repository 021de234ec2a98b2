"""What is made of a logged response: its tokens, its end, and why it is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from shadowspec.engine.replay.response_tokens import logged_response
from shadowspec.engine.tokenizer import FolderTokenizer
from shadowspec.errors import RecordError
from shadowspec.types import LoggedResponse, RecordKey, SamplingParameters, ShadowPrompt
from tests.small_models import VOCABULARY, letter_tokenizer

END = 1
TOKENIZER = FolderTokenizer.of(letter_tokenizer(), 256, VOCABULARY)  # 2 is "a", 3 is "b", ...


def prompt(
    token_ids: tuple[int, ...] | None = None,
    finish_reason: str | None = "stop",
    num_output_tokens: int | None = None,
    **sampling: Any,
) -> ShadowPrompt:
    return ShadowPrompt(
        key=RecordKey("file", 0, 12),
        endpoint="letters",
        event_time=datetime(2026, 1, 1, tzinfo=UTC),
        labels={},
        prompt_token_ids=(2, 3),
        sampling=SamplingParameters(**{"max_tokens": 8, **sampling}),
        response=LoggedResponse(token_ids, None, finish_reason, num_output_tokens),
    )


@pytest.mark.parametrize(
    ("record", "output"),
    [
        (prompt((4, 5, END)), (4, 5, END)),
        (prompt((4, 5, END), None), (4, 5, END)),
        (prompt((4, 5)), (4, 5, END)),  # the server leaves the end token out
        (prompt((4, 5), num_output_tokens=3), (4, 5, END)),
        (prompt((4, 5), num_output_tokens=2), (4, 5, END)),
        (prompt((4, 5), "tool_calls"), (4, 5, END)),
        (prompt((4,) * 8, "length"), (4,) * 8),
        (prompt((4,) * 8, None), (4,) * 8),
        (prompt((4, 5), "length"), (4, 5)),  # the server's own limit
        (prompt((4, 5), stop=("cd",)), (4, 5)),
        (prompt((4, 5, 9), stop_token_ids=(9,)), (4, 5, 9)),
        (prompt((4, END, 5, END), min_tokens=3), (4, END, 5, END)),
        (prompt((4, END, 4, 4, 4, 4, 4, 4), "length", ignore_eos=True), (4, END, 4, 4, 4, 4, 4, 4)),
    ],
)
def test_the_end_is_known_or_restored(record: ShadowPrompt, output: tuple[int, ...]) -> None:
    assert logged_response(record, None, TOKENIZER, frozenset({END})).output == output


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (replace(prompt(), response=None), "no_response"),
        (prompt(), "no_token_ids"),
        (prompt(()), "no_token_ids"),
        (prompt((4, VOCABULARY, END)), "token_not_in_vocabulary"),
        (prompt((4, 5, END), num_output_tokens=5), "token_count_differs"),
        (prompt((4, 5), None), "end_unknown"),
        (prompt((4, 5), "content_filter"), "end_unknown"),
        (prompt((4, 5), stop_token_ids=(9,)), "end_unknown"),  # two tokens could have ended it
        (prompt((4, 5), ignore_eos=True), "end_unknown"),  # none could
        (prompt((4, END), "stop", min_tokens=3, stop_token_ids=(9,)), "end_unknown"),
        (prompt((4, END, 5, END)), "goes_on_after_end"),
        (prompt((4,) * 9, "length"), "goes_on_after_end"),
        (prompt((4, 5, 6), stop=("cd",)), "goes_on_after_end"),
    ],
)
def test_what_cannot_be_replayed_is_refused(record: ShadowPrompt, reason: str) -> None:
    with pytest.raises(RecordError, match=r"^file\[0\]@12/0: ") as raised:
        logged_response(record, None, TOKENIZER, frozenset({END}))
    assert raised.value.reason == reason


def test_text_stands_for_its_tokens_where_their_number_is_the_servers() -> None:
    whole = logged_response(prompt(num_output_tokens=4), "cde", TOKENIZER, frozenset({END}))
    assert whole.output == (4, 5, 6, END)
    cut = logged_response(prompt(None, "length", 8), "cccccccc", TOKENIZER, frozenset({END}))
    assert cut.output == (4,) * 8


@pytest.mark.parametrize(
    ("record", "text", "reason"),
    [
        (prompt(num_output_tokens=None), "cde", "no_token_ids"),
        (prompt(num_output_tokens=3), "", "no_token_ids"),
        (prompt(num_output_tokens=3), "cde", "does_not_retokenise"),  # with its end token it would be 4
        (prompt(num_output_tokens=4), "cdZ", "does_not_retokenise"),
    ],
)
def test_text_that_gives_other_tokens_is_refused(record: ShadowPrompt, text: str, reason: str) -> None:
    with pytest.raises(RecordError) as raised:
        logged_response(record, text, TOKENIZER, frozenset({END}))
    assert raised.value.reason == reason
    assert text == "" or text not in str(raised.value)
