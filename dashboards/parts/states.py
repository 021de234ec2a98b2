"""What is shown where there is nothing to show: empty, broken, behind; each says what it means and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from shadowspec.errors import ConfigError, NoDataError, ServiceUnavailableError, ShadowSpecError, StoreError

from . import source


@contextmanager
def explained() -> Iterator[None]:
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
        broken("The database is not as this version expects it", str(error), "The message says what mends it.")
    except ShadowSpecError as error:
        broken("This cannot be shown", str(error), "The message says why.")


def empty(title: str, text: str, *, commands: tuple[str, ...] = ()) -> None:
    """A place with nothing in it, and the commands that fill it."""
    with st.container(border=True):
        st.markdown(f"##### :material/inbox: {title}")
        st.markdown(text)
        for command in commands:
            st.code(
                command, language=None, wrap_lines=True
            )  # coloured words are too pale, and what scrolls needs a focus


def broken(title: str, message: str, advice: str) -> None:
    """Something does not work: what, in the words of the error, and a way to try again."""
    with st.container(border=True):
        st.markdown(f"##### :material/error: {title}")
        st.code(message, language=None, wrap_lines=True)
        st.markdown(advice)
        if st.button("Try again", icon=":material/refresh:", key=f"retry-{title}"):
            source.forget()
            st.rerun()
