"""Fixtures shared by all tests: a real Postgres with a database for each test, a real Kafka with topics for each.

A service that cannot be started fails the tests that need it: nothing is skipped.
"""

from __future__ import annotations

import gc
import os
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import hypothesis
import pytest
import slipcover
import sqlalchemy
from sqlalchemy import NullPool, make_url

from shadowspec.store import Store, schema
from tests.kafka_server import KafkaServer, kafka_server
from tests.kafka_topics import Topics
from tests.services import postgres_server

if hasattr(slipcover.Slipcover, "deinstrument_seen"):  # Python 3.11; later ones count lines by sys.monitoring
    # A line hit often would be freed of its probe by a walk over every dictionary of the process. Where another thread
    # fills one meanwhile, the walk raises in whatever line was being run. A probe that stays costs next to nothing.
    slipcover.Slipcover.deinstrument_seen = lambda self: None

# No example has a deadline: how long one takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")
# `pytest --hypothesis-profile=long`: for as long as one lets it run (see `make fuzz`).
hypothesis.settings.register_profile(
    "long", max_examples=10_000_000, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on real servers and processes are tried a second time, and the summary shows why; slow files go first."""
    for item in items:
        if item.get_closest_marker("integration") is not None:
            item.add_marker(pytest.mark.flaky(reruns=1))
    # Files with slow tests come first, so that no process is left with one when the others are done.
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


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


# Where there is no GPU the kernels run in Triton's interpreter.  Triton asks once, when it is first imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

WITH_KAFKA = ("kafka", "faults")
DIALECTS = ("sqlite", pytest.param("postgres", marks=pytest.mark.integration))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a server's maintenance database: SHADOWSPEC_TEST_POSTGRES_URL, else a server of our own."""
    given = os.environ.get("SHADOWSPEC_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    with postgres_server() as server:
        yield server.url


@contextmanager
def temporary_database(server_url: str, template: str | None = None) -> Iterator[str]:
    """A database of a fresh name on the server, dropped at the end."""
    name = f"shadowspec_{uuid.uuid4().hex[:12]}"
    engine = sqlalchemy.create_engine(server_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        copied = f' TEMPLATE "{template}"' if template else ""
        connection.exec_driver_sql(f'CREATE DATABASE "{name}"{copied}')
    try:
        yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def migrated_postgres(postgres_url: str) -> Iterator[str]:
    """Name of a migrated database that the tests copy and never touch."""
    with temporary_database(postgres_url) as url:
        schema.upgrade(url)
        name = make_url(url).database
        assert name is not None
        yield name


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
                url = f"sqlite:///{tmp_path / uuid.uuid4().hex}.db"
                schema.upgrade(url)
                return url
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
def kafka_bootstrap() -> Iterator[str]:
    """Address of a broker that no test stops: SHADOWSPEC_TEST_KAFKA, else a broker of our own."""
    given = os.environ.get("SHADOWSPEC_TEST_KAFKA")
    if given:
        yield given
        return
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
