"""The sections [engine] and [worker] of the configuration: how blocks are measured, and how the mirror is consumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from shadowspec.types.constrained import Positive, Seconds, Share, SocketAddress, require_distinct


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """[engine]: how the engine in this process runs.

    "auto": a GPU if there is one; bfloat16 on a GPU, float32 on a CPU; on a GPU CUDA graphs of the models' steps, and
    Triton's kernels where it can run them.
    """

    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "auto"
    passes: Literal["auto", "dynamic", "graphs"] = "auto"
    kernels: Literal["auto", "torch", "triton"] = "auto"
    share_prefixes: bool = False  # compute a prefix that prompts of a block share once, in both arms
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    warmup_blocks: Annotated[int, Field(ge=0)] = 2  # blocks run and thrown away before the first that counts
    audit_share: Share = 0.05  # of the measured requests whose outputs are replayed after their block; 0: none


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """[worker]: how `shadowspec worker` works off the mirror.  Times in seconds.

    Raises:
        ValueError: a device is listed twice, or the port is invalid.
    """

    # An engine process on each; none: one on the engine's device.
    devices: tuple[Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")], ...] = ()
    max_queued_blocks: Positive = 8
    build_timeout_s: Seconds = 1_800.0  # to load and warm up the models; an engine that takes longer is ended
    block_timeout_s: Seconds = 600.0  # an engine that takes longer is ended, and the block's requests tried singly
    max_attempts: Positive = 3  # of a request that ends the engine
    overload: Literal["pause", "shed"] = "pause"  # the partitions where the engine is behind, or requests
    max_unfinished_messages: Positive = 50_000  # consumed, and not measured and written yet
    flush_interval_s: Seconds = 1.0
    refresh_rates_s: Seconds = 30.0  # how often decisions are looked up that lower a slice's sampling rate
    drain_timeout_s: Annotated[float, Field(ge=0)] = 60.0  # to finish started work after a stop signal
    health_address: SocketAddress = "127.0.0.1:8080"

    def __post_init__(self) -> None:
        require_distinct(devices=self.devices)
