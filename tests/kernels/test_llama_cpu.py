"""The compiled Llama against its twin, and what no number of it depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shadowspec_kernels import llama_cpu, llama_reference
from shadowspec_kernels.errors import OperandError
from shadowspec_kernels.llama_weights import (
    FORMATS,
    CachedPass,
    LayerWeights,
    LlamaWeights,
    PassOutputs,
    num_inputs,
    pack,
    widen,
)

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
COLUMNS = 240  # several tiles of attention


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@PROPERTY
@given(
    rows=st.integers(1, 16) | st.sampled_from([33, 70]),
    inputs=st.integers(1, 200),
    outputs=st.integers(1, 300),
    is_added=st.booleans(),
    num_threads=st.integers(1, 3),
)
def test_products_are_the_twins(rows: int, inputs: int, outputs: int, is_added: bool, num_threads: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    states, weight = torch.randn(rows, inputs, generator=generator), torch.randn(outputs, inputs, generator=generator)
    wide = torch.randn(rows, outputs + 3, generator=generator)
    total = wide.clone()[:, :outputs] if is_added else None
    expected = llama_reference.product(states, weight, None if total is None else total.clone())
    with threads(num_threads):
        found = llama_cpu.product(states, weight, total)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert total is None or found is total


@PROPERTY
@given(rows=st.integers(2, 16) | st.just(50), inputs=st.integers(1, 600), outputs=st.integers(1, 100))
def test_a_row_does_not_depend_on_the_rows_beside_it(rows: int, inputs: int, outputs: int) -> None:
    """Bit for bit, and on any number of threads, more of them than there are processors too."""
    generator = torch.Generator().manual_seed(rows)
    states, weight = torch.randn(rows, inputs, generator=generator), torch.randn(outputs, inputs, generator=generator)
    together = llama_cpu.product(states, weight)
    with threads(5):
        assert torch.equal(llama_cpu.product(states, weight), together)
    for row in range(rows):
        assert torch.equal(llama_cpu.product(states[row : row + 1], weight)[0], together[row])


def random_weights(
    *, layers: int, hidden: int, heads: int, group: int, head_dim: int, intermediate: int, has_extras: bool
) -> LlamaWeights:
    """Weights of which every one matters, with biases and norms of the heads or without."""
    kv_heads = heads // group
    mixed = (heads + 2 * kv_heads) * head_dim
    generator = torch.Generator().manual_seed(hidden)

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        return torch.randn(outputs, inputs, generator=generator) / inputs**0.5

    def norm(size: int) -> torch.Tensor:
        return (0.5 + torch.rand(size, generator=generator)) * size**0.5

    made = tuple(
        LayerWeights(
            norm(hidden),
            matrix(mixed, hidden),
            torch.randn(mixed, generator=generator) if has_extras else None,
            norm(head_dim) if has_extras else None,
            norm(head_dim) if has_extras else None,
            matrix(hidden, heads * head_dim),
            norm(hidden),
            matrix(2 * intermediate, hidden),
            matrix(hidden, intermediate),
        )
        for _ in range(layers)
    )
    return LlamaWeights(made, norm(hidden), matrix(67, hidden), heads, kv_heads, head_dim, 1e-5)


def random_pass(weights: LlamaWeights, lengths: list[int], count: int) -> CachedPass:
    rows, hidden = len(lengths), weights.final_norm.shape[0]
    generator = torch.Generator().manual_seed(count)
    columns = torch.tensor(lengths)[:, None] + torch.arange(count)
    phases = torch.randn(rows, count, 1, weights.head_dim // 2, generator=generator)
    shape = (rows + 1, 2 * weights.kv_heads, COLUMNS, weights.head_dim)
    return CachedPass(
        hidden=torch.randn(rows, count, hidden, generator=generator),
        columns=columns,
        angles=torch.polar(torch.ones_like(phases), phases),
        caches=[torch.randn(shape, generator=generator) for _ in weights.layers],
        width=max(lengths) + count,
        keep=count,
    )


def run(weights: LlamaWeights, operands: CachedPass) -> PassOutputs:
    """The compiled pass, which leaves these operands as they were but for the caches."""
    return llama_cpu.CompiledLlama(weights).run(replace(operands, hidden=operands.hidden.clone()))


@PROPERTY
@given(
    lengths=st.lists(st.integers(0, 25) | st.sampled_from([59, 64, 130, 200]), min_size=1, max_size=4),
    count=st.integers(1, 6) | st.just(30),
    layers=st.integers(1, 3),
    hidden=st.integers(1, 70),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    half=st.integers(1, 40),
    intermediate=st.integers(1, 90),
    has_extras=st.booleans(),
    data=st.data(),
)
def test_passes_are_the_twins(
    lengths: list[int],
    count: int,
    layers: int,
    hidden: int,
    kv_heads: int,
    group: int,
    half: int,
    intermediate: int,
    has_extras: bool,
    data: st.DataObject,
) -> None:
    weights = random_weights(
        layers=layers,
        hidden=hidden,
        heads=kv_heads * group,
        group=group,
        head_dim=2 * half,
        intermediate=intermediate,
        has_extras=has_extras,
    )
    operands = replace(
        random_pass(weights, lengths, count),
        keep=data.draw(st.integers(1, count)),
        layers=tuple(sorted(data.draw(st.sets(st.integers(0, layers - 1))))),
        with_final=data.draw(st.booleans()),
    )
    expected_caches = [cache.clone() for cache in operands.caches]
    expected = llama_reference.llama_pass(weights, replace(operands, caches=expected_caches))
    with threads(data.draw(st.integers(1, 3))):
        found = run(weights, operands)
    torch.testing.assert_close(found.logits, expected.logits, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(found.inputs, expected.inputs, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(found.final_states, expected.final_states, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(list(operands.caches), expected_caches, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("lengths", "count"), [([3, 0, 17, 30], 5), ([63, 190, 1, 64], 5), ([0, 100], 40)])
def test_a_verified_token_has_the_logits_of_a_plain_step(lengths: list[int], count: int) -> None:
    """Tokens of several rows at once, and each row's one after the other: the same bits, in logits and caches.

    The numbers of queries and columns reach beyond a task and a tile of attention.
    """
    weights = random_weights(layers=2, hidden=96, heads=6, group=3, head_dim=32, intermediate=160, has_extras=True)
    operands = random_pass(weights, lengths, count)
    alone = replace(operands, caches=[cache.clone() for cache in operands.caches])
    together = run(weights, operands)
    with threads(1):
        for row, length in enumerate(lengths):
            for token in range(count):
                one = CachedPass(
                    alone.hidden[row : row + 1, token : token + 1],
                    alone.columns[row : row + 1, token : token + 1],
                    alone.angles[row : row + 1, token : token + 1],
                    [cache[row : row + 1] for cache in alone.caches],
                    width=length + token + 1,
                    keep=1,
                )
                assert torch.equal(run(weights, one).logits[0, 0], together.logits[row, token])
    assert all(torch.equal(first, second) for first, second in zip(alone.caches, operands.caches, strict=True))


@pytest.mark.all
def test_what_a_late_thread_has_begun_is_done_by_another_and_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads but the first sleep over each task, and none has patience: the late results are dropped."""
    source = llama_cpu.LLAMA_CPU.read_text(encoding="utf-8")
    for what, instead in (
        ("PATIENCE = 4096;", "PATIENCE = 1;"),
        (
            "            compute(task);\n",
            "            compute(task);\n            if (omp_get_thread_num()) usleep(200);\n",
        ),
    ):
        assert source.count(what) == 1
        source = source.replace(what, instead)
    impatient = tmp_path / "impatient.cpp"
    impatient.write_text(f"#include <unistd.h>\n{source}", encoding="utf-8")
    weights = random_weights(layers=4, hidden=128, heads=4, group=2, head_dim=32, intermediate=256, has_extras=False)
    operands = random_pass(weights, [5, 9], 3)
    with threads(1):
        expected = run(weights, operands).logits
    monkeypatch.setattr(llama_cpu, "LLAMA_CPU", impatient)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    llama_cpu._library_or_reason.cache_clear()
    try:
        with threads(4):
            for _ in range(20):
                assert torch.equal(run(weights, operands).logits, expected)
    finally:
        llama_cpu._library_or_reason.cache_clear()


def test_extreme_states_stay_finite() -> None:
    weights = random_weights(layers=1, hidden=32, heads=2, group=1, head_dim=16, intermediate=48, has_extras=False)
    layer = weights.layers[0]
    steep = replace(weights, layers=(replace(layer, qkv=layer.qkv * 1e3, gate_up=layer.gate_up * 1e4),))
    operands = random_pass(steep, [6], 2)
    expected = llama_reference.llama_pass(steep, replace(operands, caches=[c.clone() for c in operands.caches]))
    torch.testing.assert_close(run(steep, operands).logits, expected.logits, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("dtype", FORMATS)
def test_weights_are_held_side_by_side(dtype: torch.dtype) -> None:
    weights = [torch.randn(3, 32), torch.randn(7, 64), torch.randn(2, 96)]
    memory = llama_cpu.WeightMemory([each.shape for each in weights], dtype)
    held = [memory.hold(each) for each in weights]
    assert all(torch.equal(first, pack(second, dtype)) for first, second in zip(held, weights, strict=True))
    assert all(each.data_ptr() % 64 == 0 for each in held)


@PROPERTY
@given(
    dtype=st.sampled_from([torch.bfloat16, torch.int8]),
    rows=st.integers(1, 16) | st.just(70),
    groups=st.integers(1, 20),
    outputs=st.integers(1, 100),
    exponent=st.integers(-30, 8),
)
def test_a_format_gives_the_bits_of_its_values_in_float32(
    dtype: torch.dtype, rows: int, groups: int, outputs: int, exponent: int
) -> None:
    generator = torch.Generator().manual_seed(rows)
    states = torch.randn(rows, 32 * groups, generator=generator)
    weight = torch.randn(outputs, 32 * groups, generator=generator) * 2.0**exponent
    weight[0, :32] = 0.0
    packed = pack(weight, dtype)
    assert torch.equal(llama_cpu.product(states, packed), llama_cpu.product(states, widen(packed)))


@PROPERTY
@given(groups=st.integers(1, 4), exponent=st.integers(-30, 30), seed=st.integers(0, 99))
def test_a_format_rounds_to_its_nearest_values_and_keeps_them(groups: int, exponent: int, seed: int) -> None:
    weight = torch.randn(5, 32 * groups, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    for dtype in FORMATS:
        packed = pack(weight, dtype)
        assert torch.equal(pack(widen(packed), dtype), packed)
        assert num_inputs(packed) == weight.shape[1]
    error = (widen(pack(weight, torch.int8)) - weight).abs().unflatten(1, (-1, 32)).amax(2)
    # Half a step, and what the rounding of the scale to eight bits leaves of the largest value.
    largest = weight.abs().unflatten(1, (-1, 32)).amax(2)
    assert (error <= largest / 127 * 0.51).all()


def test_a_bfloat16_weight_may_end_anywhere() -> None:
    states, weight = torch.randn(3, 45), pack(torch.randn(10, 45), torch.bfloat16)
    assert torch.equal(llama_cpu.product(states, weight), llama_cpu.product(states, widen(weight)))


def test_int8_rows_without_whole_groups_are_refused() -> None:
    with pytest.raises(OperandError, match="rows of 45 weights do not divide into groups of 32"):
        pack(torch.randn(10, 45), torch.int8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_a_pass_over_a_format_gives_the_bits_of_its_values_in_float32(dtype: torch.dtype) -> None:
    plain = random_weights(layers=2, hidden=64, heads=4, group=2, head_dim=16, intermediate=96, has_extras=True)

    def each_product(change: Callable[[torch.Tensor], torch.Tensor]) -> LlamaWeights:
        layers = tuple(
            replace(layer, **{name: change(getattr(layer, name)) for name in ("qkv", "output", "gate_up", "down")})
            for layer in plain.layers
        )
        return replace(plain, layers=layers, head=change(plain.head))

    operands = random_pass(plain, [6, 9], 3)
    copied = replace(operands, caches=[cache.clone() for cache in operands.caches], hidden=operands.hidden.clone())
    found = run(each_product(lambda weight: pack(weight, dtype)), operands).logits
    assert torch.equal(found, run(each_product(lambda weight: widen(pack(weight, dtype))), copied).logits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": torch.zeros(2, 4)}, "do not fit"),
        ({"states": torch.zeros(2, 3, dtype=torch.float64)}, "float32"),
        ({"weight": torch.zeros(3, 5).t()}, "not contiguous"),
        ({"total": torch.zeros(2, 4)}, "does not fit"),
    ],
)
def test_operands_of_a_product_that_do_not_fit_are_refused(changes: dict[str, torch.Tensor], message: str) -> None:
    operands = {"states": torch.zeros(2, 3), "weight": torch.zeros(5, 3)} | changes
    with pytest.raises(OperandError, match=message):
        llama_cpu.product(**operands)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": torch.zeros(1, 2, 9)}, "do not fit the model"),
        ({"columns": torch.zeros(1, 3, dtype=torch.int64)}, "columns are not"),
        ({"angles": torch.zeros(1, 2, 1, 8)}, "angles are not"),
        ({"keep": 3}, "3 of 2 tokens"),
        ({"caches": []}, "0 caches"),
        ({"width": COLUMNS + 1}, "does not fit 1 rows"),
        ({"caches": [torch.zeros(1, 4, 16, COLUMNS).transpose(2, 3)]}, "not contiguous"),
    ],
)
def test_operands_of_a_pass_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    weights = random_weights(layers=1, hidden=8, heads=2, group=1, head_dim=16, intermediate=8, has_extras=False)
    with pytest.raises(OperandError, match=message):
        llama_cpu.CompiledLlama(weights).run(replace(random_pass(weights, [1], 2), **changes))
