//! Patterns of keys: `*`, `?`, `[a-c]`, `[^x]`, `\` before what is meant as it is.

/// Whether `text` is of a pattern. At worst as many steps as the product of their lengths.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where the last star was, and how much of the text it takes.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        match one(&pattern[p.min(pattern.len())..], text[t]) {
            Some(used) => (p, t) = (p + used, t + 1),
            None => match star {
                Some((behind, taken)) => {
                    (p, t) = (behind, taken + 1);
                    star = Some((behind, taken + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Bytes of the pattern that speak for one byte of text, if they fit it.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => class_fits(class, byte).map(|used| used + 1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [own, ..] => (*own == byte).then_some(1),
    }
}

fn class_fits(class: &[u8], byte: u8) -> Option<usize> {
    let is_not = class.first() == Some(&b'^');
    let (mut at, mut fits) = (usize::from(is_not), false);
    loop {
        match &class[at..] {
            // A class that is not closed ends with the pattern.
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                fits |= *escaped == byte;
                at += 2;
            }
            [from, b'-', to, ..] if *to != b']' => {
                fits |= (*from.min(to)..=*from.max(to)).contains(&byte);
                at += 3;
            }
            [own, ..] => {
                fits |= *own == byte;
                at += 1;
            }
        }
    }
    (fits != is_not).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_as_those_of_redis() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("*", "abc", true),
            ("a*c", "abbc", true),
            ("a*c", "abcd", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("h[ae]llo", "hello", true),
            ("h[^e]llo", "hello", false),
            ("h[a-f]llo", "hello", true),
            ("h[a-", "ha", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("*a*b*c", "xxaybzzc", true),
            ("*a*b*c", "xxaybzz", false),
            ("", "", true),
            ("", "a", false),
            ("ab**", "ab", true),
            ("[", "[", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), fits, "{pattern} {text}");
        }
        assert!(!matches(b"*a*a*a*a*a*a*a*b", &[b'a'; 10_000]));
    }
}
