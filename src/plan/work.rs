//! How much work a window, or a batch, is: what the cost model decides by.

/// Which way the bytes go, seen from the one who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the owner: the owner packs, the requester unpacks.
    Read,
    /// To the owner.
    Write,
}

/// Fragments of like length, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// As described.
    pub fragments: u64,
    /// What is left when fragments that are adjacent at both ends are one: operations of the direct route.
    pub segments: u64,
    /// What is left when fragments that are adjacent at the source, in order, are one: pieces to pack.
    pub src_pieces: u64,
    /// The same at the destination: pieces to unpack.
    pub dst_pieces: u64,
    /// Payload.
    pub bytes: u64,
}

/// Work by the length of its segments: class `k` has those of `2^k` to `2^(k + 1) - 1` bytes, on the average of what was
/// added at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    classes: [Class; Work::CLASSES],
}

impl Class {
    /// What is expected may be more than can be counted: a client says it.
    fn add(&mut self, more: &Class) {
        self.fragments = self.fragments.saturating_add(more.fragments);
        self.segments = self.segments.saturating_add(more.segments);
        self.src_pieces = self.src_pieces.saturating_add(more.src_pieces);
        self.dst_pieces = self.dst_pieces.saturating_add(more.dst_pieces);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }
}

impl Default for Work {
    fn default() -> Work {
        Work { classes: [Class::default(); Work::CLASSES] }
    }
}

impl Work {
    /// Lengths are below 4 GiB; longer segments count as the longest.
    pub const CLASSES: usize = 32;

    /// Adds fragments that are of one kind.
    pub fn add(&mut self, more: &Class) {
        let length = more.bytes.checked_div(more.segments).unwrap_or(0);
        let at = length.max(1).ilog2().min(Work::CLASSES as u32 - 1);
        self.classes[at as usize].add(more);
    }

    /// The classes that have any fragment, the shortest first, with their numbers.
    pub fn classes(&self) -> impl DoubleEndedIterator<Item = (u32, &Class)> {
        let numbered = self.classes.iter().enumerate().map(|(number, class)| (number as u32, class));
        numbered.filter(|(_, class)| class.fragments > 0)
    }

    /// The sum of all classes whose segments are at least so long, or of all others.
    #[must_use]
    pub fn split(&self, direct_from_bytes: u32) -> (Class, Class) {
        let (mut short, mut long) = (Class::default(), Class::default());
        for (number, class) in self.classes() {
            let sum = if 1u64 << number >= u64::from(direct_from_bytes) { &mut long } else { &mut short };
            sum.add(class);
        }
        (short, long)
    }
}
