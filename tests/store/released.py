"""Databases as releases left them, one file each: what `db upgrade` must bring to the present revision.

python -m tests.store.released        writes that of this version, once, as it is released
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tests.builders.workspace import CONFIG, record, write_traffic

FOLDER = Path(__file__).with_name("releases")
NUM_RECORDS = 12
OVERRIDE = ("--endpoint", "letters", "--reason", "an incident", "--author", "on-call@example.com")


def main() -> None:
    """Measure a few records of the tiny pair, decide, order an override, and keep database and decisions."""
    from tests.small_models import save_pair

    release = version("shadowspec")
    if (FOLDER / f"{release}.db.gz").exists():
        raise SystemExit(f"{release} has its database, and no release is written again")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target, draft = save_pair(folder / "pair")
        (folder / "shadowspec.toml").write_text(CONFIG.format(target=target, draft=draft), encoding="utf-8")
        (folder / "secret").write_text("a secret of sufficient length", encoding="utf-8")
        write_traffic(folder / "traffic.jsonl", map(record, range(NUM_RECORDS)))
        for words in (("db", "upgrade"), ("run", "traffic.jsonl"), ("gate",), ("override", "set", *OVERRIDE)):
            subprocess.run([sys.executable, "-m", "shadowspec", *words], cwd=folder, check=True)
        said = subprocess.run(
            [sys.executable, "-m", "shadowspec", "gate", "--json"],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
        decisions = [
            {key: each[key] for key in ("endpoint", "verdict", "reason_code", "num_blocks")}
            for each in json.loads(said.stdout)["decisions"]
        ]
        with sqlite3.connect(folder / "shadow.db") as connection:
            connection.execute("pragma wal_checkpoint(truncate)")
        (FOLDER / f"{release}.db.gz").write_bytes(gzip.compress((folder / "shadow.db").read_bytes(), 9, mtime=0))
    (FOLDER / f"{release}.json").write_text(json.dumps(decisions, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
