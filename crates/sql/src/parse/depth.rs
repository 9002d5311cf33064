//! How deep the tree of a statement can get, told from its tokens before it is built.
//!
//! Parentheses nest, and the parser limits them. Chains do not: `1 + 1 + ... + 1` and `SELECT 1 UNION SELECT 1 ...` are
//! read in a loop and lean to the left, a level a link, as deep as the text is long. Trees are copied, walked and
//! dropped by recursion, in places that are not ours, and a stack that overflows takes the process with it. So a chain
//! has a limit that fits the stack of a session (64 MiB; the worst level measured takes 4 KiB).

use crate::error::{Result, SqlError};
use sqlparser::tokenizer::{Token, TokenWithSpan};

/// Links of a chain, those around it included.
const CHAIN_MAX: usize = 5_000;

/// Words that make a level.
const LINKS: [&str; 14] = [
    "AND",
    "OR",
    "NOT",
    "UNION",
    "EXCEPT",
    "INTERSECT",
    "JOIN",
    "IS",
    "IN",
    "LIKE",
    "ILIKE",
    "BETWEEN",
    "COLLATE",
    "AT",
];

/// Refuses (54001) statements whose tree could be too deep. A list's items are side by side: a comma begins a new
/// chain.
///
/// # Errors
/// 54001: the statement nests too deeply.
pub fn check(tokens: &[TokenWithSpan]) -> Result<()> {
    if tokens.len() <= CHAIN_MAX {
        return Ok(());
    }
    let mut chains = vec![0usize];
    let mut depth = 0;
    for token in tokens {
        match &token.token {
            Token::LParen | Token::LBracket => chains.push(0),
            Token::RParen | Token::RBracket => depth -= if chains.len() > 1 { chains.pop().unwrap_or(0) } else { 0 },
            Token::Comma => depth -= std::mem::take(chains.last_mut().expect("the outermost chain is never taken off")),
            other if is_link(other) => {
                *chains.last_mut().expect("the outermost chain is never taken off") += 1;
                depth += 1;
            }
            _ => {}
        }
        if depth > CHAIN_MAX {
            let hint = format!(
                "The statement chains more than {CHAIN_MAX} operators: use IN (...) or VALUES lists, or parts."
            );
            return Err(SqlError::new("54001", "stack depth limit exceeded").with_hint(hint));
        }
    }
    Ok(())
}

fn is_link(token: &Token) -> bool {
    match token {
        Token::Word(word) => {
            word.quote_style.is_none() && LINKS.iter().any(|link| word.value.eq_ignore_ascii_case(link))
        }
        Token::Number(..) | Token::SingleQuotedString(_) | Token::EscapedStringLiteral(_) | Token::Placeholder(_) => {
            false
        }
        Token::Whitespace(_) | Token::Period | Token::SemiColon | Token::EOF => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use crate::parse::parse;

    /// `SELECT 1 UNION ALL SELECT 1 ...` a thousand times overflowed the stack of a session, and the server was gone.
    #[test]
    fn chains_have_a_limit_and_lists_have_none() {
        let refused = |text: String| parse(&text).err().map(|error| error.code());
        assert_eq!(refused(format!("SELECT {}1", "1 + ".repeat(6_000))), Some("54001"));
        assert_eq!(refused(format!("SELECT {}1", "f(1) + ".repeat(6_000))), Some("54001"));
        assert_eq!(
            refused(format!("SELECT 1 {}", "UNION ALL SELECT 1 ".repeat(6_000))),
            Some("54001")
        );
        assert_eq!(
            refused(format!("INSERT INTO t VALUES {}(-1, -1)", "(-1, -1), ".repeat(6_000))),
            None
        );
        assert_eq!(refused(format!("SELECT id IN ({}1)", "-1, ".repeat(6_000))), None);
    }
}
