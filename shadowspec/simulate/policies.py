"""The committed simulation's rate of false ENABLEs under a policy where none is right."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import shadowspec
from shadowspec.gate.policy import GatePolicy
from shadowspec.reports.period.period_model import SimulatedRate
from shadowspec.simulate.results import WorldResult, definition_of, read_results
from shadowspec.simulate.summary import share
from shadowspec.simulate.worlds import WORLDS

RESULTS = Path("kernels/benchmarks/results/simulation.json")

# More hypotheses leave each of them a smaller level, and a longer span lets ENABLE wait: with either the rate can
# only be lower than that of a world which has less.
ONLY_STRICTER = ("max_hypotheses", "min_span_s")


def policy_digest(policy: GatePolicy) -> str:
    """A digest that differs between policies whose false ENABLEs may differ in frequency."""
    values = {name: value for name, value in asdict(policy).items() if name not in ONLY_STRICTER}
    return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:16]


def committed_results() -> Path:
    """The file of results that came with this version: in a wheel inside the package, else in the checkout."""
    package = Path(shadowspec.__file__).resolve().parent
    installed = package / "_simulation" / RESULTS.name
    return installed if installed.is_file() else package.parent / RESULTS


def simulated_rates(policies: Mapping[str, GatePolicy]) -> dict[str, SimulatedRate | None]:
    """The rate of each endpoint's policy by the committed results; None where none of them is of such a policy.

    Raises:
        InputError: the file of results cannot be read.
    """
    results = read_results(committed_results())
    return {name: rate_of(policy, results) for name, policy in policies.items()}


def rate_of(policy: GatePolicy, results: Mapping[str, WorldResult]) -> SimulatedRate | None:
    """The rate over every world in which some ENABLE is wrong, and whose policy is no laxer than this one."""
    digest = policy_digest(policy)
    world_results = [
        result
        for name, result in results.items()
        if (world := WORLDS.get(name)) is not None
        and world.kind == "null"
        and result.repetitions
        and policy_digest(world.policy) == digest
        and all(getattr(world.policy, parameter) <= getattr(policy, parameter) for parameter in ONLY_STRICTER)
    ]
    if not world_results:
        return None
    worst = max(world_results, key=lambda result: result.false_enables / result.repetitions)
    num_false, total = (
        sum(result.false_enables for result in world_results),
        sum(result.repetitions for result in world_results),
    )
    return SimulatedRate(
        num_false=num_false,
        num_repetitions=total,
        upper=share(num_false, total).upper,
        alpha=policy.alpha,
        num_worlds=len(world_results),
        num_outdated=sum(result.definition != definition_of(WORLDS[result.name]) for result in world_results),
        worst_world=WORLDS[worst.name].title,
        worst_rate=worst.false_enables / worst.repetitions,
    )
