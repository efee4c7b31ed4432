//! Base 64 of RFC 4648, both alphabets, strict: one text for each run of bytes.

/// The two characters that stand for 62 and 63.
pub(super) const STANDARD: [u8; 2] = *b"+/";
/// The same where they must be safe in URLs and file names.
pub(super) const URL_SAFE: [u8; 2] = *b"-_";

/// Characters without padding.
pub(super) fn encode(bytes: &[u8], last_two: [u8; 2]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().enumerate().fold(0, |bits, (n, byte)| bits | u32::from(*byte) << (16 - 8 * n));
        for n in 0..=group.len() {
            text.push(character((bits >> (18 - 6 * n)) as u8 & 63, last_two).into());
        }
    }
    text
}

/// Decodes characters without padding into `into`, and says how many bytes they were. `None` if there is another
/// character, if bits are left over that are not 0, or if there is no room.
pub(super) fn decode(text: &[u8], last_two: [u8; 2], into: &mut [u8]) -> Option<usize> {
    let mut len = 0usize;
    for group in text.chunks(4) {
        let mut bits = 0;
        for (n, character) in group.iter().enumerate() {
            bits |= u32::from(value(*character, last_two)?) << (18 - 6 * n);
        }
        // One character alone has too few bits for a byte.
        let bytes = group.len().checked_sub(1).filter(|bytes| *bytes > 0)?;
        if bits & (0x00ff_ffff >> (8 * bytes)) != 0 {
            return None;
        }
        let place = into.get_mut(len..len.checked_add(bytes)?)?;
        place.iter_mut().enumerate().for_each(|(n, byte)| *byte = (bits >> (16 - 8 * n)) as u8);
        len += bytes;
    }
    Some(len)
}

fn character(value: u8, last_two: [u8; 2]) -> u8 {
    match value {
        0..26 => b'A' + value,
        26..52 => b'a' + (value - 26),
        52..62 => b'0' + (value - 52),
        62 => last_two[0],
        _ => last_two[1],
    }
}

fn value(character: u8, last_two: [u8; 2]) -> Option<u8> {
    match character {
        b'A'..=b'Z' => Some(character - b'A'),
        b'a'..=b'z' => Some(character - b'a' + 26),
        b'0'..=b'9' => Some(character - b'0' + 52),
        other => last_two.iter().position(|last| *last == other).map(|n| 62 + n as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_the_rfc_come_out() {
        for (bytes, text) in [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(encode(bytes.as_bytes(), STANDARD), text);
        }
        assert_eq!(encode(&[0xfb, 0xff], STANDARD), "+/8");
        assert_eq!(encode(&[0xfb, 0xff], URL_SAFE), "-_8");
    }

    proptest! {
        #[test]
        fn whatever_decodes_encodes_to_the_same_text(text in "[A-Za-z0-9+/=_-]{0,20}") {
            let mut bytes = [0; 16];
            if let Some(len) = decode(text.as_bytes(), STANDARD, &mut bytes) {
                prop_assert_eq!(encode(&bytes[..len], STANDARD), text);
            }
        }

        #[test]
        fn bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut back = [0; 100];
            let len = decode(encode(&bytes, URL_SAFE).as_bytes(), URL_SAFE, &mut back);
            prop_assert_eq!(len.map(|len| &back[..len]), Some(&*bytes));
        }
    }
}
