//! From text to statements. Session commands and COPY are read here; the rest by sqlparser, in PostgreSQL's dialect.

mod cursor;
mod depth;
mod dialect;
pub mod template;
mod utility;

pub use utility::{Copy, CopyFormat, CopySource, Modes, SequenceOptions, Utility};

use crate::error::{Result, SqlError, code};
use crate::names::Places;
use cursor::{TokenCursor, near};
use dialect::Postgres;
use sqlparser::ast::{self, Query};
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};
use std::sync::Arc;

const DIALECT: Postgres = Postgres;
/// How deep expressions may nest.
const DEPTH: usize = 200;

/// A statement with the text that it came in (positions of errors refer to it).
#[derive(Debug)]
pub struct Parsed {
    /// The statement.
    pub statement: Statement,
    /// The whole text that was sent.
    pub text: Arc<str>,
}

/// A statement, by the part of `sql` that carries it out.
#[derive(Debug)]
pub enum Statement {
    /// Nothing.
    Empty,
    /// SELECT, VALUES, WITH.
    Query(Box<Query>),
    /// INSERT.
    Insert(Box<ast::Insert>),
    /// UPDATE.
    Update(Box<ast::Update>),
    /// DELETE.
    Delete(Box<ast::Delete>),
    /// Definitions.
    Define(Box<ast::Statement>),
    /// Session and transaction commands.
    Utility(Utility),
    /// COPY.
    Copy(Box<Copy>),
    /// EXPLAIN.
    Explain {
        analyze: bool,
        memory: bool,
        inner: Box<Statement>,
    },
}

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
        let statement = parse_statement(part, text)?;
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

fn tokenize(text: &str) -> Result<Vec<TokenWithSpan>> {
    Tokenizer::new(&DIALECT, text).tokenize_with_location().map_err(|e| {
        let place = Places(text).at(e.location);
        let unterminated = e.message.starts_with("Unterminated string");
        let message = if unterminated {
            "unterminated quoted string".to_string()
        } else {
            e.message.to_lowercase()
        };
        let near: String = text.chars().skip(place.saturating_sub(1) as usize).collect();
        SqlError::new(code::SYNTAX_ERROR, format!("{message} at or near \"{near}\"")).at(place)
    })
}

fn parser(tokens: Vec<TokenWithSpan>) -> Parser<'static> {
    Parser::new(&DIALECT)
        .with_recursion_limit(DEPTH)
        .with_tokens_with_locations(tokens)
}

fn parse_statement(tokens: &[TokenWithSpan], text: &str) -> Result<Statement> {
    let mut cursor = TokenCursor::new(tokens, text);
    if let Some(statement) = utility::parse(&mut cursor)? {
        return Ok(statement);
    }
    let mut parser = parser(without_key_locks(tokens));
    let parsed = parser.parse_statement().map_err(|e| explain(e, text))?;
    let next = parser.next_token();
    if next.token != Token::EOF {
        return Err(near(&next, text));
    }
    sort_out(parsed)
}

fn sort_out(parsed: ast::Statement) -> Result<Statement> {
    Ok(match parsed {
        ast::Statement::Query(query) => match *query.body {
            ast::SetExpr::Insert(inner) | ast::SetExpr::Update(inner) | ast::SetExpr::Delete(inner)
                if query.with.is_none() =>
            {
                sort_out(inner)?
            }
            ast::SetExpr::Insert(_) | ast::SetExpr::Update(_) | ast::SetExpr::Delete(_) => {
                return Err(SqlError::unsupported("WITH in front of INSERT, UPDATE or DELETE"));
            }
            _ => Statement::Query(query),
        },
        ast::Statement::Insert(insert) => Statement::Insert(Box::new(insert)),
        ast::Statement::Update(update) => Statement::Update(Box::new(update)),
        ast::Statement::Delete(delete) => Statement::Delete(Box::new(delete)),
        other => Statement::Define(Box::new(other)),
    })
}

/// FOR NO KEY UPDATE and FOR KEY SHARE are the same locks here as FOR UPDATE and FOR SHARE.
fn without_key_locks(tokens: &[TokenWithSpan]) -> Vec<TokenWithSpan> {
    let is = |t: Option<&&TokenWithSpan>, word: &str| matches!(t.map(|t| &t.token), Some(Token::Word(w)) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word));
    let solid: Vec<&TokenWithSpan> = tokens
        .iter()
        .filter(|t| !matches!(t.token, Token::Whitespace(_)))
        .collect();
    let mut out = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while let Some(token) = solid.get(at) {
        out.push((*token).clone());
        at += 1;
        if is(Some(token), "for") {
            if is(solid.get(at), "no") && is(solid.get(at + 1), "key") && is(solid.get(at + 2), "update") {
                at += 2;
            } else if is(solid.get(at), "key") && is(solid.get(at + 1), "share") {
                at += 1;
            }
        }
    }
    out
}

/// sqlparser says `Expected: ..., found: X at Line: 1, Column: 9`.
fn explain(error: ParserError, text: &str) -> SqlError {
    let message = match error {
        ParserError::TokenizerError(m) | ParserError::ParserError(m) => m,
        ParserError::RecursionLimitExceeded => {
            return SqlError::new("54001", "stack depth limit exceeded").with_hint("The statement nests too deeply.");
        }
    };
    let Some((head, place)) = message.rsplit_once(" at Line: ") else {
        if message.ends_with("found: EOF") {
            return SqlError::new(code::SYNTAX_ERROR, "syntax error at end of input")
                .at(text.chars().count() as u32 + 1);
        }
        return SqlError::new(code::SYNTAX_ERROR, format!("syntax error: {message}"));
    };
    let (line, column) = place.split_once(", Column: ").unwrap_or((place, "0"));
    let location = Location {
        line: line.parse().unwrap_or(0),
        column: column.trim().parse().unwrap_or(0),
    };
    let found = head.rsplit_once("found: ").map(|(_, f)| f);
    let message = match found {
        Some("EOF") => "syntax error at end of input".to_string(),
        Some(token) => format!("syntax error at or near \"{token}\""),
        None => format!("syntax error: {head}"),
    };
    SqlError::new(code::SYNTAX_ERROR, message).at(Places(text).at(location))
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
