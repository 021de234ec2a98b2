"""The parts of an export: a text, files beside it, and remarks for the deployer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class ExportFormat(StrEnum):
    """The peers for which there is an export."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"
    LLAMACPP = "llama.cpp"
    MODELOPT = "modelopt"
    FLAGD = "flagd"
    LITELLM = "litellm"
    HTTPROUTE = "httproute"
    ENVOY = "envoy"


@dataclass(frozen=True, slots=True)
class Document:
    """One export.  `beside` holds the texts of files that belong next to it, by the end of their name."""

    text: str
    remarks: tuple[str, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)


def yaml_lines(values: Mapping[str, object], indent: int = 0) -> list[str]:
    """A mapping of scalars and of mappings of scalars as lines of YAML; scalars are written as JSON, which is YAML."""
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{' ' * indent}{name}:", *yaml_lines(value, indent + 2)]
        else:
            lines.append(f"{' ' * indent}{name}: {json.dumps(value)}")
    return lines


def comment_lines(lines: Sequence[str]) -> list[str]:
    """Lines as comments of YAML; a line break within one cannot end the comment."""
    return [f"# {' '.join(line.split())}" for line in lines]
