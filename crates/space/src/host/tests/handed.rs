//! Slabs that move between the keeper's hand and the session's.

use super::*;
use crate::{Class, Extent, Run, SessionId};
use cenote_base::rt::Mutex;

/// A keeper after each of whose answers something happens to the slab.
struct Meanwhile {
    keeper: Arc<LocalKeeper>,
    then: Mutex<Box<dyn FnMut(GlobalAddress) + Send>>,
}

impl Keeper for Meanwhile {
    fn begin(&self) -> Result<SessionId> {
        self.keeper.begin()
    }

    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> Result<Extent> {
        let slab = self.keeper.take(session, class, lifetime)?;
        (self.then.lock())(GlobalAddress::new(1, slab.slot, 0, slab.generation)?);
        Ok(slab)
    }

    fn give_back(&self, session: SessionId, extents: &[Extent]) -> Result<()> {
        self.keeper.give_back(session, extents)
    }

    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> Result<Run> {
        self.keeper.take_run(session, bytes, lifetime)
    }

    fn free_run(&self, address: GlobalAddress) -> Result<()> {
        self.keeper.free_run(address)
    }

    fn end(&self, session: SessionId) -> Result<()> {
        self.keeper.end(session)
    }

    fn is_alive(&self, session: SessionId) -> Result<bool> {
        self.keeper.is_alive(session)
    }

    fn audit(&self) -> Result<Vec<String>> {
        self.keeper.audit()
    }
}

/// Found by the simulator (world `pool`, seed 5): a slab without an owner was handed out and moved away before its new
/// owner looked at it. The owner took the part for corrupt. It gets another slab.
#[test]
fn a_slab_that_moves_on_its_way_to_its_owner_is_followed_by_another() {
    let pods = Pods::still(6);
    let first = pods.users[0].session();
    let address = first.alloc(64).expect("room");
    first.close().expect("its slab has no owner now");
    for there_and_back in [false, true] {
        let (host, mut moves) = (Arc::clone(&pods.hosts[0].inner), 0);
        let then = move |extent| {
            moves += 1;
            if moves == 1 {
                host.requested(extent, Some(2)).expect("moved");
                if there_and_back {
                    host.requested(extent, Some(1)).expect("moved");
                }
            }
        };
        let keeper = Meanwhile {
            keeper: Arc::clone(pods.hosts[0].keeper()),
            then: Mutex::new(Box::new(then)),
        };
        let space = Space::new(SPACE);
        space
            .attach(Arc::clone(&pods.parts[0]), Arc::new(keeper))
            .expect("attached");
        let session = space.session();
        let other = session.alloc(64).expect("another slab");
        if !there_and_back {
            assert_ne!(other.extent(), address.extent());
            pods.relocate(address.extent(), 1).expect("it comes back");
        }
        session.free(other).expect("freed");
        session.close().expect("closed");
        pods.audit();
    }
}
