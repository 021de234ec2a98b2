"""What the capture costs a client, from the committed results of its benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "kernels" / "benchmarks" / "results" / "capture.json"


def capture() -> str:
    """The sentence of the middleware's figures."""
    document: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = {row["server"]: row for row in document["results"]}
    plain, copied, away = rows["without"], rows["with"], rows["broker away"]
    return (
        f"At {document['offered_per_s']:.0f} requests a second, with answers of {document['chunks'] + 1} chunks, the "
        f"middleware makes the median {copied['ratio_of_medians']:.2f} times that without it. With the broker away it "
        f"is {away['ratio_of_medians']:.2f} times. The 99th percentiles are {copied['p99_ms']:.1f} "
        f"and {away['p99_ms']:.1f} ms, without it {plain['p99_ms']:.1f} ms. A request takes "
        f"{copied['cpu_ms_per_request'] - plain['cpu_ms_per_request']:.1f} ms more of a processor. Of "
        f"{document['requests_each']:,} copies {copied['dropped']:,} were dropped, and {away['dropped']:,} with the "
        "broker away ([results](../kernels/benchmarks/results/capture.json), beside other work on two cores)."
    )
