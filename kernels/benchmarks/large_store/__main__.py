"""Fill an empty store with a large synthetic history, and write a configuration that opens it.

python -m kernels.benchmarks.large_store --database URL --config FILE [--slices 200] [--days 90] [--runs 10000000]
"""

from __future__ import annotations

import argparse
import logging
import time
from datetime import UTC, datetime
from pathlib import Path

from kernels.benchmarks.large_store.config import config_text
from kernels.benchmarks.large_store.filling import Size, fill
from kernels.benchmarks.large_store.world import make_world


def main() -> None:
    """Parse the arguments, fill, and say what was written and how long it took."""
    default = Size()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", required=True, help="sqlite:///FILE or postgresql+psycopg://…, empty or new")
    parser.add_argument("--config", type=Path, help="where to write a configuration for `shadowspec dashboard`")
    parser.add_argument("--slices", type=int, default=default.num_slices)
    parser.add_argument("--days", type=int, default=default.num_days)
    parser.add_argument("--runs", type=int, default=default.num_runs, help="as rollups; the mean of a drawn total")
    parser.add_argument("--looks", type=int, help="of the gate, over all the days (default: one a day)")
    parser.add_argument("--seed", type=int, default=default.seed)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    started = time.monotonic()
    size = Size(arguments.slices, arguments.days, arguments.runs, arguments.looks or arguments.days, arguments.seed)
    filled = fill(arguments.database, size, datetime.now(UTC))
    if arguments.config is not None:
        arguments.config.write_text(config_text(make_world(size.num_slices, size.seed), arguments.database))
    print(
        f"{filled.num_runs:,} runs in {filled.num_rollups:,} rollups with {filled.num_bins:,} histogram bins, "
        f"{filled.num_decisions:,} decisions, {filled.num_raw_runs:,} raw runs, "
        f"{filled.num_live_windows:,} live windows; {time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
