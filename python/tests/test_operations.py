"""Every operation, byte for byte against NumPy, against an engine in this process and against a daemon."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
import pytest

import scatter_ring as sr
from conftest import Attach

ROWS, COLUMNS = 1000, 66


def filled(client: sr.Client, shape: tuple[int, ...], seed: int = 1) -> tuple[sr.Buffer, npt.NDArray[np.uint8]]:
    """A buffer of random bytes, and a copy of them."""
    buffer = client.allocate(shape, np.uint8)
    buffer.numpy()[:] = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return buffer, buffer.numpy().copy()


def table_of(client: sr.Client) -> tuple[sr.Buffer, npt.NDArray[np.float32]]:
    table = client.allocate((ROWS, COLUMNS), np.float32)
    table.numpy()[:] = np.random.default_rng(2).random((ROWS, COLUMNS), np.float32)
    return table, table.numpy().copy()


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_rows_are_read_by_numbers_of_every_type(client: sr.Client, dtype: npt.DTypeLike) -> None:
    table, expected = table_of(client)
    ids = np.random.default_rng(3).integers(0, ROWS, 500).astype(dtype)
    out = client.allocate((500, COLUMNS), np.float32)
    outcome = client.read_rows(table, ids, out)
    assert outcome.bytes == 500 * COLUMNS * 4 and outcome.reusable and outcome.total_ns > 0
    assert np.array_equal(out.numpy(), expected[ids])


def test_rows_are_read_from_what_another_client_has_exported(attach: Attach) -> None:
    with attach() as owner, attach() as client:
        table, expected = table_of(owner)
        table.export(f"table-{os.getpid()}")
        with client.open(f"table-{os.getpid()}") as region:
            assert (region.nbytes, region.writable) == (table.nbytes, False)
            out = client.allocate((3, COLUMNS), np.float32)
            client.read_rows(region, [999, 0, 999], out)
            assert np.array_equal(out.numpy(), expected[[999, 0, 999]])
        assert region.closed


def test_a_number_of_minus_one_is_zero_or_skipped_or_refused(client: sr.Client) -> None:
    table, expected = table_of(client)
    out = client.allocate((3, COLUMNS), np.float32)
    for ids in [np.array([4, -1, 5], np.int32), np.array([4, -1, 5]), np.array([4, 2**32 - 1, 5], np.uint32)]:
        out.numpy()[:] = 9
        client.read_rows(table, ids, out, missing=sr.ZERO)
        assert np.array_equal(out.numpy(), np.stack([expected[4], np.zeros(COLUMNS, np.float32), expected[5]]))
        out.numpy()[:] = 9
        client.read_rows(table, ids, out, missing="skip")
        assert np.array_equal(out.numpy(), np.stack([expected[4], np.full(COLUMNS, 9, np.float32), expected[5]]))
        with pytest.raises(sr.TransferError, match="OUT_OF_RANGE"):
            client.read_rows(table, ids, out)


def test_numbers_in_a_buffer_are_read_where_they_are(client: sr.Client) -> None:
    table, expected = table_of(client)
    ids = client.allocate(100, np.uint32)
    ids.numpy()[:] = np.arange(100) * 7
    out = client.allocate((40, COLUMNS), np.float32)
    client.read_rows(table, ids.numpy()[50:90], out)
    assert np.array_equal(out.numpy(), expected[ids.numpy()[50:90]])
    client.read_rows(table, ids[3:5], out[7:9])
    assert np.array_equal(out.numpy()[7:9], expected[ids.numpy()[3:5]])


def test_rows_go_to_parts_of_buffers_also_if_they_lie_apart(client: sr.Client) -> None:
    table, expected = filled(client, (ROWS, 64))
    out = client.allocate((100, 128), np.uint8)
    client.read_rows(table, [1, 2, 3], out.numpy()[10:13, 32:96])
    wanted = np.zeros((100, 128), np.uint8)
    wanted[10:13, 32:96] = expected[1:4]
    assert np.array_equal(out.numpy(), wanted)
    # Out of a part of a table: numbers count from its first row.
    client.read_rows(table[500:], [0, 1], out.numpy()[:2, :64])
    assert np.array_equal(out.numpy()[:2, :64], expected[500:502])


def test_rows_of_bytes_have_the_size_that_is_said(client: sr.Client) -> None:
    table, expected = filled(client, (10_000,))
    out = client.allocate(4 * 24)
    client.read_rows(table, [3, 0, 5, 3], out, row_bytes=24, table_offset=16, table_stride=100)
    rows = [expected[16 + 100 * i : 16 + 100 * i + 24] for i in [3, 0, 5, 3]]
    assert np.array_equal(out.numpy(), np.concatenate(rows))


def test_rows_are_written_by_number(client: sr.Client) -> None:
    table, expected = table_of(client)
    rows = client.allocate((3, COLUMNS), np.float32)
    rows.numpy()[:] = np.arange(3 * COLUMNS).reshape(3, COLUMNS)
    client.write_rows(table, [8, 2, 999], rows)
    expected[[8, 2, 999]] = rows.numpy()
    assert np.array_equal(table.numpy(), expected)


def test_single_elements_are_rows_too(client: sr.Client) -> None:
    table = client.allocate(100, np.int64)
    table.numpy()[:] = np.arange(100) ** 2
    out = client.allocate(4, np.int64)
    client.read_rows(table, [9, 1, 50, 9], out)
    assert out.numpy().tolist() == [81, 1, 2500, 81]


@pytest.mark.parametrize("kinds", [(np.uint32, np.uint32), (np.uint32, np.int64), (np.int64, np.uint32)])
def test_blocks_go_from_numbers_to_numbers(client: sr.Client, kinds: tuple[npt.DTypeLike, npt.DTypeLike]) -> None:
    src, from_src = filled(client, (50, 4, 96), 1)
    dst, expected = filled(client, (40, 4, 96), 2)
    random = np.random.default_rng(5)
    # An odd count: an array of eight-byte numbers behind it has to be aligned all the same.
    src_ids = random.integers(0, 50, 31).astype(kinds[0])
    dst_ids = random.permutation(40)[:31].astype(kinds[1])
    assert client.read_blocks(src, src_ids, dst, dst_ids).bytes == 31 * 384
    expected[dst_ids] = from_src[src_ids]
    assert np.array_equal(dst.numpy(), expected)
    client.write_blocks(dst, dst_ids, src, src_ids)
    from_src[src_ids] = expected[dst_ids]
    assert sorted(src.numpy().tobytes()) == sorted(from_src.tobytes())


def test_blocks_that_are_missing_are_zero(client: sr.Client) -> None:
    src, from_src = filled(client, (8, 32))
    dst = client.allocate((8, 32))
    dst.numpy()[:] = 7
    client.read_blocks(src, [1, -1, 2], dst, [5, 6, 7], missing=sr.ZERO)
    assert np.array_equal(dst.numpy()[5:], np.stack([from_src[1], np.zeros(32, np.uint8), from_src[2]]))


def test_ranges_of_any_lengths_go_where_they_are_said_or_one_behind_the_other(client: sr.Client) -> None:
    src, from_src = filled(client, (100_000,), 1)
    random = np.random.default_rng(6)
    lengths = random.integers(0, 200, 2500)
    offsets = random.integers(0, 100_000 - 200, 2500)
    dst = client.allocate(int(lengths.sum()))
    assert client.read_ranges(src, offsets, dst, None, lengths).bytes == lengths.sum()
    packed = np.concatenate([from_src[o : o + n] for o, n in zip(offsets, lengths)])
    assert np.array_equal(dst.numpy(), packed)
    # And back, apart: each to its own place of 200 bytes.
    apart = client.allocate(2500 * 200)
    places = (np.arange(2500) * 200).astype(np.uint32)
    client.write_ranges(dst, None, apart, places, lengths.astype(np.int32))
    for i in range(0, 2500, 250):
        got = apart.numpy()[200 * i : 200 * i + 200]
        assert np.array_equal(got[: lengths[i]], from_src[offsets[i] :][: lengths[i]]) and not got[lengths[i] :].any()
    # Of one length.
    client.read_ranges(src, offsets, apart, places, 100)
    assert np.array_equal(apart.numpy().reshape(2500, 200)[:, :100], np.stack([from_src[o : o + 100] for o in offsets]))


def test_a_million_ranges_are_one_call(client: sr.Client) -> None:
    count = 1_000_000
    src = client.allocate(count, np.uint64)
    src.numpy()[:] = np.arange(count)
    dst = client.allocate(count, np.uint64)
    order = np.random.default_rng(7).permutation(count)
    transfer = client.read_ranges(src, order * 8, dst, None, 8, wait=False)
    assert transfer.wait().bytes == 8 * count
    assert np.array_equal(dst.numpy(), order)


def test_tiles_are_parts_of_matrices(client: sr.Client) -> None:
    mine, expected_mine = filled(client, (64, 512), 1)
    other, expected = filled(client, (64, 512), 2)
    client.write_tile(mine.numpy()[:, 32:160], other.numpy()[:, 192:320])
    expected[:, 192:320] = expected_mine[:, 32:160]
    assert np.array_equal(other.numpy(), expected)
    client.read_tile(other.numpy()[10:20, :100], mine.numpy()[50:60, 7:107])
    expected_mine[50:60, 7:107] = expected[10:20, :100]
    assert np.array_equal(mine.numpy(), expected_mine)
    # The same of bytes, whose distances are said.
    flat = client.allocate(64 * 100)
    client.read_tile(other, flat, count=64, piece_bytes=100, src_offset=1, src_stride=512)
    assert np.array_equal(flat.numpy().reshape(64, 100), expected[:, 1:101])


def test_one_range_is_read_and_written(client: sr.Client) -> None:
    a, expected = filled(client, (1000,), 1)
    b = client.allocate(1000)
    client.read(a, b, src_offset=10, dst_offset=20, nbytes=30)
    assert np.array_equal(b.numpy()[20:50], expected[10:40]) and not b.numpy()[50:].any()
    client.write(a, b)
    assert np.array_equal(b.numpy(), expected)
    client.read(a.numpy()[900:], b[:100])
    assert np.array_equal(b.numpy()[:100], expected[900:])


def test_a_batch_has_one_outcome_for_all_its_operations(client: sr.Client) -> None:
    table, expected = table_of(client)
    out = client.allocate((5, COLUMNS), np.float32)
    a, from_a = filled(client, (64, 64))
    b = client.allocate((64, 64))
    ids = np.array([4, 3, 2, 1, 0])
    with client.batch(deadline=10, fence=True) as batch:
        batch.read_rows(table, ids, out)
        ids[:] = 0  # The batch has a copy.
        batch.write_tile(a.numpy()[:, :8], b.numpy()[:, 8:16])
        batch.read_ranges(a, [0, 64], b, [0, 64], 8)
        batch.read_blocks(a, [9, 10], b, [40, 41])
        batch.write(a[20], b[21])
        batch.write_rows(b, [50], a[51:52])
        assert batch.outcome is None
    assert batch.outcome is not None and batch.outcome.bytes == 5 * 264 + 64 * 8 + 16 + 128 + 64 + 64
    assert np.array_equal(out.numpy(), expected[4::-1])
    assert np.array_equal(b.numpy()[[40, 41, 21, 50], 16:], from_a[[9, 10, 20, 51], 16:])
    assert np.array_equal(b.numpy()[:2, :8], from_a[:2, :8]) and np.array_equal(b.numpy()[:2, 8:16], from_a[:2, :8])
    with pytest.raises(RuntimeError, match="submitted already"):
        batch.read(a, b)


def test_a_batch_is_not_submitted_when_its_block_fails(client: sr.Client) -> None:
    a, _ = filled(client, (64,))
    b = client.allocate(64)
    with pytest.raises(ZeroDivisionError), client.batch() as batch:
        batch.read(a, b)
        raise ZeroDivisionError
    assert batch.outcome is None and not b.numpy().any()


def test_nothing_to_move_is_done_at_once(client: sr.Client) -> None:
    table, _ = table_of(client)
    assert client.read_rows(table, [], table).bytes == 0
    assert client.read_blocks(table, np.empty(0, np.uint32), table, []).bytes == 0
    assert client.read_ranges(table, [], table, [], 4).bytes == 0
    with client.batch() as batch:
        pass
    assert batch.outcome is not None and batch.outcome.bytes == 0


def test_more_transfers_are_started_than_there_may_be_regions(client: sr.Client) -> None:
    table, out = client.allocate((10, 64)), client.allocate((1, 64))
    # Nobody looks what came of them, and each has its row numbers in memory of its own.
    transfers = [client.read_rows(table, [i % 10], out, wait=False) for i in range(6000)]
    assert all(transfer.wait(30).bytes == 64 for transfer in transfers)


def test_descriptors_that_numpy_made_are_one_batch(client: sr.Client) -> None:
    count = 20_000  # More than the ring holds.
    src, from_src = filled(client, (count, 16))
    dst = client.allocate((count, 16))
    order = np.random.default_rng(8).permutation(count)
    descriptors = np.zeros(count, sr.DESCRIPTOR_DTYPE)
    descriptors["opcode"] = sr.OPCODE_READ
    descriptors["len"], descriptors["count"] = 16, 1
    descriptors["src_region"], descriptors["dst_region"] = src.handle, dst.handle
    descriptors["src_offset"] = np.arange(count) * 16
    descriptors["dst_offset"] = order * 16
    assert client.submit_descriptors(descriptors).bytes == count * 16
    assert np.array_equal(dst.numpy()[order], from_src)
    # One at fault is named as it was counted.
    descriptors["src_offset"][12_345] = count * 16
    with pytest.raises(sr.TransferError, match="descriptor 12345 of the batch") as failed:
        client.submit_descriptors(descriptors)
    error = failed.value
    assert (error.name, error.descriptor, error.field, error.detail) == ("OUT_OF_RANGE", 12_345, "src_offset", count * 16)
    assert error.bytes_done == 12_345 * 16 and error.transfer is not None


def test_an_extended_descriptor_has_its_extension_behind_it(client: sr.Client) -> None:
    src, from_src = filled(client, (4, 8, 64))
    dst = client.allocate((4, 8, 16))
    entries = np.zeros((2, 64), np.uint8)
    descriptor = entries[0].view(sr.DESCRIPTOR_DTYPE)
    descriptor["opcode"], descriptor["flags"], descriptor["len"], descriptor["count"] = 3, 4, 16, 4
    descriptor["src_region"], descriptor["dst_region"] = src.handle, dst.handle
    descriptor["src_stride"], descriptor["dst_stride"] = 512, 128
    entries[1, 0] = 7
    entries[1, 4:16].view(np.uint32)[:] = 8, 64, 16
    client.submit_descriptors(entries)
    assert np.array_equal(dst.numpy(), from_src[:, :, :16])
    with pytest.raises(ValueError, match="no extension behind it"):
        client.submit_descriptors(entries[:1])


def test_who_exported_is_told_that_the_data_is_there(attach: Attach) -> None:
    with attach(notifications=True) as receiver, attach() as sender:
        inbox = receiver.allocate((10, 100))
        inbox.export("inbox", writable=True)
        assert receiver.wait_notification(0) is None
        region = sender.open("inbox", writable=True)
        rows = sender.allocate((2, 100))
        rows.numpy()[:] = 5
        with sender.batch() as batch:
            batch.write_rows(region, [3, 4], rows)
            batch.notify(region, offset=300, user_data=200, payload=b"rows 3 and 4")
        told = receiver.wait_notification(10)
        assert told is not None
        assert (told.offset, told.user_data, told.payload) == (300, 200, b"rows 3 and 4")
        assert inbox.numpy()[3:5].min() == 5
        sender.notify(region, user_data=2**64 - 1)
        told = receiver.wait_notification()
        assert told is not None and (told.user_data, told.payload) == (2**64 - 1, b"")
        with pytest.raises(RuntimeError, match="last operation"), sender.batch() as batch:
            batch.notify(region)
            batch.read(rows, rows)


def test_many_notifications_are_not_in_the_way_of_waiting(attach: Attach) -> None:
    with attach(notifications=True, cq_capacity=64) as receiver, attach() as sender:
        inbox = receiver.allocate(64)
        inbox.export("inbox", writable=True)
        region = sender.open("inbox", writable=True)
        transfers = [sender.notify(region, user_data=i, wait=False) for i in range(300)]
        other = receiver.allocate(64)
        # More than it keeps by itself, and nobody takes them: a wait says so.
        with pytest.raises(sr.RegionError, match="notifications that nobody takes") as failed:
            while not all(transfer.done for transfer in transfers):
                receiver.read(inbox, other)
        assert failed.value.name == "LIMIT_EXCEEDED"
        got: list[int] = []
        while len(got) < 300:
            told = receiver.wait_notification(10)
            assert told is not None
            got.append(told.user_data)
        assert got == list(range(300))
        assert receiver.read(inbox, other).bytes == 64
        assert all(transfer.wait(10).bytes == 0 for transfer in transfers)


def test_engines_meet_and_their_clients_use_each_others_memory() -> None:
    with sr.Engine(peer_listen=["127.0.0.1:0"], peer_transport="tcp") as far:
        with sr.Engine(peers=True, peer_transport="tcp") as near, far.client() as owner, near.client() as client:
            assert far.endpoint is not None and near.endpoint is None
            table, expected = table_of(owner)
            table.export("far-table")
            peer = client.connect(far.endpoint)
            assert peer.number > 0 and peer == client.connect(far.endpoint)
            region = client.open("far-table", peer=peer)
            out = client.allocate((4, COLUMNS), np.float32)
            client.read_rows(region, [5, -1, 0, 5], out, missing=sr.ZERO)
            assert np.array_equal(out.numpy()[[0, 2, 3]], expected[[5, 0, 5]]) and not out.numpy()[1].any()
            with pytest.raises(sr.TransferError) as failed:
                client.read_rows(region, [ROWS, 0, 0, 0], out)
            assert failed.value.peer == peer.number and failed.value.reusable
