"""The child process and its channel: never waited for, deaf to signals, dead with its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.types import BlockResult
from shadowspec.worker.engine_process import (
    BuildFailed,
    Channel,
    Died,
    EngineFactory,
    EngineProcess,
    Event,
    MeasuringFailed,
    Ready,
)
from tests.fakes import FakeEngine, FakeEngineFactory, Marks
from tests.services import PATIENCE_S, is_running
from tests.worker.blocks import block, prompt

pytestmark = pytest.mark.slow  # all of them together

KILL, HOLD, STALL, ERROR = 100, 101, 102, 103
HOLD_S = 10.0  # far longer than what is done meanwhile
MARKS = Marks(kill=KILL, hold=HOLD, hold_s=HOLD_S, stall=STALL, error=ERROR)
DELAY_S = 0.01
FACTORY = FakeEngineFactory(("chat", "code"), marks=MARKS, delay_s=DELAY_S)
CHECKOUT = Path(__file__).parents[2]

Start = Callable[..., EngineProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def started(factory: EngineFactory = FACTORY) -> EngineProcess:
            process = EngineProcess(factory)
            stack.callback(process.stop, 0.0)
            process.start()
            return process

        yield started


def events_until(process: EngineProcess, *last: type[Event]) -> list[Event]:
    events: list[Event] = []
    deadline = time.monotonic() + PATIENCE_S
    while not any(isinstance(event, last) for event in events):
        assert time.monotonic() < deadline, f"only {events} came"
        events += process.poll()
        time.sleep(0.01)
    return events


def polled(process: EngineProcess, times: int) -> list[Event]:
    """What comes while one polls so often."""
    events: list[Event] = []
    for _ in range(times):
        events += process.poll()
        time.sleep(0.005)
    return events


def test_a_child_says_what_it_measures_with_and_measures(start: Start) -> None:
    process = start()
    assert process.fileno() >= 0
    (ready,) = events_until(process, Ready)
    assert ready == Ready({"chat": FACTORY.configs, "code": FACTORY.configs}, "none")
    blocks = [block(prompt(i)) for i in range(3)]
    for wanted in blocks:
        process.submit(wanted)
    results = [event for event in process.stop(PATIENCE_S) if isinstance(event, BlockResult)]
    assert [result.block for result in results] == blocks
    assert all(result.seconds is not None and result.seconds >= DELAY_S for result in results)
    assert results[0].runs == FakeEngine(FACTORY.configs).measure(blocks[0]).runs
    assert process.poll() == []
    assert process.fileno() == -1


def test_the_child_is_spawned(start: Start) -> None:
    """A forked child would hold the parent's threads' locks and its connections."""
    process = start()
    events_until(process, Ready)
    command = Path(f"/proc/{process._process.pid}/cmdline").read_bytes()
    assert b"spawn_main" in command
    descriptors = [
        str(entry.readlink()) for entry in Path(f"/proc/{process._process.pid}/fd").iterdir() if entry.is_symlink()
    ]
    assert sum(name.startswith("socket:") for name in descriptors) == 1


@pytest.mark.parametrize(("mark", "code"), [(KILL, 9)])
def test_a_death_comes_once_and_last(start: Start, mark: int, code: int) -> None:
    process = start()
    events_until(process, Ready)
    process.submit(block(prompt(1)))
    events_until(process, BlockResult)  # what is sent at the moment of a death may be lost with it
    process.submit(block(prompt(2, mark)))
    process.submit(block(prompt(3)))
    assert events_until(process, Died) == [Died(code)]
    assert process.poll() == []


def test_a_kill_is_a_death_by_signal(start: Start) -> None:
    process = start()
    events_until(process, Ready)
    process.kill()
    death = events_until(process, Died)[-1]
    assert death == Died(-signal.SIGKILL)
    assert str(death) == "killed by SIGKILL"
    assert str(Died(3)) == "exit code 3"


def test_an_error_crosses_by_name_alone(start: Start) -> None:
    process = start()
    events_until(process, Ready)
    bad = block(prompt(2, ERROR))
    process.submit(bad)
    assert events_until(process, Died) == [MeasuringFailed(bad.block_id, "RuntimeError", is_away=False), Died(0)]


@dataclass(frozen=True)
class Unbuildable:
    """A factory whose build raises an error that is not ours."""

    endpoints = ("chat",)

    def __call__(self) -> Mapping[str, FakeEngine]:
        raise OSError("no device")


def test_engines_that_cannot_be_built_say_so(start: Start, tmp_path: Path) -> None:
    missing = FakeEngineFactory(("chat",), model_folder=tmp_path / "none")
    assert events_until(start(missing), Died) == [
        BuildFailed(f"{tmp_path / 'none'}: this folder does not exist", 2),
        Died(0),
    ]
    assert events_until(start(Unbuildable()), Died) == [BuildFailed("the engines cannot be built: OSError", 2), Died(0)]


def test_a_child_that_holds_its_interpreter_holds_nobody_else(start: Start) -> None:
    """While a native call keeps the child's lock, blocks larger than any socket buffer are submitted."""
    process = start()
    events_until(process, Ready)
    process.submit(block(prompt(1, HOLD)))
    assert polled(process, 20) == [], "the child was not held"
    large = block(prompt(2, length=4_000_000))
    process.submit(large)
    assert polled(process, 60) == [], "it was waited for until the child was free"
    results = [event for event in process.stop(PATIENCE_S) if isinstance(event, BlockResult)]
    assert [result.block.requests[0].key.offset for result in results] == [1, 2]
    assert results[1].block == large


def test_a_stopped_child_holds_nobody(start: Start) -> None:
    process = start()
    events_until(process, Ready)
    os.kill(process._process.pid, signal.SIGSTOP)
    process.submit(block(prompt(1)))
    assert polled(process, 60) == []
    began = time.monotonic()
    assert process.stop(0.2)[-1] == Died(-signal.SIGKILL)
    assert time.monotonic() - began < PATIENCE_S


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTERM])
def test_the_child_leaves_signals_to_its_parent(start: Start, ignored: signal.Signals) -> None:
    process = start()
    os.kill(process._process.pid, ignored)  # at its very beginning
    events_until(process, Ready)
    os.kill(process._process.pid, ignored)
    process.submit(block(prompt(1)))
    assert [type(event) for event in events_until(process, BlockResult)] == [BlockResult]
    assert process.stop(PATIENCE_S)[-1] == Died(0)


PARENT = """
import sys, time
from tests.fakes import FakeEngineFactory, Marks
from shadowspec.worker.engine_process import EngineProcess
from shadowspec.worker.engine_process import Ready
from tests.worker.blocks import block, prompt
if __name__ == "__main__":
    process = EngineProcess(FakeEngineFactory(("chat",), marks=Marks(stall=7)))
    process.start()
    while not any(isinstance(event, Ready) for event in process.poll()):
        time.sleep(0.01)
    process.submit(block(prompt(1, 7)))
    print(process._process.pid, flush=True)
    if sys.argv[1] == "stay":
        time.sleep(600)
"""


def run_parent(tmp_path: Path, what: str) -> tuple[subprocess.Popen[str], int]:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "kernels")])
    parent = subprocess.Popen(
        [sys.executable, str(script), what], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.parametrize("what", ["stay", "leave"])
def test_a_child_dies_with_its_parent(tmp_path: Path, what: str) -> None:
    """In the middle of a block that never ends: the parent is killed, or leaves without stopping the child."""
    parent, child = run_parent(tmp_path, what)
    if what == "stay":
        assert is_running(child)
        parent.kill()
    parent.wait(PATIENCE_S)
    if parent.stdout is not None:
        parent.stdout.close()
    deadline = time.monotonic() + PATIENCE_S
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=200_000), max_size=6))
def test_the_channel_carries_every_message_whole_and_in_order(messages: list[bytes]) -> None:
    """Both ends in one thread: neither may wait, whatever is sent before the other reads."""
    first, second = socket.socketpair()
    with closing(Channel(first, blocks=False)) as ours, closing(Channel(second, blocks=False)) as its:
        for message in messages:
            ours.send(message)
        arrived: list[bytes] = []
        while len(arrived) < len(messages):
            ours.flush()
            message = its.receive()
            if message is not None:
                arrived.append(message)
        assert arrived == messages
        assert its.receive() is None
        ours.send(b"last")
        ours.close()
        assert its.receive() == b"last"
        assert its.receive() is None
        assert its.is_closed
        its.send(b"to nobody")


def test_half_a_message_is_none() -> None:
    first, second = socket.socketpair()
    with closing(Channel(second, blocks=False)) as its:
        first.sendall(b"\0" * 7 + b"\x09" + b"half")
        assert its.receive() is None
        first.close()
        assert its.receive() is None
        assert its.is_closed
