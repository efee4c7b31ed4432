//! Claim: the table of the module `ring`, the labels in the sources and the mutants killed here are the same.

#![cfg(scatter_ring_loom)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

#[test]
fn the_table_the_sources_and_the_mutants_agree() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = table(&here.join("../src/ring/mod.rs"));
    assert!(!table.is_empty());
    for (label, partner) in &table {
        assert_eq!(table.get(partner), Some(label), "{label} names {partner} as its other end, but not the reverse");
    }
    let listed: BTreeSet<String> = table.into_keys().collect();
    let used = labels(&here.join("../src"), &["at", "fence_at"]);
    assert_eq!(listed, used, "left: the table, right: the sources");
    assert_eq!(listed, labels(&here.join("tests"), &["killed_by"]), "left: the table, right: the mutants");
}

/// Label and partner of every row.
fn table(path: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! |"));
    let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    rows.filter(|cells| !cells[0].starts_with('-') && cells[0] != "label")
        .map(|cells| (cells[0].to_owned(), cells[2].to_owned()))
        .collect()
}

/// The string that is the first argument of every call of `functions`, in all code (not comments) below `folder`.
fn labels(folder: &Path, functions: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            found.append(&mut labels(&path, functions));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
                let mut parts = line.split("(\"");
                let mut before = parts.next().unwrap();
                for part in parts {
                    let name = before.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap();
                    if functions.contains(&name) {
                        found.insert(part.split('"').next().unwrap().to_owned());
                    }
                    before = part;
                }
            }
        }
    }
    found
}
