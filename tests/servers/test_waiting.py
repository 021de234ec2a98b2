"""Asynchronous work is waited for with and without a loop in the calling thread."""

from __future__ import annotations

import asyncio

import pytest

from shadowspec.servers.client import run_async


async def half(number: int) -> int:
    await asyncio.sleep(0)
    if number % 2:
        raise ValueError("odd")
    return number // 2


def test_the_result_and_what_went_wrong() -> None:
    assert run_async(half(8)) == 4
    with pytest.raises(ValueError, match="odd"):
        run_async(half(7))


def test_within_a_running_loop() -> None:
    async def asking() -> int:
        work = half(8)
        with pytest.raises(RuntimeError, match="running event loop"):
            asyncio.run(work)
        work.close()
        return run_async(half(8))

    assert run_async(asking()) == 4
