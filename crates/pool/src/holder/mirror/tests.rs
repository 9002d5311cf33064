//! A mirror's holder, with a manager that this test plays.

use super::*;
use crate::managers::Managers;
use crate::wire::{self, Failure, Hello, Role, VERSION, Welcome};
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::message::{Listener, Network};
use cenote_fabric::{Identity, RegionOptions};
use cenote_space::EXTENT;
use std::path::{Path, PathBuf};

const TIMEOUT: Nanos = Nanos::from_secs(60);
const MIRROR: GrantId = GrantId(2);

fn line(listener: &dyn Listener) -> Arc<ManagerChannel> {
    let network: Arc<dyn Network> = Arc::new(Tcp);
    Arc::new(ManagerChannel {
        network,
        managers: Managers::parse(&listener.address()).expect("an address"),
        hello: Hello {
            version: VERSION,
            role: Role::Tenant("tenant".into()),
            secret: String::new(),
        },
        session: Mutex::default(),
    })
}

fn view(path: &Path, whole: bool) -> MirrorView {
    MirrorView {
        grant: MIRROR,
        pod: "pod".into(),
        path: path.display().to_string(),
        whole,
        machine: cenote_fabric::boot(),
        lent: None,
    }
}

/// A manager that leads, while the mirror's node is away.
struct Played {
    path: PathBuf,
    whole: bool,
    lost: bool,
    asked: Vec<MirrorRequest>,
}

impl Played {
    /// Until it is asked to seek a mirror.
    fn play(mut self, listener: &dyn Listener) -> Vec<MirrorRequest> {
        while !matches!(self.asked.last(), Some(MirrorRequest::Seek)) {
            let connection = listener.accept(TIMEOUT).expect("no error").expect("it comes");
            let _: Hello = wire::receive(&*connection, TIMEOUT).expect("a hello");
            let welcome: Welcome = serde_json::from_str(r#"{"pool":1,"term":1,"lease":1000000000}"#).expect("one");
            wire::send(&*connection, &Ok::<_, Failure>(welcome)).expect("sent");
            while let Ok(Request::Mirror { what, .. }) = wire::receive(&*connection, TIMEOUT) {
                wire::send(&*connection, &self.answer(&what)).expect("sent");
                self.asked.push(what);
            }
            connection.close();
        }
        self.asked
    }

    fn answer(&mut self, what: &MirrorRequest) -> Reply {
        self.whole &= !matches!(what, MirrorRequest::Void(_));
        self.lost |= matches!(what, MirrorRequest::Lost(_));
        let view = (!self.lost).then(|| view(&self.path, self.whole));
        match what {
            MirrorRequest::Look | MirrorRequest::Void(_) | MirrorRequest::Lost(_) => Reply::Mirror(view),
            _ => Reply::Failed(Error::Lost("memory node 2 is not connected".into()).into()),
        }
    }
}

/// The whole mirror of a holder that was restarted was freed, since its node was away for a moment.
#[test]
fn a_mirror_whose_node_is_away_is_void_and_not_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let (memory, mirror) = (directory.path().join("grant-1"), directory.path().join("grant-2"));
    let region = |path: &Path| Region::create(path, EXTENT, Identity::default(), RegionOptions::default());
    drop(region(&mirror).expect("a file"));
    let region = Arc::new(region(&memory).expect("a region"));
    let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
    let line = line(&*listener);
    let (path, asked) = (mirror.clone(), Vec::new());
    let manager = Played {
        path,
        whole: true,
        lost: false,
        asked,
    };
    let playing = rt::spawn("manager", move || manager.play(&*listener));

    let options = MirrorOptions {
        every: Nanos::from_millis(10),
        patience: Nanos::ZERO,
        cards: Arc::default(),
        on_revoked: Box::new(|| {}),
    };
    let found = Some(view(&mirror, true));
    let keeper = GrantMirror::new(Lines::one(&line), (GrantId(1), 1), options, Arc::default(), found);
    keeper.begin(&region).expect("it goes on without");
    let asked = playing.join().expect("no panic");
    keeper.end();
    assert!(
        matches!(asked[..], [MirrorRequest::Unlend(MIRROR), .., MirrorRequest::Seek]),
        "{asked:?}"
    );
    let is_void = |what: &MirrorRequest| matches!(what, MirrorRequest::Void(MIRROR));
    assert!(asked.iter().any(is_void), "{asked:?}");
    let is_lost = |what: &MirrorRequest| matches!(what, MirrorRequest::Lost(_));
    assert!(!asked.iter().any(is_lost), "it keeps its place: {asked:?}");
}
