"""A real Kafka broker for the tests: Apache Kafka in KRaft mode, one node, on free ports.

The jars come from the user's cache, where `.ci/kafka` puts them.  A broker keeps its ports and its log over
stop, kill and start, as a broker in production does.

    python -m tests.kafka_server

puts an archive of Kafka's loaded classes beside the jars, once: with it a broker starts in half the time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services import PATIENCE_S, ServiceMissingError, free_ports, is_listening

VERSION = "4.1.0"
CLUSTER_ID = "c2hhZG93c3BlYy10ZXN0cw"  # 16 bytes in base64, as Kafka wants it
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
USER, PASSWORD = "mirror-reader", "correct-horse-battery"  # of the listener SASL_SSL
DENIED_USER, DENIED_PASSWORD = "mirror-stranger", "another-horse-battery"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

# Small: the tests run several brokers beside each other.  Topics may be created by asking for them, as is the
# broker's default, so that a client of ours that does so is found out; nothing is deleted for its age, for messages of
# long ago are written too.
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
auto.create.topics.enable=true
num.partitions=1
default.replication.factor=1
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.min.session.timeout.ms=1000
log.cleaner.dedupe.buffer.size=4194304
log.retention.ms=-1
log.retention.check.interval.ms=1000
log.segment.delete.delay.ms=1000
num.network.threads=2
num.io.threads=2
num.recovery.threads.per.data.dir=1
controlled.shutdown.enable=true
"""


@dataclass(frozen=True, slots=True)
class Certificates:
    """A self-made authority and what it signed; PEM files."""

    authority: Path
    server: Path  # key and certificate in one file
    client: Path
    client_key: Path
    other_authority: Path  # has signed nothing


class KafkaServer:
    """One broker with its own folder.  `bootstrap` is the plain listener's address."""

    def __init__(self, folder: Path, *, port: int | None = None, is_secure: bool = False) -> None:
        """A folder that held a broker before holds its topics still; `port` is the plain listener's."""
        self.folder = folder
        self.java_options = [
            "-Xshare:auto",
            *([f"-XX:SharedArchiveFile={path}"] if (path := archive()).exists() else []),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        plain, controller, sasl_ssl, ssl = [each for each in free_ports(5) if each != port][:4]
        self._ports = {"PLAINTEXT": port or plain}
        if is_secure:
            self._ports |= {"SASL_SSL": sasl_ssl, "SSL": ssl}
        self.certificates = make_certificates(folder / "certificates") if is_secure else None
        (folder / "server.properties").write_text(self._properties(controller), encoding="utf-8")
        users = [
            f"{mechanism}=[name={name},password={password}]"
            for mechanism in MECHANISMS[1:]
            for name, password in ((USER, PASSWORD), (DENIED_USER, DENIED_PASSWORD))
        ]
        scram = [word for user in users for word in ("--add-scram", user)] if is_secure else []
        if (folder / "data" / "meta.properties").exists():
            return
        self._run_tool("kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config",
                       str(folder / "server.properties"), *scram)  # fmt: skip

    @property
    def bootstrap(self) -> str:
        return self.address("PLAINTEXT")

    def address(self, listener: str) -> str:
        """Host and port of a listener: PLAINTEXT; SASL_SSL and SSL of a secure server."""
        return f"localhost:{self._ports[listener]}"

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start the broker and wait until it serves."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java("512m"), "kafka.Kafka", str(self.folder / "server.properties")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal is for the tests
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while not all(is_listening(port) for port in self._ports.values()) or not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServiceMissingError(f"Kafka did not start:\n{self.log[-4000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop in order: what was written is on the disk and the port is closed."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop without warning."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Let the broker hang: it accepts connections and answers nothing until `go_on`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _serves(self) -> bool:
        """Whether clients get an answer: a port is open some time before."""
        done = subprocess.run(
            ["kcat", "-L", "-b", self.bootstrap, "-X", "broker.address.family=v4", "-m", "2"],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode == 0 and "1 brokers" in done.stdout

    def _properties(self, controller_port: int) -> str:
        ports = {**self._ports, "CONTROLLER": controller_port}
        listeners = ",".join(f"{name}://localhost:{port}" for name, port in ports.items())
        protocols = ",".join(f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in ports)
        entry = {
            "listeners": listeners,
            "listener.security.protocol.map": protocols,
            "controller.quorum.voters": f"1@localhost:{controller_port}",
            "log.dirs": str(self.folder / "data"),
            "message.max.bytes": MAX_MESSAGE_BYTES,
            "socket.request.max.bytes": MAX_MESSAGE_BYTES * 2,
        }
        if self.certificates is not None:
            entry |= _security(self.certificates)
        return PROPERTIES + "".join(f"{key}={value}\n" for key, value in entry.items())

    def _java(self, heap: str) -> list[str]:
        program = shutil.which("java")
        if program is None:
            raise ServiceMissingError("no Java: run .ci/kafka, or set SHADOWSPEC_TEST_KAFKA to a broker's address")
        options = [
            f"-Xmx{heap}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            *self.java_options,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        ]
        return [program, *options, "-cp", f"{jars()}/*"]

    def _run_tool(self, *arguments: str) -> None:
        done = subprocess.run([*self._java("128m"), *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceMissingError(f"{arguments[0]} failed:\n{done.stdout}\n{done.stderr}")


@contextmanager
def kafka_server(*, is_secure: bool = False) -> Iterator[KafkaServer]:
    """A running broker in a folder of its own, gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="shadowspec-kafka-"))
    server: KafkaServer | None = None
    try:
        server = KafkaServer(folder, is_secure=is_secure)
        server.start()
        yield server
    finally:
        if server is not None:
            if server.is_running:
                server.go_on()
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def jars() -> Path:
    """The folder of Apache Kafka's jars."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "shadowspec" / f"kafka-{VERSION}"
    if not folder.is_dir():
        raise ServiceMissingError(f"no Kafka in {folder}: run .ci/kafka, or set SHADOWSPEC_TEST_KAFKA to an address")
    return folder


def archive() -> Path:
    """Where the archive of Kafka's loaded classes is, if there is one; Java ignores what another version made."""
    folder = jars()
    return folder.with_name(f"{folder.name}.jsa")


def make_archive() -> None:
    """Start and stop a broker whose classes are archived at its end."""
    made = archive().with_name(f"{uuid.uuid4().hex}.jsa")
    folder = Path(tempfile.mkdtemp(prefix="shadowspec-kafka-"))
    try:
        server = KafkaServer(folder)
        server.java_options = [f"-XX:ArchiveClassesAtExit={made}"]
        server.start()
        server.stop()
        if made.exists():
            made.rename(archive())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_certificates(folder: Path) -> Certificates:
    """An authority, a server's certificate for localhost, a client's, and an authority that signed neither."""
    folder.mkdir(parents=True)
    for name in ("authority", "other"):
        _openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                 "-keyout", f"{name}.key", "-out", f"{name}.pem")  # fmt: skip
    (folder / "server.ext").write_text("subjectAltName=DNS:localhost\n")
    (folder / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
    for name, subject in (("server", "localhost"), ("client", "mirror-client")):
        _openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={subject}", "-keyout", f"{name}.key",
                 "-out", f"{name}.csr")  # fmt: skip
        _openssl(folder, "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey",
                 "authority.key", "-CAcreateserial", "-extfile", f"{name}.ext", "-out", f"{name}.crt")  # fmt: skip
    both = (folder / "server.key").read_text() + (folder / "server.crt").read_text()
    (folder / "server.pem").write_text(both)
    return Certificates(
        authority=folder / "authority.pem",
        server=folder / "server.pem",
        client=folder / "client.crt",
        client_key=folder / "client.key",
        other_authority=folder / "other.pem",
    )


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceMissingError(f"openssl {arguments[0]} failed:\n{done.stderr}")


def _security(certificates: Certificates) -> Mapping[str, object]:
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    users = f'user_{USER}="{PASSWORD}" user_{DENIED_USER}="{DENIED_PASSWORD}"'
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.server,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.authority,
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{plain} {users};",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": scram,
        # Everybody may do everything, except what a test denies to somebody.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }


if __name__ == "__main__" and not os.environ.get("SHADOWSPEC_TEST_KAFKA") and not archive().exists():
    make_archive()
