//! `include/scatter_ring.h` is made from this crate.

#[path = "support/generate.rs"]
mod generate;

use std::path::PathBuf;

#[test]
fn the_header_is_the_one_that_this_crate_makes() {
    let made = generate::header();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("include/scatter_ring.h");
    if std::env::var_os("SCATTER_RING_WRITE").is_some_and(|value| value == "1") {
        std::fs::write(&path, &made).unwrap();
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let how = "SCATTER_RING_WRITE=1 cargo test -p scatter-ring-c --test header";
    let lines = made.lines().chain(std::iter::repeat("")).zip(kept.lines().chain(std::iter::repeat("")));
    let differs = lines.take(made.lines().count().max(kept.lines().count())).enumerate().find(|(_, (a, b))| a != b);
    if let Some((line, (made, kept))) = differs {
        panic!("{}:{}: {kept:?} should be {made:?}. To write it anew: {how}", path.display(), line + 1);
    }
}
