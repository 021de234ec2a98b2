"""A wheel and an editable install, each in an environment of its own, run outside the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
NOT_SOURCE = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "*.db*")
PROBE = """
import importlib.metadata, importlib.util, json, shadowspec, shadowspec_kernels
from shadowspec.cli.dashboard import dashboards_folder
from shadowspec.store import Store, check, current, head, upgrade
from shadowspec.store.admin import schema
url = "sqlite:///probe.db"
upgrade(url)
Store.open(url).close()
print(json.dumps({
    "version": importlib.metadata.version("shadowspec"),
    "package": shadowspec.__file__,
    "kernels": shadowspec_kernels.__file__,
    "migrations": str(schema.migrations_folder()),
    "dashboards": str(dashboards_folder() / "app.py"),
    "is_at_head": current(url) == head(),
    "drift": check(url),
    "strangers": [name for name in ("migrations", "tests", "kernels", "dashboards") if importlib.util.find_spec(name)],
}))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, because a build leaves its files in the tree."""
    copy = tmp_path_factory.mktemp("source") / "shadowspec"
    shutil.copytree(CHECKOUT, copy, ignore=NOT_SOURCE)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    (built,) = folder.glob("shadowspec-*.whl")
    return built


def _pip(*arguments: object, python: Path | str = sys.executable) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
    subprocess.run(command, check=True, cwd="/", env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})


def _environment(folder: Path) -> Path:
    """A virtual environment that sees the packages of this one, but not this one's editable shadowspec."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # Appended at the end of sys.path by a plain path line, so that .pth files of this environment are not read.
    (site / "tested-environment.pth").write_text("".join(f"{path}\n" for path in sorted(here)))
    return folder / "bin" / "python"


def _run(python: Path, *arguments: str, cwd: Path, **variables: str) -> str:
    # PYTHONPATH of the tests' own environment would bring the checkout back in.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    command = [str(python), *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _packages_on_disk() -> set[str]:
    found = {"shadowspec._migrations", "shadowspec._migrations.versions", "shadowspec._simulation"}
    for root in (CHECKOUT, CHECKOUT / "kernels"):
        for name in ("shadowspec", "shadowspec_kernels"):
            for module in (root / name).rglob("*.py"):
                found.add(".".join(module.parent.relative_to(root).parts))
    for module in (CHECKOUT / "dashboards").rglob("*.py"):
        found.add(".".join(("shadowspec._dashboards", *module.parent.relative_to(CHECKOUT / "dashboards").parts)))
    return found


def test_every_package_is_listed() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(project["tool"]["setuptools"]["packages"]) == _packages_on_disk()


@pytest.mark.slow
def test_the_wheel_holds_all_that_the_checkout_does(wheel: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "shadowspec", "migrations", "dashboards", "kernels/shadowspec_kernels"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    moved = {"migrations/": "shadowspec/_migrations/", "dashboards/": "shadowspec/_dashboards/", "kernels/": ""}
    expected = set()
    for path in tracked:
        prefix = next((prefix for prefix in moved if path.startswith(prefix)), None)
        expected.add(path if prefix is None else moved[prefix] + path.removeprefix(prefix))
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = {Path(name).name for name in archive.namelist() if "/licenses/" in name}
    assert expected - names == set()
    assert {name.split("/")[0] for name in names} == {"shadowspec", "shadowspec_kernels"}
    assert licences == {"LICENSE", "NOTICE"}


@pytest.mark.all
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_an_installation_runs_outside_the_checkout(
    kind: str, wheel: Path, source: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    python = _environment(tmp_path / "environment")
    what = [wheel] if kind == "wheel" else ["--no-build-isolation", "--editable", source]
    _pip("install", "--no-deps", *what, python=python)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    found = json.loads(_run(python, "-c", PROBE, cwd=elsewhere))
    home = tmp_path / "environment" if kind == "wheel" else source
    assert all(home in Path(found[name]).parents for name in ("package", "kernels", "migrations", "dashboards"))
    assert (found["is_at_head"], found["drift"], found["strangers"]) == (True, [], [])
    script = python.parent / "shadowspec"
    assert found["version"] in _run(python, str(script), "--version", cwd=elsewhere)
    _run(python, str(script), "init", cwd=elsewhere)
    for command in ("upgrade", "current", "check"):
        _run(python, str(script), "db", command, cwd=elsewhere, SHADOWSPEC_DATABASE_URL="sqlite:///by-command.db")
    if kind == "wheel":
        demo = json.loads(_run(python, str(script), "demo", "--requests", "8", "--json", cwd=elsewhere))
        assert demo["requests_measured"] == 8
        assert (elsewhere / demo["report"]).stat().st_size > 100_000
