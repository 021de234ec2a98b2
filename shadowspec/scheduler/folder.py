"""Delivery to a folder: a file per format, put in its place whole, and over itself when repeated."""

from __future__ import annotations

from shadowspec.reports.period.render import RENDERERS
from shadowspec.scheduler.letters import Letter
from shadowspec.scheduler.settings import FolderSettings


def send_to_folder(settings: FolderSettings, letter: Letter) -> None:
    """Write the report's files.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    settings.folder.mkdir(parents=True, exist_ok=True)
    for form in settings.formats:
        path = settings.folder / f"{letter.file_stem}.{form}"
        part = path.with_name(f".{path.name}.part")
        part.write_text(RENDERERS[form](letter.report), encoding="utf-8")
        part.replace(path)
