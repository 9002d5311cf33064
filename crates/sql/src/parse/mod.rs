//! From text to statements.
//!
//! | file | holds |
//! |---|---|
//! | `statement` | statements as they are parsed |
//! | `cursor`, `dialect`, `depth` | tokens one by one; PostgreSQL's dialect; the limit of nesting |
//! | `reader` | what sqlparser reads |
//! | `utility` | a statement from its tokens: session commands and COPY are read here, all others by `reader` |
//! | `template` | a statement's text without its literals |

mod cursor;
mod depth;
mod dialect;
mod maintenance;
mod reader;
mod statement;
pub mod template;
mod utility;

pub use statement::{
    Copy, CopyFormat, CopySource, ExplainOptions, Maintained, Modes, Parsed, SequenceOptions, Statement, Utility,
};

use crate::error::Result;
use reader::{explain, parser, tokenize};
use sqlparser::ast::{self, Query};
use sqlparser::tokenizer::Token;
use std::sync::Arc;

/// All statements of a text; nothing runs unless all of it parses.
///
/// # Errors
/// 42601: the text does not parse. 54001: it nests too deeply. 0A000: Cenote does not know the statement.
pub fn parse(text: &str) -> Result<Vec<Parsed>> {
    let shared: Arc<str> = text.into();
    let tokens = tokenize(text)?;
    let mut statements = Vec::new();
    for part in tokens.split(|t| t.token == Token::SemiColon) {
        if part
            .iter()
            .all(|t| matches!(t.token, Token::Whitespace(_) | Token::EOF))
        {
            continue;
        }
        depth::check(part)?;
        let statement = utility::parse_statement(part, text)?;
        statements.push(Parsed {
            statement,
            text: shared.clone(),
        });
    }
    Ok(statements)
}

/// An expression by itself (a DEFAULT).
///
/// # Errors
/// 42601: the text does not parse. 54001: it nests too deeply.
pub fn parse_expression(text: &str) -> Result<ast::Expr> {
    let tokens = tokenize(text)?;
    depth::check(&tokens)?;
    let mut parser = parser(tokens);
    parser.parse_expr().map_err(|e| explain(e, text))
}

/// A query by itself.
///
/// # Errors
/// 42601: the text does not parse. 54001: it nests too deeply.
pub fn parse_query(text: &str) -> Result<Query> {
    let tokens = tokenize(text)?;
    depth::check(&tokens)?;
    let mut parser = parser(tokens);
    parser.parse_query().map(|q| *q).map_err(|e| explain(e, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_place() {
        let error = parse("SELECT 1;\nSELEC 2").unwrap_err();
        assert_eq!((error.code(), error.position()), ("42601", Some(11)));
        assert_eq!(error.message(), "syntax error at or near \"SELEC\"");
        assert_eq!(
            parse("SELECT * FROM").unwrap_err().message(),
            "syntax error at end of input"
        );
        assert_eq!(parse("SELECT 'abc").unwrap_err().code(), "42601");
    }

    #[test]
    fn empty_statements_vanish() {
        assert_eq!(parse(" ; ;; -- nothing\n;").unwrap().len(), 0);
        assert_eq!(parse("select 1; select 2;").unwrap().len(), 2);
    }
}
