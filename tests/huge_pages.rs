//! Regions of huge pages, where the machine has any to give. The test reserves some for itself if it may.

mod support;

use scatter_ring::client::{Client, Setup};
use scatter_ring::engine::{Config, Engine};
use support::not_run;

const POOL: &str = "/proc/sys/vm/nr_hugepages";
const PAGES: u64 = 16;

/// Pages reserved for as long as this lives.
struct Reserved {
    before: String,
}

impl Reserved {
    fn new() -> Option<Reserved> {
        let before = std::fs::read_to_string(POOL).ok()?;
        let count: u64 = before.trim().parse().ok()?;
        std::fs::write(POOL, (count + PAGES).to_string()).ok()?;
        let reserved = Reserved { before };
        let now: u64 = std::fs::read_to_string(POOL).ok()?.trim().parse().ok()?;
        (now >= count + PAGES).then_some(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // The pool stays larger if this is not allowed any more.
        let _ = std::fs::write(POOL, &self.before);
    }
}

/// Kilobytes of this process in mappings of huge pages that are memory files.
fn huge_kilobytes() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let field = |line: &str, name| -> Option<u64> { line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok() };
    let (mut size, mut total) = (0, 0);
    for line in maps.lines() {
        size = field(line, "Size:").unwrap_or(size);
        if field(line, "KernelPageSize:").is_some_and(|page| page >= 2048) {
            total += size;
        }
    }
    total
}

#[test]
fn allocated_memory_has_huge_pages_where_there_are_some() {
    let Some(_reserved) = Reserved::new() else {
        not_run("no huge pages can be reserved here");
        return;
    };
    let engine = Engine::new(&Config::default()).unwrap().start().unwrap();
    let mut client = Client::over(engine.connect().unwrap(), &Setup::default()).unwrap();
    // Not a multiple of 2 MiB: the file is rounded up, the region is not.
    let bytes = (6 << 20) + 264;
    let (from, to) = (client.allocate(bytes).unwrap(), client.allocate(bytes).unwrap());
    assert_eq!(from.bytes(), bytes);
    // Two regions, each mapped by the client and by the engine, of four pages.
    assert_eq!(huge_kilobytes(), 4 * 4 * 2048);
    from.write_at(bytes - 264, &[7; 264]).unwrap();
    let last = (bytes / 264 - 1) as u32;
    let skew = bytes % 264;
    let mut batch = client.batch();
    batch.read(&from, skew + u64::from(last) * 264, &to, 0, 264).unwrap();
    let ticket = batch.submit().unwrap();
    assert_eq!(client.wait(&ticket).unwrap().bytes, 264);
    let mut row = [0; 264];
    to.read_at(0, &mut row).unwrap();
    assert_eq!(row, [7; 264]);
    let beyond = client.read(&from, bytes - 263, &to, 0, 264).unwrap_err();
    assert_eq!(beyond.status, ring_abi::Status::OUT_OF_RANGE, "the rounding is not part of the region");
    client.close(&from).unwrap();
    drop((from, to, client, engine));
    assert_eq!(huge_kilobytes(), 0, "a region stays mapped");
}
