"""Writes a tile of a matrix into the middle of another one. Argument: the socket of `scatter-ring serve`."""

import sys

import numpy as np

import scatter_ring as sr

# Both matrices: 64 rows of 512 bytes.
SHAPE = (64, 512)
# The tile: 128 bytes of each row, from column 32 here to column 192 there.
TILE_BYTES, FROM, TO = 128, 32, 192


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: write_tiles.py SOCKET")
    client = sr.attach(sys.argv[1])
    mine, other = client.allocate(SHAPE).numpy(), client.allocate(SHAPE).numpy()
    mine[:] = (np.arange(mine.size) % 251).reshape(SHAPE)
    expected = np.zeros_like(other)
    expected[:, TO : TO + TILE_BYTES] = mine[:, FROM : FROM + TILE_BYTES]

    # One descriptor for all pieces. A batch can have any number of them.
    outcome = client.write_tile(mine[:, FROM : FROM + TILE_BYTES], other[:, TO : TO + TILE_BYTES])

    if not np.array_equal(other, expected):
        sys.exit("the tile is not where it belongs, or something else has changed")
    print(f"{SHAPE[0]} pieces, {outcome.bytes} bytes, verified")


if __name__ == "__main__":
    main()
