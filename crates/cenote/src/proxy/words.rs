//! What a statement's first words say: enough to choose a server, and to know what its loss means.
//!
//! Nothing is parsed beyond that. What looks like a read and is none is refused by a reader, and goes to the writer.

/// What a text begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// SELECT, VALUES, TABLE, SHOW.
    Read,
    /// WITH, EXPLAIN: a read in most cases.
    PerhapsRead,
    /// BEGIN or START TRANSACTION.
    Begin {
        /// The block is READ ONLY from there.
        read_only: bool,
    },
    /// COMMIT or END.
    Commit,
    /// ROLLBACK or ABORT, not to a savepoint.
    Rollback,
    /// DEALLOCATE.
    Deallocate,
    /// Nothing but space, comments and semicolons.
    Empty,
    /// Several statements in one text, and what ends a block and begins another.
    Several,
    /// Anything else.
    Other,
}

impl Verb {
    /// Whether a reader may answer it.
    pub fn is_for_readers(self) -> bool {
        matches!(self, Verb::Read | Verb::PerhapsRead | Verb::Begin { read_only: true })
    }

    /// Whether it may be carried out twice.
    pub fn is_repeatable(self) -> bool {
        matches!(self, Verb::Read | Verb::Begin { .. } | Verb::Empty)
    }
}

/// The verb of a text.
pub fn verb(text: &[u8]) -> Verb {
    let mut words = Words(text);
    let Some(first) = words.next_word() else {
        return match words.is_over() {
            true => Verb::Empty,
            // A query in parentheses.
            false if words.0.first() == Some(&b'(') && !is_several(text) => Verb::PerhapsRead,
            false => Verb::Other,
        };
    };
    let is = |word: &str| first.eq_ignore_ascii_case(word.as_bytes());
    let verb = if ["select", "values", "table", "show"].iter().any(|word| is(word)) {
        Verb::Read
    } else if is("with") || is("explain") {
        Verb::PerhapsRead
    } else if is("begin") || is("start") {
        Verb::Begin {
            read_only: words.are_read_only(),
        }
    } else if is("commit") || is("end") {
        Verb::Commit
    } else if is("rollback") || is("abort") {
        if Words(words.0).name_a_savepoint() {
            Verb::Other
        } else {
            Verb::Rollback
        }
    } else if is("deallocate") {
        Verb::Deallocate
    } else {
        Verb::Other
    };
    let chains = matches!(verb, Verb::Commit | Verb::Rollback) && words.chain();
    match is_several(text) || chains {
        true => Verb::Several,
        false => verb,
    }
}

/// The name in `DEALLOCATE [PREPARE] name`; None: ALL, or no plain name.
pub fn deallocated(text: &[u8]) -> Option<Vec<u8>> {
    let mut words = Words(text);
    words.next_word()?;
    let mut name = words.next_name()?;
    if name.eq_ignore_ascii_case(b"prepare") {
        name = words.next_name()?;
    }
    (!name.eq_ignore_ascii_case(b"all") && words.is_over()).then_some(name)
}

/// Whether a text is exactly these words, whatever its spaces and case.
pub fn is_words(text: &[u8], expected: &str) -> bool {
    let text = String::from_utf8_lossy(text).to_ascii_lowercase();
    let plain = text.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
    plain.split_whitespace().eq(expected.split_whitespace())
}

struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn skip(&mut self) {
        loop {
            match self.0 {
                [c, rest @ ..] if c.is_ascii_whitespace() => self.0 = rest,
                [b'-', b'-', ..] | [b'/', b'*', ..] => self.0 = &self.0[comment(self.0)..],
                _ => return,
            }
        }
    }

    fn next_word(&mut self) -> Option<&'a [u8]> {
        loop {
            self.skip();
            match self.0 {
                [b';', rest @ ..] => self.0 = rest,
                _ => break,
            }
        }
        let len = self
            .0
            .iter()
            .take_while(|c| c.is_ascii_alphanumeric() || **c == b'_')
            .count();
        let (word, rest) = self.0.split_at(len);
        self.0 = rest;
        (len > 0).then_some(word)
    }

    /// A name as the parser folds it.
    fn next_name(&mut self) -> Option<Vec<u8>> {
        self.skip();
        if self.0.first() != Some(&b'"') {
            return self.next_word().map(<[u8]>::to_ascii_lowercase);
        }
        let len = quoted(self.0, b'"', false);
        let (name, rest) = self.0.split_at(len);
        self.0 = rest;
        let inner = name.get(1..name.len().checked_sub(1)?)?;
        (!inner.contains(&b'"')).then(|| inner.to_vec())
    }

    fn is_over(&mut self) -> bool {
        loop {
            self.skip();
            match self.0 {
                [b';', rest @ ..] => self.0 = rest,
                rest => return rest.is_empty(),
            }
        }
    }

    /// The modes behind BEGIN: `READ ONLY` is the last that says something of access.
    fn are_read_only(&mut self) -> bool {
        let (mut before, mut read_only): (&[u8], bool) = (b"", false);
        loop {
            self.skip();
            match self.0 {
                [b',', rest @ ..] => self.0 = rest,
                [] | [b';', ..] => return read_only,
                _ => match self.next_word() {
                    None => return false,
                    Some(word) => {
                        let reads = before.eq_ignore_ascii_case(b"read");
                        if reads && word.eq_ignore_ascii_case(b"only") {
                            read_only = true;
                        } else if reads && word.eq_ignore_ascii_case(b"write") {
                            read_only = false;
                        }
                        before = word;
                    }
                },
            }
        }
    }

    /// `... AND CHAIN`.
    fn chain(&mut self) -> bool {
        let mut before: &[u8] = b"";
        loop {
            self.skip();
            match self.next_word() {
                Some(word) if word.eq_ignore_ascii_case(b"chain") => return !before.eq_ignore_ascii_case(b"no"),
                Some(word) => before = word,
                None => return false,
            }
        }
    }

    /// `ROLLBACK [WORK | TRANSACTION] TO`, and two-phase commands.
    fn name_a_savepoint(&mut self) -> bool {
        loop {
            self.skip();
            match self.0 {
                [] | [b';', ..] => return false,
                _ => match self.next_word() {
                    Some(word) if [&b"to"[..], b"prepared"].iter().any(|w| word.eq_ignore_ascii_case(w)) => {
                        return true;
                    }
                    Some(_) => {}
                    None => return true,
                },
            }
        }
    }
}

/// Whether something stands behind a semicolon.
fn is_several(text: &[u8]) -> bool {
    let (mut at, mut begun, mut ended) = (0, false, false);
    while at < text.len() {
        let rest = &text[at..];
        at += match rest {
            [c, ..] if c.is_ascii_whitespace() => 1,
            [b'-', b'-', ..] | [b'/', b'*', ..] => comment(rest),
            // One that nothing stands in front of ends nothing.
            [b';', ..] => {
                ended = begun;
                1
            }
            _ if ended => return true,
            [first, ..] => {
                begun = true;
                match first {
                    b'\'' => quoted(rest, b'\'', at > 0 && text[at - 1].eq_ignore_ascii_case(&b'e')),
                    b'"' => quoted(rest, b'"', false),
                    b'$' => dollar_quoted(rest),
                    _ => 1,
                }
            }
            [] => return false,
        };
    }
    false
}

/// Bytes of the comment that begins here. Those of `/* */` nest.
fn comment(text: &[u8]) -> usize {
    if text.starts_with(b"--") {
        return text.iter().position(|c| *c == b'\n').map_or(text.len(), |end| end + 1);
    }
    let (mut at, mut depth) = (0, 0);
    while at < text.len() {
        match text[at..] {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    text.len()
}

/// Bytes of the quoted text that begins here.
fn quoted(text: &[u8], quote: u8, escapes: bool) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' if escapes => at += 2,
            c if c == quote && text.get(at + 1) == Some(&quote) => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// Bytes of `$tag$...$tag$`, or of the `$` alone where it is a parameter.
fn dollar_quoted(text: &[u8]) -> usize {
    let tag = text[1..]
        .iter()
        .take_while(|c| c.is_ascii_alphanumeric() || **c == b'_' || **c >= 0x80)
        .count();
    let opened = tag + 2;
    if text.get(tag + 1) != Some(&b'$') || text[1].is_ascii_digit() {
        return 1;
    }
    let (mark, rest) = text.split_at(opened);
    let end = rest.windows(opened).position(|window| window == mark);
    end.map_or(text.len(), |end| opened + end + opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_found_behind_comments_and_spaces() {
        let begin = |read_only| Verb::Begin { read_only };
        let known = [
            ("select 1", Verb::Read),
            ("  /* a /* b */ c */ -- d\n SELECT 1;", Verb::Read),
            (";;select 1", Verb::Read),
            ("(select 1)", Verb::PerhapsRead),
            ("table t", Verb::Read),
            ("values (1)", Verb::Read),
            ("show all", Verb::Read),
            ("with a as (select 1) select * from a", Verb::PerhapsRead),
            ("explain select 1", Verb::PerhapsRead),
            ("selects", Verb::Other),
            ("insert into t values (1)", Verb::Other),
            ("select 1; delete from t", Verb::Several),
            (";select 1; insert into t values (1)", Verb::Several),
            (" ; /* a */ ; select 1 ; ", Verb::Read),
            ("commit and chain", Verb::Several),
            ("rollback work and no chain", Verb::Rollback),
            (
                "select ';' , \";\", $$;x$$, $a$ ; $$ $a$, e'\\';x' from t where n = $1;",
                Verb::Read,
            ),
            ("select 'it''s; x'; -- more", Verb::Read),
            ("begin", begin(false)),
            ("BEGIN READ ONLY", begin(true)),
            (
                "start transaction isolation level repeatable read, read only;",
                begin(true),
            ),
            ("begin read only; select 1", Verb::Several),
            ("begin read write", begin(false)),
            ("commit work", Verb::Commit),
            ("end", Verb::Commit),
            ("rollback", Verb::Rollback),
            ("ABORT WORK;", Verb::Rollback),
            ("rollback to savepoint a", Verb::Other),
            ("rollback prepared 'x'", Verb::Other),
            ("deallocate a", Verb::Deallocate),
            ("", Verb::Empty),
            (" ; -- x", Verb::Empty),
        ];
        for (text, expected) in known {
            assert_eq!(verb(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn any_bytes_have_a_verb() {
        let parts: [&[u8]; 12] = [
            b"select",
            b"'",
            b"\"",
            b"$$",
            b"$a$",
            b";",
            b"/*",
            b"*/",
            b"--",
            b"\\",
            b"\xff\x00",
            b"\n",
        ];
        let mut seed = 1u64;
        for _ in 0..20_000 {
            let mut text = Vec::new();
            for _ in 0..seed % 9 {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                text.extend_from_slice(parts[(seed >> 33) as usize % parts.len()]);
            }
            seed = seed.wrapping_add(1);
            verb(&text);
            deallocated(&text);
        }
    }

    #[test]
    fn names_of_deallocated_statements() {
        assert_eq!(deallocated(b"DEALLOCATE Foo;").as_deref(), Some(&b"foo"[..]));
        assert_eq!(deallocated(b"deallocate prepare \"Foo\"").as_deref(), Some(&b"Foo"[..]));
        assert_eq!(deallocated(b"deallocate all"), None);
        assert_eq!(deallocated(b"deallocate a b"), None);
        assert!(is_words(b" SHOW  cenote.proxy ; ", "show cenote.proxy"));
    }
}
