//! SQL texts with what they must answer, in `tests/sql/*.test` (without analytics) and `tests/shapes/*.test` (with it).
//! Each file runs on a database of its own, by the simple and by the extended protocol.
//!
//! ```text
//! statement ok                      the next lines, up to an empty one, must succeed
//! statement count 2                 ... and change so many rows
//! statement error 23505 text        ... must fail with this SQLSTATE; message, detail or context contains the text
//! query                             ... must give the rows that follow ----, columns between bars
//! query sort                        ... in any order
//! copy                              ... is COPY FROM STDIN, fed with the lines that follow ----
//! session NAME                      what follows runs in that session
//! ```

use crate::support::{Answer, Database, extended, run_simple};
use cenote_sql::{Session, SqlError};
use std::collections::HashMap;
use std::path::Path;

struct Record {
    line: usize,
    head: String,
    sql: String,
    expected: Vec<String>,
}

fn records(text: &str) -> Vec<Record> {
    let mut out = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, head)) = lines.next() {
        let head = head.trim();
        if head.is_empty() || head.starts_with('#') {
            continue;
        }
        let mut record = Record {
            line: number + 1,
            head: head.to_string(),
            sql: String::new(),
            expected: Vec::new(),
        };
        let mut answers = false;
        for (_, line) in lines.by_ref().take_while(|(_, l)| !l.is_empty()) {
            match (line, answers) {
                ("----", false) => answers = true,
                (line, true) => record.expected.push(line.to_string()),
                (line, false) => {
                    record.sql.push_str(line);
                    record.sql.push('\n');
                }
            }
        }
        out.push(record);
    }
    out
}

struct Runner<'a> {
    database: &'a Database,
    sessions: HashMap<String, Session>,
    current: String,
    use_extended: bool,
}

impl Runner<'_> {
    fn run(&mut self, sql: &str, input: Vec<Vec<u8>>) -> Result<Answer, SqlError> {
        let session = self
            .sessions
            .entry(self.current.clone())
            .or_insert_with(|| self.database.session());
        let one = sql.trim_end().trim_end_matches(';');
        if self.use_extended && input.is_empty() && !one.contains(';') {
            return extended(session, one, &[]);
        }
        let mut answer = Answer {
            copy_input: input,
            ..Answer::default()
        };
        run_simple(session, sql, &mut answer)?;
        Ok(answer)
    }

    fn check(&mut self, record: &Record) -> Result<(), String> {
        let words: Vec<&str> = record.head.splitn(4, ' ').collect();
        match words.as_slice() {
            ["session", name] => self.current = name.to_string(),
            ["statement", "ok"] => drop(self.run(&record.sql, Vec::new()).map_err(|e| e.to_string())?),
            ["statement", "count", n] => {
                let answer = self.run(&record.sql, Vec::new()).map_err(|e| e.to_string())?;
                let tag = answer.tags.last().cloned().unwrap_or_default();
                if tag.rsplit(' ').next() != Some(n) {
                    return Err(format!("tag {tag}, wanted a count of {n}"));
                }
            }
            ["statement", "error", code, rest @ ..] => match self.run(&record.sql, Vec::new()) {
                Ok(answer) => return Err(format!("succeeded with {:?}", answer.lines())),
                Err(e) => {
                    let said = format!(
                        "{e} {} {}",
                        e.context().unwrap_or(""),
                        e.position().map_or(String::new(), |p| format!("at {p}"))
                    );
                    let text = rest.first().unwrap_or(&"");
                    if e.code() != *code || !said.contains(text) {
                        return Err(format!("failed with {said}"));
                    }
                }
            },
            ["query", order @ ..] => {
                let answer = self.run(&record.sql, Vec::new()).map_err(|e| e.to_string())?;
                let (mut got, mut wanted) = (answer.lines(), record.expected.clone());
                if order.first() == Some(&"sort") {
                    got.sort();
                    wanted.sort();
                }
                if got != wanted {
                    return Err(format!("got\n{}\nwanted\n{}", got.join("\n"), wanted.join("\n")));
                }
            }
            ["copyout"] => {
                let answer = self.run(&record.sql, Vec::new()).map_err(|e| e.to_string())?;
                let got: Vec<&str> = answer.copied.lines().collect();
                if got != record.expected {
                    return Err(format!("got\n{}", got.join("\n")));
                }
            }
            ["copy", rest @ ..] => {
                // Messages that cut lines at odd places.
                let data = record
                    .expected
                    .iter()
                    .map(|l| format!("{l}\n"))
                    .collect::<String>()
                    .into_bytes();
                let input = data.chunks(7).map(<[u8]>::to_vec).collect();
                match (self.run(&record.sql, input), rest) {
                    (Ok(_), []) => {}
                    (Err(e), ["error", code, ..]) if e.code() == *code => {
                        let said = format!("{e} {}", e.context().unwrap_or(""));
                        if !said.contains(rest.get(2).unwrap_or(&"")) {
                            return Err(said);
                        }
                    }
                    (Err(e), _) => return Err(e.to_string()),
                    (Ok(_), _) => return Err("succeeded".into()),
                }
            }
            _ => return Err(format!("what is {:?}?", record.head)),
        }
        Ok(())
    }
}

fn run_file(database: &Database, path: &Path, use_extended: bool) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("a test file");
    let mut runner = Runner {
        database,
        sessions: HashMap::new(),
        current: "main".into(),
        use_extended,
    };
    let mut failures = Vec::new();
    for record in records(&text) {
        if let Err(why) = runner.check(&record) {
            let protocol = if use_extended { "extended" } else { "simple" };
            failures.push(format!(
                "{}:{} ({protocol}): {}{why}",
                path.display(),
                record.line,
                record.sql
            ));
        }
    }
    failures
}

#[test]
fn texts_answer_as_written() {
    run_folder("tests/sql", Database::new);
}

#[cfg(feature = "analytics")]
#[test]
fn texts_of_any_shape_answer_as_written() {
    run_folder("tests/shapes", Database::of_any_shape);
}

fn run_folder(folder: &str, database: impl Fn() -> Database) {
    // Of this run's checkout: a build directory may be shared with others.
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").into());
    let directory = Path::new(&here).join(folder);
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .expect("the test directory")
        .map(|e| e.expect("an entry").path())
        .collect();
    files.sort();
    let only = std::env::var("SQL_TEST").unwrap_or_default();
    let mut failures = Vec::new();
    for path in files.iter().filter(|p| p.to_string_lossy().contains(&only)) {
        failures.extend(run_file(&database(), path, false));
        failures.extend(run_file(&database(), path, true));
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n\n{}",
        failures.len(),
        failures.join("\n\n")
    );
}
