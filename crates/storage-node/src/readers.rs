//! The readers that ask this node what has changed, and the oldest snapshot that each has in use: what that sees is not
//! purged. A reader that has not asked for [`LEASE`] is gone.

use std::collections::BTreeMap;

use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Lsn, Result};
use cenote_storage::nodes::{FollowRequest, ReaderSeen};

/// How long a reader counts that asks no more.
const LEASE: Nanos = Nanos::from_secs(10);
/// Readers at a time: each has a connection of its own, most of the time.
const READERS_MAX: usize = 128;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Readers(Mutex<BTreeMap<u128, Known>>);

#[derive(Debug)]
struct Known {
    name: String,
    end: Lsn,
    oldest: Lsn,
    at: Nanos,
}

impl Readers {
    /// A reader asks.
    ///
    /// # Errors
    /// [`Error::Busy`]: there are too many.
    pub fn note(&self, request: &FollowRequest) -> Result<()> {
        let mut known = self.0.lock();
        let now = rt::now();
        known.retain(|_, reader| now.since(reader.at) < LEASE);
        if known.len() >= READERS_MAX && !known.contains_key(&request.reader) {
            return Err(Error::Busy(format!(
                "this storage node has {READERS_MAX} readers already"
            )));
        }
        let end = request.since.map_or(Lsn::ZERO, |since| since.end);
        // One that has no place yet holds nothing: its first snapshot is behind this answer.
        if request.since.is_some() {
            let reader = Known {
                name: request.name.clone(),
                end,
                oldest: request.oldest.min(end),
                at: now,
            };
            known.insert(request.reader, reader);
        }
        Ok(())
    }

    /// Those that count.
    pub fn seen(&self) -> Vec<ReaderSeen> {
        let now = rt::now();
        let known = self.0.lock();
        let there = known.iter().filter(|(_, reader)| now.since(reader.at) < LEASE);
        let seen = |(number, reader): (&u128, &Known)| ReaderSeen {
            reader: *number,
            name: reader.name.clone(),
            end: reader.end,
            oldest: reader.oldest,
            ago: now.since(reader.at),
        };
        there.map(seen).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_storage::nodes::Moment;

    fn request(reader: u128, end: u64, oldest: u64) -> FollowRequest {
        FollowRequest {
            reader,
            name: "r".into(),
            since: Some(Moment {
                entry: 1,
                end: Lsn::from_raw(end),
            }),
            oldest: Lsn::from_raw(oldest),
            wait: Nanos::ZERO,
            asked: Vec::new(),
        }
    }

    #[test]
    fn a_reader_holds_what_its_oldest_snapshot_sees_and_no_more_than_its_place() {
        let readers = Readers::default();
        readers.note(&request(1, 500, 300)).expect("noted");
        readers.note(&request(2, 500, 900)).expect("noted");
        let first = FollowRequest {
            since: None,
            ..request(3, 0, 0)
        };
        readers.note(&first).expect("noted");
        let oldest: Vec<u64> = readers.seen().iter().map(|reader| reader.oldest.raw()).collect();
        assert_eq!(oldest, vec![300, 500]);
    }

    #[test]
    fn too_many_readers_are_refused_by_name() {
        let readers = Readers::default();
        (0..READERS_MAX as u128).for_each(|n| readers.note(&request(n, 10, 10)).expect("noted"));
        let refused = readers.note(&request(9999, 10, 10)).expect_err("refused");
        assert!(
            matches!(&refused, Error::Busy(why) if why.contains("128 readers")),
            "{refused}"
        );
        readers.note(&request(5, 20, 20)).expect("it is one of them");
    }
}
