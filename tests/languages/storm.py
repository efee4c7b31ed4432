"""Many batches of single rows, every completion accounted for.

Arguments: socket, name of the table, descriptors (0: for ever).
"""

import sys
from collections import deque

import numpy as np

import scatter_ring as sr

TABLE_ROWS, ROW_BYTES, ROWS_MAX, WINDOW = 4096, 64, 4096, 8


def claim(holds: bool, what: str, batch: int) -> None:
    if not holds:
        sys.exit(f"storm: batch {batch}: {what}")


def main(socket: str, name: str, total: int) -> None:
    client = sr.attach(socket)
    table = client.open(name)
    out = client.allocate((WINDOW, ROWS_MAX, ROW_BYTES // 8), np.uint64)
    rows_in = np.arange(TABLE_ROWS * ROW_BYTES // 8, dtype=np.uint64).reshape(TABLE_ROWS, -1)
    arrived = out.numpy()
    print("begun", flush=True)

    under_way: deque[tuple[int, np.ndarray, sr.Transfer]] = deque()
    submitted = completed = moved = batches = 0

    def collect() -> None:
        nonlocal completed, moved
        batch, numbers, transfer = under_way.popleft()
        outcome = transfer.wait()
        claim(outcome.bytes == len(numbers) * ROW_BYTES, "another number of bytes", batch)
        claim(outcome.user_data == batch and outcome.reusable, "another batch's outcome", batch)
        claim(np.array_equal(arrived[batch % WINDOW, : len(numbers)], rows_in[numbers]), "a wrong row", batch)
        completed += len(numbers)
        moved += outcome.bytes

    while not total or submitted < total:
        if len(under_way) == WINDOW:
            collect()
        rows = 1 + batches * 1237 % ROWS_MAX
        if total:
            rows = min(rows, total - submitted)
        numbers = (batches * 131 + np.arange(rows) * 17) % TABLE_ROWS
        descriptors = np.zeros(rows, sr.DESCRIPTOR_DTYPE)
        descriptors["opcode"] = sr.OPCODE_READ
        descriptors["len"] = ROW_BYTES
        descriptors["count"] = 1
        descriptors["user_data"] = batches
        descriptors["src_region"] = table.handle
        descriptors["src_offset"] = numbers * ROW_BYTES
        descriptors["dst_region"] = out.handle
        descriptors["dst_offset"] = (batches % WINDOW * ROWS_MAX + np.arange(rows)) * ROW_BYTES
        under_way.append((batches, numbers, client.submit_descriptors(descriptors, wait=False)))
        batches += 1
        submitted += rows
    while under_way:
        collect()
    print(f"done {batches} {completed} {moved}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
