"""The values that travel between packages: frozen, typed, free of I/O.

Counts are stored, ratios are formed in `shadowspec.metrics` alone.  Names are the serving field's own
(vLLM's where it has one).  Prompt text never enters a value of this module: a prompt is its token ids, and
those are kept out of every repr.
"""

from shadowspec.types.arrivals import ARRIVING, ArrivedRequest, ServedRequest
from shadowspec.types.audits import AcceptanceSums, AuditedRun, AuditedUnit, LoopSpan, ReplayedRecord, StoredAudit
from shadowspec.types.backfills import BackfilledBlock, BlockPlace
from shadowspec.types.block_times import BlockTime
from shadowspec.types.costs import BASELINE, SERVED_BACKEND, CostKey, Place, ProfiledCosts, StepCost
from shadowspec.types.evidence import EndpointRows, EvidenceSnapshot, Watermark, WatermarkHolder
from shadowspec.types.flags import NO_FLAGS, Contract, Intervention, OutputContract, RunFlags, Validity
from shadowspec.types.folding import Arrival, EndpointProgress, Fold, OpenBlock, OpenKey, SliceKey, Span, StoredEvidence
from shadowspec.types.live import (
    COUNTS,
    END_TO_END,
    FIRST_TOKEN,
    LATENCIES,
    PER_TOKEN,
    Buckets,
    FailedScrape,
    LiveCounts,
    LiveHour,
    LiveReplica,
    LiveScrape,
    LiveWindow,
)
from shadowspec.types.measurement import (
    Arm,
    ArmTiming,
    Block,
    BlockResult,
    Memory,
    PairedScore,
    Parity,
    Run,
    ServedRun,
    SpeculationCounts,
)
from shadowspec.types.overrides import FORCEABLE, Clearing, Override, OverrideRecord
from shadowspec.types.progress import Advance, FunnelKey, LedgerEntry, PartitionId, UnitMemory, WriteBatch, WriteOutcome
from shadowspec.types.records import FunnelCounter, StoredBlock, StoredRecord
from shadowspec.types.replay import ExpectedCounts
from shadowspec.types.requests import (
    LoggedResponse,
    RecordKey,
    SamplingParameters,
    SamplingRegime,
    ShadowPrompt,
    format_slice_key,
    parse_slice_key,
)
from shadowspec.types.rollouts import Rollout, Stage
from shadowspec.types.schedules import Delivery, DeliveryState, Period
from shadowspec.types.speculation import SUFFIX_OPTIONS, FingerprintedConfig, SpeculationConfig, VerifyRule
from shadowspec.types.twins import quickly
from shadowspec.types.verdicts import Decision, TestResult, Verdict

__all__ = [
    "ARRIVING",
    "BASELINE",
    "COUNTS",
    "END_TO_END",
    "FIRST_TOKEN",
    "FORCEABLE",
    "LATENCIES",
    "NO_FLAGS",
    "PER_TOKEN",
    "SERVED_BACKEND",
    "SUFFIX_OPTIONS",
    "AcceptanceSums",
    "Advance",
    "Arm",
    "ArmTiming",
    "Arrival",
    "ArrivedRequest",
    "AuditedRun",
    "AuditedUnit",
    "BackfilledBlock",
    "Block",
    "BlockPlace",
    "BlockResult",
    "BlockTime",
    "Buckets",
    "Clearing",
    "Contract",
    "CostKey",
    "Decision",
    "Delivery",
    "DeliveryState",
    "EndpointProgress",
    "EndpointRows",
    "EvidenceSnapshot",
    "ExpectedCounts",
    "FailedScrape",
    "FingerprintedConfig",
    "Fold",
    "FunnelCounter",
    "FunnelKey",
    "Intervention",
    "LedgerEntry",
    "LiveCounts",
    "LiveHour",
    "LiveReplica",
    "LiveScrape",
    "LiveWindow",
    "LoggedResponse",
    "LoopSpan",
    "Memory",
    "OpenBlock",
    "OpenKey",
    "OutputContract",
    "Override",
    "OverrideRecord",
    "PairedScore",
    "Parity",
    "PartitionId",
    "Period",
    "Place",
    "ProfiledCosts",
    "RecordKey",
    "ReplayedRecord",
    "Rollout",
    "Run",
    "RunFlags",
    "SamplingParameters",
    "SamplingRegime",
    "ServedRequest",
    "ServedRun",
    "ShadowPrompt",
    "SliceKey",
    "Span",
    "SpeculationConfig",
    "SpeculationCounts",
    "Stage",
    "StepCost",
    "StoredAudit",
    "StoredBlock",
    "StoredEvidence",
    "StoredRecord",
    "TestResult",
    "UnitMemory",
    "Validity",
    "Verdict",
    "VerifyRule",
    "Watermark",
    "WatermarkHolder",
    "WriteBatch",
    "WriteOutcome",
    "format_slice_key",
    "parse_slice_key",
    "quickly",
]
