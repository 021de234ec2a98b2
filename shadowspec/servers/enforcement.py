"""Whether servers restrict their answers as they are asked to.

A server that does not know a field ignores it, and would be measured without the constraint that production enforced.
So each is asked for one given word before the first block of constrained requests, and for nothing where none come.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from shadowspec.servers.client import Client, fresh_salt
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.stream import ServerError
from shadowspec.types import Arm, ConstraintForm, ConstraintKind, OutputConstraint, SamplingParameters

TRIAL_WORD: Final = "shadowspec"
_CONSTRAINT: Final = OutputConstraint(ConstraintKind.GRAMMAR, ConstraintForm.CHOICE, json.dumps([TRIAL_WORD]))
TRIAL: Final = ServerRequest(
    (5, 6, 7, 8) * 4, SamplingParameters(temperature=0.0, max_tokens=24), 0, constraint=_CONSTRAINT
)

log = logging.getLogger(__name__)


class Enforcement:
    """What is known of two servers; each is asked once."""

    def __init__(self) -> None:
        self._enforced: dict[Arm, bool] = {}

    async def enforces(self, arm: Arm, client: Client) -> bool:
        """Whether the arm's server restricts its answers.

        Raises:
            ServerError: it cannot be asked now.
        """
        if arm in self._enforced:
            return self._enforced[arm]
        try:
            found = (await client.complete(TRIAL, fresh_salt())).text.strip() == TRIAL_WORD
        except ServerError as fault:
            if fault.is_retryable:
                raise
            found = False
        if not found:
            log.warning(
                "%s does not restrict its answers to a grammar: requests that ask for it (response_format, a schema, "
                "forced tools) fail here; vLLM and SGLang restrict them unless their grammar backend is switched off",
                client.name,
            )
        self._enforced[arm] = found
        return found
