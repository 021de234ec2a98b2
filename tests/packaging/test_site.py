"""The documentation as a site, and README beside it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"<(?:script|img|iframe)[^>]* src=\"(?:https?:)?//|<link[^>]* rel=\"?stylesheet[^>]* href=\"(?:https?:)?//"
)


def test_every_link_of_the_documentation_leads_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "excluded from the built site" not in built.stderr
    assert "repository/kernels/benchmarks/results/decode.json" in (tmp_path / "research/benchmarks.html").read_text()
    assert (tmp_path / "repository/kernels/benchmarks/results/decode.json").is_file()
    pages = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")]
    assert not any(FETCHED.search(page) for page in pages), "a page fetches something from elsewhere"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_link_of_the_pages_beside_it_leads_somewhere(name: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / name).read_text(encoding="utf-8"))
    assert [target for target in targets if not (ROOT / target).exists()] == []
