//! Completion entries.

use crate::descriptor::{Field, high, low, pair};
use crate::{Entry, Status};

/// One completion entry: `count` consecutive slots of the submission ring with one outcome.
///
/// One entry for many requests is what virtio's `IN_ORDER` feature and RDMA's selective signalling do too.
///
/// A failed span ends with the descriptor at fault. It covers more than that one only if a deadline passed while
/// descriptors before it were still in flight.
///
/// In a failed span `queue_ns`, `plan_ns` and `command_ns` hold the failing fragment and the detail instead of times;
/// read them through [`Span::fragment`] and [`Span::detail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    /// Position of the first slot that this span is about.
    pub first: u64,
    /// Slots, extensions counted. 0 with [`SpanFlags::RELEASED`], which covers nothing.
    pub count: u32,
    /// The outcome.
    pub status: i32,
    /// Bytes written to destinations by the covered descriptors.
    pub bytes: u64,
    /// `user_data` of the span's last descriptor.
    pub user_data: u64,
    /// Bits of [`SpanFlags`].
    pub flags: u16,
    /// One of [`Route`].
    pub route: u8,
    /// One of [`Stage`]: where a failed span failed.
    pub stage: u8,
    /// From the batch's first descriptor taken to its first work started.
    pub queue_ns: u32,
    /// Planning.
    pub plan_ns: u32,
    /// Commands to a peer.
    pub command_ns: u32,
    /// Packing.
    pub pack_ns: u32,
    /// From the first bulk operation to the last data in place.
    pub window_ns: u32,
    /// From the batch's first descriptor taken to this span.
    pub total_ns: u32,
    /// In a failed span the [`Field`] that is wrong, else 0.
    pub field: u32,
}

const _: () = {
    assert!(size_of::<Span>() == crate::ENTRY_BYTES && align_of::<Span>() == 8);
    assert!(core::mem::offset_of!(Span, count) == 8);
    assert!(core::mem::offset_of!(Span, status) == 12);
    assert!(core::mem::offset_of!(Span, bytes) == 16);
    assert!(core::mem::offset_of!(Span, user_data) == 24);
    assert!(core::mem::offset_of!(Span, flags) == 32);
    assert!(core::mem::offset_of!(Span, route) == 34);
    assert!(core::mem::offset_of!(Span, stage) == 35);
    assert!(core::mem::offset_of!(Span, queue_ns) == 36);
    assert!(core::mem::offset_of!(Span, plan_ns) == 40);
    assert!(core::mem::offset_of!(Span, command_ns) == 44);
    assert!(core::mem::offset_of!(Span, pack_ns) == 48);
    assert!(core::mem::offset_of!(Span, window_ns) == 52);
    assert!(core::mem::offset_of!(Span, total_ns) == 56);
    assert!(core::mem::offset_of!(Span, field) == 60);
};

impl Span {
    /// All bytes 0.
    pub const ZERO: Span = Span {
        first: 0,
        count: 0,
        status: 0,
        bytes: 0,
        user_data: 0,
        flags: 0,
        route: 0,
        stage: 0,
        queue_ns: 0,
        plan_ns: 0,
        command_ns: 0,
        pack_ns: 0,
        window_ns: 0,
        total_ns: 0,
        field: 0,
    };

    /// The outcome.
    #[must_use]
    pub const fn status(&self) -> Status {
        Status(self.status)
    }

    /// The failing fragment's number, of a failed span.
    #[must_use]
    pub const fn fragment(&self) -> u32 {
        self.queue_ns
    }

    /// The offending value (an offset, a row number, a handle, flag bits), of a failed span.
    #[must_use]
    pub const fn detail(&self) -> u64 {
        pair(self.plan_ns, self.command_ns)
    }

    /// The field that is wrong, of a failed span.
    #[must_use]
    pub const fn field(&self) -> Field {
        Field(self.field)
    }

    /// True when no other outcome span of this batch will follow.
    #[must_use]
    pub const fn is_batch_done(&self) -> bool {
        self.flags & SpanFlags::BATCH_DONE != 0
    }

    /// True when somebody may still write to the batch's buffers: wait for the RELEASED span of the same batch.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.flags & SpanFlags::HELD != 0
    }

    /// True for the span that says that a HELD batch's buffers are reusable.
    #[must_use]
    pub const fn is_released(&self) -> bool {
        self.flags & SpanFlags::RELEASED != 0
    }

    /// The eight words that go into a slot.
    #[must_use]
    #[inline]
    pub const fn to_entry(&self) -> Entry {
        [
            self.first,
            pair(self.count, self.status as u32),
            self.bytes,
            self.user_data,
            self.flags as u64 | (self.route as u64) << 16 | (self.stage as u64) << 24 | (self.queue_ns as u64) << 32,
            pair(self.plan_ns, self.command_ns),
            pair(self.pack_ns, self.window_ns),
            pair(self.total_ns, self.field),
        ]
    }

    /// The span that the words of a slot spell.
    #[must_use]
    #[inline]
    pub const fn from_entry(entry: &Entry) -> Span {
        Span {
            first: entry[0],
            count: low(entry[1]),
            status: high(entry[1]) as i32,
            bytes: entry[2],
            user_data: entry[3],
            flags: entry[4] as u16,
            route: (entry[4] >> 16) as u8,
            stage: (entry[4] >> 24) as u8,
            queue_ns: high(entry[4]),
            plan_ns: low(entry[5]),
            command_ns: high(entry[5]),
            pack_ns: low(entry[6]),
            window_ns: high(entry[6]),
            total_ns: low(entry[7]),
            field: high(entry[7]),
        }
    }
}

/// Bits of [`Span::flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanFlags;

impl SpanFlags {
    /// The batch's last outcome span. Only a RELEASED span can follow, and only if one of its spans was HELD.
    pub const BATCH_DONE: u16 = 1 << 0;
    /// The batch's buffers may still be written. Later outcome spans of the batch need not repeat it; its RELEASED span
    /// ends it.
    pub const HELD: u16 = 1 << 1;
    /// The buffers of the batch that starts at `first` are reusable. Covers no slot.
    pub const RELEASED: u16 = 1 << 2;
    /// Not about a batch of this ring: a notification that somebody sent by [`NOTIFY`](crate::Opcode::NOTIFY). `user_data`
    /// is that of the NOTIFY, `first` its `dst_offset`, `bytes` the length of its payload, `count` 0, the status OK and
    /// everything else 0.
    ///
    /// The payload is at the start of a slot of the notification buffer: the one whose number is the position of this span
    /// in the completion ring, modulo the ring's capacity. The slot is this span's until its place is freed: copy the
    /// payload out before you store the head.
    pub const EVENT: u16 = 1 << 3;
    /// Every bit with a meaning.
    pub const KNOWN: u16 = (1 << 4) - 1;
}

/// How a batch's bytes travelled: [`Span::route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Route(pub u8);

impl Route {
    /// Nothing had to be moved.
    pub const NONE: Route = Route(0);
    /// One operation per segment.
    pub const DIRECT: Route = Route(1);
    /// Packed at the source, moved in bulk.
    pub const GATHER: Route = Route(2);
    /// Some of both.
    pub const HYBRID: Route = Route(3);

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Route::NONE => "none",
            Route::DIRECT => "direct",
            Route::GATHER => "gather",
            Route::HYBRID => "hybrid",
            _ => return None,
        })
    }
}

/// Where a descriptor failed: [`Span::stage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Stage(pub u8);

impl Stage {
    /// Nowhere: success.
    pub const NONE: Stage = Stage(0);
    /// Taking it from the ring: opcode, flags, sequence, fields.
    pub const TAKE: Stage = Stage(1);
    /// Planning: regions, rights, ranges.
    pub const PLAN: Stage = Stage(2);
    /// Commands to a peer.
    pub const COMMAND: Stage = Stage(3);
    /// Copying at the packing side, which reads the index.
    pub const PACK: Stage = Stage(4);
    /// On the wire.
    pub const WINDOW: Stage = Stage(5);
    /// Waiting: a deadline or a cancel.
    pub const WAIT: Stage = Stage(6);

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Stage::NONE => "none",
            Stage::TAKE => "take",
            Stage::PLAN => "plan",
            Stage::COMMAND => "command",
            Stage::PACK => "pack",
            Stage::WINDOW => "window",
            Stage::WAIT => "wait",
            _ => return None,
        })
    }
}
