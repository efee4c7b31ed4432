//! What a region grants: bits of the rights in [`Kind::REGISTER`](crate::Kind::REGISTER),
//! [`EXPORT`](crate::Kind::EXPORT), [`OPEN`](crate::Kind::OPEN) and [`LEND`](crate::Kind::LEND).

/// May be a source, or hold an index array.
pub const READ: u64 = 1 << 0;
/// May be a destination.
pub const WRITE: u64 = 1 << 1;
/// Every bit with a meaning.
pub const KNOWN: u64 = READ | WRITE;
