//! The grant table's records in etcd: reading all of them, and writing what a change has changed.
//!
//! ```text
//!  PREFIX/record/meta      in each change: so its revision is the table's
//!  PREFIX/record/grant/7   and so on: a checksum, and JSON
//!  PREFIX/staged/0         what of a change is too long for one transaction, in pieces
//!  PREFIX/pending          how many of these pieces are the change that `meta` is of; from when it was decided until
//!                          all records are as it says
//!  PREFIX/book             the whole table, as former programs had it; later a line that tells them so
//! ```
//!
//! A change of few records is one transaction. A longer one is put aside first, piece by piece; then one transaction
//! writes `pending` and `meta`, if the pieces are as they were put, and decides it; then the records are written, and what was put aside goes. Who reads the
//! table finds one of the two: no `pending`, and then what was put aside counts for nothing; or all of the change, which
//! is carried out before anything else is.

use super::api::{self, Outcome};
use super::{Hold, made_in};
use crate::store::{Change, RecordSet, Stored, apply, seal, unseal};
use cenote_base::crc::crc32c;
use cenote_base::{Error, Result};
use serde_json::{Value, json};

/// Operations of a transaction: etcd takes 128 unless it is told otherwise.
const OPERATIONS_MAX: usize = 120;
/// Bytes of what a request carries: etcd takes 1.5 MiB unless it is told otherwise, and base64 makes 4 of 3.
const BYTES_MAX: usize = 700_000;
/// Bytes of the longest record, with its name.
const RECORD_MAX: usize = 100_000;
/// Keys that are read at once.
const PAGE: usize = 500;
pub(super) const FORMER: &str = "book";
const RECORDS: &str = "record/";
const META: &str = "meta";
const STAGED: &str = "staged/";
const PENDING: &str = "pending";
/// What a former program finds where it had the table.
const TOLD: &str = "cenote-pool 4 records\n";

/// The change that takes the table over from a former program leaves it a word.
fn is_former(value: &[u8]) -> bool {
    value != TOLD.as_bytes()
}

/// How much of a change goes into one request.
struct Pieces<'a> {
    left: std::iter::Peekable<std::collections::btree_map::Iter<'a, String, Option<String>>>,
}

impl Iterator for Pieces<'_> {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        let (mut piece, mut bytes) = (Change::new(), 0);
        while let Some((name, record)) = self.left.peek() {
            bytes += name.len() + record.as_ref().map_or(0, String::len) + 64;
            if !piece.is_empty() && (bytes > BYTES_MAX || piece.len() >= OPERATIONS_MAX) {
                break;
            }
            piece.insert((*name).clone(), (*record).clone());
            self.left.next();
        }
        (!piece.is_empty()).then_some(piece)
    }
}

fn pieces(change: &Change) -> Pieces<'_> {
    Pieces {
        left: change.iter().peekable(),
    }
}

impl Hold {
    // ---- questions ----

    fn put(&self, key: &str, value: &str) -> Value {
        json!({"request_put": {"key": self.keys.of(key), "value": super::base64::encode(value.as_bytes())}})
    }

    fn remove(&self, key: &str) -> Value {
        json!({"request_delete_range": {"key": self.keys.of(key)}})
    }

    fn remove_all(&self, prefix: &str) -> Value {
        let [key, end] = self.keys.range(prefix, "");
        json!({"request_delete_range": {"key": key, "range_end": end}})
    }

    fn get(&self, key: &str) -> Value {
        json!({"request_range": {"key": self.keys.of(key)}})
    }

    /// Does this if the leadership is not over and the table is of this revision.
    fn guarded(&self, revision: i64, what: Vec<Value>) -> Value {
        let meta = self.keys.of("record/meta");
        json!({
            "compare": [
                made_in(&self.keys.leader, self.created),
                {"key": meta, "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string()},
            ],
            "success": what,
            "failure": [super::get(&self.keys.leader), self.get("record/meta")],
        })
    }

    /// Looks, if the leadership is not over.
    pub(super) fn look(&self, what: Vec<Value>) -> Result<Outcome> {
        let question = json!({"compare": [made_in(&self.keys.leader, self.created)], "success": what});
        let (outcome, _) = self.ask(&question)?;
        match outcome.succeeded {
            true => Ok(outcome),
            false => {
                self.lose();
                Err(Error::Lost("this manager leads no more".into()))
            }
        }
    }

    // ---- reading ----

    /// All of the table, and its revision; 0: there is none.
    pub(super) fn read_table(&self) -> Result<(Option<Stored>, i64)> {
        let found = self.look(vec![self.get(FORMER), self.get("record/meta"), self.get(PENDING)])?;
        let former = found.found(0).map(api::KeyValue::value).transpose()?;
        let Some(meta) = found.found(1) else {
            return match former {
                Some(former) if !is_former(&former) => {
                    Err(Error::corrupt("the pool's grant table in etcd has no record \"meta\""))
                }
                former => Ok((former.map(Stored::Former), 0)),
            };
        };
        let revision = meta.mod_revision.0;
        let mut book = self.read_records()?;
        match found.found(2) {
            Some(pending) => self.complete(revision, &text(pending.value()?)?, &mut book)?,
            // Whoever put it aside did not decide it.
            None => _ = self.step(revision, vec![self.remove_all(STAGED)])?,
        }
        Ok((Some(Stored::Records(book)), revision))
    }

    fn read_records(&self) -> Result<RecordSet> {
        let mut book = RecordSet::new();
        for (name, sealed) in self.read_all(RECORDS)? {
            let record = unseal(&name, &sealed)?;
            book.insert(name, record);
        }
        Ok(book)
    }

    /// All keys that begin so, page by page; nobody else writes meanwhile.
    fn read_all(&self, prefix: &str) -> Result<Vec<(String, String)>> {
        let (mut all, mut from) = (Vec::new(), String::new());
        loop {
            let [key, end] = self.keys.range(prefix, &from);
            let page = json!({"request_range": {"key": key, "range_end": end, "limit": PAGE.to_string()}});
            let found = self.look(vec![page])?;
            let page = found.all(0);
            for found in page {
                all.push((self.keys.name(prefix, &found.key()?)?, text(found.value()?)?));
            }
            match all.last().filter(|_| page.len() == PAGE) {
                // The key right after it.
                Some((last, _)) => from = format!("{last}\0"),
                None => return Ok(all),
            }
        }
    }

    // ---- writing ----

    /// Writes a change to the table of a revision; its revision then.
    pub(super) fn write_change(&self, revision: i64, change: &Change) -> Result<i64> {
        let too_long = change
            .iter()
            .find(|(name, record)| name.len() + record.as_ref().map_or(0, String::len) > RECORD_MAX);
        if let Some((name, _)) = too_long {
            return Err(Error::Full(format!(
                "record \"{}\" of the pool's grant table would be longer than {RECORD_MAX} bytes",
                name.escape_debug()
            )));
        }
        let mut all = pieces(change);
        let (first, more) = (all.next().unwrap_or_default(), all.next());
        match more {
            None if first.len() < OPERATIONS_MAX => self.write_at_once(revision, &first),
            _ => self.write_in_steps(revision, change),
        }
    }

    fn operations(&self, change: &Change) -> Vec<Value> {
        let operation = |(name, record): (&String, &Option<String>)| match record {
            Some(record) => self.put(&format!("{RECORDS}{name}"), &seal(name, record)),
            None => self.remove(&format!("{RECORDS}{name}")),
        };
        change.iter().map(operation).collect()
    }

    fn write_at_once(&self, revision: i64, change: &Change) -> Result<i64> {
        let mut operations = self.operations(change);
        operations.extend((revision == 0).then(|| self.put(FORMER, TOLD)));
        self.change(revision, (Vec::new(), operations), change)
    }

    /// A transaction that writes `meta`, if all else that it asks for is so: the table's next revision.
    fn change(&self, revision: i64, (also, operations): (Vec<Value>, Vec<Value>), change: &Change) -> Result<i64> {
        let mut question = self.guarded(revision, operations);
        if let Some(compare) = question["compare"].as_array_mut() {
            compare.extend(also);
        }
        let (outcome, in_doubt) = self.ask(&question)?;
        let meta = change.get(META).and_then(Option::as_ref).map(|meta| seal(META, meta));
        match outcome.succeeded {
            true => Ok(outcome.header.revision.0),
            false => self.settle(&outcome, meta.filter(|_| in_doubt).as_deref().map(str::as_bytes)),
        }
    }

    /// A transaction that writes no `meta`, and may be done twice, and late: while the table's revision is this one.
    /// The revision of what it wrote.
    fn step(&self, revision: i64, operations: Vec<Value>) -> Result<i64> {
        let (outcome, _) = self.ask(&self.guarded(revision, operations))?;
        match outcome.succeeded {
            true => Ok(outcome.header.revision.0),
            false => self.settle(&outcome, None),
        }
    }

    fn write_in_steps(&self, revision: i64, change: &Change) -> Result<i64> {
        let staged: Vec<String> = pieces(change).map(|piece| encode(&piece)).collect::<Result<_>>()?;
        let mut as_put = Vec::new();
        for (n, piece) in staged.iter().enumerate() {
            let name = format!("{STAGED}{n}");
            let put = self.step(revision, vec![self.put(&name, piece)])?;
            let key = self.keys.of(&name);
            as_put.push(json!({"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": put.to_string()}));
        }
        let sum = crc32c(staged.concat().as_bytes());
        let meta = Change::from_iter(
            change
                .get_key_value(META)
                .map(|(name, meta)| (name.clone(), meta.clone())),
        );
        let mut decide = self.operations(&meta);
        decide.push(self.put(PENDING, &format!("{} {sum:08x}", staged.len())));
        decide.extend((revision == 0).then(|| self.put(FORMER, TOLD)));
        let revision = self.change(revision, (as_put, decide), change)?;
        // It is decided. If it cannot be carried out now, the next leader does.
        let carried_out = self.carry_out(revision, change);
        if carried_out.is_err() {
            self.lose();
        }
        carried_out.map(|()| revision)
    }

    /// Writes the records of a change that is decided, all but `meta`.
    fn carry_out(&self, revision: i64, change: &Change) -> Result<()> {
        let mut rest = change.clone();
        rest.remove(META);
        for piece in pieces(&rest) {
            self.step(revision, self.operations(&piece))?;
        }
        self.step(revision, vec![self.remove(PENDING), self.remove_all(STAGED)])
            .map(drop)
    }

    /// Carries out what a former leadership has decided.
    fn complete(&self, revision: i64, pending: &str, book: &mut RecordSet) -> Result<()> {
        let damaged = || Error::corrupt("what is put aside of the pool's grant table in etcd");
        let (count, sum) = pending.split_once(' ').ok_or_else(damaged)?;
        let mut staged: Vec<(u64, String)> = Vec::new();
        for (name, piece) in self.read_all(STAGED)? {
            staged.push((name.parse().map_err(|_| damaged())?, piece));
        }
        staged.sort_unstable();
        let pieces: Vec<String> = staged.into_iter().map(|(_, piece)| piece).collect();
        let is_whole =
            count.parse() == Ok(pieces.len()) && u32::from_str_radix(sum, 16) == Ok(crc32c(pieces.concat().as_bytes()));
        if !is_whole {
            return Err(damaged());
        }
        let mut change = Change::new();
        for piece in &pieces {
            change.extend(serde_json::from_str::<Change>(piece).map_err(|_| damaged())?);
        }
        apply(book, &change);
        self.carry_out(revision, &change)
    }
}

fn encode(piece: &Change) -> Result<String> {
    serde_json::to_string(piece).map_err(|error| Error::Invalid(error.to_string()))
}

fn text(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Error::corrupt("a value of the pool's grant table in etcd is no text"))
}
