//! A statement from its tokens. Session commands, transaction commands, maintenance and COPY are read here, all others
//! by sqlparser.

use super::cursor::{TokenCursor, near};
use super::maintenance::{analyze, vacuum};
use super::reader::{self, parser};
use super::statement::{Copy, CopyFormat, CopySource, ExplainOptions, Modes, SequenceOptions, Statement, Utility};
use crate::error::{Result, SqlError, code};
use crate::names::fold;
use cenote_engine::Isolation;
use sqlparser::tokenizer::{Token, TokenWithSpan};

/// The statement that `tokens` are, which stand in `text`.
///
/// # Errors
/// 42601: the tokens are no statement. 54001: it nests too deeply. 0A000: Cenote does not know the statement.
pub fn parse_statement(tokens: &[TokenWithSpan], text: &str) -> Result<Statement> {
    match command(&mut TokenCursor::new(tokens, text))? {
        Some(command) => Ok(command),
        None => reader::statement(tokens, text),
    }
}

/// Reads a command of this file; None where sqlparser is to read it.
fn command(c: &mut TokenCursor<'_>) -> Result<Option<Statement>> {
    let Token::Word(word) = &c.peek().token else {
        return Ok(None);
    };
    let verb = if word.quote_style.is_none() {
        word.value.to_ascii_lowercase()
    } else {
        String::new()
    };
    let utility = match verb.as_str() {
        "begin" | "start" => begin(c)?,
        "commit" | "end" => commit(c)?,
        "rollback" | "abort" => rollback(c)?,
        "savepoint" => {
            c.next();
            Utility::Savepoint(c.name()?)
        }
        "release" => {
            c.next();
            c.eat("savepoint");
            Utility::Release(c.name()?)
        }
        "set" => set(c)?,
        "show" => show(c)?,
        "reset" => reset(c)?,
        "discard" => discard(c)?,
        "deallocate" => {
            c.next();
            c.eat("prepare");
            Utility::Deallocate(if c.eat("all") { None } else { Some(c.name()?) })
        }
        "close" => {
            c.next();
            Utility::Close(if c.eat("all") { None } else { Some(c.name()?) })
        }
        "unlisten" => {
            c.next();
            if !c.eat_token(&Token::Mul) {
                c.name()?;
            }
            Utility::Unlisten
        }
        "prepare" => prepare(c)?,
        "execute" => execute(c)?,
        "vacuum" => vacuum(c)?,
        "analyze" | "analyse" => analyze(c)?,
        "checkpoint" => {
            c.next();
            Utility::Checkpoint
        }
        "truncate" => truncate(c)?,
        "create" if c.word_at(1, "sequence") => create_sequence(c)?,
        "lock" => {
            c.rest();
            Utility::LockTable
        }
        "copy" => return copy(c).map(|copy| Some(Statement::Copy(Box::new(copy)))),
        "explain" => return explain(c).map(Some),
        "listen" | "notify" | "declare" | "fetch" | "move" | "do" | "call" | "cluster" | "reindex" | "comment"
        | "grant" | "revoke" | "security" | "load" | "refresh" | "import" => {
            return Err(SqlError::unsupported(verb.to_uppercase()));
        }
        _ => return Ok(None),
    };
    c.finish()?;
    Ok(Some(Statement::Utility(utility)))
}

fn begin(c: &mut TokenCursor<'_>) -> Result<Utility> {
    let tag = if c.eat("start") {
        c.expect("transaction")?;
        "START TRANSACTION"
    } else {
        c.next();
        let _ = c.eat("work") || c.eat("transaction");
        "BEGIN"
    };
    Ok(Utility::Begin(tag, modes(c)?))
}

fn modes(c: &mut TokenCursor<'_>) -> Result<Modes> {
    let mut modes = Modes::default();
    while !c.at_end() {
        if c.eat_all(&["isolation", "level"]) {
            modes.isolation = Some(isolation(c)?);
        } else if c.eat_all(&["read", "only"]) {
            modes.read_only = Some(true);
        } else if c.eat_all(&["read", "write"]) {
            modes.read_only = Some(false);
        } else if !(c.eat("deferrable") || c.eat_all(&["not", "deferrable"]) || c.eat_token(&Token::Comma)) {
            return Err(near(c.peek(), c.text()));
        }
    }
    Ok(modes)
}

fn isolation(c: &mut TokenCursor<'_>) -> Result<Isolation> {
    if c.eat_all(&["read", "committed"]) || c.eat_all(&["read", "uncommitted"]) {
        Ok(Isolation::ReadCommitted)
    } else if c.eat_all(&["repeatable", "read"]) {
        Ok(Isolation::RepeatableRead)
    } else if c.eat("serializable") {
        Err(SqlError::serializable())
    } else {
        Err(near(c.peek(), c.text()))
    }
}

fn chain(c: &mut TokenCursor<'_>) -> bool {
    let _ = c.eat("work") || c.eat("transaction");
    if c.eat_all(&["and", "no", "chain"]) {
        return false;
    }
    c.eat_all(&["and", "chain"])
}

fn commit(c: &mut TokenCursor<'_>) -> Result<Utility> {
    c.next();
    if c.word_at(0, "prepared") {
        return Err(SqlError::unsupported("COMMIT PREPARED"));
    }
    Ok(Utility::Commit { chain: chain(c) })
}

fn rollback(c: &mut TokenCursor<'_>) -> Result<Utility> {
    c.next();
    if c.word_at(0, "prepared") {
        return Err(SqlError::unsupported("ROLLBACK PREPARED"));
    }
    let chain = chain(c);
    if c.eat("to") {
        c.eat("savepoint");
        return Ok(Utility::RollbackTo(c.name()?));
    }
    Ok(Utility::Rollback { chain })
}

fn set(c: &mut TokenCursor<'_>) -> Result<Utility> {
    c.next();
    if c.eat_all(&["session", "characteristics", "as", "transaction"]) {
        return Ok(Utility::SetSessionTransaction(modes(c)?));
    }
    let local = c.eat("local");
    if !local {
        c.eat("session");
    }
    if c.eat("transaction") {
        return Ok(Utility::SetTransaction(modes(c)?));
    }
    if c.eat_all(&["time", "zone"]) {
        let value = setting_value(c)?.filter(|v| !v.eq_ignore_ascii_case("local"));
        return Ok(Utility::Set {
            name: "TimeZone".into(),
            value,
            local,
        });
    }
    if c.eat("names") {
        return Ok(Utility::Set {
            name: "client_encoding".into(),
            value: setting_value(c)?,
            local,
        });
    }
    if c.word_at(0, "role") || c.word_at(0, "constraints") || c.eat_all(&["session", "authorization"]) {
        return Err(SqlError::unsupported("this form of SET"));
    }
    let name = setting_name(c)?;
    if !c.eat("to") {
        c.expect_token(&Token::Eq)?;
    }
    Ok(Utility::Set {
        name,
        value: setting_value(c)?,
        local,
    })
}

fn setting_name(c: &mut TokenCursor<'_>) -> Result<String> {
    let mut name = c.ident()?.value;
    while c.eat_token(&Token::Period) {
        name = format!("{name}.{}", c.ident()?.value);
    }
    Ok(name)
}

/// Words, strings and numbers, joined by commas; None for DEFAULT.
fn setting_value(c: &mut TokenCursor<'_>) -> Result<Option<String>> {
    if c.eat("default") {
        return Ok(None);
    }
    let mut parts = Vec::new();
    loop {
        let negative = c.eat_token(&Token::Minus);
        let plus = c.eat_token(&Token::Plus);
        let token = c.next();
        let value = match &token.token {
            Token::Word(w) if w.quote_style.is_some() => format!("\"{}\"", w.value),
            Token::Word(w) => w.value.clone(),
            Token::SingleQuotedString(s) | Token::EscapedStringLiteral(s) => s.clone(),
            Token::Number(n, _) => n.clone(),
            _ => return Err(near(&token, c.text())),
        };
        let sign = if negative {
            "-"
        } else if plus {
            "+"
        } else {
            ""
        };
        parts.push(format!("{sign}{value}"));
        if !c.eat_token(&Token::Comma) {
            return Ok(Some(parts.join(", ")));
        }
    }
}

fn show(c: &mut TokenCursor<'_>) -> Result<Utility> {
    c.next();
    if c.eat("all") {
        return Ok(Utility::ShowAll);
    }
    if c.eat_all(&["time", "zone"]) {
        return Ok(Utility::Show("TimeZone".into()));
    }
    if c.eat_all(&["transaction", "isolation", "level"]) {
        return Ok(Utility::Show("transaction_isolation".into()));
    }
    if c.eat_all(&["session", "authorization"]) {
        return Ok(Utility::Show("session_authorization".into()));
    }
    Ok(Utility::Show(setting_name(c)?))
}

fn reset(c: &mut TokenCursor<'_>) -> Result<Utility> {
    c.next();
    if c.eat("all") {
        return Ok(Utility::ResetAll);
    }
    if c.eat_all(&["time", "zone"]) {
        return Ok(Utility::Reset("TimeZone".into()));
    }
    if c.eat("role") || c.eat_all(&["session", "authorization"]) {
        return Ok(Utility::Reset("application_name".into()));
    }
    Ok(Utility::Reset(setting_name(c)?))
}

fn discard(c: &mut TokenCursor<'_>) -> Result<Utility> {
    c.next();
    let all = c.eat("all");
    let plans = !all && c.eat("plans");
    let sequences = !all && !plans && c.eat("sequences");
    if !(all || plans || sequences || c.eat("temp") || c.eat("temporary")) {
        return Err(near(c.peek(), c.text()));
    }
    Ok(Utility::Discard { all, plans, sequences })
}

fn prepare(c: &mut TokenCursor<'_>) -> Result<Utility> {
    c.next();
    if c.word_at(0, "transaction") {
        return Err(SqlError::unsupported("PREPARE TRANSACTION"));
    }
    let name = c.name()?;
    let mut types = Vec::new();
    if c.eat_token(&Token::LParen) {
        let inside = c.inside_parentheses()?;
        let mut parser = parser(inside);
        loop {
            types.push(parser.parse_data_type().map_err(|e| reader::explain(e, c.text()))?);
            if !parser.consume_token(&Token::Comma) {
                break;
            }
        }
    }
    c.expect("as")?;
    let statement = Box::new(parse_statement(&c.rest(), c.text())?);
    Ok(Utility::Prepare { name, types, statement })
}

fn execute(c: &mut TokenCursor<'_>) -> Result<Utility> {
    c.next();
    let name = c.name()?;
    let mut args = Vec::new();
    if c.eat_token(&Token::LParen) {
        let inside = c.inside_parentheses()?;
        if !inside.is_empty() {
            let mut parser = parser(inside);
            args = parser
                .parse_comma_separated(sqlparser::parser::Parser::parse_expr)
                .map_err(|e| reader::explain(e, c.text()))?;
        }
    }
    Ok(Utility::Execute { name, args })
}

fn truncate(c: &mut TokenCursor<'_>) -> Result<Utility> {
    c.next();
    c.eat("table");
    let mut tables = Vec::new();
    loop {
        c.eat("only");
        tables.push(c.object()?);
        c.eat_token(&Token::Mul);
        if !c.eat_token(&Token::Comma) {
            break;
        }
    }
    let restart = c.eat_all(&["restart", "identity"]);
    c.eat_all(&["continue", "identity"]);
    let _ = c.eat("cascade") || c.eat("restrict");
    Ok(Utility::Truncate { tables, restart })
}

fn create_sequence(c: &mut TokenCursor<'_>) -> Result<Utility> {
    c.eat_all(&["create", "sequence"]);
    let if_not_exists = c.eat_all(&["if", "not", "exists"]);
    let name = c.object()?;
    let mut options = SequenceOptions::default();
    while !c.at_end() {
        if c.eat("as") {
            c.name()?;
        } else if c.eat("increment") {
            c.eat("by");
            options.increment = Some(whole_number(c)?);
        } else if c.eat("start") {
            c.eat("with");
            options.start = Some(whole_number(c)?);
        } else if c.eat("minvalue") {
            options.min = Some(whole_number(c)?);
        } else if c.eat("maxvalue") {
            options.max = Some(whole_number(c)?);
        } else if c.eat("cache") {
            whole_number(c)?;
        } else if c.eat("cycle") {
            options.cycle = true;
        } else if c.eat_all(&["owned", "by", "none"])
            || c.eat_all(&["no", "minvalue"])
            || c.eat_all(&["no", "maxvalue"])
            || c.eat_all(&["no", "cycle"])
        {
        } else {
            return Err(near(c.peek(), c.text()));
        }
    }
    Ok(Utility::CreateSequence {
        name,
        if_not_exists,
        options,
    })
}

fn whole_number(c: &mut TokenCursor<'_>) -> Result<i64> {
    let negative = c.eat_token(&Token::Minus);
    let token = c.next();
    let Token::Number(digits, _) = &token.token else {
        return Err(near(&token, c.text()));
    };
    let sign = if negative { "-" } else { "" };
    format!("{sign}{digits}").parse().map_err(|_| near(&token, c.text()))
}

fn explain(c: &mut TokenCursor<'_>) -> Result<Statement> {
    c.next();
    let mut options = ExplainOptions::default();
    let is_query = match c.peek_at(1) {
        Token::Word(w) => ["select", "with", "values"].contains(&w.value.to_ascii_lowercase().as_str()),
        _ => false,
    };
    if c.peek().token == Token::LParen && !is_query {
        c.next();
        let inside = c.inside_parentheses()?;
        for option in inside.split(|t| t.token == Token::Comma) {
            explain_option(option, &mut options)?;
        }
    } else {
        options.analyze = c.eat("analyze");
        c.eat("verbose");
    }
    let inner = Box::new(parse_statement(&c.rest(), c.text())?);
    Ok(Statement::Explain { options, inner })
}

/// One option in parentheses: a name, and a value that may be left out.
fn explain_option(option: &[TokenWithSpan], options: &mut ExplainOptions) -> Result<()> {
    let words: Vec<String> = option
        .iter()
        .filter(|t| !matches!(t.token, Token::Whitespace(_)))
        .map(|t| t.token.to_string().to_ascii_lowercase())
        .collect();
    let [name, value @ ..] = words.as_slice() else {
        return Err(SqlError::new(
            code::SYNTAX_ERROR,
            "syntax error in the options of EXPLAIN",
        ));
    };
    let value = value.first().map(|v| v.trim_matches('\''));
    let is_on = || match value {
        None | Some("on" | "true" | "1") => Ok(true),
        Some("off" | "false" | "0") => Ok(false),
        Some(_) => {
            let text = format!("{name} requires a Boolean value");
            Err(SqlError::new(code::SYNTAX_ERROR, text))
        }
    };
    match name.as_str() {
        "analyze" => options.analyze = is_on()?,
        "memory" => options.memory = is_on()?,
        "wal" => options.wal = is_on()?,
        "timing" => options.timing = is_on()?,
        "costs" => options.costs = is_on()?,
        // They have nothing to say of these plans beyond what is shown.
        "verbose" | "settings" | "buffers" | "summary" => _ = is_on()?,
        "format" => match value {
            Some("text") => options.json = false,
            Some("json") => options.json = true,
            Some(format @ ("xml" | "yaml")) => {
                return Err(SqlError::unsupported(format_args!("EXPLAIN in the format {format}")));
            }
            other => {
                let text = format!(
                    "unrecognized value for EXPLAIN option \"format\": \"{}\"",
                    other.unwrap_or("")
                );
                return Err(SqlError::new(code::INVALID_ARGUMENT, text));
            }
        },
        other => {
            let text = format!("unrecognized EXPLAIN option \"{other}\"");
            return Err(SqlError::new(code::SYNTAX_ERROR, text));
        }
    }
    Ok(())
}

fn copy(c: &mut TokenCursor<'_>) -> Result<Copy> {
    c.next();
    let source = if c.eat_token(&Token::LParen) {
        match parse_statement(&c.inside_parentheses()?, c.text())? {
            Statement::Query(query) => CopySource::Query(query),
            _ => return Err(SqlError::unsupported("COPY of this statement")),
        }
    } else {
        CopySource::Table(c.object()?, c.name_list()?)
    };
    let from = c.eat("from");
    if !from {
        c.expect("to")?;
    }
    if from && matches!(source, CopySource::Query(_)) {
        return Err(near(c.peek(), c.text()));
    }
    if !c.eat(if from { "stdin" } else { "stdout" }) {
        return Err(SqlError::unsupported("COPY with a file or program")
            .with_hint("Use COPY FROM STDIN, COPY TO STDOUT or psql's \\copy."));
    }
    let options = copy_options(c)?;
    c.finish()?;
    Ok(Copy {
        source,
        from,
        format: options.settle()?,
    })
}

#[derive(Default)]
struct Options {
    csv: bool,
    delimiter: Option<String>,
    null: Option<String>,
    header: bool,
    header_match: bool,
    quote: Option<String>,
    escape: Option<String>,
    force_quote: Option<Vec<String>>,
}

fn copy_options(c: &mut TokenCursor<'_>) -> Result<Options> {
    let mut options = Options {
        force_quote: Some(Vec::new()),
        ..Options::default()
    };
    c.eat("with");
    if !c.eat_token(&Token::LParen) {
        while !c.at_end() {
            legacy_option(c, &mut options)?;
        }
        return Ok(options);
    }
    loop {
        let name = c.name()?;
        match name.as_str() {
            "format" => set_format(c, &mut options)?,
            "freeze" => drop(boolean(c)?),
            "delimiter" => options.delimiter = Some(c.string()?),
            "null" => options.null = Some(c.string()?),
            "header" if c.eat("match") => (options.header, options.header_match) = (true, true),
            "header" => options.header = boolean(c)?,
            "quote" => options.quote = Some(c.string()?),
            "escape" => options.escape = Some(c.string()?),
            "encoding" => check_encoding(&c.string()?)?,
            "force_quote" => options.force_quote = force_list(c)?,
            "force_not_null" | "force_null" => {
                return Err(SqlError::unsupported(format!("COPY option {}", name.to_uppercase())));
            }
            _ => {
                return Err(SqlError::new(
                    code::SYNTAX_ERROR,
                    format!("option \"{name}\" not recognized"),
                ));
            }
        }
        if !c.eat_token(&Token::Comma) {
            break;
        }
    }
    c.expect_token(&Token::RParen)?;
    Ok(options)
}

fn legacy_option(c: &mut TokenCursor<'_>, options: &mut Options) -> Result<()> {
    let name = c.name()?;
    match name.as_str() {
        "csv" => options.csv = true,
        "binary" => return Err(SqlError::unsupported("COPY in binary format")),
        "header" => options.header = true,
        "freeze" => {}
        "delimiter" | "delimiters" | "null" | "quote" | "escape" => {
            c.eat("as");
            let value = Some(c.string()?);
            match name.as_str() {
                "null" => options.null = value,
                "quote" => options.quote = value,
                "escape" => options.escape = value,
                _ => options.delimiter = value,
            }
        }
        "encoding" => check_encoding(&c.string()?)?,
        "force" if c.eat("quote") => options.force_quote = force_list(c)?,
        _ => {
            return Err(SqlError::new(
                code::SYNTAX_ERROR,
                format!("syntax error at or near \"{name}\""),
            ));
        }
    }
    Ok(())
}

fn force_list(c: &mut TokenCursor<'_>) -> Result<Option<Vec<String>>> {
    if c.eat_token(&Token::Mul) {
        return Ok(None);
    }
    if c.peek().token == Token::LParen {
        return Ok(Some(c.name_list()?.iter().map(fold).collect()));
    }
    let mut names = vec![c.name()?];
    while c.eat_token(&Token::Comma) {
        names.push(c.name()?);
    }
    Ok(Some(names))
}

fn set_format(c: &mut TokenCursor<'_>, options: &mut Options) -> Result<()> {
    let format = if matches!(c.peek().token, Token::Word(_)) {
        c.name()?
    } else {
        c.string()?
    };
    match format.as_str() {
        "csv" => options.csv = true,
        "text" => options.csv = false,
        "binary" => return Err(SqlError::unsupported("COPY in binary format")),
        other => {
            return Err(SqlError::new(
                code::INVALID_ARGUMENT,
                format!("COPY format \"{other}\" not recognized"),
            ));
        }
    }
    Ok(())
}

fn boolean(c: &mut TokenCursor<'_>) -> Result<bool> {
    if matches!(c.peek().token, Token::Comma | Token::RParen) {
        return Ok(true);
    }
    let value = match c.next().token {
        Token::Word(w) => w.value,
        Token::SingleQuotedString(s) => s,
        Token::Number(n, _) => n,
        other => other.to_string(),
    };
    match value.to_ascii_lowercase().as_str() {
        "on" | "true" | "1" => Ok(true),
        "off" | "false" | "0" => Ok(false),
        _ => Err(SqlError::new(code::SYNTAX_ERROR, "option requires a Boolean value")),
    }
}

fn check_encoding(name: &str) -> Result<()> {
    if ["utf8", "utf-8", "unicode"].contains(&name.to_ascii_lowercase().as_str()) {
        return Ok(());
    }
    Err(SqlError::unsupported(format!("encoding \"{name}\"")))
}

impl Options {
    fn settle(self) -> Result<CopyFormat> {
        let single = |value: Option<String>, default: u8, what: &str| match value.as_deref().map(str::as_bytes) {
            None => Ok(default),
            Some([one]) if *one != b'\n' && *one != b'\r' => Ok(*one),
            Some(_) => Err(SqlError::new(
                code::FEATURE_NOT_SUPPORTED,
                format!("COPY {what} must be a single one-byte character"),
            )),
        };
        let csv_only = self.quote.is_some() || self.escape.is_some();
        if csv_only && !self.csv {
            return Err(SqlError::new(
                code::FEATURE_NOT_SUPPORTED,
                "COPY quote and escape available only in CSV mode",
            ));
        }
        let delimiter = single(self.delimiter, if self.csv { b',' } else { b'\t' }, "delimiter")?;
        let quote = single(self.quote, b'"', "quote")?;
        let escape = single(self.escape, quote, "escape")?;
        if !self.csv
            && (delimiter.is_ascii_lowercase() || delimiter.is_ascii_digit() || matches!(delimiter, b'.' | b'\\'))
        {
            return Err(SqlError::new(
                code::INVALID_ARGUMENT,
                format!("COPY delimiter cannot be \"{}\"", delimiter as char),
            ));
        }
        if self.csv && delimiter == quote {
            return Err(SqlError::new(
                code::INVALID_ARGUMENT,
                "COPY delimiter and quote must be different",
            ));
        }
        let null = self
            .null
            .unwrap_or_else(|| if self.csv { String::new() } else { "\\N".to_string() });
        Ok(CopyFormat {
            csv: self.csv,
            delimiter,
            null,
            header: self.header,
            header_match: self.header_match,
            quote,
            escape,
            force_quote: self.force_quote,
        })
    }
}
