"""MkDocs hook: files of the repository that pages link to, such as benchmark results, become files of the site.

A link that leads nowhere stays as it is, and `mkdocs build --strict` refuses it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[1]
_OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside of docs/ that a page links to."""
    linked = {
        path for page in files.documentation_pages() for path in _OUTSIDE.findall(page.content_string) if _is_file(path)
    }
    for path in sorted(linked):
        files.append(File.generated(config, _place(path), abs_src_path=str(_ROOT / path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links at those files."""
    return _OUTSIDE.sub(lambda link: f"]({_place(link[1])}" if _is_file(link[1]) else link[0], markdown)


def _place(path: str) -> str:
    """Where in the site; Markdown stays text there, because it links to what the site does not have."""
    return f"repository/{path}" + (".txt" if path.endswith(".md") else "")


def _is_file(path: str) -> bool:
    return (_ROOT / path).is_file()
