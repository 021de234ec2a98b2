"""What is shown where there is nothing to show: empty, broken, behind; each says what it means and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

import streamlit as st

from shadowspec.errors import ConfigError, NoDataError, ServiceUnavailableError, ShadowSpecError, StoreError

from . import source


@contextmanager
def show_errors() -> Iterator[None]:
    """Show our own errors as a state of the page; anything else goes on to Streamlit, which shows no details."""
    try:
        yield
    except ServiceUnavailableError as error:
        broken("The database cannot be reached", str(error), "Nothing is lost: measuring and deciding go on elsewhere.")
    except ConfigError as error:
        broken("The configuration cannot be used", str(error), "Mend the file that the message names.")
    except NoDataError as error:
        empty("Nothing here yet", str(error))
    except StoreError as error:
        broken("The database is not as this version expects it", str(error), "The message says how to fix it.")
    except ShadowSpecError as error:
        broken("This cannot be shown", str(error), "The message says why.")


def empty(title: str, text: str, *, commands: tuple[str, ...] = ()) -> None:
    """A place with nothing in it, and the commands that fill it."""
    with st.container(border=True):
        st.markdown(f"##### :material/inbox: {title}")
        st.markdown(text)
        if commands:
            st.html("".join(_verbatim(command) for command in commands))


def broken(title: str, message: str, advice: str) -> None:
    """Something does not work: what, in the words of the error, and a way to try again."""
    with st.container(border=True):
        st.markdown(f"##### :material/error: {title}")
        st.html(_verbatim(message))
        st.markdown(advice)
        if st.button("Try again", icon=":material/refresh:", key=f"retry-{title}"):
            source.forget()
            st.rerun()


def _verbatim(words: str) -> str:
    """A command or an error as it is.  Streamlit's own box would load 1.5 MB of colours for it."""
    return f'<pre class="ss-verbatim">{escape(words)}</pre>'
