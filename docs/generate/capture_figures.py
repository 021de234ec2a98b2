"""What the capture costs a client, from the committed results of its benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "kernels" / "benchmarks" / "results" / "capture.json"


def capture() -> str:
    """The sentences of the figures of the middleware, and of Envoy where it was measured."""
    document: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = {(row["server"], row["answer_ms"]): row for row in document["results"]}
    slow = max(answer_ms for _, answer_ms in rows)
    copied, away = rows["with", slow], rows["broker away", slow]
    envoy = rows.get(("Envoy, with", slow))
    of_envoy = "" if envoy is None else f", Envoy's filters and access log {_times(envoy)}"
    cost_ms = copied["cpu_ms_per_request"] - rows["without", slow]["cpu_ms_per_request"]
    dropped = [f"{counts['dropped']:,} ({name})" for name, counts in document["copies"].items()]
    return (
        f"At {document['offered_per_s']:.0f} requests a second, with answers of {document['chunks'] + 1} chunks in "
        f"{slow} ms, the middleware makes the client's median {_times(copied)} times that without it, with the broker "
        f"away {_times(away)}{of_envoy}. Of answers without any delay ({rows['without', 0]['p50_ms']:.1f} ms) it makes "
        f"it {_times(rows['with', 0])} times. A request takes {cost_ms:.1f} ms more of a processor. Of "
        f"{document['requests_each']:,} copies each were dropped: {', '.join(dropped)} "
        f"([results](../kernels/benchmarks/results/capture.json), load of the machine "
        f"{document['load_of_machine']:.1f})."
    )


def _times(row: dict[str, Any]) -> str:
    return f"{row['ratio_of_medians']:.3f}"
