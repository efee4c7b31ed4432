//! What one batch moves: pieces at random places of the other engine's table or sink, one behind the other in a buffer here.

use super::place::{File, Place, TABLE_BYTES, fill};
use super::{median, quantile};
use ring_abi::{Descriptor, Flags, IndexKind, Opcode, Route};
use scatter_ring::client::{Batch, Client, Region};
use scatter_ring::region::Rights;
use std::time::Instant;

/// A number of pieces of one length in bytes.
pub type Group = (u32, u32);

/// Bytes of a row of the workloads.
pub const ROW_BYTES: u32 = 264;
/// The workloads that have names.
pub const W1: &[Group] = &[(98_304, ROW_BYTES)];
pub const W3: &[Group] = &[(32_768, ROW_BYTES), (64, 512 << 10)];
pub const W4: &[Group] = &[(64, 512 << 10)];
pub const W5: &[Group] = &[(1024, ROW_BYTES)];

/// Lists that are used in turn, so that the rows of one are not in a cache when it comes again.
const LISTS: usize = 8;
/// What is larger than this does not live in a cache anyway.
const LARGE_BYTES: u64 = 64 << 20;

const ROUTES: [Route; 4] = [Route::NONE, Route::DIRECT, Route::GATHER, Route::HYBRID];

/// How the pieces are moved.
#[derive(Clone, Copy, Default)]
pub struct How {
    pub writes: bool,
    /// A descriptor for each piece, and not one and row numbers.
    pub are_single: bool,
    /// 0, or one of `Flags::DIRECT` and `Flags::GATHER`.
    pub route: u16,
}

/// A kind of batch with everything that it needs.
pub struct Work {
    how: How,
    fragments: usize,
    lists: Vec<Vec<Part>>,
    /// Bytes of the region here, and of the row numbers.
    bytes: u64,
    near: Region,
    index: Region,
    /// What reads come from, what writes go to.
    far: Region,
    /// How many of the timed runs travelled how, by `Route`.
    routes: [usize; ROUTES.len()],
    /// Counts verifications: what was written by one is nothing to another.
    salt: u64,
    turn: usize,
    /// Times in us, by rounds.
    rounds: Vec<Vec<f64>>,
}

/// Pieces of one length. Piece `i` is number `rows[i]` of the table, and number `i` from `near_at` on here.
struct Part {
    len: u32,
    near_at: u64,
    index_at: u64,
    rows: Vec<u32>,
}

impl Work {
    /// With buffers at the place's client.
    pub fn new(place: &mut Place, groups: &[Group], how: How) -> Work {
        let far = if how.writes { place.sink().opened.clone() } else { place.table.clone() };
        Self::with(place, far, groups, how)
    }

    /// With another table, or another sink.
    pub fn with(place: &Place, far: Region, groups: &[Group], how: How) -> Work {
        let bytes = groups.iter().map(|(count, len)| u64::from(*count) * u64::from(*len)).sum();
        let fragments = groups.iter().map(|(count, _)| *count as usize).sum();
        let (count, mut random, mut numbers) = (if bytes > LARGE_BYTES { 1 } else { LISTS }, Random(1), Vec::new());
        let lists: Vec<Vec<Part>> = (0..count).map(|_| list(groups, &mut random, &mut numbers)).collect();
        let region = |bytes| File::new(bytes).register(&place.client, Rights::READ_WRITE);
        let (near, index) = (region(bytes), region(numbers.len() as u64));
        index.write_at(0, &numbers).unwrap();
        let (routes, salt, turn, rounds) = (Default::default(), 0, 0, Vec::new());
        Work { how, fragments, lists, bytes, near, index, far, routes, salt, turn, rounds }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Carries each list out once and compares every byte.
    #[must_use]
    pub fn verified(mut self, place: &mut Place) -> Work {
        for list in 0..self.lists.len() {
            self.prepare(list);
            self.run(&mut place.client, list);
            self.check(place, list);
        }
        self
    }

    /// Puts into the buffer what cannot be there, or in the sink, already.
    pub fn prepare(&mut self, list: usize) {
        self.salt += 1 << 32;
        if self.how.writes {
            let salt = self.salt;
            self.each_piece(list, |piece, near_at, far_at| {
                fill(piece, far_at, salt);
                self.near.write_at(near_at, piece).unwrap();
            });
            return;
        }
        let poison = vec![0xEE; 1 << 20];
        for at in (0..self.bytes).step_by(poison.len()) {
            let len = (self.bytes - at).min(poison.len() as u64);
            self.near.write_at(at, &poison[..len as usize]).unwrap();
        }
    }

    /// Panics if a byte is not where it belongs.
    pub fn check(&self, place: &mut Place, list: usize) {
        let salt = if self.how.writes { self.salt } else { 0 };
        let mut right = Vec::new();
        self.each_piece(list, |piece, near_at, far_at| {
            match self.how.writes {
                true => place.sink().owned.read_at(far_at, piece).unwrap(),
                false => self.near.read_at(near_at, piece).unwrap(),
            }
            right.resize(piece.len(), 0);
            fill(&mut right, far_at, salt);
            assert!(piece == right, "wrong bytes: those at {far_at} of the table");
        });
    }

    fn each_piece(&self, list: usize, mut then: impl FnMut(&mut [u8], u64, u64)) {
        let mut piece = Vec::new();
        for part in &self.lists[list] {
            piece.resize(part.len as usize, 0);
            let len = u64::from(part.len);
            (0..).zip(&part.rows).for_each(|(i, row)| then(&mut piece, part.near_at + i * len, u64::from(*row) * len));
        }
    }

    /// Carries one list out; says how long it took, in us, and how it travelled.
    pub fn run(&self, client: &mut Client, list: usize) -> (f64, Route) {
        let start = Instant::now();
        let mut batch = client.batch();
        for part in &self.lists[list] {
            self.describe(&mut batch, part);
        }
        let ticket = batch.submit().unwrap();
        let outcome = client.wait(&ticket).unwrap();
        let time = start.elapsed();
        assert_eq!(outcome.bytes, self.bytes);
        (time.as_secs_f64() * 1e6, outcome.route)
    }

    fn describe(&self, batch: &mut Batch<'_>, part: &Part) {
        let len = part.len;
        if self.how.are_single {
            let single = Descriptor { len, count: 1, ..Descriptor::ZERO };
            for (i, row) in (0..).zip(&part.rows) {
                let (near_at, far_at) = (part.near_at + i * u64::from(len), u64::from(*row) * u64::from(len));
                batch.push(&self.directed(single, near_at, far_at), &[&self.near, &self.far]).unwrap();
            }
            return;
        }
        let (near, far) = (IndexKind::None, IndexKind::U32);
        let all = Descriptor {
            index_kind: if self.how.writes { IndexKind::pack(near, far) } else { IndexKind::pack(far, near) },
            len,
            count: part.rows.len() as u32,
            index_region: self.index.handle().0,
            index_offset: part.index_at,
            src_stride: len,
            dst_stride: len,
            ..Descriptor::ZERO
        };
        batch.push(&self.directed(all, part.near_at, 0), &[&self.near, &self.far, &self.index]).unwrap();
    }

    fn directed(&self, descriptor: Descriptor, near_at: u64, far_at: u64) -> Descriptor {
        let (near, far) = ((self.near.handle().0, near_at), (self.far.handle().0, far_at));
        let (opcode, src, dst) = if self.how.writes { (Opcode::WRITE, near, far) } else { (Opcode::READ, far, near) };
        Descriptor {
            opcode: opcode.0,
            flags: self.how.route,
            src_region: src.0,
            src_offset: src.1,
            dst_region: dst.0,
            dst_offset: dst.1,
            ..descriptor
        }
    }

    /// So many timed runs, which are a round.
    pub fn round(&mut self, client: &mut Client, runs: usize) {
        let mut times = Vec::with_capacity(runs);
        for _ in 0..runs {
            let (time_us, route) = self.run(client, self.turn % self.lists.len());
            self.turn += 1;
            self.routes[usize::from(route.0)] += 1;
            times.push(time_us);
        }
        self.rounds.push(times);
    }

    /// Of all timed runs, in us.
    pub fn times(&self) -> Vec<f64> {
        self.rounds.concat()
    }

    pub fn p50_us(&self) -> f64 {
        median(&self.times())
    }

    pub fn ns_per_fragment(&self) -> f64 {
        self.p50_us() * 1e3 / self.fragments as f64
    }

    pub fn gbit_per_s(&self) -> f64 {
        self.bytes as f64 * 8.0 / (self.p50_us() * 1e3)
    }

    /// How long this takes for each us of the other: the median of the ratios of rounds, which were run in turn.
    pub fn ratio_to(&self, other: &Work) -> f64 {
        let ratios: Vec<f64> = self.rounds.iter().zip(&other.rounds).map(|(a, b)| median(a) / median(b)).collect();
        median(&ratios)
    }

    /// A line about the runs, with something behind it.
    pub fn print(&self, name: &str, remark: &str) {
        let (times, way) = (self.times(), if self.how.writes { "WRITE" } else { "READ" });
        println!(
            "  {name:<34} {way:<5} {:>9.1} us p50 {:>9.1} us p95 {:>10.1} ns/fragment {:>5.1} Gbit/s  {:>3} runs: {:<20} {remark}",
            median(&times),
            quantile(&times, 0.95),
            self.ns_per_fragment(),
            self.gbit_per_s(),
            times.len(),
            self.ways(),
        );
    }

    /// How many travelled how, if not all alike.
    fn ways(&self) -> String {
        let runs: usize = self.routes.iter().sum();
        let met = ROUTES.iter().zip(self.routes).filter(|(_, count)| *count > 0);
        let each = met.map(|(route, count)| {
            let name = route.name().unwrap_or("?");
            if count == runs { name.to_owned() } else { format!("{count} {name}") }
        });
        each.collect::<Vec<_>>().join(", ")
    }
}

/// Random rows for each group. The numbers go behind those that there are.
fn list(groups: &[Group], random: &mut Random, numbers: &mut Vec<u8>) -> Vec<Part> {
    let mut near_at = 0;
    let part = |(count, len): &Group| {
        let in_table = TABLE_BYTES / u64::from(*len);
        let rows: Vec<u32> = (0..*count).map(|_| (random.word() % in_table) as u32).collect();
        let part = Part { len: *len, near_at, index_at: numbers.len() as u64, rows };
        near_at += u64::from(*count) * u64::from(*len);
        numbers.extend(part.rows.iter().flat_map(|row| row.to_le_bytes()));
        part
    };
    groups.iter().map(part).collect()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }
}

impl How {
    pub fn read() -> How {
        How::default()
    }

    pub fn forced_direct() -> How {
        How { route: Flags::DIRECT, ..How::default() }
    }

    pub fn forced_gather() -> How {
        How { route: Flags::GATHER, ..How::default() }
    }
}
