"""The queue of the server's work, without a server."""

import asyncio
import threading

import pytest

from dafuse.product.server.batching import Turns


def test_the_end_leaves_nobody_waiting_for_what_is_being_done() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(parts: list[str]) -> list[str]:
        begun.set()
        go_on.wait(60)
        return parts

    async def ask() -> None:
        turns: Turns[str, str] = Turns(work)
        async with turns.running("work"):
            asked = [asyncio.create_task(turns.done([(part, 1.0)])) for part in ("one", "two")]
            while not begun.is_set():
                await asyncio.sleep(0.01)
            asyncio.get_running_loop().call_later(0, go_on.set)
        for one in asked:
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(one, 10)

    asyncio.run(ask())
