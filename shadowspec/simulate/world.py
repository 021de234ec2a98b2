"""One world: its truth, and the verdicts that would be wrong there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shadowspec.gate.policy import GatePolicy
from shadowspec.simulate.effects import Effects
from shadowspec.simulate.traffic import Arrivals

# One hypothesis with all of alpha, most of which its first run uses: the level at which a fault shows soonest.
ALONE = GatePolicy(max_hypotheses=1, min_span_s=0.0, window_s=0.0)
BOUNDARY = math.log1p(ALONE.margin)

EVERYWHERE = None
SLOT_S = 300.0  # of the weather of worlds whose evidence is spread over time


@dataclass(frozen=True, slots=True)
class World:
    """One world.

    `kind` is "null" (ENABLE is wrong somewhere), "effect" (ENABLE is right; power and sizes), "size" (only the
    sizes of single tests are read) or "endpoints" (of many).
    `wrong_to_enable` and `wrong_to_disable` name the hypotheses for which the verdict is false, by slice key ("" the
    endpoint) or "new" for a run after the world's change; EVERYWHERE is all of them.  `reads` is the test whose null is
    true at its boundary.
    """

    name: str
    title: str
    kind: str
    arrivals: Arrivals = field(default_factory=Arrivals)
    effects: Effects = field(default_factory=Effects)
    policy: GatePolicy = ALONE
    regime: str = "greedy"
    wrong_to_enable: tuple[str, ...] | None = ()
    wrong_to_disable: tuple[str, ...] | None = ()
    reads: str = ""
    may_be_dependent: bool = False  # its units are no martingale: only the wait for independence protects
    tolerance: float = 1.2  # the upper end of the rate of false verdicts may be this multiple of alpha
    must_alarm: bool = False  # its ENABLEs are there to be ended
    releases: tuple[int, ...] = ()  # from each of these blocks on the next engine is measured

    @property
    def part(self) -> float:
        """The part of the repetitions asked for that is run of it: worlds that take long have fewer."""
        return 1.0

    @property
    def expects_alarm(self) -> bool:
        """Whether the truth changes so that an ENABLE should end."""
        return self.effects.change_block is not None

    def is_wrong_to_enable(self, slice_key: str, *, is_new: bool) -> bool:
        """Whether ENABLE would be false for this hypothesis."""
        return _names(self.wrong_to_enable, slice_key, is_new=is_new)

    def is_wrong_to_disable(self, slice_key: str, *, is_new: bool) -> bool:
        """Whether DISABLE would be false for this hypothesis."""
        return _names(self.wrong_to_disable, slice_key, is_new=is_new)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Devices that measure side by side, one block at a time each.

    A block takes `block_s`, and `slow_factor` times as long where its mean log speedup is below `slow_below`.  The
    gate looks after every `look_every` blocks.
    """

    num_devices: int = 24
    block_s: float = 1_000.0
    slow_factor: float = 5.0
    slow_below: float = 0.0
    look_every: int = 6


@dataclass(frozen=True, slots=True)
class FleetWorld(World):
    """A world that goes through a real store, written to by several devices as each of them finishes."""

    fleet: Fleet = field(default_factory=Fleet)


@dataclass(frozen=True, slots=True)
class ManyEndpointsWorld(World):
    """Endpoints with a gate each: `num_gains` have the world's effects, and the others `no_gain`.

    What each enables at its alpha stands beside what e-BH admits at `rate` over all of them.  Each gate looks
    `num_looks` times.
    """

    no_gain: Effects = field(default_factory=Effects)
    num_endpoints: int = 50
    num_gains: int = 10
    rate: float = 0.1
    num_looks: int = 4

    @property
    def part(self) -> float:
        return 0.02


@dataclass(frozen=True, slots=True)
class Weather:
    """What requests that come together share, by slots of SLOT_S of event time.

    A share `clump_share` of the time is in clumps of `clump_slots` slots on average, in which every request is slowed.
    The log speedup has a slow component of standard deviation `slow_sd`: `kind` "ar" is autoregressive with `phi` from
    slot to slot, "fractional" is fractional noise with Hurst exponent `phi`, "walk" a random walk reflected at twice
    `slow_sd` with steps of `phi` * `slow_sd`, and "batches" a level that is drawn anew every `phi` slots.
    """

    clump_share: float = 0.0
    clump_slots: float = 1.0
    slow_sd: float = 0.0
    kind: str = "ar"
    phi: float = 0.0


@dataclass(frozen=True, slots=True)
class SpreadWorld(World):
    """A world of production's length, whose evidence is spread over `days` by the tap's budget of blocks.

    `per_hour` requests of sessions of one come in an hour, on average; the gate looks every `look_every_h` hours.
    `is_beyond`: its requests share more than the windows cover, so that its rate is stated and no promise.
    """

    weather: Weather = field(default_factory=Weather)
    days: float = 10.0
    per_hour: float = 24.0
    look_every_h: float = 6.0
    is_beyond: bool = False

    @property
    def part(self) -> float:
        return 0.1


@dataclass(frozen=True, slots=True)
class Phase:
    """Mean log speedups by slice, from the look on at which the endpoint's reason is `begins_at` ("": the first)."""

    begins_at: str
    slices_log: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SteeredWorld(World):
    """A world whose sampling rates follow the verdicts, as the worker's do, and whose truth follows the endpoint's.

    `shares` are the slices' of the traffic, of `num_sessions`.  The gate looks after every `look_every` blocks.
    """

    shares: tuple[float, ...] = (1.0,)
    phases: tuple[Phase, ...] = ()
    num_sessions: int = 14_000
    look_every: int = 25

    @property
    def part(self) -> float:
        return 0.1

    @property
    def expects_alarm(self) -> bool:
        return any(phase.begins_at for phase in self.phases)


def _names(names: tuple[str, ...] | None, slice_key: str, *, is_new: bool) -> bool:
    return names is EVERYWHERE or ("new" if is_new else slice_key) in names
