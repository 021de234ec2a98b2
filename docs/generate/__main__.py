"""`python -m docs.generate [PAGE]...`: write every part that is made from code into its page, by default into all."""

from __future__ import annotations

import sys

from docs.generate.pages import DOCS, PARTS, current

for page in sys.argv[1:] or PARTS:
    (DOCS / page).write_text(current(page), encoding="utf-8")
