//! A place in a statement's tokens, white space left out.

use crate::error::{Result, SqlError, code};
use crate::names::{Places, fold};
use sqlparser::ast::{Ident, ObjectName};
use sqlparser::tokenizer::{Span, Token, TokenWithSpan};

/// Reads a statement's tokens one by one.
pub struct TokenCursor<'a> {
    tokens: Vec<&'a TokenWithSpan>,
    at: usize,
    text: &'a str,
    end: TokenWithSpan,
}

impl<'a> TokenCursor<'a> {
    /// At the start.
    pub fn new(tokens: &'a [TokenWithSpan], text: &'a str) -> TokenCursor<'a> {
        let solid = |t: &&TokenWithSpan| !matches!(t.token, Token::Whitespace(_) | Token::EOF);
        let end = TokenWithSpan::new(Token::EOF, Span::empty());
        TokenCursor {
            tokens: tokens.iter().filter(solid).collect(),
            at: 0,
            text,
            end,
        }
    }

    /// The statement's text.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// The token here, without moving.
    pub fn peek(&self) -> &TokenWithSpan {
        self.tokens.get(self.at).copied().unwrap_or(&self.end)
    }

    /// The token `offset` tokens after the next one.
    pub fn peek_at(&self, offset: usize) -> &Token {
        self.tokens.get(self.at + offset).map_or(&Token::EOF, |t| &t.token)
    }

    /// Takes the token here.
    pub fn next(&mut self) -> TokenWithSpan {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    /// Whether the token `offset` tokens after the next one is this word, unquoted.
    pub fn word_at(&self, offset: usize, word: &str) -> bool {
        matches!(self.peek_at(offset), Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word))
    }

    /// Takes a word if it stands here.
    pub fn eat(&mut self, word: &str) -> bool {
        let found = self.word_at(0, word);
        self.at += usize::from(found);
        found
    }

    /// Takes several words if all stand here.
    pub fn eat_all(&mut self, words: &[&str]) -> bool {
        let found = words.iter().enumerate().all(|(i, w)| self.word_at(i, w));
        if found {
            self.at += words.len();
        }
        found
    }

    /// Takes a token if it stands here.
    pub fn eat_token(&mut self, token: &Token) -> bool {
        let found = self.peek().token == *token;
        self.at += usize::from(found);
        found
    }

    /// Takes a word that must stand here.
    ///
    /// # Errors
    /// 42601: another token stands here.
    pub fn expect(&mut self, word: &str) -> Result<()> {
        if self.eat(word) {
            Ok(())
        } else {
            Err(near(self.peek(), self.text))
        }
    }

    /// Takes a token that must stand here.
    ///
    /// # Errors
    /// 42601: another token stands here.
    pub fn expect_token(&mut self, token: &Token) -> Result<()> {
        if self.eat_token(token) {
            Ok(())
        } else {
            Err(near(self.peek(), self.text))
        }
    }

    /// A name, folded.
    ///
    /// # Errors
    /// 42601: no identifier stands here.
    pub fn name(&mut self) -> Result<String> {
        self.ident().map(|i| fold(&i))
    }

    /// An identifier.
    ///
    /// # Errors
    /// 42601: no identifier stands here.
    pub fn ident(&mut self) -> Result<Ident> {
        let token = self.next();
        match &token.token {
            Token::Word(word) => Ok(Ident {
                value: word.value.clone(),
                quote_style: word.quote_style,
                span: token.span,
            }),
            _ => {
                self.at -= 1;
                Err(near(self.peek(), self.text))
            }
        }
    }

    /// A dotted name.
    ///
    /// # Errors
    /// 42601: no dotted name stands here.
    pub fn object(&mut self) -> Result<ObjectName> {
        let mut parts = vec![self.ident()?];
        while self.eat_token(&Token::Period) {
            parts.push(self.ident()?);
        }
        Ok(ObjectName::from(parts))
    }

    /// Names in parentheses; empty where none stand here.
    ///
    /// # Errors
    /// 42601: the list is not one of identifiers, or not closed.
    pub fn name_list(&mut self) -> Result<Vec<Ident>> {
        let mut names = Vec::new();
        if !self.eat_token(&Token::LParen) {
            return Ok(names);
        }
        loop {
            names.push(self.ident()?);
            if !self.eat_token(&Token::Comma) {
                break;
            }
        }
        self.expect_token(&Token::RParen)?;
        Ok(names)
    }

    /// A string in single quotes.
    ///
    /// # Errors
    /// 42601: no string stands here.
    pub fn string(&mut self) -> Result<String> {
        match self.next().token {
            Token::SingleQuotedString(s) | Token::EscapedStringLiteral(s) => Ok(s),
            _ => {
                self.at -= 1;
                Err(near(self.peek(), self.text))
            }
        }
    }

    /// The tokens from here to the matching parenthesis, which is passed; one was opened before.
    ///
    /// # Errors
    /// 42601: the parenthesis is not closed.
    pub fn inside_parentheses(&mut self) -> Result<Vec<TokenWithSpan>> {
        let mut depth = 1;
        let mut inside = Vec::new();
        loop {
            let token = self.next();
            match token.token {
                Token::LParen => depth += 1,
                Token::RParen => depth -= 1,
                Token::EOF => return Err(near(&token, self.text)),
                _ => {}
            }
            if depth == 0 {
                return Ok(inside);
            }
            inside.push(token);
        }
    }

    /// The tokens that remain.
    pub fn rest(&mut self) -> Vec<TokenWithSpan> {
        let rest = self.tokens[self.at.min(self.tokens.len())..]
            .iter()
            .map(|t| (*t).clone())
            .collect();
        self.at = self.tokens.len();
        rest
    }

    /// Whether all is read.
    pub fn at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    /// Fails if something is left.
    ///
    /// # Errors
    /// 42601: a token is left.
    pub fn finish(&self) -> Result<()> {
        if self.at_end() {
            Ok(())
        } else {
            Err(near(self.peek(), self.text))
        }
    }
}

/// `syntax error at or near "x"`, at its place.
pub fn near(token: &TokenWithSpan, text: &str) -> SqlError {
    match &token.token {
        Token::EOF => {
            SqlError::new(code::SYNTAX_ERROR, "syntax error at end of input").at(text.chars().count() as u32 + 1)
        }
        other => SqlError::new(code::SYNTAX_ERROR, format!("syntax error at or near \"{other}\""))
            .at(Places(text).of(token.span)),
    }
}
