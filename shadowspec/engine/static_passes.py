"""Passes of a model over buffers at fixed addresses, recorded once and run again at every step.

On a GPU a small model's pass is hundreds of launches, which take the host longer than they take the device.  A CUDA
graph launches them all at once, on the addresses and shapes that it was recorded with.  So a model has one cache for
all its batches, and a recorded pass for every number of rows, of new tokens and of columns that are read.  Rows are
never padded to a number that was recorded before: that would change the load that is measured.  Columns are read up to
a round number, so that few passes are needed: columns after a row's end are masked, and always finite.

Both arms run the same passes of the target.  Prefills are not recorded: every prompt has another length.  The recorder
is a `PassRecorder`: CUDA graphs, or for tests without a GPU a rerun of the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from shadowspec.engine.forward import HiddenStates
from shadowspec.engine.kv_cache import ColumnSpan, RaggedCache
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.runner import Runner

if TYPE_CHECKING:
    from shadowspec_kernels.dispatch import Kernels


LEAST_STEP: Final = 256  # columns between two widths at which passes are recorded
# Beyond as many of them: at most an eighth is read for nothing, and each doubling of the context takes 8 passes more.
STEPS_PER_DOUBLING: Final = 8


def rounded_up(columns: int) -> int:
    """The smallest width of at least this number of columns at which passes are recorded."""
    step = max(LEAST_STEP, (1 << (columns.bit_length() - 1)) // STEPS_PER_DOUBLING)
    return -(-columns // step) * step


@dataclass(frozen=True, slots=True)
class Reach:
    """The size of a batch's passes."""

    slots: int  # rows
    shortest: int  # tokens of the shortest prompt: no pass reads fewer columns
    capacity: int  # columns that the rows may fill

    def widths(self) -> list[int]:
        """All widths at which its passes may read the cache."""
        widths = [rounded_up(self.shortest)]
        while widths[-1] < rounded_up(self.capacity):
            widths.append(rounded_up(widths[-1] + 1))
        return widths


@dataclass(frozen=True, slots=True)
class _Shape:
    """The shape for which a pass is recorded."""

    slots: int
    count: int  # new tokens of each row
    keep: int  # the last of these, whose logits are computed
    width: int  # columns of the cache that are read
    layers: tuple[int, ...]  # whose hidden states are handed out (`HiddenStates`)


@dataclass(frozen=True, slots=True)
class _RecordedPass:
    """A recorded pass with the buffers that it reads and writes."""

    tokens: torch.Tensor  # int64 [slots, count]
    columns: torch.Tensor  # int64 [slots, count]
    logits: torch.Tensor  # [slots, keep, vocabulary]
    hidden_states: torch.Tensor | None  # [slots, columns, layers * hidden]
    again: Work


class StaticPasses:
    """The recorded passes of one model and the cache that they share; as long-lived as the model.

    The result of a pass is valid only until the model's next pass.
    """

    def __init__(
        self, model: DirectLlama, new_recorder: Callable[[], PassRecorder], kernels: Kernels | None = None
    ) -> None:
        """
        Args:
            new_recorder: makes the recorder of the passes over one cache, and ends with it.
            kernels: append to the cache (None: torch).
        """
        self._model, self._new_recorder, self._kernels = model, new_recorder, kernels
        self._last_position = int(model.config.max_position_embeddings) - 1
        self.num_recorded = 0  # passes, ever
        self._forget()

    @property
    def name(self) -> str:
        """How passes are recorded."""
        return self._recorder.name

    def _forget(self) -> None:
        self._passes: dict[_Shape, _RecordedPass] = {}  # before their cache and their memory
        self._buffers: dict[tuple[object, ...], torch.Tensor] = {}
        self._cache: RaggedCache | None = None
        self._recorder = self._new_recorder()

    @torch.inference_mode()
    def prepare(self, reach: Reach, counts: Sequence[tuple[int, int]], layers: tuple[int, ...] = ()) -> None:
        """Record the passes that a batch may need and that are still missing, so that no step waits for it.

        Args:
            counts: of every kind of pass the new tokens of a row and how many of them are kept.
            layers: those whose hidden states the passes return.
        """
        self.cache(reach.slots, reach.capacity)
        for count, keep in counts:
            for width in reach.widths():
                self._pass(_Shape(reach.slots, count, keep, width, layers))

    def cache(self, slots: int, capacity: int) -> RaggedCache:
        """This number of slots of the cache, with at least as many columns; their content is of earlier batches.

        A larger cache replaces one that is too small, and everything is recorded again.
        """
        model, rows, columns = self._model, slots, rounded_up(capacity)
        if self._cache is not None:
            rows, columns = max(rows, self._cache.slots), max(columns, self._cache.capacity)
        if self._cache is None or (rows, columns) != (self._cache.slots, self._cache.capacity):
            self._forget()
            cache = RaggedCache(model.config.num_hidden_layers, rows, columns, model.device, self._kernels)
            cache.allocate(*model.kv_shape, model.dtype)
            self._cache = cache
        return self._cache.first(slots)

    def runner(
        self, slots: int, capacity: int, hidden: HiddenStates | None = None, *, shares_prefixes: bool = False
    ) -> StaticRunner:
        """The runner of the model over this number of rows of up to `capacity` tokens."""
        return StaticRunner(self, self._model, slots, capacity, hidden, shares_prefixes=shares_prefixes)

    def run(
        self, tokens: torch.Tensor, columns: torch.Tensor, keep: int, read: int, layers: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One pass.

        Args:
            tokens: int64 [slots, count].
            columns: their columns in the cache, int64 [slots, count].
            keep: the number of the last ones whose logits are computed.
            read: upper bound of the columns, plus 1.
            layers: those whose hidden states are returned.

        Returns:
            As `Forward.forward`, in buffers that the next pass overwrites.
        """
        slots, count = tokens.shape
        recorded = self._pass(_Shape(slots, count, keep, rounded_up(read), layers))
        recorded.tokens.copy_(tokens)
        recorded.columns.copy_(columns)
        recorded.again()
        return recorded.logits, recorded.hidden_states

    def _pass(self, shape: _Shape) -> _RecordedPass:
        recorded = self._passes.get(shape)
        if recorded is None:
            recorded = self._passes[shape] = self._record(shape)
            self.num_recorded += 1
        return recorded

    def _record(self, shape: _Shape) -> _RecordedPass:
        assert self._cache is not None, "a runner has made the cache"
        model, device, cache = self._model, self._model.device, self._cache.first(shape.slots)
        size = (shape.slots, shape.count)
        tokens = self._buffer("tokens", torch.zeros(size, dtype=torch.int64, device=device))
        columns = self._buffer("columns", torch.zeros(size, dtype=torch.int64, device=device))
        # The place of padding: trial runs during recording change no row.
        tokens.zero_()
        columns.fill_(cache.capacity)

        def forward() -> tuple[torch.Tensor, torch.Tensor | None]:
            order = torch.arange(shape.width, device=device)
            mask = cache.begin_columns(columns, order, model.dtype)
            # As in `Runner`: tokens past the model's context can never be emitted.
            angles = model.angles(columns.clamp(max=self._last_position))
            return model.forward(tokens, angles, mask, cache, shape.keep, shape.layers)

        like, states_like = forward()
        logits = self._buffer("logits", like)
        states = self._buffer("states", states_like) if states_like is not None else None

        def work() -> None:
            # Into buffers outside of the graphs' memory, which all graphs of a model share.
            new_logits, new_states = forward()
            logits.copy_(new_logits)
            if states is not None and new_states is not None:
                states.copy_(new_states)

        again = self._recorder.record(work)
        again()  # a first run now loads the graph onto the device
        return _RecordedPass(tokens, columns, logits, states, again)

    def _buffer(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """The buffer of this name for tensors of this form, which passes of several widths share."""
        key = (name, like.shape)
        if key not in self._buffers:
            self._buffers[key] = torch.zeros_like(like)
        return self._buffers[key]

    def allocated_bytes(self) -> int:
        """Bytes of the cache and the buffers: device memory held from batch to batch, without recordings."""
        cache = self._cache.allocated_bytes() if self._cache is not None else 0
        return cache + sum(buffer.nbytes for buffer in self._buffers.values())

    def bytes_for(self, reach: Reach, counts: Sequence[tuple[int, int]]) -> int:
        """Bytes that a batch uses, of all that is held, and of all recordings, which share their memory.

        Args:
            counts: of its passes, as given to `prepare`.
        """
        columns = {number for pair in counts for number in pair}
        buffers = [
            buffer for buffer in self._buffers.values() if buffer.shape[0] == reach.slots and buffer.shape[1] in columns
        ]
        cache_bytes = self.runner(reach.slots, reach.capacity).cache_bytes()
        return cache_bytes + sum(buffer.nbytes for buffer in buffers) + self._recorder.held_bytes()


class StaticRunner(Runner):
    """A `Runner` whose steps are static passes; its rows keep their slots."""

    def __init__(
        self,
        passes: StaticPasses,
        model: DirectLlama,
        slots: int,
        capacity: int,
        hidden: HiddenStates | None,
        *,
        shares_prefixes: bool,
    ) -> None:
        super().__init__(model, slots, capacity, hidden, passes.cache(slots, capacity), shares_prefixes=shares_prefixes)
        self._passes = passes
        self._bytes_per_column = self.cache.allocated_bytes() // (self.cache.capacity + 1)
        self._used_columns = rounded_up(capacity) + 1

    def begin(self, span: ColumnSpan, column: int = 0) -> None:
        self._span, self._column = span, column

    def append(self, tokens: torch.Tensor, keep: int) -> torch.Tensor:
        start, stop = self._column, self._column + tokens.shape[1]
        self._column = stop
        columns = self._span.columns[:, start:stop]
        logits, self.hidden_states = self._passes.run(tokens, columns, keep, self._span.longest + stop, self._layers)
        return logits

    def keep(self, slots: list[int]) -> None:
        raise ValueError("rows that are dropped along the way need passes that are not static")

    def cache_bytes(self) -> int:
        return self._bytes_per_column * self._used_columns


WARM_UPS: Final = 3  # as torch's documentation has it: libraries choose kernels and allocate at their first calls

Work = Callable[[], None]


class PassRecorder(Protocol):
    """Records work; the recordings of one recorder share memory and never run at the same time."""

    name: str

    def record(self, work: Work) -> Work:
        """Do the work, and return a function that repeats it on the same buffers."""

    def held_bytes(self) -> int:
        """Device memory of all recordings, beside the buffers that they were given."""


class CudaGraphs:
    """Captures the launches of the work in CUDA graphs, in one pool of memory."""

    name = "graphs"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None  # torch's handle
        self._stream: torch.cuda.Stream | None = None

    def record(self, work: Work) -> Work:
        with torch.cuda.device(self._device):
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                work()
            self._pool = graph.pool()
        return partial(self._replay, graph)

    def _replay(self, graph: torch.cuda.CUDAGraph) -> None:
        with torch.cuda.device(self._device):
            graph.replay()

    def held_bytes(self) -> int:
        if self._pool is None:
            return 0
        segments: list[dict[str, Any]] = torch.cuda.memory_snapshot(self._pool)  # type: ignore[no-untyped-call]
        return sum(segment["total_size"] for segment in segments)
