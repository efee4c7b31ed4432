//! What is moved: a table with known contents, and lists of its pieces.
//!
//! Everything follows from numbers, so that whoever knows the workload can tell each byte.

use super::Failure;
use scatter_ring::client::{ClientError, Region};
use scatter_ring::cost::Direction;
use scatter_ring::sim::matrix::{COUNTS, Cell, Geometry, Group, LENGTHS};

/// The named ones.
pub const WORKLOADS: [&str; 5] = ["W1", "W2", "W3", "W4", "W5"];
/// Bytes of the table, if nothing else is asked for.
pub const TABLE_BYTES: u64 = 1 << 30;
/// Bytes of a row of the named workloads.
pub const ROW_BYTES: u32 = 264;
/// Lists that are used in turn, so that the rows of one are not in a cache when it comes again.
pub const LISTS: usize = 8;

/// A kind of list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub name: String,
    /// Makes its lists differ from those of others.
    number: u64,
    pub groups: Vec<Group>,
    pub geometry: Geometry,
}

/// The pieces of one batch, a part for each group.
#[derive(Debug)]
pub struct List {
    pub parts: Vec<Part>,
}

/// Pieces of one length. Number `i` is piece `rows[i]` of the table, counted in units of its length.
#[derive(Debug)]
pub struct Part {
    pub len: u32,
    /// Where the part starts in the buffer.
    pub offset: u64,
    pub rows: Vec<u32>,
    /// Where each piece lies in the part of the buffer, in units of its length; `None`: in order.
    pub places: Option<Vec<u32>>,
}

/// One piece.
#[derive(Clone, Copy, Debug)]
pub struct Fragment {
    pub table: u64,
    pub buffer: u64,
    pub len: u32,
}

impl Workload {
    /// One of W1 to W5.
    pub fn named(name: &str) -> Option<Workload> {
        let number = WORKLOADS.iter().position(|known| *known == name)? as u64;
        let Cell { name, groups, geometry, .. } = Cell::named(name, Direction::Read)?;
        Some(Workload { name, number, groups, geometry })
    }

    /// The same with a part of its pieces, so that it is no workload of that name any more.
    pub fn divided(mut self, by: u32) -> Workload {
        if by > 1 {
            self.groups.iter_mut().for_each(|group| group.count = (group.count / by).max(1));
            self.name = format!("{}/{by}", self.name);
        }
        self
    }

    /// So many random rows.
    pub fn rows(count: u32) -> Workload {
        let groups = vec![Group { len: ROW_BYTES, count }];
        Workload { name: "rows".to_owned(), number: 0, groups, geometry: Geometry::Random }
    }

    /// Every combination of size, count and geometry.
    pub fn matrix() -> Vec<Workload> {
        const GEOMETRIES: [(Geometry, &str); 3] =
            [(Geometry::Random, "random"), (Geometry::Contiguous, "contiguous"), (Geometry::Fragmented, "fragmented")];
        let mut all = Vec::new();
        for len in LENGTHS {
            for count in COUNTS {
                for (geometry, word) in GEOMETRIES {
                    let name = format!("{count}x{len}-{word}");
                    let number = 1000 + all.len() as u64;
                    all.push(Workload { name, number, groups: vec![Group { len, count }], geometry });
                }
            }
        }
        all
    }

    pub fn bytes(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.len) * u64::from(group.count)).sum()
    }

    pub fn fragments(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.count)).sum()
    }

    /// List `k`. Seed 1 gives the lists that other programs for the same workloads use.
    pub fn list(&self, k: usize, seed: u64, table_bytes: u64) -> Result<List, Failure> {
        let mut random = Random(list_seed(self.number, k, seed));
        let mut parts = Vec::with_capacity(self.groups.len());
        let mut offset = 0;
        for group in &self.groups {
            let in_table = table_bytes / u64::from(group.len);
            let at_random = matches!(self.geometry, Geometry::Random | Geometry::Fragmented);
            let needed = if at_random { 1 } else { u64::from(group.count) };
            if in_table < needed || in_table > 1 << 32 {
                let text = format!("{}: a table of {table_bytes} bytes is too small or too large for it", self.name);
                return Err(Failure::Usage(text));
            }
            let rows = if at_random {
                (0..group.count).map(|_| random.below(in_table) as u32).collect()
            } else {
                let first = random.below(in_table - needed + 1) as u32;
                (first..first + group.count).collect()
            };
            let in_order = matches!(self.geometry, Geometry::Random | Geometry::Contiguous);
            let places = (!in_order).then(|| random.shuffled(group.count));
            parts.push(Part { len: group.len, offset, rows, places });
            offset += u64::from(group.len) * u64::from(group.count);
        }
        Ok(List { parts })
    }
}

impl List {
    pub fn fragments(&self) -> impl Iterator<Item = Fragment> {
        self.parts.iter().flat_map(|part| {
            (0..part.rows.len()).map(|i| Fragment {
                table: u64::from(part.rows[i]) * u64::from(part.len),
                buffer: part.offset + part.place(i) * u64::from(part.len),
                len: part.len,
            })
        })
    }

    /// The numbers as they lie in an index region, 4 bytes each: for each part the rows, and in a fragmented one the places
    /// and the rows again, so that either can be the source's numbers with the other behind it.
    pub fn index(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in &self.parts {
            let again = part.places.iter().flat_map(|places| places.iter().chain(&part.rows));
            bytes.extend(part.rows.iter().chain(again).flat_map(|number| number.to_le_bytes()));
        }
        bytes
    }
}

impl Part {
    #[inline]
    pub fn place(&self, i: usize) -> u64 {
        self.places.as_ref().map_or(i as u64, |places| places[i].into())
    }

    /// Bytes in an index region.
    pub fn index_bytes(&self) -> u64 {
        4 * (self.rows.len() * if self.places.is_some() { 3 } else { 1 }) as u64
    }
}

fn list_seed(workload: u64, k: usize, seed: u64) -> u64 {
    let change = seed.wrapping_sub(1).wrapping_mul(0xD1B5_4A32_D192_ED03);
    (workload * 1000 + k as u64 + 1).wrapping_add(change)
}

/// Numbers by splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn shuffled(&mut self, count: u32) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..count).collect();
        for i in (1..numbers.len()).rev() {
            numbers.swap(i, self.below(i as u64 + 1) as usize);
        }
        numbers
    }
}

/// What an 8-byte word of the table contains. `salt` is 0 until somebody writes.
#[inline]
fn word(number: u64, salt: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(12_345) ^ salt
}

/// The contents of the table from a byte offset on, a multiple of 8.
pub fn fill(bytes: &mut [u8], offset: u64, salt: u64) {
    for (number, to) in (offset / 8..).zip(bytes.chunks_exact_mut(8)) {
        to.copy_from_slice(&word(number, salt).to_le_bytes());
    }
}

/// True if these are the contents of the table from a byte offset on.
pub fn matches(bytes: &[u8], offset: u64, salt: u64) -> bool {
    let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    bytes.len().is_multiple_of(8) && (offset / 8..).zip(words).all(|(number, found)| found == word(number, salt))
}

/// Fills a table, and says from time to time how many bytes are done.
pub fn fill_table(table: &Region, mut progress: impl FnMut(u64)) -> Result<(), Failure> {
    let mut piece = vec![0; 1 << 20];
    let mut done = 0;
    while done < table.bytes() {
        let len = (table.bytes() - done).min(piece.len() as u64);
        let piece = &mut piece[..len as usize];
        fill(piece, done, 0);
        table.write_at(done, piece)?;
        done += len;
        progress(done);
    }
    Ok(())
}

/// Puts what is to be written into a buffer: for each piece, what the table is to contain there.
pub fn fill_buffer(buffer: &Region, list: &List, salt: u64) -> Result<(), ClientError> {
    let mut piece = Vec::new();
    list.fragments().try_for_each(|fragment| {
        piece.resize(fragment.len as usize, 0);
        fill(&mut piece, fragment.table, salt);
        buffer.write_at(fragment.buffer, &piece)
    })
}

/// Compares every byte of every piece in a buffer with what the table has there, and says how many bytes that were. The
/// error is the number of the first piece that is wrong.
pub fn verify_buffer(buffer: &Region, list: &List, salt: u64) -> Result<u64, Failure> {
    let mut piece = Vec::new();
    let mut compared = 0;
    for (i, fragment) in list.fragments().enumerate() {
        piece.resize(fragment.len as usize, 0);
        buffer.read_at(fragment.buffer, &mut piece)?;
        if !matches(&piece, fragment.table, salt) {
            let text = format!("fragment {i} of {} bytes at {} of the table is wrong", fragment.len, fragment.table);
            return Err(Failure::run(text));
        }
        compared += u64::from(fragment.len);
    }
    Ok(compared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_1_gives_the_lists_that_programs_in_other_languages_use() {
        let hash_of = |name, seed| {
            let workload = Workload::named(name).unwrap();
            let lists = (0..LISTS).map(|k| workload.list(k, seed, TABLE_BYTES).unwrap());
            let mut hash = 0u64;
            for list in lists {
                for fragment in list.fragments() {
                    hash = hash.wrapping_mul(31).wrapping_add(fragment.table).wrapping_add(fragment.len.into());
                }
            }
            hash
        };
        // Computed by a program in C.
        for (name, hash) in [
            ("W1", 0x2668_2689_BB32_5F78),
            ("W2", 0x0ABE_3EFA_CDEC_2E50),
            ("W3", 0x6CD4_A477_C47F_FF18),
            ("W4", 0xE617_D41A_4B20_0000),
            ("W5", 0xEA29_C015_9A08_59D8),
        ] {
            assert_eq!(hash_of(name, 1), hash, "{name}");
            assert_ne!(hash_of(name, 2), hash, "{name}");
        }
    }

    #[test]
    fn pieces_fill_the_buffer_exactly_once_in_every_geometry() {
        let small = |w: &Workload| w.bytes() <= 4 << 20;
        for workload in Workload::matrix().into_iter().chain(Workload::named("W5")).filter(small) {
            let list = workload.list(3, 1, 64 << 20).unwrap();
            let mut places: Vec<(u64, u64)> =
                list.fragments().map(|f| (f.buffer, f.buffer + u64::from(f.len))).collect();
            places.sort_unstable();
            assert_eq!((places[0].0, places.last().unwrap().1), (0, workload.bytes()), "{}", workload.name);
            assert!(places.windows(2).all(|pair| pair[0].1 == pair[1].0), "{}", workload.name);
        }
    }

    #[test]
    fn a_single_wrong_byte_is_seen() {
        let mut bytes = vec![0; 64];
        fill(&mut bytes, 4096, 0);
        assert!(matches(&bytes, 4096, 0));
        for i in 0..bytes.len() {
            bytes[i] ^= 1;
            assert!(!matches(&bytes, 4096, 0), "byte {i}");
            bytes[i] ^= 1;
        }
        assert!(!matches(&bytes, 4104, 0) && !matches(&bytes, 4096, 1));
    }
}
