"""Values as the store may be given them, drawn over their whole range."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypeVar

from hypothesis import strategies as st

from shadowspec.types import (
    Arm,
    ArmOrder,
    ArmTiming,
    BettingFigures,
    Block,
    BlockResult,
    Composition,
    Contract,
    Decision,
    Dependence,
    DetectorFigures,
    DraftSampling,
    DriftFigures,
    EvidenceSummary,
    FingerprintedConfig,
    FunnelCounter,
    Intervention,
    LevelGraph,
    Memory,
    MixChange,
    NgramOccurrence,
    PairedScore,
    Parity,
    RateChange,
    RecordKey,
    Run,
    RunFlags,
    ServedMemory,
    ServedRun,
    SliceCounts,
    SliceCover,
    SliceState,
    SpeculationConfig,
    SpeculationCounts,
    StoredRecord,
    Supersession,
    TestResult,
    TestState,
    Trial,
    Validity,
    Verdict,
    VerifyRule,
    Watch,
    WatchedMean,
    WeightedBounds,
    failures,
)

T = TypeVar("T")

FAILURE_NAMES = (
    *(failures.LOOKED_AT, failures.EARLY_KNOWN, failures.EARLY_REJECTIONS, failures.BEYOND_DRAFT_CONTEXT),
    failures.DRAFT_CONTEXT_UNKNOWN,
    *(failures.validity_name(contract, arm, validity) for contract in Contract for arm in Arm for validity in Validity),
    *(intervention.value for intervention in Intervention),
    *(failures.INTERVENED_DRAFTS, failures.INTERVENED_DRAFT_TOKENS, failures.INTERVENED_ACCEPTED_TOKENS),
    failures.INTERVENED_FIRST_ACCEPTED_TOKENS,
)

# Postgres text holds neither NUL nor lone surrogates; the store refuses them (tested apart).
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
NAMES = TEXT.filter(bool)
COUNT = st.integers(0, 2**63 - 1)
TOKENS = st.integers(0, 2**40)  # what rollups sum up
REAL = st.floats(allow_nan=False)
MILLISECONDS = st.just(0.0) | st.floats(1e-6, 1e9)
RATES = st.floats(1e-3, 1)
FIGURE = st.floats(allow_nan=False, allow_infinity=False)
FIGURES = st.dictionaries(TEXT, st.none() | TEXT | st.integers() | FIGURE)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(hours=-8))])
TIMES = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=ZONES)


def optional(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.none() | strategy


SERVED = st.builds(ServedRun, TEXT, optional(COUNT), optional(COUNT), COUNT)
KEYS = st.builds(
    RecordKey,
    NAMES,
    st.integers(0, 2**31),
    st.integers(0, 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**31),
)
CONFIGS = st.builds(
    SpeculationConfig,
    name=TEXT,
    target=TEXT,
    draft=optional(TEXT),
    proposer=TEXT,
    num_speculative_tokens=COUNT,
    verify_rule=st.sampled_from(VerifyRule),
    backend=TEXT,
    ngram_min=COUNT,
    ngram_max=COUNT,
    suffix_decoding_max_tree_depth=COUNT,
    suffix_decoding_max_spec_factor=RATES,
    suffix_decoding_min_token_prob=RATES,
    suffix_memory_tokens=COUNT,
    draft_confidence_threshold=RATES,
    speculative_config=optional(TEXT),
    ngram_occurrence=st.sampled_from(NgramOccurrence),
    draft_sampling=st.sampled_from(DraftSampling),
    drafts_within_limit=st.booleans(),
)
FINGERPRINTED = st.builds(
    FingerprintedConfig,
    config=CONFIGS,
    engine=TEXT,
    device=TEXT,
    dtype=TEXT,
    details=st.dictionaries(TEXT, TEXT, max_size=3),
    fingerprint=NAMES,
)
MEMORY = st.one_of(
    st.builds(Memory, *[COUNT] * 5, kv_tokens_per_request=st.none() | REAL),
    st.builds(
        ServedMemory, COUNT, COUNT, st.none() | REAL, st.none() | REAL, source=st.sampled_from(("vllm", "sglang"))
    ),
)
TIMINGS = st.builds(ArmTiming, *[MILLISECONDS] * 6, TOKENS, optional(MILLISECONDS))
PARITY = st.builds(
    Parity, optional(COUNT), optional(REAL), optional(st.booleans()), *[optional(REAL), optional(COUNT)] * 2
)


def records(keys: st.SearchStrategy[RecordKey] = KEYS) -> st.SearchStrategy[StoredRecord]:
    return st.builds(
        StoredRecord,
        key=keys,
        counter=st.sampled_from(FunnelCounter),
        reason=optional(TEXT),
        endpoint=optional(st.sampled_from(["chat", "sql", "code"])),
        slice_key=optional(TEXT),
        labels=st.dictionaries(TEXT, TEXT, max_size=3),
        event_time=optional(TIMES),
        session_hash=optional(TEXT),
        user_hash=optional(TEXT),
        request_id_hash=optional(TEXT),
        unit_key=optional(TEXT),
        session_position=optional(COUNT),
        sampling_rate=optional(RATES),
        num_prompt_tokens=optional(COUNT),
    )


@st.composite
def counts(draw: st.DrawFn) -> SpeculationCounts:
    depth = draw(st.integers(1, 8))
    return SpeculationCounts(
        num_drafts=draw(TOKENS),
        num_draft_tokens=draw(TOKENS),
        num_accepted_tokens=draw(TOKENS),
        num_accepted_tokens_per_pos=tuple(draw(st.lists(TOKENS, min_size=depth, max_size=depth))),
        acceptance_histogram=tuple(draw(st.lists(TOKENS, min_size=depth + 1, max_size=depth + 1))),
        num_output_tokens=draw(TOKENS),
        num_prompt_tokens=draw(TOKENS),
        num_plain_steps=draw(TOKENS),
        num_cut_steps=draw(TOKENS),
        num_cut_draft_tokens=draw(TOKENS),
        num_cut_accepted_tokens=draw(TOKENS),
    )


FLAGS = st.builds(
    RunFlags,
    is_early_rejection=optional(st.booleans()),
    is_beyond_draft_context=optional(st.booleans()),
    contract=optional(st.sampled_from(Contract)),
    baseline_validity=optional(st.sampled_from(Validity)),
    speculative_validity=optional(st.sampled_from(Validity)),
    intervention=optional(st.sampled_from(Intervention)),
)
ORDERS = st.builds(
    ArmOrder,
    baseline_ran_after=optional(st.sampled_from(Arm)),
    speculative_ran_after=optional(st.sampled_from(Arm)),
    baseline_repeat_ms=optional(RATES),
).map(lambda order: None if order == ArmOrder() else order)
SCORES = st.builds(PairedScore, baseline=st.none() | RATES, speculative=st.none() | RATES)


@st.composite
def measured_blocks(draw: st.DrawFn) -> tuple[list[FingerprintedConfig], list[StoredRecord], BlockResult]:
    """A block with the configs that it was measured with and the records of its requests."""
    configs = draw(st.lists(FINGERPRINTED, min_size=1, max_size=2, unique_by=lambda each: each.fingerprint))
    drawn_records = draw(st.lists(records(), min_size=1, max_size=3, unique_by=lambda record: record.key))
    block = Block(
        block_id=draw(NAMES),
        sequence=draw(COUNT),
        endpoint=draw(st.sampled_from(["chat", "sql"])),
        slice_key=draw(TEXT),
        concurrency=draw(COUNT),
        requests=(),
        fillers=(),
        first_arm=draw(st.sampled_from(Arm)),
    )
    runs = tuple(
        Run(
            key=record.key,
            fingerprint=config.fingerprint,
            block_id=block.block_id,
            failure=draw(optional(TEXT)),
            counts=draw(optional(counts())),
            baseline=draw(optional(TIMINGS)),
            speculative=draw(optional(TIMINGS)),
            parity=draw(optional(PARITY)),
            is_repetition_loop=draw(st.booleans()),
            finish_reason=draw(optional(TEXT)),
            order=draw(ORDERS),
            scores=draw(st.dictionaries(TEXT, optional(SCORES), max_size=2)),
            flags=draw(FLAGS),
            served=draw(optional(SERVED)),
        )
        for record in drawn_records
        for config in configs
    )
    memory = {config.fingerprint: draw(MEMORY) for config in configs}
    return configs, drawn_records, BlockResult(block, draw(TIMES), runs, memory, draw(st.integers(0, 9)))


TESTS = st.builds(
    TestResult,
    name=TEXT,
    outcome=st.sampled_from(["pass", "fail", "open"]),
    estimate=optional(REAL),
    lower=optional(REAL),
    upper=optional(REAL),
    threshold=optional(REAL),
    alpha=REAL,
    unit=TEXT,
    num_units=COUNT,
    min_units=COUNT,
    units_needed=optional(COUNT),
    is_required=st.booleans(),
    dependence=optional(
        st.builds(Dependence, optional(FIGURE), optional(st.builds(TestState, COUNT, COUNT)), optional(FIGURE))
    ),
    betting=optional(
        st.builds(
            BettingFigures, optional(FIGURE), FIGURE, FIGURE, FIGURE, FIGURE, COUNT, st.booleans(), optional(TEXT)
        )
    ),
    figures=FIGURES,
)


def _by_mean(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[dict[str, T]]:
    return st.dictionaries(st.sampled_from(["speedup", "acceptance"]), strategy)


COMPOSITIONS = st.builds(
    Composition,
    is_named=st.booleans(),
    cover=optional(st.builds(SliceCover, optional(FIGURE), st.booleans(), optional(st.sampled_from(Verdict)))),
    bounds=_by_mean(st.builds(WeightedBounds, FIGURE, FIGURE, FIGURE)),
    mix_reference=optional(st.dictionaries(TEXT, st.builds(SliceState, *[FIGURE] * 6))),
    mix_change=optional(
        st.builds(MixChange, FIGURE, st.booleans(), _by_mean(st.builds(RateChange, FIGURE, FIGURE, TEXT)))
    ),
)
_PLACES = (COUNT, COUNT, COUNT, optional(TEXT))  # where a run begins, and what it supersedes
RUNS = st.builds(
    Trial,
    FIGURE,
    optional(FIGURE),
    st.builds(LevelGraph, FIGURE, COUNT, COUNT),
    st.integers(0, 30),
    *_PLACES,
    num_before=COUNT,
    in_slot=st.booleans(),
    has_passed=st.booleans(),
)
# What the store keeps of a decision beside its columns.
BESIDE_COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "engine": NAMES,
    "serving_engine": optional(TEXT),
    "run": optional(RUNS),
    "frozen_parameters": optional(FIGURES),
    "evidence": st.builds(
        EvidenceSummary,
        COUNT,
        COUNT,
        st.builds(SliceCounts, *[COUNT] * 8),
        COUNT,
        COUNT,
        COUNT,
        optional(FIGURE),
        optional(FIGURE),
        FIGURE,
        optional(TIMES),
        optional(TIMES),
        optional(TEXT),
    ),
    "verdict_since": optional(TIMES),
    "watch": optional(st.builds(Watch, COUNT, COUNT, st.dictionaries(TEXT, st.builds(WatchedMean, FIGURE, FIGURE)))),
    "drift": optional(
        st.builds(
            DriftFigures,
            optional(FIGURE),
            optional(TEXT),
            _by_mean(st.builds(DetectorFigures, COUNT, optional(FIGURE))),
        )
    ),
    "ends_run": st.booleans(),
    "recording_only": st.booleans(),
    "supersession": optional(st.builds(Supersession, TEXT, st.sampled_from(Verdict))),
    "composition": optional(COMPOSITIONS),
}


def decisions(config: FingerprintedConfig) -> st.SearchStrategy[Decision]:
    return st.builds(
        Decision,
        endpoint=st.sampled_from(["chat", "sql"]),
        slice_key=st.sampled_from(["", "prompt_class=code"]),
        concurrency=st.sampled_from([1, 4]),
        config=st.just(config.config),
        fingerprint=st.just(config.fingerprint),
        verdict=st.sampled_from(Verdict),
        reason_code=TEXT,
        reason=TEXT,
        tests=st.lists(TESTS, max_size=3).map(tuple),
        num_clusters=COUNT,
        num_blocks=COUNT,
        clusters_needed=optional(COUNT),
        decided_at=TIMES,
        **BESIDE_COLUMNS,
    )
