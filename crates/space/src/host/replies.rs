//! What a host remembers of its users, so that what they ask for twice is done once: see
//! [`super::super::far::Channel`].
//!
//! Invariants:
//! 1. a request with a number is done at most once: when it comes again, its user gets the answer of then, or an error
//!    that says that it is not known whether it was done;
//! 2. a user has one connection; what comes by an older one is refused, as it is late;
//! 3. a user that is forgotten comes back to another memory, and so hears nothing of what it had asked the former one.
//!
//! Lock order: hosts, replies, a user. A user is locked while something is done for it, which waits for nothing.

use crate::far::wire;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Mutex};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::CallerId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Answers that are remembered of each user.
const ANSWERS_MAX: usize = 256;
/// An answer of more bytes is long. Of long ones so many bytes are remembered, and the last one.
const LONG: usize = 64;
const LONG_BYTES_MAX: usize = 16 << 10;
/// Users without a connection that are remembered, and bytes of their long answers.
const DISCONNECTED_MAX: usize = 256;
const DISCONNECTED_BYTES_MAX: usize = 1 << 20;

/// All users of a part.
#[derive(Default)]
pub(super) struct Replies(Mutex<Users>);

#[derive(Default)]
struct Users {
    all: BTreeMap<u128, Arc<User>>,
    /// Those that have no connection, by how long ago it ended, and the bytes of their long answers.
    disconnected: VecDeque<(u128, usize)>,
}

/// A user, over one connection after the other.
pub(super) struct User {
    id: u128,
    memory: u64,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    connection: Option<CallerId>,
    /// Which of its connections that is.
    turn: u64,
    /// The greatest number that has come.
    newest: u64,
    /// What was answered, by number.
    answers: VecDeque<(u64, Reply)>,
    /// Of the long ones.
    long_bytes: usize,
    /// Of numbers up to here it is not known whether they were done, unless they are among the answers.
    forgotten: u64,
}

/// An answer.
struct Reply {
    /// Without the zeros that it ends with: that all of many writes were done are four bytes. None: it was long, and is
    /// gone.
    bytes: Option<core::result::Result<Box<[u8]>, Box<Error>>>,
    len: usize,
}

impl Reply {
    fn new(done: &Result<()>, answer: &[u8]) -> Self {
        let end = answer.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Self {
            bytes: Some(done.clone().map(|()| answer[..end].into()).map_err(Box::new)),
            len: answer.len(),
        }
    }

    /// Its bytes, if it is long.
    fn long(&self) -> usize {
        let len = match &self.bytes {
            Some(Ok(bytes)) => bytes.len(),
            Some(Err(_)) | None => 0,
        };
        if len > LONG { len } else { 0 }
    }

    fn give(&self, answer: &mut Vec<u8>) -> Result<()> {
        let bytes = self.bytes.as_ref().ok_or_else(forgotten)?;
        answer.clear();
        answer.extend_from_slice(bytes.as_ref().map_err(|error| (**error).clone())?);
        answer.resize(self.len, 0);
        Ok(())
    }
}

fn forgotten() -> Error {
    Error::Timeout("it is not known any more whether this was done: much else was asked for since".into())
}

impl Replies {
    /// A user comes by a connection, and what it had before is over.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has a later one already, or that is none.
    pub(super) fn greet(&self, id: u128, turn: u64, connection: CallerId) -> Result<Arc<User>> {
        if turn == 0 {
            return Err(Error::Invalid("connections are counted from 1 on".into()));
        }
        let mut users = self.0.lock();
        let user = Arc::clone(users.all.entry(id).or_insert_with(|| Arc::new(User::new(id))));
        user.connect(turn, connection)?;
        users.disconnected.retain(|(disconnected, _)| *disconnected != id);
        Ok(user)
    }

    /// A connection of a user is over. A user that comes back finds what is remembered of it, if not too many others
    /// have gone since.
    pub(super) fn leave(&self, user: &User, connection: CallerId) {
        let mut users = self.0.lock();
        let Some(bytes) = user.disconnect(connection) else {
            return;
        };
        assert!(
            users.disconnected.iter().all(|(id, _)| *id != user.id),
            "a user left twice"
        );
        users.disconnected.push_back((user.id, bytes));
        while users.are_too_many()
            && let Some((oldest, _)) = users.disconnected.pop_front()
        {
            assert!(users.all.remove(&oldest).is_some(), "a user that left is known");
        }
    }
}

impl Users {
    fn are_too_many(&self) -> bool {
        let bytes: usize = self.disconnected.iter().map(|(_, bytes)| bytes).sum();
        self.disconnected.len() > DISCONNECTED_MAX || self.disconnected.len() > 1 && bytes > DISCONNECTED_BYTES_MAX
    }
}

impl User {
    fn new(id: u128) -> Self {
        Self {
            id,
            memory: rt::random(),
            known: Mutex::default(),
        }
    }

    /// By what it is told apart from what is remembered of the same user another time.
    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    fn connect(&self, turn: u64, connection: CallerId) -> Result<()> {
        let mut known = self.known.lock();
        if turn <= known.turn {
            return Err(Error::Invalid("this user has come by another connection since".into()));
        }
        (known.turn, known.connection) = (turn, Some(connection));
        Ok(())
    }

    /// If that was its connection, the bytes of its long answers.
    fn disconnect(&self, connection: CallerId) -> Option<usize> {
        let mut known = self.known.lock();
        let was_its = known.connection.take_if(|known| *known == connection);
        was_its.map(|_| known.long_bytes)
    }

    /// Does a request and writes its answer, or gives the answer of when it was done.
    ///
    /// # Errors
    /// [`wire::unheard`] if it has come by a former connection: it is not done; [`Error::Timeout`] if it is not known
    /// any more whether it was done; those of doing it.
    pub(super) fn once(
        &self,
        connection: CallerId,
        (number, is_again): (u32, bool),
        answer: &mut Vec<u8>,
        work: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let mut known = self.known.lock();
        if known.connection != Some(connection) && !planted(Fault::LateConnection) {
            return Err(wire::unheard("this user has come by another connection since"));
        }
        let number = known.whole(number);
        if is_again
            && !planted(Fault::ReplyOnce)
            && let Some(answered) = known.answered(number)
        {
            return answered.and_then(|reply| reply.give(answer));
        }
        let done = work(answer);
        known.remember(number, Reply::new(&done, answer));
        done
    }
}

impl Known {
    /// The number with this low half: the one that is next to the greatest that has come.
    fn whole(&mut self, low: u32) -> u64 {
        let distance = low.wrapping_sub(self.newest as u32) as i32;
        let number = match self.newest {
            // Of the numbers that come first some may have been overtaken.
            0 => (1 << 32) + u64::from(low),
            newest => newest.saturating_add_signed(distance.into()),
        };
        self.newest = self.newest.max(number);
        number
    }

    /// What was answered; nothing if it was not done.
    fn answered(&self, number: u64) -> Option<Result<&Reply>> {
        match self.answers.binary_search_by_key(&number, |(of, _)| *of) {
            Ok(at) => Some(Ok(&self.answers[at].1)),
            Err(_) if number <= self.forgotten => Some(Err(forgotten())),
            Err(_) => None,
        }
    }

    fn remember(&mut self, number: u64, reply: Reply) {
        if self.answers.len() == ANSWERS_MAX
            && let Some((oldest, reply)) = self.answers.pop_front()
        {
            assert!(reply.long() <= self.long_bytes, "a long answer was not counted");
            self.long_bytes -= reply.long();
            self.forgotten = self.forgotten.max(oldest);
        }
        self.long_bytes += reply.long();
        let at = self.answers.partition_point(|(of, _)| *of < number);
        self.answers.insert(at, (number, reply));
        assert!(
            self.answers.len() <= ANSWERS_MAX,
            "{} answers of a user",
            self.answers.len()
        );
        self.forget_long();
    }

    /// Long answers go before others: the oldest of them, while they are too much and more than one. That they were
    /// given is remembered.
    fn forget_long(&mut self) {
        if self.long_bytes <= LONG_BYTES_MAX {
            return;
        }
        let mut long = self.answers.iter_mut().filter(|(_, reply)| reply.long() > 0).peekable();
        while self.long_bytes > LONG_BYTES_MAX
            && let Some((_, reply)) = long.next()
            && long.peek().is_some()
        {
            assert!(reply.long() <= self.long_bytes, "a long answer was not counted");
            self.long_bytes -= reply.long();
            reply.bytes = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: CallerId = CallerId(1);
    const SECOND: CallerId = CallerId(2);

    /// Asks for something whose answer is this, and whether it was done.
    fn ask(user: &User, by: CallerId, number: u32, is_again: bool, answer: &[u8]) -> (Result<Vec<u8>>, bool) {
        let (mut bytes, mut is_done) = (Vec::new(), false);
        let asked = user.once(by, (number, is_again), &mut bytes, |into| {
            is_done = true;
            into.extend_from_slice(answer);
            Ok(())
        });
        (asked.map(|()| bytes), is_done)
    }

    #[test]
    fn what_is_asked_again_is_answered_as_before() {
        let replies = Replies::default();
        let user = replies.greet(7, 1, FIRST).expect("known");
        for (number, answer) in [(1, &[0; 24][..]), (2, &[0, 3, 0, 0]), (3, &[])] {
            let (first, is_done) = ask(&user, FIRST, number, false, answer);
            assert_eq!((first.expect("done"), is_done), (answer.to_vec(), true));
            let (again, is_done) = ask(&user, FIRST, number, true, &[9]);
            assert_eq!((again.expect("known"), is_done), (answer.to_vec(), false));
        }
        let (never_came, is_done) = ask(&user, FIRST, 5, true, &[4]);
        assert_eq!((never_came.expect("done"), is_done), (vec![4], true));
        // One that was overtaken.
        let (overtaken, is_done) = ask(&user, FIRST, 4, false, &[5]);
        assert_eq!((overtaken.expect("done"), is_done), (vec![5], true));
    }

    #[test]
    fn what_failed_fails_again() {
        let user = Replies::default().greet(7, 1, FIRST).expect("known");
        let fail = |_: &mut Vec<u8>| Err(Error::Invalid("no".into()));
        assert!(user.once(FIRST, (1, false), &mut Vec::new(), fail).is_err());
        let (again, is_done) = ask(&user, FIRST, 1, true, &[1]);
        assert!(matches!(again, Err(Error::Invalid(_))) && !is_done, "{again:?}");
    }

    #[test]
    fn what_comes_by_a_former_connection_is_not_done() {
        let replies = Replies::default();
        let user = replies.greet(7, 1, FIRST).expect("known");
        let same = replies.greet(7, 2, SECOND).expect("known");
        assert!(Arc::ptr_eq(&user, &same));
        let (late, is_done) = ask(&user, FIRST, 1, false, &[]);
        assert!(
            matches!(&late, Err(error) if wire::is_unheard(error)) && !is_done,
            "{late:?}"
        );
        assert!(replies.greet(7, 1, FIRST).is_err(), "a greeting may be late too");
        // The end of the former connection is heard of late.
        replies.leave(&user, FIRST);
        assert!(ask(&user, SECOND, 1, false, &[]).1);
        replies.leave(&user, SECOND);
        let back = replies.greet(7, 3, CallerId(3)).expect("known");
        assert!(!ask(&back, CallerId(3), 1, true, &[]).1, "it was done before");
    }

    #[test]
    fn what_is_forgotten_is_not_done_again() {
        let user = Replies::default().greet(7, 1, FIRST).expect("known");
        // Near the end of the low half, and over it.
        let first = u32::MAX - 100;
        let number = |n: u32| first.wrapping_add(n);
        for n in 0..ANSWERS_MAX as u32 + 10 {
            assert!(ask(&user, FIRST, number(n), false, &[0; 16]).1);
        }
        for n in 0..ANSWERS_MAX as u32 + 10 {
            let (again, is_done) = ask(&user, FIRST, number(n), true, &[]);
            assert!(!is_done && again.is_ok() == (n >= 10), "{n}: {again:?}");
        }
    }

    /// One long answer is as long as a message; it must not make a host forget the short ones.
    #[test]
    fn long_answers_are_forgotten_before_others() {
        let user = Replies::default().greet(7, 1, FIRST).expect("known");
        let asked = |number, answer: &[u8]| ask(&user, FIRST, number, false, answer).1;
        assert!(asked(1, &[1; 4]));
        let long = vec![1; LONG_BYTES_MAX / 2];
        assert!((2..5).all(|n| asked(n, &long)) && asked(5, &[1; LONG]) && asked(6, &vec![1; 2 * LONG_BYTES_MAX]));
        let again = |n| ask(&user, FIRST, n, true, &[9]);
        assert_eq!(
            [1, 2, 3, 4, 5, 6].map(|n| again(n).0.is_ok()),
            [true, false, false, false, true, true]
        );
        assert!((1..7).all(|n| !again(n).1), "none is done again");
        assert!((7..300).all(|n| asked(n, &long[..LONG + 1])));
        assert!(user.known.lock().long_bytes <= LONG_BYTES_MAX);
    }

    #[test]
    fn a_user_without_a_connection_is_not_remembered() {
        let replies = Replies::default();
        assert!(replies.greet(7, 0, FIRST).is_err());
        assert!(replies.0.lock().all.is_empty());
    }

    /// The first ones to a host that has begun anew, out of order, as the low half wraps.
    #[test]
    fn numbers_that_come_first_and_out_of_order_are_told_apart() {
        let user = Replies::default().greet(7, 1, FIRST).expect("known");
        let numbers = [1, u32::MAX - 1, u32::MAX, 2];
        for number in numbers {
            assert!(ask(&user, FIRST, number, false, &number.to_le_bytes()).1);
        }
        for number in numbers {
            let (again, is_done) = ask(&user, FIRST, number, true, &[]);
            assert_eq!((again.expect("known"), is_done), (number.to_le_bytes().to_vec(), false));
        }
    }

    #[test]
    fn long_answers_of_users_that_left_are_bounded() {
        let replies = Replies::default();
        for id in 1..100 {
            let user = replies.greet(id, 1, CallerId(id as u64)).expect("known");
            assert!(ask(&user, CallerId(id as u64), 1, false, &vec![1; 128 << 10]).1);
            replies.leave(&user, CallerId(id as u64));
        }
        let disconnected = replies.0.lock().disconnected.len();
        assert_eq!(disconnected, DISCONNECTED_BYTES_MAX / (128 << 10));
        assert_eq!(replies.0.lock().all.len(), disconnected);
    }

    /// A user that came and went again and again made the host forget all others.
    #[test]
    fn a_user_that_comes_and_goes_is_listed_once() {
        let replies = Replies::default();
        for turn in 1..2 * DISCONNECTED_MAX as u64 {
            let user = replies.greet(7, turn, CallerId(turn)).expect("known");
            replies.leave(&user, CallerId(turn));
        }
        assert_eq!(replies.0.lock().disconnected.len(), 1);
    }

    #[test]
    fn users_that_left_are_remembered_up_to_a_limit() {
        let replies = Replies::default();
        let came = |id: u128, turn| {
            let connection = CallerId(id as u64 * 10 + turn);
            (replies.greet(id, turn, connection).expect("known"), connection)
        };
        let stays = came(1, 1).0;
        let memories: Vec<u64> = (2..DISCONNECTED_MAX as u128 + 12)
            .map(|id| {
                let (user, connection) = came(id, 1);
                replies.leave(&user, connection);
                user.memory()
            })
            .collect();
        assert_eq!(replies.0.lock().all.len(), DISCONNECTED_MAX + 1);
        assert!(Arc::ptr_eq(&came(1, 2).0, &stays), "a user with a connection is known");
        assert_ne!(came(2, 2).0.memory(), memories[0]);
        assert_eq!(
            came(DISCONNECTED_MAX as u128, 2).0.memory(),
            memories[DISCONNECTED_MAX - 2]
        );
    }
}
