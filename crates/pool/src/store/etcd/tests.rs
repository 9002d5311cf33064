//! The store on a real etcd; where there is none, each test says that it was skipped.

use super::*;
use crate::grant_table::{GrantId, GrantTable, NodeId, Opening};
use crate::settings::Tenants;
use crate::wire::{NodeHello, OpenRequest};
use cenote_base::random::Random;
use cenote_space::EXTENT;
use etcd_server::{Etcd, TestTransport};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

#[path = "../../../tests/etcd_server/mod.rs"]
mod etcd_server;

/// Long enough for a busy machine to renew it.
const TTL: u64 = 10;
const SOON: Nanos = Nanos::from_secs(100);

fn store_at(url: &str, ttl: u64) -> EtcdStore {
    let options = EtcdOptions {
        endpoints: vec![url.into()],
        prefix: "/test/a".into(),
        ttl,
        user: None,
    };
    EtcdStore::over(&options, Arc::new(TestTransport)).expect("good options")
}

fn here(lead: Result<Lead>) -> Arc<dyn Leadership> {
    match lead.expect("an answer") {
        Lead::Here(leadership) => leadership,
        Lead::Elsewhere(leader) => panic!("{leader:?} leads"),
    }
}

fn lead_soon(store: &EtcdStore, name: &str) -> Arc<dyn Leadership> {
    let began = rt::now();
    loop {
        match store.lead(name) {
            Ok(Lead::Here(leadership)) => return leadership,
            _ => assert!(rt::now().since(began) < SOON, "no manager can lead"),
        }
        rt::sleep(Nanos::from_millis(50));
    }
}

fn key(name: &str) -> String {
    base64::encode(format!("/test/a/{name}").as_bytes())
}

#[test]
fn options_are_checked() {
    let with = |endpoint: &str, prefix: &str, ttl| {
        let (endpoints, prefix) = (vec![endpoint.to_owned()], prefix.to_owned());
        let options = EtcdOptions {
            endpoints,
            prefix,
            ttl,
            user: None,
        };
        EtcdStore::over(&options, Arc::new(TestTransport)).err()
    };
    assert!(with("http://a:1", "/x/", 5).is_none());
    assert!(with("https://a:1", "/x", 5).is_none());
    for (endpoint, prefix, ttl) in [
        ("ftp://a:1", "/x", 5),
        ("http://a:1", "x", 5),
        ("http://a:1", "", 5),
        ("http://a:1", "/x", 0),
        ("http://a:1", "/\n", 5),
    ] {
        assert!(
            matches!(with(endpoint, prefix, ttl), Some(Error::Invalid(_))),
            "{endpoint} {prefix} {ttl}"
        );
    }
    assert!(matches!(
        EtcdStore::over(&EtcdOptions::default(), Arc::new(TestTransport)).err(),
        Some(Error::Invalid(_))
    ));
}

#[test]
fn one_leads_and_the_next_reads_what_it_wrote() {
    let Some(etcd) = Etcd::start() else { return };
    let [one, other] = [store_at(&etcd.url(), TTL), store_at(&etcd.url(), TTL)];
    let first = here(one.lead("one:1"));
    assert_eq!(first.read().expect("read"), None);
    for grant_table in [&b"a"[..], b"b", &vec![b'c'; BOOK_MAX]] {
        first.write(grant_table).expect("written");
        assert_eq!(first.read().expect("read").as_deref(), Some(grant_table));
    }
    assert!(matches!(first.write(&vec![b'd'; BOOK_MAX + 1]), Err(Error::Full(_))));
    assert!(matches!(other.lead("other:1"), Ok(Lead::Elsewhere(Some(who))) if who == "one:1"));
    first.write(b"last").expect("written");
    first.resign();
    assert!(!first.leads() && first.write(b"late").is_err());
    let second = here(other.lead("other:1"));
    assert_eq!(second.read().expect("read").as_deref(), Some(&b"last"[..]));
}

/// A leadership that believes in itself writes nothing all the same once another has begun.
#[test]
fn a_leader_that_was_followed_cannot_write() {
    let Some(etcd) = Etcd::start() else { return };
    let [one, other] = [store_at(&etcd.url(), 3600), store_at(&etcd.url(), 3600)];
    let first = here(one.lead("one:1"));
    first.read().expect("read");
    first.write(b"first").expect("written");
    // As if its lease had lapsed while its clock stood still.
    etcd.ask("/v3/kv/deleterange", &format!(r#"{{"key":"{}"}}"#, key("leader")))
        .expect("deleted");
    assert!(first.leads(), "it knows nothing of that");
    let second = here(other.lead("other:1"));
    assert_eq!(second.read().expect("read").as_deref(), Some(&b"first"[..]));
    assert!(matches!(first.write(b"stale"), Err(Error::Lost(_))));
    assert!(!first.leads(), "it knows by now");
    second.write(b"second").expect("written");
    second.confirm().expect("it leads");
    assert_eq!(second.read().expect("read").as_deref(), Some(&b"second"[..]));
}

/// A leadership ends by its own clock before etcd gives up its lease.
#[test]
fn a_lease_that_is_not_renewed_ends_early() {
    let Some(mut etcd) = Etcd::start() else { return };
    let leadership = here(store_at(&etcd.url(), 2).lead("one:1"));
    leadership.read().expect("read");
    etcd.kill();
    let began = rt::now();
    while leadership.leads() {
        assert!(rt::now().since(began) < SOON, "it goes on for ever");
        rt::sleep(Nanos::from_millis(10));
    }
    assert!(matches!(leadership.write(b"x"), Err(Error::Lost(_))));
    etcd.restart();
    assert!(
        !leadership.leads() && leadership.confirm().is_err() && leadership.write(b"x").is_err(),
        "what is over is over"
    );
    let next = lead_soon(&store_at(&etcd.url(), TTL), "two:1");
    assert_eq!(next.read().expect("read"), None);
}

#[test]
fn a_book_that_another_changed_is_not_overwritten() {
    let Some(etcd) = Etcd::start() else { return };
    for value in ["", "YWxpZW4="] {
        let leadership = lead_soon(&store_at(&etcd.url(), TTL), "one:1");
        leadership.read().expect("read");
        leadership.write(b"mine").expect("written");
        etcd.ask(
            "/v3/kv/put",
            &format!(r#"{{"key":"{}","value":"{value}"}}"#, key("book")),
        )
        .expect("put");
        assert!(matches!(leadership.write(b"next"), Err(Error::Corrupt(_))));
        assert!(!leadership.leads());
    }
}

/// Tokens are asked for with the password, and again when etcd knows them no more.
#[test]
fn a_password_is_given_where_it_is_asked_for() {
    let Some(mut etcd) = Etcd::start() else { return };
    for (path, question) in [
        ("user/add", r#"{"name":"root","password":"right"}"#),
        ("role/add", r#"{"name":"root"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("enable", "{}"),
    ] {
        etcd.ask(&format!("/v3/auth/{path}"), question).expect("done");
    }
    let with = |user: Option<(&str, &str)>| {
        let options = EtcdOptions {
            endpoints: vec![etcd.url()],
            user: user.map(|(name, password)| (name.into(), password.into())),
            ttl: 3600,
            ..EtcdOptions::default()
        };
        EtcdStore::over(&options, Arc::new(TestTransport))
            .expect("good options")
            .lead("one:1")
    };
    for user in [None, Some(("root", "wrong")), Some(("unknown", "right"))] {
        assert!(matches!(with(user).err(), Some(Error::Invalid(_))), "{user:?}");
    }
    let leadership = here(with(Some(("root", "right"))));
    leadership.read().expect("read");
    leadership.write(b"book").expect("written");
    etcd.kill();
    etcd.restart();
    leadership.write(b"more").expect("written with another token");
    assert_eq!(leadership.read().expect("read").as_deref(), Some(&b"more"[..]));
}

#[test]
fn of_many_that_race_one_leads() {
    let Some(etcd) = Etcd::start() else { return };
    let stores: Vec<_> = (0..6).map(|_| Arc::new(store_at(&etcd.url(), TTL))).collect();
    for round in 0..4 {
        let race = |store: &Arc<EtcdStore>| {
            let store = Arc::clone(store);
            rt::spawn("racer", move || store.lead("racer:1"))
        };
        let racers: Vec<_> = stores.iter().map(race).collect();
        let leads: Vec<_> = racers
            .into_iter()
            .map(|r| r.join().expect("no panic").expect("an answer"))
            .collect();
        let leaders: Vec<_> = leads.iter().filter(|lead| matches!(lead, Lead::Here(_))).collect();
        assert_eq!(leaders.len(), 1, "round {round}");
        let Lead::Here(leadership) = leaders[0] else {
            panic!("it is one")
        };
        leadership.resign();
    }
}

// ---- a way that loses, cuts and garbles ----

/// What happens to a question.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Passes,
    /// No peer hears it.
    Lost,
    /// It is done, and the answer does not come.
    Unanswered,
    /// It is done, and what comes is none.
    Garbled,
}

/// Stands between a store and its etcd. It lives as long as the test's process.
fn way(etcd: String, fate: impl Fn() -> Fate + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    rt::spawn("way", move || {
        for stream in listener.incoming().flatten() {
            let (etcd, fate) = (etcd.clone(), fate());
            rt::spawn("way", move || carry(stream, &etcd, fate));
        }
    });
    format!("http://{address}")
}

fn carry(mut near: TcpStream, etcd: &str, fate: Fate) -> Option<()> {
    let question = whole_question(&mut near)?;
    if fate == Fate::Lost {
        return None;
    }
    let mut far = TcpStream::connect(etcd).ok()?;
    far.write_all(&question).ok()?;
    let mut answer = Vec::new();
    far.read_to_end(&mut answer).ok()?;
    match fate {
        Fate::Passes => near.write_all(&answer).ok()?,
        Fate::Garbled => near
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"garbage")
            .ok()?,
        Fate::Lost | Fate::Unanswered => {}
    }
    near.shutdown(Shutdown::Both).ok()
}

fn whole_question(near: &mut TcpStream) -> Option<Vec<u8>> {
    let (mut question, mut some) = (Vec::new(), [0; 4096]);
    loop {
        let n = near.read(&mut some).ok().filter(|n| *n > 0)?;
        question.extend_from_slice(&some[..n]);
        let text = String::from_utf8_lossy(&question);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_ascii_lowercase();
            let length = length.split("content-length: ").nth(1)?.split("\r\n").next()?;
            if body.len() >= length.parse().ok()? {
                return Some(question);
            }
        }
    }
}

fn seed() -> u64 {
    let given = std::env::var("CENOTE_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(rt::random)
}

fn hello(id: u64) -> NodeHello {
    NodeHello {
        id: NodeId(id),
        pool: None,
        pod: "a".into(),
        bytes: 64 * EXTENT,
        directory: "/x".into(),
        machine: 0,
        members: String::new(),
        calls: None,
        last: GrantId::default(),
    }
}

/// A change of the grant table, as a manager makes them.
fn change(grant_table: &mut GrantTable, random: &mut Random) {
    let (label, now) = (format!("db{}", random.below(8)), rt::now());
    let requested = OpenRequest {
        label,
        description: String::new(),
        bytes: EXTENT * (1 + random.below(4)),
        pod: None,
        keep: None,
        mirror: false,
        host: None,
        machine: 0,
    };
    match grant_table.open("default", &requested, now, SOON) {
        Ok(Opening::Ask(id, _)) => grant_table.free(id).expect("no part"),
        Ok(Opening::Wait) | Err(_) => {
            let work: Vec<_> = grant_table.grants().map(|(id, grant)| (id, grant.epoch)).collect();
            work.into_iter()
                .for_each(|(id, epoch)| grant_table.confirmed(id, epoch, now));
        }
        Ok(Opening::Admit(..)) => {}
    }
}

/// What managers acknowledged is what the next one reads, whatever happens to questions and answers; of a change that
/// failed at a leadership's end it may be either.
#[test]
fn a_book_is_kept_over_many_managers_and_a_bad_way() {
    let Some(etcd) = Etcd::start() else { return };
    let seed = seed();
    println!("CENOTE_SEED={seed}");
    let mut random = Random(seed);
    let fates = Arc::new(Mutex::new(Random(seed ^ 1)));
    let troubled = Arc::new(AtomicBool::new(true));
    let worst = Arc::new(AtomicBool::new(false));
    let (dice, on, silent) = (Arc::clone(&fates), Arc::clone(&troubled), Arc::clone(&worst));
    let fate = move || match dice.lock().below(10) {
        _ if silent.load(Ordering::Acquire) => Fate::Unanswered,
        0 if on.load(Ordering::Acquire) => Fate::Lost,
        1 | 2 if on.load(Ordering::Acquire) => Fate::Unanswered,
        3 if on.load(Ordering::Acquire) => Fate::Garbled,
        _ => Fate::Passes,
    };
    let url = way(etcd.host(), fate);
    let stores = [store_at(&url, TTL), store_at(&url, 2)];
    // The grant table as it was acknowledged, and as it may be instead.
    let mut known: (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
    let mut in_doubt = 0;
    for manager in 0..6 {
        worst.store(false, Ordering::Release);
        let leadership = lead_soon(&stores[manager % 2], "one:1");
        let Ok(read) = leadership.read() else { continue };
        assert!(
            read == known.0 || (read.is_some() && read == known.1),
            "manager {manager} reads another grant table"
        );
        let tenants = Tenants::default();
        let mut grant_table = match &read {
            Some(bytes) => GrantTable::from_bytes(bytes, tenants, rt::now(), SOON).expect("a good book"),
            None => GrantTable::new(7, tenants),
        };
        grant_table.begin_term();
        if read.is_none() {
            grant_table.join(&hello(1)).expect("joined");
        } else {
            grant_table
                .join(&NodeHello {
                    pool: Some(7),
                    ..hello(1)
                })
                .expect("joined again");
        }
        known = (read, None);
        for n in 0..15 {
            // Every other manager ends without an answer to its last question.
            worst.store(manager % 2 == 1 && n == 10, Ordering::Release);
            let bytes = grant_table.to_bytes();
            match leadership.write(&bytes) {
                Ok(()) => known = (Some(bytes), None),
                Err(_) if leadership.leads() => {
                    // Nothing was written: the next read says so.
                    let Ok(read) = leadership.read() else { break };
                    assert_eq!(read, known.0, "what failed is there");
                }
                Err(_) => {
                    (known.1, in_doubt) = (Some(bytes), in_doubt + 1);
                    break;
                }
            }
            change(&mut grant_table, &mut random);
        }
        leadership.resign();
    }
    println!("{in_doubt} leaderships ended in doubt");
    worst.store(false, Ordering::Release);
    troubled.store(false, Ordering::Release);
    let read = lead_soon(&stores[0], "last:1").read().expect("read");
    assert!(known.0.is_some(), "something was written");
    assert!(read == known.0 || read == known.1, "the last book");
}

/// A write whose answer is lost is done, once, and acknowledged: it is asked for again.
#[test]
fn a_lost_answer_does_not_end_a_leadership() {
    let Some(etcd) = Etcd::start() else { return };
    let losing = Arc::new(AtomicBool::new(false));
    let lose = Arc::clone(&losing);
    let fate = move || match lose.swap(false, Ordering::AcqRel) {
        true => Fate::Unanswered,
        false => Fate::Passes,
    };
    // Nothing but this test asks meanwhile: its first renewal is far away.
    let leadership = here(store_at(&way(etcd.host(), fate), 3600).lead("one:1"));
    leadership.read().expect("read");
    for n in 0..5 {
        losing.store(true, Ordering::Release);
        leadership.write(format!("book {n}").as_bytes()).expect("written");
        assert!(!losing.load(Ordering::Acquire), "an answer was lost");
    }
    assert!(leadership.leads());
    assert_eq!(leadership.read().expect("read").as_deref(), Some(&b"book 4"[..]));
}
