//! Move many small pieces of memory between processes and hosts, described in a shared-memory ring without a system call.
//!
//! Start with [`client`] to use an engine, and with [`engine`] to have one in your process. The words, in the order of a
//! descriptor's journey:
//!
//! * A **region** is registered memory: a handle, a length, rights. It is local, or was opened by its exported name,
//!   at this engine or at a peer.
//! * A **descriptor** is one 64-byte submission entry: `count` fragments of `len` bytes, between two regions.
//! * A **batch** is the descriptors up to one that carries LAST: one logical operation, with one outcome.
//! * A **span** is a completion entry: a run of consecutive descriptors with one outcome.
//!
//! `push` fills a slot privately, `publish` shows the slots to the engine with one store, `submit` is publish plus a
//! wake-up if the engine sleeps, `reap` takes spans.
//!
//! Linux, x86-64 and aarch64. No system library is needed.

#[cfg(not(target_endian = "little"))]
compile_error!("scatter-ring is for little-endian machines: the shared areas are little-endian");

#[cfg(not(scatter_ring_loom))]
pub mod attach;
#[cfg(not(scatter_ring_loom))]
pub mod client;
#[cfg(not(scatter_ring_loom))]
mod completion;
#[cfg(not(scatter_ring_loom))]
pub mod cost;
#[cfg(not(scatter_ring_loom))]
pub mod engine;
// Public for its tests and its benchmark; not part of the interface.
#[cfg(not(scatter_ring_loom))]
#[doc(hidden)]
pub mod link;
#[doc(hidden)]
pub mod mappings;
#[cfg(not(scatter_ring_loom))]
pub mod owner;
#[cfg(not(scatter_ring_loom))]
mod pace;
// Public for tests and benches: the executable model, a naive expansion, and what a row costs. Not part of the interface.
#[cfg(not(scatter_ring_loom))]
#[doc(hidden)]
pub mod pack;
// Public for its tests. What belongs to the interface, `engine` gives out.
#[cfg(not(scatter_ring_loom))]
#[doc(hidden)]
pub mod peer;
#[cfg(not(scatter_ring_loom))]
#[doc(hidden)]
pub mod pipeline;
#[cfg(not(scatter_ring_loom))]
#[doc(hidden)]
pub mod plan;
#[cfg(not(scatter_ring_loom))]
pub mod region;
pub mod ring;
#[cfg(not(scatter_ring_loom))]
pub mod sim;
#[cfg(not(scatter_ring_loom))]
mod stats;
#[doc(hidden)]
pub mod sync;
// Public for its tests, which bring devices of their own. Not part of the interface.
#[cfg(not(scatter_ring_loom))]
#[doc(hidden)]
pub mod verbs;

/// The README's programs, compiled and run.
#[cfg(all(doctest, not(scatter_ring_loom)))]
#[doc = include_str!("../README.md")]
struct Readme;

/// The programs of the page about other engines, likewise.
#[cfg(all(doctest, not(scatter_ring_loom)))]
#[doc = include_str!("../docs/peers.md")]
struct PeersPage;
