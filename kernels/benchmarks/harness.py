"""What the benchmarks share: their options, what they measured on, the bundled traffic, tables and results files.

Every benchmark is `python -m kernels.benchmarks.NAME` in the root of a checkout (`make bench NAME=...`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.progress import track
from rich.table import Table

from shadowspec import demo

if TYPE_CHECKING:
    from sqlalchemy import Connection

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
DOCS = ROOT / "docs" / "research"

Prompt = tuple[int, ...]
Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


def options(description: str | None, results: str = "") -> argparse.ArgumentParser:
    """The command line of a benchmark, which writes `results` of the committed ones unless it is told another file."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if results:
        parser.add_argument("--out", type=Path, default=RESULTS / results, help="(default: %(default)s)")
    return parser


def write(out: Path, document: Any) -> None:
    """Write the results."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def sections(page: str) -> dict[str, str]:
    """The texts of a page that is made of results, by name: `pages/PAGE` with a comment before each."""
    parts = re.split(
        r"^<!-- (\w+) -->\n", (Path(__file__).parent / "pages" / page).read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def configuration(name: str) -> str:
    """A part of a configuration, with places to fill: `configs/NAME`."""
    return (Path(__file__).parent / "configs" / name).read_text(encoding="utf-8")


def in_turn(
    contests: Mapping[Name, Callable[[], Value]], rounds: int, words: str = "rounds"
) -> dict[Name, list[Value]]:
    """What every contest gave in each round, all in turn; a first round warms up and is not kept."""
    values: dict[Name, list[Value]] = {name: [] for name in contests}
    for number in track(range(rounds + 1), words, console=Console(stderr=True)):
        for name, contest in contests.items():
            value = contest()
            if number:
                values[name].append(value)
    return values


def ratios(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Of what two gave in the same rounds."""
    by_round = [one / other for one, other in zip(first, second, strict=True)]
    return {"ratio_median": median(by_round), "ratio_min": min(by_round), "ratio_max": max(by_round)}


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print one table."""
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)


def machine(*packages: str) -> dict[str, str]:
    """The processor, Python, the versions of these packages, and the revision of this checkout."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return {
        "cpu": next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor()),
        "cores": str(os.cpu_count()),
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "revision": revision(ROOT),
    }


def engine_machine() -> dict[str, str]:
    """The same for figures of the engine: with torch and its threads."""
    import torch

    return machine("torch", "transformers") | {"threads": str(torch.get_num_threads())}


def revision(checkout: Path) -> str:
    """The commit of a checkout; "unknown" outside a repository."""
    command = ["git", "rev-parse", "HEAD"]
    said = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)  # noqa: S603
    return said.stdout.strip() or "unknown"


@contextmanager
def connected(url: str, **further: Any) -> Iterator[Connection]:
    """A transaction on a database, committed at the end of the block; `further`: of the engine."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(url, **further)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def postgres_settings(url: str, *names: str) -> dict[str, str]:
    """These settings of a Postgres server; "server_version" is one too."""
    with connected(url) as connection:
        return {name: str(connection.exec_driver_sql(f"SHOW {name}").scalar()) for name in names}


def answered() -> Iterator[dict[str, Any]]:
    """The bundled records of a served model with an answer, in their order; the others are bad on purpose."""
    models = set(demo.SERVED_MODELS.values())
    with gzip.open(demo.TRAFFIC, "rt", encoding="utf-8") as file:
        for line in file:
            try:
                record = json.loads(line)
                is_answered = record["request"]["model"] in models and record["response"]["choices"]
            except (ValueError, KeyError, TypeError):
                continue
            if is_answered:
                yield record


def traffic_prompts(count: int) -> list[tuple[str, Prompt]]:
    """Endpoint and prompt of `count` records of the traffic, as many of each endpoint, below 400 tokens."""
    by_endpoint: dict[str, list[Prompt]] = {name: [] for name in demo.SERVED_MODELS}
    endpoint_of = {model: name for name, model in demo.SERVED_MODELS.items()}
    for record in answered():
        response = record["response"]
        ids = response.get("prompt_token_ids") or response["choices"][0].get("prompt_token_ids")
        if ids is not None and len(ids) < 400:
            by_endpoint[endpoint_of[record["request"]["model"]]].append(tuple(ids))
    share = -(-count // len(by_endpoint))
    return [(name, prompt) for name, prompts in by_endpoint.items() for prompt in prompts[:share]]


def by_name(prompts: Iterable[tuple[str, Prompt]]) -> dict[str, list[Prompt]]:
    """Prompts by their endpoint, or their class."""
    named: dict[str, list[Prompt]] = {}
    for name, prompt in prompts:
        named.setdefault(name, []).append(prompt)
    return named


def code_prompts(count: int) -> list[Prompt]:
    """The first `count` prompts of the bundled code endpoint with 40 to 200 tokens."""
    prompts = by_name(traffic_prompts(100_000))["code-completion"]
    chosen = [prompt for prompt in prompts if 40 <= len(prompt) <= 200][:count]
    if len(chosen) < count:
        raise SystemExit(f"{demo.TRAFFIC} holds only {len(chosen)} prompts of the wanted length")
    return chosen


def run_command(folder: Path, *arguments: str) -> str:
    """What a command of the product prints that is run in a folder, by the configuration there."""
    environment = os.environ | {
        "SHADOWSPEC_CONFIG": str(folder / "shadowspec.toml"),
        "SHADOWSPEC_HASH_SECRET": demo.DEMO_SECRET,
    }
    command = [sys.executable, "-m", "shadowspec", *arguments]
    return subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603
