//! Index words of a window, in private memory.

use ring_abi::FragmentRecord;

/// Fragments of one transfer whose index words were copied into private memory: at most [`WINDOW`] of them, or, if no side
/// has an index, all from the first one on.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// A number for each fragment on each side.
    Rows {
        /// Of the source.
        src: Words<'a>,
        /// Of the destination.
        dst: Words<'a>,
    },
    /// The fragments themselves.
    Records(&'a [FragmentRecord]),
}

/// The numbers of one side.
#[derive(Clone, Copy, Debug)]
pub enum Words<'a> {
    /// No index: a fragment's number is its own.
    Counted,
    /// Index words of 32 bits.
    U32(&'a [u32]),
    /// Index words of 64 bits.
    U64(&'a [u64]),
}

/// Most fragments of a window that has an index.
pub const WINDOW: usize = 1024;

impl Numbers<'_> {
    /// Of a transfer without an index.
    pub const COUNTED: Numbers<'static> = Numbers::Rows { src: Words::Counted, dst: Words::Counted };
}

impl<'a> Words<'a> {
    /// The first so many.
    pub(super) fn first(self, count: usize) -> Words<'a> {
        match self {
            Words::Counted => Words::Counted,
            Words::U32(words) => Words::U32(&words[..count.min(words.len())]),
            Words::U64(words) => Words::U64(&words[..count.min(words.len())]),
        }
    }

    /// How many there are; without an index, any number.
    pub(super) fn len(self) -> usize {
        match self {
            Words::Counted => usize::MAX,
            Words::U32(words) => words.len(),
            Words::U64(words) => words.len(),
        }
    }

    /// That of fragment `i` of a window that starts at fragment `first`.
    #[inline]
    pub(super) fn number(self, first: u32, i: u32) -> u64 {
        match self {
            Words::Counted => u64::from(first) + u64::from(i),
            Words::U32(words) => words[i as usize].into(),
            Words::U64(words) => words[i as usize],
        }
    }

    /// The largest index word, `None` without an index.
    pub(super) fn largest(self) -> Option<u64> {
        match self {
            Words::Counted => None,
            Words::U32(words) => Some(words.iter().fold(0, |largest, word| largest.max(*word)).into()),
            Words::U64(words) => Some(words.iter().fold(0, |largest, word| largest.max(*word))),
        }
    }
}

/// How many of `count` fragments start where the one before ends, a fragment's number being then `steps` larger (`None`:
/// never) at source and destination. With and without an index.
pub(super) fn adjacent(words: [Words<'_>; 2], count: usize, steps: [Option<u32>; 2]) -> Adjacent {
    let one = |side: usize| {
        let Some(step) = steps[side] else { return 0 };
        match words[side] {
            Words::Counted if step == 1 => count.saturating_sub(1) as u32,
            Words::Counted => 0,
            Words::U32(words) => followers(words, step),
            Words::U64(words) => followers(words, step),
        }
    };
    let sides = [one(0), one(1)];
    let both = match (steps, words) {
        _ if sides.contains(&0) => 0,
        (_, [Words::Counted, _]) => sides[1],
        (_, [_, Words::Counted]) => sides[0],
        ([Some(src), Some(dst)], [Words::U32(s), Words::U32(d)]) => followers_of_both((s, src), (d, dst)),
        ([Some(src), Some(dst)], [Words::U32(s), Words::U64(d)]) => followers_of_both((s, src), (d, dst)),
        ([Some(src), Some(dst)], [Words::U64(s), Words::U32(d)]) => followers_of_both((s, src), (d, dst)),
        ([Some(src), Some(dst)], [Words::U64(s), Words::U64(d)]) => followers_of_both((s, src), (d, dst)),
        _ => 0,
    };
    Adjacent { sides, both }
}

/// See [`adjacent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Adjacent {
    pub sides: [u32; 2],
    pub both: u32,
}

trait Word: Copy {
    /// Whether it is exactly `step` more than the word before. No branch: loops over it become vector instructions.
    fn follows(self, before: Self, step: u32) -> bool;
}

impl Word for u32 {
    #[inline(always)]
    fn follows(self, before: u32, step: u32) -> bool {
        (self.wrapping_sub(before) == step) & (self >= step)
    }
}

impl Word for u64 {
    #[inline(always)]
    fn follows(self, before: u64, step: u32) -> bool {
        (self.wrapping_sub(before) == u64::from(step)) & (self >= u64::from(step))
    }
}

pub(super) fn followers_u32(words: &[u32], step: u32) -> u32 {
    followers(words, step)
}

fn followers<T: Word>(words: &[T], step: u32) -> u32 {
    let pairs = words.iter().zip(words.iter().skip(1));
    pairs.map(|(before, word)| u32::from(word.follows(*before, step))).sum()
}

fn followers_of_both<S: Word, D: Word>((src, src_step): (&[S], u32), (dst, dst_step): (&[D], u32)) -> u32 {
    let src = src.iter().zip(src.iter().skip(1)).map(|(before, word)| word.follows(*before, src_step));
    let dst = dst.iter().zip(dst.iter().skip(1)).map(|(before, word)| word.follows(*before, dst_step));
    src.zip(dst).map(|(src, dst)| u32::from(src & dst)).sum()
}
