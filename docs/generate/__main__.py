"""`python -m docs.generate`: write every part that is made from code into its page."""

from __future__ import annotations

from docs.generate.pages import DOCS, PARTS, current

for page in PARTS:
    (DOCS / page).write_text(current(page), encoding="utf-8")
