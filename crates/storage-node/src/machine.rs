//! The state that all storage nodes share, and how commands change it: the start that has the database, its control
//! record, where its log ends, which spaces there are, which directory each node has.
//!
//! Every node carries out the same commands in the same order, so every node has the same state. Nothing else goes in:
//! no clock, no chance, nothing of this host.
//!
//! ```text
//!            Take (epoch of before)            Begin               Append, Control, MakeSpace, DropSpace
//!   nobody ───────────────────────▶ epoch 1 ───────────▶ database ──┐
//!                                      │  ▲                 │  ▲    │
//!                                      └──┴── Take ─────────┴──┴────┘   commands of earlier epochs: refused
//! ```
//!
//! Invariants:
//! - epochs rise by one with each start that takes the database, and a command of another epoch changes nothing;
//! - the log ends behind a whole group; a piece of an unfinished one is kept aside, and gone with the next `Take`;
//! - bytes of one position of the log are the same in each command that has them, for one start makes them: so a command
//!   that comes twice is carried out once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Lsn, Result};
use cenote_storage::nodes::LogEnd;

use crate::codec::{Reader, Writer};
use crate::command::{Command, RECORD_MAX, put_end, take_end};
use crate::snapshots::{Changed, Snapshots};
use crate::usage::{Meter, Usage};

const FORMAT: u32 = 5;
/// Without snapshots.
const FORMAT_NO_SNAPSHOTS: u32 = 4;
/// Without the directories with which nodes came first.
const FORMAT_UNREGISTERED: u32 = 3;
/// Without what was used.
const FORMAT_UNMETERED: u32 = 2;
/// Bytes of groups that are not whole: a client sends a few MiB at a time.
const UNFINISHED_MAX: usize = 32 << 20;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    /// The start that has the database, and its token; zero: none yet.
    epoch: u64,
    token: u128,
    record: Arc<[u8]>,
    /// Commands of this epoch, appends left out.
    sequence: u64,
    control: Option<Arc<[u8]>>,
    log: LogEnd,
    spaces: BTreeSet<u32>,
    /// Nodes that lost their directory, and the identities of those that took the place.
    replaced: Arc<BTreeMap<u64, u128>>,
    /// The identities with which nodes came first, as leaders have heard of them.
    registered: Arc<BTreeMap<u64, u128>>,
    /// What came of a group that is not whole yet.
    unfinished: Vec<u8>,
    meter: Meter,
    snapshots: Arc<Snapshots>,
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was carried out, now or before.
    Done,
    /// Whole groups came: their first byte lies at `at`.
    Appended {
        at: Lsn,
        groups: Vec<u8>,
    },
    SpaceMade(u32),
    SpaceDropped(u32),
    /// This node has another directory from now on.
    Replaced(u64),
    /// The database as of here is kept, under this number.
    SnapshotMade(u64),
    SnapshotDropped(u64),
    /// The state names the directory of one more node.
    Registered,
    Taken {
        epoch: u64,
    },
    /// Another start has the database.
    Revoked {
        epoch: u64,
    },
    /// Another start took it first.
    TakenBefore {
        epoch: u64,
    },
    /// It makes no sense in this state.
    Refused(String),
}

impl Default for Machine {
    fn default() -> Machine {
        Machine {
            epoch: 0,
            token: 0,
            record: Arc::default(),
            sequence: 0,
            control: None,
            log: LogEnd::at_origin(Lsn::ZERO),
            spaces: BTreeSet::new(),
            replaced: Arc::default(),
            registered: Arc::default(),
            unfinished: Vec::new(),
            meter: Meter::default(),
            snapshots: Arc::default(),
        }
    }
}

impl Machine {
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn record(&self) -> &Arc<[u8]> {
        &self.record
    }

    pub fn control(&self) -> Option<&Arc<[u8]>> {
        self.control.as_ref()
    }

    /// Where the log ends.
    pub fn log(&self) -> LogEnd {
        self.log
    }

    /// What servers of the database have used.
    pub fn usage(&self) -> Usage {
        self.meter.total()
    }

    pub fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
    }

    /// The identities of nodes that lost their directory, by number.
    pub fn replaced(&self) -> &Arc<BTreeMap<u64, u128>> {
        &self.replaced
    }

    /// The identities with which nodes came first, by number.
    pub fn registered(&self) -> &Arc<BTreeMap<u64, u128>> {
        &self.registered
    }

    /// Whether node `node` may come with the directory of this identity, as far as the state knows.
    pub fn is_of(&self, node: u64, identity: u128) -> bool {
        self.replaced.get(&node).is_none_or(|known| *known == identity)
    }

    pub fn spaces(&self) -> impl Iterator<Item = u32> + '_ {
        self.spaces.iter().copied()
    }

    /// Whether all that was appended is whole: a state that says so has nothing in the log behind it.
    pub fn is_whole(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// Carries a command out.
    pub fn apply(&mut self, command: Command) -> Outcome {
        match command {
            Command::Take { former, token, record } => self.take(former, token, record),
            Command::Append { epoch, at, end, redo } => self.append(epoch, at, end, redo),
            Command::Begin {
                epoch,
                sequence,
                control,
                origin,
            } => self.in_turn(epoch, sequence, |m| m.begin(control, origin)),
            Command::Control {
                epoch,
                sequence,
                control,
            } => self.in_turn(epoch, sequence, |m| m.set_control(control)),
            Command::MakeSpace { epoch, sequence, space } => self.in_turn(epoch, sequence, |m| m.make_space(space)),
            Command::DropSpace { epoch, sequence, space } => self.in_turn(epoch, sequence, |m| m.drop_space(space)),
            Command::Replace { node, identity } => self.replace(node, identity),
            Command::Register { node, identity } => self.register(node, identity),
            Command::Meter { process, usage } => {
                self.meter.report(process, usage);
                Outcome::Done
            }
            Command::Snapshot { token, name, made } => self.make_snapshot((name, token, made)),
            Command::DropSnapshot { number, is_forced } => {
                let dropped = Arc::make_mut(&mut self.snapshots).drop(number, is_forced);
                outcome_of(dropped, Outcome::SnapshotDropped)
            }
            Command::AddBranch { snapshot, branch, name } => {
                let added = Arc::make_mut(&mut self.snapshots).add_branch(snapshot, branch, name);
                outcome_of(added, |_| Outcome::Done)
            }
            Command::DropBranch { branch } => {
                Arc::make_mut(&mut self.snapshots).drop_branch(branch);
                Outcome::Done
            }
        }
    }

    fn make_snapshot(&mut self, what: (String, u128, u64)) -> Outcome {
        let Some(control) = self.control.clone() else {
            return Outcome::Refused("there is no database to make a snapshot of".into());
        };
        let made = Arc::make_mut(&mut self.snapshots).make(what, self.log, control);
        outcome_of(made, Outcome::SnapshotMade)
    }

    fn replace(&mut self, node: u64, identity: u128) -> Outcome {
        match Arc::make_mut(&mut self.replaced).insert(node, identity) {
            Some(before) if before == identity => Outcome::Done,
            _ => Outcome::Replaced(node),
        }
    }

    fn register(&mut self, node: u64, identity: u128) -> Outcome {
        if self.registered.contains_key(&node) {
            return Outcome::Done;
        }
        Arc::make_mut(&mut self.registered).insert(node, identity);
        Outcome::Registered
    }

    fn take(&mut self, former: u64, token: u128, record: Vec<u8>) -> Outcome {
        if self.token == token && self.epoch > 0 {
            return Outcome::Taken { epoch: self.epoch };
        }
        if self.epoch != former {
            return Outcome::TakenBefore { epoch: self.epoch };
        }
        if record.len() > RECORD_MAX || token == 0 {
            return Outcome::Refused("an owner's record is too long, or it has no token".into());
        }
        (self.epoch, self.token, self.record, self.sequence) = (former + 1, token, record.into(), 0);
        self.unfinished.clear();
        Outcome::Taken { epoch: self.epoch }
    }

    /// Carries out what comes in turn, once: a command of this epoch whose number was had before is done.
    fn in_turn(&mut self, epoch: u64, sequence: u64, change: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        if epoch != self.epoch {
            return Outcome::Revoked { epoch: self.epoch };
        }
        if sequence <= self.sequence && !planted(Fault::CommandTwice) {
            return Outcome::Done;
        }
        if sequence > self.sequence + 1 {
            return Outcome::Refused(format!("command {sequence} comes after {}", self.sequence));
        }
        let outcome = change(self);
        if !matches!(outcome, Outcome::Refused(_)) {
            self.sequence = sequence;
        }
        outcome
    }

    fn begin(&mut self, control: Vec<u8>, origin: Lsn) -> Outcome {
        if self.control.is_some() {
            return Outcome::Refused("there is a database already".into());
        }
        self.log = LogEnd::at_origin(origin);
        self.set_control(control)
    }

    fn set_control(&mut self, control: Vec<u8>) -> Outcome {
        if control.len() > RECORD_MAX {
            return Outcome::Refused(format!("a control record of {} bytes is too long", control.len()));
        }
        self.control = Some(control.into());
        Outcome::Done
    }

    fn make_space(&mut self, space: u32) -> Outcome {
        match self.spaces.insert(space) {
            true => Outcome::SpaceMade(space),
            false => Outcome::Refused(format!("space {space} exists")),
        }
    }

    fn drop_space(&mut self, space: u32) -> Outcome {
        match self.spaces.remove(&space) {
            true => Outcome::SpaceDropped(space),
            false => Outcome::Done,
        }
    }

    /// Takes what is new of a piece: a piece that comes again, with more behind it or not, is known by its position.
    fn append(&mut self, epoch: u64, at: Lsn, end: Option<LogEnd>, redo: Vec<u8>) -> Outcome {
        if epoch != self.epoch && !planted(Fault::StartUnchecked) {
            return Outcome::Revoked { epoch: self.epoch };
        }
        if self.control.is_none() {
            return Outcome::Refused("there is no database to append to".into());
        }
        let (tail, piece_end) = (
            self.log.end.advance(self.unfinished.len() as u64),
            at.advance(redo.len() as u64),
        );
        if at > tail {
            return Outcome::Refused(format!("redo at {at} comes behind {tail}, where the log ends"));
        }
        let can_be = |end: LogEnd| {
            let is_new = end.end > self.log.end;
            end.last_start < end.end && end.end <= piece_end.max(tail) && (!is_new || end.last_start >= self.log.end)
        };
        if let Some(wrong) = end.filter(|end| !can_be(*end)) {
            return Outcome::Refused(format!("redo at {at} cannot end at {}", wrong.end));
        }
        if self.unfinished.len() > UNFINISHED_MAX {
            return Outcome::Refused("a group is longer than any can be".into());
        }
        let known = match planted(Fault::CommandTwice) {
            true => 0,
            false => tail.since(at).min(redo.len() as u64) as usize,
        };
        self.unfinished.extend_from_slice(&redo[known..]);
        match end {
            Some(end) if end.end > self.log.end => self.finish(end),
            _ => Outcome::Done,
        }
    }

    /// Groups up to `end` are whole.
    fn finish(&mut self, end: LogEnd) -> Outcome {
        let at = self.log.end;
        let rest = self.unfinished.split_off(end.end.since(at) as usize);
        let groups = std::mem::replace(&mut self.unfinished, rest);
        self.log = end;
        Outcome::Appended { at, groups }
    }

    // ---- as bytes ----

    /// The state as bytes, for a start of this node.
    pub fn encode(&self) -> Vec<u8> {
        let spaces: Vec<u32> = self.spaces().collect();
        let head = Writer::default()
            .u32(FORMAT)
            .u64(self.epoch)
            .u128(self.token)
            .u64(self.sequence);
        let state = put_identities(
            put_end(head, self.log)
                .bytes(&self.record)
                .u8(self.control.is_some().into())
                .bytes(self.control.as_deref().unwrap_or_default())
                .each(&spaces, |writer, space| writer.u32(*space)),
            &self.replaced,
        );
        let state = put_identities(self.meter.put(state.bytes(&self.unfinished)), &self.registered);
        self.snapshots.put(state).done()
    }

    /// # Errors
    /// [`Error::Corrupt`](cenote_base::Error::Corrupt).
    pub fn decode(bytes: &[u8]) -> Result<Machine> {
        let mut r = Reader::new(bytes, "the storage nodes' state");
        let format = r.u32()?;
        if !(FORMAT_UNMETERED..=FORMAT).contains(&format) {
            return Err(r.wrong("it has another format version"));
        }
        let (epoch, token, sequence, log) = (r.u64()?, r.u128()?, r.u64()?, take_end(&mut r)?);
        let record = r.bytes()?.into();
        let (has_control, control) = (r.u8()? == 1, r.bytes()?.into());
        let machine = Machine {
            epoch,
            token,
            record,
            sequence,
            control: has_control.then_some(control),
            log,
            spaces: r.each(|r| r.u32())?.into_iter().collect(),
            replaced: take_identities(&mut r)?,
            unfinished: r.bytes()?.to_vec(),
            meter: match format {
                FORMAT_UNMETERED => Meter::default(),
                _ => Meter::take(&mut r)?,
            },
            registered: match format > FORMAT_UNREGISTERED {
                true => take_identities(&mut r)?,
                false => Arc::default(),
            },
            snapshots: match format > FORMAT_NO_SNAPSHOTS {
                true => Arc::new(Snapshots::take(&mut r)?),
                false => Arc::default(),
            },
        };
        r.end()?;
        Ok(machine)
    }
}

fn outcome_of(changed: Changed, outcome: impl FnOnce(u64) -> Outcome) -> Outcome {
    match changed {
        Ok(number) => number.map_or(Outcome::Done, outcome),
        Err(why) => Outcome::Refused(why),
    }
}

fn put_identities(writer: Writer, identities: &BTreeMap<u64, u128>) -> Writer {
    let identities: Vec<(u64, u128)> = identities.iter().map(|(node, identity)| (*node, *identity)).collect();
    writer.each(&identities, |writer, (node, identity)| {
        writer.u64(*node).u128(*identity)
    })
}

fn take_identities(r: &mut Reader<'_>) -> Result<Arc<BTreeMap<u64, u128>>> {
    Ok(Arc::new(r.each(|r| Ok((r.u64()?, r.u128()?)))?.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a meter that nothing was reported to.
    const METER_EMPTY: usize = 6 * 8 + 8 + 4;
    /// Bytes of one directory that is registered.
    const REGISTERED: usize = 4 + 8 + 16;
    /// Bytes of snapshots where there are none.
    const NO_SNAPSHOTS: usize = 8 + 4 + 4;

    fn end(at: u64, start: u64) -> Option<LogEnd> {
        Some(LogEnd {
            end: Lsn::from_raw(at),
            last_start: Lsn::from_raw(start),
            last_checksum: at as u32,
        })
    }

    fn append(epoch: u64, at: u64, length: usize, end: Option<LogEnd>) -> Command {
        // A byte for each position, so that bytes of one position are always the same.
        let redo = (at..at + length as u64).map(|at| at as u8).collect();
        Command::Append {
            epoch,
            at: Lsn::from_raw(at),
            end,
            redo,
        }
    }

    fn groups(outcome: Outcome) -> (u64, Vec<u8>) {
        match outcome {
            Outcome::Appended { at, groups } => (at.raw(), groups),
            other => panic!("{other:?}"),
        }
    }

    fn begun() -> Machine {
        let mut machine = Machine::default();
        let taken = machine.apply(Command::Take {
            former: 0,
            token: 1,
            record: b"first".to_vec(),
        });
        assert_eq!(taken, Outcome::Taken { epoch: 1 });
        let begun = machine.apply(Command::Begin {
            epoch: 1,
            sequence: 1,
            control: vec![1],
            origin: Lsn::from_raw(4096),
        });
        assert_eq!(begun, Outcome::Done);
        machine
    }

    #[test]
    fn a_later_start_ends_what_earlier_ones_may_do() {
        let mut machine = begun();
        let take = |former, token| Command::Take {
            former,
            token,
            record: Vec::new(),
        };
        assert_eq!(machine.apply(append(1, 4096, 10, None)), Outcome::Done);
        assert_eq!(machine.apply(take(0, 2)), Outcome::TakenBefore { epoch: 1 });
        assert_eq!(machine.apply(take(1, 2)), Outcome::Taken { epoch: 2 });
        assert_eq!(machine.apply(take(1, 2)), Outcome::Taken { epoch: 2 }, "asked again");
        assert_eq!(machine.apply(take(1, 3)), Outcome::TakenBefore { epoch: 2 });
        assert!(machine.is_whole(), "what was unfinished is gone");
        assert_eq!(
            machine.apply(append(1, 4106, 10, end(4116, 4096))),
            Outcome::Revoked { epoch: 2 }
        );
        let control = Command::Control {
            epoch: 1,
            sequence: 2,
            control: vec![2],
        };
        assert_eq!(machine.apply(control), Outcome::Revoked { epoch: 2 });
        assert_eq!(
            (machine.control().map(|c| &c[..]), machine.log().end.raw()),
            (Some(&[1][..]), 4096)
        );
        assert_eq!(groups(machine.apply(append(2, 4096, 8, end(4104, 4096)))).0, 4096);
    }

    #[test]
    fn a_piece_that_comes_again_is_carried_out_once() {
        let mut machine = begun();
        assert_eq!(machine.apply(append(1, 4096, 10, None)), Outcome::Done);
        assert_eq!(machine.apply(append(1, 4096, 10, None)), Outcome::Done);
        let (at, bytes) = groups(machine.apply(append(1, 4106, 10, end(4116, 4100))));
        assert_eq!((at, bytes), (4096, (4096..4116u64).map(|at| at as u8).collect()));
        assert_eq!(machine.apply(append(1, 4106, 10, end(4116, 4100))), Outcome::Done);
        assert_eq!(machine.apply(append(1, 4096, 10, None)), Outcome::Done);
        // The same from the same position on, and more: only that is new.
        let (at, bytes) = groups(machine.apply(append(1, 4106, 30, end(4136, 4120))));
        assert_eq!((at, bytes.len()), (4116, 20));
        assert!(
            matches!(machine.apply(append(1, 4140, 4, None)), Outcome::Refused(_)),
            "a gap"
        );
        assert!(machine.is_whole());
        assert_eq!(machine.log(), end(4136, 4120).unwrap());
        let beyond = append(1, 4136, 4, end(4160, 4136));
        assert!(
            matches!(machine.apply(beyond), Outcome::Refused(_)),
            "an end beyond its bytes"
        );
    }

    #[test]
    fn commands_come_in_turn_and_once() {
        let mut machine = begun();
        let make = |sequence, space| Command::MakeSpace {
            epoch: 1,
            sequence,
            space,
        };
        let control = |sequence, byte| Command::Control {
            epoch: 1,
            sequence,
            control: vec![byte],
        };
        assert_eq!(machine.apply(make(2, 7)), Outcome::SpaceMade(7));
        assert_eq!(machine.apply(make(2, 7)), Outcome::Done, "it came twice");
        assert_eq!(machine.apply(control(3, 3)), Outcome::Done);
        assert_eq!(machine.apply(control(4, 4)), Outcome::Done);
        assert_eq!(machine.apply(control(3, 3)), Outcome::Done, "it came late");
        assert_eq!(machine.control().map(|c| &c[..]), Some(&[4][..]));
        assert!(matches!(machine.apply(control(6, 6)), Outcome::Refused(_)));
        assert!(matches!(machine.apply(make(5, 7)), Outcome::Refused(_)), "it exists");
        let drop = |sequence| Command::DropSpace {
            epoch: 1,
            sequence,
            space: 7,
        };
        assert_eq!(machine.apply(drop(5)), Outcome::SpaceDropped(7));
        assert_eq!(machine.apply(drop(6)), Outcome::Done);
        assert_eq!(machine.spaces().count(), 0);
    }

    #[test]
    fn a_state_comes_back_as_it_was() {
        let mut machine = begun();
        machine.apply(Command::MakeSpace {
            epoch: 1,
            sequence: 2,
            space: 9,
        });
        machine.apply(append(1, 4096, 40, end(4120, 4100)));
        let replace = Command::Replace { node: 3, identity: 7 };
        let register = |identity| Command::Register { node: 3, identity };
        assert_eq!(machine.apply(register(4)), Outcome::Registered);
        assert_eq!(machine.apply(register(5)), Outcome::Done, "the first one counts");
        assert_eq!(machine.registered().get(&3), Some(&4));
        assert_eq!(machine.apply(replace.clone()), Outcome::Replaced(3));
        assert_eq!(machine.apply(register(4)), Outcome::Done, "its place was taken");
        assert_eq!(machine.apply(replace), Outcome::Done, "it came twice");
        assert!(!machine.is_whole());
        let without = machine.encode();
        let usage = Usage {
            writer_ms: 7,
            ..Usage::default()
        };
        machine.apply(Command::Meter { process: 5, usage });
        assert_eq!(machine.usage(), usage);
        // A state of the format before has no meter: six numbers, and how many reports by how many processes.
        let old = [
            &2u32.to_le_bytes(),
            &without[4..without.len() - METER_EMPTY - REGISTERED - NO_SNAPSHOTS],
        ]
        .concat();
        let read = Machine::decode(&old).expect("a state of before");
        assert_eq!((read.usage(), read.log()), (Usage::default(), machine.log()));
        let old = [
            &4u32.to_le_bytes(),
            &machine.encode()[4..machine.encode().len() - NO_SNAPSHOTS],
        ]
        .concat();
        assert_eq!(Machine::decode(&old).expect("a state of before"), machine);
        let snapshot = |name: &str| Command::Snapshot {
            token: 9,
            name: name.into(),
            made: 3,
        };
        let refused = Machine::default().apply(snapshot("a"));
        assert!(matches!(refused, Outcome::Refused(_)), "there is no database");
        assert_eq!(machine.apply(snapshot("a")), Outcome::SnapshotMade(1));
        assert_eq!(machine.apply(snapshot("a")), Outcome::Done, "it came twice");
        let kept = machine.snapshots().iter().next().expect("one");
        assert_eq!((kept.end, &*kept.control), (machine.log().end, &[1][..]));
        for machine in [machine, Machine::default()] {
            let bytes = machine.encode();
            assert_eq!(Machine::decode(&bytes).unwrap(), machine);
            assert!(Machine::decode(&bytes[..bytes.len() - 1]).is_err());
        }
    }
}
