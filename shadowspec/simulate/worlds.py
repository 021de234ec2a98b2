"""The simulated worlds of the gate: the truth of each, and the verdicts that would be wrong there."""

from __future__ import annotations

import math
from dataclasses import replace

from shadowspec.gate.policy import GatePolicy
from shadowspec.simulate.effects import SLOWED_LOG, Effects
from shadowspec.simulate.traffic import Arrivals
from shadowspec.simulate.world import (
    ALONE,
    BOUNDARY,
    EVERYWHERE,
    FleetWorld,
    ManyEndpointsWorld,
    Phase,
    SpreadWorld,
    SteeredWorld,
    Weather,
    World,
)

FASTER = math.log(1.3)
_BEYOND_NOISE = 0.10635315944655671  # share of slowed requests of which noise explains all but 10%
_FIRST_ARM = math.log(1.15)  # by how much the first arm of a block is slower, where it is


def _boundary(name: str, title: str, effects: Effects, **changes: object) -> World:
    """A world on the boundary of the speedup test: neither ENABLE nor DISABLE (for slowness) is right."""
    world = World(
        name, title, "null", effects=effects, wrong_to_enable=EVERYWHERE, wrong_to_disable=EVERYWHERE, reads="speedup"
    )
    return replace(world, **changes)  # type: ignore[arg-type]


def _make_policy(hypotheses: int) -> GatePolicy:
    """A policy for this number of hypotheses, each of which gets its part of alpha."""
    return replace(ALONE, max_hypotheses=hypotheses)


DECLARED = _make_policy(GatePolicy().max_hypotheses)  # an endpoint with as many hypotheses as it has by default
MARGIN = Effects(log_speedup=BOUNDARY)

NULL_WORLDS = (
    World(
        "a_a",
        "A/A: both arms are the same",
        "null",
        effects=Effects(log_speedup=0.0),
        wrong_to_enable=EVERYWHERE,
        reads="speedup",
    ),
    _boundary("margin", "independent requests, speedup exactly at the margin", MARGIN),
    _boundary(
        "session_correlation",
        "sessions of 4 requests on average that span blocks, correlation .3 within a session",
        replace(MARGIN, noise_sd=0.1, session_sd=0.1 * math.sqrt(0.3 / 0.7)),
        arrivals=Arrivals(num_sessions=900, gap_s=90.0, mean_extra=3.0, think_s=300.0),
    ),
    _boundary("block_shocks", "a shock common to each block", replace(MARGIN, block_sd=0.1, noise_sd=0.08)),
    _boundary(
        "low_traffic",
        "a request or four every half hour; slower when busy, faster when quiet",
        replace(MARGIN, log_speedup=BOUNDARY + 0.2, busy_log=BOUNDARY - 0.05, noise_sd=0.08),
        arrivals=Arrivals(num_sessions=800, busy_every_s=1_800.0),
    ),
    _boundary(
        "daily_cycle",
        "busy days and quiet nights, faster at night: ENABLE needs a whole week",
        replace(MARGIN, daily_log=0.1),
        arrivals=Arrivals(num_sessions=1_500, gap_s=9.0 * 86_400.0 / 1_500, has_days=True),
        policy=replace(ALONE, min_span_s=GatePolicy().min_span_s),
    ),
    World(
        "session_length",
        "short sessions accept much, long ones little; acceptance exactly at the floor",
        "null",
        arrivals=Arrivals(num_sessions=1_200, gap_s=60.0, lengths=(1, 4), think_s=120.0),
        effects=Effects(log_speedup=math.log(1.5), acceptance_of_length=((1, 0.8), (4, 0.3))),
        wrong_to_enable=EVERYWHERE,
        wrong_to_disable=EVERYWHERE,
        reads="acceptance",
    ),
    _boundary(
        "rare_slowdowns",
        "3% of requests take ten times as long, the others make up for it",
        replace(MARGIN, slowed=0.03, slowed_log=-math.log(10.0), noise_sd=0.08),
    ),
    _boundary(
        "retries",
        "8% of requests are answered at the speculative server's third attempt; with the time lost, at the margin",
        replace(MARGIN, slowed=0.08, slowed_log=-math.log(4.0), noise_sd=0.08, is_retried=True),
    ),
    World(
        "three_candidates",
        "three candidates like the baseline; whichever arm runs first in a block is 15% slower",
        "null",
        effects=Effects(log_speedup=0.0, noise_sd=0.06, num_candidates=3, candidate=1, first_arm_log=_FIRST_ARM),
        wrong_to_enable=EVERYWHERE,
        reads="speedup",
    ),
    *(
        World(
            f"carry_over_{percent}",
            f"A/A, but the baseline is {percent}% slower where it runs right after speculation",
            "null",
            effects=Effects(log_speedup=0.0, carry_log=math.log1p(percent / 100.0)),
            wrong_to_enable=EVERYWHERE,
        )
        for percent in (12, 20)
    ),
    _boundary("heavy_tails", "log speedups with two degrees of freedom", replace(MARGIN, noise_sd=0.06, noise_df=2.0)),
    _boundary(
        "ar1_quarter",
        "blocks follow each other, AR(1) .25",
        replace(MARGIN, block_sd=0.12, block_phi=0.25, noise_sd=0.05),
        may_be_dependent=True,
    ),
    _boundary(
        "ar1_half",
        "blocks follow each other, AR(1) .5",
        replace(MARGIN, block_sd=0.12, block_phi=0.5, noise_sd=0.05),
        may_be_dependent=True,
    ),
    _boundary(
        "ar1_nine",
        "blocks follow each other, AR(1) .9",
        replace(MARGIN, block_sd=0.12, block_phi=0.9, noise_sd=0.05),
        may_be_dependent=True,
    ),
    *(
        _boundary(
            f"slow_component_{share}",
            f"a slow component, AR(1) .98, has {share}% of the variance of blocks",
            replace(MARGIN, block_sd=block_sd, block_phi=0.98, noise_sd=noise_sd),
            may_be_dependent=True,
            tolerance=2.0,
        )
        for share, block_sd, noise_sd in ((10, 0.0235, 0.149), (20, 0.035, 0.14))
    ),
    _boundary(
        "slow_component_days",
        "the same 20% over nine days, of which ENABLE needs seven",
        replace(MARGIN, block_sd=0.035, block_phi=0.98, noise_sd=0.14),
        arrivals=Arrivals(num_sessions=1_500, gap_s=9.0 * 86_400.0 / 1_500),
        policy=replace(ALONE, min_span_s=GatePolicy().min_span_s),
        may_be_dependent=True,
        tolerance=2.0,
    ),
    World(
        "slowed_blocks",
        "every tenth block is slowed as a whole: the slowed share exactly at its limit",
        "null",
        effects=Effects(log_speedup=FASTER, slowed=0.10, slowed_log=-math.log(1.25), slows_blocks=True, noise_sd=0.05),
        wrong_to_enable=EVERYWHERE,
        wrong_to_disable=EVERYWHERE,
        reads="tail",
    ),
    World(
        "slowed_beyond_noise",
        "1.3 times as fast with noise of .25; beyond that of pairs 10% are slowed, exactly at the limit",
        "null",
        arrivals=Arrivals(num_sessions=1_600),
        effects=Effects(log_speedup=FASTER, noise_sd=0.25, slowed=_BEYOND_NOISE, slowed_log=-1.0),
        wrong_to_enable=EVERYWHERE,
        wrong_to_disable=EVERYWHERE,
        reads="tail",
    ),
    World(
        "first_arm_15",
        "A/A, whichever arm runs first is 15% slower: the order slows requests, and speculation does not",
        "null",
        effects=Effects(log_speedup=0.0, noise_sd=0.08, first_arm_log=_FIRST_ARM),
        wrong_to_enable=EVERYWHERE,
    ),
    World(
        "biased_output",
        "sampled output biased by exactly the z bound",
        "null",
        effects=Effects(z=0.02),
        regime="high",
        wrong_to_enable=EVERYWHERE,
        wrong_to_disable=EVERYWHERE,
        reads="parity_sampled",
    ),
    World(
        "near_ties",
        "5% of greedy outputs differ where the baseline agrees with itself",
        "null",
        effects=Effects(differing=0.05),
        wrong_to_enable=EVERYWHERE,
        wrong_to_disable=EVERYWHERE,
        reads="parity_near_ties",
    ),
    World(
        "failures",
        "4% of the requests fail in an arm; with those at their worst the speedup is exactly at the margin",
        "null",
        effects=Effects(log_speedup=(BOUNDARY + 0.04 * math.log(2.0)) / 0.96, failed=0.04),
        wrong_to_enable=EVERYWHERE,
        wrong_to_disable=EVERYWHERE,
        reads="speedup",
    ),
    World(
        "shedding",
        "11% of the requests are slowed, and 40% of those shed before they are measured",
        "null",
        arrivals=Arrivals(num_sessions=1_600, shed=0.4 * 0.11),
        effects=Effects(log_speedup=FASTER, slowed=0.6 * 0.11 / (1.0 - 0.4 * 0.11), noise_sd=0.05),
        wrong_to_enable=EVERYWHERE,  # tallies of single tests leave lost requests out
    ),
    World(
        "equal_totals",
        "A/A with heavy tails where a lower total time must be proven; a proof of only that counts as a false ENABLE",
        "null",
        arrivals=Arrivals(num_sessions=2_000),
        effects=Effects(log_speedup=0.0, noise_sd=0.0, baseline_sd=1.5),
        policy=replace(ALONE, objective="both"),
        wrong_to_enable=EVERYWHERE,
        reads="total_time",
    ),
    _boundary(
        "eight_slices",
        "8 slices and their endpoint at the margin, family-wise",
        MARGIN,
        arrivals=Arrivals(num_sessions=2_400, num_slices=8, gap_s=30.0, concurrency=1),
        policy=_make_policy(9),
    ),
    _boundary(
        "twenty_slices",
        "20 slices that begin one after the other, and their endpoint, family-wise",
        MARGIN,
        arrivals=Arrivals(num_sessions=5_000, num_slices=20, gap_s=20.0, late_slice_s=1_800.0, concurrency=1),
        policy=_make_policy(21),
    ),
    World(
        "steered_sampling",
        "one slice faster, one slower, the endpoint exactly at the margin; the slices are decided first",
        "null",
        arrivals=Arrivals(num_sessions=2_000, num_slices=2, gap_s=30.0),
        effects=Effects(slices_log=(BOUNDARY + 0.12, BOUNDARY - 0.12), noise_sd=0.05),
        policy=_make_policy(3),
        wrong_to_enable=("", "prompt_class=s01"),
        wrong_to_disable=("", "prompt_class=s00"),
        reads="speedup",
    ),
    FleetWorld(
        "several_devices",
        "24 busy devices; every fifth block is slowed and takes five times as long to measure",
        "null",
        arrivals=Arrivals(num_sessions=480, gap_s=3.0),
        effects=Effects(
            log_speedup=BOUNDARY, slowed=0.2, slowed_log=-0.55, slows_blocks=True, noise_sd=0.05, acceptance=0.9
        ),
        policy=replace(ALONE, tail_margin=1.0, tail_share=0.25, cluster_idle_s=60.0),  # only speedup decides, and soon
        wrong_to_enable=EVERYWHERE,
        wrong_to_disable=EVERYWHERE,
        reads="speedup",
    ),
    World(
        "drift_down",
        "at the margin at first, slower from the hundredth block on",
        "null",
        effects=Effects(log_speedup=BOUNDARY, change_block=100, log_speedup_later=math.log(0.95)),
        wrong_to_enable=EVERYWHERE,
        reads="speedup",
    ),
    World(
        "fingerprint_change",
        "1.3 times as fast until a new engine comes in the middle, which is exactly at the margin",
        "null",
        arrivals=Arrivals(num_sessions=1_600),
        effects=Effects(log_speedup=FASTER, change_block=200, log_speedup_later=BOUNDARY),
        wrong_to_enable=("new",),
        wrong_to_disable=EVERYWHERE,
        reads="speedup",
        releases=(200,),
    ),
    World(
        "twelve_releases",
        "a new engine every 110 blocks, and the slowed share of each exactly at its limit",
        "null",
        arrivals=Arrivals(num_sessions=5_280),
        effects=Effects(log_speedup=FASTER, slowed=0.10, slowed_log=-math.log(1.25), slows_blocks=True, noise_sd=0.05),
        wrong_to_enable=EVERYWHERE,
        wrong_to_disable=EVERYWHERE,
        releases=tuple(range(110, 1_320, 110)),
    ),
)

EFFECT_WORLDS = (
    World(
        "minimum_effect",
        "speedup 1.15, acceptance .55, 2% slowed: the smallest effect that the gate is planned for",
        "effect",
        arrivals=Arrivals(num_sessions=800),
        effects=Effects(log_speedup=math.log(1.15), acceptance=0.55, slowed=0.02),
        policy=DECLARED,
        wrong_to_disable=EVERYWHERE,
    ),
    *(
        World(
            f"speedup_130_slowed_{round(100 * slowed)}",
            f"speedup 1.3, {slowed:.0%} slowed",
            "effect",
            effects=Effects(log_speedup=FASTER, slowed=slowed),
            policy=DECLARED,
            wrong_to_disable=EVERYWHERE,
        )
        for slowed in (0.0, 0.02, 0.05)
    ),
    World(
        "short_outputs",
        "speedup 1.3, and sampled outputs of one or two tokens, each as likely as it should be",
        "effect",
        arrivals=Arrivals(num_sessions=3_000),
        effects=Effects(log_speedup=FASTER, output_tokens=(1, 2)),
        regime="high",
        wrong_to_disable=EVERYWHERE,
    ),
    World(
        "noisy_pairs",
        "speedup 1.15 with noise of .25, which slows a tenth of the requests by itself",
        "effect",
        arrivals=Arrivals(num_sessions=2_400),
        effects=Effects(log_speedup=math.log(1.15), noise_sd=0.25),
        wrong_to_disable=EVERYWHERE,
    ),
    World(
        "slow_first_arm",
        "speedup 1.3, and whichever arm runs first is 60% slower: a cold start does not make speculation slow",
        "effect",
        effects=Effects(log_speedup=FASTER, first_arm_log=math.log(1.6)),
        wrong_to_disable=EVERYWHERE,
    ),
    World(
        "no_speedup",
        "speedup 1.0: DISABLE is right",
        "effect",
        effects=Effects(log_speedup=0.0),
        policy=DECLARED,
        wrong_to_enable=EVERYWHERE,
    ),
    World(
        "slowdown",
        "speedup 0.9: DISABLE is right",
        "effect",
        arrivals=Arrivals(num_sessions=400),
        effects=Effects(log_speedup=math.log(0.9)),
        policy=DECLARED,
        wrong_to_enable=EVERYWHERE,
    ),
    World(
        "decay",
        "speedup 1.3 until the hundredth block, 1.0 from then on",
        "effect",
        arrivals=Arrivals(num_sessions=1_800),
        effects=Effects(log_speedup=FASTER, change_block=100, log_speedup_later=0.0),
        policy=DECLARED,
        wrong_to_enable=("new",),
    ),
    World(
        "decay_of_tail",
        "speedup 1.3 throughout, 2% slowed until the hundredth block and 25% from then on",
        "effect",
        arrivals=Arrivals(num_sessions=1_800),
        effects=Effects(log_speedup=FASTER, slowed=0.02, change_block=100, log_speedup_later=FASTER, slowed_later=0.25),
        policy=DECLARED,
        wrong_to_enable=("new",),
        must_alarm=True,
    ),
    World(
        "faults_after_enable",
        "a correct engine until block 150; every output a greedy fault and 25% slowed from then on",
        "effect",
        arrivals=Arrivals(num_sessions=1_000),
        effects=Effects(
            log_speedup=FASTER, change_block=150, log_speedup_later=FASTER, slowed_later=0.25, faulty_later=1.0
        ),
        policy=DECLARED,
        wrong_to_enable=("new",),
        must_alarm=True,
    ),
)

SIZE_WORLDS = tuple(
    World(
        f"sizes_{round(100 * speedup)}",
        f"sizes of single tests: speedup {speedup}, acceptance {acceptance}, {slowed:.0%} slowed",
        "size",
        arrivals=Arrivals(num_sessions=800),
        effects=Effects(log_speedup=math.log(speedup), acceptance=acceptance, slowed=slowed, slowed_log=SLOWED_LOG),
        policy=DECLARED,
        regime="high",
        wrong_to_disable=EVERYWHERE,
    )
    for speedup, acceptance, slowed in ((1.15, 0.55, 0.0), (1.3, 0.65, 0.02), (1.6, 0.75, 0.05))
)

_MAIN_SLOW = (math.log(0.85), *(math.log(1.25),) * 4)
_MIXED = (FASTER, *(math.log(1.25),) * 4)
_STEERED_CONSTANT = SteeredWorld(
    "steered_constant",
    "80% of the traffic at 1.3, four slices at 1.0 without a level",
    "null",
    policy=replace(_make_policy(2), min_rate=0.01),
    shares=(0.8, 0.05, 0.05, 0.05, 0.05),
    phases=(Phase("", (FASTER, 0.0, 0.0, 0.0, 0.0)),),
    wrong_to_enable=tuple(f"prompt_class=s{place:02d}" for place in range(1, 5)),
    wrong_to_disable=("",),
)
# Rates that follow the verdicts after ENABLE, through alarm and recovery.  No naive gate is asked in them.
STEERED_WORLDS = (
    _STEERED_CONSTANT,
    replace(
        _STEERED_CONSTANT,
        name="steered_open",
        title=_STEERED_CONSTANT.title.replace("without a level", "that are open for long"),
        policy=replace(_make_policy(6), min_rate=0.01),
    ),
    SteeredWorld(
        "steered_recovery",
        "all slow until the alarm, then all but the main slice recover: 0.99 as a whole, and no ENABLE is right",
        "null",
        policy=_make_policy(2),
        shares=(0.6, 0.1, 0.1, 0.1, 0.1),
        phases=(
            Phase("", _MIXED),
            Phase("all_tests_pass", (math.log(0.85), *(math.log(0.9),) * 4)),
            Phase("drift", _MAIN_SLOW),
        ),
        wrong_to_enable=("new",),
    ),
    SteeredWorld(
        "steered_decay",
        "after ENABLE only the main slice becomes slow: 0.99 as a whole, and an alarm is right",
        "effect",
        policy=_make_policy(2),
        shares=(0.6, 0.1, 0.1, 0.1, 0.1),
        phases=(Phase("", _MIXED), Phase("all_tests_pass", _MAIN_SLOW)),
    ),
)

# Production: one block of each hour, over a week and more.
PRODUCTION = GatePolicy(max_hypotheses=1)
_WEATHER_SD = 0.05  # of the slow component: a fifth of the variance of the mean of a block's four requests of sd .1


def _spread(name: str, title: str, effects: Effects, weather: Weather, **changes: object) -> SpreadWorld:
    world = SpreadWorld(
        name,
        title,
        "null",
        effects=effects,
        weather=weather,
        policy=PRODUCTION,
        wrong_to_enable=EVERYWHERE,
        wrong_to_disable=EVERYWHERE,
    )
    return replace(world, **changes)  # type: ignore[arg-type]


_CLUMPED = Effects(log_speedup=math.log(1.25))
SPREAD_WORLDS: tuple[SpreadWorld, ...] = (
    _spread("spread_margin", "independent requests, speedup exactly at the margin", MARGIN, Weather()),
    *(
        _spread(
            f"clumps_{slots}",
            f"a tenth of the time all is slowed, for {minutes} on average",
            _CLUMPED,
            Weather(clump_share=0.1, clump_slots=slots),
            **changes,
        )
        for slots, minutes, changes in (
            (2, "10 minutes", {}),
            (5, "25 minutes", {}),
            (40, "3.3 hours", {"is_beyond": True}),
            (108, "9 hours", {"is_beyond": True}),
        )
    ),
    _spread("slow_995", "a slow component, AR(1) .995 from five minutes to five minutes", MARGIN,
            Weather(slow_sd=_WEATHER_SD, kind="ar", phi=0.995), is_beyond=True),
    _spread("fractional_90", "fractional noise, H .9", MARGIN,
            Weather(slow_sd=_WEATHER_SD, kind="fractional", phi=0.9), is_beyond=True),
    _spread("reflected_walk", "a random walk, reflected at 10% up and down", MARGIN,
            Weather(slow_sd=_WEATHER_SD, kind="walk", phi=0.1), is_beyond=True),
    _spread("batch_drift", "a new level every 6.7 hours, sd .035", MARGIN,
            Weather(slow_sd=0.035, kind="batches", phi=80.0), is_beyond=True),
    _spread("spread_daily", "busy days and quiet nights, faster at night", replace(MARGIN, daily_log=0.1), Weather(),
            arrivals=Arrivals(has_days=True)),
)  # fmt: skip

_SLOWED_BLOCKS = next(world for world in NULL_WORLDS if world.name == "slowed_blocks")
MANY_ENDPOINTS = ManyEndpointsWorld(
    "many_endpoints",
    "50 endpoints: ten are 1.3 times as fast with 5% slowed, the others have the slowed share exactly at its limit",
    "endpoints",
    arrivals=Arrivals(num_sessions=500),
    effects=Effects(log_speedup=FASTER, slowed=0.05),
    no_gain=_SLOWED_BLOCKS.effects,
)

WORLDS: dict[str, World] = {
    world.name: world
    for world in (*NULL_WORLDS, *EFFECT_WORLDS, *SIZE_WORLDS, *STEERED_WORLDS, *SPREAD_WORLDS, MANY_ENDPOINTS)
}
QUICK_WORLDS = ("margin", "session_correlation", "low_traffic", "slowed_blocks", "session_length", "minimum_effect")
