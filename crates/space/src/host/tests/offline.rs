//! Sessions that allocate while parts are offline.

use super::super::super::class::Class;
use super::super::super::keeper::{Extent, Run, SessionId};
use super::*;

/// A keeper that is not reached.
struct Away;

fn away<T>() -> Result<T> {
    Err(Error::Lost("its memory node is away".into()))
}

impl Keeper for Away {
    fn begin(&self) -> Result<SessionId> {
        away()
    }

    fn take(&self, _: SessionId, _: Class, _: Lifetime) -> Result<Extent> {
        away()
    }

    fn give_back(&self, _: SessionId, _: &[Extent]) -> Result<()> {
        away()
    }

    fn take_run(&self, _: SessionId, _: u64, _: Lifetime) -> Result<Run> {
        away()
    }

    fn free_run(&self, _: GlobalAddress) -> Result<()> {
        away()
    }

    fn end(&self, _: SessionId) -> Result<()> {
        away()
    }

    fn is_alive(&self, _: SessionId) -> Result<bool> {
        away()
    }

    fn audit(&self) -> Result<Vec<String>> {
        away()
    }
}

/// A user of the second part alone, for which others are offline: a part whose keeper is not reached, and one whose
/// host is not.
fn user(pods: &Pods) -> Space {
    let user = Space::new(SPACE);
    let far = |number: u8, peer: &str| FarPart {
        number,
        pod: peer.into(),
        channel: {
            let hello = Hello {
                space: SPACE,
                part: number,
                key: KEY,
                pod: PODS[0].into(),
            };
            Arc::new(Channel::new(Arc::clone(&pods.nodes) as Arc<dyn Callers>, peer, hello))
        },
    };
    let keeper = |n: usize| Arc::clone(pods.hosts[n].keeper()) as Arc<dyn Keeper>;
    user.attach_far(far(0, PODS[0]), Arc::new(Away)).expect("attached");
    user.attach_far(far(1, "nowhere"), keeper(0)).expect("attached");
    user.attach_far(far(2, PODS[1]), keeper(1)).expect("attached");
    user
}

/// An allocating session got `Lost` from the first part that was offline, though another had room.
#[test]
fn a_part_that_is_offline_does_not_hide_room_elsewhere() {
    let pods = Pods::still(4);
    let session = user(&pods).session();
    let mut all = Vec::new();
    let why = loop {
        match session.alloc(EXTENT / 4) {
            Ok(address) => all.push(address),
            Err(error) => break error,
        }
    };
    assert!(!all.is_empty() && all.iter().all(|address| address.part() == 2));
    // The one whose keeper is not reached, or whose host is not: the first of them that was asked.
    let is_offline = |text: &str| text.contains("is away") || text.contains("is not reached");
    assert!(matches!(&why, Error::Lost(text) if is_offline(text)), "{why:?}");
}

/// The same of a part that is mapped, and whose keeper is away.
#[test]
fn a_near_part_whose_keeper_is_away_is_passed_over() {
    let pods = Pods::still(4);
    let user = user(&pods);
    let near = part(3, 4);
    user.attach(near, Arc::new(Away)).expect("attached");
    assert_eq!(user.session().alloc(64).expect("room").part(), 2);
}
