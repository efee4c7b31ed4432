//! Submission entries.

use crate::Entry;

/// One submission entry: `count` fragments of `len` bytes.
///
/// Fragment `i` reads at `src_offset + (src index ? src_index[i] : i) * src_stride` and lands at
/// `dst_offset + (dst index ? dst_index[i] : i) * dst_stride`. With an index on both sides the destination's array
/// follows the source's in memory, without padding: a `u64` array behind an odd number of `u32` wants an `index_offset`
/// of 4 modulo 8.
///
/// ```
/// use ring_abi::{Descriptor, Flags, Opcode};
/// let d = Descriptor { opcode: Opcode::NOP.0, flags: Flags::LAST, user_data: 7, ..Descriptor::ZERO };
/// assert_eq!(Descriptor::from_entry(&d.to_entry()), d);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Descriptor {
    /// One of [`Opcode`].
    pub opcode: u8,
    /// Low nibble: the source's [`IndexKind`]; high nibble: the destination's.
    pub index_kind: u8,
    /// Bits of [`Flags`].
    pub flags: u16,
    /// Bytes per fragment. 0 with FRAGMENTS. NOTIFY: bytes of the payload, at most [`NOTIFY_BYTES_MAX`].
    pub len: u32,
    /// Region handle of the source. NOTIFY: of the payload, 0 without one.
    pub src_region: u32,
    /// Region handle of the destination. NOTIFY: who exported this region is told.
    pub dst_region: u32,
    /// Bytes from the start of the source region. BEGIN: expected bytes of the batch. CANCEL: position of the first
    /// descriptor of the batch to cancel. NOTIFY: of the payload in its region.
    pub src_offset: u64,
    /// Bytes from the start of the destination region. BEGIN: deadline in ns after the batch's first
    /// descriptor was taken, 0 for none. NOTIFY: anything, handed over as [`Span::first`](crate::Span::first).
    pub dst_offset: u64,
    /// Fragments, 1 for a plain range. BEGIN: expected fragments of the batch.
    pub count: u32,
    /// Region handle of the index array, 0 without one.
    pub index_region: u32,
    /// Bytes from the start of the index region.
    pub index_offset: u64,
    /// Bytes from one source fragment (or index step) to the next.
    pub src_stride: u32,
    /// Bytes from one destination fragment (or index step) to the next.
    pub dst_stride: u32,
    /// Handed back in the span. NOTIFY: also handed over.
    pub user_data: u64,
}

const _: () = {
    assert!(size_of::<Descriptor>() == crate::ENTRY_BYTES && align_of::<Descriptor>() == 8);
    assert!(core::mem::offset_of!(Descriptor, opcode) == 0);
    assert!(core::mem::offset_of!(Descriptor, index_kind) == 1);
    assert!(core::mem::offset_of!(Descriptor, flags) == 2);
    assert!(core::mem::offset_of!(Descriptor, len) == 4);
    assert!(core::mem::offset_of!(Descriptor, src_region) == 8);
    assert!(core::mem::offset_of!(Descriptor, dst_region) == 12);
    assert!(core::mem::offset_of!(Descriptor, src_offset) == 16);
    assert!(core::mem::offset_of!(Descriptor, dst_offset) == 24);
    assert!(core::mem::offset_of!(Descriptor, count) == 32);
    assert!(core::mem::offset_of!(Descriptor, index_region) == 36);
    assert!(core::mem::offset_of!(Descriptor, index_offset) == 40);
    assert!(core::mem::offset_of!(Descriptor, src_stride) == 48);
    assert!(core::mem::offset_of!(Descriptor, dst_stride) == 52);
    assert!(core::mem::offset_of!(Descriptor, user_data) == 56);
};

impl Descriptor {
    /// All bytes 0.
    pub const ZERO: Descriptor = Descriptor {
        opcode: 0,
        index_kind: 0,
        flags: 0,
        len: 0,
        src_region: 0,
        dst_region: 0,
        src_offset: 0,
        dst_offset: 0,
        count: 0,
        index_region: 0,
        index_offset: 0,
        src_stride: 0,
        dst_stride: 0,
        user_data: 0,
    };

    /// The eight words that go into a slot.
    #[must_use]
    #[inline]
    pub const fn to_entry(&self) -> Entry {
        [
            self.opcode as u64 | (self.index_kind as u64) << 8 | (self.flags as u64) << 16 | (self.len as u64) << 32,
            pair(self.src_region, self.dst_region),
            self.src_offset,
            self.dst_offset,
            pair(self.count, self.index_region),
            self.index_offset,
            pair(self.src_stride, self.dst_stride),
            self.user_data,
        ]
    }

    /// The descriptor that the words of a slot spell. Every word pattern is a descriptor; whether it has a meaning is
    /// for the engine to check.
    #[must_use]
    #[inline]
    pub const fn from_entry(entry: &Entry) -> Descriptor {
        Descriptor {
            opcode: entry[0] as u8,
            index_kind: (entry[0] >> 8) as u8,
            flags: (entry[0] >> 16) as u16,
            len: high(entry[0]),
            src_region: low(entry[1]),
            dst_region: high(entry[1]),
            src_offset: entry[2],
            dst_offset: entry[3],
            count: low(entry[4]),
            index_region: high(entry[4]),
            index_offset: entry[5],
            src_stride: low(entry[6]),
            dst_stride: high(entry[6]),
            user_data: entry[7],
        }
    }
}

/// The slot behind a descriptor with [`Flags::EXTENDED`]: every fragment becomes `inner_count` pieces of `len` bytes.
///
/// Piece `k` of a fragment lies `k * inner_src_stride` behind the fragment's start at the source and
/// `k * inner_dst_stride` behind it at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Extension {
    /// [`Opcode::EXTENSION`].
    pub opcode: u8,
    /// 0.
    pub reserved: [u8; 3],
    /// Pieces per fragment, at least 1.
    pub inner_count: u32,
    /// Bytes between the starts of two pieces at the source.
    pub inner_src_stride: u32,
    /// Bytes between the starts of two pieces at the destination; at least `len` if there are two.
    pub inner_dst_stride: u32,
    /// 0.
    pub reserved_words: [u64; 6],
}

const _: () = {
    assert!(size_of::<Extension>() == crate::ENTRY_BYTES && align_of::<Extension>() == 8);
    assert!(core::mem::offset_of!(Extension, inner_count) == 4);
    assert!(core::mem::offset_of!(Extension, inner_src_stride) == 8);
    assert!(core::mem::offset_of!(Extension, inner_dst_stride) == 12);
    assert!(core::mem::offset_of!(Extension, reserved_words) == 16);
};

impl Extension {
    /// An extension with its opcode set and nothing reserved in use.
    ///
    /// ```
    /// use ring_abi::Extension;
    /// let tile = Extension::new(16, 512, 1024);
    /// assert_eq!(Extension::from_entry(&tile.to_entry()), tile);
    /// ```
    #[must_use]
    pub const fn new(inner_count: u32, inner_src_stride: u32, inner_dst_stride: u32) -> Extension {
        Extension {
            opcode: Opcode::EXTENSION.0,
            reserved: [0; 3],
            inner_count,
            inner_src_stride,
            inner_dst_stride,
            reserved_words: [0; 6],
        }
    }

    /// The eight words that go into a slot.
    #[must_use]
    #[inline]
    pub const fn to_entry(&self) -> Entry {
        let r = self.reserved_words;
        let head = self.opcode as u64
            | (self.reserved[0] as u64) << 8
            | (self.reserved[1] as u64) << 16
            | (self.reserved[2] as u64) << 24
            | (self.inner_count as u64) << 32;
        [head, pair(self.inner_src_stride, self.inner_dst_stride), r[0], r[1], r[2], r[3], r[4], r[5]]
    }

    /// The extension that the words of a slot spell.
    #[must_use]
    #[inline]
    pub const fn from_entry(entry: &Entry) -> Extension {
        Extension {
            opcode: entry[0] as u8,
            reserved: [(entry[0] >> 8) as u8, (entry[0] >> 16) as u8, (entry[0] >> 24) as u8],
            inner_count: high(entry[0]),
            inner_src_stride: low(entry[1]),
            inner_dst_stride: high(entry[1]),
            reserved_words: [entry[2], entry[3], entry[4], entry[5], entry[6], entry[7]],
        }
    }
}

/// One irregular fragment of an [`IndexKind::Fragments`] array, relative to the descriptor's two offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct FragmentRecord {
    /// Bytes behind `src_offset`.
    pub src: u64,
    /// Bytes behind `dst_offset`.
    pub dst: u64,
    /// Bytes.
    pub len: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<FragmentRecord>() == 24 && align_of::<FragmentRecord>() == 8);
    assert!(core::mem::offset_of!(FragmentRecord, dst) == 8);
    assert!(core::mem::offset_of!(FragmentRecord, len) == 16);
    assert!(core::mem::offset_of!(FragmentRecord, reserved) == 20);
};

impl FragmentRecord {
    /// The three words of the record.
    #[must_use]
    #[inline]
    pub const fn to_words(&self) -> [u64; 3] {
        [self.src, self.dst, pair(self.len, self.reserved)]
    }

    /// The record that three words spell.
    #[must_use]
    #[inline]
    pub const fn from_words(words: [u64; 3]) -> FragmentRecord {
        FragmentRecord { src: words[0], dst: words[1], len: low(words[2]), reserved: high(words[2]) }
    }
}

/// Most bytes of the payload of a [`NOTIFY`](Opcode::NOTIFY), and bytes of each slot of a notification buffer.
pub const NOTIFY_BYTES_MAX: u32 = 4096;

/// What a descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Opcode(pub u8);

impl Opcode {
    /// Nothing. Succeeds with 0 bytes; useful to end a batch or to measure a round trip.
    pub const NOP: Opcode = Opcode(1);
    /// Hints and a deadline for the batch that it starts.
    pub const BEGIN: Opcode = Opcode(2);
    /// From a remote region, or another one, into mine.
    pub const READ: Opcode = Opcode(3);
    /// From mine into the other.
    pub const WRITE: Opcode = Opcode(4);
    /// A message to the client that exported the other region: `len` bytes of a region of mine, `dst_offset` and
    /// `user_data`. Only as the last descriptor of a batch, with [`Flags::LAST`]. It is sent when all others of its batch
    /// are done, never if one is not; and it is done when it is in place: see [`SpanFlags::EVENT`](crate::SpanFlags::EVENT)
    /// and [`Kind::NOTIFICATIONS`](crate::Kind::NOTIFICATIONS). While the one who is to be told has no free place for it, it
    /// waits, until a deadline or a cancel ends its batch. The region of an export may be told of with any rights.
    pub const NOTIFY: Opcode = Opcode(5);
    /// Ends another batch of this ring.
    pub const CANCEL: Opcode = Opcode(6);
    /// The second slot of an extended descriptor.
    pub const EXTENSION: Opcode = Opcode(7);

    /// The name of a known opcode. 0 is none, so that a forgotten slot is an error.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Opcode::NOP => "NOP",
            Opcode::BEGIN => "BEGIN",
            Opcode::READ => "READ",
            Opcode::WRITE => "WRITE",
            Opcode::NOTIFY => "NOTIFY",
            Opcode::CANCEL => "CANCEL",
            Opcode::EXTENSION => "EXTENSION",
            _ => return None,
        })
    }
}

/// Bits of [`Descriptor::flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags;

impl Flags {
    /// The batch ends with this descriptor (and its extension).
    pub const LAST: u16 = 1 << 0;
    /// On a batch's first descriptor: starts when all earlier batches of this ring have their outcome and are
    /// released, whatever it was; later batches do not overtake it.
    pub const FENCE: u16 = 1 << 1;
    /// The next slot is an [`Extension`] of this descriptor.
    pub const EXTENDED: u16 = 1 << 2;
    /// A source row number of all ones fills the destination of that fragment with 0.
    pub const MISSING_ZERO: u16 = 1 << 3;
    /// A source row number of all ones leaves the destination of that fragment as it is.
    pub const MISSING_SKIP: u16 = 1 << 4;
    /// Force the direct route.
    pub const DIRECT: u16 = 1 << 5;
    /// Force the gather route.
    pub const GATHER: u16 = 1 << 6;
    /// Every bit with a meaning.
    pub const KNOWN: u16 = (1 << 7) - 1;
}

/// How one side's fragment numbers are given: a nibble of [`Descriptor::index_kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IndexKind {
    /// Fragment `i` has number `i`.
    None = 0,
    /// An array of `u32`.
    U32 = 1,
    /// An array of `u64`.
    U64 = 2,
    /// For both sides at once: an array of [`FragmentRecord`].
    Fragments = 3,
}

impl IndexKind {
    /// The byte of a descriptor for these two sides.
    ///
    /// ```
    /// use ring_abi::IndexKind;
    /// assert_eq!(IndexKind::pack(IndexKind::U32, IndexKind::None), 0x01);
    /// assert_eq!(IndexKind::unpack(0x33), Some((IndexKind::Fragments, IndexKind::Fragments)));
    /// assert_eq!(IndexKind::unpack(0x13), None);
    /// ```
    #[must_use]
    pub const fn pack(src: IndexKind, dst: IndexKind) -> u8 {
        src as u8 | (dst as u8) << 4
    }

    /// The two sides, or `None` where the byte has no meaning (FRAGMENTS is for both sides or neither).
    #[must_use]
    pub const fn unpack(byte: u8) -> Option<(IndexKind, IndexKind)> {
        match (Self::from_nibble(byte & 15), Self::from_nibble(byte >> 4)) {
            (Some(IndexKind::Fragments), Some(IndexKind::Fragments)) => {
                Some((IndexKind::Fragments, IndexKind::Fragments))
            }
            (Some(IndexKind::Fragments), _) | (_, Some(IndexKind::Fragments)) => None,
            (Some(src), Some(dst)) => Some((src, dst)),
            _ => None,
        }
    }

    /// Bytes of one array entry, 0 without an array.
    #[must_use]
    pub const fn entry_bytes(self) -> u64 {
        match self {
            IndexKind::None => 0,
            IndexKind::U32 => 4,
            IndexKind::U64 => 8,
            IndexKind::Fragments => size_of::<FragmentRecord>() as u64,
        }
    }

    const fn from_nibble(nibble: u8) -> Option<IndexKind> {
        Some(match nibble {
            0 => IndexKind::None,
            1 => IndexKind::U32,
            2 => IndexKind::U64,
            3 => IndexKind::Fragments,
            _ => return None,
        })
    }
}

/// A region handle of one session: 12 bits of index, 20 bits of generation. 0 is no region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Handle(pub u32);

impl Handle {
    /// No region.
    pub const NONE: Handle = Handle(0);
    /// Regions that one session can have open at a time.
    pub const INDEX_MAX: u32 = (1 << 12) - 1;
    /// The last generation of a slot; a slot whose generations are used up is retired.
    pub const GENERATION_MAX: u32 = (1 << 20) - 1;

    /// The handle of a slot. Generations start at 1, so that no handle is 0.
    ///
    /// ```
    /// let h = ring_abi::Handle::new(5, 9).unwrap();
    /// assert_eq!((h.index(), h.generation()), (5, 9));
    /// assert!(ring_abi::Handle::new(5, 0).is_none());
    /// ```
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Option<Handle> {
        if index > Self::INDEX_MAX || generation == 0 || generation > Self::GENERATION_MAX {
            return None;
        }
        Some(Handle(index | generation << 12))
    }

    /// The slot.
    #[must_use]
    #[inline]
    pub const fn index(self) -> u32 {
        self.0 & Self::INDEX_MAX
    }

    /// How often the slot had been given out.
    #[must_use]
    #[inline]
    pub const fn generation(self) -> u32 {
        self.0 >> 12
    }
}

/// Which field of a descriptor an error is about: its offset in the descriptor's 64 bytes, plus 64 for a field of the
/// extension slot behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Field(pub u32);

impl Field {
    /// No single field.
    pub const NONE: Field = Field(u32::MAX);
    /// [`Descriptor::opcode`]
    pub const OPCODE: Field = Field(0);
    /// [`Descriptor::index_kind`]
    pub const INDEX_KIND: Field = Field(1);
    /// [`Descriptor::flags`]
    pub const FLAGS: Field = Field(2);
    /// [`Descriptor::len`]
    pub const LEN: Field = Field(4);
    /// [`Descriptor::src_region`]
    pub const SRC_REGION: Field = Field(8);
    /// [`Descriptor::dst_region`]
    pub const DST_REGION: Field = Field(12);
    /// [`Descriptor::src_offset`]: the source side of a fragment.
    pub const SRC_OFFSET: Field = Field(16);
    /// [`Descriptor::dst_offset`]: the destination side of a fragment.
    pub const DST_OFFSET: Field = Field(24);
    /// [`Descriptor::count`]
    pub const COUNT: Field = Field(32);
    /// [`Descriptor::index_region`]
    pub const INDEX_REGION: Field = Field(36);
    /// [`Descriptor::index_offset`]
    pub const INDEX_OFFSET: Field = Field(40);
    /// [`Descriptor::src_stride`]
    pub const SRC_STRIDE: Field = Field(48);
    /// [`Descriptor::dst_stride`]
    pub const DST_STRIDE: Field = Field(52);
    /// [`Extension::opcode`]
    pub const EXTENSION_OPCODE: Field = Field(64);
    /// [`Extension::reserved`] and [`Extension::reserved_words`]
    pub const EXTENSION_RESERVED: Field = Field(65);
    /// [`Extension::inner_count`]
    pub const INNER_COUNT: Field = Field(68);
    /// [`Extension::inner_src_stride`]
    pub const INNER_SRC_STRIDE: Field = Field(72);
    /// [`Extension::inner_dst_stride`]
    pub const INNER_DST_STRIDE: Field = Field(76);

    /// The field's name, for messages.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Field::OPCODE => "opcode",
            Field::INDEX_KIND => "index_kind",
            Field::FLAGS => "flags",
            Field::LEN => "len",
            Field::SRC_REGION => "src_region",
            Field::DST_REGION => "dst_region",
            Field::SRC_OFFSET => "src_offset",
            Field::DST_OFFSET => "dst_offset",
            Field::COUNT => "count",
            Field::INDEX_REGION => "index_region",
            Field::INDEX_OFFSET => "index_offset",
            Field::SRC_STRIDE => "src_stride",
            Field::DST_STRIDE => "dst_stride",
            Field::EXTENSION_OPCODE => "extension.opcode",
            Field::EXTENSION_RESERVED => "extension.reserved",
            Field::INNER_COUNT => "extension.inner_count",
            Field::INNER_SRC_STRIDE => "extension.inner_src_stride",
            Field::INNER_DST_STRIDE => "extension.inner_dst_stride",
            _ => return None,
        })
    }
}

pub(crate) const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

pub(crate) const fn low(word: u64) -> u32 {
    word as u32
}

pub(crate) const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}
