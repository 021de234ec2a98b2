"""A login at a real provider of OpenID Connect: nobody, a viewer, an operator, and a login that ends meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from shadowspec.store import Store
from shadowspec.store.admin import schema
from shadowspec.types import Verdict
from tests.browser.looking import SETTLE_TIMEOUT_MS, Reader
from tests.browser.serving import Served, served
from tests.services import PATIENCE_S, free_port
from tests.store import examples

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ADA, BOB, EVE = "ada@example.com", "bob@example.com", "eve@example.com"
CANARY = "canary-client-secret-0f31"
SHORT_S = 12  # a login that ends while the test looks on

CONFIG = """\
[database]
url = {url}

[dashboard]
auth_file = {auth}
refresh_s = 1.0

[dashboard.roles]
operators = ["ada@example.com"]
viewers = ["bob@example.com"]

[endpoints.chat]
target = "models/target"
served_models = ["chat"]
[[endpoints.chat.candidates]]
name = "draft-k4"
draft = "models/draft"
num_speculative_tokens = 4
"""
AUTH = """\
[auth]
redirect_uri = "http://127.0.0.1:{port}/oauth2callback"
cookie_secret = "canary-cookie-secret-0123456789abcdef"
client_id = "shadowspec"
client_secret = "{secret}"
server_metadata_url = "http://127.0.0.1:{provider}/.well-known/openid-configuration"
"""


@contextmanager
def provider(max_age_s: int) -> Iterator[int]:
    """A provider with three people in it; its port."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port)]
    command += ["--token-max-age", str(max_age_s)]
    for name in (ADA, BOB, EVE):
        command += ["--user-claims", json.dumps({"sub": name, "email": name, "email_verified": True})]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/.well-known/openid-configuration", timeout=2):
                    break
            except (urllib.error.URLError, OSError):
                assert child.poll() is None, "the provider ended by itself"
                assert time.monotonic() < deadline, "the provider does not answer"
                time.sleep(0.1)
        yield port
    finally:
        child.terminate()
        child.wait(10)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Served]]:
    """The dashboard behind a provider whose logins last so many seconds."""
    with ExitStack() as stack:
        known: dict[int, Served] = {}

        def make(max_age_s: int) -> Served:
            if max_age_s in known:
                return known[max_age_s]
            folder = tmp_path_factory.mktemp("login")
            url, port = f"sqlite:///{folder / 'store.db'}", free_port()
            schema.upgrade(url)
            with Store.open(url) as store:
                store.save_fingerprints([examples.config()])
                store.append_decisions([examples.decision(Verdict.ENABLE)])
            auth = folder / "auth.toml"
            enter_context = stack.enter_context(provider(max_age_s))
            auth.write_text(AUTH.format(port=port, provider=enter_context, secret=CANARY), encoding="utf-8")
            config = folder / "shadowspec.toml"
            config.write_text(CONFIG.format(url=json.dumps(url), auth=json.dumps(str(auth))), encoding="utf-8")
            known[max_age_s] = stack.enter_context(served(config, port=port))
            return known[max_age_s]

        yield make


def log_in(reader: Reader, site: Served, name: str, page: str = "audit") -> None:
    """Go to a page, and through the provider's own page as this person."""
    reader.open(site.address(page))
    assert "Log in to see this dashboard" in reader.words
    reader.page.get_by_role("button", name="Log in").click()
    reader.page.get_by_role("button", name=name).click()
    reader.page.wait_for_url(f"{site.url}/**", timeout=SETTLE_TIMEOUT_MS)
    reader.settle()


def orders(site: Served) -> int:
    with Store.open(f"sqlite:///{site.config.parent / 'store.db'}") as store:
        return len(store.overrides())


@pytest.mark.parametrize("page", ["", "evidence", "audit"])
def test_without_a_login_nothing_is_seen(
    site: Callable[[int], Served], new_reader: Callable[..., Reader], page: str
) -> None:
    reader, where = new_reader(), site(3600)
    reader.open(where.address(page))
    assert "Log in to see this dashboard" in reader.words
    received = reader.received()
    assert "chat" not in reader.words
    assert "ENABLE" not in received
    assert CANARY not in received


def test_a_viewer_looks_and_cannot_order(site: Callable[[int], Served], new_reader: Callable[..., Reader]) -> None:
    reader, where = new_reader(), site(3600)
    log_in(reader, where, BOB)
    reader.open(where.address("audit"))
    assert f"{BOB} (viewer)" in reader.words
    assert "You have read access." in reader.words
    assert reader.page.get_by_role("button", name="Switch off").count() == 0
    assert orders(where) == 0


def test_an_operator_orders_under_the_name_of_the_login(
    site: Callable[[int], Served], new_reader: Callable[..., Reader]
) -> None:
    reader, where = new_reader(), site(3600)
    log_in(reader, where, ADA)
    reader.open(where.address("audit"))
    assert f"{ADA} (operator)" in reader.words
    reader.page.get_by_role("textbox", name="Reason").first.fill("it answers nonsense")
    reader.page.keyboard.press("Tab")
    reader.settle()
    assert reader.page.get_by_role("textbox", name="Author").first.is_disabled()
    reader.page.get_by_role("textbox", name="Type chat to confirm").fill("chat")
    reader.page.keyboard.press("Enter")
    reader.settle()
    reader.page.get_by_role("button", name="Switch off chat").click()
    reader.settle()
    assert "Override 1: chat is DISABLE" in reader.words
    with Store.open(f"sqlite:///{where.config.parent / 'store.db'}") as store:
        (record,) = store.overrides()
        assert record.override.author == ADA
    received = reader.received()
    assert CANARY not in received
    assert reader.exceptions() == [], where.said


def test_who_is_on_no_list_stays_outside(site: Callable[[int], Served], new_reader: Callable[..., Reader]) -> None:
    reader, where = new_reader(), site(3600)
    log_in(reader, where, EVE)
    assert f"You are logged in as {EVE}, who may not open this dashboard" in reader.words
    assert "ENABLE" not in reader.received()


def test_a_login_ends_while_the_page_is_open(site: Callable[[int], Served], new_reader: Callable[..., Reader]) -> None:
    reader, where = new_reader(), site(SHORT_S)
    log_in(reader, where, ADA)
    reader.page.get_by_text("login has ended").wait_for(timeout=SETTLE_TIMEOUT_MS)
    reader.settle()
    assert "Switch off" not in reader.words
    # The cookie is still there: Streamlit would let it in for 30 days.
    other = reader.page.context.new_page()
    other.goto(where.address("audit"))
    other.get_by_text("login has ended").wait_for(timeout=SETTLE_TIMEOUT_MS)


def test_a_file_alone_gives_no_access(tmp_path: Path) -> None:
    """The server's own check of the login stands in the function that writes: see tests/dashboards/test_access.py."""
    path = tmp_path / "auth.toml"
    path.write_text("[auth]\n", encoding="utf-8")
    config = tmp_path / "shadowspec.toml"
    url = f"sqlite:///{tmp_path / 'store.db'}"
    config.write_text(CONFIG.format(url=json.dumps(url), auth=json.dumps(str(path))), encoding="utf-8")
    command = [sys.executable, "-m", "shadowspec", "dashboard", "--config", str(config), "--port", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "auth.redirect_uri is missing" in done.stderr
