//! The store on a real etcd; where there is none, each test says that it was skipped.

use super::*;
use crate::grant_table::{GrantId, GrantTable, NodeId, Opening};
use crate::settings::Tenants;
use crate::store::{RecordSet, apply};
use crate::wire::{NodeHello, OpenRequest, Reach};
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

/// A change of a table that is one record.
fn text(record: &str) -> Change {
    Change::from([("meta".into(), Some(record.into()))])
}

fn records(leadership: &dyn Leadership) -> Result<Option<RecordSet>> {
    Ok(leadership.read()?.map(|stored| match stored {
        Stored::Records(book) => book,
        Stored::Former(_) => panic!("it is not of before"),
    }))
}

fn found(leadership: &dyn Leadership) -> Option<String> {
    records(leadership).expect("read").map(|book| book["meta"].clone())
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
    assert_eq!(found(&*first), None);
    for record in ["a", "b", &"c".repeat(90_000)] {
        first.write(&text(record)).expect("written");
        assert_eq!(found(&*first).as_deref(), Some(record));
    }
    let too_long = first.write(&text(&"d".repeat(200_000)));
    assert!(matches!(too_long, Err(Error::Full(_))), "{too_long:?}");
    assert!(matches!(other.lead("other:1"), Ok(Lead::Elsewhere(Some(who))) if who == "one:1"));
    first.write(&text("last")).expect("written");
    first.resign();
    assert!(!first.leads() && first.write(&text("late")).is_err());
    let second = here(other.lead("other:1"));
    assert_eq!(found(&*second).as_deref(), Some("last"));
}

/// A leadership that believes in itself writes nothing all the same once another has begun.
#[test]
fn a_leader_that_was_followed_cannot_write() {
    let Some(etcd) = Etcd::start() else { return };
    let [one, other] = [store_at(&etcd.url(), 3600), store_at(&etcd.url(), 3600)];
    let first = here(one.lead("one:1"));
    first.read().expect("read");
    first.write(&text("first")).expect("written");
    // As if its lease had lapsed while its clock stood still.
    etcd.ask("/v3/kv/deleterange", &format!(r#"{{"key":"{}"}}"#, key("leader")))
        .expect("deleted");
    assert!(first.leads(), "it knows nothing of that");
    let second = here(other.lead("other:1"));
    assert_eq!(found(&*second).as_deref(), Some("first"));
    assert!(matches!(first.write(&text("stale")), Err(Error::Lost(_))));
    assert!(!first.leads(), "it knows by now");
    second.write(&text("second")).expect("written");
    second.confirm().expect("it leads");
    assert_eq!(found(&*second).as_deref(), Some("second"));
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
    assert!(matches!(leadership.write(&text("x")), Err(Error::Lost(_))));
    etcd.restart();
    assert!(
        !leadership.leads() && leadership.confirm().is_err() && leadership.write(&text("x")).is_err(),
        "what is over is over"
    );
    let next = lead_soon(&store_at(&etcd.url(), TTL), "two:1");
    assert_eq!(found(&*next), None);
}

#[test]
fn a_book_that_another_changed_is_not_overwritten() {
    let Some(etcd) = Etcd::start() else { return };
    for value in ["", "YWxpZW4="] {
        let leadership = lead_soon(&store_at(&etcd.url(), TTL), "one:1");
        assert_eq!(found(&*leadership), None);
        leadership.write(&text("mine")).expect("written");
        etcd.ask(
            "/v3/kv/put",
            &format!(r#"{{"key":"{}","value":"{value}"}}"#, key("record/meta")),
        )
        .expect("put");
        assert!(matches!(leadership.write(&text("next")), Err(Error::Corrupt(_))));
        assert!(!leadership.leads());
        let next = lead_soon(&store_at(&etcd.url(), TTL), "two:1");
        let read = next.read();
        assert!(matches!(read, Err(Error::Corrupt(_))), "{read:?}");
        next.resign();
        // Records whose "meta" is gone are not taken for none.
        let delete = |from: &str, to: &str| {
            let range = format!(r#"{{"key":"{}","range_end":"{}"}}"#, key(from), key(to));
            etcd.ask("/v3/kv/deleterange", &range).expect("deleted");
        };
        delete("record/meta", "record/meta0");
        let read = lead_soon(&store_at(&etcd.url(), TTL), "two:1").read();
        assert!(matches!(read, Err(Error::Corrupt(_))), "{read:?}");
        delete("book", "book0");
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
    leadership.write(&text("book")).expect("written");
    etcd.kill();
    etcd.restart();
    leadership.write(&text("more")).expect("written with another token");
    assert_eq!(found(&*leadership).as_deref(), Some("more"));
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
        reach: Reach::default(),
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

/// The grant table as it was acknowledged, and as it may be instead.
type Known = (Option<RecordSet>, Option<RecordSet>);

/// Changes of one leadership; false if the last is in doubt.
fn lead_on(
    leadership: &dyn Leadership,
    grant_table: &mut GrantTable,
    known: &mut Known,
    (random, slow): (&mut Random, &dyn Fn(u32)),
) -> bool {
    for n in 0..15 {
        // Every other manager ends without an answer to its last question.
        slow(n);
        let changes = match known.0 {
            None => grant_table.whole(),
            Some(_) => grant_table.changes(),
        };
        if !changes.is_empty() {
            let mut next = known.0.clone().unwrap_or_default();
            apply(&mut next, &changes);
            match leadership.write(&changes) {
                Ok(()) => {
                    *known = (Some(next), None);
                    grant_table.keep();
                }
                Err(_) if leadership.leads() => {
                    grant_table.undo();
                    // Nothing was written: the next read says so.
                    let Ok(read) = records(leadership) else { return true };
                    assert_eq!(read, known.0, "what failed is there");
                }
                Err(_) => {
                    known.1 = Some(next);
                    return false;
                }
            }
        }
        change(grant_table, random);
    }
    true
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
    let mut known: Known = (None, None);
    let mut in_doubt = 0;
    for manager in 0..6 {
        worst.store(false, Ordering::Release);
        let leadership = lead_soon(&stores[manager % 2], "one:1");
        let Ok(read) = records(&*leadership) else { continue };
        assert!(
            read == known.0 || (read.is_some() && read == known.1),
            "manager {manager} reads another grant table"
        );
        let tenants = Tenants::default();
        let mut grant_table = match &read {
            Some(book) => {
                let stored = Stored::Records(book.clone());
                GrantTable::read(&stored, tenants, rt::now(), SOON).expect("a good book")
            }
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
        let slow = |n| worst.store(manager % 2 == 1 && n == 10, Ordering::Release);
        in_doubt += u32::from(!lead_on(
            &*leadership,
            &mut grant_table,
            &mut known,
            (&mut random, &slow),
        ));
        leadership.resign();
    }
    println!("{in_doubt} leaderships ended in doubt");
    worst.store(false, Ordering::Release);
    troubled.store(false, Ordering::Release);
    let read = records(&*lead_soon(&stores[0], "last:1")).expect("read");
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
        leadership.write(&text(&format!("book {n}"))).expect("written");
        assert!(!losing.load(Ordering::Acquire), "an answer was lost");
    }
    assert!(leadership.leads());
    assert_eq!(found(&*leadership).as_deref(), Some("book 4"));
}

/// A change of more records than etcd takes in one transaction, and longer than a request may be.
fn large(seed: u32, records: u32) -> Change {
    let mut change = text(&format!("change {seed}"));
    for n in 0..records {
        let record = (!(n + seed).is_multiple_of(3)).then(|| format!("{seed} {}", "x".repeat(4000)));
        change.insert(format!("grant/{n}"), record);
    }
    change
}

/// A change that is longer than a transaction is made as a whole.
#[test]
fn long_changes_are_whole() {
    let Some(etcd) = Etcd::start() else { return };
    let leadership = lead_soon(&store_at(&etcd.url(), TTL), "one:1");
    assert_eq!(found(&*leadership), None);
    let mut book = RecordSet::new();
    for seed in 0..4 {
        let change = large(seed, 700);
        leadership.write(&change).expect("written");
        apply(&mut book, &change);
        assert!(
            records(&*leadership).expect("read").as_ref() == Some(&book),
            "after {seed}"
        );
    }
    leadership.write(&text("short")).expect("written");
    assert_eq!(found(&*leadership).as_deref(), Some("short"));
}

/// Wherever a manager ends in the middle of a long change, the next one reads all of it or nothing.
#[test]
fn long_changes_are_whole_wherever_a_manager_ends() {
    let Some(etcd) = Etcd::start() else { return };
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let passes = Arc::clone(&left);
    let fate = move || match passes.fetch_sub(1, Ordering::AcqRel) {
        0 => {
            passes.store(0, Ordering::Release);
            Fate::Lost
        }
        _ => Fate::Passes,
    };
    let url = way(etcd.host(), fate);
    let mut book = RecordSet::new();
    let mut kinds = [0, 0];
    for questions in 0..24 {
        left.store(u64::MAX / 2, Ordering::Release);
        let leadership = lead_soon(&store_at(&url, 2), "one:1");
        assert_eq!(
            records(&*leadership).expect("read").unwrap_or_default(),
            book,
            "{questions}"
        );
        let change = large(questions, 300);
        left.store(u64::from(questions) / 2 + 1, Ordering::Release);
        let written = leadership.write(&change);
        left.store(u64::MAX / 2, Ordering::Release);
        leadership.resign();
        let mut next = book.clone();
        apply(&mut next, &change);
        let after = records(&*lead_soon(&store_at(&url, TTL), "two:1"))
            .expect("read")
            .unwrap_or_default();
        assert!(
            after == next || (written.is_err() && after == book),
            "{questions}: {written:?}"
        );
        kinds[usize::from(after == next)] += 1;
        book = after;
    }
    assert!(
        kinds[0] > 0 && kinds[1] > 0,
        "it ended before and after it was decided: {kinds:?}"
    );
}

/// A table that former programs kept is read, and taken over by the next change; they are told so.
#[test]
fn a_table_of_before_is_taken_over() {
    let Some(etcd) = Etcd::start() else { return };
    let put = format!(
        r#"{{"key":"{}","value":"{}"}}"#,
        key("book"),
        base64::encode(b"cenote-pool 3 x")
    );
    etcd.ask("/v3/kv/put", &put).expect("put");
    let leadership = lead_soon(&store_at(&etcd.url(), TTL), "one:1");
    let read = leadership.read().expect("read");
    assert_eq!(read, Some(Stored::Former(b"cenote-pool 3 x".to_vec())));
    leadership.write(&text("now")).expect("written");
    assert_eq!(found(&*leadership).as_deref(), Some("now"));
    let told = etcd
        .ask("/v3/kv/range", &format!(r#"{{"key":"{}"}}"#, key("book")))
        .expect("an answer");
    assert!(told.contains(&base64::encode(b"cenote-pool 4 records\n")), "{told}");
}
