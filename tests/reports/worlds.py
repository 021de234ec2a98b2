"""Seeded traffic for report tests: a typed source in memory, filled as the pipeline would fill the store."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from shadowspec.store import Traffic
from shadowspec.types import (
    AcceptanceSums,
    Arm,
    ArmTiming,
    CostKey,
    Decision,
    FingerprintedConfig,
    Fold,
    FunnelCounter,
    LiveHour,
    LoopSpan,
    Memory,
    OverrideRecord,
    Parity,
    ProfiledCosts,
    RecordKey,
    Run,
    SpeculationConfig,
    SpeculationCounts,
    StoredAudit,
    StoredBlock,
    StoredRecord,
    VerifyRule,
    Watermark,
)

NOW = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
START = NOW - timedelta(hours=2)
MIB = 1024 * 1024


@dataclass
class MemorySource:
    """Rows by endpoint; satisfies `ReportSource`."""

    rows: dict[str, list[StoredRecord]] = field(default_factory=dict)
    unread: list[StoredRecord] = field(default_factory=list)
    measured_blocks: dict[str, list[StoredBlock]] = field(default_factory=dict)
    measured_runs: dict[str, list[Run]] = field(default_factory=dict)
    configs: dict[str, FingerprintedConfig] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    folded: dict[str, list[Fold]] = field(default_factory=dict)  # what the decisions rest on
    orders: list[OverrideRecord] = field(default_factory=list)
    profiles: dict[CostKey, ProfiledCosts] = field(default_factory=dict)
    replayed: dict[str, list[AcceptanceSums]] = field(default_factory=dict)
    replayed_with: dict[str, FingerprintedConfig] = field(default_factory=dict)
    looped: dict[str, list[AcceptanceSums]] = field(default_factory=dict)
    audits: dict[str, list[StoredAudit]] = field(default_factory=dict)
    hours: dict[str, list[LiveHour]] = field(default_factory=dict)

    def live_hours(self, endpoint: str, since: datetime, until: datetime) -> Sequence[LiveHour]:
        return [each for each in self.hours.get(endpoint, []) if since <= each.hour < until]

    def endpoints(self) -> Sequence[str]:
        return sorted({*self.rows, *self.measured_blocks})

    def records(self, endpoint: str) -> Sequence[StoredRecord]:
        return self.rows.get(endpoint, [])

    def blocks(self, endpoint: str) -> Sequence[StoredBlock]:
        return self.measured_blocks.get(endpoint, [])

    def runs(self, endpoint: str) -> Sequence[Run]:
        return self.measured_runs.get(endpoint, [])

    def watermark(self, endpoint: str) -> Watermark:
        """Everything was read."""
        del endpoint
        return Watermark(NOW, is_ended=True)

    def folds(self, endpoint: str) -> Sequence[Fold]:
        return self.folded.get(endpoint, [])

    def fingerprints(self) -> dict[str, FingerprintedConfig]:
        return self.configs

    def costs(self) -> dict[CostKey, ProfiledCosts]:
        return self.profiles

    def replay_configs(self) -> dict[str, FingerprintedConfig]:
        return self.replayed_with

    def replay_sums(self, endpoints: Collection[str]) -> dict[str, list[AcceptanceSums]]:
        return {name: self.replayed.get(name, []) for name in endpoints}

    def loop_sums(self, spans: Collection[LoopSpan]) -> dict[str, list[AcceptanceSums]]:
        return {
            span.endpoint: [
                sums
                for sums in self.looped.get(span.endpoint, [])
                if sums.fingerprint in span.fingerprints
                if span.since <= sums.first_event and sums.last_event <= span.until
            ]
            for span in spans
        }

    def audit_states(self, endpoints: Collection[str]) -> dict[str, list[StoredAudit]]:
        return {name: self.audits.get(name, []) for name in endpoints}

    def latest_decisions(self) -> Sequence[Decision]:
        return self.decisions

    def traffic(self, endpoint: str) -> Sequence[Traffic]:
        block_of = {block.block_id: block for block in self.blocks(endpoint)}
        times: dict[tuple[str, str, int], list[datetime]] = defaultdict(list)
        for run in self.runs(endpoint):
            block = block_of[run.block_id]
            times[block.slice_key, run.fingerprint, block.concurrency].append(block.started_at)
        return [Traffic(*key, float(len(each)), min(each), max(each)) for key, each in times.items()]

    def overrides(self) -> Sequence[OverrideRecord]:
        return self.orders

    def funnel(self) -> dict[tuple[str | None, FunnelCounter, str | None], int]:
        every = [record for records in self.rows.values() for record in records] + self.unread
        return dict(Counter((record.endpoint, record.counter, record.reason) for record in every))


def config(name: str = "draft-k4", k: int = 4, **changed: str) -> FingerprintedConfig:
    speculation = SpeculationConfig(
        name=name,
        target="models/target-8.7m",
        draft="models/draft-0.7m",
        proposer="draft_model",
        num_speculative_tokens=k,
        verify_rule=VerifyRule.REJECTION,
    )
    details = {
        "target_weights": "9f1c22ab07de4471",
        "draft_weights": "51aa03cc9d2be810",
        "tokenizer": "77e0c1d2a3b4c5d6",
    }
    values = {"engine": "shadowspec-torch/0.1.0 torch/2.13.0", "device": "cpu", "dtype": "float32", **changed}
    return FingerprintedConfig(config=speculation, details=details, fingerprint=f"{name}-0f3a9c5d7e1b2846", **values)


def counts_of(rng: random.Random, rate: float, num_output_tokens: int, k: int = 4) -> SpeculationCounts:
    """Counters of one run whose drafted tokens are each accepted with probability `rate`."""
    histogram, emitted, drafts = [0] * (k + 1), 1, 0
    while emitted < num_output_tokens:
        accepted = 0
        while accepted < k and rng.random() < rate:
            accepted += 1
        accepted = min(accepted, num_output_tokens - emitted)
        is_cut = emitted + accepted >= num_output_tokens
        histogram[accepted] += 1
        emitted += accepted + (0 if is_cut else 1)
        drafts += 1
    cut = 1 + drafts + sum(j * n for j, n in enumerate(histogram)) - num_output_tokens
    return SpeculationCounts(
        num_drafts=drafts,
        num_draft_tokens=drafts * k,
        num_accepted_tokens=sum(j * n for j, n in enumerate(histogram)),
        num_accepted_tokens_per_pos=tuple(sum(histogram[i + 1 :]) for i in range(k)),
        acceptance_histogram=tuple(histogram),
        num_output_tokens=num_output_tokens,
        num_prompt_tokens=90,
        num_cut_steps=cut,
    )


def add_slice(
    source: MemorySource,
    endpoint: str,
    slice_key: str,
    *,
    num_blocks: int,
    speedup: float,
    rate: float,
    seed: int = 1,
    n_max: int = 4,
    fingerprinted: FingerprintedConfig | None = None,
    sampling_rate: float = 1.0,
    failures: int = 0,
) -> None:
    """Measured blocks of one slice, with as many sampled-out records, at a true speedup and acceptance."""
    rng = random.Random(seed)
    candidate = fingerprinted or config()
    source.configs[candidate.fingerprint] = candidate
    records = source.rows.setdefault(endpoint, [])
    blocks = source.measured_blocks.setdefault(endpoint, [])
    runs = source.measured_runs.setdefault(endpoint, [])
    labels = dict(part.split("=") for part in slice_key.split(","))
    is_greedy = labels.get("sampling_regime") == "greedy"
    for index in range(num_blocks):
        sequence = len(blocks)
        block_id = f"{endpoint}-{slice_key}-{sequence}"
        number = n_max if index < num_blocks - 1 else max(1, n_max - 1)
        queue_ms = 0.0
        for place in range(number):
            key = RecordKey(f"file-{endpoint}", 0, 2 * len(records) + 1)
            event = START + timedelta(seconds=12 * sequence + place)
            record = StoredRecord(
                key=key,
                counter=FunnelCounter.MEASURED,
                endpoint=endpoint,
                slice_key=slice_key,
                labels=labels,
                event_time=event,
                session_hash=f"{block_id}-{place}",
                session_position=1,
                sampling_rate=sampling_rate,
                num_prompt_tokens=90,
            )
            skipped = StoredRecord(
                key=RecordKey(key.source, 0, key.offset + 1),
                counter=FunnelCounter.SAMPLED_OUT,
                reason="not_timed",
                endpoint=endpoint,
                slice_key=slice_key,
                labels=labels,
                event_time=event + timedelta(seconds=1),
                session_hash=record.session_hash,
                session_position=2,
                sampling_rate=sampling_rate,
            )
            if len(runs) < failures:
                record = replace(record, counter=FunnelCounter.FAILED, reason="out_of_memory")
                runs.append(Run(key, candidate.fingerprint, block_id, failure="out_of_memory"))
            else:
                runs.append(_run(rng, key, candidate, block_id, speedup, rate, queue_ms, is_greedy))
            records.extend((record, skipped))
        memory = Memory(112 * MIB, 131 * MIB + rng.randrange(MIB), 20_480, 2 * MIB, 1_536)
        blocks.append(
            StoredBlock(
                block_id=block_id,
                sequence=sequence,
                endpoint=endpoint,
                slice_key=slice_key,
                concurrency=n_max,
                n_max=n_max,
                first_arm=rng.choice((Arm.BASELINE, Arm.SPECULATIVE)),
                started_at=START + timedelta(seconds=20 * sequence),
                memory={candidate.fingerprint: memory},
            )
        )


def _run(
    rng: random.Random,
    key: RecordKey,
    candidate: FingerprintedConfig,
    block_id: str,
    speedup: float,
    rate: float,
    queue_ms: float,
    is_greedy: bool,
) -> Run:
    tokens = rng.randrange(24, 49)
    prefill, per_token = rng.lognormvariate(3.4, 0.25), rng.lognormvariate(2.6, 0.15)
    decode = per_token * (tokens - 1)
    value = speedup * rng.lognormvariate(0.0, 0.14)
    spec_decode = max(1.0, (prefill + decode) / value - prefill * 1.08)
    diverges = is_greedy and rng.random() < 0.02
    return Run(
        key=key,
        fingerprint=candidate.fingerprint,
        block_id=block_id,
        counts=counts_of(rng, rate, tokens, candidate.config.num_speculative_tokens),
        baseline=ArmTiming(queue_ms, prefill, decode, num_output_tokens=tokens),
        speculative=ArmTiming(
            queue_ms,
            prefill * 1.08,
            spec_decode,
            draft_ms=spec_decode * 0.27,
            verify_ms=spec_decode * 0.64,
            other_ms=spec_decode * 0.09,
            num_output_tokens=tokens,
        ),
        parity=Parity(
            first_divergence=11 if diverges else None,
            divergence_gap=4e-4 if diverges else None,
            rerun_differs=True if diverges else None,
        )
        if is_greedy
        else Parity(
            z_sum=rng.gauss(0, 0.4 * tokens**0.5),
            z_tokens=tokens,
            baseline_z_sum=rng.gauss(0, 0.4 * tokens**0.5),
            baseline_z_tokens=tokens,
        ),
        is_repetition_loop=rng.random() < 0.03,
        finish_reason="length",
    )
