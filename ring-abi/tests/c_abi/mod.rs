//! The C header: what stands in it, and how it is written.
//!
//! * [`items`]: every constant and structure as Rust itself has it: values, sizes, offsets. The list is written by hand,
//!   and `sources` finds what it lacks.
//! * [`sources`]: the sources of the crate: which items there are, and their documentation.
//! * [`functions`]: the few functions that a producer needs, in C.
//! * [`header`]: the text of the header.
//! * [`docs`]: documentation of Rust as comments of C.
//! * [`compiler`]: what compiles it.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod compiler;
pub mod docs;
pub mod functions;
pub mod header;
pub mod items;
pub mod sources;

/// `FragmentRecord` as `fragment_record`, `SUBMIT` as `submit`, `U32` as `u32`.
pub fn snake(name: &str) -> String {
    let mut out = String::new();
    let mut before_is_small = false;
    for c in name.chars() {
        if c.is_ascii_uppercase() && before_is_small {
            out.push('_');
        }
        before_is_small = c.is_ascii_lowercase();
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// The name in C of a constant: `Opcode::READ` is `SCATTER_RING_OPCODE_READ`.
pub fn c_constant(path: &str) -> String {
    let parts: Vec<String> = path.split("::").map(|part| snake(part).to_ascii_uppercase()).collect();
    format!("SCATTER_RING_{}", parts.join("_"))
}

/// The name in C of a structure or of a function: `Span::fragment` is `scatter_ring_span_fragment`.
pub fn c_name(path: &str) -> String {
    let parts: Vec<String> = path.split("::").map(snake).collect();
    format!("scatter_ring_{}", parts.join("_"))
}
