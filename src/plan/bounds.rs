//! The checks that need the lengths and the rights of the regions.

use super::{Fault, Missing, Shape};
use ring_abi::{Field, FragmentRecord, IndexKind, Stage, Status};

/// What planning knows of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of the region.
    pub bytes: u64,
    /// Its address modulo 8: 0 for every mapping, anything for adopted memory.
    pub misalignment: u64,
}

/// A transfer that may be done. Un-indexed sides lie inside their regions as a whole; the numbers of an indexed side are
/// still to be checked against its maximum, one by one, when they have been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// As asked for.
    pub shape: Shape,
    /// The largest source row number whose fragment fits, `None` if none does. With FRAGMENTS: bytes behind the source
    /// offset.
    pub src_max: Option<u64>,
    /// The same for the destination.
    pub dst_max: Option<u64>,
}

/// Where a fragment starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bytes from the start of the source region; nothing if it is `zero`.
    pub src: u64,
    /// Bytes from the start of the destination region.
    pub dst: u64,
    /// It is missing: the destination is to be filled with 0.
    pub zero: bool,
}

const SIDES: [(Field, Field); 2] = [(Field::SRC_REGION, Field::SRC_OFFSET), (Field::DST_REGION, Field::DST_OFFSET)];

impl Shape {
    /// Checks ranges and alignment against the regions that the handles name: source, destination, index.
    ///
    /// # Errors
    /// MISALIGNED_INDEX or OUT_OF_RANGE. Of several un-indexed fragments outside their regions the lowest is named, the
    /// source before the destination.
    pub fn bounds(&self, src: Extent, dst: Extent, index: Option<Extent>) -> Result<Transfer, Fault> {
        if let Some(index) = index {
            self.check_index(index)?;
        }
        if self.kinds[0] == IndexKind::Fragments {
            let behind = |extent: Extent, offset| extent.bytes.checked_sub(offset);
            return Ok(Transfer {
                shape: *self,
                src_max: behind(src, self.offsets[0]),
                dst_max: behind(dst, self.offsets[1]),
            });
        }
        if self.len == 0 {
            return Ok(Transfer { shape: *self, src_max: None, dst_max: None });
        }
        let max = [self.largest_number(0, src), self.largest_number(1, dst)];
        let mut lowest: Option<Fault> = None;
        for side in 0..2 {
            if self.kinds[side] != IndexKind::None {
                continue;
            }
            let fits = max[side].map_or(0, |m| m.saturating_add(1));
            if fits < u64::from(self.count) && lowest.is_none_or(|f| fits < u64::from(f.fragment)) {
                let at = self.offsets[side].saturating_add(fits.saturating_mul(u64::from(self.strides[side])));
                let fault = Fault::new(Status::OUT_OF_RANGE, Stage::PLAN, SIDES[side].1, at);
                lowest = Some(Fault { fragment: fits as u32, ..fault });
            }
        }
        match lowest {
            Some(fault) => Err(fault),
            None => Ok(Transfer { shape: *self, src_max: max[0], dst_max: max[1] }),
        }
    }

    /// Bytes of the index array: source entries, then destination entries.
    #[must_use]
    pub fn index_bytes(&self) -> [u64; 2] {
        let count = u64::from(self.count);
        if self.kinds[0] == IndexKind::Fragments {
            return [count * IndexKind::Fragments.entry_bytes(), 0];
        }
        [count * self.kinds[0].entry_bytes(), count * self.kinds[1].entry_bytes()]
    }

    /// Bytes of one fragment.
    #[must_use]
    pub fn fragment_bytes(&self) -> u64 {
        u64::from(self.len) * u64::from(self.inner_count)
    }

    /// The alignment of the array that comes first in memory, the range of all, the alignment of the second: in this
    /// order, which is part of the interface.
    fn check_index(&self, index: Extent) -> Result<(), Fault> {
        let plan = |status| Fault::new(status, Stage::PLAN, Field::INDEX_OFFSET, self.offsets[2]);
        let aligned = |offset: u64, kind: IndexKind| {
            let entry = kind.entry_bytes().clamp(1, 8);
            index.misalignment.wrapping_add(offset).is_multiple_of(entry)
        };
        let bytes = self.index_bytes();
        let first = if self.kinds[0] == IndexKind::None { self.kinds[1] } else { self.kinds[0] };
        if !aligned(self.offsets[2], first) {
            return Err(plan(Status::MISALIGNED_INDEX));
        }
        let inside = self.offsets[2].checked_add(bytes[0] + bytes[1]).is_some_and(|end| end <= index.bytes);
        if !inside {
            return Err(plan(Status::OUT_OF_RANGE));
        }
        if !aligned(self.offsets[2] + bytes[0], self.kinds[1]) {
            return Err(plan(Status::MISALIGNED_INDEX));
        }
        Ok(())
    }

    /// The largest number of a fragment that lies inside the region on one side, `None` if not even number 0 does.
    fn largest_number(&self, side: usize, extent: Extent) -> Option<u64> {
        let inner = u64::from(self.inner_count - 1) * u64::from(self.inner_strides[side]);
        let end_of_first = self.offsets[side].checked_add(inner)?.checked_add(u64::from(self.len))?;
        let room = extent.bytes.checked_sub(end_of_first)?;
        Some(room.checked_div(u64::from(self.strides[side])).unwrap_or(u64::MAX))
    }
}

impl Transfer {
    /// No fragments.
    pub const NOTHING: Transfer = Transfer {
        shape: Shape {
            regions: [0; 3],
            offsets: [0; 3],
            count: 0,
            len: 0,
            strides: [0; 2],
            inner_count: 1,
            inner_strides: [0; 2],
            kinds: [IndexKind::None; 2],
            missing: Missing::Row,
        },
        src_max: None,
        dst_max: None,
    };

    /// True if nothing is to be read or written: a length of 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shape.len == 0 && self.shape.kinds[0] != IndexKind::Fragments
    }

    /// Checks one irregular fragment.
    ///
    /// # Errors
    /// A reserved word in use, or a range outside source or destination.
    pub fn check_record(&self, record: &FragmentRecord) -> Result<(), Fault> {
        let fault = |status, field, detail| Err(Fault::new(status, Stage::PACK, field, detail));
        if record.reserved != 0 {
            return fault(Status::INVALID_FIELD, Field::INDEX_OFFSET, record.reserved.into());
        }
        let fits = |max: Option<u64>, offset: u64| {
            max.is_some_and(|max| offset.checked_add(record.len.into()).is_some_and(|end| end <= max))
        };
        if !fits(self.src_max, record.src) {
            return fault(Status::OUT_OF_RANGE, Field::SRC_OFFSET, record.src);
        }
        if !fits(self.dst_max, record.dst) {
            return fault(Status::OUT_OF_RANGE, Field::DST_OFFSET, record.dst);
        }
        Ok(())
    }

    /// Where a fragment with these numbers lies, source and destination. `None`: it is missing and left as it is.
    ///
    /// # Errors
    /// A number that may not be followed; the source's is named first.
    #[inline]
    pub fn place(&self, [src, dst]: [u64; 2]) -> Result<Option<Place>, Fault> {
        let missing = self.missing().filter(|(_, ones)| src == *ones).map(|(missing, _)| missing);
        if missing == Some(Missing::Skip) {
            return Ok(None);
        }
        let out = |field, number| Err(Fault::new(Status::OUT_OF_RANGE, Stage::PACK, field, number));
        if missing.is_none() && self.src_max.is_none_or(|max| src > max) {
            return out(Field::SRC_OFFSET, src);
        }
        if self.dst_max.is_none_or(|max| dst > max) {
            return out(Field::DST_OFFSET, dst);
        }
        let at = |side: usize, number: u64| self.shape.offsets[side] + number * u64::from(self.shape.strides[side]);
        let zero = missing.is_some();
        Ok(Some(Place { src: if zero { 0 } else { at(0, src) }, dst: at(1, dst), zero }))
    }

    /// The meaning of an all-ones source row number, and what all ones is for the source's index kind.
    #[must_use]
    pub fn missing(&self) -> Option<(Missing, u64)> {
        match (self.shape.missing, self.shape.kinds[0]) {
            (Missing::Row, _) => None,
            (missing, IndexKind::U32) => Some((missing, u64::from(ring_abi::MISSING_U32))),
            (missing, _) => Some((missing, ring_abi::MISSING_U64)),
        }
    }
}
