//! VACUUM and ANALYZE.

use super::cursor::{TokenCursor, near};
use super::statement::{Maintained, Utility};
use crate::error::{Result, SqlError, code};
use crate::names::{Places, fold};
use sqlparser::tokenizer::{Token, TokenWithSpan};

/// Options of VACUUM in parentheses; Cenote heeds those of ANALYZE.
const VACUUM: &[&str] = &[
    "full",
    "freeze",
    "verbose",
    "analyze",
    "disable_page_skipping",
    "skip_locked",
    "index_cleanup",
    "process_toast",
    "truncate",
    "parallel",
];
const ANALYZE: &[&str] = &["verbose", "skip_locked"];

#[derive(Default)]
struct Options {
    analyze: bool,
    verbose: bool,
}

/// VACUUM, from its verb on.
///
/// # Errors
/// 42601: it is no VACUUM, or has an option that there is not.
pub(super) fn vacuum(c: &mut TokenCursor<'_>) -> Result<Utility> {
    c.next();
    let mut options = options(c, "VACUUM", VACUUM)?;
    loop {
        if c.eat("analyze") || c.eat("analyse") {
            options.analyze = true;
        } else if c.eat("verbose") {
            options.verbose = true;
        } else if !(c.eat("full") || c.eat("freeze")) {
            break;
        }
    }
    let tables = tables(c)?;
    if !options.analyze && tables.iter().any(|table| !table.columns.is_empty()) {
        return Err(SqlError::new(
            code::FEATURE_NOT_SUPPORTED,
            "ANALYZE option must be specified when a column list is provided",
        ));
    }
    Ok(Utility::Vacuum {
        tables,
        analyze: options.analyze,
        verbose: options.verbose,
    })
}

/// ANALYZE, from its verb on.
///
/// # Errors
/// 42601: it is no ANALYZE, or has an option that there is not.
pub(super) fn analyze(c: &mut TokenCursor<'_>) -> Result<Utility> {
    c.next();
    let options = options(c, "ANALYZE", ANALYZE)?;
    let verbose = c.eat("verbose") || options.verbose;
    Ok(Utility::Analyze {
        tables: tables(c)?,
        verbose,
    })
}

/// Options in parentheses, each with a value that says whether it is on, or none.
fn options(c: &mut TokenCursor<'_>, command: &str, known: &[&str]) -> Result<Options> {
    let mut options = Options::default();
    if !c.eat_token(&Token::LParen) {
        return Ok(options);
    }
    let inside = c.inside_parentheses()?;
    for option in inside.split(|token| token.token == Token::Comma) {
        let words: Vec<&TokenWithSpan> = option.iter().collect();
        let (Some(first), true) = (words.first(), words.len() <= 2) else {
            let at = words.get(2).copied().or(inside.last());
            return Err(at.map_or_else(|| near(c.peek(), c.text()), |token| near(token, c.text())));
        };
        let Token::Word(word) = &first.token else {
            return Err(near(first, c.text()));
        };
        let name = word.value.to_ascii_lowercase();
        if !known.contains(&name.as_str()) {
            let text = format!("unrecognized {command} option \"{name}\"");
            return Err(SqlError::new(code::SYNTAX_ERROR, text).at(Places(c.text()).of(first.span)));
        }
        match name.as_str() {
            "analyze" => options.analyze = is_on(&name, words.get(1).copied())?,
            "verbose" => options.verbose = is_on(&name, words.get(1).copied())?,
            _ => {}
        }
    }
    Ok(options)
}

fn is_on(name: &str, value: Option<&TokenWithSpan>) -> Result<bool> {
    let Some(value) = value else { return Ok(true) };
    let text = match &value.token {
        Token::Word(word) => word.value.to_ascii_lowercase(),
        Token::Number(number, _) => number.clone(),
        Token::SingleQuotedString(text) => text.to_ascii_lowercase(),
        _ => String::new(),
    };
    match text.as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(SqlError::new(
            code::SYNTAX_ERROR,
            format!("{name} requires a Boolean value"),
        )),
    }
}

/// Tables, each with the columns that are meant.
fn tables(c: &mut TokenCursor<'_>) -> Result<Vec<Maintained>> {
    let mut tables = Vec::new();
    while !c.at_end() {
        tables.push(Maintained {
            table: c.object()?,
            columns: c.name_list()?.iter().map(fold).collect(),
        });
        if !c.eat_token(&Token::Comma) {
            break;
        }
        if c.at_end() {
            return Err(near(c.peek(), c.text()));
        }
    }
    Ok(tables)
}
