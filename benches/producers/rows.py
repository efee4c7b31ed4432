"""What the Python client costs: rows of W1, and a million ranges. Argument: the socket of `scatter-ring serve`.

Prints one line of JSON; times are medians in nanoseconds. To be compared with the Rust client in the same run.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import scatter_ring as sr

ROWS, ROW_BYTES = 98_304, 264
TABLE_BYTES = 256 << 20
RANGES = 1_000_000
RANGE_BYTES = 16


def median_ns(repeat: int, action: Callable[[], object]) -> int:
    times = []
    for _ in range(repeat):
        before = time.perf_counter_ns()
        action()
        times.append(time.perf_counter_ns() - before)
    return int(statistics.median(times))


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: rows.py SOCKET")
    client = sr.attach(sys.argv[1])
    random = np.random.default_rng(1)
    table = client.allocate((TABLE_BYTES // ROW_BYTES, ROW_BYTES))
    table.numpy()[:] = random.integers(0, 256, (1, ROW_BYTES), np.uint8)
    out = client.allocate((ROWS, ROW_BYTES))
    ids = random.integers(0, len(table), ROWS, np.uint32)
    in_place = client.allocate(ROWS, np.uint32)
    in_place.numpy()[:] = ids

    to = client.allocate(RANGES * RANGE_BYTES)
    offsets = random.integers(0, TABLE_BYTES // ROW_BYTES * ROW_BYTES - RANGE_BYTES, RANGES)
    lengths = np.full(RANGES, RANGE_BYTES, np.uint32)
    source = table.numpy().reshape(-1)

    def submit_ranges() -> int:
        before = time.perf_counter_ns()
        transfer = client.read_ranges(source, offsets, to, None, lengths, wait=False)
        took = time.perf_counter_ns() - before
        transfer.wait()
        return took

    client.read_rows(table, ids, out)
    # The memory for its records is made now.
    first = submit_ranges()
    line = {
        "client": "python",
        "rows": ROWS,
        "row_bytes": ROW_BYTES,
        "read_rows_p50_ns": median_ns(101, lambda: client.read_rows(table, ids, out)),
        "read_rows_in_place_p50_ns": median_ns(101, lambda: client.read_rows(table, in_place, out)),
        "ranges": RANGES,
        "submit_ranges_first_ns": first,
        "submit_ranges_p50_ns": int(statistics.median(submit_ranges() for _ in range(11))),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
