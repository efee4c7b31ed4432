"""What a caller can do wrong, and what he is told. Whatever this side can see is an error before anything is submitted."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import scatter_ring as sr


@pytest.fixture
def client() -> Any:
    with sr.Engine() as engine, engine.client() as client:
        yield client


@pytest.fixture
def table(client: sr.Client) -> sr.Buffer:
    return client.allocate((100, 4), np.float32)


# Wrong types are part of it.
Make = Callable[[Any, Any], object]


MISTAKES: list[tuple[type[Exception], str, Make]] = [
    (ValueError, "out: too short: room for 2 of 3 pieces of 16 B", lambda c, t: c.read_rows(t, [1, 2, 3], t[:2])),
    (ValueError, "rows: too short: room for 2 of 3 pieces of 16 B", lambda c, t: c.write_rows(t, [1, 2, 3], t[:2])),
    (TypeError, "ids: dtype float64, not int32", lambda c, t: c.read_rows(t, [0.5], t)),
    (TypeError, "ids: dtype int16, not int32", lambda c, t: c.read_rows(t, np.zeros(2, np.int16), t)),
    (TypeError, "ids: integers in an array or a list are needed, not NoneType", lambda c, t: c.read_rows(t, None, t)),
    (TypeError, "ids: integers in an array or a list are needed, not set", lambda c, t: c.read_rows(t, {1, 2}, t)),
    (TypeError, "lengths: integers in an array or a list.* not float", lambda c, t: c.read_ranges(t, [0], t, [0], 0.5)),
    (ValueError, "ids: an array without dimensions", lambda c, t: c.read_rows(t, np.array(1), t)),
    (ValueError, "out: an array without dimensions", lambda c, t: c.read_rows(t, [1], t.numpy()[0, 0:1].reshape(()))),
    (ValueError, r"ids: of shape \(2, 2\), not one-dimensional", lambda c, t: c.read_rows(t, [[1, 2], [3, 4]], t)),
    (
        TypeError,
        "table is of dtype float32, out of float64: nothing is converted",
        lambda c, t: c.read_rows(t, [1], c.allocate((1, 2), np.float64)),
    ),
    (
        TypeError,
        "table is of dtype float32, out of an unusual one",
        lambda c, t: c.read_rows(t, [1], t.numpy().view(">f4")),
    ),
    (
        ValueError,
        "table has rows of 16 B, out of 20 B",
        lambda c, t: c.read_rows(t, [1], c.allocate((1, 5), np.float32)),
    ),
    (ValueError, "row_bytes is needed", lambda c, t: c.read_rows(c.allocate(64), [1], c.allocate(64, np.float32))),
    (ValueError, "row_bytes: 0", lambda c, t: c.read_rows(t, [1], t, row_bytes=0)),
    (ValueError, "missing: scatter_ring.ZERO", lambda c, t: c.read_rows(t, [1], t, missing="none")),
    (ValueError, "deadline: 0; a time in seconds", lambda c, t: c.read_rows(t, [1], t, deadline=0)),
    (ValueError, "deadline: -1", lambda c, t: c.batch(deadline=-1)),
    (ValueError, r"ids\[1\] is 60: table has 50", lambda c, t: c.read_rows(t[50:], [1, 60], t)),
    (ValueError, r"ids\[0\] is -2: table has 50", lambda c, t: c.read_rows(t[50:], [-2], t, missing=sr.ZERO)),
    (ValueError, "not in memory of this client", lambda c, t: c.read_rows(t, [1], np.zeros((1, 4), np.float32))),
    (TypeError, "out: a Buffer, a NumPy array", lambda c, t: c.read_rows(t, [1], "text")),
    (ValueError, "dst: each row must be one run of bytes", lambda c, t: c.read_tile(t, t.numpy()[:, ::2])),
    (ValueError, "runs backwards", lambda c, t: c.read_rows(t, [1], t.numpy()[::-1])),
    (ValueError, "2 src_ids and 1 dst_ids", lambda c, t: c.read_blocks(t, [1, 2], t, [1])),
    (ValueError, r"dst_ids\[0\] is 10: dst has 10", lambda c, t: c.read_blocks(t, [1], t[:10], [10])),
    (ValueError, r"dst_ids\[0\] is -1: dst has 10", lambda c, t: c.read_blocks(t, [1], t[:10], [-1], missing="zero")),
    (ValueError, "range 1: 8 B at 1600 of src", lambda c, t: c.read_ranges(t, [0, 1600], t, [0, 8], 8)),
    (ValueError, "range 0: 8 B at 0 of src .* at -8 of dst", lambda c, t: c.read_ranges(t, [0], t, [-8], 8)),
    (ValueError, "longer than 4 GiB", lambda c, t: c.read_ranges(t, [0], t, [0], 2**32)),
    (ValueError, "not of one length", lambda c, t: c.read_ranges(t, [0, 1], t, [0], 8)),
    (ValueError, "how many ranges", lambda c, t: c.read_ranges(t, None, t, None, 8)),
    (ValueError, "src: not C-contiguous", lambda c, t: c.read_ranges(t.numpy()[:, 1:], [0], t, [0], 8)),
    (ValueError, "src has 100 pieces of 16 B, dst 10", lambda c, t: c.write_tile(t, t[:10])),
    (ValueError, "piece_bytes is needed", lambda c, t: c.read_tile(c.allocate(9), c.allocate(9, np.int8), count=1)),
    (ValueError, "dst: too short: room for 100 of 101", lambda c, t: c.read_tile(c.allocate((101, 16)), t, count=101)),
    (ValueError, "dst: too short: 1600 B at 16 of 1600 B", lambda c, t: c.read(t, t, dst_offset=16, nbytes=1600)),
    (ValueError, "src: offset 1601 of 1600 B", lambda c, t: c.read(t, t, src_offset=1601)),
    (ValueError, "payload: 4097 B; at most 4096", lambda c, t: c.notify(t, payload=bytes(4097))),
    (TypeError, "scatter_ring.DESCRIPTOR_DTYPE", lambda c, t: c.submit_descriptors(np.zeros(64, np.uint64))),
    (TypeError, "dtype: datetime64 is not one of bool", lambda c, t: c.allocate(4, "datetime64")),
    (TypeError, "dtype: >f4 is not one of bool", lambda c, t: c.allocate(4, ">f4")),
    (TypeError, "shape: an integer, or a sequence", lambda c, t: c.allocate("many")),
    (ValueError, "memory of 0 bytes", lambda c, t: c.allocate((4, 0))),
    (ValueError, "more bytes than can be counted", lambda c, t: c.allocate((2**40, 2**40))),
    (ValueError, "parts of buffers have step 1", lambda c, t: t[::2]),
    (IndexError, "row 100 of a buffer of 100 rows", lambda c, t: t[100]),
    (sr.RegionError, "more than this machine has", lambda c, t: c.allocate(2**50)),
    (sr.RegionError, "no such export", lambda c, t: c.open("nothing of this name")),
    (TypeError, "name: a text is needed", lambda c, t: c.open(5)),
    (sr.RegionError, "a name has 1 to", lambda c, t: t.export("")),
    (sr.RegionError, "notifications are off", lambda c, t: c.wait_notification(0)),
    (sr.RegionError, r"descriptors\[0\].src_region: 77 is no open memory", lambda c, t: c.submit_descriptors(odd(77))),
    (sr.RegionError, "its mode cannot be read", lambda c, t: c.register(10_000, 4096)),
]


@pytest.mark.parametrize(("kind", "message", "use"), MISTAKES, ids=[message for _, message, _ in MISTAKES])
def test_a_mistake_is_named_and_nothing_is_submitted(
    client: sr.Client, table: sr.Buffer, kind: type[Exception], message: str, use: Make
) -> None:
    table.numpy()[:] = 1
    with pytest.raises(kind, match=message):
        use(client, table)
    assert (table.numpy() == 1).all()
    # And the client goes on.
    out = client.allocate((1, 4), np.float32)
    assert client.read_rows(table, [0], out).bytes == 16
    assert "Transfer 1>" in repr(client.read_rows(table, [0], out, wait=False)), "something had been submitted"


def odd(handle: int) -> Any:
    descriptors = np.zeros(2, sr.DESCRIPTOR_DTYPE)
    descriptors["opcode"], descriptors["src_region"] = sr.OPCODE_READ, handle
    return descriptors


def test_what_is_read_only_is_not_a_target(client: sr.Client, table: sr.Buffer) -> None:
    table.export("read-only")
    region = client.open("read-only")
    rows = client.allocate((1, 4), np.float32)
    with pytest.raises(sr.RegionError, match="table: read-only: it was opened or registered without writable") as failed:
        client.write_rows(region, [1], rows)
    assert failed.value.name == "NO_RIGHT" and failed.value.reusable
    view = table.numpy()
    view.flags.writeable = False
    with pytest.raises(sr.RegionError, match="out: this array is read-only"):
        client.read_rows(table, [1], view)
    with pytest.raises(sr.RegionError, match="does not grant"):
        client.open("read-only", writable=True)


def test_closed_memory_is_not_used_again(client: sr.Client, table: sr.Buffer) -> None:
    array, out = table.numpy(), client.allocate((1, 4), np.float32)
    array[:] = 3
    table.close()
    table.close()
    assert table.closed and "closed" in repr(table)
    uses: list[Callable[[], object]] = [
        lambda: client.read_rows(table, [1], out),
        lambda: client.read_rows(array, [1], out),
        lambda: client.read_rows(out, table, out),
        lambda: table.numpy(),
        lambda: table.export("name"),
        lambda: np.from_dlpack(table),
    ]
    for use in uses:
        with pytest.raises(sr.ClosedError, match="this memory was closed"):
            use()
    with pytest.raises((BufferError, ValueError), match="this memory was closed"):
        memoryview(table)
    assert array.min() == 3, "an array of it is not what it was"


def test_a_closed_client_says_so_and_its_arrays_stay(client: sr.Client, table: sr.Buffer) -> None:
    array = table.numpy()
    array[:] = 4
    batch = client.batch()
    transfer = client.read_rows(table, [1], table[5:6], wait=False)
    client.close()
    assert client.closed
    uses: list[Callable[[], object]] = [
        lambda: client.read_rows(table, [1], table),
        lambda: client.allocate(8),
        lambda: client.open("name"),
        lambda: client.doorbells,
        lambda: batch.submit(),
        lambda: transfer.wait(),
        lambda: transfer.result,
    ]
    for use in uses:
        with pytest.raises(sr.ClosedError, match="the client was closed"):
            use()
    assert transfer.done
    table.close()
    assert array.sum() == 4 * array.size


def test_a_closed_engine_says_so(client: sr.Client) -> None:
    engine = sr.Engine()
    other = engine.client()
    buffer = other.allocate(64)
    engine.close(timeout=1)
    assert engine.closed
    with pytest.raises(sr.ClosedError, match="the engine was closed"):
        engine.client()
    with pytest.raises(sr.EngineLost, match="the session has ended") as failed:
        other.read(buffer, buffer)
    assert failed.value.name in ("STOPPING", "ENGINE_LOST") and not failed.value.reusable
    assert isinstance(failed.value, ConnectionError)


def test_memory_of_another_client_is_refused(client: sr.Client, table: sr.Buffer) -> None:
    with sr.Engine() as engine, engine.client() as other:
        with pytest.raises(sr.RegionError, match="table: this memory belongs to another client"):
            other.read_rows(table, [1], other.allocate((1, 4), np.float32))
        with pytest.raises(ValueError, match="not in memory of this client"):
            other.read_rows(table.numpy(), [1], other.allocate((1, 4), np.float32))


class Stuck:
    """A client whose `notify` waits: the one to be told takes no more."""

    def __init__(self, engine: sr.Engine) -> None:
        self.receiver = engine.client(notifications=True, cq_capacity=8)
        self.inbox = self.receiver.allocate(64)
        self.inbox.export("inbox", writable=True)
        self.client = engine.client()
        self.buffer = self.client.allocate(64)
        self.region = self.client.open("inbox", writable=True)
        for _ in range(20):
            self.last = self.client.notify(self.region, wait=False)

    def start(self, deadline: float | None = None) -> sr.Transfer:
        batch = self.client.batch(deadline=deadline)
        batch.write(self.buffer, self.region)
        batch.notify(self.region)
        return batch.submit()


def test_memory_that_a_batch_uses_is_not_closed_and_waits_have_an_end(engine: sr.Engine) -> None:
    stuck = Stuck(engine)
    transfer = stuck.start()
    with pytest.raises(TimeoutError, match="still under way after 0.01 s"):
        transfer.wait(0.01)
    assert not transfer.done and transfer.poll() is None
    with pytest.raises(RuntimeError, match="still under way"):
        transfer.result
    with pytest.raises(sr.RegionError, match="a batch that is under way still uses this region"):
        stuck.buffer.close()
    assert not stuck.buffer.closed and not transfer.wait_released(0)
    while not transfer.done:
        stuck.receiver.wait_notification(10)
    assert transfer.result.bytes == 64
    stuck.buffer.close()


def test_a_deadline_is_an_error_of_its_own(engine: sr.Engine) -> None:
    stuck = Stuck(engine)
    transfer = stuck.start(deadline=0.01)
    with pytest.raises(sr.TimedOut, match="timed out") as failed:
        transfer.wait()
    error = failed.value
    assert isinstance(error, TimeoutError) and isinstance(error, sr.TransferError)
    assert (error.name, error.stage, error.transfer) == ("TIMED_OUT", "wait", transfer)
    assert transfer.wait_released(10)
    with pytest.raises(sr.TimedOut, match="buffers are reusable"):
        transfer.poll()


def test_a_transfer_is_cancelled_once(engine: sr.Engine) -> None:
    stuck = Stuck(engine)
    transfer = stuck.start()
    assert transfer.cancel()
    with pytest.raises(sr.Cancelled, match="cancelled") as failed:
        transfer.wait()
    assert failed.value.name == "CANCELLED"
    assert not transfer.cancel(), "what has ended is not cancelled"


def test_attaching_where_nobody_listens_says_what_to_do(directory: str) -> None:
    with pytest.raises(sr.AttachError, match="is `scatter-ring serve` running") as failed:
        sr.attach("/nowhere/socket")
    assert failed.value.name == "ENGINE_LOST"
    with sr.Engine() as engine:
        path = os.path.join(directory, "engine", "socket")
        engine.listen(path)
        with pytest.raises(sr.AttachError, match="setting not allowed"):
            sr.attach(path, sq_capacity=3)
        sr.attach(path).close()
        with pytest.raises(sr.EngineError):
            sr.Engine().listen(path)


def test_the_package_is_imported_without_a_daemon_or_devices() -> None:
    code = "import scatter_ring as sr\ntry: sr.attach('/nowhere')\nexcept sr.AttachError as e: print(e)"
    environment = {"PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "no socket at /nowhere" in ran.stdout


def test_an_error_has_the_place_of_the_mistake(client: sr.Client, table: sr.Buffer) -> None:
    with pytest.raises(sr.TransferError) as failed, client.batch() as batch:
        batch.read_rows(table, [1, 2], table[:2])
        batch.read_rows(table, [1, 100, 3], client.allocate((3, 4), np.float32))
    error = failed.value
    assert (error.code, error.name, error.stage, error.peer) == (-12, "OUT_OF_RANGE", "pack", None)
    assert (error.descriptor, error.fragment, error.field, error.detail) == (1, 1, "src_offset", 100)
    assert (error.bytes_done, error.reusable) == (32, True)
    assert "descriptor 1 of the batch, fragment 1, src_offset" in str(error)


def test_an_error_goes_from_one_process_to_another(client: sr.Client, table: sr.Buffer) -> None:
    with pytest.raises(sr.TransferError) as failed:
        client.read_rows(table, [1, 100], client.allocate((2, 4), np.float32))
    timed_out = sr.TimedOut("late", code=-5, name="TIMED_OUT", peer=7, reusable=False)
    for error in (failed.value, timed_out):
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(other) is type(error) and str(other) == str(error)
            assert other.__dict__ == {**error.__dict__, "transfer": None}
