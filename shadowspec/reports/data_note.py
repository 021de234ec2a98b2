"""What the data is and is not: a store that was not filled by mirrored traffic says so in its configs."""

from __future__ import annotations

from collections.abc import Iterable

from shadowspec.types import FingerprintedConfig

DATA_NOTE = "data_note"  # the key in a config's details


def data_note(configs: Iterable[FingerprintedConfig], told: str) -> str:
    """What the measured configs say of their data, whoever reads them; where they say nothing, what we were told."""
    return " ".join(sorted({own.details[DATA_NOTE] for own in configs if DATA_NOTE in own.details})) or told
