"""Documents of the corpora as the maker of the bundled pair reads them."""

from __future__ import annotations

from kernels.benchmarks.bundled_pair import (
    Document,
)


def training_document(text: str) -> Document:
    return Document("prose", "training", False, text=text)
