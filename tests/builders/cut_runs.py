"""A world cut into looks."""

from __future__ import annotations

from tests.gate.oracle import EndpointEvidence


def cut(evidence: EndpointEvidence, num_blocks: int) -> EndpointEvidence:
    """What was stored after the first blocks."""
    blocks = evidence.blocks[:num_blocks]
    kept = {block.block_id for block in blocks}
    runs = [run for run in evidence.runs if run.block_id in kept]
    last = max(run.key.offset for run in runs)
    records = [
        r for r in evidence.records if (r.key.offset if r.key.partition == 0 else r.key.offset // 10 + 1) <= last
    ]
    return EndpointEvidence(evidence.endpoint, records, blocks, runs)
