"""The GitHub Action: its check script run by bash as the runner does, and what it installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.utils import canonicalize_name

from tests.builders.shop import Shop
from tests.builders.slim_installation import packages
from tests.rollout.check.worlds import CHAT, CODE, decision, fingerprint

CHECKOUT = Path(__file__).resolve().parents[3]
MODULES = """
import sys
sys.argv = ["shadowspec", "check", "--endpoint", "chat", "--junit", "junit.xml", "--github"]
from shadowspec.cli import main
try:
    main()
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def action() -> dict[str, Any]:
    return dict(yaml.safe_load((CHECKOUT / "action.yml").read_text(encoding="utf-8")))


def environment(shop: Shop) -> dict[str, str]:
    """The runner's variables, and a `shadowspec` on the PATH that is this checkout's."""
    command = shop.folder / "bin" / "shadowspec"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m shadowspec "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return os.environ | {
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join((str(CHECKOUT), str(CHECKOUT / "kernels"))),
        "GITHUB_OUTPUT": str(shop.folder / "output"),
        "GITHUB_STEP_SUMMARY": str(shop.folder / "summary.md"),
    }


def run_step(action: dict[str, Any], shop: Shop, **inputs: str) -> tuple[int, str]:
    """Exit code and output file of the action's check step with these inputs, the others at their defaults."""
    step = next(step for step in action["runs"]["steps"] if step.get("id") == "check")
    variables = {}
    for variable, expression in step["env"].items():
        name = re.fullmatch(r"\$\{\{ inputs\.([a-z-]+) \}\}", expression)
        assert name is not None
        variables[variable] = inputs.get(name[1].replace("-", "_"), action["inputs"][name[1]].get("default", ""))
    output = shop.folder / "output"
    output.write_text("", encoding="utf-8")
    script = shop.folder / "step.sh"
    script.write_text(step["run"], encoding="utf-8")
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]  # as the runner calls it
    done = subprocess.run(
        command, cwd=shop.folder, env=environment(shop) | variables, capture_output=True, text=True, check=False
    )
    return done.returncode, output.read_text(encoding="utf-8")


def test_the_step_ends_as_the_check_does(action: dict[str, Any], shop: Shop) -> None:
    shop.decide([decision(), decision("HOLD", CODE), decision("ENABLE", CHAT)])
    assert run_step(action, shop, endpoint="chat") == (0, "outcome=ENABLE\nexit-code=0\n")
    assert run_step(action, shop, endpoint="chat", slice="prompt_class=code\nsampling_regime=greedy\n") == (
        3,
        "outcome=HOLD\nexit-code=3\n",
    )
    assert run_step(action, shop, endpoint="chat", slice="prompt_class=code", on_hold="warn") == (
        0,
        "outcome=HOLD\nexit-code=0\n",
    )
    every = {
        "load": "4",
        "max_age": "7d",
        "expect_fingerprint": fingerprint("draft"),
        "model_revision": "weights-a",
        "expect_engine": "vllm",
        "accept_schedule": "true",
        "upgrade": "false",
        "junit": "out/junit.xml",
        "config": "shadowspec.toml",
        "database_url": "sqlite:///shadow.db",
    }
    assert set(every) | {"endpoint", "slice", "on_hold", "install"} == {
        name.replace("-", "_") for name in action["inputs"]
    }
    other = every | {"expect_fingerprint": "0" * 64}
    assert run_step(action, shop, endpoint="chat", **other) == (4, "outcome=UNUSABLE\nexit-code=4\n")
    assert run_step(action, shop, endpoint="chat", **every) == (0, "outcome=ENABLE\nexit-code=0\n")
    assert (shop.folder / "out" / "junit.xml").is_file()
    code, _ = run_step(action, shop, endpoint="chat", **every | {"upgrade": "true"})
    assert code == 2, "the candidate is a way of speculating"


@pytest.mark.all
@pytest.mark.parametrize(
    "evil",
    ['"; touch owned; "', "$(touch owned)", "`touch owned`", "--json"],
    ids=["quotes", "command", "backticks", "option"],
)
def test_no_input_is_read_as_a_part_of_the_script(action: dict[str, Any], shop: Shop, evil: str) -> None:
    shop.decide([decision()])
    code, _ = run_step(action, shop, endpoint=evil, slice=f"a={evil}")
    assert code == 2
    assert not (shop.folder / "owned").exists()


def test_no_expression_stands_in_a_script(action: dict[str, Any]) -> None:
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"]


def test_the_action_installs_what_a_check_imports_in_fixed_versions(action: dict[str, Any], shop: Shop) -> None:
    install = action["runs"]["steps"][0]["run"].replace("\\\n", "")
    (line,) = [line.split() for line in install.splitlines() if "--constraint" in line]
    assert line[-2:] == ['"$GITHUB_ACTION_PATH/constraints.txt"', '"$GITHUB_ACTION_PATH"'], "itself, without an extra"
    shop.decide([decision()])
    done = subprocess.run(
        [sys.executable, "-c", MODULES],
        cwd=shop.folder,
        env=environment(shop),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    owners = packages_distributions()
    # Helpers of compiled modules and of the environment itself belong to no package.
    loaded = {canonicalize_name(owners[module][0]) for module in done.stderr.split() if module in owners}
    assert loaded - packages() - {"setuptools"} == set()
    pins = (CHECKOUT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert packages() - {canonicalize_name(pin.partition("==")[0]) for pin in pins} == {"shadowspec"}
