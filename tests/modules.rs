//! What the source may contain where: the module table of the design, and R2 (shared pages are never behind a Rust
//! reference; one module reaches them).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What each module may use of this crate. `sync` holds everything else up and uses nothing.
const MAY_USE: &[(&str, &[&str])] = &[
    ("sync", &[]),
    ("ring", &["sync"]),
    // What `region`'s signal handler looks through; a module of its own so that loom can explore it.
    ("mappings", &["sync"]),
    // RDMA: the binding to its libraries.
    ("verbs", &[]),
    // `verbs` for memory that is registered with a device.
    ("region", &["sync", "mappings", "verbs"]),
    // `sync` for the orderings of the words that it hands to the ring.
    ("attach", &["ring", "region", "sync"]),
    ("plan", &[]),
    // The counts of work that planning makes.
    ("cost", &["plan"]),
    ("pipeline", &["plan"]),
    // `ring` and `sync` because tasks go to the copy workers through the same ring that clients use, on the heap.
    // `cost` for the profile that its calibration fills.
    ("pack", &["plan", "region", "ring", "sync", "cost"]),
    // `ring` and `sync` because lanes with a thread are fed as workers are.
    // `pack` because they pack what they send and unpack what came.
    // `verbs` for queue pairs.
    ("link", &["region", "ring", "sync", "pack", "verbs"]),
    // `sync` for the client's sleep word.
    ("completion", &["ring", "sync", "pipeline"]),
    (
        "engine",
        &[
            "sync",
            "ring",
            "region",
            "attach",
            "plan",
            "cost",
            "pipeline",
            "pack",
            "completion",
            "stats",
            "pace",
            "link",
            "peer",
            "verbs",
        ],
    ),
    // `sync` for the pause of a waiting thread. Never plan, pipeline, completion or engine.
    ("client", &["ring", "region", "attach", "sync"]),
    ("stats", &["sync"]),
    ("pace", &[]),
    // The same, and `pack` for the copies. What an owner's process does is no part of an engine.
    ("owner", &["ring", "region", "attach", "pack", "sync"]),
    // Drives the machines of a link in virtual time.
    ("sim", &["plan", "cost", "pipeline"]),
    // Authenticated connections to other engines, and the words that are spoken on them: those of a link's pipeline.
    ("peer", &["pace", "plan", "pipeline"]),
    // The binary: it uses the library from outside.
    ("command", &[]),
];

/// Blocks, functions and impls that are unsafe, by file. A number that grows wants a reason in the review that grows it.
const UNSAFE: &[(&str, usize)] = &[
    ("client/memory.rs", 2),
    ("client/produce.rs", 2),
    ("command/owner.rs", 1),
    // Asks the C library for the core.
    ("engine/crowd.rs", 1),
    ("engine/mod.rs", 2),
    // Index words of a transfer that was checked against the region that is kept with it.
    ("engine/part/desk.rs", 1),
    ("engine/rows.rs", 2),
    ("engine/session.rs", 5),
    ("engine/staged.rs", 2),
    // Addresses that any thread may pass to the kernel; a slot that the caller keeps.
    ("link/mod.rs", 2),
    // sendmsg and recvmsg by address, because shared pages are never a slice.
    ("link/tcp/socket.rs", 4),
    // Receives into buffers, requests of pieces and dropping what a device has given back: all three outlast what they name.
    ("link/verbs/buffers.rs", 1),
    ("link/verbs/lane.rs", 1),
    ("link/verbs/mod.rs", 1),
    ("owner/mod.rs", 2),
    ("owner/serve.rs", 1),
    // The copies that it times, and taking their sources out of the caches.
    ("pack/calibrate.rs", 3),
    ("pack/expansion.rs", 2),
    ("pack/list_task.rs", 1),
    ("pack/lists.rs", 11),
    ("pack/lookup.rs", 5),
    ("pack/numbers.rs", 3),
    ("pack/pieces.rs", 16),
    ("pack/run.rs", 4),
    ("pack/task.rs", 26),
    ("pack/workers.rs", 1),
    ("region/backing.rs", 1),
    ("region/copy.rs", 8),
    ("region/copy/blocks.rs", 24),
    ("region/copy/load.rs", 8),
    ("region/copy/prefetch.rs", 2),
    ("region/copy/queue.rs", 9),
    ("region/copy/x86.rs", 18),
    ("region/fork.rs", 6),
    ("region/guard.rs", 7),
    ("region/memory.rs", 6),
    ("region/pages.rs", 11),
    // Registering a mapping, and bringing its pages in before.
    ("region/registered.rs", 3),
    // Foreign functions, and the structures that they fill. Nearly every call is one, with a reason of its own.
    ("verbs/abi.rs", 4),
    ("verbs/cm.rs", 33),
    ("verbs/completion.rs", 14),
    ("verbs/context.rs", 22),
    ("verbs/functions.rs", 5),
    ("verbs/library.rs", 11),
    ("verbs/memory.rs", 10),
    ("verbs/post.rs", 4),
    ("verbs/process.rs", 1),
    ("verbs/queue_pair.rs", 11),
];

/// Files besides `sync.rs` that name atomics. None of them is part of the lock-free protocol that loom explores.
const ATOMICS: &[(&str, &str)] = &[
    ("region/copy/load.rs", "index words, relaxed, in memory that only the kernel shares"),
    ("region/memory.rs", "a flag: withdrawn by its owner"),
    ("engine/remote/region.rs", "a flag: withdrawn by its owner, or its connection is gone"),
    ("client/memory.rs", "counters: how many batches use a region"),
    ("client/produce.rs", "counters: how many batches use a region"),
    ("client/session.rs", "a flag: the session is over"),
    ("verbs/process.rs", "a number: which process this is"),
];

/// Ways to make a Rust reference or slice of memory that others write: any of them inside an unsafe block.
const REFERENCES: &[&str] = &["from_raw_parts", "&*", "&mut *", ".as_ref()", ".as_mut()", "as_uninit"];

/// Where one is right: atomic words, which a reference may name while others write them.
const ATOMIC_REFERENCES: &[&str] = &["region/pages.rs", "region/fork.rs"];

/// Source lines without comments and without the unit tests at the end of a file.
fn code(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap().to_owned();
    text.lines().map(|line| line.split("//").next().unwrap().to_owned()).collect()
}

/// Every source file by its path below `src`.
fn sources() -> BTreeMap<String, Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                files.insert(name, code(&path));
            }
        }
    }
    assert!(files.len() > 30, "the sources were not found");
    files
}

fn module(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap()
}

/// The modules of this crate that a line names: `crate::ring::x`, and `crate::{ring, region::x}`.
fn named(line: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut names = Vec::new();
    for rest in line.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            None => names.extend(rest.split(|c| !is_name(c)).next()),
            Some(list) => {
                // At depth 0 of the list: deeper names belong to the module before them.
                let mut depth = 0;
                let mut item = list;
                while let Some(end) = item.find(['{', '}', ',']) {
                    if depth == 0 {
                        names.extend(item.trim_start().split(|c| !is_name(c)).next().filter(|name| !name.is_empty()));
                    }
                    match &item[end..=end] {
                        "{" => depth += 1,
                        "}" if depth == 0 => break,
                        "}" => depth -= 1,
                        _ => {}
                    }
                    item = &item[end + 1..];
                }
            }
        }
    }
    names
}

#[test]
fn every_module_uses_only_what_the_table_allows() {
    assert_eq!(named("use crate::ring::{self, X};"), ["ring"]);
    assert_eq!(named("use crate::{plan, region::{copy, Y}, ring::Z};"), ["plan", "region", "ring"]);
    let mut met = std::collections::BTreeSet::new();
    for (file, lines) in sources() {
        let own = module(&file);
        if own == "lib" || own == "main" {
            continue;
        }
        let row = MAY_USE.iter().find(|(name, _)| *name == own);
        let (_, allowed) = row.unwrap_or_else(|| panic!("{file}: module {own} is not in the table"));
        let text = lines.join(" ");
        for used in named(&text).into_iter().filter(|used| *used != own) {
            assert!(allowed.contains(&used), "{file}: {own} uses {used}");
            met.insert((own.to_owned(), used.to_owned()));
        }
    }
    for (own, allowed) in MAY_USE {
        for used in allowed.iter().filter(|used| !met.contains(&(own.to_string(), used.to_string()))) {
            println!("{own} may use {used}, and does not");
        }
    }
    assert!(met.len() > 15, "{met:?}");
}

/// What stands inside unsafe blocks.
fn unsafe_blocks(text: &str) -> Vec<&str> {
    let mut blocks = Vec::new();
    for (start, _) in text.match_indices("unsafe {") {
        let mut depth = 0;
        for (i, c) in text[start..].char_indices() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if c == '}' && depth == 0 {
                blocks.push(&text[start..start + i]);
                break;
            }
        }
    }
    blocks
}

#[test]
fn nothing_makes_a_reference_to_shared_pages() {
    assert_eq!(unsafe_blocks("a unsafe { b { c } } d"), ["unsafe { b { c } "]);
    for (file, lines) in sources() {
        let text = lines.join("\n");
        for block in unsafe_blocks(&text) {
            let found = REFERENCES.iter().find(|reference| block.contains(**reference));
            let allowed = ATOMIC_REFERENCES.contains(&&*file) && found == Some(&".as_ref()");
            assert!(found.is_none() || allowed, "src/{file}: {found:?} in {block}");
        }
        let outside = module(&file) != "region";
        assert!(!text.contains("from_raw_parts"), "src/{file}: from_raw_parts");
        let maps = ["mmap", "MmapOptions", "MmapRaw"].iter().find(|word| text.contains(**word));
        assert!(!outside || maps.is_none(), "src/{file}: {maps:?}: only region maps memory");
    }
}

#[test]
fn unsafe_stands_where_it_is_counted() {
    let mut found = BTreeMap::new();
    for (file, lines) in sources() {
        let words =
            |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| *w == "unsafe").count();
        let count: usize = lines.iter().map(|line| words(line)).sum();
        if count > 0 {
            found.insert(file, count);
        }
    }
    let listed: BTreeMap<String, usize> = UNSAFE.iter().map(|(file, count)| (file.to_string(), *count)).collect();
    for (file, count) in &found {
        let allowed = listed.get(file).copied().unwrap_or(0);
        assert!(*count <= allowed, "src/{file}: {count} unsafe, {allowed} listed");
    }
    assert_eq!(found, listed, "the list says more than there is");
}

#[test]
fn atomics_are_named_in_one_place() {
    for (file, lines) in sources() {
        if file == "sync.rs" {
            continue;
        }
        let names = |line: &String| line.contains("sync::atomic") && !line.contains("crate::sync");
        let listed = ATOMICS.iter().any(|(name, _)| *name == file);
        assert_eq!(lines.iter().any(names), listed, "src/{file}: names atomics, or is listed and does not");
        let loom = lines.iter().any(|line| line.contains("loom::"));
        assert!(!loom, "src/{file}: only sync.rs names loom");
        let fences = lines.iter().any(|line| line.contains("atomic::fence") || line.contains("compiler_fence"));
        assert!(!fences, "src/{file}: a fence outside sync.rs");
    }
}
