"""Move many small pieces of memory between processes and hosts, described in a shared-memory ring without a system call.

Attach to an engine that runs beside this process (``scatter-ring serve``), or make one in it; allocate memory that NumPy and
torch see without a copy; open what others have exported by name; move rows, blocks, ranges and tiles::

    import numpy as np
    import scatter_ring as sr

    with sr.Engine() as engine, engine.client() as client:  # or: sr.attach("/run/scatter-ring/socket")
        table = client.allocate((1_000, 66), np.float32)
        table.numpy()[:] = np.arange(1_000)[:, None]
        out = client.allocate((3, 66), np.float32)
        client.read_rows(table, [7, -1, 999], out, missing=sr.ZERO)
        assert out.numpy()[:, 0].tolist() == [7, 0, 999]

Every operation waits, with the GIL released, or with ``wait=False`` returns a ``Transfer``, to be waited for, polled, or
awaited in asyncio. Errors are ``ScatterRingError`` and its kinds; an argument that cannot be meant so is a ValueError or
a TypeError, raised before anything is submitted.
"""

from ._errors import (
    AttachError,
    Cancelled,
    ClosedError,
    EngineError,
    EngineLost,
    ForkedError,
    PeerError,
    RegionError,
    ScatterRingError,
    TimedOut,
    TransferError,
)
from ._native import (
    Adopted,
    Batch,
    Buffer,
    Client,
    Engine,
    Notification,
    Outcome,
    Peer,
    Region,
    Transfer,
    attach,
)
from ._values import DESCRIPTOR_DTYPE, OPCODE_NOP, OPCODE_READ, OPCODE_WRITE, SKIP, ZERO, Missing

__all__ = [
    "DESCRIPTOR_DTYPE",
    "OPCODE_NOP",
    "OPCODE_READ",
    "OPCODE_WRITE",
    "SKIP",
    "ZERO",
    "Adopted",
    "AttachError",
    "Batch",
    "Buffer",
    "Cancelled",
    "Client",
    "ClosedError",
    "Engine",
    "EngineError",
    "EngineLost",
    "ForkedError",
    "Missing",
    "Notification",
    "Outcome",
    "Peer",
    "PeerError",
    "Region",
    "RegionError",
    "ScatterRingError",
    "TimedOut",
    "Transfer",
    "TransferError",
    "attach",
]
