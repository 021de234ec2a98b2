"""Drafts within a request's limit of output tokens, by any proposer."""

from __future__ import annotations

from shadowspec.engine.batch import Batch
from shadowspec.engine.kv_cache import ColumnSpan
from shadowspec.engine.proposers import Proposal, Proposer
from shadowspec.engine.sampling import to_device


class WithinLimit:
    """A proposer whose drafts are cut to one token less than a row may still emit: the last one is the target's.

    A finished row that keeps its slot drafts as before: it is load in another request's place.
    """

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.hidden = proposer.hidden
        self.begin, self.admit = proposer.begin, proposer.admit
        self.keep, self.cache_bytes = proposer.keep, proposer.cache_bytes

    def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
        proposal = self._proposer.propose(batch, span)
        width = proposal.tokens.shape[1]
        left = [
            row.request.sampling.max_tokens - len(row.output) - 1 if row.finish_reason is None else width
            for row in batch.rows
        ]
        if min(left) >= width:
            return proposal
        num_drafted = proposal.num_drafted.minimum(to_device(left, batch.device))
        width = min(width, max(left))  # known here: nothing waits for the device
        probs = None if proposal.draft_probs is None else proposal.draft_probs[:, :width]
        return Proposal(proposal.tokens[:, :width], num_drafted, probs)
