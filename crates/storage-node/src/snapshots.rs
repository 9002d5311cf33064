//! Snapshots: the database as of positions of its log, kept under names until they are dropped, and the branches that
//! begin at them.
//!
//! This is what all nodes share of them; the pages of a snapshot are each node's own matter ([`crate::pages`]).
//!
//! ```text
//!   Snapshot "monday" ──▶ kept ── AddBranch, DropBranch ──▶ kept ── DropSnapshot ──▶ gone
//!                                                             └── while it has branches: refused, unless forced
//! ```
//!
//! Numbers are never given twice, so that a late question of a snapshot that is gone finds none. A command that comes a
//! second time, behind the one that undid it, makes nothing again: the last of what is gone is known.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use cenote_base::{Error, Lsn, Result};
use cenote_storage::nodes::LogEnd;

use crate::codec::{Reader, Writer};

/// Snapshots at a time: the state that a node is given has to fit into a message.
pub(crate) const SNAPSHOTS_MAX: usize = 32;
/// Branches of one snapshot at a time.
pub(crate) const BRANCHES_MAX: usize = 64;
/// Bytes of the control record that one keeps: what a server writes has 4 KiB.
const CONTROL_MAX: usize = 8 << 10;
/// Snapshots and branches that are known to be gone: as many commands may be on their way a second time.
const GONE_MAX: usize = 64;
/// Bytes of a snapshot's or a branch's name.
pub(crate) const NAME_MAX: usize = 64;

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its number, above zero, for good.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// When it was made, by the clock of the one who asked for it: microseconds since 1970.
    pub made: u64,
    /// The database as of this position: everything below.
    pub end: Lsn,
    /// The control record as of then.
    pub control: Arc<[u8]>,
    /// The branches that begin there: their databases' numbers, and what people call them.
    pub branches: BTreeMap<u128, String>,
    /// Of the command that made it.
    pub(crate) token: u128,
}

/// All there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Snapshots {
    /// How many were ever made.
    made: u64,
    kept: BTreeMap<u64, Snapshot>,
    /// Tokens of snapshots, and numbers of branches, that are gone: the last ones.
    gone: VecDeque<u128>,
}

/// What became of a command.
pub(crate) type Changed = std::result::Result<Option<u64>, String>;

impl Snapshots {
    pub fn iter(&self) -> impl Iterator<Item = &Snapshot> {
        self.kept.values()
    }

    /// The number of the last one that was made; zero: none was.
    pub fn last(&self) -> u64 {
        self.made
    }

    /// Makes one: its number, unless this command has made it before.
    pub fn make(&mut self, (name, token, made): (String, u128, u64), log: LogEnd, control: Arc<[u8]>) -> Changed {
        if self.gone.contains(&token) {
            return Ok(None);
        }
        if let Some(there) = self.kept.values().find(|there| there.name == name) {
            return match there.token == token {
                true => Ok(None),
                false => Err(format!("there is a snapshot \"{name}\" already")),
            };
        }
        if self.kept.len() >= SNAPSHOTS_MAX {
            return Err(format!(
                "there are {SNAPSHOTS_MAX} snapshots, the most there can be: drop one"
            ));
        }
        if control.len() > CONTROL_MAX {
            return Err(format!(
                "the control record has {} bytes, and a snapshot's {CONTROL_MAX} at most",
                control.len()
            ));
        }
        self.made += 1;
        let snapshot = Snapshot {
            number: self.made,
            name,
            made,
            end: log.end,
            control,
            branches: BTreeMap::new(),
            token,
        };
        self.kept.insert(self.made, snapshot);
        Ok(Some(self.made))
    }

    /// Drops one; its number, unless it is gone already.
    pub fn drop(&mut self, number: u64, is_forced: bool) -> Changed {
        let Some(snapshot) = self.kept.get(&number) else {
            return Ok(None);
        };
        if !is_forced && !snapshot.branches.is_empty() {
            let branches: Vec<&str> = snapshot.branches.values().map(String::as_str).collect();
            return Err(format!(
                "snapshot \"{}\" has branches, which are lost without it: {}",
                snapshot.name,
                branches.join(", ")
            ));
        }
        let gone = self.kept.remove(&number);
        gone.into_iter().for_each(|gone| self.note_gone(gone.token));
        Ok(Some(number))
    }

    fn note_gone(&mut self, what: u128) {
        if !self.gone.contains(&what) {
            self.gone.push_back(what);
        }
        if self.gone.len() > GONE_MAX {
            self.gone.pop_front();
        }
    }

    /// A branch begins at one.
    pub fn add_branch(&mut self, number: u64, branch: u128, name: String) -> Changed {
        if self.gone.contains(&branch) {
            return Ok(None);
        }
        let Some(snapshot) = self.kept.get_mut(&number) else {
            return Err(format!("snapshot {number} is not kept any more"));
        };
        if snapshot.branches.len() >= BRANCHES_MAX && !snapshot.branches.contains_key(&branch) {
            return Err(format!(
                "snapshot \"{}\" has {BRANCHES_MAX} branches, the most there can be",
                snapshot.name
            ));
        }
        snapshot.branches.insert(branch, name);
        Ok(None)
    }

    /// A branch is gone.
    pub fn drop_branch(&mut self, branch: u128) {
        for snapshot in self.kept.values_mut() {
            snapshot.branches.remove(&branch);
        }
        self.note_gone(branch);
    }

    pub fn put(&self, writer: Writer) -> Writer {
        let kept: Vec<&Snapshot> = self.kept.values().collect();
        let gone: Vec<u128> = self.gone.iter().copied().collect();
        writer
            .u64(self.made)
            .each(&kept, |w, snapshot| put_snapshot(w, snapshot))
            .each(&gone, |w, what| w.u128(*what))
    }

    /// # Errors
    /// [`Error::Corrupt`].
    pub fn take(r: &mut Reader<'_>) -> Result<Snapshots> {
        let made = r.u64()?;
        let kept = r.each(take_snapshot)?;
        Ok(Snapshots {
            made,
            kept: kept.into_iter().map(|snapshot| (snapshot.number, snapshot)).collect(),
            gone: r.each(|r| r.u128())?.into(),
        })
    }
}

fn put_snapshot(writer: Writer, snapshot: &Snapshot) -> Writer {
    let branches: Vec<(&u128, &String)> = snapshot.branches.iter().collect();
    writer
        .u64(snapshot.number)
        .text(&snapshot.name)
        .u64(snapshot.made)
        .lsn(snapshot.end)
        .bytes(&snapshot.control)
        .each(&branches, |w, (id, name)| w.u128(**id).text(name))
        .u128(snapshot.token)
}

fn take_snapshot(r: &mut Reader<'_>) -> Result<Snapshot> {
    Ok(Snapshot {
        number: r.u64()?,
        name: r.text()?,
        made: r.u64()?,
        end: r.lsn()?,
        control: r.bytes()?.into(),
        branches: r.each(|r| Ok((r.u128()?, r.text()?)))?.into_iter().collect(),
        token: r.u128()?,
    })
}

/// Whether a snapshot or branch may be called so.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_name(name: &str) -> Result<()> {
    let is_good = !name.is_empty() && name.len() <= NAME_MAX && !name.contains(char::is_control);
    match is_good {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "{name:?} is no name of a snapshot or branch: it has 1 to {NAME_MAX} bytes, and no control characters"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(snapshots: &mut Snapshots, name: &str, token: u128) -> Changed {
        let log = LogEnd::at_origin(Lsn::from_raw(4096 + token as u64));
        snapshots.make((name.into(), token, 7), log, vec![1, 2].into())
    }

    #[test]
    fn a_snapshot_is_made_once_and_kept_until_it_is_dropped() {
        let mut snapshots = Snapshots::default();
        assert_eq!(make(&mut snapshots, "a", 1), Ok(Some(1)));
        assert_eq!(make(&mut snapshots, "a", 1), Ok(None), "it was asked for twice");
        assert!(make(&mut snapshots, "a", 2).is_err(), "the name is taken");
        assert_eq!(make(&mut snapshots, "b", 3), Ok(Some(2)));
        assert_eq!(snapshots.drop(1, false), Ok(Some(1)));
        assert_eq!(snapshots.drop(1, false), Ok(None));
        assert_eq!(
            make(&mut snapshots, "a", 4),
            Ok(Some(3)),
            "its number is not given twice"
        );
        for n in 2..SNAPSHOTS_MAX {
            assert!(make(&mut snapshots, &format!("more {n}"), 100 + n as u128).is_ok());
        }
        let refused = make(&mut snapshots, "one too many", 99).expect_err("refused");
        assert!(refused.contains("32 snapshots"), "{refused}");
    }

    #[test]
    fn what_is_gone_does_not_come_back_with_a_late_command() {
        let mut snapshots = Snapshots::default();
        assert_eq!(make(&mut snapshots, "a", 1), Ok(Some(1)));
        assert_eq!(snapshots.add_branch(1, 10, "x".into()), Ok(None));
        snapshots.drop_branch(10);
        assert_eq!(snapshots.add_branch(1, 10, "x".into()), Ok(None), "it came twice");
        assert_eq!(snapshots.drop(1, false), Ok(Some(1)), "no branch came back");
        assert_eq!(make(&mut snapshots, "a", 1), Ok(None), "it came twice");
        assert_eq!(snapshots.iter().count(), 0);
        for n in 0..2 * GONE_MAX as u64 {
            let token = 100 + u128::from(n);
            assert_eq!(make(&mut snapshots, "a", token), Ok(Some(n + 2)));
            assert_eq!(snapshots.drop(n + 2, false), Ok(Some(n + 2)));
            assert!(snapshots.gone.len() <= GONE_MAX && snapshots.gone.contains(&token));
        }
    }

    #[test]
    fn branches_hold_their_snapshot() {
        let mut snapshots = Snapshots::default();
        assert_eq!(make(&mut snapshots, "a", 1), Ok(Some(1)));
        assert!(snapshots.add_branch(2, 10, "x".into()).is_err(), "there is none");
        assert_eq!(snapshots.add_branch(1, 10, "x".into()), Ok(None));
        assert_eq!(snapshots.add_branch(1, 10, "x".into()), Ok(None), "it came twice");
        assert_eq!(snapshots.add_branch(1, 11, "y".into()), Ok(None));
        let why = snapshots.drop(1, false).expect_err("refused");
        assert!(why.contains("x, y"), "{why}");
        snapshots.drop_branch(10);
        assert!(snapshots.drop(1, false).is_err());
        let before = snapshots.clone();
        snapshots.drop_branch(11);
        assert_eq!(snapshots.drop(1, false), Ok(Some(1)));
        snapshots = before;
        assert_eq!(snapshots.drop(1, true), Ok(Some(1)), "forced");
    }

    #[test]
    fn they_come_back_as_they_were() {
        let mut snapshots = Snapshots::default();
        for n in 1..4 {
            make(&mut snapshots, &format!("s{n}"), n).expect("made");
        }
        snapshots.add_branch(2, 5, "b".into()).expect("added");
        snapshots.drop(3, false).expect("dropped");
        let bytes = snapshots.put(Writer::default()).done();
        let mut r = Reader::new(&bytes, "a test");
        assert_eq!(Snapshots::take(&mut r).expect("whole"), snapshots);
        r.end().expect("nothing is left");
        for cut in 0..bytes.len() {
            assert!(
                Snapshots::take(&mut Reader::new(&bytes[..cut], "a test")).is_err(),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn names_are_short_and_printable() {
        check_name("before the migration").expect("a name");
        for wrong in ["", "a\nb", &"x".repeat(65)] {
            assert!(check_name(wrong).is_err(), "{wrong:?}");
        }
    }
}
