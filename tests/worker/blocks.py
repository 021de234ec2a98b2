"""Blocks of short prompts, and engines that fail in ways that need a memory outside their process."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from shadowspec.errors import ServiceUnavailableError
from shadowspec.types import Arm, Block, BlockResult, FingerprintedConfig, RecordKey, SamplingParameters, ShadowPrompt
from tests.fakes import STALL_S, FakeEngine

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def prompt(offset: int, *marks: int, length: int = 3, endpoint: str = "chat") -> ShadowPrompt:
    """A prompt of tokens 1, 1, 1, with marks after them."""
    return ShadowPrompt(
        key=RecordKey("topic", 0, offset, 1_700_000_000_000),
        endpoint=endpoint,
        event_time=NOON,
        labels={},
        prompt_token_ids=(*[1] * length, *marks),
        sampling=SamplingParameters(max_tokens=16),
    )


def block(*requests: ShadowPrompt, fillers: Sequence[ShadowPrompt] = (), sequence: int = 0) -> Block:
    """A block of just these."""
    return Block(
        block_id=f"block-{sequence}-{requests[0].key.offset}",
        sequence=sequence,
        endpoint=requests[0].endpoint,
        slice_key="",
        concurrency=len(requests) + len(fillers),
        requests=requests,
        fillers=tuple(fillers),
        first_arm=Arm.BASELINE,
    )


class AttemptsInMemory:
    """An attempt log that also remembers what was asked of it."""

    def __init__(self, numbers: Mapping[RecordKey, int] | None = None) -> None:
        self.numbers = dict(numbers or {})
        self.recorded: list[RecordKey] = []
        self._lock = Lock()

    def record_attempt(self, keys: Sequence[RecordKey]) -> Mapping[RecordKey, int]:
        with self._lock:
            for key in keys:
                self.recorded.append(key)
                self.numbers[key] = self.numbers.get(key, 0) + 1
            return {key: self.numbers[key] for key in keys}

    def clear_attempts(self, keys: Sequence[RecordKey]) -> None:
        with self._lock:
            for key in keys:
                self.numbers.pop(key, None)


@dataclass(frozen=True, slots=True)
class Diary:
    """Lines in a file that outlives the process that writes them."""

    path: Path

    def write(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


@dataclass(frozen=True, slots=True)
class DiaryEngine:
    """A fake engine that writes down each block that it begins (requests + fillers, by offset).

    It dies at its first `deaths` blocks that hold the token `mark`, counted over all its lives; or it never ends them
    (`fault` "stall"), or finds a server away ("away").
    """

    inner: FakeEngine
    diary: Diary
    mark: int
    deaths: int
    fault: str = "die"

    @property
    def configs(self) -> tuple[FingerprintedConfig, ...]:
        return self.inner.configs

    def measure(self, block: Block) -> BlockResult:
        rows, fillers = ([p.key.offset for p in group] for group in (block.requests, block.fillers))
        self.diary.write(f"measure {rows} {fillers}")
        if any(self.mark in p.prompt_token_ids for p in (*block.requests, *block.fillers)):
            self.diary.write("marked")
            if self.diary.lines().count("marked") <= self.deaths:
                if self.fault == "stall":
                    time.sleep(STALL_S)
                if self.fault == "away":
                    raise ServiceUnavailableError("the server is away")
                os._exit(9)
        return self.inner.measure(block)


@dataclass(frozen=True, slots=True)
class DiaryFactory:
    """Builds a `DiaryEngine`, and writes down when; dies at its first `build_deaths` builds, and the
    build number `slow_build` never ends.
    """

    diary: Diary
    inner: FakeEngine
    mark: int = -1
    deaths: int = 0
    build_deaths: int = 0
    slow_build: int = 0
    fault: str = "die"
    endpoints: tuple[str, ...] = ("chat",)

    def __call__(self) -> Mapping[str, DiaryEngine]:
        self.diary.write(f"build {time.monotonic()}")
        number = sum(line.startswith("build") for line in self.diary.lines())
        if number <= self.build_deaths:
            os._exit(7)
        if number == self.slow_build:
            time.sleep(600)
        engine = DiaryEngine(self.inner, self.diary, self.mark, self.deaths, self.fault)
        return dict.fromkeys(self.endpoints, engine)
