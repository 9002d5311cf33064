//! Spaces that are asked for while the manager drops, makes or has them.

use super::{ClientOptions, PoolClient};
use crate::grant_table::{SpaceId, SpacePhase};
use crate::holder::Credentials;
use crate::key::Key;
use crate::settings::DEFAULT_TENANT;
use crate::wire::{self, Failure, Hello, Reply, Request, SpaceSummary, SpaceView, Welcome};
use cenote_base::rt::{self, Nanos};
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::message::{Listener, Network};
use std::sync::Arc;

const TIMEOUT: Nanos = Nanos::from_secs(60);

fn summary(phase: SpacePhase) -> SpaceSummary {
    SpaceSummary {
        id: SpaceId(1),
        tenant: DEFAULT_TENANT.into(),
        name: "heap".into(),
        phase,
        parts: Vec::new(),
        lost: Vec::new(),
        mirrored: false,
    }
}

/// A manager that knows one space. Says whether another one was asked for.
fn play(listener: &dyn Listener, phase: SpacePhase) -> bool {
    let connection = listener.accept(TIMEOUT).expect("no error").expect("it comes");
    let send = |reply: &Reply| wire::send(&*connection, reply).expect("sent");
    let _: Hello = wire::receive(&*connection, TIMEOUT).expect("a hello");
    let welcome: Welcome = serde_json::from_str(r#"{"pool":1,"term":1,"lease":1000000000}"#).expect("one");
    wire::send(&*connection, &Ok::<_, Failure>(welcome)).expect("sent");
    loop {
        match wire::receive(&*connection, TIMEOUT) {
            Ok(Request::Spaces) => send(&Reply::Spaces(vec![summary(phase)])),
            Ok(Request::CreateSpace(_)) => {
                let (id, key) = (SpaceId(2), Key::of(2));
                send(&Reply::Space(SpaceView {
                    id,
                    key,
                    parts: Vec::new(),
                }));
                return true;
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => return false,
        }
    }
}

/// The story: a space was being dropped when it was asked for with a size. It counted as there, and then there was
/// none of its name.
#[test]
fn a_space_that_is_being_dropped_is_made_anew() {
    for (phase, makes) in [
        (SpacePhase::Dropping, true),
        (SpacePhase::Ready, false),
        (SpacePhase::Making, false),
    ] {
        let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
        let credentials = Credentials {
            manager: listener.address(),
            tenant: DEFAULT_TENANT.into(),
            secret: String::new(),
        };
        let playing = rt::spawn("manager", move || play(&*listener, phase));
        let network: Arc<dyn Network> = Arc::new(Tcp);
        let pool = PoolClient::connect(&network, &credentials, ClientOptions::default()).expect("connected");
        pool.ensure_space("heap", 1 << 30).expect("there");
        drop(pool);
        assert_eq!(playing.join().expect("no panic"), makes, "{phase}");
    }
}
