"""What pages ask is kept by question, by its values and by the database, and forgotten when an operator orders."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dashboards.app import PACKAGE, load_package
from shadowspec.store import Store


@pytest.fixture
def queries() -> Iterator[ModuleType]:
    """The module under the name that the pages know it by."""
    load_package()
    found = importlib.import_module(f"{PACKAGE}.parts.queries")
    yield found
    found.forget()
    importlib.import_module(f"{PACKAGE}.parts.source").forget()


def test_another_database_has_other_answers(
    queries: ModuleType, filled_url: str, blank: str, configured: Callable[..., Path]
) -> None:
    configured(filled_url)
    assert queries.verdict_changes(None, None)
    configured(blank)
    assert queries.verdict_changes(None, None) == []


def test_another_question_of_the_same_values_has_another_answer(
    queries: ModuleType, filled_url: str, configured: Callable[..., Path]
) -> None:
    configured(filled_url)
    endpoint = queries.endpoints()[0]
    other = queries.endpoints()[1]
    assert {measured.endpoint for measured in queries.measured_decisions(endpoint)} == {endpoint}
    assert {measured.endpoint for measured in queries.measured_decisions(other)} == {other}
    assert isinstance(queries.hours(endpoint), tuple)


def test_an_answer_is_kept_until_it_is_forgotten(
    queries: ModuleType, filled_url: str, configured: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(filled_url)
    asked = []
    ask = Store.rollup_hours
    monkeypatch.setattr(Store, "rollup_hours", lambda item, endpoint: asked.append(endpoint) or ask(item, endpoint))
    (endpoint, *_) = queries.endpoints()
    for _ in range(2):
        queries.hours(endpoint)
    assert asked == [endpoint]
    queries.forget()
    queries.hours(endpoint)
    assert asked == [endpoint, endpoint]
