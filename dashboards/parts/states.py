"""Empty and broken states: each gives its cause and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

import streamlit as st

from shadowspec.errors import ConfigError, NoDataError, ServiceUnavailableError, ShadowSpecError, StoreError

from . import source


@contextmanager
def show_errors() -> Iterator[None]:
    """Show our errors as a state of the page; Streamlit handles other errors, and shows no details."""
    try:
        yield
    except ServiceUnavailableError as error:
        broken(
            "The database cannot be reached",
            str(error),
            "No data is lost: the worker and the gate continue. Start the database, or correct its address.",
        )
    except ConfigError as error:
        broken("The configuration cannot be used", str(error), "Fix the file that the message names, then try again.")
    except NoDataError as error:
        empty("No data yet", str(error))
    except StoreError as error:
        broken(
            "The database does not fit this version",
            str(error),
            "Run the command that the message names, then try again.",
        )
    except ShadowSpecError as error:
        broken("This page cannot be shown", str(error), "Fix the cause that the message names, then try again.")


def empty(title: str, text: str, *, commands: tuple[str, ...] = ()) -> None:
    """A place with nothing in it, and the commands that fill it."""
    with st.container(border=True):
        st.markdown(f"## :material/inbox: {title}")
        st.markdown(text)
        if commands:
            st.html("".join(_verbatim(command) for command in commands))


def broken(title: str, message: str, advice: str) -> None:
    """Something does not work: what, in the words of the error, and a way to try again."""
    with st.container(border=True):
        st.markdown(f"## :material/error: {title}")
        st.html(_verbatim(message))
        st.markdown(advice)
        if st.button("Try again", icon=":material/refresh:", key=f"retry-{title}"):
            source.forget()
            st.rerun()


def _verbatim(words: str) -> str:
    """A command or an error as it is.  Streamlit's box would load 1.5 MB of colours for it."""
    return f'<pre class="ss-verbatim">{escape(words)}</pre>'
