//! A holder of slabs, with a manager that this test plays.

use super::*;
use crate::holder::{Credentials, RemoteAccess, RemoteRequest};
use crate::ids::GrantId;
use crate::settings::DEFAULT_TENANT;
use crate::wire::{self, Failure, Hello, Opened, Welcome};
use cenote_base::rt::Mutex;
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::message::{Connection, Network};

const TIMEOUT: Nanos = Nanos::from_secs(60);

/// A manager that grants the first part, and answers requests for slabs, which are numbered.
struct Played {
    leads: bool,
    slabs: fn(usize) -> Reply,
    /// How often it was greeted, and asked for slabs.
    heard: Mutex<(usize, usize)>,
}

impl Played {
    fn begin(leads: bool, slabs: fn(usize) -> Reply) -> (String, Arc<Self>) {
        let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
        let address = listener.address();
        let played = Arc::new(Self {
            leads,
            slabs,
            heard: Mutex::default(),
        });
        let theirs = Arc::clone(&played);
        rt::spawn("manager", move || {
            while let Ok(Some(connection)) = listener.accept(TIMEOUT) {
                let one = Arc::clone(&theirs);
                rt::spawn("client", move || one.serve(&*connection));
            }
        });
        (address, played)
    }

    fn serve(&self, connection: &dyn Connection) {
        let _: Hello = wire::receive(connection, TIMEOUT).expect("a hello");
        self.heard.lock().0 += 1;
        let refusal: Failure = Error::Lost("another leads".into()).into();
        let welcome = match self.leads {
            true => serde_json::from_str::<Welcome>(r#"{"pool":1,"term":1,"lease":60000000000}"#).map_err(|_| refusal),
            false => Err(refusal),
        };
        wire::send(connection, &welcome).expect("sent");
        while let Ok(request) = wire::receive(connection, TIMEOUT) {
            let sent = wire::send(connection, &self.answer(&request));
            sent.expect("sent");
        }
    }

    fn answer(&self, request: &Request) -> Reply {
        match request {
            Request::Open(_) => Reply::Opened(Opened {
                grant: GrantId(1),
                epoch: 1,
                bytes: 4096,
                pod: "pod".into(),
                path: "/nowhere".into(),
                fresh: true,
                mirror: None,
                range: None,
            }),
            Request::OpenSlabs(_) => {
                let mut heard = self.heard.lock();
                heard.1 += 1;
                (self.slabs)(heard.1)
            }
            _ => Reply::Done,
        }
    }

    fn greeted(&self) -> usize {
        self.heard.lock().0
    }

    fn asked(&self) -> usize {
        self.heard.lock().1
    }
}

fn access(managers: &str) -> Arc<RemoteAccess> {
    let (network, credentials): (Arc<dyn Network>, _) = (
        Arc::new(Tcp),
        Credentials {
            manager: managers.into(),
            tenant: DEFAULT_TENANT.into(),
            secret: String::new(),
        },
    );
    RemoteAccess::to_hold(&network, &credentials).expect("a holder")
}

fn first(access: &Arc<RemoteAccess>) -> RemoteGrant {
    let requested = RemoteRequest {
        label: "db".into(),
        description: String::new(),
        bytes: 4096,
        pod: None,
    };
    RemoteGrant::open(access, requested, true, Box::new(|_| ())).expect("granted")
}

/// Why slab 0 is not there.
fn why_not(first: &RemoteGrant, patience: Nanos) -> Error {
    let wanted = SlabsWanted {
        slabs: &[0],
        bytes: 4096,
        description: "",
        pod: None,
        patience,
        on_revoked: &|_| Box::new(|_| ()),
    };
    let mut found = Vec::new();
    let asked = first.open_slabs(&wanted, &mut |_, reached| found.extend(reached.err()));
    asked.expect("the first part is its own");
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn answered(error: Error) -> Reply {
    Reply::Slabs(vec![Err(error.into())])
}

fn busy() -> Error {
    Error::Busy("its memory is being taken back".into())
}

/// A slab whose memory was not taken back held up a start for 30 s, though all others were there.
#[test]
fn a_slab_that_stays_busy_is_not_waited_for() {
    let (address, played) = Played::begin(true, |_| answered(busy()));
    let first = first(&access(&address));
    let error = why_not(&first, TIMEOUT);
    assert!(matches!(error, Error::Busy(_)), "{error}");
    let most = (BUSY_PATIENCE.raw() / AGAIN.raw()) as usize;
    assert!((2..=most).contains(&played.asked()), "{} times", played.asked());
}

/// What would be taken just before the holder's patience ends would not be awaited.
#[test]
fn slabs_are_not_asked_for_at_the_last_moment() {
    let (address, played) = Played::begin(true, |_| answered(busy()));
    let first = first(&access(&address));
    let error = why_not(&first, LEFT_MIN);
    assert!(matches!(error, Error::Busy(_)), "{error}");
    assert_eq!(played.asked(), 1);
}

/// A manager that has no thread for them is asked again.
#[test]
fn a_manager_that_is_busy_is_asked_again() {
    let (address, played) = Played::begin(true, |asked| match asked {
        1 => Reply::Failed(busy().into()),
        2 => answered(busy()),
        _ => answered(Error::Full("there is no room".into())),
    });
    let first = first(&access(&address));
    let error = why_not(&first, TIMEOUT);
    assert!(matches!(error, Error::Full(_)), "{error}");
    assert_eq!(played.asked(), 3);
}

/// Each slab's lease asked all managers anew, the first of the list before the one that leads: a silent one costs 3 s.
#[test]
fn a_lease_begins_with_the_manager_that_leads() {
    let (away, other) = Played::begin(false, |_| Reply::Done);
    let (address, leader) = Played::begin(true, |_| Reply::Done);
    let access = access(&format!("{away},{address}"));
    let free = Request::FreeSlab {
        first: GrantId(1),
        epoch: 1,
        slab: 0,
    };
    access.ask(&free).expect("asked");
    assert_eq!((other.greeted(), leader.greeted()), (1, 1));
    access.lease_channel().ask(&free, TIMEOUT).expect("asked");
    assert_eq!((other.greeted(), leader.greeted()), (1, 2));
}
