//! The commands of the replicated log: what changes the state that all storage nodes share.
//!
//! Each is an entry of the Raft log, carried out by every node in the same order ([`crate::machine`]). Each says which
//! start of the database asks, by its *epoch*, and all but appends say how many commands came before it, so that one
//! that comes twice, or late, changes nothing.

use cenote_base::{Error, Lsn, Result};
use cenote_storage::nodes::LogEnd;

use crate::codec::{Reader, Writer};
use crate::snapshots::check_name;
use crate::usage::{Usage, put_usage, take_usage};

/// Bytes of redo in one command at most: a message has room for one, and a few fields.
pub(crate) const PIECE_MAX: usize = 512 << 10;
/// Bytes of a control or owner record at most.
pub(crate) const RECORD_MAX: usize = 64 << 10;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// A start takes the database from the one whose epoch was `former`.
    Take {
        former: u64,
        token: u128,
        record: Vec<u8>,
    },
    /// The first control record, and where the log begins.
    Begin {
        epoch: u64,
        sequence: u64,
        control: Vec<u8>,
        origin: Lsn,
    },
    Control {
        epoch: u64,
        sequence: u64,
        control: Vec<u8>,
    },
    /// A piece of the log. `end`: with it groups up to there are whole.
    Append {
        epoch: u64,
        at: Lsn,
        end: Option<LogEnd>,
        redo: Vec<u8>,
    },
    MakeSpace {
        epoch: u64,
        sequence: u64,
        space: u32,
    },
    DropSpace {
        epoch: u64,
        sequence: u64,
        space: u32,
    },
    /// Node `node` comes with another directory from now on, whose identity this is: the one that it had is lost.
    Replace {
        node: u64,
        identity: u128,
    },
    /// Node `node` has come with the directory of this identity. Where the state names one already nothing changes.
    Register {
        node: u64,
        identity: u128,
    },
    /// A server's process has used so much since it began.
    Meter {
        process: u128,
        usage: Usage,
    },
    /// The database as of where the log ends is kept under this name; `made`: microseconds since 1970.
    Snapshot {
        token: u128,
        name: String,
        made: u64,
    },
    /// It is not kept any more; `is_forced`: whatever branches it has.
    DropSnapshot {
        number: u64,
        is_forced: bool,
    },
    /// A branch begins at a snapshot: the number of its database, and what people call it.
    AddBranch {
        snapshot: u64,
        branch: u128,
        name: String,
    },
    /// That branch is gone.
    DropBranch {
        branch: u128,
    },
}

const TAKE: u8 = 1;
const BEGIN: u8 = 2;
const CONTROL: u8 = 3;
const APPEND: u8 = 4;
const MAKE_SPACE: u8 = 5;
const DROP_SPACE: u8 = 6;
const REPLACE: u8 = 7;
const METER: u8 = 8;
const REGISTER: u8 = 9;
const SNAPSHOT: u8 = 10;
const DROP_SNAPSHOT: u8 = 11;
const ADD_BRANCH: u8 = 12;
const DROP_BRANCH: u8 = 13;

impl Command {
    pub fn encode(&self) -> Vec<u8> {
        let to = |kind, epoch: &u64, sequence: &u64| Writer::of(kind).u64(*epoch).u64(*sequence);
        match self {
            Command::Take { former, token, record } => Writer::of(TAKE).u64(*former).u128(*token).bytes(record),
            Command::Begin {
                epoch,
                sequence,
                control,
                origin,
            } => to(BEGIN, epoch, sequence).bytes(control).lsn(*origin),
            Command::Control {
                epoch,
                sequence,
                control,
            } => to(CONTROL, epoch, sequence).bytes(control),
            Command::Append { epoch, at, end, redo } => {
                let head = Writer::of(APPEND).u64(*epoch).lsn(*at);
                put_end(
                    head.u8(end.is_some().into()),
                    end.unwrap_or(LogEnd::at_origin(Lsn::ZERO)),
                )
                .bytes(redo)
            }
            Command::MakeSpace { epoch, sequence, space } => to(MAKE_SPACE, epoch, sequence).u32(*space),
            Command::DropSpace { epoch, sequence, space } => to(DROP_SPACE, epoch, sequence).u32(*space),
            Command::Replace { node, identity } => Writer::of(REPLACE).u64(*node).u128(*identity),
            Command::Register { node, identity } => Writer::of(REGISTER).u64(*node).u128(*identity),
            Command::Meter { process, usage } => put_usage(Writer::of(METER).u128(*process), usage),
            Command::Snapshot { token, name, made } => Writer::of(SNAPSHOT).u128(*token).text(name).u64(*made),
            Command::DropSnapshot { number, is_forced } => {
                Writer::of(DROP_SNAPSHOT).u64(*number).u8((*is_forced).into())
            }
            Command::AddBranch { snapshot, branch, name } => {
                Writer::of(ADD_BRANCH).u64(*snapshot).u128(*branch).text(name)
            }
            Command::DropBranch { branch } => Writer::of(DROP_BRANCH).u128(*branch),
        }
        .done()
    }

    /// The space that a command drops, if it does, without a look at its other bytes.
    pub fn dropped_space(bytes: &[u8]) -> Option<u32> {
        match bytes.first()? {
            &DROP_SPACE => match Self::decode(bytes) {
                Ok(Command::DropSpace { space, .. }) => Some(space),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether nodes may be asked to keep it.
    ///
    /// # Errors
    /// [`Error::Invalid`](cenote_base::Error::Invalid) if it is too long, or names something as nothing can be called.
    pub fn check(&self) -> Result<()> {
        let (length, most) = match self {
            Command::Append { redo, .. } => (redo.len(), PIECE_MAX),
            Command::Take { record, .. } => (record.len(), RECORD_MAX),
            Command::Begin { control, .. } | Command::Control { control, .. } => (control.len(), RECORD_MAX),
            Command::MakeSpace { .. } | Command::DropSpace { .. } | Command::Meter { .. } => (0, 0),
            Command::Replace { .. } | Command::Register { .. } => (0, 0),
            Command::DropSnapshot { .. } | Command::DropBranch { .. } => (0, 0),
            Command::Snapshot { name, .. } | Command::AddBranch { name, .. } => return check_name(name),
        };
        match length <= most {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "a command of {length} bytes, {most} at most can be"
            ))),
        }
    }

    /// # Errors
    /// [`Error::Corrupt`](cenote_base::Error::Corrupt).
    pub fn decode(bytes: &[u8]) -> Result<Command> {
        let mut reader = Reader::new(bytes, "a command of the storage nodes' log");
        let kind = reader.u8()?;
        let command = Self::fields(kind, &mut reader)?;
        reader.end()?;
        Ok(command)
    }

    fn fields(kind: u8, r: &mut Reader<'_>) -> Result<Command> {
        Ok(match kind {
            TAKE => Command::Take {
                former: r.u64()?,
                token: r.u128()?,
                record: r.bytes()?.to_vec(),
            },
            BEGIN => Command::Begin {
                epoch: r.u64()?,
                sequence: r.u64()?,
                control: r.bytes()?.to_vec(),
                origin: r.lsn()?,
            },
            CONTROL => Command::Control {
                epoch: r.u64()?,
                sequence: r.u64()?,
                control: r.bytes()?.to_vec(),
            },
            APPEND => Command::Append {
                epoch: r.u64()?,
                at: r.lsn()?,
                end: {
                    let is_whole = r.u8()? == 1;
                    let end = take_end(r)?;
                    is_whole.then_some(end)
                },
                redo: r.bytes()?.to_vec(),
            },
            MAKE_SPACE => Command::MakeSpace {
                epoch: r.u64()?,
                sequence: r.u64()?,
                space: r.u32()?,
            },
            DROP_SPACE => Command::DropSpace {
                epoch: r.u64()?,
                sequence: r.u64()?,
                space: r.u32()?,
            },
            METER => Command::Meter {
                process: r.u128()?,
                usage: take_usage(r)?,
            },
            SNAPSHOT => Command::Snapshot {
                token: r.u128()?,
                name: r.text()?,
                made: r.u64()?,
            },
            DROP_SNAPSHOT => Command::DropSnapshot {
                number: r.u64()?,
                is_forced: r.u8()? == 1,
            },
            ADD_BRANCH => Command::AddBranch {
                snapshot: r.u64()?,
                branch: r.u128()?,
                name: r.text()?,
            },
            DROP_BRANCH => Command::DropBranch { branch: r.u128()? },
            REPLACE => Command::Replace {
                node: r.u64()?,
                identity: r.u128()?,
            },
            REGISTER => Command::Register {
                node: r.u64()?,
                identity: r.u128()?,
            },
            _ => return Err(r.wrong("there is no such kind")),
        })
    }
}

pub(crate) fn put_end(writer: Writer, end: LogEnd) -> Writer {
    writer.lsn(end.end).lsn(end.last_start).u32(end.last_checksum)
}

pub(crate) fn take_end(reader: &mut Reader<'_>) -> Result<LogEnd> {
    Ok(LogEnd {
        end: reader.lsn()?,
        last_start: reader.lsn()?,
        last_checksum: reader.u32()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_back_as_they_were() {
        let end = LogEnd {
            end: Lsn::from_raw(800),
            last_start: Lsn::from_raw(700),
            last_checksum: 5,
        };
        let (epoch, sequence, control) = (3, 4, vec![1, 2, 3]);
        let commands = [
            Command::Take {
                former: 2,
                token: u128::MAX - 1,
                record: vec![9; 40],
            },
            Command::Begin {
                epoch,
                sequence,
                control: control.clone(),
                origin: Lsn::from_raw(4096),
            },
            Command::Control {
                epoch,
                sequence,
                control,
            },
            Command::Append {
                epoch,
                at: Lsn::from_raw(600),
                end: Some(end),
                redo: vec![7; 200],
            },
            Command::Append {
                epoch,
                at: Lsn::from_raw(600),
                end: None,
                redo: Vec::new(),
            },
            Command::MakeSpace {
                epoch,
                sequence,
                space: 6,
            },
            Command::DropSpace {
                epoch,
                sequence,
                space: 6,
            },
            Command::Replace { node: 2, identity: 9 },
            Command::Register { node: 1, identity: 8 },
            Command::Snapshot {
                token: 6,
                name: "monday".into(),
                made: 1 << 50,
            },
            Command::DropSnapshot {
                number: 4,
                is_forced: true,
            },
            Command::AddBranch {
                snapshot: 4,
                branch: u128::MAX,
                name: "test".into(),
            },
            Command::DropBranch { branch: 7 },
            Command::Meter {
                process: 3,
                usage: Usage {
                    cpu_ms: 4,
                    ..Usage::default()
                },
            },
        ];
        for command in commands {
            let bytes = command.encode();
            assert_eq!(Command::decode(&bytes).unwrap(), command);
            assert!(Command::decode(&bytes[..bytes.len() - 1]).is_err());
            assert!(Command::decode(&[bytes, vec![0]].concat()).is_err());
        }
        assert!(Command::decode(&[99]).is_err());
    }
}
