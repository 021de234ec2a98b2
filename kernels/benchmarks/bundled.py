"""The bundled traffic, as the benchmarks read it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

from shadowspec import demo


def answered() -> Iterator[dict[str, Any]]:
    """The records that are requests of a served model with an answer, in their order; the others are bad on purpose."""
    models = set(demo.SERVED_MODELS.values())
    with gzip.open(demo.TRAFFIC, "rt", encoding="utf-8") as file:
        for line in file:
            try:
                record = json.loads(line)
                is_answered = record["request"]["model"] in models and record["response"]["choices"]
            except (ValueError, KeyError, TypeError):
                continue
            if is_answered:
                yield record
