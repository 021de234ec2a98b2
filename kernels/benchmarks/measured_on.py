"""What a benchmark's figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def machine(*packages: str) -> dict[str, str]:
    """The processor, Python, the versions of these packages, and the revision of this checkout."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "cpu": next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor()),
        "cores": str(os.cpu_count()),
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "revision": revision(_ROOT),
    }


def revision(checkout: Path) -> str:
    """The commit of a checkout; "unknown" outside a repository."""
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)  # noqa: S603
    return found.stdout.strip() or "unknown"


def postgres_settings(url: str, *names: str) -> dict[str, str]:
    """These settings of a Postgres server; "server_version" is one too."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        found = {name: str(connection.exec_driver_sql(f"SHOW {name}").scalar()) for name in names}
    engine.dispose()
    return found
