"""What docker-compose.yml and the Dockerfile say is what the code reads and the package holds."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from shadowspec.cli.main import app
from tests.services import postgres_programs, postgres_server
from tests.store.failing import administrator

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    return found


def _is_ours(service: dict[str, Any]) -> bool:
    return str(service["image"]).startswith("${SHADOWSPEC_")


def test_every_command_exists(services: dict[str, Any]) -> None:
    commands = []
    for service in filter(_is_ours, services.values()):
        script = service["command"][0]
        if service.get("entrypoint", [""])[0] == "/bin/sh":
            commands += [line.split()[1:] for line in script.splitlines()]
        else:
            commands.append([*service.get("entrypoint", [""])[1:], *service["command"]])
    assert ["worker"] in commands
    assert ["db", "grant", "writer", "shadow_worker"] in commands
    for command in commands:
        words = [word for word in command if not word.endswith((".jsonl", ".html"))]
        assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0, command


def test_every_variable_is_read(services: dict[str, Any]) -> None:
    named = {
        name
        for service in services.values()
        for name in service.get("environment", ())
        if name.startswith("SHADOWSPEC_")
    }
    read = {
        name
        for module in (CHECKOUT / "shadowspec").rglob("*.py")
        for name in re.findall(r'"(SHADOWSPEC_[A-Z_]+)"', module.read_text(encoding="utf-8"))
    }
    assert named
    assert named <= read


def test_our_containers_are_bounded_and_leave_no_memory_behind(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["mem_limit"], name
        if _is_ours(service):
            assert service["ulimits"] == {"core": 0}, name


@pytest.mark.integration
def test_no_container_of_ours_is_a_superuser_or_may_change_a_decision(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The scripts of `roles` and `migrate` on a real server; then what the roles in the services' URLs may do."""
    roles, migrate = services["roles"], services["migrate"]
    with postgres_server() as server:
        url = make_url(server.url)
        with administrator(server.url) as admin:
            admin.exec_driver_sql("CREATE DATABASE shadowspec")
        program = postgres_programs() / "psql"
        variables = {name: "pw" for name in roles["environment"] if name.endswith("_PASSWORD")}
        place = {"PGHOST": "127.0.0.1", "PGPORT": str(url.port), "PGUSER": "shadowspec", "PGDATABASE": "shadowspec"}
        for _ in range(2):  # it may run again
            subprocess.run(
                [*roles["entrypoint"], roles["command"][0].replace("psql", str(program), 1)],
                env=os.environ | variables | place,
                check=True,
            )
        names = {
            name: re.findall(r"//(\w+):", service["environment"]["SHADOWSPEC_DATABASE_URL"])[0]
            for name, service in services.items()
            if _is_ours(service) and name != "classifier"
        }
        assert "SHADOWSPEC_DATABASE_URL" not in services["classifier"]["environment"], "it reads no evidence"
        monkeypatch.setenv("SHADOWSPEC_CONFIG", str(tmp_path / "shadowspec.toml"))
        (tmp_path / "shadowspec.toml").touch()
        own = url.set(database="shadowspec", username=names["migrate"]).render_as_string(hide_password=False)
        monkeypatch.setenv("SHADOWSPEC_DATABASE_URL", own)
        for line in migrate["command"][0].splitlines():
            done = CliRunner().invoke(app, line.split()[1:])
            assert done.exit_code == 0, done.output
        with administrator(own) as owner:
            supers = set(owner.scalars(text("SELECT rolname FROM pg_roles WHERE rolsuper")))
        for name, role in names.items():
            assert role not in supers, name
            as_role = url.set(database="shadowspec", username=role).render_as_string(hide_password=False)
            with administrator(as_role) as connection:
                assert connection.scalar(text("SELECT count(*) FROM ledger")) == 0, name
                with pytest.raises(DBAPIError, match=r"must be owner|permission denied|append-only"):
                    connection.exec_driver_sql(
                        "DELETE FROM decisions"
                        if role == names["migrate"]
                        else "ALTER TABLE decisions DISABLE TRIGGER ALL"
                    )


def test_the_image_copies_what_the_build_needs() -> None:
    text = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    copied = [path for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for path in line.split()]
    assert all((CHECKOUT / path).exists() for path in copied)
    assert {"pyproject.toml", "LICENSE", "NOTICE", "README.md", "shadowspec", "migrations"} <= set(copied)


def test_our_containers_may_write_only_to_tmp_and_data(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if _is_ours(service):
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert [each.partition(":")[0] for each in service["tmpfs"]] == ["/tmp"]
            assert service["volumes"] == ["${SHADOWSPEC_DATA:-./data}:/data"]


def test_every_public_image_can_be_replaced(services: dict[str, Any]) -> None:
    """Where they cannot be pulled, arguments of the same names give others."""
    dockerfile = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"${BASE_IMAGE}"}
    others = {service["image"] for service in services.values() if not _is_ours(service)}
    assert {image.partition(":-")[0] for image in others} == {"${KAFKA_IMAGE", "${POSTGRES_IMAGE"}
    arguments = {name for service in services.values() for name in service.get("build", {}).get("args", ())}
    assert arguments <= set(re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE))


def test_the_image_is_for_cpus_unless_a_gpu_is_asked_for(services: dict[str, Any]) -> None:
    assert "ARG TORCH_BACKEND=cpu" in (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    builds = {name: service["build"]["args"] for name, service in services.items() if "build" in service}
    assert builds["migrate"]["TORCH_BACKEND"] == "${TORCH_BACKEND-cpu}"
    for name, arguments in builds.items():
        has_gpu = "devices" in services[name].get("deploy", {}).get("resources", {}).get("reservations", {})
        assert ("cpu" not in arguments["TORCH_BACKEND"]) == has_gpu, name
