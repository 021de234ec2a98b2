"""Every pinned package has a licence that is allowed."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from license_expression import LicenseExpression, get_spdx_licensing

from docs.generate import licences
from docs.generate.licences import Row

SPDX = get_spdx_licensing()


def refused(row: Row) -> str:
    """The licences that must be accepted and are not; empty where the row is allowed."""
    return ", ".join(sorted(_refused(SPDX.parse(row.licence), row.name)))


def _refused(expression: LicenseExpression, name: str) -> set[str]:
    operator = getattr(expression, "operator", "").strip()
    if operator not in ("AND", "OR"):
        licence = str(expression)
        names, _ = licences.ALLOWED_FOR.get(licence, ("", ""))
        is_allowed = licence in licences.ALLOWED or bool(re.fullmatch(names, name))
        return set() if is_allowed else {licence}
    parts = [_refused(each, name) for each in expression.args]
    return min(parts, key=len) if operator == "OR" else set().union(*parts)


@cache
def rows_of_the_pins() -> list[Row]:
    """Read once: it takes the metadata of every package."""
    return list(licences.rows())


def test_every_pinned_package_has_an_allowed_licence() -> None:
    rows = rows_of_the_pins()
    assert {row.name: row.version for row in rows} == licences.pins()
    assert {row.name: found for row in rows if (found := refused(row))} == {}


@pytest.mark.parametrize(
    ("name", "licence", "found"),
    [
        ("any", "GPL-3.0-only", "GPL-3.0-only"),
        ("any", "MIT AND (AGPL-3.0-only OR GPL-2.0-only WITH Classpath-exception-2.0)", "AGPL-3.0-only"),
        ("any", "GPL-2.0-or-later OR MIT", ""),
        ("any", "Apache-2.0 WITH LLVM-exception AND BSD", ""),
        ("psycopg", "LGPL-3.0-only", ""),
        ("any", "LGPL-3.0-only", "LGPL-3.0-only"),
        ("nvidia-cudnn-cu13", "LicenseRef-NVIDIA-Proprietary", ""),
        ("any", "LicenseRef-NVIDIA-Proprietary", "LicenseRef-NVIDIA-Proprietary"),
    ],
)
def test_a_licence_outside_the_list_is_refused(name: str, licence: str, found: str) -> None:
    assert refused(Row(name, "1", licence, "shadowspec")) == found


def test_no_exception_outlives_its_package() -> None:
    names = {(row.licence, row.name) for row in rows_of_the_pins()}
    for licence, (pattern, _) in licences.ALLOWED_FOR.items():
        assert any(each == licence and re.fullmatch(pattern, name) for each, name in names), licence


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT OR apache-2.0\nLicense: nonsense", "MIT OR Apache-2.0"),
        ("License: 3-Clause BSD License", "BSD-3-Clause"),
        ("License: MIT License\n        Copyright (c) 2022\n", "MIT"),
        ("License: Copyright (c) 2022 by its authors\nClassifier: License :: OSI Approved :: BSD License", "BSD"),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: ISC License (ISCL)", "ISC"),
    ],
)
def test_a_licence_is_read_from_expression_text_or_classifier(metadata: str, licence: str, tmp_path: Path) -> None:
    assert licences.licence_of(_package(tmp_path, metadata)) == licence


@pytest.mark.parametrize("metadata", ["", "License: Custom", "Classifier: License :: OSI Approved"])
def test_a_package_that_declares_no_known_licence_is_an_error(metadata: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="declares no known licence"):
        licences.licence_of(_package(tmp_path, metadata))


def test_a_moved_pin_needs_the_package_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(licences, "pins", lambda: {"msgspec": "0.0.1"})
    with pytest.raises(ValueError, match=r"msgspec 0\.0\.1 is not installed.*make licences"):
        licences.rows()


def test_a_package_that_is_not_installed_keeps_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = [row for row in rows_of_the_pins() if row.name == "ruff"]
    monkeypatch.setattr(licences, "_installed", lambda name, version: None)
    assert row in licences.rows()


def test_packages_are_counted_by_who_needs_them() -> None:
    needed = {row.name: row.needed_by for row in rows_of_the_pins()}
    assert (needed["msgspec"], needed["mypy"], needed["pytest"]) == ("shadowspec", "tools", "tools")
    assert (needed["torch"], needed["scipy"]) == ("backfill, engine, kernels", "simulate"), (
        "two extras bring the engine"
    )
    assert (needed["sqlglot"], needed["apprise"], needed["ray"]) == ("sql", "schedule", "backfill")
    # By shadowspec, though the dashboard brings it too.
    assert needed["numpy"] == "shadowspec"


def _package(folder: Path, metadata: str) -> Distribution:
    place = folder / "sample-1.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sample\nVersion: 1\n{metadata}\n", encoding="utf-8")
    return Distribution.at(place)
