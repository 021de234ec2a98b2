"""Replays the engine's outputs, on a share of the requests, right after their block and outside the timed arms.

Given an output of the speculative arm, replay computes the expected accepted tokens.  The difference has mean exactly
zero, unless engine or replay is wrong: `shadowspec.gate.audit.difference` bets on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.decode import Decoded
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.replay.replayer import Drafting, Replayed, Replayer
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.errors import RecordError
from shadowspec.types import AuditedRun, ShadowPrompt
from shadowspec.types.settings import EngineSettings

_HASHES: Final = 2**64  # of the eight bytes by which a record is drawn


class Auditor:
    """Replays the engine's outputs; lives as long as the engine whose target and candidates it shares."""

    def __init__(self, target: LoadedModel, candidates: Sequence[Candidate], settings: EngineSettings) -> None:
        """`audit_share` of the requests is drawn, by a hash of the record's key that takes the seed in."""
        self._settings = settings
        self._replayers = {
            candidate.config.fingerprint: Replayer(
                [Drafting(candidate.config.config, candidate.draft)],
                [candidate.config.config.num_speculative_tokens],
                end_token_ids=target.end_token_ids,
                target=target,
            )
            for candidate in candidates
            if _is_known_to_replay(candidate)
        }

    def draws(self, prompt: ShadowPrompt) -> bool:
        """Whether this request is audited, with every candidate.

        A request that is sampled with a given seed never is: requests that share a seed share their random numbers, and
        their differences would not be independent.
        """
        if prompt.sampling.seed is not None and prompt.sampling.temperature > 0.0:
            return False
        digest = hashlib.sha256(f"audit\0{self._settings.seed}\0{prompt.key}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < self._settings.audit_share * _HASHES

    def audit(
        self,
        fingerprint: str,
        prompts: Sequence[ShadowPrompt],
        requests: Sequence[Request],
        decoded: Sequence[Decoded | None],
    ) -> tuple[AuditedRun, ...]:
        """The audited runs among these, of one candidate: its accepted tokens and replay's expectation of them.

        Empty for a candidate whose drafts depend on more than the output shows.

        Args:
            fingerprint: the candidate's.
            prompts: the block's measured requests.
            requests: the same as they were decoded; the fillers behind them are ignored.
            decoded: in their order; None: it did not fit into memory.
        """
        drawn = [
            (prompt, request, each)
            for prompt, request, each in zip(prompts, requests, decoded, strict=False)
            if each is not None and self.draws(prompt)
        ]
        if not drawn or fingerprint not in self._replayers:
            return ()
        responses = [Response(prompt.key, request, each.output) for prompt, request, each in drawn]
        results = self._replayers[fingerprint].replay(responses)
        return tuple(
            AuditedRun(
                key=prompt.key,
                fingerprint=fingerprint,
                num_output_tokens=len(each.output),
                num_accepted_tokens=each.counts.num_accepted_tokens,
                expected_accepted_tokens=_get_expectation(result),
            )
            for (prompt, _, each), result in zip(drawn, results, strict=True)
        )


def _is_known_to_replay(candidate: Candidate) -> bool:
    """Whether the drafts follow from the output: not from a memory, a confidence or where a draft ends."""
    config = candidate.config.config
    return not (config.remembers or config.is_adaptive or candidate.context_limit is not None)


def _get_expectation(result: Replayed | RecordError) -> float | None:
    return None if isinstance(result, RecordError) else result.counts[0][0].num_accepted_tokens
