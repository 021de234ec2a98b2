"""The distinct keys of a large table, found by going from each to the next one along an index (Postgres).

Grouping would read every row, and what is read here has few keys and grows with time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import CTE, Column, ColumnElement, select, true, tuple_


def distinct_keys(columns: Sequence[Column[Any]], *where: ColumnElement[bool]) -> CTE:
    """The distinct values of these columns, under their names, of the rows that `where` holds of.

    An index must begin with what `where` sets equal, followed by the columns in their order.
    """
    first = select(*columns).where(*where).order_by(*columns).limit(1)
    keys = first.cte("keys", recursive=True)
    is_later = tuple_(*columns) > tuple_(*(keys.c[each.name] for each in columns))
    following = select(*columns).where(*where, is_later).order_by(*columns).limit(1).lateral("following")
    return keys.union_all(select(following).select_from(keys.join(following, true())))
