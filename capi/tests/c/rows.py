"""Embeds an engine by ctypes, without another package: adopts memory, reads rows, and sees errors in words."""

import ctypes as c
import sys

lib = c.CDLL(sys.argv[1])

ROWS, ROW_BYTES = 1000, 264
READ = 1
OUT_OF_RANGE = -12


class Error(c.Structure):
    _fields_ = [
        ("status", c.c_int32),
        ("field", c.c_uint32),
        ("descriptor", c.c_int64),
        ("fragment", c.c_uint32),
        ("stage", c.c_uint8),
        ("reusable", c.c_uint8),
        ("reserved", c.c_uint8 * 2),
        ("detail", c.c_uint64),
        ("bytes_done", c.c_uint64),
        ("position", c.c_uint64),
        ("peer", c.c_uint64),
        ("message", c.c_char * 256),
    ]


class Descriptor(c.Structure):
    _fields_ = [
        ("opcode", c.c_uint8),
        ("index_kind", c.c_uint8),
        ("flags", c.c_uint16),
        ("len", c.c_uint32),
        ("src_region", c.c_uint32),
        ("dst_region", c.c_uint32),
        ("src_offset", c.c_uint64),
        ("dst_offset", c.c_uint64),
        ("count", c.c_uint32),
        ("index_region", c.c_uint32),
        ("index_offset", c.c_uint64),
        ("src_stride", c.c_uint32),
        ("dst_stride", c.c_uint32),
        ("user_data", c.c_uint64),
    ]


error = Error()


def do(name, *args):
    """Calls a function whose last argument is the place for an error."""
    status = getattr(lib, "scatter_ring_" + name)(*args, c.byref(error))
    if status < 0:
        raise RuntimeError(f"{name}: {error.message.decode()}")
    return status


def made(name, *args):
    """Calls a function that hands a handle over."""
    handle = c.c_void_p()
    do(name, *args, c.byref(handle))
    return handle


def u64(number):
    return c.c_uint64(number)


lib.scatter_ring_region_data.restype = c.c_void_p
table = (c.c_uint8 * (ROWS * ROW_BYTES))(*((i // ROW_BYTES + i % ROW_BYTES) % 256 for i in range(ROWS * ROW_BYTES)))

engine = made("engine_create", None)
adopted = made("engine_adopt", engine, b"table", table, u64(len(table)), u64(READ))
client = made("client_attach_engine", engine, None)
opened = made("region_open", client, b"table", u64(READ))
out = made("region_allocate", client, u64(4 * ROW_BYTES))

numbers = (c.c_uint32 * 4)(7, 3, 999, 7)
do("client_read_rows", client, opened, ROW_BYTES, numbers, c.c_size_t(4), out, u64(0), None)
got = c.string_at(lib.scatter_ring_region_data(out), 4 * ROW_BYTES)
for place, number in enumerate(numbers):
    row = bytes((number + j) % 256 for j in range(ROW_BYTES))
    assert got[place * ROW_BYTES : (place + 1) * ROW_BYTES] == row, number

# Many descriptors in one call: the four rows once more, in the other order.
descriptors = (Descriptor * 4)()
for place, number in enumerate(reversed(numbers)):
    descriptors[place] = Descriptor(
        opcode=3,
        len=ROW_BYTES,
        count=1,
        src_region=lib.scatter_ring_region_handle(opened),
        dst_region=lib.scatter_ring_region_handle(out),
        src_offset=number * ROW_BYTES,
        dst_offset=place * ROW_BYTES,
    )
batch = made("batch_new", client)
regions = (c.c_void_p * 2)(opened, out)
do("batch_push", batch, descriptors, c.c_size_t(4), regions, c.c_size_t(2))
ticket = made("batch_submit", client, batch)
do("client_wait", client, ticket, c.c_int64(-1), None)
turned = c.string_at(lib.scatter_ring_region_data(out), 4 * ROW_BYTES)
for place in range(4):
    row, other = place * ROW_BYTES, (3 - place) * ROW_BYTES
    assert turned[row : row + ROW_BYTES] == got[other : other + ROW_BYTES], place

numbers[2] = 1000
try:
    do("client_read_rows", client, opened, ROW_BYTES, numbers, c.c_size_t(4), out, u64(0), None)
    raise SystemExit("a row outside the table was read")
except RuntimeError as refused:
    assert "fragment 2" in str(refused) and error.status == OUT_OF_RANGE and error.detail == 1000, refused

for kind, handle in [
    ("ticket", ticket), ("batch", batch), ("region", out), ("region", opened), ("client", client), ("engine", engine),
]:
    getattr(lib, f"scatter_ring_{kind}_free")(handle)
lib.scatter_ring_adopted_release(adopted)
print("4 rows, 1056 bytes, verified")
