//! What a node knows of a seat, outside of the region: whose it is, which requests it has served, which answers wait.

use super::layout;
use super::message::{self, Half, Memory};
use crate::rdma::call::{CallerId, status};
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result, rt};
use std::collections::VecDeque;

/// Whether a user has the seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    #[default]
    Free,
    Open,
    /// The node serves nothing of it any more; it is free when its user is gone for certain.
    Ended,
}

/// Bytes of a seat's answers that may wait for chunks: a user that takes none of its answers keeps no more of the
/// node's memory.
const WAITING_MAX: usize = 4 << 20;

/// An answer that waits for chunks.
struct Waiting {
    slot: u32,
    turn: u32,
    status: u32,
    bytes: Vec<u8>,
}

/// See the module. Under a lock of its own.
#[derive(Default)]
pub struct SeatState {
    pub phase: Phase,
    pub epoch: u32,
    caller: u64,
    /// The user that the node let in, as the node knows it.
    pub who: u64,
    /// Requests that the program is being given.
    serving: u32,
    called: bool,
    told: bool,
    slots: Vec<Slot>,
    /// Chunks for answers.
    free: u64,
    waiting: VecDeque<Waiting>,
    reserved: bool,
}

#[derive(Default, Clone)]
struct Slot {
    /// Of the last request.
    turn: u32,
    /// It is not answered yet.
    asked: bool,
    /// Chunks of the last answer that needed any.
    given: u64,
}

/// What is found in a slot.
pub enum Asked {
    /// A request, to be read; [`SeatState::served`] follows.
    New(Ticket),
    /// Nothing that was not served already.
    Nothing,
    /// What cannot be.
    Nonsense,
}

/// A request that is being served.
#[derive(Debug, Clone, Copy)]
pub struct Ticket {
    pub seat: u32,
    pub slot: u32,
    pub epoch: u32,
    pub turn: u32,
    pub caller: CallerId,
}

impl SeatState {
    /// Gives the seat to a user: the words of its slots are in order before its epoch can be seen.
    ///
    /// # Errors
    /// [`Error::Full`]: there is no memory for it.
    pub fn admit(&mut self, memory: &Memory, seat: u32, epoch: u32, who: u64) -> Result<CallerId> {
        assert!(self.phase == Phase::Free, "a seat is given to one user at a time");
        assert!(epoch != 0, "epoch 0 says that the seat has no user");
        let layout = &memory.layout;
        if !self.reserved {
            memory.region.reserve(layout.seat(seat), layout.seat_len())?;
        }
        for slot in 0..layout.slots {
            memory.store(layout.slot(seat, slot) + layout::ANSWERED, message::turn_of(epoch, 0));
            // A user that was killed has left itself counted.
            let sleeps = memory.region.atomic_u32(layout.slot(seat, slot) + layout::SLEEPS);
            sleeps.store(0, Ordering::SeqCst);
        }
        let caller = rt::random() >> 1 | 1;
        *self = Self {
            phase: Phase::Open,
            epoch,
            caller,
            who,
            slots: vec![Slot::default(); layout.slots as usize],
            free: u64::MAX,
            reserved: true,
            ..Self::default()
        };
        memory.store(layout.seat(seat) + layout::WANTS_ROOM, 0);
        memory.store(layout.seat(seat) + layout::EPOCH, epoch.into());
        Ok(CallerId(caller))
    }

    /// The number of its user.
    pub fn caller(&self) -> CallerId {
        CallerId(self.caller)
    }

    /// Looks at a slot.
    pub fn look(&mut self, memory: &Memory, seat: u32, slot: u32) -> Asked {
        let off = memory.layout.slot(seat, slot) + layout::ASKED;
        let known = &mut self.slots[slot as usize];
        let turn = match message::turn_in(memory.load(off), self.epoch) {
            Some(turn) if turn != known.turn => turn,
            _ => return Asked::Nothing,
        };
        if turn != known.turn.wrapping_add(1) || known.asked {
            return Asked::Nonsense;
        }
        (known.turn, known.asked) = (turn, true);
        // A user that asks again has taken the last answer.
        self.free |= core::mem::take(&mut known.given);
        self.serving += 1;
        self.called = true;
        Asked::New(Ticket {
            seat,
            slot,
            epoch: self.epoch,
            turn,
            caller: self.caller(),
        })
    }

    /// The program has been given a request.
    pub fn served(&mut self) {
        assert!(self.serving > 0, "a request is served once, after it was found");
        self.serving -= 1;
    }

    /// Whether the program is given no request of it now.
    pub fn is_quiet(&self) -> bool {
        self.serving == 0
    }

    /// Answers a request, or keeps the answer until there is room for it. An answer to a former user is dropped.
    pub fn answer(&mut self, memory: &Memory, ticket: Ticket, status: u32, bytes: Vec<u8>) {
        let is_asked = |slot: &Slot| slot.asked && slot.turn == ticket.turn;
        let is_open = self.phase == Phase::Open && self.epoch == ticket.epoch;
        if !is_open || !self.slots.get(ticket.slot as usize).is_some_and(is_asked) {
            return;
        }
        let answer = Waiting {
            slot: ticket.slot,
            turn: ticket.turn,
            status,
            bytes,
        };
        // An answer that needs no chunks overtakes those that wait for some; one that needs some does not.
        let half = memory.answer(ticket.seat, answer.slot);
        let queues = !self.waiting.is_empty() && half.chunks_for(answer.bytes.len()) > 0;
        let put = match queues {
            true => Err(answer),
            false => self.put(memory, ticket.seat, answer),
        };
        if let Err(answer) = put {
            self.wait(memory, ticket.seat, answer);
        }
    }

    /// Keeps an answer until there is room, or answers that too many are kept.
    fn wait(&mut self, memory: &Memory, seat: u32, mut answer: Waiting) {
        let waiting: usize = self.waiting.iter().map(|waiting| waiting.bytes.len()).sum();
        if waiting + answer.bytes.len() > WAITING_MAX {
            let error = Error::Busy("too many answers wait for room".into());
            let (status, bytes) = status::encode(Err(error));
            (answer.status, answer.bytes) = (message::with_filled(status, 0), bytes);
            let Err(refused) = self.put(memory, seat, answer) else {
                return;
            };
            answer = refused;
        }
        self.waiting.push_back(answer);
        memory.store(memory.layout.seat(seat) + layout::WANTS_ROOM, 1);
        self.put_waiting(memory, seat);
    }

    /// Whether answers wait for room.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn put(&mut self, memory: &Memory, seat: u32, answer: Waiting) -> Result<(), Waiting> {
        let half = memory.answer(seat, answer.slot);
        let Some(mask) = message::take_chunks(&mut self.free, half.chunks_for(answer.bytes.len())) else {
            return Err(answer);
        };
        let slot = &mut self.slots[answer.slot as usize];
        assert!(slot.asked && slot.given == 0, "a request is answered once");
        (slot.asked, slot.given) = (false, mask);
        memory.write(half, &answer.bytes, answer.status, mask);
        publish(
            memory,
            seat,
            answer.slot,
            message::turn_of(self.epoch, answer.turn),
            half,
        );
        Ok(())
    }

    /// Sends the answers that wait for room, as far as there is room.
    pub fn put_waiting(&mut self, memory: &Memory, seat: u32) {
        if self.waiting.is_empty() || self.phase != Phase::Open {
            return;
        }
        self.take_back(memory, seat);
        while let Some(answer) = self.waiting.pop_front() {
            if let Err(answer) = self.put(memory, seat, answer) {
                return self.waiting.push_front(answer);
            }
        }
        memory.store(memory.layout.seat(seat) + layout::WANTS_ROOM, 0);
    }

    /// Takes back the chunks of answers that the user has taken.
    fn take_back(&mut self, memory: &Memory, seat: u32) {
        for (n, slot) in (0..).zip(&mut self.slots).filter(|(_, slot)| slot.given != 0) {
            let off = memory.layout.slot(seat, n) + layout::TAKEN;
            if memory.load(off) == message::turn_of(self.epoch, slot.turn) {
                self.free |= core::mem::take(&mut slot.given);
            }
        }
    }

    /// Whether its user has said that it leaves, or what it says cannot be told from that.
    pub fn has_left(&self, memory: &Memory, seat: u32) -> bool {
        memory.load(memory.layout.seat(seat) + layout::LEFT) == u64::from(self.epoch)
    }

    /// Nothing of it is served from here on.
    pub fn end(&mut self, memory: &Memory, seat: u32) {
        if self.phase != Phase::Open {
            return;
        }
        self.phase = Phase::Ended;
        self.waiting.clear();
        memory.store(memory.layout.seat(seat) + layout::EPOCH, 0);
        for slot in 0..memory.layout.slots {
            wake(memory, seat, slot, memory.answer(seat, slot));
        }
    }

    /// Whether its end is to be told, now and once.
    pub fn ends_now(&mut self) -> bool {
        let over = self.phase == Phase::Ended && self.serving == 0;
        over && !core::mem::replace(&mut self.told, true) && self.called
    }

    /// Its user is gone: the seat may be given to another from now on, if nothing of it is being served.
    pub fn free(&mut self) -> bool {
        let is_free = self.phase == Phase::Ended && self.serving == 0 && self.told;
        if is_free {
            self.phase = Phase::Free;
        }
        is_free
    }
}

/// An answer is whole: its word says so, and a thread that sleeps for it is woken.
fn publish(memory: &Memory, seat: u32, slot: u32, turn: u64, half: Half) {
    memory.store(half.word(), turn);
    wake(memory, seat, slot, half);
}

fn wake(memory: &Memory, seat: u32, slot: u32, half: Half) {
    let sleeps = memory.layout.slot(seat, slot) + layout::SLEEPS;
    if memory.region.atomic_u32(sleeps).load(Ordering::SeqCst) != 0 {
        rt::wake_shared(memory.region.atomic_u32(half.word()), usize::MAX);
    }
}

/// What [`Error`] says of a seat that is not to be had.
pub fn none_free(seats: u32) -> Error {
    Error::Busy(format!("all {seats} seats of the ring are taken"))
}
