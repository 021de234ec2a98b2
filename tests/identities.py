"""Identities that hold between the counts of every run (docs/metrics.md), for tests that measure."""

from __future__ import annotations

from shadowspec.types import SpeculationCounts


def check_identities(counts: SpeculationCounts, *, is_single_run: bool = True) -> None:
    per_pos, histogram = counts.num_accepted_tokens_per_pos, counts.acceptance_histogram
    assert sum(histogram) == counts.num_drafts, "acceptance_histogram does not sum to num_drafts"
    assert sum(per_pos) == counts.num_accepted_tokens, "per-position counts do not sum to num_accepted_tokens"
    assert sum(j * n for j, n in enumerate(histogram)) == counts.num_accepted_tokens, "histogram moment"
    for position, accepted in enumerate(per_pos):
        assert accepted == sum(histogram[position + 1 :]), "per-position counts disagree with the histogram"
    assert counts.num_accepted_tokens <= counts.num_draft_tokens, "more accepted than drafted"
    if is_single_run:
        emitted = 1 + counts.num_drafts + counts.num_plain_steps + counts.num_accepted_tokens - counts.num_cut_steps
        assert counts.num_output_tokens == emitted, "num_output_tokens identity"
