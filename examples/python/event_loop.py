"""Awaits batches in an event loop that has something else to do meanwhile. Argument: the socket of `scatter-ring serve`."""

import asyncio
import sys

import numpy as np

import scatter_ring as sr

BATCHES, ROWS, ROW_BYTES = 100, 32, 264

ticks = 0


async def heartbeat() -> None:
    global ticks
    while True:
        ticks += 1
        await asyncio.sleep(0.001)


async def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: event_loop.py SOCKET")
    beating = asyncio.create_task(heartbeat())
    client = sr.attach(sys.argv[1])
    table = client.allocate((1_000, ROW_BYTES))
    table.numpy()[:] = np.add.outer(np.arange(1_000), np.arange(ROW_BYTES)) % 256
    out = client.allocate((BATCHES, ROWS, ROW_BYTES))
    numbers = (np.arange(BATCHES * ROWS) * 7 % 1_000).reshape(BATCHES, ROWS)

    # Each batch has its own part of `out`. All are under way before the first is awaited.
    transfers = [client.read_rows(table, numbers[i], out[i], wait=False) for i in range(BATCHES)]
    outcomes = await asyncio.gather(*transfers)

    before = ticks
    while ticks == before:
        await asyncio.sleep(0)
    beating.cancel()
    rows = sum(outcome.bytes for outcome in outcomes) // ROW_BYTES
    if not np.array_equal(out.numpy(), table.numpy()[numbers]):
        sys.exit("a row is wrong")
    print(f"{len(outcomes)} batches, {rows} rows, heartbeat went on")


if __name__ == "__main__":
    asyncio.run(main())
