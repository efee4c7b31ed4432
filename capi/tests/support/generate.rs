//! Makes the header out of the sources.

use cbindgen::{Config, DocumentationStyle, ItemType, Language, Style};
use std::path::Path;

/// Types of `ring-abi`, and their names in the header that is made from there.
const ABI: &[(&str, &str)] = &[
    ("Descriptor", "scatter_ring_descriptor"),
    ("Extension", "scatter_ring_extension"),
    ("Span", "scatter_ring_span"),
];

/// What C holds by a pointer and never looks into.
const HANDLES: &[&str] = &["engine", "adopted", "owner", "lent", "client", "region", "batch", "ticket"];

/// What the header says before everything else.
const HEAD: &str = r#"/**
 * @file
 *
 * @brief The C library of scatter-ring: embeds an engine in this process, or attaches to one. For C11 and C++17. Made
 * from the Rust crate scatter-ring-c by its test `header`, which fails when the two differ. Not to be edited.
 *
 * Link with -lscatter_ring, or by CMake: find_package(scatter_ring), scatter_ring::scatter_ring. A C++ program that
 * only attaches to an engine of another process needs no library: scatter_ring.hpp.
 *
 * @par Outcomes
 *
 * Functions that can fail return an int32_t: 0 or more is success, what is below 0 is a SCATTER_RING_STATUS_... code
 * of scatter_ring_abi.h. They take a pointer to a scatter_ring_error, which may be NULL, and fill it when they fail.
 * Nothing ever throws, unwinds or ends the process; a bug inside becomes SCATTER_RING_STATUS_INTERNAL, and the handles
 * that were used can only be freed then.
 *
 * @par Who owns what
 *
 * A handle is the caller's who got it, and is freed once, by the function that its comment names, in any order with
 * other handles: what others still need of it stays until they are freed too. Using a handle after that is as wrong as
 * using memory after free(). Arguments are only read during the call, except where it is said. NULL in the place of
 * anything that is needed is a status with a message that names the argument.
 *
 * @par Threads
 *
 * "Any": any thread, several at a time. "One at a time": any thread, but only one; a second one that comes meanwhile
 * gets SCATTER_RING_STATUS_NOT_ALLOWED, and nothing else happens. Nothing is bound to the thread that has made it.
 *
 * @par fork()
 *
 * Sessions and engines stay the parent's. In a child every call with them returns SCATTER_RING_STATUS_FORKED, and
 * freeing them frees what the child has of them and leaves the parent's alone.
 *
 * @par Units
 *
 * Bytes and nanoseconds, as the names say. Texts are UTF-8 with a NUL at their end.
 */"#;

pub fn header() -> String {
    let mut config = Config {
        language: Language::C,
        header: Some(HEAD.to_owned()),
        include_guard: Some("SCATTER_RING_H".to_owned()),
        includes: vec!["scatter_ring_abi.h".to_owned()],
        sys_includes: ["stdbool.h", "stddef.h", "stdint.h"].map(str::to_owned).to_vec(),
        no_includes: true,
        cpp_compat: true,
        style: Style::Both,
        documentation_style: DocumentationStyle::Doxy,
        usize_is_size_t: true,
        line_length: WIDTH,
        tab_width: 4,
        ..Config::default()
    };
    config.export.rename = ABI.iter().map(|(rust, c)| ((*rust).to_owned(), (*c).to_owned())).collect();
    config.export.item_types =
        vec![ItemType::Constants, ItemType::Structs, ItemType::OpaqueItems, ItemType::Functions, ItemType::Typedefs];
    config.function.sort_by = None;
    let made = cbindgen::Builder::new()
        .with_crate(Path::new(env!("CARGO_MANIFEST_DIR")))
        .with_config(config)
        .generate()
        .expect("the sources can be read");
    let mut text = Vec::new();
    made.write(&mut text);
    let text = String::from_utf8(text).expect("UTF-8");
    with_short_comments(&with_plain_names(&text))
}

/// A shared reference is a pointer to const, but to C a handle is never const. Every structure has a name without
/// `struct`.
fn with_plain_names(text: &str) -> String {
    let plain = |line: &str| {
        let mut line = match line.starts_with("typedef") {
            true => line.to_owned(),
            false => line.replace("struct scatter_ring_", "scatter_ring_"),
        };
        for name in HANDLES {
            line = line.replace(&format!("const scatter_ring_{name} *"), &format!("scatter_ring_{name} *"));
        }
        line
    };
    text.lines().map(plain).collect::<Vec<_>>().join("\n") + "\n"
}

/// A comment of one line is written on one.
fn with_short_comments(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut made = String::new();
    let mut at = 0;
    while at < lines.len() {
        let comment = match lines[at..] {
            [open, only, close, ..] if open.trim() == "/**" && close.trim() == "*/" => only.trim().strip_prefix("* "),
            _ => None,
        };
        let indent = &lines[at][..lines[at].len() - lines[at].trim_start().len()];
        match comment.filter(|comment| indent.len() + comment.len() + 7 <= WIDTH) {
            Some(comment) => {
                made += &format!("{indent}/** {comment} */\n");
                at += 3;
            }
            None => {
                made += lines[at];
                made.push('\n');
                at += 1;
            }
        }
    }
    made
}

/// Characters of a line.
const WIDTH: usize = 120;
