"""One server of an endpoint: what it was when it was probed, and whether it still is that."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from shadowspec.errors import ServiceUnavailableError
from shadowspec.servers.client import ServerClient, open_client
from shadowspec.servers.closed_loop import Outcome
from shadowspec.servers.identity import identify
from shadowspec.servers.probing import Probe
from shadowspec.servers.server_settings import NamedServer, ServerSettings
from shadowspec.servers.step_counts import OtherDepthError
from shadowspec.servers.stream import Completion, ServerError
from shadowspec.types import Arm

log = logging.getLogger(__name__)

OTHER_SERVER: Final = "other_server"  # the failure of runs in whose block a server became another one
SPECULATES: Final = "speculates"  # that of a baseline


class MeasuredServer:
    """A server that is measured as long as it is the one that was probed."""

    def __init__(
        self,
        settings: ServerSettings,
        named: NamedServer,
        arm: Arm,
        probe: Probe,
        *,
        num_speculative_tokens: int,
        drafts_in_every_step: bool,
    ) -> None:
        """`num_speculative_tokens` is its depth: 0 of a baseline, unless it is the first of two deployments."""
        self.arm, self.identity, self.engine = arm, probe.identity, probe.engine
        self.num_speculative_tokens = num_speculative_tokens
        self.cache_tokens = None if probe.kv_capacity is None else probe.kv_capacity.tokens
        self._settings, self._named, self._drafts_in_every_step = settings, named, drafts_in_every_step

    @asynccontextmanager
    async def open(self, context: ssl.SSLContext, connections: int) -> AsyncIterator[ServerClient]:
        """A client of the server, in its engine's language."""
        async with open_client(self._named.label, self._named.url, self._settings, context, connections) as client:
            yield client.speaking_to(self.engine)

    async def await_same(self, client: ServerClient) -> None:
        """Wait until the server is there, but not for ever, and see that it is the one that it was.

        Raises:
            ServiceUnavailableError: it is away, or another one.
        """
        deadline, wait_s = time.monotonic() + self._settings.reachable_within_s, 0.5
        while True:
            try:
                identity = await identify(client, self._settings.model)
                break
            except ServerError as fault:
                if not fault.is_retryable or time.monotonic() + wait_s > deadline:
                    raise
                log.warning("%s; waiting for it", fault)
            await asyncio.sleep(wait_s)
            wait_s = min(2.0 * wait_s, 10.0)
        if identity != self.identity:
            raise ServiceUnavailableError(
                f"{client.name}: it was {self.identity.name} and is now {identity.name}, or its weights, length or "
                "flags changed: its figures would be another config's; start again"
            )
        number = await self._reported_depth(client)
        if number not in (None, self.num_speculative_tokens):
            raise ServiceUnavailableError(
                f"{client.name}: it now drafts {number} tokens in a step, and not {self.num_speculative_tokens}. Its "
                "figures would be another config's: start it as it was, and start again"
            )

    async def change_in(self, client: ServerClient, outcomes: Sequence[Outcome]) -> str | None:
        """How the server changed while it answered a block, as a failure of its runs.

        None where nothing shows it; a server that is away now is waited for before the next block.  Where its pages do
        not say how many tokens it drafts, the longest draft of its answers does, of those with room for it.
        """
        wanted = self.num_speculative_tokens
        answers = [
            answer
            for answer in outcomes
            if isinstance(answer, Completion) and (answer.message is None or self.engine.counts_chat(answer))
        ]
        longest = [self.engine.longest_draft_in(answer) for answer in answers if answer.num_output_tokens > wanted + 1]
        try:
            if await identify(client, self._settings.model) != self.identity:
                return f"{self.arm}_{OTHER_SERVER}"
            number = await self._reported_depth(client)
        except ServerError as fault:
            log.warning("%s; it is looked at again before the next block", fault)
            return None
        if number is None:
            number = max(longest, default=wanted)
            if number < wanted and not self._drafts_in_every_step:  # a lookup may have come up short
                return None
        is_other = number != wanted
        return (
            f"{self.arm}_{OtherDepthError.failure if self.arm is Arm.SPECULATIVE else SPECULATES}" if is_other else None
        )

    async def _reported_depth(self, client: ServerClient) -> int | None:
        """How many tokens the server drafts in a step now, by its pages; None where they do not say."""
        drafts = await self.engine.drafts_of(client, self.identity, None, self._settings.model)
        return drafts.num_speculative_tokens
