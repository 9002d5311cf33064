//! Tests that every [`Network`] must pass, whatever stands behind it.
//!
//! An implementation gives a [`Bench`] (two programs that reach each other) and calls [`all`]. What fails panics, and
//! says what.

use cenote_base::Error;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::message::{Connection, Listener, MESSAGE_MAX, Network};
use std::sync::Arc;

/// Longer than anything takes that is to come.
const TIMEOUT: Nanos = Nanos::from_secs(60);
const SOON: Nanos = Nanos::from_millis(20);

/// Two programs, as their implementation provides them.
pub trait Bench {
    /// The network as one program sees it.
    fn one(&self) -> Arc<dyn Network>;
    /// As another sees it.
    fn other(&self) -> Arc<dyn Network>;
    /// Where the other can listen, with port 0: any that is free.
    fn address(&self) -> String;
}

/// All of them.
pub fn all(bench: &dyn Bench) {
    messages_go_both_ways_whole_and_in_order(bench);
    what_is_too_long_is_refused(bench);
    silence_ends_nothing(bench);
    an_end_is_seen_by_both(bench);
    what_was_sent_before_the_end_arrives_in_order_or_not(bench);
    dropping_a_connection_ends_it(bench);
    a_waiting_receiver_hears_of_the_end(bench);
    connections_do_not_mix(bench);
    a_peer_that_is_not_there_is_an_error(bench);
}

fn listen(bench: &dyn Bench) -> Box<dyn Listener> {
    bench.other().listen(&bench.address()).expect("a free port")
}

fn pair_at(bench: &dyn Bench, listener: &dyn Listener) -> (Arc<dyn Connection>, Arc<dyn Connection>) {
    let one = bench.one().connect(&listener.address(), TIMEOUT).expect("connected");
    let other = listener.accept(TIMEOUT).expect("no error").expect("a caller comes");
    (one, other)
}

fn pair(bench: &dyn Bench) -> (Arc<dyn Connection>, Arc<dyn Connection>) {
    pair_at(bench, &*listen(bench))
}

fn is_lost<T>(result: cenote_base::Result<T>) -> bool {
    matches!(result, Err(Error::Lost(_)))
}

/// Long ones too, while the other side is not looking.
pub fn messages_go_both_ways_whole_and_in_order(bench: &dyn Bench) {
    let (one, other) = pair(bench);
    let long = vec![7; MESSAGE_MAX];
    let sent = [b"".to_vec(), b"a".to_vec(), long, b"b".to_vec()];
    let sender = {
        let (one, sent) = (Arc::clone(&one), sent.clone());
        rt::spawn("sender", move || {
            sent.iter().for_each(|message| one.send(message).expect("sent"))
        })
    };
    for message in &sent {
        assert!(other.receive(TIMEOUT).expect("received") == *message, "whole, in order");
    }
    sender.join().expect("no panic");
    other.send(b"back").expect("sent");
    assert_eq!(one.receive(TIMEOUT).expect("received"), b"back");
}

/// And the connection goes on.
pub fn what_is_too_long_is_refused(bench: &dyn Bench) {
    let (one, other) = pair(bench);
    assert!(matches!(one.send(&vec![0; MESSAGE_MAX + 1]), Err(Error::Invalid(_))));
    one.send(b"short").expect("sent");
    assert_eq!(other.receive(TIMEOUT).expect("received"), b"short");
}

/// It is a timeout, and what comes later comes.
pub fn silence_ends_nothing(bench: &dyn Bench) {
    let (one, other) = pair(bench);
    for timeout in [Nanos::ZERO, SOON] {
        assert!(matches!(one.receive(timeout), Err(Error::Timeout(_))), "{timeout}");
    }
    other.send(b"late").expect("sent");
    assert_eq!(one.receive(TIMEOUT).expect("received"), b"late");
    let listener = listen(bench);
    assert!(listener.accept(SOON).expect("no error").is_none(), "no caller comes");
}

/// Whichever side ended it.
pub fn an_end_is_seen_by_both(bench: &dyn Bench) {
    let (one, other) = pair(bench);
    one.close();
    for connection in [&one, &other] {
        assert!(is_lost(connection.receive(TIMEOUT)));
        assert!(is_lost(connection.receive(SOON)), "for good");
    }
    assert!(is_lost(one.send(b"late")));
}

/// Never one without those before it.
pub fn what_was_sent_before_the_end_arrives_in_order_or_not(bench: &dyn Bench) {
    let (one, other) = pair(bench);
    (0..10u8).for_each(|n| one.send(&[n]).expect("sent"));
    one.close();
    for n in 0..=10u8 {
        match other.receive(TIMEOUT) {
            Ok(message) => assert_eq!(message, [n]),
            Err(error) => return assert!(matches!(error, Error::Lost(_)), "{error}"),
        }
    }
    panic!("the end does not come");
}

/// As a program's end does.
pub fn dropping_a_connection_ends_it(bench: &dyn Bench) {
    let (one, other) = pair(bench);
    drop(one);
    assert!(is_lost(other.receive(TIMEOUT)));
}

/// Also where its own program has ended the connection.
pub fn a_waiting_receiver_hears_of_the_end(bench: &dyn Bench) {
    let (one, other) = pair(bench);
    for waiting in [Arc::clone(&one), other] {
        let (waits, one) = (rt::spawn("waits", move || is_lost(waiting.receive(TIMEOUT))), &one);
        rt::sleep(Nanos::from_millis(1));
        one.close();
        assert!(waits.join().expect("no panic"));
    }
}

/// Each has its own messages.
pub fn connections_do_not_mix(bench: &dyn Bench) {
    let listener = listen(bench);
    let pairs: Vec<_> = (0..8u8).map(|_| pair_at(bench, &*listener)).collect();
    for round in 0..3u8 {
        for (n, (one, _)) in pairs.iter().enumerate() {
            one.send(&[n as u8, round]).expect("sent");
        }
    }
    for (n, (_, other)) in pairs.iter().enumerate() {
        for round in 0..3u8 {
            assert_eq!(other.receive(TIMEOUT).expect("received"), [n as u8, round]);
        }
    }
}

/// And an address is one listener's at a time.
pub fn a_peer_that_is_not_there_is_an_error(bench: &dyn Bench) {
    let (one, other) = (bench.one(), bench.other());
    let listener = listen(bench);
    let address = listener.address();
    assert!(matches!(other.listen(&address), Err(Error::Busy(_))));
    drop(listener);
    assert!(is_lost(one.connect(&address, TIMEOUT)));
    assert!(matches!(one.connect("nonsense", TIMEOUT), Err(Error::Invalid(_))));
    assert!(matches!(other.listen("nonsense"), Err(Error::Invalid(_))));
    let again = other.listen(&address).expect("it is free again");
    let (one, other) = pair_at(bench, &*again);
    one.send(b"again").expect("sent");
    assert_eq!(other.receive(TIMEOUT).expect("received"), b"again");
}
