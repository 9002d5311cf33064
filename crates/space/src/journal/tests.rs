//! The journal's bytes, its steps, and what the next owner finds of a step that was cut off.

use super::*;
use crate::{Session, SpaceOptions};

struct Bed {
    session: Session,
    words: Vec<GlobalAddress>,
    journal: Journal,
}

impl Bed {
    /// Words that hold their own numbers, and a journal.
    fn new(words: u64, bytes: u64) -> Self {
        let options = SpaceOptions {
            bytes: 16 << 20,
            ..SpaceOptions::default()
        };
        let session = Space::dram(&options).expect("memory").session();
        let object = session.alloc(8 * words).expect("room");
        let words: Vec<_> = (0..words).map(|n| inside(object, 8 * n).expect("inside")).collect();
        for (n, word) in words.iter().enumerate() {
            session.store(*word, n as u64).expect("there");
        }
        let journal = Journal::new(session.alloc(bytes).expect("room"), bytes);
        Self {
            session,
            words,
            journal,
        }
    }

    fn put(&mut self, word: usize, value: u64) -> Result<()> {
        self.journal.put(&self.session, self.words[word], value)
    }

    fn values(&self) -> Vec<u64> {
        let value = |word: &GlobalAddress| self.session.load(*word).expect("there");
        self.words.iter().map(value).collect()
    }

    fn count(&self) -> u64 {
        self.session.load(self.journal.at()).expect("there")
    }

    /// The journal as the next process takes it up.
    fn next_owner(&mut self) -> Result<()> {
        self.journal = Journal::new(self.journal.at(), self.journal.bytes());
        self.journal.recover(&self.session)
    }
}

/// Key-value stores and file systems of former versions hold journals of these bytes.
#[test]
fn its_bytes_are_those_of_former_versions() {
    let mut bed = Bed::new(3, 64);
    bed.put(1, 70).expect("room");
    bed.put(2, 80).expect("room");
    bed.put(2, 80).expect("the same again takes no pair");
    let mut bytes = [[0; 8]; 8];
    bed.session
        .read(bed.journal.at(), bytes.as_flattened_mut())
        .expect("there");
    let expected = [2, 0, bed.words[1].raw(), 1, bed.words[2].raw(), 2, 0, 0];
    assert_eq!(bytes.map(u64::from_ne_bytes), expected);
    bed.journal.end(&bed.session).expect("ended");
    assert_eq!((bed.count(), bed.values()), (0, vec![0, 70, 80]));
}

#[test]
fn the_next_owner_takes_a_step_back_that_was_cut_off() {
    let mut bed = Bed::new(4, 4096);
    bed.put(0, 7).expect("room");
    bed.journal.end(&bed.session).expect("ended");
    for (word, value) in [(1, 10), (2, 20), (1, 11), (3, 30)] {
        bed.put(word, value).expect("room");
    }
    assert_eq!(bed.values(), [7, 11, 20, 30]);
    bed.next_owner().expect("taken back");
    assert_eq!((bed.count(), bed.values()), (0, vec![7, 1, 2, 3]));
    bed.next_owner().expect("nothing to do");
    assert_eq!(bed.values(), [7, 1, 2, 3]);
}

#[test]
fn an_inner_part_is_taken_back_alone() {
    let mut bed = Bed::new(3, 4096);
    bed.put(0, 10).expect("room");
    let mark = bed.journal.mark();
    bed.put(0, 11).expect("room");
    bed.put(1, 12).expect("room");
    bed.journal.undo(&bed.session, mark).expect("taken back");
    assert_eq!((bed.count(), bed.values()), (1, vec![10, 1, 2]));
    bed.put(2, 20).expect("room");
    bed.next_owner().expect("taken back");
    assert_eq!(bed.values(), [0, 1, 2]);
}

#[test]
fn a_full_journal_refuses_and_a_larger_one_has_its_pairs() {
    let mut bed = Bed::new(8, 64);
    let room = Journal::room_of(64);
    (0..room).for_each(|n| bed.put(n as usize, 100).expect("room"));
    assert!(bed.journal.is_full() && matches!(bed.put(7, 100), Err(Error::Invalid(_))));
    assert_eq!(bed.values()[7], 7, "what was refused was not done");
    let (referrer, larger) = (
        bed.session.alloc(64).expect("room"),
        bed.session.alloc(256).expect("room"),
    );
    let former = bed.journal.at();
    let left = bed.journal.move_to(&bed.session, larger, 256, referrer).expect("moved");
    assert_eq!(
        (left, bed.session.load(referrer).expect("there")),
        (former, larger.raw())
    );
    bed.session.free(former).expect("freed");
    (room..8).for_each(|n| bed.put(n as usize, 100).expect("room"));
    bed.journal
        .move_to(&bed.session, larger, 64, referrer)
        .expect_err("too small");
    bed.next_owner().expect("taken back");
    assert_eq!(bed.values(), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_count_beyond_its_room_is_refused() {
    let mut bed = Bed::new(1, 64);
    let at = bed.journal.at();
    bed.session
        .store(at, Journal::room_of(64))
        .and(bed.session.store(at, Journal::room_of(64) + 1))
        .expect("there");
    assert!(matches!(bed.next_owner(), Err(Error::Corrupt(_))));
    assert_eq!(bed.values(), [0]);
}

/// An end that fails leaves the step as it is: the next owner takes it back.
#[test]
fn a_step_whose_end_fails_is_taken_back() {
    let mut bed = Bed::new(1, 4096);
    bed.put(0, 9).expect("room");
    let (at, mut held) = (bed.journal.at(), vec![0; 4096]);
    bed.session.read(at, &mut held).expect("there");
    bed.session.free(at).expect("freed");
    bed.journal.end(&bed.session).expect_err("it is gone");
    let again = bed.session.alloc(4096).expect("room");
    bed.session.write(again, &held).expect("there");
    bed.journal = Journal::new(again, 4096);
    bed.next_owner().expect("taken back");
    assert_eq!(bed.values(), [0]);
}
