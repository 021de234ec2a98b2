"""Every command of the manifests, run as it is written against a real Postgres and Kafka.

Taken from the manifest: the arguments, the environment, the configuration, probes and grace periods.  Put in their
place: what stands in secrets and volumes, and addresses, ports and the login to Kafka, which are those of this machine.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import make_url

from shadowspec.store import Store
from shadowspec.types import FunnelCounter, Period
from tests.builders.deployment import LOGIN, ROLES
from tests.deploy.manifests import Document, build, container, named, pod, probed_port
from tests.deploy.recording import LOOPBACK, Recorded
from tests.kafka_server import PASSWORD, USER, KafkaServer
from tests.kafka_topics import Message, Topics
from tests.scheduler.receivers import web_server
from tests.servers.fake_server import FakeServer, running
from tests.services import PATIENCE_S, free_port, postgres_server
from tests.small_models import save_pair

pytestmark = [pytest.mark.integration, pytest.mark.all, pytest.mark.slow]

NUM_MESSAGES = 40  # of which 16 would fill a block: some are measured only by draining


@dataclass
class Place:
    """This machine in the place of a cluster: a folder for volumes and secrets, and the services' addresses."""

    folder: Path
    urls: Mapping[str, str]  # of the database, by role
    kafka: KafkaServer
    health_port: int = field(default_factory=free_port)
    dashboard_port: int = field(default_factory=free_port)
    servers: tuple[str, str] = ("http://baseline.invalid", "http://speculative.invalid")
    webhook: str = "json://127.0.0.1:1/"

    @property
    def database_port(self) -> int:
        return make_url(self.urls["owner"]).port or 0

    @property
    def broker_port(self) -> int:
        return int(self.kafka.address("SASL_SSL").rpartition(":")[2])

    def configured(self, documents: list[Document], name: str = "shadowspec") -> None:
        """Write the ConfigMap's files, with this machine's addresses."""
        certificates = self.kafka.certificates
        assert certificates is not None
        here = {
            "/etc/shadowspec-kafka/ca.pem": str(certificates.authority),
            "/etc/shadowspec-login/": f"{self.folder}/login/",
            "/etc/shadowspec/": f"{self.folder}/config/",
            "/models/": f"{self.folder}/models/",
            "kafka.kafka.svc:9093": self.kafka.address("SASL_SSL"),
            'username = "shadowspec"': f'username = "{USER}"',
            "0.0.0.0:8080": f"127.0.0.1:{self.health_port}",
            "[dashboard]\n": f"[dashboard]\nport = {self.dashboard_port}\n",
            "http://chat-baseline.models.svc:8000": self.servers[0],
            "http://chat-speculative.models.svc:8000": self.servers[1],
        }
        for folder in ("config", "login", "models", "tmp"):
            (self.folder / folder).mkdir(exist_ok=True)
        (self.folder / "login" / "auth.toml").write_text(LOGIN, encoding="utf-8")
        for file, text in named(documents, "ConfigMap", name)["data"].items():
            for there, item in here.items():
                text = text.replace(there, item)
            (self.folder / "config" / file).write_text(text, encoding="utf-8")

    def environment(self, document: Document) -> dict[str, str]:
        """The container's, with the secrets' values."""
        secrets = {
            ("shadowspec-owner", "database-url"): self.urls["owner"],
            ("shadowspec-worker", "database-url"): self.urls["worker"],
            ("shadowspec-worker", "hash-secret"): "a secret of sufficient length",
            ("shadowspec-worker", "kafka-password"): PASSWORD,
            ("shadowspec-worker", "servers-api-key"): "key",
            ("shadowspec-scheduler", "database-url"): self.urls["scheduler"],
            ("shadowspec-scheduler", "webhook-url"): self.webhook,
            ("shadowspec-dashboard", "database-url"): self.urls["reader"],
            ("shadowspec-dashboard", "override-url"): self.urls["operator"],
        }
        found = {}
        for variable in document["env"]:
            if "value" in variable:
                value = variable["value"].replace("/etc/shadowspec/", f"{self.folder}/config/")
                found[variable["name"]] = str(self.folder / "tmp") if value == "/tmp" else value
            else:
                reference = variable["valueFrom"]["secretKeyRef"]
                found[variable["name"]] = secrets[reference["name"], reference["key"]]
        return found | {"TMPDIR": str(self.folder / "tmp")}  # the volume at /tmp

    def start(self, documents: list[Document], component: str, name: str | None = None) -> Recorded:
        entry = container(documents, component)
        command = [*entry["command"], *entry.get("args", ())]
        return Recorded(command, self.environment(entry), self.folder, name or component)

    def require_nothing_else(self, recorded: Recorded, *ports: int) -> None:
        """It spoke to these ports of this machine, and wrote to its volume alone."""
        peers = recorded.peers()
        assert {address for address, _ in peers} <= set(LOOPBACK)
        assert {port for _, port in peers} == set(ports)
        strangers = {path for path in recorded.written() if not path.startswith((f"{self.folder}/tmp", "/dev/"))}
        assert not strangers


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """A database and the roles that the documentation asks for."""
    with postgres_server() as server:
        engine = sqlalchemy.create_engine(server.url, poolclass=sqlalchemy.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for role in ROLES.values():
                connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN")
            connection.exec_driver_sql("CREATE DATABASE shadowspec OWNER shadow_owner")
        url = make_url(server.url).set(database="shadowspec")
        yield {name: url.set(username=role).render_as_string() for name, role in ROLES.items()}


@pytest.fixture(scope="module")
def migration(urls: Mapping[str, str], secure_kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The job, run on a database without tables."""
    return migrate(Place(tmp_path_factory.mktemp("migration"), urls, secure_kafka), "first")


@pytest.fixture
def place(tmp_path: Path, urls: Mapping[str, str], secure_kafka: KafkaServer, migration: Recorded) -> Place:
    """The machine, with a database that the job has brought up to date."""
    assert "database is at revision" in migration.said
    return Place(tmp_path, urls, secure_kafka)


def migrate(place: Place, name: str) -> Recorded:
    documents = build("migrate")
    place.configured(documents, "shadowspec-migrate")
    with place.start(documents, "migrate", name) as recorded:
        assert recorded.wait(PATIENCE_S) == 0, recorded.said
    place.require_nothing_else(recorded, place.database_port)
    return recorded


def answers(port: int, path: str) -> bool:
    """Whether a probe gets a 2xx."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bool(200 <= answer.status < 300)
    except OSError:
        return False


def test_the_migration_may_run_twice(place: Place, migration: Recorded) -> None:
    assert "(it already was)" not in migration.said
    second = migrate(place, "second")
    assert "(it already was)" in second.said
    for kind in ("writer", "scheduler", "reader", "operator"):
        assert f"is now a {kind}" in second.said


@pytest.mark.parametrize("name", ["base", "gpu"])
def test_the_worker_gets_ready_measures_and_drains(name: str, place: Place) -> None:
    documents = build(name)
    servers = FakeServer(model="my-model"), FakeServer(4, model="my-model")
    with running(*servers), Topics(place.kafka.bootstrap) as topics:
        for topic in ("shadow.prompts", "shadow.dead-letters"):
            topics.create(2, name=topic)
        place.servers = servers[0].url, servers[1].url
        place.configured(documents)
        save_pair(place.folder / "models")
        entry = container(documents, "worker")
        path, port = probed_port(entry, "readinessProbe")
        assert port == 8080
        with place.start(documents, "worker") as recorded:
            recorded.wait_until(lambda: answers(place.health_port, path), PATIENCE_S)
            assert answers(place.health_port, probed_port(entry, "livenessProbe")[0])
            with Store.open(place.urls["owner"]) as store:
                before = store.funnel()
                topics.write("shadow.prompts", [message(name, number) for number in range(NUM_MESSAGES)])
                recorded.wait_until(lambda: has_all_in_hand(place.health_port), PATIENCE_S)
                assert recorded.stop(pod(documents, "worker")["terminationGracePeriodSeconds"]) == 0, recorded.said
                found = store.funnel()
        new = {key: number - before.get(key, 0) for key, number in found.items() if number > before.get(key, 0)}
        assert sum(new.values()) == NUM_MESSAGES
        assert {counter for _, counter, _ in new} == {FunnelCounter.MEASURED, FunnelCounter.SAMPLED_OUT}
        ports = {int(url.rstrip("/").rpartition(":")[2]) for url in place.servers} if name == "base" else set()
    place.require_nothing_else(recorded, place.database_port, place.broker_port, *ports)


def message(session: str, number: int) -> Message:
    """A request of a session of its own, so that a few are timed."""
    record = {
        "timestamp": (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)).isoformat(),
        "session_id": f"{session}-{number}",
        "request": {"model": "my-model", "prompt": "abcdefgh"[number % 7 :], "max_tokens": 6, "temperature": 0.0},
    }
    return Message(json.dumps(record).encode(), f"{session}-{number}".encode())


def has_all_in_hand(port: int) -> bool:
    """Whether a worker has read everything, and has something left to measure."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if not line.startswith("#")]
    lags = [float(value) for name, _, value in lines if name.startswith("shadowspec_consumer_lag_messages{")]
    waiting = [float(value) for name, _, value in lines if name == "shadowspec_waiting_requests"]
    return len(lags) == 2 and not any(lags) and waiting > [0.0]


def test_one_scheduler_leads_reports_and_is_followed_by_the_other(place: Place) -> None:
    documents = build("base")
    assert named(documents, "Deployment", "shadowspec-scheduler")["spec"]["replicas"] == 2
    with Store.open(place.urls["owner"]) as store:
        due_at = (datetime.now(UTC) - timedelta(days=2)).replace(hour=8, minute=0, second=0, microsecond=0)
        store.begin_periods([Period("daily", due_at, due_at, due_at)])
    grace_s = pod(documents, "scheduler")["terminationGracePeriodSeconds"]
    with web_server() as hook:
        place.webhook = f"json://127.0.0.1:{hook.port}/report"
        place.configured(documents)
        ready = container(documents, "scheduler")
        with place.start(documents, "scheduler", "one") as one:
            one.wait_until(lambda: leaders(place) == 1 and bool(hook.posts), PATIENCE_S)
            probe = Recorded(
                ready["readinessProbe"]["exec"]["command"], place.environment(ready), place.folder, "probe"
            )
            with probe:
                assert probe.wait(PATIENCE_S) == 0, probe.said
            with place.start(documents, "scheduler", "two") as two:
                two.wait_until(lambda: "scheduled:" in two.said, PATIENCE_S)
                assert leaders(place) == 1
                assert one.stop(grace_s) == 0, one.said
                two.wait_until(lambda: leaders(place) == 1, PATIENCE_S)
                assert two.stop(grace_s) == 0, two.said
        assert leaders(place) == 0
        place.require_nothing_else(one, place.database_port, hook.port)
        place.require_nothing_else(two, place.database_port)
        place.require_nothing_else(probe, place.database_port)


def leaders(place: Place) -> int:
    """How many hold the scheduler's lock."""
    engine = sqlalchemy.create_engine(place.urls["owner"], poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        return int(
            connection.scalar(
                sqlalchemy.text(
                    "SELECT count(*) FROM pg_locks AS own JOIN pg_database AS held ON held.oid = own.database "
                    "WHERE own.locktype = 'advisory' AND own.granted AND held.datname = current_database()"
                )
            )
            or 0
        )


def test_the_dashboard_answers_its_probes(place: Place) -> None:
    documents = build("base")
    place.configured(documents)
    entry = container(documents, "dashboard")
    path, port = probed_port(entry, "readinessProbe")
    assert port == 8501
    with place.start(documents, "dashboard") as recorded:
        recorded.wait_until(lambda: answers(place.dashboard_port, path), PATIENCE_S)
        assert answers(place.dashboard_port, "/")
        assert recorded.stop(30) == 0, recorded.said
    place.require_nothing_else(recorded, place.database_port, place.dashboard_port)


def test_retention_runs(place: Place) -> None:
    documents = build("base")
    place.configured(documents)
    with place.start(documents, "retention") as recorded:
        assert recorded.wait(PATIENCE_S) == 0, recorded.said
    assert "removed 0 runs" in recorded.said
    place.require_nothing_else(recorded, place.database_port)


def test_a_forbidden_connection_or_file_would_be_seen(place: Place) -> None:
    """The recorder itself: what these tests rest on."""
    program = (
        "import socket, pathlib, sys\n"
        "pathlib.Path(sys.argv[1], 'stray').write_text('x')\n"
        "for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n"
        "    with socket.socket(socket.AF_INET, kind) as own:\n"
        "        own.connect_ex(('127.0.0.9', 9))\n"
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:\n"
        "    own.sendto(b'x', ('127.0.0.8', 53))\n"
    )
    with Recorded(["python", "-c", program, str(place.folder)], {}, place.folder, "stray") as recorded:
        assert recorded.wait(PATIENCE_S) == 0, recorded.said
    assert recorded.peers() == {("127.0.0.9", 9), ("127.0.0.8", 53)}
    assert str(place.folder / "stray") in recorded.written()
    with pytest.raises(AssertionError):
        place.require_nothing_else(recorded, 9, 53)
