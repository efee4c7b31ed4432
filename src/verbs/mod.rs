//! RDMA: a binding of what this crate uses of libibverbs and librdmacm, loaded at run time.
//!
//! Everything foreign and unsafe about RDMA is here. A [`Library`] opens a [`Context`] of a device; on it are made a
//! [`ProtectionDomain`] with [`MemoryRegion`]s, a [`CompletionQueue`] with a [`CompletionChannel`], and [`QueuePair`]s, to
//! which a [`PostBatch`] posts. Each keeps alive what it depends on. In a process that was forked from the one that made
//! it, a call is refused and dropping does nothing.
//!
//! What a device, a driver or the kernel writes is checked before it is believed: numbers are numbers, not Rust enums.

pub mod abi;
pub mod cm;
mod completion;
mod context;
mod error;
mod functions;
mod library;
mod memory;
mod post;
mod process;
mod queue_pair;
mod values;

pub use completion::{Completion, CompletionChannel, CompletionQueue, Success};
pub use context::{AsyncEvent, Context, DeviceLimits, GidEntry, Port};
pub use error::{NoRdma, VerbsError};
pub use functions::{CmFunctions, Functions, VerbsFunctions};
pub use library::{Device, Library};
pub use memory::{Access, MemoryRegion, ProtectionDomain};
pub use post::{NotAdded, Piece, PostBatch, PostFailed, PostStorage, RemoteAddress};
pub use queue_pair::{GlobalPath, Path, QueuePair, QueuePairCaps, RtrSettings, RtsSettings};
pub use values::{CmEventKind, EventKind, Gid, GidType, LinkLayer, Mtu, PortState, Transport, WcOpcode, WcStatus};
