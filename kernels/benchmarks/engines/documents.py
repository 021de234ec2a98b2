"""The results of a validation as a file, where the bundled pair and another one each have a place; and its end."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernels.benchmarks.engines.comparing import FAULT
from kernels.benchmarks.engines.pair import Pair

REAL_MODEL = "real_model"  # the key of what another pair gave, and the folder of what was collected of it

Document = Mapping[str, Any]


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    """The options that name another pair and its prompts."""
    parser.add_argument("--target", type=Path, help="validate another model, greedy requests alone: its folder")
    parser.add_argument("--draft", type=Path, help="the folder of its draft")
    parser.add_argument(
        "--prompts", type=Path, help="its prompts, as kernels/benchmarks/engines/real_model/prompts.jsonl"
    )


def pair_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Pair | None:
    """The pair that was named; None: the bundled one.

    Raises:
        SystemExit: the three options were not given together.
    """
    named = [given.target, given.draft, given.prompts]
    if any(named) and not all(named):
        parser.error("--target, --draft and --prompts go together")
    return Pair(given.target.resolve(), given.draft.resolve()) if all(named) else None


def finish(
    found: Document, pair: Pair | None, out: Path, docs: Path, write_page: Callable[[Document, Path], None]
) -> None:
    """Write results and page; what the other pair gave earlier is kept.

    Raises:
        SystemExit: another pair has no results of the bundled one to stand beside, or a request differs where no model
            was in doubt.
    """
    earlier = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    if pair is None:
        document = {**found, **({REAL_MODEL: earlier[REAL_MODEL]} if REAL_MODEL in earlier else {})}
    elif earlier:
        document = earlier | {REAL_MODEL: dict(found)}
    else:
        sys.exit(f"{out} has no results of the bundled pair yet: run it without --target first")
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    write_page(document, docs)
    faults = sum(difference["kind"] == FAULT for entry in found["equality"] for difference in entry["differences"])
    if faults:
        sys.exit(f"{faults} requests differ where no model was in doubt; {out} names them")
