"""Replays outputs of the speculative arm, on a share of the requests, right after their block and outside its arms.

Given an output, replay computes the expected accepted tokens.  If the engine in this process generated the output, the
difference has mean exactly zero, unless engine or replay is wrong.  If a server generated it, rounding moves the mean:
server and replay compute in other kernels.  `shadowspec.gate.run.audit_difference` bets on the difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import structs

from shadowspec.engine.arms import within_memory
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.decode import Decoded
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.replay.replayer import Drafting, Replayed, Replayer
from shadowspec.engine.replay.response_tokens import Response, logged_response
from shadowspec.errors import RecordError
from shadowspec.types import AUDIT_TOLERANCE, AuditedRun, RecordKey, ServedOutput, ShadowPrompt
from shadowspec.types.settings import EngineSettings

_HASHES: Final = 2**64  # of the eight bytes by which a record is drawn


class Auditor:
    """Replays outputs; lives as long as the engine whose target and candidates it shares."""

    def __init__(
        self,
        target: LoadedModel,
        candidates: Sequence[Candidate],
        settings: EngineSettings,
        tolerance: float = AUDIT_TOLERANCE,
    ) -> None:
        """`audit_share` of the requests is drawn, by a hash of the record's key that takes the seed in."""
        self._target, self._settings, self._tolerance = target, settings, tolerance
        self._replayers = {
            candidate.config.fingerprint: Replayer(
                [Drafting(candidate.config.config, candidate.draft)],
                [candidate.config.config.num_speculative_tokens],
                end_token_ids=target.end_token_ids,
                target=target,
            )
            for candidate in candidates
            if candidate.config.config.drafts_follow_from_output and candidate.context_limit is None
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
        self, fingerprint: str, prompts: Sequence[ShadowPrompt], decoded: Sequence[Decoded | None]
    ) -> tuple[AuditedRun, ...]:
        """The audited runs among these, of one candidate: its accepted tokens and replay's expectation of them.

        Empty for a candidate whose drafts depend on more than the output shows, and where memory runs out.

        Args:
            fingerprint: the candidate's.
            prompts: the block's measured requests.
            decoded: in their order, fillers behind them; None: it did not fit into memory.
        """
        return self._audit(
            fingerprint,
            [
                (_response(prompt, decoded_request.output), decoded_request.counts.num_accepted_tokens, 0)
                for prompt, decoded_request in zip(prompts, decoded, strict=False)
                if decoded_request is not None and self.draws(prompt)
            ],
        )

    def audit_served(
        self, fingerprint: str, prompts: Sequence[ShadowPrompt], served: Mapping[RecordKey, ServedOutput]
    ) -> tuple[AuditedRun, ...]:
        """The same of a server's outputs, by their records.

        A response whose end is not known is left out.  So is one that a grammar restricts, because replay knows none.
        The tolerance of a run includes the tokens by which its count may be wrong.
        """
        drawn = []
        for prompt in prompts:
            output = served.get(prompt.key)
            if output is None or prompt.constraint is not None or not self.draws(prompt):
                continue
            answered = structs.replace(prompt, response=output.response)
            try:
                response = logged_response(answered, None, self._target.tokenizer, self._target.end_token_ids)
            except RecordError:
                continue
            drawn.append((response, output.num_accepted_tokens, output.num_uncertain_tokens))
        return self._audit(fingerprint, drawn)

    def _audit(self, fingerprint: str, drawn: Sequence[tuple[Response, int, int]]) -> tuple[AuditedRun, ...]:
        """`drawn` are responses, each with its accepted tokens, and how many of these are uncertain."""
        replayer = self._replayers.get(fingerprint)
        if not drawn or replayer is None:
            return ()
        responses = [response for response, *_ in drawn]
        results = within_memory(self._target, "an audit", len(drawn), lambda: replayer.replay(responses))
        if results is None:
            return ()
        return tuple(
            AuditedRun(
                key=response.key,
                fingerprint=fingerprint,
                num_output_tokens=len(response.output),
                num_accepted_tokens=num_accepted,
                expected_accepted_tokens=_get_expectation(result),
                tolerance=self._tolerance + num_uncertain / max(1, len(response.output) - 1),
            )
            for (response, num_accepted, num_uncertain), result in zip(drawn, results, strict=True)
        )


def _response(prompt: ShadowPrompt, output: tuple[int, ...]) -> Response:
    return Response(prompt.key, Request(prompt.prompt_token_ids, prompt.sampling, seed=0), output)


def _get_expectation(result: Replayed | RecordError) -> float | None:
    return None if isinstance(result, RecordError) else result.counts[0][0].num_accepted_tokens
