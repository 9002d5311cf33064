//! How a grant table is kept: as records, of which a change writes those that it has changed.
//!
//! ```text
//!  meta      {"format":4, "pool":.., "term":.., "next":.., "change":17, "records":2, "sum":..}
//!  node/5    {"pod":..}
//!  grant/7   {"tenant":..}
//!  device/3  {"pod":..}
//!  space/9   {"id":9, ..}
//! ```
//!
//! `meta` is in each change. It says how many records there are, and the sum of their checksums: a record that is
//! missing, is too many, or is of another time is found, though each has its own checksum at the store.
//!
//! ```text
//!   keep ─► (a change of the table) ─► changes ─► written ─────► keep
//!                                         │        not written ─► undo
//! ```

use super::records::Weight;
use super::{Grant, GrantId, GrantTable, NODES_COME_WITHIN, Node, NodeId, Phase, SpaceId, SpaceRecord};
use crate::settings::Tenants;
use crate::store::{Change, RecordSet, Stored};
use cenote_base::crc::crc32c;
use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const FORMAT: u32 = 4;
const META: &str = "meta";
/// Of former programs, which kept it as one value. What they lack is empty.
const FORMER_FORMATS: [&str; 3] = ["cenote-pool 1", "cenote-pool 2", "cenote-pool 3"];

/// What is kept beside records.
#[derive(Serialize, Deserialize)]
struct Meta {
    format: u32,
    pool: u128,
    term: u64,
    next: u64,
    change: u64,
    records: u64,
    sum: u64,
}

/// A table as former programs kept it.
#[derive(Deserialize)]
struct FormerTable {
    pool: u128,
    #[serde(default)]
    term: u64,
    next: u64,
    nodes: BTreeMap<NodeId, Node>,
    grants: BTreeMap<GrantId, Grant>,
    #[serde(default)]
    spaces: Vec<SpaceRecord>,
}

impl GrantTable {
    // ---- changes ----

    /// The records that are another than before the change.
    pub fn changes(&mut self) -> Change {
        let (mut change, mut weight) = (Change::new(), self.weight);
        for (kind, collection) in self.collections() {
            collection.changed(kind, &mut change, &mut weight);
        }
        if change.is_empty() && (self.term, self.next) == (self.before.0, self.before.1) {
            return change;
        }
        weight.change += 1;
        self.weight = weight;
        change.insert(META.into(), Some(self.meta()));
        change
    }

    /// All records, for a store that has none, or has the table as one value.
    pub fn whole(&mut self) -> Change {
        let mut change = Change::new();
        self.collections()
            .into_iter()
            .for_each(|(kind, collection)| collection.all(kind, &mut change));
        let mut weight = Weight {
            change: self.weight.change + 1,
            ..Weight::default()
        };
        change
            .iter()
            .for_each(|(name, record)| weight.replace(name, None, record.as_deref()));
        self.weight = weight;
        change.insert(META.into(), Some(self.meta()));
        change
    }

    /// The change is made: the next one begins.
    pub fn keep(&mut self) {
        self.before = (self.term, self.next, self.weight);
        self.collections()
            .into_iter()
            .for_each(|(_, collection)| collection.keep());
    }

    /// The change is not made: all is as it was.
    pub fn undo(&mut self) {
        (self.term, self.next, self.weight) = self.before;
        self.collections()
            .into_iter()
            .for_each(|(_, collection)| collection.undo());
    }

    fn meta(&self) -> String {
        let Weight { change, records, sum } = self.weight;
        let meta = Meta {
            format: FORMAT,
            pool: self.pool,
            term: self.term,
            next: self.next,
            change,
            records,
            sum,
        };
        serde_json::to_string(&meta).expect("it has no keys that JSON lacks")
    }

    /// Memory nodes that a change has something for, maybe; `None`: all.
    pub fn concerned(&self) -> Option<BTreeSet<NodeId>> {
        let was_another = |(id, before): (&NodeId, &Option<Node>)| self.nodes.get(id) != before.as_ref();
        if self.nodes.touched().any(was_another) || self.devices.touched().next().is_some() {
            return None;
        }
        let mut spaces: BTreeSet<SpaceId> = self.spaces.touched().map(|(id, _)| *id).collect();
        let mut nodes = BTreeSet::new();
        for (id, before) in self.grants.touched() {
            let both = [before.as_ref(), self.grants.get(id)];
            for grant in both.into_iter().flatten() {
                nodes.insert(grant.node);
                spaces.extend(grant.part.map(|part| part.space));
            }
        }
        if !spaces.is_empty() {
            let is_of = |grant: &&Grant| grant.part.is_some_and(|part| spaces.contains(&part.space));
            nodes.extend(self.grants.values().filter(is_of).map(|grant| grant.node));
        }
        Some(nodes)
    }

    // ---- reading ----

    /// A table as its store has it; leases begin anew at `now`.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for another format, [`Error::Corrupt`].
    pub fn read(stored: &Stored, tenants: Tenants, now: Nanos, lease: Nanos) -> Result<Self> {
        let mut grant_table = match stored {
            Stored::Records(book) => Self::of_records(book, tenants)?,
            Stored::Former(bytes) => Self::of_former(bytes, tenants)?,
        };
        grant_table.keep();
        for grant in grant_table.grants.unkept_mut() {
            grant.time = match grant.phase {
                Phase::Held => Nanos(now.raw() + lease.raw()),
                _ => now,
            };
        }
        let problems = grant_table.problems();
        if !problems.is_empty() {
            return Err(Error::corrupt(format!(
                "the pool's grant table: {}",
                problems.join("; ")
            )));
        }
        grant_table.undo_unheard();
        grant_table.await_hosts(now);
        grant_table.nodes_come = now + NODES_COME_WITHIN;
        Ok(grant_table)
    }

    fn of_records(book: &RecordSet, tenants: Tenants) -> Result<Self> {
        let meta = book
            .get(META)
            .ok_or_else(|| Error::corrupt("the pool's grant table has no record \"meta\""))?;
        let format = |meta: &serde_json::Value| meta["format"].as_u64();
        let value: serde_json::Value = serde_json::from_str(meta).map_err(damaged)?;
        if format(&value) != Some(FORMAT.into()) {
            return Err(Error::Mismatch(format!(
                "the pool's grant table is of format {}; this program knows {FORMAT}",
                value["format"]
            )));
        }
        let meta: Meta = serde_json::from_str(meta).map_err(damaged)?;
        let mut grant_table = Self::new(meta.pool, tenants);
        (grant_table.term, grant_table.next) = (meta.term, meta.next);
        let mut weight = Weight {
            change: meta.change,
            ..Weight::default()
        };
        for (name, record) in book.iter().filter(|(name, _)| *name != META) {
            grant_table.load(name, record)?;
            weight.replace(name, None, Some(record));
        }
        if (weight.records, weight.sum) != (meta.records, meta.sum) {
            return Err(Error::corrupt(format!(
                "the checksum of the pool's grant table: it has {} records, and not the {} that were written",
                weight.records, meta.records
            )));
        }
        grant_table.weight = weight;
        Ok(grant_table)
    }

    fn load(&mut self, name: &str, record: &str) -> Result<()> {
        let named = || format!("record \"{}\" of the pool's grant table", name.escape_debug());
        let (kind, number) = name.split_once('/').unwrap_or((name, ""));
        let found = self.collections().into_iter().find(|(of, _)| *of == kind);
        let Some((_, collection)) = found else {
            return Err(Error::corrupt(format!("{} is of no kind that is known", named())));
        };
        collection
            .load(number, record)
            .map_err(|error| Error::corrupt(format!("{}: {error}", named())))
    }

    fn of_former(bytes: &[u8], tenants: Tenants) -> Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|_| Error::corrupt("the pool's grant table is no text"))?;
        let (head, body) = text.split_once('\n').unwrap_or((text, ""));
        let known = |format: &str| FORMER_FORMATS.contains(&format);
        let Some((format, sum)) = head.rsplit_once(' ').filter(|(format, _)| known(format)) else {
            return Err(Error::Mismatch(format!(
                "the pool's grant table begins with \"{}\"; this program knows \"{}\"",
                head.chars().take(40).collect::<String>().escape_debug(),
                FORMER_FORMATS[2]
            )));
        };
        let body = body.trim_end_matches('\n');
        if u32::from_str_radix(sum, 16) != Ok(crc32c(body.as_bytes())) {
            return Err(Error::corrupt(format!(
                "the checksum of the pool's grant table ({format})"
            )));
        }
        let former: FormerTable = serde_json::from_str(body).map_err(damaged)?;
        let count = former.spaces.len();
        let mut grant_table = Self::new(former.pool, tenants);
        (grant_table.term, grant_table.next) = (former.term, former.next);
        grant_table.nodes = former.nodes.into_iter().collect();
        grant_table.grants = former.grants.into_iter().collect();
        grant_table.spaces = former.spaces.into_iter().map(|space| (space.id, space)).collect();
        match grant_table.spaces.len() == count {
            true => Ok(grant_table),
            false => Err(Error::corrupt("the pool's grant table: a space is there twice")),
        }
    }
}

fn damaged(error: serde_json::Error) -> Error {
    Error::corrupt(format!("the pool's grant table: {error}"))
}
