"""`make services`: a broker and a database that stay, twice started and twice stopped."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import make_url

from shadowspec.config import load_config
from tests.kafka_topics import Message, Topics, read_topic
from tests.services import is_listening

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.all
@pytest.mark.slow
@pytest.mark.integration
def test_services_start_once_keep_what_they_hold_and_stop(tmp_path: Path) -> None:
    for name in (".ci", "tests"):
        shutil.copytree(CHECKOUT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "data"))

    def services(word: str) -> str:
        # A narrow terminal must not matter: what is looked for in a list of processes may stand far to the right.
        environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "80"}
        command = [sys.executable, str(tmp_path / ".ci" / "services.py"), word]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        said = services("up")
        config_file = tmp_path / "shadowspec.toml"
        config_file.write_text(said[said.index("[database]") : said.index("Or for the shell")])
        config = load_config(config_file, {})
        assert config.kafka is not None
        (bootstrap,) = config.kafka.bootstrap_servers
        assert re.search(rf"(?m)^export SHADOWSPEC_DATABASE_URL={re.escape(config.database_url)}$", said)
        ports = int(bootstrap.rpartition(":")[2]), make_url(config.database_url).port
        assert [port is not None and is_listening(port) for port in ports] == [True, True]
        with Topics(bootstrap, deletes=False) as topics:
            assert {"shadow.prompts", "shadow.dead-letters"} <= set(topics.admin.list_topics())
            assert len(topics.admin.describe_topics(["shadow.prompts"])[0]["partitions"]) == 6
            topics.write("shadow.prompts", [Message(b"kept")])
        engine = sqlalchemy.create_engine(config.database_url, poolclass=sqlalchemy.NullPool)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE kept (n int)")
        assert services("up") == said
        services("down")
        assert [port is not None and is_listening(port) for port in ports] == [False, False]
        services("down")
        assert services("up") == said
        assert read_topic(bootstrap, "shadow.prompts") == ["kept"]
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM kept").scalar() == 0
    except AssertionError as error:
        log = tmp_path / ".services" / "kafka" / "log"
        error.add_note(log.read_text(errors="replace")[-4000:] if log.exists() else "Kafka has written no log")
        raise
    finally:
        services("down")
        # Where the postgres user may not go into the checkout, the database's folder lies elsewhere.
        digest = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]
        shutil.rmtree(Path(tempfile.gettempdir()) / f"shadowspec-services-{digest}", ignore_errors=True)
