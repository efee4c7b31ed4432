//! The checks that need nothing but the descriptor. Their order is part of the interface: the first hit is reported.

use super::{Fault, Notice};
use ring_abi::{Descriptor, Entry, Extension, Field, Flags, IndexKind, NOTIFY_BYTES_MAX, Opcode, Stage, Status};

/// What a well-formed descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Nothing.
    Nop,
    /// What is said of its batch.
    Begin {
        /// A deadline, in ns after the batch was taken, 0 for none.
        deadline_ns: u64,
        /// Bytes that it is expected to have, 0 if that is not said. For planning only, and never relied on.
        hint_bytes: u64,
    },
    /// End another batch.
    Cancel {
        /// Position of its first descriptor.
        target: u64,
    },
    /// Move bytes.
    Transfer(Shape),
    /// Tell somebody, when all else of the batch is done.
    Notify(Notice),
}

/// A transfer whose own fields make sense; its regions have not been looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Handles of source, destination and index region; the last is 0 without an index.
    pub regions: [u32; 3],
    /// Bytes from the start of each of the three regions.
    pub offsets: [u64; 3],
    /// Fragments, at least 1.
    pub count: u32,
    /// Bytes per piece, 0 with FRAGMENTS.
    pub len: u32,
    /// Bytes from one fragment, or index step, to the next: source, destination.
    pub strides: [u32; 2],
    /// Pieces per fragment, at least 1.
    pub inner_count: u32,
    /// Bytes from one piece to the next: source, destination.
    pub inner_strides: [u32; 2],
    /// Source, destination; FRAGMENTS for both or neither.
    pub kinds: [IndexKind; 2],
    /// What an all-ones source row number means.
    pub missing: Missing,
}

/// What an all-ones source row number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Missing {
    /// A row number like any other.
    Row = 0,
    /// The destination is filled with 0.
    Zero = 1,
    /// The destination is left as it is.
    Skip = 2,
}

/// Checks a descriptor by itself. `extension` is the slot behind it if it carries EXTENDED, `first` says that it starts
/// its batch, `has_peer` that one of its regions is a peer's.
///
/// # Errors
/// The first rule that it breaks: opcode, place in the batch, flags, index kind, fields that must be 0, counts, strides.
pub fn check(d: &Descriptor, extension: Option<&Entry>, first: bool, has_peer: bool) -> Result<Request, Fault> {
    let opcode = Opcode(d.opcode);
    if opcode.name().is_none() {
        return Err(take(Status::INVALID_OPCODE, Field::OPCODE, d.opcode.into()));
    }
    check_sequence(d, extension, first)?;
    check_flags(d, has_peer)?;
    match opcode {
        Opcode::NOP => {
            must_be_zero(d, &[])?;
            Ok(Request::Nop)
        }
        Opcode::BEGIN => {
            must_be_zero(d, &[Field::COUNT, Field::SRC_OFFSET, Field::DST_OFFSET])?;
            Ok(Request::Begin { deadline_ns: d.dst_offset, hint_bytes: d.src_offset })
        }
        Opcode::CANCEL => {
            must_be_zero(d, &[Field::SRC_OFFSET])?;
            Ok(Request::Cancel { target: d.src_offset })
        }
        Opcode::NOTIFY => check_notify(d).map(Request::Notify),
        _ => check_transfer(d, extension).map(Request::Transfer),
    }
}

fn check_sequence(d: &Descriptor, extension: Option<&Entry>, first: bool) -> Result<(), Fault> {
    let out_of_place = match Opcode(d.opcode) {
        Opcode::EXTENSION => true,
        Opcode::BEGIN => !first,
        Opcode::CANCEL => !first || d.flags & Flags::LAST == 0,
        Opcode::NOTIFY => d.flags & Flags::LAST == 0,
        _ => false,
    };
    if out_of_place {
        return Err(take(Status::BAD_SEQUENCE, Field::OPCODE, d.opcode.into()));
    }
    if !first && d.flags & Flags::FENCE != 0 {
        return Err(take(Status::BAD_SEQUENCE, Field::FLAGS, d.flags.into()));
    }
    match extension {
        Some(slot) if slot[0] as u8 != Opcode::EXTENSION.0 => {
            Err(take(Status::BAD_SEQUENCE, Field::EXTENSION_OPCODE, u64::from(slot[0] as u8)))
        }
        _ => Ok(()),
    }
}

fn check_flags(d: &Descriptor, has_peer: bool) -> Result<(), Fault> {
    const MISSING: u16 = Flags::MISSING_ZERO | Flags::MISSING_SKIP;
    const ROUTES: u16 = Flags::DIRECT | Flags::GATHER;
    let moves = matches!(Opcode(d.opcode), Opcode::READ | Opcode::WRITE);
    let allowed = if moves { Flags::KNOWN } else { Flags::LAST | Flags::FENCE };
    // An unknown kind is reported as such, and not as a flag that does not go with it.
    let src_index =
        IndexKind::unpack(d.index_kind).is_none_or(|(src, _)| src == IndexKind::U32 || src == IndexKind::U64);
    let invalid = d.flags & !allowed != 0
        || d.flags & MISSING == MISSING
        || (d.flags & MISSING != 0 && !src_index)
        || d.flags & ROUTES == ROUTES;
    if invalid {
        return Err(take(Status::INVALID_FLAGS, Field::FLAGS, d.flags.into()));
    }
    if d.flags & Flags::GATHER != 0 && !has_peer {
        // On one host both sides are mapped, so that there is nothing to pack for.
        return Err(take(Status::UNSUPPORTED, Field::FLAGS, d.flags.into()));
    }
    Ok(())
}

fn check_transfer(d: &Descriptor, extension: Option<&Entry>) -> Result<Shape, Fault> {
    let Some((src_kind, dst_kind)) = IndexKind::unpack(d.index_kind) else {
        return Err(take(Status::INVALID_INDEX_KIND, Field::INDEX_KIND, d.index_kind.into()));
    };
    let records = src_kind == IndexKind::Fragments;
    if records && extension.is_some() {
        return Err(take(Status::INVALID_FLAGS, Field::FLAGS, d.flags.into()));
    }
    let indexed = src_kind != IndexKind::None || dst_kind != IndexKind::None;
    for (field, value, must_be_zero) in [
        (Field::LEN, u64::from(d.len), records),
        (Field::INDEX_REGION, u64::from(d.index_region), !indexed),
        (Field::INDEX_OFFSET, d.index_offset, !indexed),
        (Field::SRC_STRIDE, u64::from(d.src_stride), records),
        (Field::DST_STRIDE, u64::from(d.dst_stride), records),
    ] {
        if must_be_zero && value != 0 {
            return Err(take(Status::INVALID_FIELD, field, value));
        }
    }
    let inner = check_extension(extension)?;
    if d.count == 0 {
        return Err(take(Status::INVALID_COUNT, Field::COUNT, 0));
    }
    if inner.inner_count == 0 {
        return Err(take(Status::INVALID_COUNT, Field::INNER_COUNT, 0));
    }
    let steps = d.count > 1 || dst_kind != IndexKind::None;
    if !records && steps && d.dst_stride < d.len {
        return Err(take(Status::INVALID_STRIDE, Field::DST_STRIDE, d.dst_stride.into()));
    }
    if inner.inner_count > 1 && inner.inner_dst_stride < d.len {
        return Err(take(Status::INVALID_STRIDE, Field::INNER_DST_STRIDE, inner.inner_dst_stride.into()));
    }
    Ok(Shape {
        regions: [d.src_region, d.dst_region, d.index_region],
        offsets: [d.src_offset, d.dst_offset, d.index_offset],
        count: d.count,
        len: d.len,
        strides: [d.src_stride, d.dst_stride],
        inner_count: inner.inner_count,
        inner_strides: [inner.inner_src_stride, inner.inner_dst_stride],
        kinds: [src_kind, dst_kind],
        missing: if d.flags & Flags::MISSING_ZERO != 0 {
            Missing::Zero
        } else if d.flags & Flags::MISSING_SKIP != 0 {
            Missing::Skip
        } else {
            Missing::Row
        },
    })
}

fn check_notify(d: &Descriptor) -> Result<Notice, Fault> {
    const WITH_PAYLOAD: [Field; 5] =
        [Field::LEN, Field::SRC_REGION, Field::SRC_OFFSET, Field::DST_REGION, Field::DST_OFFSET];
    let used = match d.len {
        0 => &WITH_PAYLOAD[3..],
        1..=NOTIFY_BYTES_MAX => &WITH_PAYLOAD[..],
        // The length is named in its place among the fields that must be 0.
        _ => &WITH_PAYLOAD[1..],
    };
    must_be_zero(d, used)?;
    Ok(Notice {
        src_region: d.src_region,
        src_offset: d.src_offset,
        len: d.len,
        dst_region: d.dst_region,
        offset: d.dst_offset,
        user_data: d.user_data,
    })
}

/// The extension's fields; without one, a single piece per fragment.
fn check_extension(extension: Option<&Entry>) -> Result<Extension, Fault> {
    const RESERVED_IN_HEAD: u64 = 0xFFFF_FF00;
    let Some(slot) = extension else { return Ok(Extension::new(1, 0, 0)) };
    let reserved = [slot[0] & RESERVED_IN_HEAD, slot[2], slot[3], slot[4], slot[5], slot[6], slot[7]];
    match reserved.into_iter().find(|word| *word != 0) {
        Some(word) => Err(take(Status::INVALID_FIELD, Field::EXTENSION_RESERVED, word)),
        None => Ok(Extension::from_entry(slot)),
    }
}

/// Refuses a descriptor that sets any field but its flags, its `user_data` and those in `used`.
fn must_be_zero(d: &Descriptor, used: &[Field]) -> Result<(), Fault> {
    let fields = [
        (Field::INDEX_KIND, u64::from(d.index_kind)),
        (Field::LEN, d.len.into()),
        (Field::SRC_REGION, d.src_region.into()),
        (Field::DST_REGION, d.dst_region.into()),
        (Field::SRC_OFFSET, d.src_offset),
        (Field::DST_OFFSET, d.dst_offset),
        (Field::COUNT, d.count.into()),
        (Field::INDEX_REGION, d.index_region.into()),
        (Field::INDEX_OFFSET, d.index_offset),
        (Field::SRC_STRIDE, d.src_stride.into()),
        (Field::DST_STRIDE, d.dst_stride.into()),
    ];
    match fields.into_iter().find(|(field, value)| *value != 0 && !used.contains(field)) {
        Some((field, value)) => Err(take(Status::INVALID_FIELD, field, value)),
        None => Ok(()),
    }
}

fn take(status: Status, field: Field, detail: u64) -> Fault {
    Fault::new(status, Stage::TAKE, field, detail)
}
