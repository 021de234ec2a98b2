"""Asynchronous work is waited for with and without a loop in the calling thread."""

from __future__ import annotations

import asyncio

import pytest

from shadowspec.servers.waiting import finished


async def half(number: int) -> int:
    await asyncio.sleep(0)
    if number % 2:
        raise ValueError("odd")
    return number // 2


def test_the_result_and_what_went_wrong() -> None:
    assert finished(half(8)) == 4
    with pytest.raises(ValueError, match="odd"):
        finished(half(7))


def test_within_a_running_loop() -> None:
    async def asking() -> int:
        work = half(8)
        with pytest.raises(RuntimeError, match="running event loop"):
            asyncio.run(work)
        work.close()
        return finished(half(8))

    assert finished(asking()) == 4
