"""Decisions and configs with given verdicts, runs and fingerprints."""

from __future__ import annotations

from dataclasses import replace

from shadowspec.types import (
    Decision,
    FingerprintedConfig,
    ReasonCode,
    Trial,
    Verdict,
)
from tests.gate.worlds import CONFIG, ENDPOINT, START


def decision(
    fingerprint: str,
    run: Trial | None,
    *,
    slice_key: str = "a",
    name: str = "draft-k4",
    verdict: Verdict = Verdict.HOLD,
    ends_run: bool = False,
    num_blocks: int = 50,
    num_clusters: int = 200,
) -> Decision:
    config = replace(CONFIG.config, name=name)
    return Decision(
        ENDPOINT, slice_key, 4, config, fingerprint, verdict, ReasonCode.DRIFT if ends_run else "", "", (),
        num_clusters, num_blocks, None, START, run=run, ends_run=ends_run,
    )  # fmt: skip


def configs(*fingerprints: str) -> dict[str, FingerprintedConfig]:
    """Fingerprints of one candidate, by fingerprint."""
    config = replace(CONFIG.config, name="draft-k4")
    return {each: replace(CONFIG, config=config, fingerprint=each) for each in fingerprints}
