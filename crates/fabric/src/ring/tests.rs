//! What users can do to a ring: garbage, dying anywhere, holding seats.

use super::*;
use crate::Region;
use crate::rdma::call::{Answer, Call, Caller, CallerId, Serve};
use cenote_base::Error;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, Mutex};
use std::sync::Arc;

/// Echoes, but for "keep", and notes whose end it was told.
#[derive(Default)]
struct Echo {
    served: AtomicU64,
    kept: Mutex<Vec<Answer>>,
    ended: Mutex<Vec<CallerId>>,
}

impl Serve for Echo {
    fn serve(&self, _: CallerId, request: &[u8], answer: Answer) {
        self.served.fetch_add(1, Ordering::SeqCst);
        match request {
            b"keep" => self.kept.lock().push(answer),
            _ => answer.with(request),
        }
    }

    fn ended(&self, caller: CallerId) {
        self.ended.lock().push(caller);
    }
}

fn options() -> Options {
    Options {
        seats: 4,
        slots: 8,
        ..Options::default()
    }
}

fn start(options: Options) -> (Node, Arc<Echo>) {
    let echo = Arc::<Echo>::default();
    (Node::start_here(options, Arc::clone(&echo) as _).expect("a ring"), echo)
}

fn sit(node: &Node, who: u64) -> (Seat, Arc<dyn Caller>) {
    let seat = node.admit(who).expect("a seat");
    let user = User::on(Arc::clone(node.region()), seat, UserOptions::default());
    (seat, user.expect("it is there"))
}

fn echo(caller: &dyn Caller, bytes: &[u8]) -> cenote_base::Result<Vec<u8>> {
    let mut answer = Vec::new();
    caller.call(bytes, &mut answer).map(|()| answer)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = rt::now() + rt::Nanos::from_secs(60);
    while !is_so() {
        assert!(rt::now() < end, "{what}");
        rt::sleep(rt::Nanos::from_millis(1));
    }
}

fn layout_of(node: &Node) -> layout::Layout {
    layout::Layout::of(node.region().identity()).expect("a ring")
}

/// A user that is killed and leaves entries for slots that nothing is in: the others go on.
#[test]
fn a_user_that_dies_half_way_holds_up_no_other() {
    let alive = Arc::new(AtomicBool::new(true));
    let theirs = Arc::clone(&alive);
    let (node, _) = start(Options {
        is_there: Arc::new(move |who| who != 1 || theirs.load(Ordering::SeqCst)),
        ..options()
    });
    let (dead, dying) = sit(&node, 1);
    let (_, other) = sit(&node, 2);
    let layout = layout_of(&node);
    for slot in 0..8 {
        polls::put(node.region(), &layout, dead.number * 8 + slot);
    }
    alive.store(false, Ordering::SeqCst);
    core::mem::forget(dying);
    for round in 0..100u8 {
        assert_eq!(echo(&*other, &[round; 64]).expect("served"), [round; 64]);
    }
    until("its seat is free", || {
        node.admit(3).is_ok_and(|seat| seat.number == dead.number)
    });
}

/// An entry that is lost: the request is found by itself.
#[test]
fn a_request_without_an_entry_is_found() {
    let (node, served) = start(options());
    let (seat, user) = sit(&node, 1);
    let (layout, region) = (layout_of(&node), Arc::clone(node.region()));
    let memory = message::Memory { region, layout };
    memory.write(memory.request(seat.number, 5), b"lost", 0, 0);
    memory.store(
        layout.slot(seat.number, 5) + layout::ASKED,
        message::turn_of(seat.epoch, 1),
    );
    until("it is served", || served.served.load(Ordering::SeqCst) == 1);
    assert_eq!(echo(&*user, b"goes on").expect("served"), b"goes on");
}

/// Entries that come twice, or for nothing: each request is served once.
#[test]
fn entries_are_hints() {
    let (node, served) = start(options());
    let (_, user) = sit(&node, 1);
    let layout = layout_of(&node);
    for n in 0..200u32 {
        polls::put(node.region(), &layout, n * 7 % 40);
        assert_eq!(echo(&*user, b"once").expect("served"), b"once");
    }
    assert_eq!(served.served.load(Ordering::SeqCst), 200);
}

/// A slot that the user does not come to by itself.
const SPOILT: u32 = 6;

/// A request that cannot be ends the connection that it came over, and no other.
#[test]
fn nonsense_in_a_slot_ends_its_user() {
    type Spoil = fn(&message::Memory, &Seat);
    let spoils: [Spoil; 5] = [
        |m, s| {
            m.store(
                m.layout.slot(s.number, SPOILT) + layout::ASKED,
                message::turn_of(s.epoch, 7),
            )
        },
        |m, s| spoil_head(m, s, u32::MAX, 0),
        |m, s| spoil_head(m, s, 100, u64::MAX),
        |m, s| spoil_head(m, s, 1 << 17, 1),
        |m, s| spoil_head(m, s, 300, 0),
    ];
    for (n, spoil) in spoils.into_iter().enumerate() {
        let (node, served) = start(options());
        let ((seat, user), (_, other)) = (sit(&node, 1), sit(&node, 2));
        echo(&*user, b"called").expect("served");
        let (layout, region) = (layout_of(&node), Arc::clone(node.region()));
        spoil(&message::Memory { region, layout }, &seat);
        polls::put(node.region(), &layout, seat.number * 8 + SPOILT);
        until("its connection ends", || {
            matches!(echo(&*user, b"?"), Err(Error::Lost(_)))
        });
        assert_eq!(echo(&*other, b"mine").expect("it goes on"), b"mine");
        assert_eq!(served.ended.lock().len(), 1, "spoil {n}: its end was told");
    }
}

fn spoil_head(memory: &message::Memory, seat: &Seat, len: u32, mask: u64) {
    let head = memory.region.span(memory.layout.slot(seat.number, SPOILT), 64);
    head.set_u32(layout::LEN as usize, len);
    head.set_u64(layout::MASK as usize, mask);
    memory.store(
        memory.layout.slot(seat.number, SPOILT) + layout::ASKED,
        message::turn_of(seat.epoch, 1),
    );
}

/// Any bytes anywhere: no panic, no access outside, and a later user is served.
#[test]
fn garbage_everywhere_is_survived() {
    let seed = std::env::var("CENOTE_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(rt::random);
    println!("CENOTE_SEED={seed}");
    for round in 0..10u64 {
        let is_there = Arc::new(AtomicBool::new(true));
        let theirs = Arc::clone(&is_there);
        let (mut node, _) = start(Options {
            consumers: 2,
            is_there: Arc::new(move |who| who == 9 || theirs.load(Ordering::SeqCst)),
            ..options()
        });
        let users: Vec<_> = (0..3).map(|who| sit(&node, who)).collect();
        scribble(node.region(), &layout_of(&node), seed ^ round);
        for (_, user) in &users {
            let call = Call::new(vec![1; 5000]).within(rt::Nanos::from_millis(1));
            drop(user.post(vec![call]).wait());
        }
        is_there.store(false, Ordering::SeqCst);
        users.into_iter().for_each(core::mem::forget);
        // No user wrote over what says that the node is there.
        until("another user is served", || {
            let Ok(seat) = node.admit(9) else { return false };
            let user = User::on(Arc::clone(node.region()), seat, UserOptions::default());
            user.is_ok_and(|user| echo(&*user, &[7; 5000]).is_ok_and(|answer| answer == [7; 5000]))
        });
        node.close();
    }
}

fn scribble(region: &Region, layout: &layout::Layout, seed: u64) {
    let mut n = seed;
    for off in (layout::TAIL..layout.seat(3))
        .step_by(8)
        .filter(|off| *off != layout::OPEN)
    {
        n = cenote_base::random::mix(n.wrapping_add(off));
        if !n.is_multiple_of(3) {
            region
                .atomic_u64(off)
                .store(cenote_base::random::mix(n), Ordering::SeqCst);
        }
    }
}

/// A user that is fenced and wakes up later writes where no process looks, as long as it is there.
#[test]
fn the_seat_of_a_dismissed_user_is_not_given_away_while_it_is_there() {
    let alive = Arc::new(AtomicBool::new(true));
    let theirs = Arc::clone(&alive);
    let (node, served) = start(Options {
        seats: 2,
        is_there: Arc::new(move |who| who != 1 || theirs.load(Ordering::SeqCst)),
        ..options()
    });
    let (seat, user) = sit(&node, 1);
    echo(&*user, b"once").expect("served");
    let waiting = user.post(vec![Call::new("keep").within(rt::Nanos::from_secs(60))]);
    until("it is kept", || served.kept.lock().len() == 1);
    node.dismiss(CallerId(seat.caller));
    assert!(matches!(waiting.wait()[0].result, Err(Error::Lost(_))));
    assert_eq!(*served.ended.lock(), [CallerId(seat.caller)], "it was told once");
    served.kept.lock().pop().expect("kept").with(b"too late");
    // In the middle of a request when it was stopped.
    let (layout, region) = (layout_of(&node), Arc::clone(node.region()));
    let memory = message::Memory { region, layout };
    memory.write(memory.request(seat.number, 3), b"late", 0, 0);
    memory.store(
        layout.slot(seat.number, 3) + layout::ASKED,
        message::turn_of(seat.epoch, 1),
    );
    polls::put(node.region(), &layout, seat.number * 8 + 3);
    let (_, other) = sit(&node, 2);
    assert_eq!(echo(&*other, b"mine").expect("served"), b"mine");
    assert!(matches!(node.admit(3), Err(Error::Busy(_))), "its seat is its own");
    assert_eq!(served.served.load(Ordering::SeqCst), 3);
    alive.store(false, Ordering::SeqCst);
    until("its seat is free", || node.admit(3).is_ok());
    assert_eq!(served.ended.lock().len(), 1);
}

/// More long answers than there are chunks wait for each other, and all come.
#[test]
fn answers_wait_for_room() {
    let (node, _) = start(options());
    let (_, user) = sit(&node, 1);
    let calls: Vec<_> = (0..40u8).map(|n| Call::new(vec![n; 100_000])).collect();
    let begun: Vec<_> = calls
        .chunks(5)
        .map(|some| some.iter().map(|c| Call::new(c.request.clone())).collect())
        .collect();
    let under_way: Vec<_> = begun.into_iter().map(|some| user.post(some)).collect();
    let answers = under_way.into_iter().flat_map(|called| called.wait());
    for (call, asked) in answers.zip(calls) {
        assert!(call.into_answer().expect("answered") == asked.request);
    }
}

#[test]
fn a_seat_of_another_start_is_refused() {
    let (node, _) = start(options());
    let seat = node.admit(1).expect("a seat");
    let join = |seat| User::on(Arc::clone(node.region()), seat, UserOptions::default()).map(drop);
    let wrong = [
        Seat {
            epoch: seat.epoch ^ 1,
            ..seat
        },
        Seat {
            incarnation: seat.incarnation ^ 2,
            ..seat
        },
        Seat { number: 3, ..seat },
    ];
    for seat in wrong {
        assert!(matches!(join(seat), Err(Error::Lost(_))), "{seat:?}");
    }
    assert!(matches!(join(Seat { number: 4, ..seat }), Err(Error::Invalid(_))));
    join(seat).expect("that one is right");
}

/// A bug that was: a user that was dismissed before it gave its seat back did not give it back at all, so each
/// connection that was made anew cost a seat.
#[test]
fn a_seat_that_was_dismissed_is_given_back() {
    let (node, _) = start(options());
    for round in 0..20 {
        let seat = Mutex::new(None);
        until("there is a seat", || {
            *seat.lock() = node.admit(1).ok();
            seat.lock().is_some()
        });
        let seat = seat.lock().take().expect("admitted");
        let user = User::on(Arc::clone(node.region()), seat, UserOptions::default()).expect("it is there");
        assert_eq!(echo(&*user, &[round]).expect("served"), [round]);
        node.dismiss(CallerId(seat.caller));
        assert!(matches!(echo(&*user, b"?"), Err(Error::Lost(_))));
    }
}

/// Answers that are not taken wait for room up to a limit; beyond it they are refused, and a user that takes them later
/// has them all.
#[test]
fn answers_that_are_not_taken_are_limited() {
    let (node, served) = start(Options { slots: 64, ..options() });
    let (_, user) = sit(&node, 1);
    let calls = (0..64).map(|_| Call::new("keep").within(rt::Nanos::from_secs(60)));
    let waiting = user.post(calls.collect());
    until("all are kept", || served.kept.lock().len() == 64);
    let kept = core::mem::take(&mut *served.kept.lock());
    kept.into_iter().for_each(|answer| answer.with(&[7; 128 << 10]));
    let calls = waiting.wait();
    let (answered, refused): (Vec<_>, Vec<_>) = calls.into_iter().partition(|call| call.result.is_ok());
    assert!(answered.iter().all(|call| call.answer == [7; 128 << 10]));
    assert!(refused.iter().all(|call| matches!(call.result, Err(Error::Busy(_)))));
    assert!(!refused.is_empty() && answered.len() >= 32, "{}", answered.len());
}

/// A ring in this process that shares its thread.
fn start_shared(options: Options, servers: &Servers) -> (Node, Arc<Echo>) {
    let echo = Arc::<Echo>::default();
    let node = Node::start_here_with(options, Arc::clone(&echo) as _, servers);
    (node.expect("a ring"), echo)
}

/// One thread for each ring ended a node with some hundred parts. Rings beyond those that a thread can sleep on are
/// served all the same, in any order, and whether they were used for long or not.
#[test]
fn one_thread_serves_more_rings_than_it_sleeps_on() {
    let servers = Servers::new(1, Nanos::from_micros(20)).expect("a thread");
    let few = Options {
        seats: 1,
        slots: 1,
        ..Options::default()
    };
    let rings: Vec<_> = (0..rt::WORDS_MAX as u64 + 60)
        .map(|_| start_shared(few.clone(), &servers))
        .collect();
    let users: Vec<_> = rings.iter().map(|(node, _)| sit(node, 1).1).collect();
    for round in 0..3u8 {
        for (n, user) in users.iter().enumerate() {
            assert_eq!(echo(&**user, &[round, n as u8]).expect("an answer"), [round, n as u8]);
        }
        rt::sleep(Nanos::from_millis(20));
    }
    assert!(rings.iter().all(|(_, echo)| echo.served.load(Ordering::SeqCst) == 3));
}

/// Rings that come and go while others of the same thread are used; a user that comes to a ring that had none.
#[test]
fn rings_come_and_go_at_a_thread() {
    let servers = Servers::new(1, Nanos::from_micros(20)).expect("a thread");
    let (stays, _) = start_shared(options(), &servers);
    let (_, first) = sit(&stays, 1);
    for round in 0..30u8 {
        let (goes, served) = start_shared(options(), &servers);
        let (_, user) = sit(&goes, 1);
        assert_eq!(echo(&*user, &[round]).expect("an answer"), [round]);
        assert_eq!(echo(&*first, &[round]).expect("an answer"), [round]);
        drop(goes);
        assert!(echo(&*user, b"late").is_err(), "its ring is over");
        assert_eq!(served.served.load(Ordering::SeqCst), 1);
    }
    // Its seats are given back as those of a ring with threads of its own are.
    let gone = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&gone);
    let mortal = Options {
        seats: 1,
        is_there: Arc::new(move |_| !theirs.load(Ordering::SeqCst)),
        ..options()
    };
    let (ring, _) = start_shared(mortal, &servers);
    let (_, user) = sit(&ring, 1);
    echo(&*user, b"x").expect("an answer");
    gone.store(true, Ordering::SeqCst);
    until("the seat is free", || ring.admit(2).is_ok());
}
