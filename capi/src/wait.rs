//! Outcomes: waiting for them, asking for them, and operations that wait by themselves.

use crate::args::{array, given, timeout};
use crate::client::{enter, scatter_ring_client};
use crate::error::{Failure, SCATTER_RING_PENDING, run, scatter_ring_error};
use crate::region::scatter_ring_region;
use ring_abi::Status;
use rust::client::{Outcome, Ticket};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Names one submitted batch. Freeing it gives up the outcome, not the batch. Any thread may use the functions that
/// take only a ticket, several at a time.
pub struct scatter_ring_ticket(pub Ticket);

/// What a batch that is done says. Times are in ns; one longer than four seconds reads as that.
#[repr(C)]
pub struct scatter_ring_outcome {
    /// Ring position of the batch's first descriptor.
    pub position: u64,
    /// Bytes written to destinations.
    pub bytes: u64,
    /// Of the batch's last descriptor.
    pub user_data: u64,
    /// From the first descriptor taken to the first work started.
    pub queue_ns: u64,
    /// Planning.
    pub plan_ns: u64,
    /// Commands to a peer.
    pub command_ns: u64,
    /// Packing.
    pub pack_ns: u64,
    /// From the first bulk operation to the last data in place.
    pub window_ns: u64,
    /// From the first descriptor taken to the completion.
    pub total_ns: u64,
    /// How the bytes travelled: SCATTER_RING_ROUTE_..., see scatter_ring_route_name().
    pub route: u8,
    /// 1: nobody writes to the batch's buffers any more. 0: scatter_ring_client_wait_released().
    pub reusable: u8,
    /// 0.
    pub reserved: [u8; 6],
}

impl From<Outcome> for scatter_ring_outcome {
    fn from(outcome: Outcome) -> scatter_ring_outcome {
        let ns = |time: Duration| time.as_nanos() as u64;
        let times = outcome.times;
        scatter_ring_outcome {
            position: outcome.position,
            bytes: outcome.bytes,
            user_data: outcome.user_data,
            queue_ns: ns(times.queue),
            plan_ns: ns(times.plan),
            command_ns: ns(times.command),
            pack_ns: ns(times.pack),
            window_ns: ns(times.window),
            total_ns: ns(times.total),
            route: outcome.route.0,
            reusable: outcome.reusable.into(),
            reserved: [0; 6],
        }
    }
}

fn tell(outcome: Option<&mut MaybeUninit<scatter_ring_outcome>>, done: Outcome) -> i32 {
    if let Some(outcome) = outcome {
        outcome.write(done.into());
    }
    0
}

/// Waits for the outcome of a batch. It may be asked for again, as long as the ticket lives.
///
/// @param timeout_ns How long at most, in ns. 0: only looks. Below 0: as long as it takes.
/// @param outcome NULL, or the caller's, filled when the batch is done.
/// @return 0: done. SCATTER_RING_PENDING (1): still under way. Below 0: what the batch failed with, or why the session
/// ended before it did; SCATTER_RING_STATUS_NOT_FOUND for a ticket of another client;
/// SCATTER_RING_STATUS_LIMIT_EXCEEDED with descriptor -1 while notifications that nobody takes are in the way. If
/// error->reusable is 0 then, the buffers may still be written.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_wait(
    client: Option<&scatter_ring_client>,
    ticket: Option<&scatter_ring_ticket>,
    timeout_ns: i64,
    outcome: Option<&mut MaybeUninit<scatter_ring_outcome>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let ticket = &given(ticket, "ticket")?.0;
        let client = &mut enter(client)?.client;
        let done = match timeout(timeout_ns) {
            Some(timeout) => client.wait_timeout(ticket, timeout)?,
            None => Some(client.wait(ticket)?),
        };
        Ok(done.map_or(SCATTER_RING_PENDING, |done| tell(outcome, done)))
    })
}

/// Waits until the buffers of a batch may be used again, whatever its outcome.
///
/// @param timeout_ns How long at most, in ns. 0: only looks. Below 0: as long as it takes.
/// @return 0: they may. SCATTER_RING_PENDING (1): not yet. Below 0: the session ended before; nobody can say when the
/// memory is left alone.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_wait_released(
    client: Option<&scatter_ring_client>,
    ticket: Option<&scatter_ring_ticket>,
    timeout_ns: i64,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let ticket = &given(ticket, "ticket")?.0;
        let released = enter(client)?.client.wait_released(ticket, timeout(timeout_ns))?;
        Ok(if released { 0 } else { SCATTER_RING_PENDING })
    })
}

/// Cancels a batch. Its outcome then says what came of it: SCATTER_RING_STATUS_CANCELLED, or done.
///
/// @return 0; SCATTER_RING_STATUS_NOT_FOUND if it has ended, is ending already, or was not taken by the engine yet
/// (then ask again); SCATTER_RING_STATUS_UNKNOWN_REGION for a ticket of another client.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_cancel(
    client: Option<&scatter_ring_client>,
    ticket: Option<&scatter_ring_ticket>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let ticket = &given(ticket, "ticket")?.0;
        if enter(client)?.client.cancel(ticket)? {
            return Ok(0);
        }
        Err(Failure::Misuse(
            Status::NOT_FOUND,
            "the batch has ended, is ending already, or was not taken by the engine yet".into(),
        ))
    })
}

/// Ring position of a batch's first descriptor, as in scatter_ring_span.first. NULL: 0. Threads: any, also in a
/// forked child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_ticket_position(ticket: Option<&scatter_ring_ticket>) -> u64 {
    ticket.map_or(0, |ticket| ticket.0.position())
}

/// Frees a ticket, before or after its batch has ended, before or after its client.
///
/// @param ticket The handle, which is gone afterwards. NULL: nothing happens.
///
/// Threads: any, once, when no other call with it is under way. Fork: in a child only the child's handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_ticket_free(ticket: Option<Box<scatter_ring_ticket>>) {
    run(None, || {
        drop(ticket);
        Ok(0)
    });
}

/// Reads one range, and waits: `len` bytes from `src` to `dst`.
///
/// @param src_offset, dst_offset, len In bytes.
/// @param outcome NULL, or the caller's, filled when it is done.
/// @return 0, or what it failed with.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_read(
    client: Option<&scatter_ring_client>,
    src: Option<&scatter_ring_region>,
    src_offset: u64,
    dst: Option<&scatter_ring_region>,
    dst_offset: u64,
    len: u64,
    outcome: Option<&mut MaybeUninit<scatter_ring_outcome>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let (src, dst) = (&given(src, "src")?.0.region, &given(dst, "dst")?.0.region);
        Ok(tell(outcome, enter(client)?.client.read(src, src_offset, dst, dst_offset, len)?))
    })
}

/// Writes one range, and waits: `len` bytes from `src` to `dst`.
///
/// @param src_offset, dst_offset, len, outcome As of scatter_ring_client_read().
/// @return 0, or what it failed with.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_write(
    client: Option<&scatter_ring_client>,
    src: Option<&scatter_ring_region>,
    src_offset: u64,
    dst: Option<&scatter_ring_region>,
    dst_offset: u64,
    len: u64,
    outcome: Option<&mut MaybeUninit<scatter_ring_outcome>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        let (src, dst) = (&given(src, "src")?.0.region, &given(dst, "dst")?.0.region);
        Ok(tell(outcome, enter(client)?.client.write(src, src_offset, dst, dst_offset, len)?))
    })
}

/// Reads rows of a packed table, by number, and waits: row rows[i] lands at out_offset + i * row_bytes of `out`.
///
/// @param row_bytes Of a row, in bytes.
/// @param rows `count` row numbers, only read during the call. (They are copied into memory that the client keeps for
/// that; to leave them where they are, for strides or a deadline: scatter_ring_batch_read_rows().)
/// @param out_offset In bytes.
/// @param outcome NULL, or the caller's, filled when it is done.
/// @return 0, or what it failed with. A row number outside the table is found while rows are copied: those before it
/// are in place.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_read_rows(
    client: Option<&scatter_ring_client>,
    table: Option<&scatter_ring_region>,
    row_bytes: u32,
    rows: *const u32,
    count: usize,
    out: Option<&scatter_ring_region>,
    out_offset: u64,
    outcome: Option<&mut MaybeUninit<scatter_ring_outcome>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        // SAFETY: so many numbers of the caller's, says the header.
        let rows = unsafe { array(rows, count, "rows") }?;
        let (table, out) = (&given(table, "table")?.0.region, &given(out, "out")?.0.region);
        Ok(tell(outcome, enter(client)?.client.read_rows(table, row_bytes, rows, out, out_offset)?))
    })
}

/// Writes rows that lie packed in a region into a packed table, by number, and waits: what is at from_offset + i *
/// row_bytes of `from` becomes row rows[i].
///
/// @param row_bytes, rows, count, outcome As of scatter_ring_client_read_rows().
/// @param from_offset In bytes.
/// @return 0, or what it failed with.
///
/// Threads: one at a time with this client. Fork: SCATTER_RING_STATUS_FORKED in a child.
#[unsafe(no_mangle)]
pub extern "C" fn scatter_ring_client_write_rows(
    client: Option<&scatter_ring_client>,
    table: Option<&scatter_ring_region>,
    row_bytes: u32,
    rows: *const u32,
    count: usize,
    from: Option<&scatter_ring_region>,
    from_offset: u64,
    outcome: Option<&mut MaybeUninit<scatter_ring_outcome>>,
    error: Option<&mut MaybeUninit<scatter_ring_error>>,
) -> i32 {
    run(error, || {
        // SAFETY: so many numbers of the caller's, says the header.
        let rows = unsafe { array(rows, count, "rows") }?;
        let (table, from) = (&given(table, "table")?.0.region, &given(from, "from")?.0.region);
        Ok(tell(outcome, enter(client)?.client.write_rows(table, row_bytes, rows, from, from_offset)?))
    })
}
