"""How commands behave at terminals of every kind: narrow, without colour, not there, closed, and while one types."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from shadowspec.cli.main import COMMANDS, FIRST
from shadowspec.errors import ExitCode

MAIN = [sys.executable, "-m", "shadowspec"]
ONE_SCREEN = 40  # lines
QUESTION = b"[Y/n]: "
NO_SERVER = "127.0.0.1:9"
COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38;5|48;5)")


def environment(**changes: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")} | changes


def at_terminal(*arguments: str, columns: int = 80, **changes: str) -> str:
    """What a command writes at a terminal of so many columns."""
    return answered_at_terminal(*arguments, columns=columns, **changes)[1]


def answered_at_terminal(*arguments: str, typed: str = "", columns: int = 80, **changes: str) -> tuple[int, str]:
    """A command's exit code and what it writes at a terminal, on which somebody types once it asks."""
    leader, follower = pty.openpty()
    done = subprocess.Popen(
        [*MAIN, *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment(TERM="xterm-256color", COLUMNS=str(columns), LINES="50", **changes),
    )
    os.close(follower)
    written = b""
    while select.select([leader], [], [], 60.0)[0]:
        try:
            part = os.read(leader, 65_536)
        except OSError:  # closed
            break
        if not part:
            break
        written += part
        if typed and QUESTION in written:
            os.write(leader, typed.encode())
            typed = ""
    try:
        return done.wait(60), written.decode()
    finally:
        done.kill()
        os.close(leader)


def test_the_help_fits_one_screen_and_begins_with_the_five_that_matter() -> None:
    done = subprocess.run([*MAIN, "--help"], capture_output=True, text=True, check=True, env=environment(COLUMNS="80"))
    lines = done.stdout.splitlines()
    assert len(lines) <= ONE_SCREEN
    assert max(map(len, lines)) <= 80
    named = [words[1] for line in lines if len(words := line.split()) > 2 and words[1] in COMMANDS]
    assert tuple(named[:5]) == FIRST
    assert sorted(named) == sorted(COMMANDS)
    assert "\u2026" not in done.stdout, "no line is cut"


@pytest.mark.parametrize("columns", [60, 200])
def test_help_fits_every_width(columns: int) -> None:
    written = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", at_terminal("gate", "--help", columns=columns))
    assert "--dry-run" in written
    assert all(len(line.rstrip("\r")) <= columns for line in written.split("\n"))


def test_colours_are_off_where_they_are_not_wanted() -> None:
    assert COLOUR.search(at_terminal("--help"))
    assert not COLOUR.search(at_terminal("--help", NO_COLOR="1"))
    piped = subprocess.run([*MAIN, "--help"], capture_output=True, text=True, check=True, env=environment())
    assert "\x1b" not in piped.stdout


def test_a_reader_that_leaves_is_no_error_of_the_command() -> None:
    reading, writing = os.pipe()
    done = subprocess.Popen([*MAIN, "--help"], stdout=writing, stderr=subprocess.PIPE, env=environment())
    os.close(writing)
    os.close(reading)
    _, said = done.communicate(timeout=120)
    assert (done.returncode, said) == (ExitCode.OUTPUT_CLOSED, b"")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("shadowspec ga", ["gate"]),
        ("shadowspec re", ["replay", "report"]),
        ("shadowspec gate --dr", ["--dry-run"]),
        ("shadowspec override cl", ["clear"]),
        ("shadowspec check --on-hold w", ["warn"]),
    ],
)
def test_the_shell_completes_commands_options_and_values(typed: str, offered: list[str], tmp_path: Path) -> None:
    words = {"_SHADOWSPEC_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = subprocess.run(MAIN, capture_output=True, text=True, check=False, env=environment(**words), cwd=tmp_path)
    assert done.stdout.split() == offered, done.stderr


@pytest.fixture
def unknown_log(tmp_path: Path) -> list[str]:
    """A trial of a log of one's own, through servers that are away: what is asked comes before they are."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"body": body, "ts": 1_700_000_000, "answer": "Hi"}) + "\n", encoding="utf-8")
    servers = ("--baseline", f"http://{NO_SERVER}", "--speculative", f"http://{NO_SERVER}0")
    return ["try", "--traffic", str(path), *servers, "--out", str(tmp_path / "out")]


@pytest.mark.parametrize("typed", ["y\n", "\n"])
def test_a_proposed_map_is_used_if_the_user_agrees(unknown_log: list[str], typed: str) -> None:
    code, written = answered_at_terminal(*unknown_log, typed=typed, columns=200)
    assert "line 1 has request under `body`, time under `ts`, response under `answer`" in written
    assert "Read it with --map request=body,time=ts,response=answer?" in written
    assert (code, NO_SERVER in written) == (ExitCode.UNAVAILABLE, True), "the file is read, and the servers are next"


@pytest.mark.parametrize("typed", ["n\n", "\x04"])  # the second is the end of the input
def test_a_proposed_map_is_not_used_if_the_user_declines(unknown_log: list[str], typed: str) -> None:
    code, written = answered_at_terminal(*unknown_log, typed=typed, columns=200)
    assert (code, "no record is among the first 1 line (unknown_format: 1)" in written) == (ExitCode.NO_DATA, True)
    assert NO_SERVER not in written
    assert "Hello" not in written


def test_nobody_is_asked_without_a_terminal(unknown_log: list[str]) -> None:
    done = subprocess.run([*MAIN, *unknown_log], input="y\n", capture_output=True, text=True, env=environment())
    assert done.returncode == ExitCode.NO_DATA
    assert "give --map request=body,time=ts,response=answer" in " ".join(done.stderr.split())
    assert QUESTION.decode() not in done.stderr + done.stdout
