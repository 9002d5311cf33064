//! What a node keeps beside its Raft log and its pages: what it is, and the state up to which pages are merged.
//!
//! ```text
//! DIR/node    u32 magic, u32 format, text cluster, u64 number, u128 identity, the numbers of all nodes; u32 crc32c
//! DIR/peers   u32 magic, u32 format, for each other node: u64 number, u128 identity; u32 crc32c
//! DIR/state   u32 magic, u32 format, u64 index, u64 term, bytes: the state as of that entry,
//!             u8 whether pages are lacking: u64 entry as of which they are to be, their spaces, u64 the first of them,
//!             u8 whether their files are made; u32 crc32c
//! ```
//!
//! `state` is replaced whole. The Raft log has all entries behind it.

use std::path::{Path, PathBuf};

use cenote_base::bytes::get_le;
use cenote_base::crc::crc32c;
use cenote_base::error::IoContext;
use cenote_base::rt::{self, Mutex, fs};
use cenote_base::{Error, Result};

use crate::codec::{Reader, Writer};
use crate::machine::Machine;
use crate::pages::{Checkpoint, Lacking, Saved};

const NODE: u32 = u32::from_le_bytes(*b"CNnd");
const STATE: u32 = u32::from_le_bytes(*b"CNst");
const PEERS: u32 = u32::from_le_bytes(*b"CNpe");
const FORMAT: u32 = 2;
/// By which a node knows why another one refuses it.
pub(crate) const ANOTHER_DIRECTORY: &str = "comes with another directory than it had";
/// The same, where one that it had before was replaced already.
pub(crate) const REPLACED_DIRECTORY: &str = "comes with a directory that another one took the place of";

/// What a node is, for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub cluster: String,
    pub number: u64,
    /// Of this directory: a node whose disk was lost comes again with another.
    pub identity: u128,
    /// All nodes of the cluster, in order.
    pub nodes: Vec<u64>,
}

impl Identity {
    /// Reads the file `node` in `dir`, or makes it.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the directory is of another node or cluster; [`Error::Corrupt`]; an I/O error.
    pub fn open(dir: &Path, cluster: &str, number: u64, nodes: &[u64]) -> Result<Identity> {
        let path = dir.join("node");
        let Some(bytes) = read(&path)? else {
            let made = Identity {
                cluster: cluster.to_owned(),
                number,
                identity: rt::random_u128(),
                nodes: nodes.to_vec(),
            };
            write(&path, made.encode())?;
            return Ok(made);
        };
        let found = Identity::decode(fields(&path, &bytes, NODE)?)?;
        let asked = (cluster, number, nodes);
        if (found.cluster.as_str(), found.number, found.nodes.as_slice()) != asked {
            return Err(Error::Mismatch(format!(
                "{} is of node {} of the cluster \"{}\" with nodes {:?}, not of node {number} of \"{cluster}\" with \
                 nodes {nodes:?}",
                dir.display(),
                found.number,
                found.cluster,
                found.nodes
            )));
        }
        Ok(found)
    }

    fn encode(&self) -> Writer {
        head(NODE)
            .text(&self.cluster)
            .u64(self.number)
            .u128(self.identity)
            .each(&self.nodes, |writer, node| writer.u64(*node))
    }

    fn decode(mut r: Reader<'_>) -> Result<Identity> {
        let identity = Identity {
            cluster: r.text()?,
            number: r.u64()?,
            identity: r.u128()?,
            nodes: r.each(|r| r.u64())?,
        };
        r.end()?;
        Ok(identity)
    }
}

/// The disks that the other nodes came with when they first did.
///
/// A node that comes with an empty directory has forgotten for whom it voted and what it received. Raft counts on both:
/// such a node is none of the cluster's.
#[derive(Debug)]
pub(crate) struct KnownPeers {
    path: PathBuf,
    known: Vec<(u64, u128)>,
}

impl KnownPeers {
    /// # Errors
    /// [`Error::Corrupt`]; an I/O error.
    pub fn open(dir: &Path) -> Result<KnownPeers> {
        let path = dir.join("peers");
        let known = match read(&path)? {
            None => Vec::new(),
            Some(bytes) => {
                let mut r = fields(&path, &bytes, PEERS)?;
                let known = r.each(|r| Ok((r.u64()?, r.u128()?)))?;
                r.end()?;
                known
            }
        };
        Ok(KnownPeers { path, known })
    }

    /// Whether node `number` comes with the disk that it had; one that comes for the first time is noted, durably.
    /// `first`: with which it came first to others, as far as the state knows.
    ///
    /// # Errors
    /// [`Error::Mismatch`]; an I/O error.
    pub fn check(&mut self, number: u64, identity: u128, first: Option<u128>) -> Result<()> {
        let known = self.known.iter().find(|(known, _)| *known == number);
        match known.map(|(_, known)| *known) {
            Some(known) if known == identity => Ok(()),
            None if first.is_none_or(|first| first == identity) => self.note(number, identity),
            _ => Err(Error::Mismatch(format!(
                "node {number} {ANOTHER_DIRECTORY}: it has lost its votes and its log, and takes \
                 no part. Bring its directory back; or, if that is lost, let this one take its place: \
                 cenote storage replace --node {number} --storage ..."
            ))),
        }
    }

    fn note(&mut self, number: u64, identity: u128) -> Result<()> {
        let known = [self.known.clone(), vec![(number, identity)]].concat();
        write(
            &self.path,
            head(PEERS).each(&known, |w, (node, identity)| w.u64(*node).u128(*identity)),
        )?;
        self.known = known;
        Ok(())
    }
}

/// The state that was saved last; the first one, before any entry, if there is none.
///
/// # Errors
/// [`Error::Corrupt`]; an I/O error.
pub(crate) fn load_state(dir: &Path) -> Result<Saved> {
    let path = dir.join("state");
    let Some(bytes) = read(&path)? else {
        let (entry, machine) = ((0, 0), Machine::default());
        return Ok(Saved {
            checkpoint: Checkpoint { entry, machine },
            lacking: None,
        });
    };
    let mut r = fields(&path, &bytes, STATE)?;
    let entry = (r.u64()?, r.u64()?);
    let machine = Machine::decode(r.bytes()?)?;
    let lacks = r.u8()? == 1;
    let lacking = lacks.then(|| Lacking::decode(&mut r)).transpose()?;
    r.end()?;
    Ok(Saved {
        checkpoint: Checkpoint { entry, machine },
        lacking,
    })
}

/// The file `state` of a node that runs.
#[derive(Debug)]
pub(crate) struct StateFile {
    dir: PathBuf,
    /// Another node gave the state: what this one has of before is not saved any more.
    is_given: Mutex<bool>,
}

impl StateFile {
    pub fn new(dir: &Path) -> StateFile {
        StateFile {
            dir: dir.to_owned(),
            is_given: Mutex::new(false),
        }
    }

    /// Saves a state of the node's own, durably; nothing, if it was given another.
    ///
    /// # Errors
    /// An I/O error; the one before counts then.
    pub fn save(&self, saved: &Saved) -> Result<()> {
        match *self.is_given.lock() {
            true => Ok(()),
            false => save_state(&self.dir, saved),
        }
    }

    /// Saves a state that another node gave.
    ///
    /// # Errors
    /// As of [`StateFile::save`].
    pub fn save_given(&self, saved: &Saved) -> Result<()> {
        let mut is_given = self.is_given.lock();
        save_state(&self.dir, saved)?;
        *is_given = true;
        Ok(())
    }
}

/// Saves a state, durably.
///
/// # Errors
/// An I/O error; the one before counts then.
pub(crate) fn save_state(dir: &Path, saved: &Saved) -> Result<()> {
    let (index, term) = saved.checkpoint.entry;
    let machine = saved.checkpoint.machine.encode();
    let fields = head(STATE).u64(index).u64(term).bytes(&machine);
    let fields = fields.u8(saved.lacking.is_some().into());
    let fields = match &saved.lacking {
        Some(lacking) => lacking.encode(fields),
        None => fields,
    };
    write(&dir.join("state"), fields)
}

fn head(magic: u32) -> Writer {
    Writer::default().u32(magic).u32(FORMAT)
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    if !fs::exists(path).doing(|| format!("looking for {}", path.display()))? {
        return Ok(None);
    }
    fs::read(path).doing(|| format!("reading {}", path.display())).map(Some)
}

fn write(path: &Path, fields: Writer) -> Result<()> {
    let bytes = fields.done();
    let sum = crc32c(&bytes);
    let bytes = [bytes, sum.to_le_bytes().to_vec()].concat();
    fs::replace(path, &bytes).doing(|| format!("writing {}", path.display()))
}

/// The fields of a file of this kind, its checksum and format checked.
fn fields<'a>(path: &Path, bytes: &'a [u8], magic: u32) -> Result<Reader<'a>> {
    let damaged = || Error::corrupt(format!("{} is damaged", path.display()));
    let (fields, sum) = bytes
        .split_at_checked(bytes.len().saturating_sub(4))
        .ok_or_else(damaged)?;
    if get_le::<u32>(sum, 0) != Some(crc32c(fields)) || get_le::<u32>(fields, 0) != Some(magic) {
        return Err(damaged());
    }
    match get_le::<u32>(fields, 4) {
        Some(FORMAT) => Ok(Reader::new(&fields[8..], "a storage node's file")),
        version => Err(Error::Mismatch(format!(
            "{} has format version {}, this program knows {FORMAT}",
            path.display(),
            version.unwrap_or(0)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;

    #[test]
    fn a_directory_is_of_one_node_for_good() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = Identity::open(dir.path(), "shop", 2, &[1, 2, 3]).expect("made");
        assert_eq!(Identity::open(dir.path(), "shop", 2, &[1, 2, 3]).expect("there"), first);
        for (cluster, number, nodes) in [
            ("shop", 1, vec![1, 2, 3]),
            ("bank", 2, vec![1, 2, 3]),
            ("shop", 2, vec![2]),
        ] {
            let error = Identity::open(dir.path(), cluster, number, &nodes)
                .expect_err("refused")
                .to_string();
            assert!(error.contains("is of node 2 of the cluster \"shop\""), "{error}");
        }
    }

    #[test]
    fn a_node_that_lost_its_disk_is_none_of_the_cluster_s() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut known = KnownPeers::open(dir.path()).expect("none");
        known.check(1, 11, None).expect("the first time");
        known.check(3, 33, Some(33)).expect("the first time");
        assert!(
            known.check(2, 22, Some(21)).is_err(),
            "it came to others with another one"
        );
        let mut known = KnownPeers::open(dir.path()).expect("there");
        known.check(1, 11, Some(10)).expect("as it was here");
        assert!(
            known
                .check(3, 34, Some(34))
                .expect_err("refused")
                .to_string()
                .contains("another directory")
        );
    }

    #[test]
    fn a_state_comes_back_and_damage_is_told() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(load_state(dir.path()).expect("none").checkpoint.entry, (0, 0));
        let mut machine = Machine::default();
        machine.apply(Command::Take {
            former: 0,
            token: 5,
            record: vec![1],
        });
        let checkpoint = Checkpoint { entry: (7, 2), machine };
        for lacking in [None, Some(Lacking::all_of(&checkpoint))] {
            let saved = Saved {
                checkpoint: checkpoint.clone(),
                lacking,
            };
            save_state(dir.path(), &saved).expect("saved");
            let again = load_state(dir.path()).expect("there");
            assert_eq!(again.checkpoint.entry, checkpoint.entry);
            assert_eq!(again.checkpoint.machine, checkpoint.machine);
            assert_eq!(again.lacking, saved.lacking);
        }
        let path = dir.path().join("state");
        let mut bytes = fs::read(&path).expect("read");
        bytes[20] ^= 1;
        fs::replace(&path, &bytes).expect("written");
        assert!(
            load_state(dir.path())
                .expect_err("refused")
                .to_string()
                .contains("damaged")
        );
    }
}
