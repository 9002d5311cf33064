use super::*;
use cenote_base::rt;

const SMALL: u64 = 64 << 10;

fn entry(index: u64, term: u64, length: usize) -> Entry {
    Entry {
        index,
        term,
        data: (0..length)
            .map(|n| (index as usize * 7 + term as usize + n) as u8)
            .collect(),
        ..Entry::default()
    }
}

fn open(dir: &Path) -> RaftLog {
    RaftLog::open(dir, SMALL, (0, 0), false).expect("opens")
}

impl RaftLog {
    fn sync(&mut self) -> Result<()> {
        let mut unsynced = self.unsynced();
        unsynced.sync()?;
        self.note_synced(unsynced);
        Ok(())
    }

    fn compact_now(&mut self, index: u64, kept: u64) {
        for retired in self.compact(index, kept) {
            let spare = retired.retire().expect("renamed");
            spare.into_iter().for_each(|spare| self.add_spare(spare));
        }
    }

    /// As of a process that is killed before its sync.
    fn write_only(&mut self) {
        let mut unsynced = self.unsynced();
        unsynced.write().expect("written");
        self.note_written(unsynced);
    }
}

#[test]
fn entries_are_read_before_they_are_written_and_frames_in_a_row_are_one_write() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(dir.path());
    let entries: Vec<Entry> = (1..=40).map(|index| entry(index, 1, 3500)).collect();
    let mut model = Model::default();
    model.append(&entries);
    log.append(entries[..20].to_vec()).expect("put");
    let mut unsynced = log.unsynced();
    log.append(entries[20..].to_vec()).expect("put");
    model.check(&log);
    assert!(log.files.is_empty(), "no file is touched but by a sync");
    unsynced.sync().expect("synced");
    assert_eq!(open(dir.path()).last_index(), 20);
    log.note_synced(unsynced);
    log.sync().expect("synced");
    assert_eq!(log.files.len(), 3);
    model.check(&log);
    model.check(&open(dir.path()));
}

/// What the log is to hold, kept beside it.
#[derive(Default, Clone)]
struct Model {
    base: u64,
    entries: Vec<Entry>,
}

impl Model {
    fn append(&mut self, new: &[Entry]) {
        for entry in new {
            self.entries.truncate((entry.index - self.base - 1) as usize);
            self.entries.push(entry.clone());
        }
    }

    fn check(&self, log: &RaftLog) {
        assert_eq!(log.last_index(), self.base + self.entries.len() as u64);
        let kept = self.entries.iter().filter(|entry| entry.index >= log.first_index());
        for entry in kept {
            assert_eq!(log.term(entry.index), Some(entry.term), "entry {}", entry.index);
            assert_eq!(
                log.entries(entry.index, entry.index + 1, 0).expect("there"),
                std::slice::from_ref(entry)
            );
        }
    }
}

#[test]
fn entries_and_votes_are_found_again_over_many_segments() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut model = Model::default();
    let mut random = cenote_base::random::Random(rt::random());
    let mut log = open(dir.path());
    for round in 1..=30u64 {
        let from = match model.entries.len() as u64 {
            n if n > 5 && round % 4 == 0 => n - 3,
            n => n + 1,
        };
        let new: Vec<Entry> = (from..from + 6)
            .map(|index| entry(index, round, (random.below(9000)) as usize))
            .collect();
        model.append(&new);
        log.append(new).expect("written");
        let hard = HardState {
            term: round,
            vote: round % 3,
            commit: from.saturating_sub(1),
        };
        log.set_hard_state(&hard).expect("written");
        log.sync().expect("synced");
        if round % 5 == 0 {
            log = open(dir.path());
            assert_eq!(log.hard_state(), &hard);
        }
        model.check(&log);
    }
    assert!(log.files.len() > 3, "it went through segments");
}

#[test]
fn segments_that_are_not_needed_become_new_ones() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(dir.path());
    let mut model = Model::default();
    for index in 1..=200 {
        let new = [entry(index, 1, 5000)];
        model.append(&new);
        log.append(new.to_vec()).expect("written");
        log.sync().expect("synced");
        log.set_commit(index);
        if index % 20 == 0 {
            let term = log.term(index - 10).expect("there");
            log.compact_now(index - 10, 0);
            assert!(
                log.first_index() <= index - 9 && log.first_index() + 40 > index,
                "{}",
                log.first_index()
            );
            assert!(fs::list(dir.path()).expect("listed").len() <= 10);
            model.check(&log);
            log = RaftLog::open(dir.path(), SMALL, (index - 10, term), false).expect("opens");
            model.check(&log);
            log.set_commit(index);
        }
    }
}

#[test]
fn entries_of_a_later_term_replace_those_whose_segments_are_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(dir.path());
    log.append((1..=20).map(|index| entry(index, 1, 3500)).collect())
        .expect("written");
    // Entries from 10 on are replaced, in a later segment that began when the last was 20.
    while !log.tail.is_multiple_of(SMALL) && SMALL - log.tail % SMALL > 3000 {
        log.set_hard_state(&HardState::default()).expect("written");
    }
    let mut model = Model::default();
    model.append(&(1..=20).map(|index| entry(index, 1, 3500)).collect::<Vec<_>>());
    let new: Vec<Entry> = (10..=14).map(|index| entry(index, 2, 3500)).collect();
    model.append(&new);
    log.append(new).expect("written");
    log.set_commit(14);
    log.sync().expect("synced");
    model.check(&open(dir.path()));
    log.compact_now(12, 0);
    assert!(
        log.first_index() >= 10,
        "the first segments are gone: {}",
        log.first_index()
    );
    let again = RaftLog::open(dir.path(), SMALL, (12, 2), false).expect("opens");
    model.check(&again);
    assert_eq!((again.last_index(), again.term(13)), (14, Some(2)));
    drop(again);
    // The same where the state has come beyond the entry that was replaced.
    let mut log = RaftLog::open(dir.path(), SMALL, (12, 2), false).expect("opens");
    log.append((15..=25).map(|index| entry(index, 2, 100)).collect())
        .expect("written");
    log.set_commit(25);
    log.sync().expect("synced");
    let again = RaftLog::open(dir.path(), SMALL, (22, 2), false).expect("opens");
    let terms = (again.term(22), again.term(25), again.last_index());
    assert_eq!(terms, (Some(2), Some(2), 25));
    assert!(again.hard_state().commit >= 22, "what a state has is committed");
}

/// A frame longer than a segment was written over its end, into a segment that nobody had made; a start took the log's
/// end to be before it.
#[test]
fn a_frame_that_no_segment_has_room_for_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(dir.path());
    log.append(vec![entry(1, 1, 3000)]).expect("written");
    log.sync().expect("synced");
    let tail = log.tail;
    let error = log.append(vec![entry(2, 1, SMALL as usize)]).expect_err("refused");
    assert!(error.to_string().contains("has no room"), "{error}");
    assert_eq!((log.tail, log.files.len()), (tail, 1), "nothing was written");
    // The longest that fits, in a segment of its own.
    let beside = HEADER + encode_entry(&entry(2, 1, 0)).len();
    let most = (SMALL - BEGIN_LENGTH) as usize - beside;
    log.append(vec![entry(2, 1, most), entry(3, 1, 10)]).expect("written");
    log.sync().expect("synced");
    let log = open(dir.path());
    assert_eq!(log.entries(2, 3, 0).expect("there"), [entry(2, 1, most)]);
    assert_eq!(log.last_index(), 3);
}

#[test]
fn what_is_missing_of_a_log_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(dir.path());
    log.append((1..=40).map(|index| entry(index, 1, 3500)).collect())
        .expect("written");
    log.set_commit(40);
    log.sync().expect("synced");
    drop(log);
    let refused = |state, why: &str| {
        let error = RaftLog::open(dir.path(), SMALL, state, false)
            .expect_err("refused")
            .to_string();
        assert!(error.contains(why), "{error}");
    };
    refused((41, 1), "it has entries 1 to 40");
    fs::remove(dir.path().join("0000000000000000.log")).expect("removed");
    refused((3, 1), "and the node's state is as of 3");
    RaftLog::open(dir.path(), SMALL, (30, 1), false).expect("what is missing is not needed");
    for name in fs::list(dir.path()).expect("listed") {
        fs::remove(dir.path().join(name)).expect("removed");
    }
    refused((30, 1), "its files are gone");
    RaftLog::open(dir.path(), SMALL, (0, 0), false).expect("a new one");
}

#[test]
fn a_torn_end_is_cut_off_and_damage_before_it_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(dir.path());
    log.append((1..=5).map(|index| entry(index, 1, 400)).collect())
        .expect("written");
    log.sync().expect("synced");
    let torn = log.tail;
    log.append((6..=9).map(|index| entry(index, 1, 400)).collect())
        .expect("written");
    let last = log.tail;
    log.write_only();
    drop(log);
    let file = fs::open(dir.path().join("0000000000000000.log"), OpenOptions::WRITE).expect("opens");
    file.write_at(&[1; 8], torn + 100).expect("torn");
    let mut log = open(dir.path());
    assert_eq!(
        (log.last_index(), log.tail),
        (5, torn),
        "entries behind the torn one do not count"
    );
    // What lay behind it does not come back behind what is written now.
    log.append(vec![entry(6, 2, 400)]).expect("written");
    log.sync().expect("synced");
    log.append(vec![entry(7, 2, 40)]).expect("written");
    log.sync().expect("synced");
    assert!(log.tail < last);
    assert_eq!(open(dir.path()).last_index(), 7);
    // A bit of an entry that was synced before the last one was written.
    file.write_at(&[1; 8], torn - 200).expect("damaged");
    let error = RaftLog::open(dir.path(), SMALL, (0, 0), false)
        .expect_err("refused")
        .to_string();
    assert!(error.contains("damaged at"), "{error}");
}

#[test]
fn a_log_goes_on_behind_a_state_that_was_given() {
    let dir = tempfile::tempdir().expect("a directory");
    let vote = HardState {
        term: 4,
        vote: 2,
        commit: 9,
    };
    let behind = (51..=55).map(|index| entry(index, 4, 3000)).collect::<Vec<_>>();
    {
        let mut log = open(dir.path());
        log.append((1..=10).map(|index| entry(index, 1, 3000)).collect())
            .expect("written");
        log.set_hard_state(&vote).expect("written");
        log.sync().expect("synced");
    }
    // The state was saved, and the process killed before the log was told.
    let error = RaftLog::open(dir.path(), SMALL, (50, 3), false).expect_err("refused");
    assert!(error.to_string().contains("promised to keep"), "{error}");
    let log = RaftLog::open(dir.path(), SMALL, (50, 3), true).expect("opens");
    assert_eq!((log.first_index(), log.last_index(), log.term(50)), (51, 50, Some(3)));
    drop(log);
    // It may be killed again before it has said that it has begun.
    let mut log = RaftLog::open(dir.path(), SMALL, (50, 3), true).expect("opens");
    let hard = log.hard_state();
    assert_eq!((hard.term, hard.vote, hard.commit), (4, 2, 50));
    log.append(behind.clone()).expect("written");
    log.sync().expect("synced");
    drop(log);
    let mut log = RaftLog::open(dir.path(), SMALL, (50, 3), false).expect("opens");
    assert_eq!(log.entries(51, 56, u64::MAX).expect("there"), behind);
    // Given once more, with what is behind the first one.
    log.begin_anew((70, 4), &vote).expect("begun");
    drop(log);
    let mut log = RaftLog::open(dir.path(), SMALL, (70, 4), false).expect("opens");
    assert_eq!((log.first_index(), log.last_index(), log.term(60)), (71, 70, None));
    log.append((71..=90).map(|index| entry(index, 5, 3000)).collect())
        .expect("written");
    log.sync().expect("synced");
    log.set_commit(90);
    log.compact_now(85, 0);
    drop(log);
    let log = RaftLog::open(dir.path(), SMALL, (85, 5), false).expect("opens");
    assert_eq!(
        (log.last_index(), log.term(88), log.hard_state().vote),
        (90, Some(5), 2)
    );
    // A directory that has nothing.
    let dir = tempfile::tempdir().expect("a directory");
    let log = RaftLog::open(dir.path(), SMALL, (50, 3), true).expect("opens");
    assert_eq!((log.first_index(), log.last_index(), log.term(50)), (51, 50, Some(3)));
}
