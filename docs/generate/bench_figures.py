"""Sentences with figures of single benchmarks, from their committed results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "kernels" / "benchmarks" / "results"


def capture() -> str:
    """The sentences of the figures of the middleware, and of the gateways and servers that were measured beside it."""
    document = _results("capture.json")
    rows = {(row["server"], row["answer_ms"]): row for row in document["results"]}
    slow = max(answer_ms for _, answer_ms in rows if answer_ms is not None)
    cost_ms = rows["with", slow]["cpu_ms_per_request"] - rows["without", slow]["cpu_ms_per_request"]
    words = [
        f"A client sent {document['offered_per_s']:.0f} requests a second, and answers took {slow} ms in "
        f"{document['chunks'] + 1} chunks. The middleware makes the median {_times(rows['with', slow])} times that "
        f"without it, and {_times(rows['broker away', slow])} times with the broker away."
    ]
    if envoy := rows.get(("Envoy, with", slow)):
        words.append(f"Envoy's filters and access log make it {_times(envoy)} times.")
    words.append(f"A request takes {cost_ms:.1f} ms more of a processor.")
    words += [
        f"{name} bears {rows[f'{name}, without', answer_ms]['borne_per_s']:.0f} a second there: {_times(copied)} times "
        f"at half of that (turns: {min(copied['ratios']):.2f} to {max(copied['ratios']):.2f})."
        for name, answer_ms in (("LiteLLM", slow), ("vLLM", None))
        if (copied := rows.get((f"{name}, with", answer_ms)))
    ]
    dropped = [
        f"{counts['dropped']:,} of {document['requests'][name]:,} copies ({name})"
        for name, counts in document["copies"].items()
        if counts["dropped"]
    ]
    words.append(
        f"Dropped: {'; '.join(dropped) or 'nothing'} "
        f"([results](../kernels/benchmarks/results/capture.json), load {document['load_of_machine']:.1f})."
    )
    return " ".join(words)


def _times(row: dict[str, Any]) -> str:
    return f"{row['ratio_of_medians']:.3f}"


def endpoints_apart() -> str:
    """What killed servers of some endpoints cost the others."""
    document = _results("endpoints_apart.json")
    killed, without = document["endpoints"]["with_kills"], document["endpoints"]["without"]
    healthy = list(document["healthy_ratio"])
    lost = sum(
        row["sent"] - row["ended"] + row["measured_twice"] for rows in (killed, without) for row in rows.values()
    )
    of_healthy = " and ".join(f"{killed[name]['measured']} of {killed[name]['sent']}" for name in healthy)
    of_control = " and ".join(str(without[name]["measured"]) for name in healthy)
    faulty = [name for name in killed if name not in healthy]
    of_faulty = " and ".join(f"{killed[name]['measured']} of {killed[name]['sent']}" for name in faulty)
    return (
        f"Tried for {document['options']['minutes']:.0f} minutes with four endpoints on servers of llama.cpp. Those of "
        f"two were killed {sum(document['kills'].values())} times, and were away for "
        f"{sum(document['away_s'].values()) / 60:.0f} minutes together. The other two measured {of_healthy} requests; "
        f"a fleet without kills measured {of_control}. Those two measured {of_faulty}. "
        f"{lost or 'No'} message was lost or counted twice "
        "([results](../kernels/benchmarks/results/endpoints_apart.json))."
    )


def tap() -> str:
    """How many messages the tap takes."""
    document = _results("tap.json")
    rows = {row["contestant"]: row for row in document["results"]}
    everything, some = rows["tap, everything measured"], rows["tap, 10% of sessions"]
    text, some_text = (rows[f"{name}, text only"] for name in ("tap, everything measured", "tap, 10% of sessions"))
    return (
        f"On {document['machine']['cores']} cores the tap takes {_per_second(everything)} messages of 2 kB a second, "
        f"and {_per_second(some)} at 10% of sessions. Where it tokenises, it takes {_per_second(text)} and "
        f"{_per_second(some_text)} ([results](../kernels/benchmarks/results/tap.json))."
    )


def _per_second(row: dict[str, Any]) -> str:
    return f"{row['messages_per_second']:,.0f}"


def _results(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return document
