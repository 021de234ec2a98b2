"""Draws docs/images/architecture.svg and the list of packages of docs/architecture.md from the import contract.

The layers come from `[tool.importlinter]` in pyproject.toml, the texts from each package's `__init__`, and what a
package imports from its source.  `make docs` runs it; a test compares what it writes with what is committed.
"""

from __future__ import annotations

import ast
import tomllib
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
BEGIN, END = "<!-- packages: written by docs/draw_architecture.py -->", "<!-- end of packages -->"
LINES = ("In", "Out", "Imports")  # what a package's docstring says after its first sentence
WIDTH, MARGIN, GAP, HEADER, TEXT = 1180, 16, 12, 20, 15  # pixels; the last two are heights of lines
CHARACTER = 6.4  # pixels, mean width at font size 12


def layers() -> list[list[str]]:
    """Packages and modules by layer, the outermost first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["name"] == "dependencies point inward")
    return [[name.strip() for name in layer.replace(":", "|").split("|")] for layer in contract["layers"]]


def source_of(name: str) -> Path:
    """The package's folder or the module's file."""
    folder = (ROOT / "kernels" if name == "shadowspec_kernels" else ROOT) / name.replace(".", "/")
    return folder if folder.is_dir() else folder.with_suffix(".py")


def docstring_of(name: str) -> str:
    """The docstring of a package or module."""
    source = source_of(name)
    text = ast.get_docstring(ast.parse((source / "__init__.py" if source.is_dir() else source).read_text()))
    assert text, f"{name} has no docstring"
    return text


def summary_of(name: str) -> str:
    """The docstring's first paragraph."""
    return " ".join(docstring_of(name).split("\n\n")[0].split())


def story_of(name: str) -> dict[str, str]:
    """What the docstring of a package says comes in, goes out and is imported."""
    found: dict[str, str] = {}
    last = None
    for line in docstring_of(name).splitlines():
        label, colon, rest = line.partition(":")
        if colon and label in LINES:
            found[label], last = rest.strip(), label
        elif last and line.strip():
            found[last] += " " + line.strip()
        else:
            last = None
    return found


def imports_of(name: str, known: list[str]) -> list[str]:
    """The packages and modules of the contract that this one imports, in the contract's order."""
    source, found = source_of(name), set()
    for path in source.rglob("*.py") if source.is_dir() else [source]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
            elif isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
    return [
        other
        for other in known
        if other != name and any(each == other or each.startswith(other + ".") for each in found)
    ]


def short(name: str) -> str:
    """The name without the product's."""
    return name.removeprefix("shadowspec.")


def listing() -> str:
    """The packages, outermost first."""
    packages = (name for layer in layers() for name in layer if source_of(name).is_dir())
    return "\n".join(f"- `{short(name)}`: {summary_of(name)}" for name in packages)


def picture() -> str:
    """The layers as rows of boxes; a package may import from the rows below its own."""
    shapes: list[str] = []
    top = MARGIN
    for layer in layers():
        width = (WIDTH - 2 * MARGIN - GAP * (len(layer) - 1)) / len(layer)
        texts = [wrap(summary_of(name).rstrip("."), max(int((width - 16) / CHARACTER), 12)) for name in layer]
        height = HEADER + TEXT * max(map(len, texts)) + 14
        for place, (name, lines) in enumerate(zip(layer, texts, strict=True)):
            left = MARGIN + place * (width + GAP)
            shapes.append(f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{height}" rx="6" class="box"/>')
            shapes.append(f'<text x="{left + 8:.0f}" y="{top + HEADER}" class="name">{escape(short(name))}</text>')
            for number, line in enumerate(lines, start=1):
                y = top + HEADER + TEXT * number + 2
                shapes.append(f'<text x="{left + 8:.0f}" y="{y}">{escape(line)}</text>')
        top += height + GAP
    style = (
        "text{font:12px sans-serif;fill:#24292f}.name{font:bold 13px monospace}.box{fill:#f3f6fa;stroke:#8c99a8}"
        "svg{background:#ffffff}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" '
        f'role="img" aria-label="Packages by layer; each may import from the rows below its own">'
        f"<style>{style}</style>\n" + "\n".join(shapes) + "\n</svg>\n"
    )


def page(text: str) -> str:
    """The page with its list of packages written again."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{listing()}\n\n{END}{after}"


if __name__ == "__main__":
    PICTURE.write_text(picture())
    PAGE.write_text(page(PAGE.read_text()))
