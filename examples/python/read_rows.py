"""Reads scattered rows out of a table that this program exports itself. Argument: the socket of `scatter-ring serve`."""

import os
import sys

import numpy as np

import scatter_ring as sr

ROWS, ROW_BYTES = 1_000, 264


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: read_rows.py SOCKET")
    name = f"example-table-{os.getpid()}"

    # Whoever has the table: allocates it, fills it, and gives it a name.
    owner = sr.attach(sys.argv[1])
    table = owner.allocate((ROWS, ROW_BYTES), np.uint8)
    # Byte j of row i is i + j.
    table.numpy()[:] = np.add.outer(np.arange(ROWS), np.arange(ROW_BYTES)) % 256
    table.export(name)

    # Whoever wants rows of it, in most cases another process: opens it by its name.
    client = sr.attach(sys.argv[1])
    numbers = [7, 3, 999, 7]
    out = client.allocate((len(numbers), ROW_BYTES), np.uint8)
    outcome = client.read_rows(client.open(name), numbers, out)

    if not np.array_equal(out.numpy(), table.numpy()[numbers]):
        sys.exit("a row is wrong")
    print(f"{len(numbers)} rows, {outcome.bytes} bytes, verified")


if __name__ == "__main__":
    main()
