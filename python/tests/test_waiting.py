"""Waiting: in threads with the GIL released, in event loops, in both at once."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

import scatter_ring as sr
from conftest import Attach, not_run, within


def run_asyncio(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def run_uvloop(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        main.close()
        not_run("uvloop is not installed")
    uvloop.run(main)


@pytest.fixture(params=[run_asyncio, run_uvloop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    return request.param  # type: ignore[no-any-return]


Run = Callable[[Coroutine[Any, Any, None]], None]


class Table:
    """Rows whose bytes are their number, modulo 251."""

    def __init__(self, client: sr.Client, rows: int = 1000) -> None:
        self.client, self.rows = client, rows
        self.buffer = client.allocate((rows, 64))
        self.buffer.numpy()[:] = (np.arange(rows) % 251)[:, None]
        self.bytes = self.buffer.numpy()[:, 0].copy()

    def start(self, ids: np.ndarray[Any, Any], out: sr.Buffer) -> sr.Transfer:
        return self.client.read_rows(self.buffer, ids, out, wait=False)


class Heartbeat:
    """A task that beats each millisecond, and can tell that it has gone on."""

    def __init__(self) -> None:
        self.beats = 0
        self.task = asyncio.create_task(self.beat())

    async def beat(self) -> None:
        while True:
            self.beats += 1
            await asyncio.sleep(0.001)

    async def goes_on(self) -> None:
        before = self.beats
        while self.beats < before + 2:
            await asyncio.sleep(0)
        self.task.cancel()


def test_transfers_are_awaited_while_a_heartbeat_goes_on(client: sr.Client, run: Run) -> None:
    table = Table(client)
    out = client.allocate((400, 50, 64))
    ids = np.random.default_rng(1).integers(0, 1000, (400, 50))

    async def main() -> None:
        heart = Heartbeat()
        for first in range(0, 400, 200):
            transfers = [table.start(ids[i], out[i]) for i in range(first, first + 200)]
            outcomes = await asyncio.gather(*transfers)
            assert [outcome.bytes for outcome in outcomes] == [3200] * 200
        await heart.goes_on()

    run(main())
    assert np.array_equal(out.numpy()[..., 63], table.bytes[ids])


def test_the_loop_beats_while_one_transfer_takes_long(engine: sr.Engine, run: Run) -> None:
    with engine.client(notifications=True, cq_capacity=8) as receiver, engine.client() as client:
        inbox = receiver.allocate(64)
        inbox.export("inbox", writable=True)
        region = client.open("inbox", writable=True)

        async def main() -> None:
            heart = Heartbeat()
            # None is done before the receiver takes some: there is no room for so many.
            awaiting = asyncio.gather(*(client.notify(region, user_data=i, wait=False) for i in range(30)))
            before = heart.beats
            while heart.beats < before + 20:
                await asyncio.sleep(0.001)
            assert not awaiting.done()
            told = []
            async for notification in receiver.notifications():
                told.append(notification.user_data)
                if len(told) == 30:
                    break
            await awaiting
            assert told == list(range(30))
            await heart.goes_on()

        run(main())


def test_a_transfer_that_is_done_or_has_failed_is_awaited_too(client: sr.Client, run: Run) -> None:
    table = Table(client)
    out = client.allocate((2, 64))

    async def main() -> None:
        done = table.start(np.array([1, 2]), out)
        done.wait()
        assert (await done).bytes == (await done).bytes == 128
        with pytest.raises(sr.TransferError, match="OUT_OF_RANGE") as failed:
            await table.start(np.array([1, 1000]), out)
        assert failed.value.fragment == 1 and failed.value.transfer is not None

    run(main())


def test_cancelling_a_task_leaves_its_transfer_and_the_loop(engine: sr.Engine, run: Run) -> None:
    with engine.client(notifications=True, cq_capacity=8) as receiver, engine.client() as client:
        inbox = receiver.allocate(64)
        inbox.export("inbox", writable=True)
        region = client.open("inbox", writable=True)

        async def main() -> None:
            transfers = [client.notify(region, wait=False) for _ in range(20)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(transfers[-1], 0.01)
            assert not transfers[-1].done
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(client_without_news.notifications())
            for _ in range(20):
                await anext(receiver.notifications())
            assert (await transfers[-1]).bytes == 0

        with engine.client(notifications=True) as client_without_news:
            run(main())


def test_closing_a_client_wakes_who_awaits(engine: sr.Engine, run: Run) -> None:
    async def main() -> None:
        client = engine.client(notifications=True)
        waiting = asyncio.ensure_future(anext(client.notifications()))
        await asyncio.sleep(0.01)
        client.close()
        with pytest.raises(sr.ClosedError, match="the client was closed"):
            await waiting
        other = engine.client(notifications=True)
        waiting = asyncio.ensure_future(anext(other.notifications()))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(engine.close)
        with pytest.raises(sr.EngineLost):
            await waiting

    run(main())


def test_a_loop_leaves_no_file_descriptors_of_sessions_that_are_gone(engine: sr.Engine) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def main() -> None:
        before = count()
        for _ in range(5):
            table = Table(engine.client(), 10)
            await table.start(np.array([1]), table.client.allocate(64))
            del table
            gc.collect()
        # The last session's two may be left. The engine closes its own a little later.
        within(10, lambda: count() <= before + 2)

    asyncio.run(main())


def test_threads_share_a_client(client: sr.Client) -> None:
    table = Table(client)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            random = np.random.default_rng(seed)
            out = client.allocate((20, 64))
            for _ in range(150):
                ids = random.integers(0, 1000, 20)
                match seed % 3:
                    case 0:
                        client.read_rows(table.buffer, ids, out)
                    case 1:
                        table.start(ids, out).wait(30)
                    case _:
                        with client.batch() as batch:
                            batch.read_rows(table.buffer, ids, out)
                assert np.array_equal(out.numpy()[:, 5], table.bytes[ids])
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread waits for ever"
    assert not failures, failures


def test_threads_and_event_loops_share_a_client(attach: Attach) -> None:
    with attach(spin_us=0) as client:
        table = Table(client)
        failures: list[BaseException] = []

        def thread(seed: int) -> None:
            try:
                random = np.random.default_rng(seed)
                out = client.allocate((20, 64))
                for _ in range(100):
                    ids = random.integers(0, 1000, 20)
                    client.read_rows(table.buffer, ids, out)
                    assert np.array_equal(out.numpy()[:, 5], table.bytes[ids])
            except BaseException as failure:
                failures.append(failure)

        def loop(seed: int) -> None:
            async def task(seed: int) -> None:
                random = np.random.default_rng(seed)
                out = client.allocate((20, 64))
                for _ in range(50):
                    ids = random.integers(0, 1000, 20)
                    await table.start(ids, out)
                    assert np.array_equal(out.numpy()[:, 5], table.bytes[ids])

            async def main() -> None:
                await asyncio.gather(*(task(100 * seed + i) for i in range(5)))

            try:
                asyncio.run(main())
            except BaseException as failure:
                failures.append(failure)

        targets = [thread, loop, thread, loop]
        threads = [threading.Thread(target=target, args=(seed,)) for seed, target in enumerate(targets)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
            assert not each.is_alive(), "somebody waits for ever"
        assert not failures, failures


def test_a_loop_is_woken_also_if_a_thread_has_slept_at_its_client_meanwhile(attach: Attach, run: Run) -> None:
    with attach(notifications=True, spin_us=0) as client, attach() as sender:
        inbox = client.allocate(64)
        inbox.export("inbox", writable=True)
        region = sender.open("inbox", writable=True)

        async def main() -> None:
            told = asyncio.ensure_future(client.notifications().__anext__())
            await asyncio.sleep(0.02)
            # It takes the loop's announcement back with its own.
            assert await asyncio.to_thread(client.wait_notification, 0.02) is None
            await asyncio.sleep(0.02)
            await asyncio.to_thread(sender.notify, region, user_data=7)
            assert (await asyncio.wait_for(told, 10)).user_data == 7

        run(main())


def wait_in_thread(client: sr.Client) -> None:
    with pytest.raises(sr.ClosedError):
        client.wait_notification()


def wait_in_loop(client: sr.Client) -> None:
    with pytest.raises(sr.ClosedError):
        asyncio.run(client.notifications().__anext__())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "waits",
    [[wait_in_thread] * 2, [wait_in_loop] * 2, [wait_in_thread, wait_in_loop]],
    ids=["threads", "loops", "a thread and a loop"],
)
def test_those_who_sleep_at_one_client_do_not_wake_each_other(
    engine: sr.Engine, waits: list[Callable[[sr.Client], None]]
) -> None:
    client = engine.client(notifications=True, spin_us=0)
    threads = [threading.Thread(target=wait, args=(client,)) for wait in waits]
    for thread in threads:
        thread.start()
    # The engine sleeps soon after its last work.
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.5)
    used = time.process_time() - before
    client.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert used < 0.05, f"{used:.3f} s of a processor, while nothing happens"


def test_a_thread_that_waits_has_neither_the_gil_nor_the_client(engine: sr.Engine) -> None:
    with engine.client(notifications=True, spin_us=0) as client, engine.client() as sender:
        inbox = client.allocate(64)
        inbox.export("inbox", writable=True)
        region = sender.open("inbox", writable=True)
        told: list[sr.Notification | None] = []
        waiting = threading.Thread(target=lambda: told.append(client.wait_notification()))
        waiting.start()
        # Another thread runs, and uses the same client, also to what it waits for itself.
        other = client.allocate(64)
        for _ in range(100):
            assert client.read(inbox, other).bytes == 64
        assert waiting.is_alive()
        sender.notify(region, user_data=5)
        waiting.join(30)
        assert not waiting.is_alive() and told[0] is not None and told[0].user_data == 5
        # One that waits with a limit, and comes back without.
        assert client.wait_notification(0.01) is None


def test_dropping_memory_that_a_transfer_uses_waits_without_the_gil(engine: sr.Engine) -> None:
    beats: list[float] = []
    stop = threading.Event()

    def beat() -> None:
        while not stop.is_set():
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with engine.client() as client:
            pieces = client.allocate(20_000_000)
            for _ in range(20):
                adopted = engine.adopt(np.ones(64, np.uint8), "adopted")
                region = client.open("adopted")
                transfer = client.read_tile(
                    region, pieces, count=pieces.nbytes, piece_bytes=1, src_stride=0, wait=False
                )
                beats.clear()
                first = time.monotonic()
                del adopted
                took = time.monotonic() - first
                try:
                    transfer.wait(30)
                except sr.TransferError:
                    pass  # The memory may be gone before it begins.
                region.close()
                if took > 0.02:
                    break
            else:
                not_run("the engine is too fast for it to be seen")
    finally:
        stop.set()
        thread.join()
    # Not only at its ends, where the GIL changes hands anyway.
    assert any(first + took / 4 < beat < first + took * 3 / 4 for beat in beats), f"none in {took:.3f} s"


def test_closing_a_client_wakes_the_threads_that_wait(engine: sr.Engine) -> None:
    client = engine.client(notifications=True, spin_us=0)
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            client.wait_notification()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    client.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a thread waits for ever"
    assert [type(failure) for failure in failures] == [sr.ClosedError] * 3


def test_a_signal_is_handled_while_a_wait_goes_on(engine: sr.Engine) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with engine.client(notifications=True) as client:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(Interrupted):
                client.wait_notification()
    finally:
        signal.signal(signal.SIGALRM, before)
