"""`python -m docs.generate [PAGE]...`: write every part that is made from code into its page, by default into all."""

from __future__ import annotations

import sys

from docs.generate.pages import DOCS, PARTS, current
from docs.generate.schemas import write_schemas

for page in sys.argv[1:] or PARTS:
    (DOCS / page).write_text(current(page), encoding="utf-8")
if not sys.argv[1:] or "json.md" in sys.argv[1:]:
    write_schemas()
