"""Access: who is at this page, by Streamlit's login where one is configured, and what is said to who may not in."""

from __future__ import annotations

import streamlit as st

from shadowspec.config.dashboard_settings import AccessSettings

from . import identity, source
from .formats import now
from .identity import AccessError, Identity

NO_LOGIN = (
    ":orange-badge[:material/no_encryption: No login] Anyone with network access can see all data{more}. The default "
    "address is reachable from this machine only."
)


def current() -> Identity:
    """Who is at this page at this moment; asked each time, because a login ends while a page is open.

    Raises:
        AccessError: nobody who may be.
    """
    settings = source.config().dashboard.access
    if settings.auth_file is None:
        return identity.local(settings)
    claims = dict(st.user)
    if not claims.get("is_logged_in"):
        raise AccessError("log in to see this dashboard")
    return identity.identify(claims, settings, now())


def is_admitted() -> bool:
    """Whether the visitor of this page may still see it."""
    try:
        current()
    except AccessError:
        return False
    return True


def admit() -> Identity | None:
    """Who is at this page; where he may not be, the way in is drawn and None returned."""
    try:
        return current()
    except AccessError as error:
        _draw_login(str(error))
        return None


def _draw_login(message: str) -> None:
    claims = dict(st.user)
    with st.container(border=True):
        st.markdown("# :material/lock: ShadowSpec")
        st.markdown(f"{message[:1].upper()}{message[1:]}.")
        first, second, _ = st.columns([1, 1, 4])
        if first.button("Log in", type="primary", icon=":material/login:", key="login"):
            st.login()
        if claims.get("is_logged_in") and second.button("Log out", icon=":material/logout:", key="logout-at-login"):
            st.logout()


def banner(who: Identity, settings: AccessSettings) -> None:
    """Who is logged in, or that nobody had to."""
    if settings.auth_file is None:
        more = " and use the kill switch" if who.may_order else ""
        st.caption(NO_LOGIN.format(more=more))
        return
    first, second = st.columns([6, 1], vertical_alignment="center")
    first.caption(f":material/person: {who.name} ({who.role})")
    if second.button("Log out", type="tertiary", icon=":material/logout:", key="logout"):
        st.logout()
