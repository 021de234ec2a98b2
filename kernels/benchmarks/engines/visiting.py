"""Every deployment started once: asked for what is missing, timed beside the baseline, and ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from kernels.benchmarks.engines.collecting import GREEDY_REGIME, Prompt, collect, missing_regimes
from kernels.benchmarks.engines.pair import Pair
from kernels.benchmarks.engines.servers import Environment, Server, running
from kernels.benchmarks.engines.timing import Queue, missing_portions, time_servers, timed_name
from kernels.benchmarks.engines.ways import BASELINE, DEPTHS, SERVED, SHIPPED, SHIPPED_DEPTH, Served, Way, raw_file


class Visits:
    """What is to be collected, and where."""

    def __init__(
        self,
        folder: Path,
        environment: Environment,
        prompts: Sequence[Prompt],
        max_tokens: int,
        timed: Sequence[Way],
        portions: Sequence[Sequence[Queue]],
        *,
        collects: bool = True,
    ) -> None:
        """
        Args:
            timed: the ways that are timed, all of them on `portions`.
            collects: whether every deployment is asked for answers to all prompts.
        """
        self._collects = collects
        self._folder, self._environment = folder, environment
        self._prompts, self._max_tokens = prompts, max_tokens
        self._timed, self._portions = timed, portions

    def make(self, depths: Sequence[int] = DEPTHS) -> None:
        """Collect all that is missing.  The baseline runs from its first use on, stopped but for its turns."""
        with ExitStack() as stack:
            baseline: Server | None = None
            if self._lacks(BASELINE, 0):
                baseline = self._started(stack, None, BASELINE, 0)
            if self._lacks(SHIPPED.name, SHIPPED_DEPTH):
                with ExitStack() as exit_stack:
                    self._started(exit_stack, SHIPPED, SHIPPED.name, SHIPPED_DEPTH)
            for depth in depths:
                for served in SERVED:
                    timed = self._missing(served, depth)
                    if timed and baseline is None:
                        baseline = self._started(stack, None, BASELINE, 0)
                    if timed or self._lacks(served.name, depth):
                        with ExitStack() as exit_stack:
                            server = self._started(exit_stack, served, served.name, depth)
                            for way in timed:
                                assert baseline is not None, "it was started for what is timed"
                                servers = {0: baseline, depth: server}
                                time_servers(self._folder, way, servers, self._portions, self._max_tokens)

    def _lacks(self, name: str, depth: int) -> bool:
        """Whether answers of a deployment are still to be collected."""
        return self._collects and bool(missing_regimes(self._folder, name, depth))

    def _missing(self, served: Served, depth: int) -> list[Way]:
        return [
            way
            for way in self._timed
            if way.served is served and missing_portions(self._folder, timed_name(way, depth), self._portions)
        ]

    def _started(self, stack: ExitStack, served: Served | None, name: str, depth: int) -> Server:
        """A server that was asked for what is missing of it and is stopped now."""
        config = None if served is None else served.speculative_config(depth)
        log = self._folder / f"server-{name}-k{depth}.log"
        is_fixed = served is not None and served.is_fixed
        server = stack.enter_context(running(self._environment, config, log, is_fixed=is_fixed))
        if self._collects:
            missing = missing_regimes(self._folder, name, depth)
            collect(self._folder, server, name, depth, self._prompts, self._max_tokens, missing)
        server.pause()
        return server


def visit_pair(
    folder: Path,
    environment: Environment,
    pair: Pair,
    ways: Sequence[Way],
    depths: Sequence[int],
    prompts: Sequence[Prompt],
    max_tokens: int,
) -> None:
    """Greedy requests to another pair's speculative servers, for what is not in the folder yet."""
    for depth in depths:
        for way in ways:
            name = way.served.name
            if raw_file(folder, name, depth, GREEDY_REGIME).exists():
                continue
            config, log = way.served.speculative_config(depth, pair), folder / f"server-{name}-k{depth}.log"
            with running(environment, config, log, is_fixed=False, target=pair.target) as server:
                collect(folder, server, name, depth, prompts, max_tokens, {GREEDY_REGIME: way.sampling})
