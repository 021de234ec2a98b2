"""docs/architecture.md says what the code is: its picture, its list, and what each package imports."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from docs import draw_architecture as drawing

ROOT = Path(__file__).parents[2]
NAMES = [name for layer in drawing.layers() for name in layer]
FOLDERS = ("shadowspec", "dashboards", "migrations", "kernels/shadowspec_kernels")
PACKAGES = sorted(
    ".".join(path.parent.relative_to((ROOT / folder).parent).parts)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("__init__.py")
)


def test_the_picture_and_the_list_are_drawn_from_the_import_contract() -> None:
    assert drawing.PICTURE.read_text() == drawing.picture(), "run `make docs`"
    text = drawing.PAGE.read_text()
    assert text == drawing.page(text), "run `make docs`"


def test_every_package_and_module_is_in_the_contract() -> None:
    top = {f"shadowspec.{path.name}" for path in (ROOT / "shadowspec").iterdir() if (path / "__init__.py").exists()}
    top |= {f"shadowspec.{path.stem}" for path in (ROOT / "shadowspec").glob("*.py") if not path.stem.startswith("__")}
    assert top == {name for name in NAMES if name.startswith("shadowspec.")}
    assert len([name for name in top if not drawing.source_of(name).is_dir()]) <= 5


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_says_what_comes_in_what_goes_out_and_what_it_imports(name: str) -> None:
    story = drawing.story_of(name)
    assert set(story) == set(drawing.LINES)
    beside = [other for other in NAMES if not f"{name}.".startswith(f"{other}.") and not other.startswith(f"{name}.")]
    said = [each.strip() for each in story["Imports"].rstrip(".").split(",") if each.strip() != "nothing"]
    assert said == [drawing.short(other) for other in drawing.imports_of(name, beside)]


def test_every_function_and_file_that_the_page_names_exists() -> None:
    text = drawing.PAGE.read_text()
    places = re.findall(r"`((?:shadowspec|dashboards|kernels|migrations|tests)/[\w./-]+?)(?::(\w+(?:\.\w+)?))?`", text)
    assert len(places) > 60
    for path, symbol in places:
        assert (ROOT / path).exists(), path
        if symbol:
            last = symbol.rpartition(".")[2]
            assert re.search(rf"\b(def|class) {last}\b|^{last}\b", (ROOT / path).read_text(), re.MULTILINE), (
                path,
                symbol,
            )


def test_no_two_modules_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in (ROOT / "shadowspec").rglob("*.py"):
        if not path.stem.startswith("__"):
            places[path.stem].append(path.parent.relative_to(ROOT / "shadowspec").as_posix())
    shared = {name: sorted(folders) for name, folders in places.items() if len(folders) > 1}
    assert shared == {}
