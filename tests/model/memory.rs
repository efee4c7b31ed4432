//! Regions and the copying of one READ or WRITE.
//!
//! Number `n` of a side (the fragment's number, or its index entry) starts at `offset + n * stride` and consists of
//! `inner_count` pieces of `len` bytes, `inner_stride` apart (one piece without an extension). All of it, from the first
//! byte of the first piece to the last byte of the last, must lie within the region.
//!
//! Fragments are copied from the first to the last. The first that cannot be ends the descriptor; those before it are
//! copied. All these failures have stage PACK and the fragment's number:
//!
//! - A number from an index leads outside the region: OUT_OF_RANGE, field SRC_OFFSET or DST_OFFSET, the number as
//!   detail; the source's before the destination's.
//! - With MISSING_ZERO a source number of all ones fills all pieces at the destination with 0; the destination's number
//!   is checked. With MISSING_SKIP it leaves them alone, and the destination's number is not looked at. Without either,
//!   and at the destination, all ones is a number like any other.
//! - A FRAGMENTS record's reserved word is not 0: INVALID_FIELD, field INDEX_OFFSET, the word as detail. Then
//!   `src_offset + src + len` and `dst_offset + dst + len` must lie within the regions: OUT_OF_RANGE, field SRC_OFFSET
//!   or DST_OFFSET, the record's `src` or `dst` as detail. Records of length 0 are checked too.
//!
//! Where destinations overlap each other, the source or the index, the bytes are not defined; comparisons avoid that.

use ring_abi::{Descriptor, Extension, Field, Flags, FragmentRecord, IndexKind, Stage, Status};

use super::Failure;

/// Registered memory. Its first byte is page-aligned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pub handle: u32,
    pub bytes: Vec<u8>,
    pub read: bool,
    pub write: bool,
    /// Withdrawn by its owner.
    pub gone: bool,
    /// Of the engine's own process: there is nobody to tell of it.
    pub engines_own: bool,
}

/// All regions of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    pub regions: Vec<Region>,
}

/// Where the fragments of one side lie.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    offset: u64,
    stride: u32,
    len: u32,
    inner_count: u32,
    inner_stride: u32,
}

impl Shape {
    /// Source and destination of a descriptor.
    pub fn both(d: &Descriptor, extension: Option<&Extension>) -> (Shape, Shape) {
        let e = extension.copied().unwrap_or(Extension::new(1, 0, 0));
        let shape = |offset, stride, inner_stride| Shape {
            offset,
            stride,
            len: d.len,
            inner_count: e.inner_count,
            inner_stride,
        };
        (shape(d.src_offset, d.src_stride, e.inner_src_stride), shape(d.dst_offset, d.dst_stride, e.inner_dst_stride))
    }

    /// Offset of the fragment with this number.
    pub fn start(&self, number: u64) -> u128 {
        u128::from(self.offset) + u128::from(number) * u128::from(self.stride)
    }

    /// True if the fragment with this number lies within the region.
    pub fn fits(&self, number: u64, region: &Region) -> bool {
        let extent = u128::from(self.inner_count - 1) * u128::from(self.inner_stride) + u128::from(self.len);
        self.start(number) + extent <= region.bytes.len() as u128
    }

    /// Offset of one piece of a fragment that fits.
    fn piece(&self, number: u64, piece: u32) -> usize {
        self.start(number) as usize + piece as usize * self.inner_stride as usize
    }
}

impl Memory {
    /// The region of a handle, gone or not.
    pub fn find(&self, handle: u32) -> Option<&Region> {
        self.regions.iter().find(|r| r.handle == handle)
    }

    /// The region of a handle that is known to exist.
    pub fn region(&self, handle: u32) -> &Region {
        self.find(handle).expect("checked before")
    }

    /// The same to change it.
    pub fn region_mut(&mut self, handle: u32) -> &mut Region {
        self.regions.iter_mut().find(|r| r.handle == handle).expect("checked before")
    }

    /// Copies all fragments of a descriptor that passed its checks. Says how many bytes were written.
    pub fn transfer(&mut self, d: &Descriptor, extension: Option<&Extension>) -> Result<u64, Failure> {
        let (src_kind, dst_kind) = IndexKind::unpack(d.index_kind).expect("checked before");
        if src_kind == IndexKind::Fragments {
            return self.copy_records(d);
        }
        let (src, dst) = Shape::both(d, extension);
        let fragment_bytes = u64::from(src.inner_count) * u64::from(d.len);
        let dst_array = d.index_offset + u64::from(d.count) * src_kind.entry_bytes();
        let mut bytes = 0;
        for fragment in 0..d.count {
            let src_number = self.number(src_kind, d, d.index_offset, fragment);
            let is_missing = match src_kind {
                IndexKind::U32 => src_number == u64::from(u32::MAX),
                IndexKind::U64 => src_number == u64::MAX,
                _ => false,
            };
            if is_missing && d.flags & Flags::MISSING_SKIP != 0 {
                continue;
            }
            let fill_with_zero = is_missing && d.flags & Flags::MISSING_ZERO != 0;
            if !fill_with_zero && !src.fits(src_number, self.region(d.src_region)) {
                return Err(out_of_range(Field::SRC_OFFSET, fragment, src_number));
            }
            let dst_number = self.number(dst_kind, d, dst_array, fragment);
            if !dst.fits(dst_number, self.region(d.dst_region)) {
                return Err(out_of_range(Field::DST_OFFSET, fragment, dst_number));
            }
            for piece in 0..src.inner_count {
                let to = dst.piece(dst_number, piece);
                if fill_with_zero {
                    self.region_mut(d.dst_region).bytes[to..][..d.len as usize].fill(0);
                } else {
                    self.copy(d, src.piece(src_number, piece), to, d.len);
                }
            }
            bytes += fragment_bytes;
        }
        Ok(bytes)
    }

    fn copy_records(&mut self, d: &Descriptor) -> Result<u64, Failure> {
        let mut bytes = 0;
        for fragment in 0..d.count {
            let at = d.index_offset + u64::from(fragment) * IndexKind::Fragments.entry_bytes();
            let words = [0, 8, 16].map(|word| u64::from_le_bytes(self.read(d.index_region, at + word)));
            let record = FragmentRecord::from_words(words);
            if record.reserved != 0 {
                return Err(Failure {
                    status: Status::INVALID_FIELD,
                    ..out_of_range(Field::INDEX_OFFSET, fragment, record.reserved.into())
                });
            }
            let from = u128::from(d.src_offset) + u128::from(record.src);
            let to = u128::from(d.dst_offset) + u128::from(record.dst);
            let len = u128::from(record.len);
            if from + len > self.region(d.src_region).bytes.len() as u128 {
                return Err(out_of_range(Field::SRC_OFFSET, fragment, record.src));
            }
            if to + len > self.region(d.dst_region).bytes.len() as u128 {
                return Err(out_of_range(Field::DST_OFFSET, fragment, record.dst));
            }
            self.copy(d, from as usize, to as usize, record.len);
            bytes += u64::from(record.len);
        }
        Ok(bytes)
    }

    fn copy(&mut self, d: &Descriptor, from: usize, to: usize, len: u32) {
        let piece = self.region(d.src_region).bytes[from..][..len as usize].to_vec();
        self.region_mut(d.dst_region).bytes[to..][..len as usize].copy_from_slice(&piece);
    }

    /// The number of a fragment on one side, whose index array (if any) starts at `array`.
    fn number(&self, kind: IndexKind, d: &Descriptor, array: u64, fragment: u32) -> u64 {
        let at = array + u64::from(fragment) * kind.entry_bytes();
        match kind {
            IndexKind::U32 => u32::from_le_bytes(self.read(d.index_region, at)).into(),
            IndexKind::U64 => u64::from_le_bytes(self.read(d.index_region, at)),
            _ => fragment.into(),
        }
    }

    fn read<const N: usize>(&self, handle: u32, at: u64) -> [u8; N] {
        self.region(handle).bytes[at as usize..][..N].try_into().expect("N bytes")
    }
}

fn out_of_range(field: Field, fragment: u32, detail: u64) -> Failure {
    Failure { status: Status::OUT_OF_RANGE, stage: Stage::PACK, field, fragment, detail }
}
