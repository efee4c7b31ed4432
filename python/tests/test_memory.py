"""Memory: without copies, alive as long as somebody sees it, adopted from others."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import scatter_ring as sr
from conftest import Attach

DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_is_the_memory_itself_in_every_type(client: sr.Client, dtype: str) -> None:
    buffer = client.allocate((3, 5), dtype)
    array = buffer.numpy()
    assert (array.dtype, array.shape) == (np.dtype(dtype), (3, 5))
    assert (buffer.dtype, buffer.shape, buffer.nbytes) == (dtype, (3, 5), array.nbytes)
    assert not array.any(), "new memory is 0"
    array[1] = 1
    for other in [np.asarray(buffer), np.from_dlpack(buffer), np.asarray(buffer[0:3])]:
        assert np.shares_memory(other, array) and other.dtype == array.dtype and np.array_equal(other, array)
    assert np.array_equal(np.asarray(buffer[1]), array[1])
    assert memoryview(buffer).nbytes == array.nbytes


def test_dlpack_says_what_it_has_to(client: sr.Client) -> None:
    buffer = client.allocate((4, 3), np.float32)
    assert buffer.__dlpack_device__() == (1, 0)
    assert "dltensor_versioned" in repr(buffer.__dlpack__(max_version=(1, 1)))
    assert '"dltensor"' in repr(buffer.__dlpack__())
    assert '"dltensor"' in repr(buffer.__dlpack__(max_version=(0, 8)))
    for asked in [{"stream": 1}, {"dl_device": (2, 0)}, {"copy": True}]:
        with pytest.raises(BufferError):
            buffer.__dlpack__(**asked)  # type: ignore[arg-type]
    part = np.from_dlpack(buffer[1:3])
    part[:] = 7
    assert buffer.numpy()[1:3].min() == 7 and not buffer.numpy()[[0, 3]].any()


def test_bfloat16_is_for_dlpack_only(client: sr.Client) -> None:
    buffer = client.allocate(8, "bfloat16")
    assert (buffer.dtype, buffer.nbytes) == ("bfloat16", 16)
    buffer.__dlpack__(max_version=(1, 0))
    with pytest.raises(TypeError, match="NumPy has no bfloat16: use torch.from_dlpack"):
        buffer.numpy()


def test_arrays_and_tensors_keep_the_memory(attach: Attach) -> None:
    client = attach()
    buffer = client.allocate(1 << 20, np.uint8)
    arrays = [buffer.numpy(), np.from_dlpack(buffer), np.asarray(buffer[100:200]), np.frombuffer(memoryview(buffer), np.uint8)[5:]]
    view = memoryview(buffer)
    capsule = buffer.__dlpack__(max_version=(1, 0))
    arrays[0][:] = 42
    buffer.close()
    client.close()
    del buffer, client
    gc.collect()
    assert all((array == 42).all() for array in arrays) and view[7] == 42
    arrays[0][:] = 43
    assert all((array == 43).all() for array in arrays)
    del capsule, view, arrays
    gc.collect()


def mapped_bytes() -> int:
    with open("/proc/self/smaps") as maps:
        lines = maps.read().splitlines()
    return sum(1 for line in lines if "scatter-ring-region" in line)


def test_memory_that_nobody_sees_any_more_is_unmapped(attach: Attach) -> None:
    client = attach()
    before = mapped_bytes()
    for _ in range(50):
        buffer = client.allocate(1 << 20)
        array, tensor = buffer.numpy(), np.from_dlpack(buffer)
        capsule = buffer.__dlpack__()  # Never taken.
        del buffer, array, tensor, capsule
    gc.collect()
    assert mapped_bytes() == before


def test_a_transfer_keeps_what_it_uses(client: sr.Client) -> None:
    out = client.allocate((100, 64))
    array = out.numpy()
    table = client.allocate((100, 64))
    table.numpy()[:] = 9
    transfer = client.read_rows(table, np.arange(100), out, wait=False)
    del table, out
    gc.collect()
    assert transfer.wait().bytes == 6400 and (array == 9).all()


def test_a_session_ends_when_nothing_of_it_is_left(engine: sr.Engine) -> None:
    client = engine.client()
    buffer = client.allocate(64)
    buffer.export("kept")
    del client
    gc.collect()
    with engine.client() as other:
        region = other.open("kept")
        assert region.nbytes == 64
        del buffer
        gc.collect()
        with pytest.raises(sr.RegionError, match="no such export"):
            for _ in range(10_000):
                other.open("kept")


def test_numpy_memory_is_adopted_by_an_engine_until_it_is_closed(engine: sr.Engine) -> None:
    class Array(np.ndarray[Any, Any]):
        """An array whose end can be watched."""

    array = np.arange(1000 * 33, dtype=np.float64).reshape(1000, 33).view(Array)
    watch = weakref.ref(array)
    lent = engine.adopt(array, "adopted")
    assert (lent.name, lent.nbytes) == ("adopted", array.nbytes)
    with engine.client() as client:
        region = client.open(lent)
        out = client.allocate((3, 33), np.float64)
        client.read_rows(region, [7, 999, 7], out)
        assert np.array_equal(out.numpy(), np.asarray(array)[[7, 999, 7]])
        with pytest.raises(sr.RegionError, match="does not grant"):
            client.open("adopted", writable=True)
        with pytest.raises(sr.EngineError, match="name already exported"):
            engine.adopt(array, "adopted")
        del array
        gc.collect()
        assert watch() is not None, "the array is gone while somebody can read it"
        lent.close()
        lent.close()
        gc.collect()
        assert lent.closed and watch() is None, "the array is kept"
        with pytest.raises(sr.TransferError) as failed:
            client.read_rows(region, [1], out)
        assert failed.value.name == "REGION_GONE"


def test_what_cannot_be_adopted_is_refused(engine: sr.Engine) -> None:
    array = np.zeros((10, 10))
    with engine.client() as client:
        adopts: list[Callable[..., Any]] = [engine.adopt, client.adopt]
        for adopt in adopts:
            with pytest.raises(ValueError, match="array: not C-contiguous: float64 of shape"):
                adopt(array[:, ::2])
            with pytest.raises(ValueError, match="array: not C-contiguous"):
                adopt(array.T)
            with pytest.raises(ValueError, match="array: of 0 bytes"):
                adopt(array[:0])
            with pytest.raises(TypeError, match="array: a Buffer, a NumPy array"):
                adopt([1, 2, 3])
            fixed = array.copy()
            fixed.flags.writeable = False
            with pytest.raises(sr.RegionError, match="array: this array is read-only"):
                adopt(fixed, writable=True)
            with adopt(fixed):
                pass


def test_an_adopted_array_is_a_target_by_itself(engine: sr.Engine) -> None:
    out = np.zeros((5, 16), np.uint8)
    with engine.client() as client:
        table = client.allocate((100, 16))
        table.numpy()[:] = np.arange(100)[:, None]
        buffer = client.adopt(out, writable=True)
        assert np.shares_memory(buffer.numpy(), out)
        client.read_rows(table, [1, 2, 3], out[1:4])
        assert out[:, 0].tolist() == [0, 1, 2, 3, 0]
        # Numbers in adopted memory are read where they are.
        ids = np.array([50, 60], np.uint32)
        with client.adopt(ids):
            client.read_rows(table, ids, out)
        assert out[:2, 3].tolist() == [50, 60]
        buffer.close()
        with pytest.raises(sr.ClosedError, match="this memory was closed"):
            client.read_rows(table, [1], out)


def test_private_memory_is_refused_by_a_daemon_and_shared_memory_is_not(client: sr.Client) -> None:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, 8192)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    shared = np.frombuffer(mmap.mmap(fd, 8192), np.uint8).reshape(64, 128)
    table = client.allocate((10, 128))
    table.numpy()[:] = np.arange(10)[:, None]
    with client.adopt(shared, writable=True):
        client.read_rows(table, [9, 8], shared)
        assert shared[:3, 0].tolist() == [9, 8, 0]
    os.close(fd)


def test_private_memory_is_refused_where_the_engine_is_another_process(daemon: object) -> None:
    with sr.attach(daemon.socket) as client:  # type: ignore[attr-defined]
        with pytest.raises(sr.RegionError, match="private to the process.*or use an Engine in this process") as failed:
            client.adopt(np.zeros(100_000))
        assert failed.value.name == "BAD_FD"


def test_a_memory_file_is_registered_for_reading_or_writing(client: sr.Client) -> None:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, 65536)
    with pytest.raises(sr.RegionError):
        client.register(fd, 65536)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    os.pwrite(fd, bytes(range(100)), 4096)
    with open(fd, "rb", closefd=False) as file:
        table = client.register(file, (10, 10), np.uint8, offset=4096, writable=False)
    out = client.register(fd, (10, 10), offset=8192)
    os.close(fd)
    assert not table.writable and not table.numpy().flags.writeable and out.writable
    with pytest.raises(BufferError, match="DLPack 1.0"):
        table.__dlpack__()
    assert not np.from_dlpack(table).flags.writeable
    client.read_rows(table, [4, 2], out)
    assert np.array_equal(out.numpy()[:2], table.numpy()[[4, 2]])
    with pytest.raises(sr.RegionError, match="read-only"):
        client.write_rows(table, [1], out)


class OnlyDLPack:
    """An array as torch has it: DLPack and nothing else."""

    def __init__(self, array: object, device: tuple[int, int] = (1, 0), versions: bool = True) -> None:
        self.array, self.device, self.versions = array, device, versions

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **arguments: object) -> object:
        if arguments and not self.versions:
            raise TypeError("unexpected keyword argument")
        return self.array.__dlpack__(**arguments)  # type: ignore[attr-defined]


@pytest.mark.parametrize("versions", [True, False])
def test_tensors_are_taken_by_dlpack(engine: sr.Engine, versions: bool) -> None:
    with engine.client() as client:
        table = client.allocate((100, 8), np.float32)
        table.numpy()[:] = np.arange(100)[:, None]
        out = client.allocate((4, 8), np.float32)
        ids = OnlyDLPack(np.array([5, 6]), versions=versions)
        client.read_rows(OnlyDLPack(table, versions=versions), ids, OnlyDLPack(out[1:3], versions=versions))
        assert out.numpy()[:, 0].tolist() == [0, 5, 6, 0]
        private = np.zeros((2, 8), np.float32)
        with client.adopt(OnlyDLPack(private, versions=versions), writable=True) as buffer:
            assert (buffer.shape, buffer.dtype) == ((2, 8), "float32")
            client.read_rows(table, ids, buffer)
        assert private[:, 7].tolist() == [5, 6]
        # Rows that lie apart.
        wide = np.zeros((2, 16), np.float32)
        with client.adopt(wide, writable=True):
            client.read_rows(table, [3, 4], OnlyDLPack(wide[:, 8:], versions=versions))
        assert wide[:, [7, 8]].tolist() == [[0, 3], [0, 4]]
        with pytest.raises(TypeError, match="out: in memory of a device .*type 2.*only memory of the host"):
            client.read_rows(table, ids, OnlyDLPack(out, device=(2, 0)))


class Tensor(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class Made:
    """A tensor of one dimension, as no library that the tests have makes it."""

    def __init__(self, data: int | None, length: int, bits: int) -> None:
        self.shape = ctypes.c_int64(length)
        self.tensor = Tensor(data, (1, 0), 1, 1, bits, 1, ctypes.addressof(self.shape))

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self) -> object:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.tensor), b"dltensor", None)


def test_a_tensor_that_is_nowhere_or_of_parts_of_bytes_is_refused(client: sr.Client) -> None:
    buffer = client.allocate(64)
    # Where torch's are that have no elements.
    with pytest.raises(ValueError, match="dst: this array is not in memory of this client"):
        client.read(buffer, Made(None, 0, 8))
    address = buffer.numpy().ctypes.data
    assert client.read(buffer, Made(address, 64, 8)).bytes == 64
    with pytest.raises(TypeError, match="dst: elements of 4 bits; whole bytes are moved"):
        client.read(buffer, Made(address, 64, 4))
