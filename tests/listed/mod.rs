//! Encoded lists, written by hand.

/// A list of these pieces: region, offset, bytes.
pub fn list(pieces: &[(u32, u64, u32)]) -> Vec<u8> {
    const PLAIN: u32 = 4;
    let mut bytes = Vec::new();
    for (region, offset, len) in pieces {
        let [low, high] = [*offset as u32, (*offset >> 32) as u32];
        let header = [PLAIN, 1, *region, 0, 0, 0, 0, 1, 0, 0];
        for word in header.into_iter().chain([low, high, *len, 0]) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}
