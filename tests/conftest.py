"""Fixtures shared by all tests: a real Postgres with a database for each test, a real Kafka with topics for each.

A service that cannot be started fails the tests that need it: nothing is skipped.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import shutil
import signal
import ssl
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import slipcover
from sqlalchemy import make_url

from shadowspec.store import Store
from shadowspec.store.admin import schema
from tests.builders.databases import DIALECTS, folder_of_run, temporary_database
from tests.kafka_server import KafkaServer, kafka_server
from tests.kafka_topics import Topics
from tests.services import postgres_server

if hasattr(slipcover.Slipcover, "deinstrument_seen"):  # Python 3.11; later ones count lines by sys.monitoring
    # A line hit often would be freed of its probe by a walk over every dictionary of the process. Where another thread
    # fills one meanwhile, the walk raises in whatever line was being run. A probe that stays costs next to nothing.
    slipcover.Slipcover.deinstrument_seen = lambda self: None

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would every process that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No example has a deadline: how long one takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.register_profile("all", deadline=None)  # `make test-all`: as many examples as each test names
hypothesis.settings.load_profile("tests")
# `pytest --hypothesis-profile=long`: for as long as one lets it run (see `make fuzz`).
hypothesis.settings.register_profile(
    "long", max_examples=10_000_000, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
EXAMPLES = 15  # of a property in `make test`


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search for garbage only in what tests make: what collecting them loads stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by the marker `all`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to `make test-all` what a matrix holds besides its representatives; slow files go first."""
    has_all_examples = config.getoption("hypothesis_profile") is not None
    missing: dict[str, set[str]] = {}
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if not has_all_examples:
            _limit_examples(item)
        if (representative := item.get_closest_marker("representative")) is None:
            continue
        if item.callspec.id not in representative.args:
            item.add_marker("all")
        unseen = missing.setdefault(item.nodeid.partition("[")[0], set(representative.args))
        unseen.discard(item.callspec.id)
    if any(missing.values()) and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"no such cases are there to represent a matrix: {missing}")
    # Files with slow tests come first, so that no process is left with one when the others are done.
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


def _limit_examples(item: pytest.Function) -> None:
    """Let a property test try at most EXAMPLES examples."""
    function = getattr(item.obj, "__func__", item.obj)
    if not hypothesis.is_hypothesis_test(function):
        return
    current = function._hypothesis_internal_use_settings
    if current.max_examples > EXAMPLES:
        function._hypothesis_internal_use_settings = hypothesis.settings(current, max_examples=EXAMPLES)


@pytest.fixture(autouse=True, scope="module")
def _no_socket_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let what kafka-python leaves unclosed go with the file that made it.

    Found later, by a search for garbage in any other test, it is an error there.
    """
    yield
    if request.path.parent.name in WITH_KAFKA:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture(autouse=True, scope="session")
def _authorities_read_once() -> Iterator[None]:
    """Share one TLS context of the system's authorities: to read their certificates takes longer than most tests."""
    make = ssl.create_default_context
    of_the_system = functools.cache(make)

    def made(*arguments: Any, **named: Any) -> ssl.SSLContext:
        is_of_the_system = not arguments and set(named.values()) <= {None}
        return of_the_system() if is_of_the_system else make(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", made)
        yield


# Where there is no GPU the kernels run in Triton's interpreter.  Triton asks once, when it is first imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

WITH_KAFKA = ("kafka", "faults")


@contextmanager
def started_once(
    factory: pytest.TempPathFactory, name: str, start: Callable[[], AbstractContextManager[str]]
) -> Iterator[str]:
    """The address of a service that one process of this run starts, and ends when no other process uses it."""
    root = folder_of_run(factory)
    address = root / f"{name}.address"
    with (root / f"{name}.lock").open("w") as lock, (root / f"{name}.users").open("w") as users, ExitStack() as stack:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_starter = not address.exists()
        if is_starter:
            address.write_text(stack.enter_context(start()), encoding="utf-8")
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(lock, fcntl.LOCK_UN)
        yield address.read_text(encoding="utf-8")
        if is_starter:
            fcntl.flock(lock, fcntl.LOCK_EX)
            address.unlink()  # whoever comes later starts another one
            fcntl.flock(lock, fcntl.LOCK_UN)
            fcntl.flock(users, fcntl.LOCK_EX)  # given when the last user has closed its file


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a server's maintenance database: SHADOWSPEC_TEST_POSTGRES_URL, else a server of our own."""
    given = os.environ.get("SHADOWSPEC_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    with postgres_server() as server:
        yield server.url


@pytest.fixture(scope="session")
def migrated_postgres(postgres_url: str) -> Iterator[str]:
    """Name of a migrated database that the tests copy and never touch."""
    with temporary_database(postgres_url) as url:
        schema.upgrade(url)
        name = make_url(url).database
        assert name is not None
        yield name


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database file that the tests copy and never touch."""
    path = tmp_path_factory.mktemp("migrated") / "shadowspec.db"
    schema.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(params=DIALECTS)
def blank_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database without tables, on each dialect in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shadowspec.db'}"
        return
    with temporary_database(request.getfixturevalue("postgres_url")) as url:
        yield url


@pytest.fixture
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Makes a migrated database of the dialect it is given."""
    with ExitStack() as stack:

        def make(dialect: str) -> str:
            if dialect == "sqlite":
                path = tmp_path / f"{uuid.uuid4().hex}.db"
                shutil.copyfile(request.getfixturevalue("migrated_sqlite"), path)
                return f"sqlite:///{path}"
            server, template = (request.getfixturevalue(name) for name in ("postgres_url", "migrated_postgres"))
            return stack.enter_context(temporary_database(server, template))

        yield make


@pytest.fixture(params=DIALECTS)
def database_url(request: pytest.FixtureRequest, new_database: Callable[[str], str]) -> str:
    """URL of a fresh database at the code's revision, on each dialect in turn."""
    return new_database(request.param)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """An open, empty store, on each dialect in turn."""
    with Store.open(database_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a broker that no test stops: SHADOWSPEC_TEST_KAFKA, else one that all processes of this run share."""
    given = os.environ.get("SHADOWSPEC_TEST_KAFKA")
    if given:
        yield given
        return
    with started_once(tmp_path_factory, "kafka", _kafka) as address:
        yield address


@contextmanager
def _kafka() -> Iterator[str]:
    with kafka_server() as server:
        yield server.bootstrap


@pytest.fixture(scope="session")
def secure_kafka() -> Iterator[KafkaServer]:
    """A broker with TLS, passwords and permissions, which no test stops."""
    with kafka_server(is_secure=True) as server:
        yield server


@pytest.fixture
def new_kafka() -> Iterator[Callable[[], KafkaServer]]:
    """Makes brokers for one test to stop, kill and start; each is running."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(kafka_server())


@pytest.fixture
def topics(kafka_bootstrap: str) -> Iterator[Topics]:
    """Topics of fresh names on the shared broker, gone after the test."""
    with Topics(kafka_bootstrap) as made:
        yield made
