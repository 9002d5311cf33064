//! Base64 (RFC 4648, padded), as etcd's JSON has keys and values.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for some in bytes.chunks(3) {
        let word = (0..3).fold(0, |word, n| word << 8 | u32::from(some.get(n).copied().unwrap_or(0)));
        for n in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * n)) as usize & 63];
            text.push(if n <= some.len() { digit.into() } else { '=' });
        }
    }
    text
}

/// `None` for what is none.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    let padding = text.len() - digits.len();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for some in digits.chunks(4) {
        let mut word = 0;
        for n in 0..4 {
            word = word << 6 | some.get(n).map_or(Some(0), |digit| value(*digit))?;
        }
        bytes.extend_from_slice(&word.to_be_bytes()[1..some.len()]);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_that_of_others() {
        let known = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("\u{fb}\u{3ff}", "w7vPvw=="),
        ];
        for (bytes, text) in known {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        for bad in ["Z", "Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zm9v\n", "Zm 9", "Zm9-"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn garbage_is_refused_or_read(text in ".{0,40}") {
            let _ = decode(&text);
        }
    }
}
