"""MkDocs hook: files of the repository that pages link to, such as benchmark results, become files of the site.

A link that leads nowhere stays as it is, and `mkdocs build --strict` refuses it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[1]
_UPWARDS = re.compile(r"\]\(((?:\.\./)+[^)#]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside of docs/ that a page links to."""
    linked = {
        path
        for page in files.documentation_pages()
        for link in _UPWARDS.findall(page.content_string)
        if (path := _outside(page.src_uri, link)) is not None
    }
    for path in sorted(linked):
        files.append(File.generated(config, _place(path), abs_src_path=str(_ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at those files."""
    up = "../" * page.file.src_uri.count("/")

    def pointed(link: re.Match[str]) -> str:
        path = _outside(page.file.src_uri, link[1])
        return link[0] if path is None else f"]({up}{_place(path)}"

    return _UPWARDS.sub(pointed, markdown)


def _place(path: str) -> str:
    """Where in the site.  Markdown and code are text there: links in them lead nowhere, and a browser shows them."""
    return f"repository/{path}" + (".txt" if path.endswith((".md", ".py")) else "")


def _outside(page: str, link: str) -> str | None:
    """The file of the repository, outside of docs/, that a page links to; None of any other link."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return path if not path.startswith(("docs/", "../")) and (_ROOT / path).is_file() else None
