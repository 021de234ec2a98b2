"""What becomes of blocks when their engine dies, stalls, raises or cannot be built; with real child processes."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shadowspec.errors import ModelError, ServiceUnavailableError, ShadowSpecError, StoreError
from shadowspec.types import Block, RecordKey
from shadowspec.types.settings import WorkerSettings
from shadowspec.worker.engine_process import Died, EngineFactory
from shadowspec.worker.recovery import BlockOutcome
from shadowspec.worker.supervisor import Supervisor
from tests.fakes import FakeEngine, FakeEngineFactory, Marks, fake_config
from tests.services import PATIENCE_S
from tests.worker.blocks import AttemptsInMemory, Diary, DiaryFactory, block, prompt

pytestmark = pytest.mark.slow  # all of them together

KILL, STALL, ERROR, TOGETHER, OOM, ABORT = 100, 101, 102, 103, 104, 105
MARKS = Marks(kill=KILL, stall=STALL, error=ERROR, kill_together=TOGETHER, oom=OOM, abort=ABORT)
CONFIGS = (fake_config("one"), fake_config("two", 2))
FACTORY = FakeEngineFactory(("chat", "code"), CONFIGS, marks=MARKS)

Start = Callable[..., Supervisor]


@pytest.fixture
def started() -> Iterator[Start]:
    """Starts supervisors and closes them in the end."""
    with ExitStack() as stack:

        def start(
            *factories: EngineFactory,
            attempts: AttemptsInMemory | None = None,
            on_restart: Callable[[str], None] = lambda _: None,
            **limits: Any,
        ) -> Supervisor:
            settings = WorkerSettings(**limits)
            return stack.enter_context(
                Supervisor(factories or (FACTORY,), attempts or AttemptsInMemory(), settings, on_restart)
            )

        yield start


def measured(supervisor: Supervisor, *blocks: Block) -> dict[str, BlockOutcome]:
    """Offer the blocks as there is room, and wait for all of them."""
    waiting, outcomes = list(blocks), []
    deadline = time.monotonic() + PATIENCE_S
    while waiting or not supervisor.is_idle:
        assert time.monotonic() < deadline, "the blocks are not measured in time"
        while waiting and supervisor.offer(waiting[0]):
            waiting.pop(0)
        supervisor.wait(0.05)
        outcomes += supervisor.step()
    assert len(outcomes) == len(blocks)
    return {outcome.result.block.block_id: outcome for outcome in outcomes}


def wait_until(holds: Callable[[], bool], supervisor: Supervisor) -> list[BlockOutcome]:
    deadline, outcomes = time.monotonic() + PATIENCE_S, []
    while not holds():
        assert time.monotonic() < deadline, "what was waited for has not come"
        supervisor.wait(0.05)
        outcomes += supervisor.step()
    return outcomes


def failures(outcome: BlockOutcome) -> dict[int, str | None]:
    """The failure of each own request, the same in every config, by offset."""
    result = outcome.result
    assert len(result.runs) == len(CONFIGS) * len(result.block.requests)
    found: dict[int, set[str | None]] = {}
    for run in result.runs:
        assert run.block_id == result.block.block_id
        assert (run.counts is None) is (run.failure is not None)
        found.setdefault(run.key.offset, set()).add(run.failure)
    assert {(run.key, run.fingerprint) for run in result.runs} == {
        (request.key, config.fingerprint) for request in result.block.requests for config in CONFIGS
    }
    assert all(len(codes) == 1 for codes in found.values())
    return {offset: codes.pop() for offset, codes in found.items()}


def test_blocks_are_measured_as_one_engine_alone_would(started: Start) -> None:
    supervisor = started()
    blocks = [block(prompt(4 * i), prompt(4 * i + 1), sequence=i) for i in range(12)]
    outcomes = measured(supervisor, *blocks)
    plain = FakeEngine(CONFIGS)
    for given in blocks:
        outcome = outcomes[given.block_id]
        assert outcome.result.runs == plain.measure(given).runs
        assert outcome.result.block == given
        assert outcome.poisoned == {}
        assert outcome.seconds > 0
    assert supervisor.configs_by_endpoint == dict.fromkeys(FACTORY.endpoints, CONFIGS)


def test_the_queue_is_bounded(started: Start) -> None:
    supervisor = started(max_queued_blocks=2)
    assert not supervisor.is_ready
    assert [supervisor.offer(block(prompt(i))) for i in range(3)] == [True, True, False]
    assert (supervisor.groups.num_queued, supervisor.in_flight) == (2, 2)
    outcomes = supervisor.drain(PATIENCE_S)
    assert [outcome.result.block.requests[0].key.offset for outcome in outcomes] == [0, 1]
    assert supervisor.is_ready
    assert supervisor.is_idle


def test_a_drain_ends_in_time(started: Start) -> None:
    supervisor = started(FakeEngineFactory(("chat",), CONFIGS, marks=MARKS))
    wait_until(lambda: supervisor.is_ready, supervisor)
    supervisor.offer(block(prompt(1, STALL)))
    began = time.monotonic()
    assert supervisor.drain(0.5) == []
    supervisor.close()
    assert time.monotonic() - began < PATIENCE_S
    assert supervisor.in_flight == 1


def test_two_engines_share_the_blocks(started: Start) -> None:
    slow = FakeEngineFactory(("chat",), CONFIGS, delay_s=0.05)
    supervisor = started(slow, slow, max_queued_blocks=20)
    wait_until(lambda: all(slot.is_ready for slot in supervisor.groups.slots), supervisor)
    assert all(supervisor.offer(block(prompt(i), sequence=i)) for i in range(8))
    outcomes = supervisor.step()
    assert all(slot.sent for slot in supervisor.groups.slots)
    outcomes += wait_until(lambda: supervisor.is_idle, supervisor)
    assert sorted(outcome.result.block.sequence for outcome in outcomes) == list(range(8))


def test_an_engine_holds_no_more_than_its_next_block(started: Start) -> None:
    """What it holds when it dies is measured again; and the other engine could have had it."""
    supervisor = started(FACTORY, FACTORY)
    wait_until(lambda: all(slot.is_ready for slot in supervisor.groups.slots), supervisor)
    for offset in range(6):
        assert supervisor.offer(block(prompt(offset, STALL), sequence=offset))
    held = []
    for _ in range(5):
        assert supervisor.step() == []
        held.append([[sent.block.sequence for sent in slot.sent] for slot in supervisor.groups.slots])
    assert held[0] == held[-1] == [[0, 2], [1, 3]]
    assert (supervisor.groups.num_queued, supervisor.in_flight) == (2, 6)


@pytest.mark.representative(f"{KILL}-engine_died", f"{ERROR}-engine_failed")
@pytest.mark.parametrize(
    ("mark", "code"),
    [(KILL, "engine_died"), (ABORT, "engine_died"), (STALL, "engine_stalled"), (ERROR, "engine_failed")],
)
def test_a_request_that_fails_the_engine_alone_is_poisoned_and_its_block_fails(
    started: Start, mark: int, code: str
) -> None:
    attempts, restarts = AttemptsInMemory(), list[str]()
    # Only a stall waits for the limit; on a busy machine a good block must not reach it.
    limit_s = 5.0 if mark == STALL else PATIENCE_S
    supervisor = started(attempts=attempts, on_restart=restarts.append, block_timeout_s=limit_s)
    bad = block(prompt(10), prompt(11, mark), prompt(12), prompt(13), sequence=1)
    outcomes = measured(supervisor, block(prompt(1), prompt(2)), bad, block(prompt(20), prompt(21), sequence=2))
    outcome = outcomes[bad.block_id]
    assert failures(outcome) == dict.fromkeys((10, 11, 12, 13), code)
    assert outcome.failure == code
    assert outcome.poisoned == {bad.requests[1].key: code}
    assert outcome.result.block == bad
    assert [key.offset for key in attempts.recorded] == [10, 11, 11, 11, 12, 13]
    assert restarts == [code] * 4  # once with the others, three times alone
    assert attempts.numbers == {bad.requests[1].key: 3}, "a request that did no harm has no attempts left"
    assert all(set(failures(outcomes[name]).values()) == {None} for name in outcomes if name != bad.block_id)


@pytest.mark.all
def test_suspects_stand_beside_prompts_that_were_measured_well(started: Start, tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    supervisor = started(DiaryFactory(diary, FakeEngine(CONFIGS), mark=KILL, deaths=99), max_attempts=2)
    good = block(prompt(1), prompt(2))
    bad = block(prompt(10), prompt(11, KILL), prompt(12, KILL), fillers=[prompt(1)], sequence=1)
    outcome = measured(supervisor, good, bad)[bad.block_id]
    assert failures(outcome) == dict.fromkeys((10, 11, 12), "engine_died")
    assert sorted(key.offset for key in outcome.poisoned) == [11, 12]
    steps = [line for line in diary.lines() if line.startswith("measure")]
    assert steps == [
        "measure [1, 2] []",
        "measure [10, 11, 12] [1]",
        "measure [10] [1, 2, 1]",
        *["measure [11] [1, 2, 1]"] * 2,
        *["measure [12] [1, 2, 1]"] * 2,
    ]


@pytest.mark.all
def test_a_block_of_poison_alone_has_failed_runs_alone(started: Start) -> None:
    supervisor = started(max_attempts=1)
    bad = block(prompt(1, KILL), prompt(2, STALL, KILL))
    outcome = measured(supervisor, bad)[bad.block_id]
    assert failures(outcome) == {1: "engine_died", 2: "engine_died"}
    assert outcome.result.memory == {}
    assert outcome.seconds == 0.0


def test_a_poisoned_filler_is_exchanged(started: Start) -> None:
    """A prompt that killed the engine in its own block fills no other."""
    restarts: list[str] = []
    supervisor = started(max_attempts=1, on_restart=restarts.append)
    poison = prompt(2, KILL)
    later = block(prompt(5), fillers=[poison, prompt(1)], sequence=1)
    outcomes = measured(supervisor, block(prompt(1), poison), later)
    assert failures(outcomes[later.block_id]) == {5: None}
    assert len(restarts) == 2


@pytest.mark.all
def test_a_filler_that_kills_is_found_without_being_suspected(started: Start) -> None:
    """The filler's own block was never measured here: it is a suspect, and fills no block after this one."""
    supervisor = started()
    killer = prompt(2, KILL)
    bad, later = (block(prompt(line), fillers=[killer, prompt(1)], sequence=line) for line in (5, 6))
    outcomes = measured(supervisor, block(prompt(1)), bad, later)
    assert failures(outcomes[bad.block_id]) == {5: "engine_died"}
    assert outcomes[bad.block_id].poisoned == {killer.key: "engine_died"}
    assert failures(outcomes[later.block_id]) == {6: None}


@pytest.mark.representative("stall-engine_stalled")
@pytest.mark.parametrize(("fault", "code"), [("die", "engine_died"), ("stall", "engine_stalled")])
def test_a_death_or_a_stall_that_does_not_come_again_is_not_hidden(
    started: Start, tmp_path: Path, fault: str, code: str
) -> None:
    """The audit's experiment: the engine hangs once at random, and every request goes well when it is tried."""
    attempts = AttemptsInMemory()
    diary = Diary(tmp_path / "diary")
    factory = DiaryFactory(diary, FakeEngine(CONFIGS), mark=KILL, deaths=1, fault=fault)
    supervisor = started(factory, attempts=attempts, block_timeout_s=1.0)
    bad, after = block(prompt(1), prompt(2, KILL)), block(prompt(7), sequence=1)
    outcomes = measured(supervisor, bad, after)
    assert failures(outcomes[bad.block_id]) == {1: code, 2: code}
    assert (outcomes[bad.block_id].failure, outcomes[bad.block_id].poisoned) == (code, {})
    assert (failures(outcomes[after.block_id]), outcomes[after.block_id].failure) == ({7: None}, None)
    wait_until(lambda: attempts.numbers == {}, supervisor)


def test_a_server_that_is_away_fails_no_block(started: Start, tmp_path: Path) -> None:
    """Its operator may have restarted it; nothing of the block was sent."""
    diary, restarts = Diary(tmp_path / "diary"), list[str]()
    factory = DiaryFactory(diary, FakeEngine(CONFIGS), mark=ERROR, deaths=2, fault="away")
    supervisor = started(factory, on_restart=restarts.append)
    given = block(prompt(1), prompt(2, ERROR)), block(prompt(3), sequence=1)
    outcomes = measured(supervisor, *given)
    assert [failures(outcomes[each.block_id]) for each in given] == [{1: None, 2: None}, {3: None}]
    assert restarts == ["server_away"] * 2


def test_a_worker_that_is_asked_to_end_fails_no_block(started: Start) -> None:
    """What its engine was at is not stored, and will be delivered again."""
    supervisor = started()
    supervisor.offer(block(prompt(1, STALL)))
    wait_until(lambda: bool(supervisor.groups.slots[0].sent), supervisor)
    supervisor.close()
    assert supervisor.step() == []
    assert supervisor.in_flight == 1


def test_a_block_that_fails_though_its_requests_do_not(started: Start, tmp_path: Path) -> None:
    attempts, restarts = AttemptsInMemory(), list[str]()
    supervisor = started(attempts=attempts, on_restart=restarts.append, max_attempts=2)
    bad = block(prompt(1, TOGETHER), prompt(2, TOGETHER), prompt(3))
    after = block(prompt(7), sequence=1)
    outcomes = measured(supervisor, bad, after)
    assert failures(outcomes[bad.block_id]) == dict.fromkeys((1, 2, 3), "engine_died")
    assert failures(outcomes[after.block_id]) == {7: None}
    assert len(restarts) == 1
    assert outcomes[bad.block_id].poisoned == {}
    assert [key.offset for key in attempts.recorded] == [1, 2, 3]


def test_a_new_worker_does_not_begin_at_zero(started: Start) -> None:
    tried, almost = prompt(1, KILL), prompt(2, KILL)
    attempts, restarts = AttemptsInMemory({tried.key: 3, almost.key: 2}), list[str]()
    supervisor = started(attempts=attempts, on_restart=restarts.append)
    bad = block(tried, almost, prompt(3))
    outcome = measured(supervisor, bad)[bad.block_id]
    assert failures(outcome) == dict.fromkeys((1, 2, 3), "engine_died")
    assert outcome.poisoned == {tried.key: "engine_died", almost.key: "engine_died"}
    assert len(restarts) == 2, "the block, and one attempt of the second"


def test_an_attempt_is_written_down_before_it_is_made(started: Start, tmp_path: Path) -> None:
    """A database that is away holds the trial back, and nothing else."""
    away, diary = threading.Event(), Diary(tmp_path / "diary")
    away.set()

    class Away(AttemptsInMemory):
        def record_attempt(self, keys: Sequence[RecordKey]) -> Mapping[RecordKey, int]:
            if away.is_set():
                raise ServiceUnavailableError("the database is away")
            return super().record_attempt(keys)

    supervisor = started(DiaryFactory(diary, FakeEngine(CONFIGS), mark=KILL, deaths=1), attempts=Away())
    bad = block(prompt(1, KILL))
    supervisor.offer(bad)
    wait_until(lambda: sum(line.startswith("build") for line in diary.lines()) == 2, supervisor)
    wait_until(lambda: supervisor.is_ready, supervisor)
    for _ in range(100):  # a step that waited for the database would never return
        assert supervisor.step() == []
        time.sleep(0.01)
    assert sum(line.startswith("measure") for line in diary.lines()) == 1
    away.clear()
    outcomes = wait_until(lambda: supervisor.is_idle, supervisor)
    assert failures(outcomes[0]) == {1: "engine_died"}


@pytest.mark.representative("error0")
@pytest.mark.parametrize(
    "error", [StoreError("permission denied"), ServiceUnavailableError("permission denied", is_retryable=False)]
)
def test_a_log_that_cannot_be_written_stops_the_worker(started: Start, error: ShadowSpecError) -> None:
    class Refusing(AttemptsInMemory):
        def record_attempt(self, keys: Sequence[RecordKey]) -> Mapping[RecordKey, int]:
            raise error

    supervisor = started(attempts=Refusing())
    supervisor.offer(block(prompt(1, KILL)))
    with pytest.raises(type(error), match="permission denied"):
        wait_until(lambda: supervisor.is_idle, supervisor)


def test_an_engine_that_cannot_be_built_at_first_is_an_error(started: Start, tmp_path: Path) -> None:
    supervisor = started(FakeEngineFactory(("chat",), model_folder=tmp_path / "models"))
    with pytest.raises(ModelError, match="models: this folder does not exist") as caught:
        wait_until(lambda: supervisor.is_ready, supervisor)
    assert caught.value.exit_code == 2


def test_an_engine_that_cannot_be_built_again_is_tried_again(started: Start, tmp_path: Path) -> None:
    folder, restarts = tmp_path / "models", list[str]()
    folder.mkdir()
    factory = FakeEngineFactory(("chat",), CONFIGS, marks=MARKS, model_folder=folder)
    supervisor = started(factory, on_restart=restarts.append, max_attempts=1)
    wait_until(lambda: supervisor.is_ready, supervisor)
    shutil.rmtree(folder)
    bad = block(prompt(1, KILL), prompt(2))
    supervisor.offer(bad)
    wait_until(lambda: "build_failed" in restarts, supervisor)
    assert not supervisor.is_ready
    folder.mkdir()
    outcomes = wait_until(lambda: supervisor.is_idle, supervisor)
    assert failures(outcomes[0]) == {1: "engine_died", 2: "engine_died"}


def test_an_engine_that_is_never_built_is_an_error(started: Start) -> None:
    supervisor = started(FakeEngineFactory(("chat",), build_s=600.0), build_timeout_s=1.0)
    with pytest.raises(
        ServiceUnavailableError, match=r"engine-0 was not built within 1 s \(\[worker\] build_timeout_s\)"
    ):
        wait_until(lambda: supervisor.is_ready, supervisor)
    process = supervisor.groups.slots[0].process
    assert process is not None
    assert isinstance(process.stop(PATIENCE_S)[-1], Died), "it is ended, and nothing is waited for"


@pytest.mark.all
def test_an_engine_that_is_not_built_again_in_time_is_tried_again(started: Start, tmp_path: Path) -> None:
    diary, restarts = Diary(tmp_path / "diary"), list[str]()
    factory = DiaryFactory(diary, FakeEngine(CONFIGS), mark=KILL, deaths=1, slow_build=2)
    supervisor = started(factory, on_restart=restarts.append, build_timeout_s=10.0)
    wait_until(lambda: supervisor.is_ready, supervisor)
    outcomes = measured(supervisor, block(prompt(1, KILL), prompt(2)))
    assert len(outcomes) == 1
    assert restarts == ["engine_died", "build_stalled"]


@pytest.mark.all
def test_deaths_while_building_are_followed_by_longer_and_longer_waits(started: Start, tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    supervisor = started(DiaryFactory(diary, FakeEngine(CONFIGS), build_deaths=2))
    outcomes = measured(supervisor, block(prompt(1)))
    assert len(outcomes) == 1
    times = [float(line.split()[1]) for line in diary.lines() if line.startswith("build")]
    first, second = times[1] - times[0], times[2] - times[1]
    assert first >= 1.0
    assert second >= 2.0


def test_an_endpoint_whose_server_is_away_waits_and_holds_no_other_back(started: Start, tmp_path: Path) -> None:
    """From the start on, and again later: it is queued by itself, and measured when its server is there."""
    server = tmp_path / "server"
    supervisor = started(
        FakeEngineFactory(("chat",), CONFIGS), FakeEngineFactory(("code",), CONFIGS, server=server), max_queued_blocks=2
    )
    groups = supervisor.groups
    for away in range(2):
        wait_until(lambda: groups.waiting_endpoints == {"code"} and groups.ready_endpoints == {"chat"}, supervisor)
        assert supervisor.is_ready
        assert groups.stranded_endpoints == {"code"}
        code = [block(prompt(100 * away + i, endpoint="code"), sequence=i) for i in range(3)]
        assert [supervisor.offer(each) for each in code] == [True, True, False]
        outcomes: list[BlockOutcome] = []
        for offset in range(6):
            given = block(prompt(100 * away + offset))
            outcomes += wait_until(lambda given=given: supervisor.offer(given), supervisor)  # type: ignore[misc]
        outcomes += wait_until(lambda: supervisor.is_done, supervisor)
        assert [outcome.result.block.endpoint for outcome in outcomes] == ["chat"] * 6
        assert (groups.num_queued, supervisor.in_flight) == (2, 2)
        server.touch()
        outcomes = wait_until(lambda: supervisor.is_idle, supervisor)
        assert [outcome.result.block for outcome in outcomes] == code[:2]
        assert [failures(outcome) for outcome in outcomes] == [{100 * away: None}, {100 * away + 1: None}]
        assert not groups.waiting_endpoints
        server.unlink()
        supervisor.offer(block(prompt(99 - away, endpoint="code")))  # at which it is missed
        wait_until(lambda: groups.waiting_endpoints == {"code"}, supervisor)
        assert [each.requests[0].key.offset for each in supervisor.withdraw({"code": 0.0})] == [99 - away]


def test_what_waits_too_long_is_taken_back_where_others_go_on(started: Start, tmp_path: Path) -> None:
    server = tmp_path / "server"
    away = FakeEngineFactory(("code", "sql"), CONFIGS, server=server)
    alone = started(away)
    wait_until(lambda: bool(alone.groups.waiting_endpoints), alone)
    alone.offer(block(prompt(1, endpoint="code")))
    assert alone.withdraw({"code": 0.0, "sql": 0.0}) == [], "nobody waits for it"
    assert alone.groups.stranded_endpoints == frozenset()
    supervisor = started(FakeEngineFactory(("chat",), CONFIGS), away)
    wait_until(lambda: supervisor.groups.waiting_endpoints == {"code", "sql"}, supervisor)
    code, sql = (block(prompt(1, endpoint=name)) for name in ("code", "sql"))
    assert supervisor.offer(code)
    assert supervisor.offer(sql)
    assert supervisor.withdraw({"code": 3600.0, "sql": 0.0}) == [sql]
    assert supervisor.withdraw({"code": 3600.0, "sql": 0.0}) == []
    assert supervisor.withdraw({"code": 0.0, "sql": 0.0}) == [code]
    assert supervisor.is_idle


def test_a_failed_block_whose_server_is_gone_ends_as_failed(started: Start, tmp_path: Path) -> None:
    """The cause cannot be looked for, and other endpoints' records must not wait for it."""
    server = tmp_path / "server"
    server.touch()
    factory = FakeEngineFactory(("code",), CONFIGS, marks=MARKS, server=server)
    supervisor = started(FakeEngineFactory(("chat",), CONFIGS), factory)
    supervisor.offer(block(prompt(1, KILL, endpoint="code"), prompt(2, endpoint="code")))
    wait_until(lambda: supervisor.groups.slots[1].case is not None, supervisor)
    server.unlink()
    wait_until(lambda: supervisor.groups.waiting_endpoints == {"code"}, supervisor)
    assert supervisor.step() == []
    assert supervisor.withdraw({"code": 0.0}) == []
    (outcome,) = supervisor.step()
    assert failures(outcome) == {1: "engine_died", 2: "engine_died"}
    assert supervisor.is_idle


def test_an_endpoint_whose_servers_answer_nothing_waits_until_they_do(started: Start) -> None:
    """They may hang: each of their blocks takes as long as the time-outs, and no other endpoint waits for that."""
    code = FakeEngineFactory(("code",), CONFIGS, marks=MARKS)
    supervisor = started(FakeEngineFactory(("chat",), CONFIGS), code)
    wait_until(lambda: supervisor.groups.ready_endpoints == {"chat", "code"}, supervisor)
    silent = block(prompt(1, OOM, endpoint="code"), prompt(2, OOM, endpoint="code"))
    assert failures(measured(supervisor, silent)[silent.block_id]) == dict.fromkeys((1, 2), "out_of_memory")
    assert supervisor.groups.stranded_endpoints == {"code"}
    assert supervisor.groups.ready_endpoints == {"chat"}
    answered = block(prompt(3, OOM, endpoint="code"), prompt(4, endpoint="code"), sequence=1)
    assert failures(measured(supervisor, answered)[answered.block_id]) == {3: "out_of_memory", 4: None}
    assert supervisor.groups.ready_endpoints == {"chat", "code"}
    assert not supervisor.groups.waiting_endpoints


def test_a_refused_endpoint_ends_the_worker_only_where_nothing_can_be_measured(started: Start, tmp_path: Path) -> None:
    refused = FakeEngineFactory(("code",), CONFIGS, model_folder=tmp_path / "models")
    away = FakeEngineFactory(("sql",), CONFIGS, server=tmp_path / "server")
    restarts: list[str] = []
    supervisor = started(refused, away, FakeEngineFactory(("chat",), CONFIGS), on_restart=restarts.append)
    wait_until(lambda: "build_failed" in restarts and supervisor.is_ready, supervisor)
    wait_until(lambda: supervisor.groups.waiting_endpoints == {"code", "sql"}, supervisor)
    assert {*restarts} == {"build_failed"}, "a process that waits for a server is not started again"
    unready = started(refused, away)
    wait_until(lambda: unready.groups.waiting_endpoints == {"code", "sql"}, unready)
    assert not unready.is_ready, "and it goes on trying"
    (tmp_path / "server").touch()
    wait_until(lambda: unready.is_ready, unready)
    with pytest.raises(ModelError, match="models: this folder does not exist"):
        wait_until(lambda: False, started(refused, refused))


def test_an_idle_engine_that_dies_is_replaced(started: Start) -> None:
    supervisor = started()
    wait_until(lambda: supervisor.is_ready, supervisor)
    process = supervisor.groups.slots[0].process
    assert process is not None
    process.kill()
    wait_until(lambda: not supervisor.is_ready, supervisor)
    wait_until(lambda: supervisor.is_ready, supervisor)
    assert len(measured(supervisor, block(prompt(1)))) == 1


def test_a_request_that_does_not_fit_into_memory_is_no_poison(started: Start) -> None:
    supervisor = started()
    given = block(prompt(1), prompt(2, OOM))
    outcome = measured(supervisor, given)[given.block_id]
    assert failures(outcome) == {1: None, 2: "out_of_memory"}
    assert outcome.poisoned == {}


def test_nothing_of_a_prompt_is_logged(
    started: Start, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The engine's error quotes its prompt; neither our log nor the child's says it again."""
    caplog.set_level(logging.DEBUG)
    secret = 987_654_321
    supervisor = started(max_attempts=1)
    bad = block(prompt(1, ERROR, secret), prompt(2, secret))
    assert failures(measured(supervisor, bad)[bad.block_id]) == {1: "engine_failed", 2: "engine_failed"}
    written = caplog.text + "".join(capfd.readouterr())
    assert "RuntimeError" in written
    assert "engine_failed" in written
    assert str(secret) not in written
