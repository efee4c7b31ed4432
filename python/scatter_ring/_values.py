"""The values that operations take and descriptors have."""

from enum import StrEnum
from typing import Final

import numpy as np


class Missing(StrEnum):
    """What a row or block number of -1 (all ones) means when reading."""

    ZERO = "zero"
    """Its place is filled with 0."""
    SKIP = "skip"
    """Its place is left as it is."""


ZERO: Final = Missing.ZERO
SKIP: Final = Missing.SKIP

DESCRIPTOR_DTYPE: Final = np.dtype(
    [
        ("opcode", "<u1"),
        ("index_kind", "<u1"),
        ("flags", "<u2"),
        ("len", "<u4"),
        ("src_region", "<u4"),
        ("dst_region", "<u4"),
        ("src_offset", "<u8"),
        ("dst_offset", "<u8"),
        ("count", "<u4"),
        ("index_region", "<u4"),
        ("index_offset", "<u8"),
        ("src_stride", "<u4"),
        ("dst_stride", "<u4"),
        ("user_data", "<u8"),
    ]
)
"""One descriptor of 64 bytes, for ``Client.submit_descriptors``: the fields of ``scatter_ring_descriptor``.

``count`` fragments of ``len`` bytes; fragment i reads at ``src_offset + i * src_stride`` and lands at ``dst_offset + i *
dst_stride``. ``src_region`` and ``dst_region`` are the ``handle`` of a Buffer or a Region."""

OPCODE_NOP: Final = 1
OPCODE_READ: Final = 3
OPCODE_WRITE: Final = 4
