"""What the data is, said by the store itself where it was not filled by mirrored traffic."""

from __future__ import annotations

from dataclasses import replace

from kernels.benchmarks.large_store import DATA_NOTE
from kernels.benchmarks.large_store.world import make_world
from shadowspec.reports.content.notes import data_note
from tests.store import examples


def test_a_synthetic_store_says_so_whoever_reads_it() -> None:
    synthetic = [config for endpoint in make_world(8, 1).endpoints for config in endpoint.fingerprints]
    assert data_note(synthetic, "mirrored traffic") == DATA_NOTE
    assert "ynthetic" in DATA_NOTE
    assert data_note([*synthetic, examples.config()], "") == DATA_NOTE


def test_measured_traffic_is_what_one_was_told() -> None:
    assert data_note([examples.config()], "mirrored traffic") == "mirrored traffic"
    assert data_note([], "") == ""


def test_two_kinds_of_data_are_both_named() -> None:
    kinds = [replace(examples.config(name), details={"data_note": name}) for name in ("b.", "a.")]
    assert data_note(kinds, "") == "a. b."
