"""A worker with an engine that needs no model, and an end between write and commit every now and then."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadowspec.app.serve_worker import serving
from shadowspec.cli.console import set_up_logging
from shadowspec.cli.main import forbid_core_dumps
from shadowspec.cli.worker import run_until_stopped
from shadowspec.config import load_config
from shadowspec.errors import ShadowSpecError
from shadowspec.types import PartitionId
from tests.fakes import FakeEngineFactory, FakeTokenizer, Marks

DEATH_BEFORE_COMMIT = 0.01  # chance at each commit


@dataclass
class DyingSource:
    """A source that kills its process where the rows are written and the offsets are not committed."""

    source: Any
    draw: random.Random

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def commit(self, offsets: Mapping[PartitionId, int]) -> object:
        if self.draw.random() < DEATH_BEFORE_COMMIT:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.source.commit(offsets)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seed", default="", help="dies at random before commits, drawn from this")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--kill", type=int, help="token that kills the engine")
    parser.add_argument("--hold", type=int, help="token that holds the engine's interpreter")
    parser.add_argument("--hold-s", type=float, default=1.0)
    arguments = parser.parse_args()
    forbid_core_dumps()
    set_up_logging(arguments.verbose)
    config = load_config(arguments.config)
    draw = random.Random(f"{arguments.seed} {os.getpid()}")
    marks = Marks(kill=arguments.kill, hold=arguments.hold, hold_s=arguments.hold_s)
    factory = FakeEngineFactory(endpoints=tuple(config.endpoints), delay_s=0.01, marks=marks)
    try:
        with serving(config, {name: FakeTokenizer() for name in config.endpoints}, [factory]) as service:
            if arguments.seed:
                service.source = DyingSource(service.source, draw)
            run_until_stopped(service)
    except ShadowSpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
