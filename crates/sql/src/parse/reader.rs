//! sqlparser in Cenote's dialect: text to tokens, tokens to statements, and its errors in PostgreSQL's words.

use super::cursor::near;
use super::dialect::Postgres;
use super::statement::Statement;
use crate::error::{Result, SqlError, code};
use crate::names::Places;
use sqlparser::ast;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};

const DIALECT: Postgres = Postgres;
/// How deep expressions may nest.
const DEPTH: usize = 200;

/// The tokens of a text.
///
/// # Errors
/// 42601: a token has no end, or is none.
pub fn tokenize(text: &str) -> Result<Vec<TokenWithSpan>> {
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

/// A parser of tokens.
pub fn parser(tokens: Vec<TokenWithSpan>) -> Parser<'static> {
    Parser::new(&DIALECT)
        .with_recursion_limit(DEPTH)
        .with_tokens_with_locations(tokens)
}

/// A statement that sqlparser reads.
///
/// # Errors
/// 42601: the tokens are no statement. 54001: it nests too deeply. 0A000: WITH in front of a change.
pub fn statement(tokens: &[TokenWithSpan], text: &str) -> Result<Statement> {
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
    let is = |t: Option<&&TokenWithSpan>, word: &str| match t.map(|t| &t.token) {
        Some(Token::Word(w)) => w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word),
        _ => false,
    };
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

/// An error of sqlparser, which says `Expected: ..., found: X at Line: 1, Column: 9`.
pub fn explain(error: ParserError, text: &str) -> SqlError {
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
