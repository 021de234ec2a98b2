"""A local Kafka and Postgres in the background, for trying the production path by hand: `services.py up|down`.

Both keep what they hold in .services/ until that folder is removed.  Calling it twice changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

import sqlalchemy  # noqa: E402

from tests.kafka_server import KafkaServer  # noqa: E402
from tests.kafka_topics import Topics  # noqa: E402
from tests.services import PostgresServer, free_port, is_listening  # noqa: E402

FOLDER = CHECKOUT / ".services"
TOPICS = {"shadow.prompts": 6, "shadow.retry": 1, "shadow.dead-letters": 1}  # name, partitions
DATABASE = "shadowspec"
WANTED_PORTS = {"kafka": 9092, "postgres": 5432}
STOP_TIMEOUT_S = 60


def main() -> None:
    """Start or stop."""
    if sys.argv[1:] not in (["up"], ["down"]):
        sys.exit("usage: services.py up|down")
    FOLDER.mkdir(exist_ok=True)
    ports = _ports()
    if sys.argv[1] == "down":
        _stop_kafka()
        postgres = PostgresServer(_postgres_folder(), port=ports["postgres"], is_durable=True)
        if postgres.is_running:
            postgres.stop("fast")
        print(f"stopped; what they held stays in {FOLDER}")
        return
    _start_kafka(ports["kafka"])
    url = _start_postgres(ports["postgres"])
    topics = ", ".join(f"{name} ({partitions})" for name, partitions in TOPICS.items())
    print(
        f"""\
Kafka and Postgres are running; stop them with: make services-down
topics (partitions): {topics}

Keys for shadowspec.toml; if it has them already, replace them:

[database]
url = "{url}"

[kafka]
bootstrap_servers = ["localhost:{ports["kafka"]}"]
topics = ["shadow.prompts"]
retry_topics = ["shadow.retry"]

Or for the shell:

export SHADOWSPEC_DATABASE_URL={url}"""
    )


def _ports() -> dict[str, int]:
    """The ports of the first start, which are the usual ones where these are free."""
    file = FOLDER / "ports.json"
    if not file.exists():
        file.write_text(
            json.dumps({name: port if _is_free(port) else free_port() for name, port in WANTED_PORTS.items()})
        )
    found: dict[str, int] = json.loads(file.read_text())
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _start_kafka(port: int) -> None:
    folder = FOLDER / "kafka"
    folder.mkdir(exist_ok=True)
    if _kafka_pid() is None:
        print("starting Kafka", file=sys.stderr)
        server = KafkaServer(folder, port=port)
        server.start()
        (folder / "pid").write_text(str(server.pid))
    topics = Topics(f"localhost:{port}", deletes=False)
    with topics:
        existing = set(topics.admin.list_topics())
        for name, partitions in TOPICS.items():
            if name not in existing:
                topics.create(partitions, name=name)


def _kafka_pid() -> int | None:
    """The broker's process, if the one that was started here runs still."""
    file = FOLDER / "kafka" / "pid"
    if not file.exists():
        return None
    pid = int(file.read_text())
    # -ww: else COLUMNS, where it is set, cuts the line before the folder, and a running broker counts as gone.
    command = ["ps", "-ww", "-p", str(pid), "-o", "args="]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a number of our own
    return pid if str(FOLDER / "kafka") in shown.stdout else None


def _stop_kafka() -> None:
    pid = _kafka_pid()
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while _kafka_pid() is not None:
        if time.monotonic() > deadline:
            sys.exit(f"Kafka (process {pid}) does not stop")
        time.sleep(0.2)


def _start_postgres(port: int) -> str:
    postgres = PostgresServer(_postgres_folder(), port=port, is_durable=True)
    if not is_listening(port):
        print("starting Postgres", file=sys.stderr)
        postgres.start()
    url = sqlalchemy.make_url(postgres.url)
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        known = connection.exec_driver_sql("SELECT datname FROM pg_database").scalars().all()
        if DATABASE not in known:
            connection.exec_driver_sql(f"CREATE DATABASE {DATABASE}")
    return url.set(database=DATABASE).render_as_string(hide_password=False)


def _postgres_folder() -> Path:
    """The server's folder: in .services/, unless root's checkout lies where the postgres user cannot go."""
    folder = FOLDER / "postgres"
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        look = ["test", "-x", str(FOLDER)]
        if subprocess.run(look, user=user.pw_uid, group=user.pw_gid, check=False).returncode != 0:  # noqa: S603
            name = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:12]
            folder = Path(tempfile.gettempdir()) / f"shadowspec-services-{name}"
    folder.mkdir(exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
