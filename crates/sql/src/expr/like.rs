//! LIKE: `%` any characters, `_` one, the escape character takes the next one literally.

use super::Expr;
use crate::error::{Result, SqlError, code};
use cenote_engine::DatumRef;

/// Whether `text` matches; None where one is NULL. The escape defaults to a backslash; an empty one means none.
///
/// # Errors
/// 22025: the pattern ends with its escape, or the escape has several characters.
pub fn test(
    text: &DatumRef<'_>,
    pattern: &DatumRef<'_>,
    escape: Option<DatumRef<'_>>,
    ignore_case: bool,
) -> Result<Option<bool>> {
    let escape = match &escape {
        None => Some('\\'),
        Some(DatumRef::Text(e)) => escape_character(e)?,
        Some(_) => return Ok(None),
    };
    let (DatumRef::Text(text), DatumRef::Text(pattern)) = (text, pattern) else {
        return Ok(None);
    };
    if ignore_case {
        return matches(&text.to_lowercase(), &pattern.to_lowercase(), escape).map(Some);
    }
    matches(text, pattern, escape).map(Some)
}

/// How each text that matches the pattern begins; None where the pattern or its escape is NULL.
///
/// # Errors
/// 22025: the escape has several characters.
pub fn literal_prefix(pattern: &DatumRef<'_>, escape: Option<DatumRef<'_>>) -> Result<Option<String>> {
    let escape = match &escape {
        None => Some('\\'),
        Some(DatumRef::Text(e)) => escape_character(e)?,
        Some(_) => return Ok(None),
    };
    let DatumRef::Text(pattern) = pattern else {
        return Ok(None);
    };
    let mut prefix = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            // A pattern that ends with its escape is refused when it is asked of a row.
            c if Some(c) == escape => match chars.next() {
                Some(literal) => prefix.push(literal),
                None => break,
            },
            '%' | '_' => break,
            c => prefix.push(c),
        }
    }
    Ok(Some(prefix))
}

/// Whether a pattern fixes how texts begin; None where only a run can tell.
pub fn fixes_prefix(pattern: &Expr, escape: Option<&Expr>) -> Option<bool> {
    let constant = |e: &Expr| match e {
        Expr::Const(datum) => Some(datum.clone()),
        _ => None,
    };
    let pattern = constant(pattern)?;
    let escape = match escape {
        None => None,
        Some(e) => Some(constant(e)?),
    };
    let prefix = literal_prefix(&pattern.as_ref(), escape.as_ref().map(|e| e.as_ref()));
    Some(matches!(prefix, Ok(Some(p)) if !p.is_empty()))
}

fn escape_character(text: &str) -> Result<Option<char>> {
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (first, None) => Ok(first),
        _ => Err(SqlError::new(code::INVALID_ESCAPE, "invalid escape string")
            .with_hint("Escape string must be empty or one character.")),
    }
}

/// Greedy match with one place to fall back to: the last `%`.
fn matches(text: &str, pattern: &str, escape: Option<char>) -> Result<bool> {
    let (mut text, mut pattern) = (text.chars(), pattern.chars());
    let mut retry = None;
    loop {
        let mut rest = pattern.clone();
        let step = match rest.next() {
            Some('%') if escape != Some('%') => {
                pattern = rest;
                retry = Some((text.clone(), pattern.clone()));
                continue;
            }
            None if text.as_str().is_empty() => return Ok(true),
            None => false,
            Some('_') if escape != Some('_') => text.next().is_some(),
            Some(c) => {
                let wanted = if Some(c) == escape {
                    rest.next().ok_or_else(dangling)?
                } else {
                    c
                };
                text.next() == Some(wanted)
            }
        };
        if step {
            pattern = rest;
            continue;
        }
        let Some((from, after)) = &mut retry else {
            return Ok(false);
        };
        if from.next().is_none() {
            return Ok(false);
        }
        (text, pattern) = (from.clone(), after.clone());
    }
}

#[cold]
fn dangling() -> SqlError {
    SqlError::new(code::INVALID_ESCAPE, "LIKE pattern must not end with escape character")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(text: &[char], pattern: &[char]) -> bool {
        match pattern {
            [] => text.is_empty(),
            ['%', rest @ ..] => (0..=text.len()).any(|n| naive(&text[n..], rest)),
            ['_', rest @ ..] => !text.is_empty() && naive(&text[1..], rest),
            [c, rest @ ..] => text.first() == Some(c) && naive(&text[1..], rest),
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(text in "[ab]{0,8}", pattern in "[ab%_]{0,6}") {
            let (t, p): (Vec<char>, Vec<char>) = (text.chars().collect(), pattern.chars().collect());
            prop_assert_eq!(matches(&text, &pattern, Some('\\')).unwrap(), naive(&t, &p));
        }
    }

    #[test]
    fn escapes() {
        assert!(matches("10%", "10\\%", Some('\\')).unwrap());
        assert!(!matches("100", "10\\%", Some('\\')).unwrap());
        assert!(matches("a", "\\", Some('\\')).is_err());
    }
}
