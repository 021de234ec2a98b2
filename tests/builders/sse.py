"""A response as server-sent events."""

from __future__ import annotations

import json
from typing import Any


def stream(*chunks: Any) -> str:
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
