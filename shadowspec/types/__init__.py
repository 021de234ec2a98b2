"""The values that travel between packages: frozen, typed, without I/O.

In: nothing.
Out: dataclasses and enumerations, and the documents in which decisions are stored.
Imports: errors.

Counts are stored; only `shadowspec.metrics` forms ratios.  Names are the serving field's (vLLM's where it has one).
Prompt text never enters a value of this module: a prompt is its token ids, and those are kept out of every repr.
"""

from shadowspec.types.audits import (
    AcceptanceSums,
    AuditedRun,
    AuditedUnit,
    ExpectedCounts,
    LoopSpan,
    ReplayedRecord,
    StoredAudit,
)
from shadowspec.types.block_memory import BlockMemory, Memory, ServedMemory
from shadowspec.types.consumed_records import (
    ARRIVING,
    ArrivedRequest,
    FunnelCounter,
    ServedRequest,
    StoredBlock,
    StoredRecord,
)
from shadowspec.types.costs import BASELINE, BlockTime, CostKey, Place, ProfiledCosts, StepCost
from shadowspec.types.evidence import (
    Arrival,
    EndpointProgress,
    EndpointRows,
    EvidenceSnapshot,
    Fold,
    OpenBlock,
    OpenKey,
    SliceKey,
    Span,
    StoredEvidence,
    Watermark,
    WatermarkHolder,
)
from shadowspec.types.flags import Contract, Intervention, OutputContract, RunFlags, Validity
from shadowspec.types.live_windows import (
    COMPUTE,
    COUNTS,
    END_TO_END,
    FIRST_TOKEN,
    LATENCIES,
    PER_TOKEN,
    QUEUE,
    Buckets,
    FailedScrape,
    LiveCounts,
    LiveHour,
    LiveReplica,
    LiveScrape,
    LiveWindow,
    Pool,
)
from shadowspec.types.measurement import (
    Arm,
    ArmTiming,
    Block,
    BlockResult,
    Evaluation,
    PairedScore,
    Parity,
    Run,
    ServedRun,
    SpeculationCounts,
)
from shadowspec.types.progress import (
    Advance,
    BackfilledBlock,
    BlockPlace,
    FunnelKey,
    LedgerEntry,
    PartitionId,
    SessionRate,
    UnitMemory,
    WriteBatch,
    WriteOutcome,
)
from shadowspec.types.reason_codes import ReasonCode
from shadowspec.types.requests import (
    ENDPOINT_HEADER,
    NO_SLICE,
    OUTPUT_CONSTRAINT,
    SLICE_HEADER,
    UNCONSTRAINED,
    ConstraintForm,
    ConstraintKind,
    LoggedResponse,
    OutputConstraint,
    RecordKey,
    SamplingParameters,
    SamplingRegime,
    ShadowPrompt,
    format_slice_key,
    parse_slice_key,
    slice_tag,
)
from shadowspec.types.rollouts import FORCEABLE, Clearing, Override, OverrideRecord, RoleKind, Rollout, Stage
from shadowspec.types.schedules import Delivery, DeliveryState, Period
from shadowspec.types.speculation import (
    FIRST_OPTIONS,
    FIRST_SUFFIX_OPTIONS,
    PREFIX_CACHE,
    SERVED_BACKEND,
    SUFFIX_OPTIONS,
    DraftSampling,
    FingerprintedConfig,
    LogprobsMode,
    NgramOccurrence,
    SpeculationConfig,
    VerifyRule,
    fingerprint_config,
)
from shadowspec.types.verdicts import (
    BettingFigures,
    Composition,
    Decision,
    Dependence,
    DetectorFigures,
    DriftFigures,
    EvidenceSummary,
    Figure,
    LevelGraph,
    MixChange,
    OverriddenVerdict,
    RateChange,
    Reservations,
    SliceCover,
    SliceState,
    Supersession,
    TestResult,
    TestState,
    Trial,
    Verdict,
    Watch,
    WatchedMean,
    WeightedBounds,
)
