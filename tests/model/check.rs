//! What must hold of one descriptor, in this order; the first thing that does not is reported.
//!
//! Unless said otherwise the fragment is 0 and the detail is the value of the field that is wrong.
//!
//! At stage TAKE:
//!
//! 1. The opcode is known: INVALID_OPCODE. EXTENSION where a descriptor is expected: BAD_SEQUENCE, field OPCODE.
//! 2. BEGIN is a batch's first descriptor; CANCEL is its first and carries LAST; NOTIFY carries LAST: BAD_SEQUENCE, field
//!    OPCODE. FENCE is on a batch's first descriptor: BAD_SEQUENCE, field FLAGS. The second slot of an EXTENDED descriptor
//!    is an EXTENSION: BAD_SEQUENCE, field EXTENSION_OPCODE.
//! 3. The flags are known, and belong here: EXTENDED, MISSING_ZERO, MISSING_SKIP, DIRECT and GATHER only on READ and
//!    WRITE; not both MISSING; MISSING only with a source index of numbers (an index kind without a meaning is left to
//!    4); not both DIRECT and GATHER: INVALID_FLAGS. Then: GATHER between regions of this host is UNSUPPORTED, field
//!    FLAGS.
//! 4. READ and WRITE: the index kind has a meaning: INVALID_INDEX_KIND. FRAGMENTS is not EXTENDED: INVALID_FLAGS.
//! 5. Fields without a meaning here are 0: INVALID_FIELD, the one with the lowest offset. `user_data` is always free.
//!    NOP: all others. BEGIN: all but `count`, `src_offset`, `dst_offset`. CANCEL: all but `src_offset`. READ and WRITE
//!    without an index: `index_region`, `index_offset`; with FRAGMENTS: `len`, `src_stride`, `dst_stride`. The reserved
//!    bytes of an extension: field EXTENSION_RESERVED, the detail is the first word that is not 0, where the word that
//!    opcode and `inner_count` share counts without these two. NOTIFY: all but `dst_region`, `dst_offset` and, if it has a
//!    payload, `len`, `src_region`, `src_offset`; a `len` beyond NOTIFY_BYTES_MAX counts as one that is not 0.
//!    What follows at this stage is for READ and WRITE.
//! 6. `count`, then `inner_count`, is not 0: INVALID_COUNT.
//! 7. The destination's step is not smaller than the length, if there are several fragments or a destination index:
//!    INVALID_STRIDE, field DST_STRIDE (not with FRAGMENTS). The same of several inner pieces: INNER_DST_STRIDE.
//!
//! At stage PLAN:
//!
//! 8. The regions of source, destination and index (if there is one), in this order, exist: UNKNOWN_REGION; and were
//!    not withdrawn by their owner: REGION_GONE.
//! 9. Source and index grant reading, the destination writing, in the order source, destination, index: NO_RIGHT.
//! 10. The index arrays. The first in memory (the source's, or the only one) is naturally aligned: MISALIGNED_INDEX.
//!     All lie within the index region: OUT_OF_RANGE. The destination's array behind a source's is aligned:
//!     MISALIGNED_INDEX. All with field INDEX_OFFSET and `index_offset` as detail. A record of FRAGMENTS is aligned to
//!     8 bytes.
//! 11. A length of 0 (FRAGMENTS apart) is a success with 0 bytes from here on; no index is read.
//! 12. Each fragment of a side without an index lies within its region: OUT_OF_RANGE, field SRC_OFFSET or DST_OFFSET,
//!     the first fragment that does not, the source before the destination. The detail is the fragment's offset in
//!     the region, at most `u64::MAX`. Then nothing of the descriptor is copied and no index is read.
//!
//! A NOTIFY has a source if it has a payload. It needs no right on its destination, for which 8 holds: somebody is told
//! because of it, and nothing in it is touched. Instead of 10 to 12: the payload lies within its region (OUT_OF_RANGE,
//! SRC_OFFSET, `src_offset`); the destination was registered by a client, and is not the engine's own (UNSUPPORTED,
//! DST_REGION). All of the stage PLAN is checked again when a NOTIFY is sent, with the handles that its client has then: a
//! region that was closed meanwhile is UNKNOWN_REGION, and REGION_GONE while it is being closed.
//!
//! What only the index tells is checked while copying, see [`memory`](super::memory).

use ring_abi::{Descriptor, Entry, Extension, Field, Flags, IndexKind, NOTIFY_BYTES_MAX, Opcode, Stage, Status};

use super::memory::{Memory, Shape};
use super::{Failure, Work};

/// Checks a descriptor; `second` is its second slot, if it is EXTENDED.
pub fn check(d: &Descriptor, second: Option<&Entry>, is_first: bool, memory: &Memory) -> Result<Work, Failure> {
    let is_transfer = d.opcode == Opcode::READ.0 || d.opcode == Opcode::WRITE.0;
    check_opcode(d)?;
    check_sequence(d, second, is_first)?;
    check_flags(d, is_transfer)?;
    if !is_transfer {
        check_unused_fields(d)?;
        return Ok(match Opcode(d.opcode) {
            Opcode::CANCEL => Work::Cancel(d.src_offset),
            Opcode::NOTIFY => {
                check_notify(d, memory)?;
                Work::Notify(*d)
            }
            _ => Work::Nothing,
        });
    }
    let extension = second.map(Extension::from_entry);
    let kinds = check_index_kind(d)?;
    check_transfer_fields(d, kinds, second)?;
    check_counts_and_steps(d, kinds, extension.as_ref())?;
    check_regions(d, kinds, memory)?;
    check_index_arrays(d, kinds, memory)?;
    if d.len == 0 && kinds.0 != IndexKind::Fragments {
        return Ok(Work::Nothing);
    }
    check_ranges_without_index(d, kinds, extension.as_ref(), memory)?;
    Ok(Work::Transfer(*d, extension))
}

/// A failure at stage TAKE.
pub fn at_take(status: Status, field: Field, detail: u64) -> Failure {
    Failure { status, stage: Stage::TAKE, field, fragment: 0, detail }
}

fn at_plan(status: Status, field: Field, detail: u64) -> Failure {
    Failure { stage: Stage::PLAN, ..at_take(status, field, detail) }
}

fn ensure(holds: bool, failure: Failure) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(failure) }
}

fn check_opcode(d: &Descriptor) -> Result<(), Failure> {
    let opcode = Opcode(d.opcode);
    ensure(opcode.name().is_some(), at_take(Status::INVALID_OPCODE, Field::OPCODE, d.opcode.into()))?;
    ensure(opcode != Opcode::EXTENSION, at_take(Status::BAD_SEQUENCE, Field::OPCODE, d.opcode.into()))
}

fn check_sequence(d: &Descriptor, second: Option<&Entry>, is_first: bool) -> Result<(), Failure> {
    let opcode = Opcode(d.opcode);
    let misplaced = at_take(Status::BAD_SEQUENCE, Field::OPCODE, d.opcode.into());
    ensure(opcode != Opcode::BEGIN || is_first, misplaced)?;
    ensure(opcode != Opcode::CANCEL || (is_first && d.flags & Flags::LAST != 0), misplaced)?;
    ensure(opcode != Opcode::NOTIFY || d.flags & Flags::LAST != 0, misplaced)?;
    let fence_misplaced = d.flags & Flags::FENCE != 0 && !is_first;
    ensure(!fence_misplaced, at_take(Status::BAD_SEQUENCE, Field::FLAGS, d.flags.into()))?;
    if let Some(second) = second {
        let found = Extension::from_entry(second).opcode;
        let not_extension = at_take(Status::BAD_SEQUENCE, Field::EXTENSION_OPCODE, found.into());
        ensure(found == Opcode::EXTENSION.0, not_extension)?;
    }
    Ok(())
}

fn check_flags(d: &Descriptor, is_transfer: bool) -> Result<(), Failure> {
    let has = |flag: u16| d.flags & flag != 0;
    let invalid = at_take(Status::INVALID_FLAGS, Field::FLAGS, d.flags.into());
    ensure(d.flags & !Flags::KNOWN == 0, invalid)?;
    let for_transfers = Flags::EXTENDED | Flags::MISSING_ZERO | Flags::MISSING_SKIP | Flags::DIRECT | Flags::GATHER;
    ensure(is_transfer || !has(for_transfers), invalid)?;
    ensure(!(has(Flags::MISSING_ZERO) && has(Flags::MISSING_SKIP)), invalid)?;
    let no_numbers = matches!(IndexKind::unpack(d.index_kind), Some((IndexKind::None | IndexKind::Fragments, _)));
    ensure(!(has(Flags::MISSING_ZERO | Flags::MISSING_SKIP) && no_numbers), invalid)?;
    ensure(!(has(Flags::DIRECT) && has(Flags::GATHER)), invalid)?;
    ensure(!has(Flags::GATHER), at_take(Status::UNSUPPORTED, Field::FLAGS, d.flags.into()))
}

fn check_unused_fields(d: &Descriptor) -> Result<(), Failure> {
    let used: &[Field] = match Opcode(d.opcode) {
        Opcode::BEGIN => &[Field::COUNT, Field::SRC_OFFSET, Field::DST_OFFSET],
        Opcode::CANCEL => &[Field::SRC_OFFSET],
        Opcode::NOTIFY if d.len == 0 => &[Field::DST_REGION, Field::DST_OFFSET],
        Opcode::NOTIFY if d.len > NOTIFY_BYTES_MAX => {
            &[Field::SRC_REGION, Field::SRC_OFFSET, Field::DST_REGION, Field::DST_OFFSET]
        }
        Opcode::NOTIFY => &[Field::LEN, Field::SRC_REGION, Field::SRC_OFFSET, Field::DST_REGION, Field::DST_OFFSET],
        _ => &[],
    };
    let all = [
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
    for (field, value) in all {
        ensure(value == 0 || used.contains(&field), at_take(Status::INVALID_FIELD, field, value))?;
    }
    Ok(())
}

/// What is checked of a NOTIFY at stage PLAN.
pub fn check_notify(d: &Descriptor, memory: &Memory) -> Result<(), Failure> {
    let payload = (Field::SRC_REGION, d.src_region);
    let mut used = vec![(Field::DST_REGION, d.dst_region)];
    if d.len > 0 {
        used.insert(0, payload);
    }
    check_exist(&used, memory)?;
    if d.len > 0 {
        let region = memory.region(d.src_region);
        ensure(region.read, at_plan(Status::NO_RIGHT, Field::SRC_REGION, d.src_region.into()))?;
        let end = u128::from(d.src_offset) + u128::from(d.len);
        let inside = end <= region.bytes.len() as u128;
        ensure(inside, at_plan(Status::OUT_OF_RANGE, Field::SRC_OFFSET, d.src_offset))?;
    }
    let is_somebodys = !memory.region(d.dst_region).engines_own;
    ensure(is_somebodys, at_plan(Status::UNSUPPORTED, Field::DST_REGION, d.dst_region.into()))
}

fn check_exist(used: &[(Field, u32)], memory: &Memory) -> Result<(), Failure> {
    for &(field, handle) in used {
        let region = memory.find(handle).ok_or(at_plan(Status::UNKNOWN_REGION, field, handle.into()))?;
        ensure(!region.gone, at_plan(Status::REGION_GONE, field, handle.into()))?;
    }
    Ok(())
}

fn check_index_kind(d: &Descriptor) -> Result<(IndexKind, IndexKind), Failure> {
    let unknown = at_take(Status::INVALID_INDEX_KIND, Field::INDEX_KIND, d.index_kind.into());
    let kinds = IndexKind::unpack(d.index_kind).ok_or(unknown)?;
    let extended_records = kinds.0 == IndexKind::Fragments && d.flags & Flags::EXTENDED != 0;
    ensure(!extended_records, at_take(Status::INVALID_FLAGS, Field::FLAGS, d.flags.into()))?;
    Ok(kinds)
}

fn check_transfer_fields(d: &Descriptor, kinds: (IndexKind, IndexKind), second: Option<&Entry>) -> Result<(), Failure> {
    let zero = |field, value: u64| ensure(value == 0, at_take(Status::INVALID_FIELD, field, value));
    if kinds == (IndexKind::None, IndexKind::None) {
        zero(Field::INDEX_REGION, d.index_region.into())?;
        zero(Field::INDEX_OFFSET, d.index_offset)?;
    }
    if kinds.0 == IndexKind::Fragments {
        zero(Field::LEN, d.len.into())?;
        zero(Field::SRC_STRIDE, d.src_stride.into())?;
        zero(Field::DST_STRIDE, d.dst_stride.into())?;
    }
    if let Some(second) = second {
        zero(Field::EXTENSION_RESERVED, second[0] & 0xffff_ff00)?;
        for &word in &second[2..] {
            zero(Field::EXTENSION_RESERVED, word)?;
        }
    }
    Ok(())
}

fn check_counts_and_steps(
    d: &Descriptor,
    kinds: (IndexKind, IndexKind),
    extension: Option<&Extension>,
) -> Result<(), Failure> {
    ensure(d.count != 0, at_take(Status::INVALID_COUNT, Field::COUNT, 0))?;
    if let Some(e) = extension {
        ensure(e.inner_count != 0, at_take(Status::INVALID_COUNT, Field::INNER_COUNT, 0))?;
    }
    if kinds.0 != IndexKind::Fragments && (d.count > 1 || kinds.1 != IndexKind::None) {
        let overlap = at_take(Status::INVALID_STRIDE, Field::DST_STRIDE, d.dst_stride.into());
        ensure(d.dst_stride >= d.len, overlap)?;
    }
    if let Some(e) = extension
        && e.inner_count > 1
    {
        let overlap = at_take(Status::INVALID_STRIDE, Field::INNER_DST_STRIDE, e.inner_dst_stride.into());
        ensure(e.inner_dst_stride >= d.len, overlap)?;
    }
    Ok(())
}

fn check_regions(d: &Descriptor, kinds: (IndexKind, IndexKind), memory: &Memory) -> Result<(), Failure> {
    let mut used = vec![(Field::SRC_REGION, d.src_region), (Field::DST_REGION, d.dst_region)];
    if kinds != (IndexKind::None, IndexKind::None) {
        used.push((Field::INDEX_REGION, d.index_region));
    }
    check_exist(&used, memory)?;
    for &(field, handle) in &used {
        let region = memory.region(handle);
        let granted = if field == Field::DST_REGION { region.write } else { region.read };
        ensure(granted, at_plan(Status::NO_RIGHT, field, handle.into()))?;
    }
    Ok(())
}

fn check_index_arrays(d: &Descriptor, (src, dst): (IndexKind, IndexKind), memory: &Memory) -> Result<(), Failure> {
    let alignment = |kind| match kind {
        IndexKind::None => 1,
        IndexKind::U32 => 4,
        IndexKind::U64 | IndexKind::Fragments => 8,
    };
    let misaligned = at_plan(Status::MISALIGNED_INDEX, Field::INDEX_OFFSET, d.index_offset);
    let src_start = u128::from(d.index_offset);
    let src_end = src_start + u128::from(d.count) * u128::from(src.entry_bytes());
    // The records of FRAGMENTS are one array for both sides.
    let dst_entry = if dst == IndexKind::Fragments { 0 } else { dst.entry_bytes() };
    let dst_end = src_end + u128::from(d.count) * u128::from(dst_entry);
    let first = if src == IndexKind::None { dst } else { src };
    if first == IndexKind::None {
        return Ok(());
    }
    ensure(src_start.is_multiple_of(alignment(first)), misaligned)?;
    let index_bytes = memory.region(d.index_region).bytes.len() as u128;
    ensure(dst_end <= index_bytes, at_plan(Status::OUT_OF_RANGE, Field::INDEX_OFFSET, d.index_offset))?;
    ensure(src_end.is_multiple_of(alignment(dst)), misaligned)
}

fn check_ranges_without_index(
    d: &Descriptor,
    kinds: (IndexKind, IndexKind),
    extension: Option<&Extension>,
    memory: &Memory,
) -> Result<(), Failure> {
    let (src, dst) = Shape::both(d, extension);
    let sides = [(kinds.0, src, d.src_region, Field::SRC_OFFSET), (kinds.1, dst, d.dst_region, Field::DST_OFFSET)];
    if sides.iter().all(|side| side.0 != IndexKind::None) {
        return Ok(());
    }
    for fragment in 0..d.count {
        for (kind, shape, handle, field) in sides {
            if kind == IndexKind::None && !shape.fits(fragment.into(), memory.region(handle)) {
                let start = u64::try_from(shape.start(fragment.into())).unwrap_or(u64::MAX);
                return Err(Failure { fragment, ..at_plan(Status::OUT_OF_RANGE, field, start) });
            }
        }
    }
    Ok(())
}
