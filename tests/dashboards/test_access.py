"""Who may look and who may order: by the claims of a login, in the function that writes, and by the database's role."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
import streamlit as st
from sqlalchemy import NullPool, make_url

from dashboards.parts import kill_switch
from dashboards.parts.identity import AccessError, identify, local, require_operator
from shadowspec.config import load_config
from shadowspec.config.dashboard_settings import AccessSettings, DashboardRole, RoleSettings, require_auth_file
from shadowspec.errors import ConfigError, ServiceUnavailableError, StoreError, UsageError
from shadowspec.gate.verdict.current_verdict import current_decisions
from shadowspec.store import RoleKind, Store
from shadowspec.types import Verdict
from tests.builders.dashboard_apps import Open
from tests.cli_process import run_command
from tests.dashboards.pages import said
from tests.store import examples

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
SETTINGS = AccessSettings(
    auth_file=Path("auth.toml"),
    roles=RoleSettings(operators=frozenset({"ada@example.com"}), viewers=frozenset({"bob@example.com"})),
)
Configure = Callable[..., Path]


def claims(**changes: Any) -> dict[str, Any]:
    ends = (NOW + timedelta(hours=1)).timestamp()
    return {"is_logged_in": True, "email": "ada@example.com", "sub": "1", "exp": ends, **changes}


def test_roles_come_from_the_lists() -> None:
    ada = identify(claims(), SETTINGS, NOW)
    assert (ada.name, ada.role, ada.until) == ("ada@example.com", DashboardRole.OPERATOR, NOW + timedelta(hours=1))
    bob = identify(claims(email="bob@example.com"), SETTINGS, NOW)
    assert bob.role is DashboardRole.VIEWER
    with pytest.raises(AccessError, match="only an operator"):
        require_operator(bob)
    require_operator(ada)
    with pytest.raises(AccessError, match=r"logged in as eve@example\.com, who may not open"):
        identify(claims(email="eve@example.com"), SETTINGS, NOW)
    anybody = replace(SETTINGS, roles=replace(SETTINGS.roles, viewers=None))
    assert identify(claims(email="eve@example.com"), anybody, NOW).role is DashboardRole.VIEWER


@pytest.mark.parametrize("ends", [NOW.timestamp(), 0, None, "tomorrow", True, float("nan"), 1e30])
def test_a_login_that_has_ended_or_does_not_say_when_is_none(ends: Any) -> None:
    with pytest.raises(AccessError, match="your login has ended"):
        identify(claims(exp=ends), SETTINGS, NOW)


def test_an_unverified_address_is_nobodys() -> None:
    with pytest.raises(AccessError, match="not verified"):
        identify(claims(email_verified=False), SETTINGS, NOW)
    by_group = replace(SETTINGS, roles=replace(SETTINGS.roles, claim="groups", operators=frozenset({"sre"})))
    identity = identify(claims(groups=["all", "sre"], email_verified=False, preferred_username="ada"), by_group, NOW)
    assert (identity.name, identity.role) == ("ada", DashboardRole.OPERATOR)
    with pytest.raises(AccessError, match="who may not open"):
        identify(claims(groups={"sre": True}), by_group, NOW)
    with pytest.raises(AccessError, match="neither an e-mail nor a name"):
        identify(claims(email=None, sub=None), SETTINGS, NOW)


def test_without_a_login_nobody_is_vouched_for() -> None:
    assert local(AccessSettings()) == local(AccessSettings(local_role=DashboardRole.VIEWER))
    assert local(AccessSettings(local_role=DashboardRole.OPERATOR)).may_order
    assert local(AccessSettings()).name is None


def order(**changes: Any) -> Any:
    entry: dict[str, Any] = {
        "endpoint": "assistant",
        "slice_key": "",
        "concurrency": None,
        "verdict": Verdict.DISABLE,
        "reason": "it answers nonsense",
        "author": "ada",
        "expires_in": None,
        "confirmation": "assistant",
    }
    return kill_switch.set_override(**(entry | changes))


@pytest.fixture
def caches() -> Iterator[None]:
    yield
    st.cache_resource.clear()


def decided(url: str) -> None:
    with Store.open(url) as store:
        store.save_fingerprints([examples.config()])
        store.append_decisions([examples.decision(Verdict.ENABLE, endpoint="assistant")])


@pytest.mark.usefixtures("caches")
def test_a_viewer_is_refused_where_it_is_written(configured: Configure, blank: str) -> None:
    configured(blank)
    decided(blank)
    with pytest.raises(AccessError, match="only an operator"):
        order()
    with pytest.raises(AccessError, match="only an operator"):
        kill_switch.clear_override(1, reason="mended", author="ada")
    with Store.open(blank) as store:
        assert store.overrides() == []


@pytest.mark.usefixtures("caches")
def test_an_operators_order_counts_at_once_and_is_cleared(configured: Configure, blank: str) -> None:
    configured(blank, 'local_role = "operator"')
    decided(blank)
    for wrong, says in (
        ({"confirmation": "Assistant"}, "type 'assistant' to confirm"),
        ({"reason": " "}, "the reason must be one line"),
        ({"author": "two\nlines"}, "the author must be one line"),
        ({"author": "Live Guard"}, "reserved for orders that ShadowSpec sets"),
        ({"endpoint": "leters", "confirmation": "leters"}, "there is no endpoint 'leters'"),
    ):
        with pytest.raises(UsageError, match=says):
            order(**wrong)
    done = order(expires_in=timedelta(hours=1))
    assert done.num_decisions_covered == 1
    with Store.open(blank) as store:
        (current,) = current_decisions(store.latest_decisions(), store.overrides(), datetime.now(UTC))
        assert (current.verdict, current.reason_code) == (Verdict.DISABLE, "override")
        kill_switch.clear_override(done.record.override.override_id, reason="mended", author="grace")
        (current,) = current_decisions(store.latest_decisions(), store.overrides(), datetime.now(UTC))
        assert current.verdict is Verdict.ENABLE
        (record,) = store.overrides()
    assert record.clearing is not None
    assert record.clearing.author == "grace"


@contextmanager
def role_of(server: str, database: str, kind: RoleKind) -> Iterator[str]:
    """URL of the database under a role of this kind."""
    name = f"dash_{uuid.uuid4().hex[:8]}"
    engine = sqlalchemy.create_engine(server, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
    with Store.open(database) as owner:
        owner.grant(kind, name)
    try:
        yield make_url(database).set(username=name).render_as_string(hide_password=False)
    finally:
        admin_engine = sqlalchemy.create_engine(database, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with admin_engine.connect() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {name}")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP ROLE {name}")


@pytest.mark.integration
@pytest.mark.usefixtures("caches")
def test_the_database_refuses_too(
    configured: Configure, new_database: Callable[[str], str], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read with a reader's role: its connection cannot write an override, the operator's can and nothing else."""
    database = new_database("postgres")
    decided(database)
    with role_of(postgres_url, database, RoleKind.READER) as reader:
        configured(reader, 'local_role = "operator"')
        with pytest.raises((StoreError, ServiceUnavailableError), match="permission denied"):
            order()
        with role_of(postgres_url, database, RoleKind.OPERATOR) as operator:
            monkeypatch.setenv("SHADOWSPEC_OVERRIDE_URL", operator)
            st.cache_resource.clear()
            assert order().num_decisions_covered == 1
            with pytest.raises((StoreError, ServiceUnavailableError), match="permission denied"):
                kill_switch.writer().append_decisions([examples.decision()])
            st.cache_resource.clear()
    with Store.open(database) as store:
        assert [override.override.author for override in store.overrides()] == ["ada"]


def test_a_viewers_page_has_no_switch(configured: Configure, filled_url: str, open_page: Open) -> None:
    configured(filled_url)
    app = open_page("audit")
    assert not app.exception
    assert "You have read access." in said(app)
    assert not [item for item in app.button if str(item.key).startswith("order")]
    assert "Policy in force" in said(app)
    assert "max_hypotheses" in set(app.dataframe[-1].value["Parameter"])


def test_an_operator_switches_off_after_typing_the_name(configured: Configure, blank: str, open_page: Open) -> None:
    configured(blank, 'local_role = "operator"')
    decided(blank)
    app = open_page("audit")
    app.selectbox(key="order_endpoint").set_value("assistant").run()
    app.text_input(key="order_reason").set_value("it answers nonsense")
    app.text_input(key="order_author").set_value("ada").run()
    assert app.button(key="order_set").disabled
    app.text_input(key="order_confirmation").set_value("assistant").run()
    assert not app.button(key="order_set").disabled
    app.button(key="order_set").click().run()
    assert not app.exception
    assert "Override 1: assistant is DISABLE. It covers 1 current decision." in next(item.value for item in app.success)
    app.text_input(key="clear_reason").set_value("mended")
    app.text_input(key="clear_author").set_value("grace").run()
    app.button(key="order_clear").click().run()
    assert not app.exception
    with Store.open(blank) as store:
        (record,) = store.overrides()
    assert record.clearing is not None
    assert (record.override.author, record.clearing.author) == ("ada", "grace")


AUTH = """\
[auth]
redirect_uri = "http://127.0.0.1:8501/oauth2callback"
cookie_secret = "0123456789abcdef0123456789abcdef"
client_id = "shadowspec"
client_secret = "hush-hush"
server_metadata_url = "http://127.0.0.1:1/.well-known/openid-configuration"
"""


def test_an_auth_file_is_checked_and_never_quoted(tmp_path: Path) -> None:
    path = tmp_path / "auth.toml"
    for text, says in (
        (None, "cannot be read"),
        ("[auth", "is not valid TOML"),
        ("a = 1", r"no section \[auth\]"),
        (AUTH.replace('client_id = "shadowspec"\n', ""), "auth.client_id is missing"),
        (AUTH.replace("0123456789abcdef0123456789abcdef", "short"), "cookie_secret must have 32"),
    ):
        if text is not None:
            path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=says) as raised:
            require_auth_file(path)
        assert "hush-hush" not in str(raised.value)
    path.write_text(AUTH, encoding="utf-8")
    require_auth_file(path)


def test_settings_of_access_come_from_the_file_and_the_environment(configured: Configure, blank: str) -> None:
    path = configured(blank)
    text = path.read_text(encoding="utf-8")
    path.write_text(text + '\n[dashboard.roles]\noperators = ["ada@example.com"]\n', encoding="utf-8")
    access_settings = load_config(path, environment={"SHADOWSPEC_OVERRIDE_URL": "sqlite:///other.db"}).dashboard.access
    assert access_settings.roles.operators == {"ada@example.com"}
    assert access_settings.override_url == "sqlite:///other.db"
    assert "other.db" not in repr(access_settings)
    assert access_settings.roles.viewers is None


def test_an_address_that_others_reach_needs_a_login(
    configured: Configure, blank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(blank)
    done = run_command(monkeypatch, capsys, "dashboard", "--host", "0.0.0.0", "--config", str(path))
    assert done.code == 2
    assert "no login is configured" in done.err
    assert "--without-login" in done.err
