//! The validation matrix, and the named workloads: what is simulated.
//!
//! As the benchmark has them: pieces of a table of 1 GiB, and a buffer. READ moves them into the buffer, WRITE from it, so
//! that the table is the owner's. A cell is numbers only; no payload exists.

use super::random::Random;
use super::{Job, Part};
use crate::plan::{Direction, Missing, Shape, Transfer};
use ring_abi::IndexKind;

/// Equal pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Bytes of a piece.
    pub len: u32,
    /// How many.
    pub count: u32,
}

/// Where the pieces lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Geometry {
    /// Anywhere in the table, one behind the other in the buffer.
    Random,
    /// One behind the other on both sides.
    Contiguous,
    /// Anywhere in the table, and in another order in the buffer.
    Fragmented,
    /// One behind the other in the table, in another order in the buffer.
    Scattered,
}

/// What a cell is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Pieces of one size, many of them.
    Equal,
    /// A few pieces of 512 KiB: they are to travel as well as if nobody had planned anything.
    FewLarge,
    /// Many small pieces, and 64 of 512 KiB.
    SmallAndLarge,
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Count, size and geometry, or W1 to W5.
    pub name: String,
    /// Its kind.
    pub mix: Mix,
    /// One part of the job each.
    pub groups: Vec<Group>,
    /// Of every group.
    pub geometry: Geometry,
    /// Which way.
    pub direction: Direction,
}

impl Cell {
    /// Largest payload: more of the same tells nothing more.
    pub const PAYLOAD_MAX: u64 = 512 << 20;

    /// Every combination of size, count, geometry and direction that is no larger, and the mixes.
    #[must_use]
    pub fn matrix() -> Vec<Cell> {
        let mut cells = Vec::new();
        for direction in [Direction::Read, Direction::Write] {
            for (geometry, word) in GEOMETRIES {
                for (len, count) in LENGTHS.into_iter().flat_map(|len| COUNTS.map(|count| (len, count))) {
                    let name = format!("{count}x{len}-{word}");
                    cells.push(Cell { name, mix: Mix::Equal, groups: vec![Group { len, count }], geometry, direction });
                }
                for count in FEW {
                    let name = format!("{count}x{LARGE}-few-{word}");
                    let groups = vec![Group { len: LARGE, count }];
                    cells.push(Cell { name, mix: Mix::FewLarge, groups, geometry, direction });
                }
                for (len, count) in LENGTHS_OF_MIXES.into_iter().flat_map(|len| COUNTS.map(|count| (len, count))) {
                    let name = format!("{count}x{len}+64x{LARGE}-{word}");
                    let groups = vec![Group { len, count }, Group { len: LARGE, count: 64 }];
                    cells.push(Cell { name, mix: Mix::SmallAndLarge, groups, geometry, direction });
                }
            }
        }
        cells.retain(|cell| cell.bytes() <= Cell::PAYLOAD_MAX);
        cells
    }

    /// One of W1 to W5.
    #[must_use]
    pub fn named(name: &str, direction: Direction) -> Option<Cell> {
        let small = |count| Group { len: 264, count };
        let large = Group { len: LARGE, count: 64 };
        let (mix, groups) = match name {
            "W1" => (Mix::Equal, vec![small(98_304)]),
            "W2" => (Mix::Equal, vec![small(131_072)]),
            "W3" => (Mix::SmallAndLarge, vec![small(32_768), large]),
            "W4" => (Mix::FewLarge, vec![large]),
            "W5" => (Mix::Equal, vec![small(1024)]),
            _ => return None,
        };
        Some(Cell { name: name.to_owned(), mix, groups, geometry: Geometry::Random, direction })
    }

    /// Payload.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.len) * u64::from(group.count)).sum()
    }

    /// Pieces.
    #[must_use]
    pub fn fragments(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.count)).sum()
    }

    /// Its pieces, by a seed. One descriptor for each group.
    #[must_use]
    pub fn job(&self, seed: u64) -> Job {
        let mut random = Random::new(seed);
        let mut offset = 0;
        let mut part = |group: &Group| {
            let part = self.part(group, offset, &mut random);
            offset += u64::from(group.len) * u64::from(group.count);
            part
        };
        Job { direction: self.direction, parts: self.groups.iter().map(&mut part).collect() }
    }

    /// `offset` is where the group starts in the buffer.
    fn part(&self, group: &Group, offset: u64, random: &mut Random) -> Part {
        let Group { len, count } = *group;
        let rows_of_table = TABLE_BYTES / u64::from(len);
        let at_random = matches!(self.geometry, Geometry::Random | Geometry::Fragmented);
        let in_order = matches!(self.geometry, Geometry::Random | Geometry::Contiguous);
        let table =
            if at_random { (0..count).map(|_| random.up_to(rows_of_table - 1) as u32).collect() } else { Vec::new() };
        let buffer = if in_order { Vec::new() } else { shuffled(count, random) };
        // Of the side, its numbers and the first byte of its group; the largest number that fits.
        let table = (table, 0, rows_of_table - 1);
        let buffer = (buffer, offset, u64::from(count) - 1);
        let (src, dst) = if self.direction == Direction::Read { (table, buffer) } else { (buffer, table) };
        let kind = |numbers: &Vec<u32>| if numbers.is_empty() { IndexKind::None } else { IndexKind::U32 };
        let shape = Shape {
            regions: [1, 2, 3],
            offsets: [src.1, dst.1, 0],
            count,
            len,
            strides: [len, len],
            inner_count: 1,
            inner_strides: [0, 0],
            kinds: [kind(&src.0), kind(&dst.0)],
            missing: Missing::Row,
        };
        Part { transfer: Transfer { shape, src_max: Some(src.2), dst_max: Some(dst.2) }, src: src.0, dst: dst.0 }
    }
}

fn shuffled(count: u32, random: &mut Random) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count).collect();
    for i in (1..numbers.len()).rev() {
        let other = random.up_to(i as u64) as usize;
        numbers.swap(i, other);
    }
    numbers
}

const TABLE_BYTES: u64 = 1 << 30;
const LARGE: u32 = 512 << 10;
/// Bytes of a piece in the cells of equal ones.
pub const LENGTHS: [u32; 8] = [64, 128, 264, 512, 1 << 10, 4 << 10, 32 << 10, LARGE];
/// Pieces of such a cell.
pub const COUNTS: [u32; 5] = [1 << 10, 4 << 10, 32 << 10, 98_304, 131_072];
const FEW: [u32; 4] = [1, 4, 16, 64];
const LENGTHS_OF_MIXES: [u32; 2] = [64, 264];
const GEOMETRIES: [(Geometry, &str); 4] = [
    (Geometry::Random, "random"),
    (Geometry::Contiguous, "contiguous"),
    (Geometry::Fragmented, "fragmented"),
    (Geometry::Scattered, "scattered"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_names_of_their_own_and_numbers_that_fit() {
        let cells = Cell::matrix();
        let mut names: Vec<_> = cells.iter().map(|cell| (&cell.name, cell.direction == Direction::Read)).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), cells.len());
        for cell in cells.iter().filter(|cell| cell.fragments() <= 4096) {
            let job = cell.job(1);
            assert_eq!((job.bytes(), job.fragments()), (cell.bytes(), cell.fragments()), "{}", cell.name);
            for part in &job.parts {
                let Transfer { shape, src_max, dst_max } = part.transfer;
                for (numbers, kind, max) in [(&part.src, shape.kinds[0], src_max), (&part.dst, shape.kinds[1], dst_max)]
                {
                    let expected = if kind == IndexKind::U32 { shape.count as usize } else { 0 };
                    assert_eq!(numbers.len(), expected, "{}", cell.name);
                    assert!(numbers.iter().all(|row| Some(u64::from(*row)) <= max), "{}", cell.name);
                }
            }
        }
    }
}
