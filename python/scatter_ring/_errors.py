"""What can go wrong. Arguments that cannot be meant so are ValueError and TypeError; everything else is one of these."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._native import Transfer


class ScatterRingError(Exception):
    """The base of all of them.

    Attributes:
        code: 0 or a negative number, the same in every language and on every host.
        name: The name of the code, ``"OUT_OF_RANGE"`` for example.
        stage: Where a batch failed: ``"take"``, ``"plan"``, ``"command"``, ``"pack"``, ``"window"`` or ``"wait"``; None for
            what is no failure of a batch.
        peer: The number of the peer whose memory the batch was about (``Peer.number``); None: no peer's, or several.
        descriptor: Which descriptor of the batch failed, from 0. None: it is about the batch as a whole.
        fragment: Which of its fragments (rows, blocks, ranges, pieces), from 0.
        field: Which of its fields: ``"src_offset"`` for example.
        detail: The offending value: an offset, a row number, a handle.
        bytes_done: Bytes that were in place by the descriptors before it.
        reusable: False while somebody may still write to the buffers: ``error.transfer.wait_released()``.
        transfer: The transfer that failed, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int,
        name: str,
        stage: str | None = None,
        peer: int | None = None,
        descriptor: int | None = None,
        fragment: int | None = None,
        field: str | None = None,
        detail: int | None = None,
        bytes_done: int = 0,
        reusable: bool = True,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.stage = stage
        self.peer = peer
        self.descriptor = descriptor
        self.fragment = fragment
        self.field = field
        self.detail = detail
        self.bytes_done = bytes_done
        self.reusable = reusable
        self.transfer: Transfer | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # For pools of processes, whose workers send what they raise. A transfer stays in its process.
        return partial(type(self), code=self.code, name=self.name), self.args, {**self.__dict__, "transfer": None}


class AttachError(ScatterRingError):
    """There is no session: nobody listens, it is not permitted, versions differ, a setting is not allowed."""


class EngineError(ScatterRingError):
    """An engine in this process cannot do what it was asked for."""


class EngineLost(ScatterRingError, ConnectionError):
    """The engine is gone, or has ended the session. Attach again."""


class PeerError(ScatterRingError, ConnectionError):
    """There is no connection to another engine."""


class RegionError(ScatterRingError):
    """Memory cannot be used so: it does not grant it, is unknown, busy or of another client, or a name or a limit is in
    the way."""


class ClosedError(ScatterRingError, ValueError):
    """Used after it was closed."""


class ForkedError(ScatterRingError):
    """A forked child used what belongs to its parent."""


class TransferError(ScatterRingError):
    """A batch failed: ``descriptor``, ``fragment``, ``field`` and ``detail`` say where."""


class TimedOut(TransferError, TimeoutError):
    """A batch had no outcome at its deadline."""


class Cancelled(TransferError):
    """A batch was ended by ``Transfer.cancel``."""
