"""More than one process: forks, kills, and what the kernel is asked for."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable

import numpy as np
import pytest

import scatter_ring as sr
from conftest import Attach, Daemon, not_run, within


def in_child(body: Callable[[], None]) -> None:
    """Runs it in a forked child, which ends as a program does: with everything freed."""
    child = os.fork()
    if child == 0:
        status = 0
        try:
            body()
        except BaseException:
            traceback.print_exc()
            status = 1
        # Not os._exit: what the child has of its parent must be harmless when it is dropped.
        sys.stderr.flush()
        frees(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def frees(status: int) -> None:
    import gc

    for name in [name for name in globals() if name.startswith("shared_")]:
        del globals()[name]
    gc.collect()
    os._exit(status)


def test_a_forked_child_is_told_to_attach_again_and_the_parent_goes_on(attach: Attach) -> None:
    client = attach(notifications=True)
    table = client.allocate((10, 64))
    table.numpy()[:] = np.arange(10)[:, None]
    out = client.allocate((2, 64))
    transfer = client.read_rows(table, [1, 2], out, wait=False)
    transfer.wait()
    # What only the child drops.
    globals()["shared_objects"] = [attach(), client.batch(), client.allocate(64), client.read(table[0], out[0], wait=False)]

    def child() -> None:
        uses: list[Callable[[], object]] = [
            lambda: client.read_rows(table, [1, 2], out),
            lambda: client.read_rows(table, [1, 2], out, wait=False),
            lambda: client.allocate(64),
            lambda: client.open("name"),
            lambda: client.batch().submit(),
            lambda: client.wait_notification(0),
            lambda: client.wait_notification(),
            lambda: client.doorbells,
            lambda: client.close(),
            lambda: transfer.wait(),
            lambda: transfer.poll(),
            lambda: transfer.done,
            lambda: transfer.cancel(),
            lambda: table.numpy(),
            lambda: table.export("name"),
            lambda: table.close(),
        ]
        for use in uses:
            with pytest.raises(sr.ForkedError, match="belongs to the parent process: attach again"):
                use()

    in_child(child)
    del globals()["shared_objects"]
    client.read_rows(table, [3, 4], out)
    assert out.numpy()[:, 0].tolist() == [3, 4]
    client.close()


def test_a_child_of_an_engine_has_none_and_makes_its_own() -> None:
    engine = sr.Engine()
    client = engine.client()
    lent = engine.adopt(np.zeros(64), "lent")

    def child() -> None:
        uses: list[Callable[[], object]] = [
            engine.client,
            engine.close,
            lambda: engine.endpoint,
            lambda: engine.listen("/x"),
            lent.close,
        ]
        for use in uses:
            with pytest.raises(sr.ForkedError):
                use()
        with sr.Engine() as own, own.client() as other:
            buffer = other.allocate(64)
            assert other.read(buffer, buffer).bytes == 64

    in_child(child)
    assert client.open("lent").nbytes == 512
    engine.close()


def test_a_child_may_drop_what_it_has_of_its_parents_engine_after_it_made_its_own() -> None:
    engines = [sr.Engine() for _ in range(2)]

    def child() -> None:
        # As a worker does that begins anew: the new one is there before the old one goes.
        for which in range(len(engines)):
            engines[which] = sr.Engine()
        for engine in engines:
            with engine.client() as client:
                buffer = client.allocate(64)
                assert client.read(buffer, buffer).bytes == 64
            engine.close()

    in_child(child)
    for engine in engines:
        engine.close()


WHOLE_CHILD = """
import os, sys, scatter_ring as sr
client = sr.attach(sys.argv[1])
buffer = client.allocate(64)
array = buffer.numpy()
engine = sr.Engine()
own = engine.client()
child = os.fork()
if child == 0:
    sys.exit(0)  # As a program ends: everything is freed.
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert client.read(buffer, buffer).bytes == 64
mine = own.allocate(64)
assert own.read(mine, mine).bytes == 64
"""


def test_a_child_that_exits_does_not_end_its_parents_sessions(daemon: Daemon) -> None:
    command = [sys.executable, "-c", WHOLE_CHILD, str(daemon.socket)]
    subprocess.run(command, check=True, timeout=30)


def test_a_child_forked_while_threads_use_the_client_does_not_hang(daemon: Daemon) -> None:
    import threading

    client = sr.attach(daemon.socket)
    buffer = client.allocate(64)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            client.read(buffer, buffer)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()

    def child() -> None:
        with pytest.raises(sr.ForkedError):
            client.read(buffer, buffer)

    try:
        for _ in range(20):
            in_child(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert client.read(buffer, buffer).bytes == 64


PRODUCER = """
import sys, numpy as np, scatter_ring as sr
client = sr.attach(sys.argv[1])
table = client.allocate((100_000, 64))
table.export("victim")
out = client.allocate((100_000, 64))
ids = np.zeros(100_000, np.uint32)
print("ready", flush=True)
while True:
    transfers = [client.read_rows(table, ids, out, wait=False) for _ in range(4)]
    for transfer in transfers:
        transfer.wait()
"""


def test_a_producer_that_is_killed_leaves_the_daemon_and_others_as_they_were(daemon: Daemon) -> None:
    with sr.attach(daemon.socket) as client:
        table = client.allocate((100, 64))
        table.numpy()[:] = np.arange(100)[:, None]
        out = client.allocate((3, 64))
        client.read_rows(table, [1, 2, 3], out)
        before = daemon.fds()
        for round in range(3):
            producer = subprocess.Popen([sys.executable, "-c", PRODUCER, daemon.socket], stdout=subprocess.PIPE)
            assert producer.stdout is not None and producer.stdout.readline() == b"ready\n"
            region = client.open("victim")
            client.read_rows(region, [1, 2, 3], out)
            assert daemon.fds() > before
            producer.send_signal(signal.SIGKILL)
            producer.wait()
            producer.stdout.close()
            within(10, lambda: daemon.fds() == before)
            with pytest.raises(sr.TransferError) as failed:
                client.read_rows(region, [1, 2, 3], out)
            assert failed.value.name == "REGION_GONE"
            client.read_rows(table, [50 + round, 60, 70], out)
            assert out.numpy()[:, 9].tolist() == [50 + round, 60, 70]


def test_an_engine_that_is_killed_is_an_error_and_not_a_hang(daemon: Daemon) -> None:
    client = sr.attach(daemon.socket, notifications=True)
    table = client.allocate((100, 64))
    array = table.numpy()
    array[:] = 6
    # Numbers in memory of the library's: nothing is asked of an engine that does not answer.
    numbers = client.allocate((1,), np.uint32)
    daemon.stop()
    transfer = client.read_rows(table, numbers, table[5:6], wait=False)
    daemon.kill()
    with pytest.raises(sr.EngineLost, match="engine lost") as failed:
        transfer.wait()
    assert isinstance(failed.value, ConnectionError) and not failed.value.reusable and transfer.done
    uses: list[Callable[[], object]] = [
        lambda: client.allocate(64),
        lambda: client.wait_notification(),
        lambda: client.read(table, table),
    ]
    for use in uses:
        with pytest.raises(sr.EngineLost):
            use()
    assert (array == 6).all(), "memory is gone with the engine"
    client.close()


COUNTED = """
import sys, scatter_ring as sr
count = int(sys.argv[2])
client = sr.attach(sys.argv[1])
table = client.allocate((1000, 64))
out = client.allocate((8, 64))
ids = client.allocate(8, "uint32")
done = 0
# The engine stays awake: one transfer is always under way.
transfers = []
for _ in range(count):
    transfers.append(client.read_rows(table, ids, out, wait=False))
    if len(transfers) > 16:
        transfer = transfers.pop(0)
        while not transfer.done:
            pass
        done += transfer.result.bytes == 512
for transfer in transfers:
    while not transfer.done:
        pass
    done += transfer.result.bytes == 512
assert done == count
print("doorbells", client.doorbells)
"""


def system_calls(daemon: Daemon, count: int) -> tuple[int, int]:
    """How many calls a program makes that submits and reaps so many operations, and how many of them were doorbells."""
    with tempfile.NamedTemporaryFile("r") as report:
        command = ["strace", "-f", "-c", "-o", report.name, sys.executable, "-c", COUNTED, str(daemon.socket), str(count)]
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        total = re.search(r"^100\.00\s+\S+\s+(?:\d+\s+)?(\d+)\s.*total$", report.read(), re.M)
        assert total is not None
        return int(total[1]), int(ran.stdout.split()[1])


def test_submitting_and_reaping_make_no_system_call_while_the_engine_is_awake(daemon: Daemon) -> None:
    if shutil.which("strace") is None:
        not_run("strace is not installed")
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode != 0:
        not_run("strace may not trace here")
    (few, few_doorbells), (many, many_doorbells) = system_calls(daemon, 2_000), system_calls(daemon, 22_000)
    # An engine that slept all the same (the machine is busy) was woken by one call each.
    more = (many - many_doorbells) - (few - few_doorbells)
    print(f"\n20,000 more operations, {more} more system calls, {many_doorbells} doorbells")
    # Memory that Python itself takes from the kernel: some calls, whatever is moved.
    assert more < 200, f"{more} system calls for 20,000 operations"


EXAMPLES = {
    "read_rows": "4 rows, 1056 bytes, verified\n",
    "write_tiles": "64 pieces, 8192 bytes, verified\n",
    "event_loop": "100 batches, 3200 rows, heartbeat went on\n",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_what_it_says_in_every_language(daemon: Daemon, name: str) -> None:
    program = os.path.join(os.path.dirname(__file__), "../../examples/python", f"{name}.py")
    ran = subprocess.run([sys.executable, program, daemon.socket], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, EXAMPLES[name], "")
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert ran.returncode == 1 and "usage" in ran.stderr
