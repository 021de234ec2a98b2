"""Settings of the configuration file: types of the allowed values, and the dataclasses that several packages read.

It needs pydantic; `shadowspec.types` itself loads without.

A field whose alias is in parentheses is no key of the file.  Where it is a dataclass, its keys are in the file beside
the others of its table; where it is not, the code that loads the file sets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import AfterValidator, Field, PlainValidator
from pydantic.fields import FieldInfo

from shadowspec.types.live_windows import FIRST_POSITION


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("must be the path of a file or folder")
    return Path(value)


def _address(value: str) -> str:
    if int(value.rpartition(":")[2]) > LAST_PORT:
        raise ValueError(f"a port is at most {LAST_PORT}")
    return value


LAST_PORT = 65_535
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Port = Annotated[int, Field(ge=1, le=LAST_PORT)]
# HOST:PORT, an IPv6 host in brackets.
SocketAddress = Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:]+\]|[^:/\s]+):\d{1,5}$"), AfterValidator(_address)]
PathText = Annotated[Path, PlainValidator(_path)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# Neither login nor query: a secret has no place in a URL that messages quote.
HttpUrl = Annotated[
    str, Field(pattern=r"^https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?(/[A-Za-z0-9._~/-]*)?$")
]


def require_distinct(**values: Any) -> None:
    """
    Raises:
        ValueError: a key has the same value twice; the message names the key.
    """
    for name, members in values.items():
        if len(set(members)) != len(members):
            raise ValueError(f"{name}: the same value is listed twice")


def keys_of(kind: type) -> dict[str, Any]:
    """The keys of the file that fill a dataclass and its parts, with their defaults; None where there is no default."""
    keys: dict[str, Any] = {}
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        key, part = _alias(hints[field.name]) or field.name, _part(hints[field.name])
        if not key.startswith("("):
            made = field.default if field.default_factory is MISSING else field.default_factory()
            keys[key] = None if made is MISSING else made
        elif part is not None:
            keys |= keys_of(part)
    return keys


def nest_table(kind: type, table: Any) -> Any:
    """A table of the file in the dataclass's form: with the keys of each part in a separate table."""
    if not isinstance(table, Mapping):
        return table
    flat, parts = dict(table), {}
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        key, part = _alias(hints[field.name]), _part(hints[field.name])
        if key is not None and key.startswith("(") and part is not None:
            known = keys_of(part)
            parts[key] = nest_table(part, {name: flat.pop(name) for name in list(flat) if name in known})
    return {**flat, **parts}


def _alias(hint: Any) -> str | None:
    aliases = (
        field.alias for field in getattr(hint, "__metadata__", ()) if isinstance(field, FieldInfo) and field.alias
    )
    return next(aliases, None)


def _part(hint: Any) -> type | None:
    (argument, *_) = get_args(hint) or (hint,)
    return argument if is_dataclass(argument) and isinstance(argument, type) else None


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
    pause_s: Annotated[float, Field(ge=0)] = 0.0  # before each timed arm, in which the device idles
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


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """How the live guard of one endpoint, which reads the counters of production engines, listens.

    `metric` is the policy's acceptance metric, `scored_drafts` S, `run_length` windows between false alarms.
    `off_within_s` after an override speculation has to be off.
    `max_preempted_share` of the requests may be preempted beyond the share before ENABLE; where the engine counts no
    preemptions, its KV cache may be in use up to `max_kv_use` on average.  1 switches either off.
    """

    metric: Annotated[str, Field(alias="(metric)")] = FIRST_POSITION
    scored_drafts: Positive = 256
    run_length: Positive = 100_000
    off_within_s: Seconds = 300.0
    max_preempted_share: Annotated[float, Field(gt=0, le=1)] = 0.01
    max_kv_use: Annotated[float, Field(gt=0, le=1)] = 0.95
    num_replicas: Annotated[int, Field(alias="(num_replicas)")] = 1

    @property
    def threshold(self) -> float:
        """The value of the statistic at which a replica's detector fires."""
        return float(self.run_length * self.num_replicas)
