//! HMAC-SHA256, with a label for each use so that nothing made for one passes for another.

use super::wire::MAC_BYTES;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// What a MAC is for. All labels have one length: no label and text can read as another label and another text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    KeyId,
    InitiatorProof,
    ResponderProof,
    SessionKey,
    Join,
    JoinAnswer,
}

const LABEL_BYTES: usize = 40;
const BLOCK_BYTES: usize = 64;

/// The MAC of these parts, one after the other. Where a part's length can vary it is the only one, or the last.
pub(super) fn make(key: &[u8; 32], made_for: Use, parts: &[&[u8]]) -> [u8; MAC_BYTES] {
    begin(key, made_for, parts).finalize().into_bytes().into()
}

/// Whether `mac` is that MAC, in a time that does not depend on where they differ.
pub(super) fn is_right(key: &[u8; 32], made_for: Use, parts: &[&[u8]], mac: &[u8; MAC_BYTES]) -> bool {
    begin(key, made_for, parts).verify_slice(mac).is_ok()
}

fn begin(key: &[u8; 32], made_for: Use, parts: &[&[u8]]) -> Hmac<Sha256> {
    // HMAC fills a short key up with zeros; done here, nothing is left that could fail.
    let mut block = Zeroizing::new([0; BLOCK_BYTES]);
    block[..key.len()].copy_from_slice(key);
    let mut mac = Hmac::<Sha256>::new((&*block).into());
    mac.update(label(made_for));
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn label(made_for: Use) -> &'static [u8; LABEL_BYTES] {
    match made_for {
        Use::KeyId => b"scatter-ring peer key identifier        ",
        Use::InitiatorProof => b"scatter-ring peer proof of initiator    ",
        Use::ResponderProof => b"scatter-ring peer proof of responder    ",
        Use::SessionKey => b"scatter-ring peer session key           ",
        Use::Join => b"scatter-ring peer join                  ",
        Use::JoinAnswer => b"scatter-ring peer answer to join        ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HMAC by its definition in RFC 2104, so that the padding above is not taken on trust.
    #[test]
    fn a_mac_is_hmac_sha256_of_label_and_parts() {
        use sha2::Digest;
        let key: [u8; 32] = std::array::from_fn(|n| n as u8 * 7);
        let pad = |with: u8| -> [u8; 64] { std::array::from_fn(|n| key.get(n).copied().unwrap_or(0) ^ with) };
        let inner = Sha256::new().chain_update(pad(0x36)).chain_update(label(Use::Join)).chain_update(b"ab");
        let outer = Sha256::new().chain_update(pad(0x5c)).chain_update(inner.finalize());
        let expected: [u8; 32] = outer.finalize().into();
        assert_eq!(make(&key, Use::Join, &[b"a", b"b"]), expected);
        assert!(is_right(&key, Use::Join, &[b"ab"], &expected));
    }

    #[test]
    fn a_mac_with_any_bit_flipped_is_wrong() {
        let mac = make(&[1; 32], Use::Join, &[b"text"]);
        for bit in 0..256 {
            let mut flipped = mac;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_right(&[1; 32], Use::Join, &[b"text"], &flipped), "bit {bit}");
        }
    }
}
