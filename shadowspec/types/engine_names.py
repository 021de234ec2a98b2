"""Engines by name: which one a figure's latency was measured on, and whether that is the named one.

A config records the measuring engine as `name/version`: `vllm/0.32.0`, or several for the engine in this process
(`shadowspec-torch/0.1.0 torch/2.13.0 transformers/5.23.0`).  An operator names an engine by its name, or with a version
after a slash or a space: "vllm", "vllm/0.32", "vllm 0.32".  The name must be equal but for case; of the version as many
parts as are given, so that 0.32 matches 0.32.0 and 0.32.1, but not 0.320.  Where several engines are named together,
every one must match.

A verdict is for one engine: the one that serves the endpoint where the configuration names it, else the one that
measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_VERSION: Final = re.compile(r"v?\d\S*", re.IGNORECASE)
_ENDS_OF_PARTS: Final = ".+-"
IN_PROCESS: Final = "shadowspec-torch"  # the engine in this process, which measures and serves nobody
UNKNOWN: Final = "unknown"  # of decisions without a stored engine
SERVING_ENGINES: Final = ("vllm", "sglang", "llama.cpp", "tensorrt-llm", IN_PROCESS)  # named in questions and messages
_ALIASES: Final = {"tensorrt_llm": "tensorrt-llm", "llamacpp": "llama.cpp"}  # servers' names of themselves


@dataclass(frozen=True, slots=True)
class EngineName:
    """One engine as it is named; `version` may be cut after any of its parts, and is "" where none is given."""

    name: str
    version: str = ""

    def names(self, other: EngineName) -> bool:
        """Whether the other one, as it was measured, is the one that is meant."""
        wanted, found = self.version, other.version
        is_version = found.startswith(wanted) and (not wanted or found[len(wanted) :][:1] in ("", *_ENDS_OF_PARTS))
        return self.name == other.name and is_version


def parse_engines(text: str) -> tuple[EngineName, ...]:
    """The engines that a text names, in its order; a word that begins with a digit is the version of the one before."""
    found: list[EngineName] = []
    for word in text.split():
        name, _, version = word.lower().partition("/")
        if found and not found[-1].version and not version and _VERSION.fullmatch(name):
            found[-1] = EngineName(found[-1].name, _plain(name))
        else:
            found.append(EngineName(_ALIASES.get(name, name), _plain(version)))
    return tuple(found)


def is_measured_on(expected: str, measured: str) -> bool:
    """Whether every engine that `expected` names is among those of a config; an empty expectation never matches."""
    wanted, found = parse_engines(expected), parse_engines(measured)
    return bool(wanted) and all(any(engine_name.names(each) for each in found) for engine_name in wanted)


def verdict_engine(serving: str | None, measured: str) -> str:
    """The engine that a verdict is for: `serving` if named, else the name of the measuring engine."""
    if serving is not None:
        return serving
    found = parse_engines(measured)
    return found[0].name if found else UNKNOWN


def is_for_serving(serving: str | None, measured: str) -> bool:
    """Whether a verdict is for an engine that serves: a named one, or one that was measured through its servers."""
    return serving is not None or verdict_engine(serving, measured) not in (IN_PROCESS, UNKNOWN)


def verdict_engine_text(serving: str | None, measured: str) -> str:
    """The engine that a verdict is for, with the remark that readers need where the endpoint names none."""
    name = verdict_engine(serving, measured)
    if serving is not None:
        return name
    what = "as its servers report" if is_for_serving(serving, measured) else "which measured"
    return f"{name}, {what}: the endpoint names no serving_engine"


def _plain(version: str) -> str:
    return version[1:] if _VERSION.fullmatch(version) and version.startswith("v") else version
