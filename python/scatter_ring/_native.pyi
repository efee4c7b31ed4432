"""The native module: see ``scatter_ring``, which has all of it. What each does, with shapes and units, is said by ``help()``."""

from collections.abc import AsyncIterator, Generator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol, Self, SupportsIndex, TypeAlias, final, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer as _HasBuffer

from ._values import Missing

class _HasDLPack(Protocol):
    def __dlpack__(self) -> object: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...

class _HasFileno(Protocol):
    def fileno(self) -> int: ...

class _HasName(Protocol):
    @property
    def name(self) -> str: ...

_Path: TypeAlias = str | PathLike[str]
_Shape: TypeAlias = SupportsIndex | Sequence[int]
_DType: TypeAlias = npt.DTypeLike | object
_Array: TypeAlias = _HasBuffer | _HasDLPack
_Memory: TypeAlias = Buffer | Region | _Array
_Integers: TypeAlias = _Array | Sequence[int]
_Missing: TypeAlias = Missing | Literal["zero", "skip"] | None

__all__ = [
    "attach",
    "Client",
    "Peer",
    "Notification",
    "Batch",
    "Buffer",
    "Region",
    "Engine",
    "Adopted",
    "Transfer",
    "Outcome",
    "Wakeup",
]

def attach(
    path: _Path,
    *,
    sq_capacity: int = 4096,
    cq_capacity: int = 1024,
    spin_us: int = 200,
    notifications: bool = False,
) -> Client: ...

@final
class Client:
    def allocate(self, shape: _Shape, dtype: _DType | None = None) -> Buffer: ...
    def register(
        self,
        fd: int | _HasFileno,
        shape: _Shape,
        dtype: _DType | None = None,
        *,
        offset: int = 0,
        writable: bool = True,
    ) -> Buffer: ...
    def adopt(self, array: _Array, *, writable: bool = False) -> Buffer: ...
    def open(self, name: str | _HasName, *, writable: bool = False, peer: Peer | None = None) -> Region: ...
    def connect(self, endpoint: str) -> Peer: ...
    @overload
    def read_rows(
        self,
        table: _Memory,
        ids: _Integers,
        out: _Memory,
        *,
        row_bytes: int | None = None,
        missing: _Missing = None,
        table_offset: int = 0,
        table_stride: int | None = None,
        deadline: float | None = None,
        wait: Literal[True] = True,
    ) -> Outcome: ...
    @overload
    def read_rows(
        self,
        table: _Memory,
        ids: _Integers,
        out: _Memory,
        *,
        row_bytes: int | None = None,
        missing: _Missing = None,
        table_offset: int = 0,
        table_stride: int | None = None,
        deadline: float | None = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def read_rows(
        self,
        table: _Memory,
        ids: _Integers,
        out: _Memory,
        *,
        row_bytes: int | None = None,
        missing: _Missing = None,
        table_offset: int = 0,
        table_stride: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
    ) -> Outcome | Transfer: ...
    @overload
    def write_rows(
        self,
        table: _Memory,
        ids: _Integers,
        rows: _Memory,
        *,
        row_bytes: int | None = None,
        table_offset: int = 0,
        table_stride: int | None = None,
        deadline: float | None = None,
        wait: Literal[True] = True,
    ) -> Outcome: ...
    @overload
    def write_rows(
        self,
        table: _Memory,
        ids: _Integers,
        rows: _Memory,
        *,
        row_bytes: int | None = None,
        table_offset: int = 0,
        table_stride: int | None = None,
        deadline: float | None = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def write_rows(
        self,
        table: _Memory,
        ids: _Integers,
        rows: _Memory,
        *,
        row_bytes: int | None = None,
        table_offset: int = 0,
        table_stride: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
    ) -> Outcome | Transfer: ...
    @overload
    def read_blocks(
        self,
        src: _Memory,
        src_ids: _Integers,
        dst: _Memory,
        dst_ids: _Integers,
        *,
        block_bytes: int | None = None,
        missing: _Missing = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
        deadline: float | None = None,
        wait: Literal[True] = True,
    ) -> Outcome: ...
    @overload
    def read_blocks(
        self,
        src: _Memory,
        src_ids: _Integers,
        dst: _Memory,
        dst_ids: _Integers,
        *,
        block_bytes: int | None = None,
        missing: _Missing = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
        deadline: float | None = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def read_blocks(
        self,
        src: _Memory,
        src_ids: _Integers,
        dst: _Memory,
        dst_ids: _Integers,
        *,
        block_bytes: int | None = None,
        missing: _Missing = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
    ) -> Outcome | Transfer: ...
    @overload
    def write_blocks(
        self,
        src: _Memory,
        src_ids: _Integers,
        dst: _Memory,
        dst_ids: _Integers,
        *,
        block_bytes: int | None = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
        deadline: float | None = None,
        wait: Literal[True] = True,
    ) -> Outcome: ...
    @overload
    def write_blocks(
        self,
        src: _Memory,
        src_ids: _Integers,
        dst: _Memory,
        dst_ids: _Integers,
        *,
        block_bytes: int | None = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
        deadline: float | None = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def write_blocks(
        self,
        src: _Memory,
        src_ids: _Integers,
        dst: _Memory,
        dst_ids: _Integers,
        *,
        block_bytes: int | None = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
    ) -> Outcome | Transfer: ...
    @overload
    def read_ranges(
        self,
        src: _Memory,
        src_offsets: _Integers | None,
        dst: _Memory,
        dst_offsets: _Integers | None,
        lengths: _Integers | int,
        *,
        deadline: float | None = None,
        wait: Literal[True] = True,
    ) -> Outcome: ...
    @overload
    def read_ranges(
        self,
        src: _Memory,
        src_offsets: _Integers | None,
        dst: _Memory,
        dst_offsets: _Integers | None,
        lengths: _Integers | int,
        *,
        deadline: float | None = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def read_ranges(
        self,
        src: _Memory,
        src_offsets: _Integers | None,
        dst: _Memory,
        dst_offsets: _Integers | None,
        lengths: _Integers | int,
        *,
        deadline: float | None = None,
        wait: bool = True,
    ) -> Outcome | Transfer: ...
    @overload
    def write_ranges(
        self,
        src: _Memory,
        src_offsets: _Integers | None,
        dst: _Memory,
        dst_offsets: _Integers | None,
        lengths: _Integers | int,
        *,
        deadline: float | None = None,
        wait: Literal[True] = True,
    ) -> Outcome: ...
    @overload
    def write_ranges(
        self,
        src: _Memory,
        src_offsets: _Integers | None,
        dst: _Memory,
        dst_offsets: _Integers | None,
        lengths: _Integers | int,
        *,
        deadline: float | None = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def write_ranges(
        self,
        src: _Memory,
        src_offsets: _Integers | None,
        dst: _Memory,
        dst_offsets: _Integers | None,
        lengths: _Integers | int,
        *,
        deadline: float | None = None,
        wait: bool = True,
    ) -> Outcome | Transfer: ...
    @overload
    def read_tile(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        count: int | None = None,
        piece_bytes: int | None = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
        deadline: float | None = None,
        wait: Literal[True] = True,
    ) -> Outcome: ...
    @overload
    def read_tile(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        count: int | None = None,
        piece_bytes: int | None = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
        deadline: float | None = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def read_tile(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        count: int | None = None,
        piece_bytes: int | None = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
    ) -> Outcome | Transfer: ...
    @overload
    def write_tile(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        count: int | None = None,
        piece_bytes: int | None = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
        deadline: float | None = None,
        wait: Literal[True] = True,
    ) -> Outcome: ...
    @overload
    def write_tile(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        count: int | None = None,
        piece_bytes: int | None = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
        deadline: float | None = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def write_tile(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        count: int | None = None,
        piece_bytes: int | None = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
    ) -> Outcome | Transfer: ...
    @overload
    def read(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        src_offset: int = 0,
        dst_offset: int = 0,
        nbytes: int | None = None,
        deadline: float | None = None,
        wait: Literal[True] = True,
    ) -> Outcome: ...
    @overload
    def read(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        src_offset: int = 0,
        dst_offset: int = 0,
        nbytes: int | None = None,
        deadline: float | None = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def read(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        src_offset: int = 0,
        dst_offset: int = 0,
        nbytes: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
    ) -> Outcome | Transfer: ...
    @overload
    def write(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        src_offset: int = 0,
        dst_offset: int = 0,
        nbytes: int | None = None,
        deadline: float | None = None,
        wait: Literal[True] = True,
    ) -> Outcome: ...
    @overload
    def write(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        src_offset: int = 0,
        dst_offset: int = 0,
        nbytes: int | None = None,
        deadline: float | None = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def write(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        src_offset: int = 0,
        dst_offset: int = 0,
        nbytes: int | None = None,
        deadline: float | None = None,
        wait: bool = True,
    ) -> Outcome | Transfer: ...
    @overload
    def notify(
        self,
        region: _Memory,
        *,
        offset: int = 0,
        user_data: int = 0,
        payload: bytes | None = None,
        deadline: float | None = None,
        wait: Literal[True] = True,
    ) -> Outcome: ...
    @overload
    def notify(
        self,
        region: _Memory,
        *,
        offset: int = 0,
        user_data: int = 0,
        payload: bytes | None = None,
        deadline: float | None = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def notify(
        self,
        region: _Memory,
        *,
        offset: int = 0,
        user_data: int = 0,
        payload: bytes | None = None,
        deadline: float | None = None,
        wait: bool = True,
    ) -> Outcome | Transfer: ...
    @overload
    def submit_descriptors(
        self,
        descriptors: npt.NDArray[np.void] | _Array,
        *,
        deadline: float | None = None,
        wait: Literal[True] = True,
    ) -> Outcome: ...
    @overload
    def submit_descriptors(
        self,
        descriptors: npt.NDArray[np.void] | _Array,
        *,
        deadline: float | None = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def submit_descriptors(
        self,
        descriptors: npt.NDArray[np.void] | _Array,
        *,
        deadline: float | None = None,
        wait: bool = True,
    ) -> Outcome | Transfer: ...
    def batch(self, *, deadline: float | None = None, fence: bool = False) -> Batch: ...
    def wait_notification(self, timeout: float | None = None) -> Notification | None: ...
    def notifications(self) -> AsyncIterator[Notification]: ...
    @property
    def doorbells(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    @property
    def _session(self) -> int: ...
    def _wakeup(self) -> Wakeup: ...
    def _settled(self) -> bool: ...

@final
class Batch:
    def read_rows(
        self,
        table: _Memory,
        ids: _Integers,
        out: _Memory,
        *,
        row_bytes: int | None = None,
        missing: _Missing = None,
        table_offset: int = 0,
        table_stride: int | None = None,
    ) -> None: ...
    def write_rows(
        self,
        table: _Memory,
        ids: _Integers,
        rows: _Memory,
        *,
        row_bytes: int | None = None,
        table_offset: int = 0,
        table_stride: int | None = None,
    ) -> None: ...
    def read_blocks(
        self,
        src: _Memory,
        src_ids: _Integers,
        dst: _Memory,
        dst_ids: _Integers,
        *,
        block_bytes: int | None = None,
        missing: _Missing = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
    ) -> None: ...
    def write_blocks(
        self,
        src: _Memory,
        src_ids: _Integers,
        dst: _Memory,
        dst_ids: _Integers,
        *,
        block_bytes: int | None = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
    ) -> None: ...
    def read_ranges(
        self,
        src: _Memory,
        src_offsets: _Integers | None,
        dst: _Memory,
        dst_offsets: _Integers | None,
        lengths: _Integers | int,
    ) -> None: ...
    def write_ranges(
        self,
        src: _Memory,
        src_offsets: _Integers | None,
        dst: _Memory,
        dst_offsets: _Integers | None,
        lengths: _Integers | int,
    ) -> None: ...
    def read_tile(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        count: int | None = None,
        piece_bytes: int | None = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
    ) -> None: ...
    def write_tile(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        count: int | None = None,
        piece_bytes: int | None = None,
        src_offset: int = 0,
        src_stride: int | None = None,
        dst_offset: int = 0,
        dst_stride: int | None = None,
    ) -> None: ...
    def read(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        src_offset: int = 0,
        dst_offset: int = 0,
        nbytes: int | None = None,
    ) -> None: ...
    def write(
        self,
        src: _Memory,
        dst: _Memory,
        *,
        src_offset: int = 0,
        dst_offset: int = 0,
        nbytes: int | None = None,
    ) -> None: ...
    def notify(self, region: _Memory, *, offset: int = 0, user_data: int = 0, payload: bytes | None = None) -> None: ...
    def submit(self) -> Transfer: ...
    @property
    def outcome(self) -> Outcome | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...

@final
class Buffer:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def handle(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    def numpy(self) -> npt.NDArray[Any]: ...
    def export(self, name: str, *, writable: bool = False) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, which: SupportsIndex | slice, /) -> Buffer: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Region:
    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def handle(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...

@final
class Peer:
    @property
    def number(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Notification:
    @property
    def user_data(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def payload(self) -> bytes: ...

@final
class Transfer:
    def wait(self, timeout: float | None = None) -> Outcome: ...
    def poll(self) -> Outcome | None: ...
    @property
    def done(self) -> bool: ...
    @property
    def result(self) -> Outcome: ...
    def cancel(self) -> bool: ...
    def wait_released(self, timeout: float | None = None) -> bool: ...
    def __await__(self) -> Generator[Any, None, Outcome]: ...
    @property
    def _session(self) -> int: ...
    def _wakeup(self) -> Wakeup: ...
    def _settled(self) -> bool: ...

@final
class Outcome:
    @property
    def bytes(self) -> int: ...
    @property
    def route(self) -> str: ...
    @property
    def user_data(self) -> int: ...
    @property
    def reusable(self) -> bool: ...
    @property
    def queue_ns(self) -> int: ...
    @property
    def plan_ns(self) -> int: ...
    @property
    def command_ns(self) -> int: ...
    @property
    def pack_ns(self) -> int: ...
    @property
    def window_ns(self) -> int: ...
    @property
    def total_ns(self) -> int: ...

@final
class Engine:
    def __new__(
        cls,
        *,
        workers: int | None = None,
        spin_us: int = 200,
        users: Sequence[int] = ...,
        peers: bool = False,
        peer_listen: Sequence[str] = ...,
        peer_advertise: Sequence[str] = ...,
        peer_keys: _Path | None = None,
        peer_transport: Literal["auto", "verbs", "tcp"] = "auto",
    ) -> Self: ...
    def client(
        self,
        *,
        sq_capacity: int = 4096,
        cq_capacity: int = 1024,
        spin_us: int = 200,
        notifications: bool = False,
    ) -> Client: ...
    def listen(self, path: _Path) -> None: ...
    @property
    def endpoint(self) -> str | None: ...
    def adopt(self, array: _Array, name: str | None = None, *, writable: bool = False) -> Adopted: ...
    @property
    def closed(self) -> bool: ...
    def close(self, timeout: float = 0.0) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...

@final
class Adopted:
    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...

@final
class Wakeup:
    def fileno(self) -> int: ...
    @property
    def over(self) -> bool: ...
    def arm(self) -> bool: ...
    def awake(self) -> None: ...
    def rest(self) -> None: ...
