//! The descriptors of `docs/lowering.md`, run through the model and compared with nested loops over the layouts.

mod model;

use model::{Model, Region};
use ring_abi::{Descriptor, Extension, Flags, FragmentRecord, IndexKind, MISSING_U32, Opcode, Status};

/// A descriptor and the slot behind it, if it has one.
type Lowered = (Descriptor, Option<Extension>);

fn region(handle: u32, bytes: Vec<u8>) -> Region {
    Region { handle, bytes, read: true, write: true, gone: false, engines_own: false }
}

/// Bytes without a pattern that a wrong stride could hide in.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// Runs one batch and gives the memory after it; the batch must succeed and have written so many bytes.
fn run(regions: Vec<Region>, batch: &[Lowered], bytes: u64) -> Model {
    let mut model = Model::new(regions, 64, 0);
    let mut slots = 0;
    for (i, (descriptor, extension)) in batch.iter().enumerate() {
        let last = if i + 1 == batch.len() { Flags::LAST } else { 0 };
        model.push(Descriptor { flags: descriptor.flags | last, ..*descriptor }.to_entry());
        extension.iter().for_each(|e| model.push(e.to_entry()));
        slots += if extension.is_some() { 2 } else { 1 };
    }
    model.run(0);
    model.assert_invariants();
    let spans = model.reap();
    assert_eq!(spans.len(), 1, "{spans:#?}");
    assert_eq!((spans[0].status(), spans[0].count, spans[0].bytes), (Status::OK, slots, bytes));
    model
}

// A layer of embedding rows.

const ROWS: u32 = 98_304;
const ROW_BYTES: u32 = 264;
const TABLE_ROWS: u32 = 20_000;
const OUT: u32 = 0x1001;
const IDS: u32 = 0x1002;
const TABLE: u32 = 0x1003;

/// Row numbers in no order; every hundredth is missing.
fn row_ids() -> Vec<u32> {
    (0..ROWS).map(|i| if i % 100 == 7 { MISSING_U32 } else { i.wrapping_mul(2_654_435_761) % TABLE_ROWS }).collect()
}

fn expected_rows(ids: &[u32], table: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for &id in ids {
        match id {
            MISSING_U32 => out.extend([0; ROW_BYTES as usize]),
            _ => out.extend(&table[(id * ROW_BYTES) as usize..][..ROW_BYTES as usize]),
        }
    }
    out
}

fn rows_of_one_owner() -> Descriptor {
    Descriptor {
        opcode: Opcode::READ.0,
        index_kind: IndexKind::pack(IndexKind::U32, IndexKind::None),
        flags: Flags::MISSING_ZERO,
        len: ROW_BYTES,
        src_region: TABLE,
        dst_region: OUT,
        count: ROWS,
        index_region: IDS,
        src_stride: ROW_BYTES,
        dst_stride: ROW_BYTES,
        ..Descriptor::ZERO
    }
}

#[test]
fn a_layer_of_rows_of_one_owner_is_one_descriptor() {
    let ids = row_ids();
    let table = noise((TABLE_ROWS * ROW_BYTES) as usize, 1);
    let expected = expected_rows(&ids, &table);
    let d = rows_of_one_owner();
    assert_eq!((d.index_kind, words(&ids).len()), (0x01, 393_216));
    let out = vec![0xee; (ROWS * ROW_BYTES) as usize];
    let m = run(vec![region(OUT, out), region(IDS, words(&ids)), region(TABLE, table)], &[(d, None)], 25_952_256);
    assert!(m.memory.region(OUT).bytes == expected);
}

#[test]
fn missing_rows_can_be_left_as_they_are() {
    let ids = row_ids();
    let table = noise((TABLE_ROWS * ROW_BYTES) as usize, 2);
    let mut expected = expected_rows(&ids, &table);
    for i in (7..ROWS as usize).step_by(100) {
        expected[i * ROW_BYTES as usize..][..ROW_BYTES as usize].fill(0xee);
    }
    let d = Descriptor { flags: Flags::MISSING_SKIP, ..rows_of_one_owner() };
    let out = vec![0xee; (ROWS * ROW_BYTES) as usize];
    let found = ids.iter().filter(|&&id| id != MISSING_U32).count() as u64;
    let regions = vec![region(OUT, out), region(IDS, words(&ids)), region(TABLE, table)];
    let m = run(regions, &[(d, None)], found * u64::from(ROW_BYTES));
    assert!(m.memory.region(OUT).bytes == expected);
}

#[test]
fn rows_of_three_owners_are_three_descriptors_with_a_destination_index() {
    let table = noise((TABLE_ROWS * ROW_BYTES) as usize, 3);
    // Row `id` lives with owner `id % 3` as row `id / 3`. Each owner has a third of the rows asked for.
    let of_owner = |id: u32, owner: u32| if id == MISSING_U32 { id } else { id % (TABLE_ROWS / 3) * 3 + owner };
    let ids: Vec<u32> = row_ids().into_iter().zip(0..).map(|(id, i)| of_owner(id, i % 3)).collect();
    let expected = expected_rows(&ids, &table);

    let mut shards = [vec![], vec![], vec![]];
    for (id, row) in table.chunks(ROW_BYTES as usize).enumerate() {
        shards[id % 3].extend_from_slice(row);
    }
    let (mut index, mut batch) = (Vec::new(), Vec::new());
    for owner in 0..3 {
        // A missing row may be asked of any owner; it is not looked for.
        let rows: Vec<u32> = (0..ROWS).filter(|i| i % 3 == owner).collect();
        let local = |id: u32| if id == MISSING_U32 { id } else { id / 3 };
        let numbers: Vec<u32> = rows.iter().map(|&i| local(ids[i as usize])).collect();
        let d = Descriptor {
            index_kind: IndexKind::pack(IndexKind::U32, IndexKind::U32),
            src_region: TABLE + owner,
            count: rows.len() as u32,
            index_offset: index.len() as u64,
            ..rows_of_one_owner()
        };
        index.extend(words(&numbers));
        index.extend(words(&rows));
        batch.push((d, None));
    }
    assert_eq!(batch.iter().map(|(d, _)| (d.index_kind, d.count)).collect::<Vec<_>>(), [(0x11, 32_768); 3]);
    assert_eq!(batch.iter().map(|(d, _)| d.index_offset).collect::<Vec<_>>(), [0, 262_144, 524_288]);
    assert_eq!(index.len(), 786_432);

    let mut regions = vec![region(OUT, vec![0xee; (ROWS * ROW_BYTES) as usize]), region(IDS, index)];
    regions.extend(shards.into_iter().zip(TABLE..).map(|(bytes, handle)| region(handle, bytes)));
    let m = run(regions, &batch, 25_952_256);
    assert!(m.memory.region(OUT).bytes == expected);
}

// Paged KV blocks: 4 ranks with pages of 16 tokens to 2 ranks with pages of 64.

const SRC_RANKS: u32 = 4;
const DST_RANKS: u32 = 2;
const SRC_PAGE: u32 = 16;
const DST_PAGE: u32 = 64;
/// Source pages that one destination page holds.
const PAGES_PER_PAGE: u32 = DST_PAGE / SRC_PAGE;
/// First handles: the caches of the source's ranks, of the destination's, and the index.
const SRC_CACHE: u32 = 0x1010;
const DST_CACHE: u32 = 0x1020;
const BLOCKS: u32 = 0x1030;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    /// A page is `[token][head][element]`.
    TokenMajor,
    /// A page is `[head][token][element]`.
    HeadMajor,
}

/// A rank's cache is `[layer][K or V][page][what the layout says]`.
#[derive(Clone, Copy)]
struct Kv {
    layout: Layout,
    heads: u32,
    /// Bytes of one token of one head.
    head_bytes: u32,
    src_pages: u32,
    dst_pages: u32,
}

impl Kv {
    fn src_heads(&self) -> u32 {
        self.heads / SRC_RANKS
    }

    fn dst_heads(&self) -> u32 {
        self.heads / DST_RANKS
    }

    fn src_page_bytes(&self) -> u32 {
        self.src_heads() * SRC_PAGE * self.head_bytes
    }

    fn dst_page_bytes(&self) -> u32 {
        self.dst_heads() * DST_PAGE * self.head_bytes
    }

    fn src_base(&self, layer: u32, kv: u32) -> u64 {
        u64::from(layer * 2 + kv) * u64::from(self.src_pages) * u64::from(self.src_page_bytes())
    }

    fn dst_base(&self, layer: u32, kv: u32) -> u64 {
        u64::from(layer * 2 + kv) * u64::from(self.dst_pages) * u64::from(self.dst_page_bytes())
    }

    /// Bytes from one quarter of a destination page to the next: the unit of the destination's index.
    fn dst_unit(&self) -> u32 {
        match self.layout {
            Layout::TokenMajor => SRC_PAGE * self.dst_heads() * self.head_bytes,
            Layout::HeadMajor => SRC_PAGE * self.head_bytes,
        }
    }

    /// Which source page goes to which unit of which destination page: two arrays, one behind the other.
    fn index(&self, src_table: &[u32], dst_table: &[u32], full_pages: u32) -> Vec<u32> {
        let units_per_page = self.dst_page_bytes() / self.dst_unit();
        let unit = |page: u32| dst_table[(page / PAGES_PER_PAGE) as usize] * units_per_page + page % PAGES_PER_PAGE;
        let src = src_table[..full_pages as usize].iter().copied();
        src.chain((0..full_pages).map(unit)).collect()
    }

    /// All full pages of one (layer, K or V, source rank).
    fn pages(&self, opcode: Opcode, layer: u32, kv: u32, rank: u32, full_pages: u32) -> Lowered {
        let quarter_of_heads = rank % (SRC_RANKS / DST_RANKS);
        let d = Descriptor {
            opcode: opcode.0,
            index_kind: IndexKind::pack(IndexKind::U32, IndexKind::U32),
            flags: Flags::EXTENDED,
            src_region: SRC_CACHE + rank,
            dst_region: DST_CACHE + rank / (SRC_RANKS / DST_RANKS),
            src_offset: self.src_base(layer, kv),
            count: full_pages,
            index_region: BLOCKS,
            src_stride: self.src_page_bytes(),
            dst_stride: self.dst_unit(),
            ..Descriptor::ZERO
        };
        match self.layout {
            Layout::TokenMajor => {
                let len = self.src_heads() * self.head_bytes;
                let dst_offset = self.dst_base(layer, kv) + u64::from(quarter_of_heads * len);
                let extension = Extension::new(SRC_PAGE, len, self.dst_heads() * self.head_bytes);
                (Descriptor { len, dst_offset, ..d }, Some(extension))
            }
            Layout::HeadMajor => {
                let len = SRC_PAGE * self.head_bytes;
                let dst_head_bytes = DST_PAGE * self.head_bytes;
                let dst_offset =
                    self.dst_base(layer, kv) + u64::from(quarter_of_heads * self.src_heads() * dst_head_bytes);
                let extension = Extension::new(self.src_heads(), len, dst_head_bytes);
                (Descriptor { len, dst_offset, ..d }, Some(extension))
            }
        }
    }

    /// The last page, if only `tokens` of it are in use: the same tile, smaller and without an index.
    fn partial_page(&self, full: Lowered, src_page: u32, dst_unit: u32, tokens: u32) -> Lowered {
        let (d, e) = (full.0, full.1.expect("extended"));
        let d = Descriptor {
            index_kind: 0,
            index_region: 0,
            count: 1,
            src_offset: d.src_offset + u64::from(src_page) * u64::from(d.src_stride),
            dst_offset: d.dst_offset + u64::from(dst_unit) * u64::from(d.dst_stride),
            ..d
        };
        match self.layout {
            Layout::TokenMajor => (d, Some(Extension { inner_count: tokens, ..e })),
            Layout::HeadMajor => (Descriptor { len: tokens * self.head_bytes, ..d }, Some(e)),
        }
    }

    /// Where one token of one head of a rank lies.
    fn place(&self, base: u64, page: u32, page_tokens: u32, heads: u32, token: u32, head: u32) -> usize {
        let number = match self.layout {
            Layout::TokenMajor => token * heads + head,
            Layout::HeadMajor => head * page_tokens + token,
        };
        base as usize + ((page * page_tokens * heads + number) * self.head_bytes) as usize
    }
}

fn kv_blocks_move(layout: Layout, opcode: Opcode) {
    let kv = Kv { layout, heads: 8, head_bytes: 8, src_pages: 23, dst_pages: 7 };
    let layers = 2;
    let (full_pages, partial_tokens) = (10, 7);
    let src_table = [19, 3, 4, 22, 0, 11, 7, 8, 21, 2, 16];
    let dst_table = [5, 0, 3];
    let tokens = full_pages * SRC_PAGE + partial_tokens;

    let src_bytes = (layers * 2 * kv.src_pages * kv.src_page_bytes()) as usize;
    let dst_bytes = (layers * 2 * kv.dst_pages * kv.dst_page_bytes()) as usize;
    let caches: Vec<Vec<u8>> = (0..SRC_RANKS).map(|rank| noise(src_bytes, rank.into())).collect();
    let mut expected = vec![vec![0xee; dst_bytes]; DST_RANKS as usize];
    for layer in 0..layers {
        for k_or_v in 0..2 {
            for token in 0..tokens {
                for head in 0..kv.heads {
                    let (src_rank, src_head) = (head / kv.src_heads(), head % kv.src_heads());
                    let (dst_rank, dst_head) = (head / kv.dst_heads(), head % kv.dst_heads());
                    let src_page = src_table[(token / SRC_PAGE) as usize];
                    let dst_page = dst_table[(token / DST_PAGE) as usize];
                    let (src_base, dst_base) = (kv.src_base(layer, k_or_v), kv.dst_base(layer, k_or_v));
                    let from = kv.place(src_base, src_page, SRC_PAGE, kv.src_heads(), token % SRC_PAGE, src_head);
                    let to = kv.place(dst_base, dst_page, DST_PAGE, kv.dst_heads(), token % DST_PAGE, dst_head);
                    for byte in 0..kv.head_bytes as usize {
                        expected[dst_rank as usize][to + byte] = caches[src_rank as usize][from + byte];
                    }
                }
            }
        }
    }

    let index = kv.index(&src_table, &dst_table, full_pages);
    let units_per_page = kv.dst_page_bytes() / kv.dst_unit();
    let partial_unit = dst_table[2] * units_per_page + full_pages % PAGES_PER_PAGE;
    let mut batch = Vec::new();
    for layer in 0..layers {
        for k_or_v in 0..2 {
            for rank in 0..SRC_RANKS {
                let full = kv.pages(opcode, layer, k_or_v, rank, full_pages);
                batch.push(full);
                batch.push(kv.partial_page(full, src_table[10], partial_unit, partial_tokens));
            }
        }
    }
    let mut regions = vec![region(BLOCKS, words(&index))];
    regions.extend(caches.into_iter().zip(SRC_CACHE..).map(|(bytes, handle)| region(handle, bytes)));
    regions.extend((0..DST_RANKS).map(|rank| region(DST_CACHE + rank, vec![0xee; dst_bytes])));
    let m = run(regions, &batch, u64::from(layers * 2 * tokens * kv.heads * kv.head_bytes));
    for (rank, expected) in expected.iter().enumerate() {
        assert!(m.memory.region(DST_CACHE + rank as u32).bytes == *expected, "rank {rank}");
    }
}

#[test]
fn kv_blocks_change_their_layout_by_read() {
    kv_blocks_move(Layout::TokenMajor, Opcode::READ);
    kv_blocks_move(Layout::HeadMajor, Opcode::READ);
}

#[test]
fn kv_blocks_change_their_layout_by_write() {
    kv_blocks_move(Layout::TokenMajor, Opcode::WRITE);
    kv_blocks_move(Layout::HeadMajor, Opcode::WRITE);
}

/// The same tile with its sides exchanged.
fn reversed((d, e): Lowered) -> Lowered {
    let e = e.expect("extended");
    let back = Descriptor {
        src_region: d.dst_region,
        dst_region: d.src_region,
        src_offset: d.dst_offset,
        dst_offset: d.src_offset,
        src_stride: d.dst_stride,
        dst_stride: d.src_stride,
        ..d
    };
    (back, Some(Extension::new(e.inner_count, e.inner_dst_stride, e.inner_src_stride)))
}

#[test]
fn kv_blocks_come_back_by_exchanging_the_sides() {
    for layout in [Layout::TokenMajor, Layout::HeadMajor] {
        let kv = Kv { layout, heads: 8, head_bytes: 8, src_pages: 9, dst_pages: 3 };
        let (src_table, dst_table, rank) = ([7, 3, 4, 0, 8], [2, 0], 1);
        let cache = noise((2 * kv.src_pages * kv.src_page_bytes()) as usize, 6);
        let there = kv.pages(Opcode::READ, 0, 1, rank, 5);
        let index = kv.index(&src_table, &dst_table, 5);
        let elsewhere = vec![0; (2 * kv.dst_pages * kv.dst_page_bytes()) as usize];
        let regions =
            vec![region(BLOCKS, words(&index)), region(SRC_CACHE + rank, cache.clone()), region(DST_CACHE, elsewhere)];
        let mut m = run(regions, &[there], 5 * u64::from(kv.src_page_bytes()));

        m.memory.region_mut(BLOCKS).bytes.rotate_left(5 * 4); // the destination's numbers are now the source's
        m.memory.region_mut(SRC_CACHE + rank).bytes.fill(0);
        let m = run(m.memory.regions, &[reversed(there)], 5 * u64::from(kv.src_page_bytes()));
        for page in src_table {
            let start = kv.src_base(0, 1) as usize + (page * kv.src_page_bytes()) as usize;
            let found = &m.memory.region(SRC_CACHE + rank).bytes[start..][..kv.src_page_bytes() as usize];
            assert_eq!(*found, cache[start..][..found.len()]);
        }
    }
}

#[test]
fn kv_pages_that_also_change_their_order_take_a_descriptor_per_head() {
    let src = Kv { layout: Layout::TokenMajor, heads: 8, head_bytes: 8, src_pages: 9, dst_pages: 3 };
    let dst = Kv { layout: Layout::HeadMajor, ..src };
    let (src_table, dst_table, rank, pages) = ([7, 3, 4, 0, 8], [2, 0], 1, 5);
    let cache = noise((2 * src.src_pages * src.src_page_bytes()) as usize, 5);
    let mut expected = vec![0xee; (2 * dst.dst_pages * dst.dst_page_bytes()) as usize];
    let mut batch = Vec::new();
    for head in 0..src.src_heads() {
        for token in 0..pages * SRC_PAGE {
            let (src_page, dst_page) = (src_table[(token / SRC_PAGE) as usize], dst_table[(token / DST_PAGE) as usize]);
            let from = src.place(0, src_page, SRC_PAGE, src.src_heads(), token % SRC_PAGE, head);
            let to = dst.place(0, dst_page, DST_PAGE, dst.dst_heads(), token % DST_PAGE, src.src_heads() + head);
            expected[to..to + 8].copy_from_slice(&cache[from..from + 8]);
        }
        let (d, _) = dst.pages(Opcode::READ, 0, 0, rank, pages);
        let d = Descriptor {
            len: src.head_bytes,
            src_offset: u64::from(head * src.head_bytes),
            dst_offset: d.dst_offset + u64::from(head * DST_PAGE * dst.head_bytes),
            ..d
        };
        batch.push((d, Some(Extension::new(SRC_PAGE, src.src_heads() * src.head_bytes, dst.head_bytes))));
    }
    let blocks = region(BLOCKS, words(&dst.index(&src_table, &dst_table, pages)));
    let out = region(DST_CACHE, vec![0xee; expected.len()]);
    let m = run(vec![blocks, region(SRC_CACHE + rank, cache), out], &batch, 5 * 16 * 2 * 8);
    assert!(m.memory.region(DST_CACHE).bytes == expected);
}

/// The tables of the page, which are of a size that the test above does not run.
#[test]
fn the_pages_kv_numbers_are_those_of_its_descriptors() {
    let (layers, full_pages) = (80, 512);
    let kv = |layout| Kv { layout, heads: 8, head_bytes: 256, src_pages: 8_192, dst_pages: 2_048 };
    let token_major = kv(Layout::TokenMajor).pages(Opcode::READ, 1, 1, 3, full_pages);
    let expected = Descriptor {
        opcode: 3,
        index_kind: 0x11,
        flags: 4,
        len: 512,
        src_region: SRC_CACHE + 3,
        dst_region: DST_CACHE + 1,
        src_offset: 201_326_592,
        dst_offset: 402_653_696,
        count: 512,
        index_region: BLOCKS,
        index_offset: 0,
        src_stride: 8_192,
        dst_stride: 16_384,
        user_data: 0,
    };
    assert_eq!(token_major, (expected, Some(Extension::new(16, 512, 1_024))));
    let head_major = kv(Layout::HeadMajor).pages(Opcode::READ, 1, 1, 3, full_pages);
    let expected = Descriptor { len: 4_096, dst_offset: 402_685_952, dst_stride: 4_096, ..expected };
    assert_eq!(head_major, (expected, Some(Extension::new(2, 4_096, 16_384))));
    for ((d, e), pieces) in [(token_major, 8_192), (head_major, 1_024)] {
        assert_eq!(d.count * e.unwrap().inner_count, pieces);
        assert_eq!(pieces * d.len, 4_194_304);
    }
    let per_dst_rank = layers * 2 * (SRC_RANKS / DST_RANKS);
    assert_eq!((per_dst_rank, per_dst_rank * 2 * 64), (320, 40_960));
    assert_eq!(u64::from(per_dst_rank) * 4_194_304, 1_342_177_280);
    assert_eq!(words(&kv(Layout::TokenMajor).index(&[0; 512], &[0; 128], full_pages)).len(), 4_096);
    assert_eq!((per_dst_rank * 4_096, per_dst_rank * 8_192 * 24), (1_310_720, 62_914_560));
}

// Structured objects.

const CHUNK: u64 = 1_048_576;
const STORE: u32 = 0x1040;
const BUFFERS: u32 = 0x1050;
const RECORDS: u32 = 0x1060;
const LENGTHS: [u64; 3] = [1_500_000, 700_000, 2_000_000];
/// Where the store keeps the object's chunks.
const CHUNK_SLOTS: [u64; 5] = [7, 2, 9, 4, 0];

/// The pieces of `len` bytes of the payload from `start` on: (offset in the store, offset in the range, length).
fn pieces(start: u64, len: u64) -> Vec<(u64, u64, u32)> {
    let mut found = Vec::new();
    let mut done = 0;
    while done < len {
        let (chunk, within) = ((start + done) / CHUNK, (start + done) % CHUNK);
        let piece = (len - done).min(CHUNK - within);
        found.push((CHUNK_SLOTS[chunk as usize] * CHUNK + within, done, piece as u32));
        done += piece;
    }
    found
}

fn bytes_of(records: &[FragmentRecord]) -> Vec<u8> {
    records.iter().flat_map(|r| r.to_words()).flat_map(u64::to_le_bytes).collect()
}

/// The payload and the descriptors that put it, with their records.
fn put() -> (Vec<Vec<u8>>, Vec<Lowered>, Vec<FragmentRecord>) {
    let buffers: Vec<Vec<u8>> = LENGTHS.iter().map(|&len| noise(len as usize, len)).collect();
    let (mut start, mut batch, mut records) = (0, Vec::new(), Vec::new());
    for (len, handle) in LENGTHS.into_iter().zip(BUFFERS..) {
        let index_offset = records.len() as u64 * 24;
        let of_buffer = pieces(start, len);
        let d = Descriptor {
            opcode: Opcode::WRITE.0,
            index_kind: IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments),
            src_region: handle,
            dst_region: STORE,
            count: of_buffer.len() as u32,
            index_region: RECORDS,
            index_offset,
            ..Descriptor::ZERO
        };
        batch.push((d, None));
        records.extend(of_buffer.iter().map(|&(store, within, len)| FragmentRecord {
            src: within,
            dst: store,
            len,
            reserved: 0,
        }));
        start += len;
    }
    (buffers, batch, records)
}

fn store_after_put() -> (Vec<u8>, Vec<u8>) {
    let (buffers, batch, records) = put();
    let payload = buffers.concat();
    let mut regions = vec![region(STORE, vec![0xee; 10 * CHUNK as usize]), region(RECORDS, bytes_of(&records))];
    regions.extend(buffers.into_iter().zip(BUFFERS..).map(|(bytes, handle)| region(handle, bytes)));
    let m = run(regions, &batch, 4_200_000);
    (payload, m.memory.region(STORE).bytes.clone())
}

#[test]
fn put_of_three_buffers_is_three_descriptors_with_seven_records() {
    let (_, batch, records) = put();
    let expected = [
        (0, 7_340_032, 1_048_576),
        (1_048_576, 2_097_152, 451_424),
        (0, 2_548_576, 597_152),
        (597_152, 9_437_184, 102_848),
        (0, 9_540_032, 945_728),
        (945_728, 4_194_304, 1_048_576),
        (1_994_304, 0, 5_696),
    ];
    assert_eq!(records, expected.map(|(src, dst, len)| FragmentRecord { src, dst, len, reserved: 0 }));
    let shape: Vec<_> = batch.iter().map(|(d, _)| (d.index_kind, d.count, d.index_offset)).collect();
    assert_eq!(shape, [(0x33, 2, 0), (0x33, 2, 48), (0x33, 3, 96)]);

    let (payload, store) = store_after_put();
    let mut expected = vec![0xee; store.len()];
    for (chunk, slot) in payload.chunks(CHUNK as usize).zip(CHUNK_SLOTS) {
        expected[(slot * CHUNK) as usize..][..chunk.len()].copy_from_slice(chunk);
    }
    assert!(store == expected);
}

#[test]
fn get_of_a_members_range_is_one_descriptor_with_a_record_per_chunk() {
    let (payload, store) = store_after_put();
    // Bytes 200,000 to 650,000 of the second member.
    let (start, len) = (LENGTHS[0] + 200_000, 450_000);
    let records: Vec<FragmentRecord> =
        pieces(start, len).iter().map(|&(src, dst, len)| FragmentRecord { src, dst, len, reserved: 0 }).collect();
    let expected = [(2_748_576, 0, 397_152), (9_437_184, 397_152, 52_848)];
    assert_eq!(records, expected.map(|(src, dst, len)| FragmentRecord { src, dst, len, reserved: 0 }));
    let d = Descriptor {
        opcode: Opcode::READ.0,
        index_kind: IndexKind::pack(IndexKind::Fragments, IndexKind::Fragments),
        src_region: STORE,
        dst_region: OUT,
        count: 2,
        index_region: RECORDS,
        ..Descriptor::ZERO
    };
    let regions = vec![region(STORE, store), region(OUT, vec![0; len as usize]), region(RECORDS, bytes_of(&records))];
    let m = run(regions, &[(d, None)], len);
    assert!(m.memory.region(OUT).bytes == payload[start as usize..][..len as usize]);
}
