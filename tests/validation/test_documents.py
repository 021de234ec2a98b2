"""The results of two pairs in one file, and how a validation ends."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from kernels.benchmarks.engines.comparing import FAULT, NEAR_TIE
from kernels.benchmarks.engines.documents import REAL_MODEL, Document, add_pair_options, finish, pair_of
from kernels.benchmarks.engines.pair import Pair
from kernels.benchmarks.engines.real_model.prompts import CLASSES, MEASURED, PROMPTS, read_prompts, tokenised
from shadowspec import demo
from shadowspec.engine.tokenizer import load_tokenizer

OTHER = Pair(Path("target"), Path("draft"))


def found(requests: int, *kinds: str) -> dict[str, Any]:
    return {"requests": requests, "equality": [{"differences": [{"kind": kind} for kind in kinds]}]}


def write_nothing(_: Document, __: Path) -> None:
    """Instead of a page."""


def test_the_results_of_one_pair_leave_those_of_the_other(tmp_path: Path) -> None:
    out, pages = tmp_path / "results.json", []

    def keep_page(document: Document, _: Path) -> None:
        pages.append(document)

    finish(found(300), None, out, tmp_path, keep_page)
    finish(found(100, NEAR_TIE), OTHER, out, tmp_path, keep_page)
    assert json.loads(out.read_text()) == found(300) | {REAL_MODEL: found(100, NEAR_TIE)}
    finish(found(24), None, out, tmp_path, keep_page)
    assert json.loads(out.read_text()) == found(24) | {REAL_MODEL: found(100, NEAR_TIE)} == pages[-1]


def test_another_pair_needs_the_bundled_pairs_results_beside_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no results of the bundled pair yet"):
        finish(found(100), OTHER, tmp_path / "results.json", tmp_path, write_nothing)


def test_a_fault_is_written_and_ends_the_command(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    with pytest.raises(SystemExit, match="2 requests differ where no model was in doubt"):
        finish(found(300, FAULT, NEAR_TIE, FAULT), None, out, tmp_path, write_nothing)
    assert json.loads(out.read_text())["requests"] == 300


@pytest.mark.parametrize("given", [[], ["--target", "a", "--draft", "b", "--prompts", "c"], ["--target", "a"]])
def test_another_pair_is_named_whole_or_not_at_all(given: list[str]) -> None:
    parser = argparse.ArgumentParser()
    add_pair_options(parser)
    arguments = parser.parse_args(given)
    if len(given) == 2:
        with pytest.raises(SystemExit):
            pair_of(parser, arguments)
    else:
        assert pair_of(parser, arguments) == (Pair(Path("a").resolve(), Path("b").resolve()) if given else None)


def test_prompts_are_chats_of_every_class() -> None:
    rows = tokenised(PROMPTS, 7, demo.TARGET)
    assert [name for name, _ in rows] == list(CLASSES) * 2
    tokenizer = load_tokenizer(str(demo.TARGET))
    for (_, tokens), prompt in zip(rows, read_prompts(PROMPTS, MEASURED, 2), strict=True):
        assert prompt.text.split()[0] in tokenizer.decode(tokens)
        assert len(tokens) > len(tokenizer.encode(prompt.text))
