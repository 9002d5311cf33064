//! Where a part is asked: at a memory node, as a member there. A part that is mirrored goes to another node when its
//! own is lost; what this process has begun there goes on at that one.
//!
//! Invariant: what a process says to have begun in a part is said to the node that keeps it, at the same time as the
//! part is asked there: a node that has not heard of it would end it.

use super::membership::{Membership, RETRY};
use crate::ids::NodeId;
use crate::member::{MemberReply, MemberRequest};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_space::{Admission, Pass};
use std::sync::{Arc, Weak};

/// See the module.
pub(super) struct Place {
    pub(super) part: u8,
    member: Mutex<Arc<Membership>>,
    follow: Follow,
    look: Look,
    /// How long that is tried.
    timeout: Nanos,
}

/// Goes on where the parts are now that were asked at a node.
pub(super) type Follow = Box<dyn Fn(NodeId) -> Result<()> + Send + Sync>;

/// Which node the manager says to keep a part, if it is there and the part may have gone elsewhere.
pub(super) type Look = Box<dyn Fn(u8) -> Option<NodeId> + Send + Sync>;

impl Place {
    pub(super) fn new(part: u8, member: Arc<Membership>, (follow, look): (Follow, Look), timeout: Nanos) -> Self {
        let member = Mutex::new(member);
        Self {
            part,
            member,
            follow,
            look,
            timeout,
        }
    }

    pub(super) fn member(&self) -> Arc<Membership> {
        Arc::clone(&self.member.lock())
    }

    /// It is asked as this member from here on.
    pub(super) fn move_to(&self, member: Arc<Membership>) {
        *self.member.lock() = member;
    }

    /// Asks the node that keeps the part.
    ///
    /// # Errors
    /// As [`Membership::ask`].
    pub(super) fn ask(&self, request: &MemberRequest, tries: &mut u32) -> Result<MemberReply> {
        loop {
            let member = self.member();
            let answer = member.ask(request, tries);
            let may_have_left = answer.as_ref().is_err_and(|error| is_of_place(error, &member));
            if !may_have_left || !self.has_left(&member) {
                return answer;
            }
            self.follow(&member)?;
        }
    }

    /// Whether another node keeps the part. One that did, and cannot reach the manager, may not know it.
    fn has_left(&self, member: &Membership) -> bool {
        if !member.has_moved() && (self.look)(self.part).is_some_and(|node| node != member.node()) {
            member.set_moved();
        }
        member.has_moved()
    }

    /// To the node where the part is now, unless another thread was faster. Other parts of the former node's may be
    /// nowhere yet: that is their callers' error.
    fn follow(&self, from: &Arc<Membership>) -> Result<()> {
        let until = rt::now() + self.timeout;
        loop {
            match (self.follow)(from.node()) {
                Err(_) if !Arc::ptr_eq(&self.member(), from) => return Ok(()),
                Err(Error::Lost(_) | Error::Timeout(_) | Error::Busy(_)) if rt::now() < until => rt::sleep(RETRY),
                followed => return followed,
            }
        }
    }

    /// By which a channel to the part is let in.
    pub(super) fn admission(place: &Arc<Self>) -> Arc<dyn Admission> {
        Arc::new(Admitted(Arc::downgrade(place)))
    }
}

/// Whether a part that was asked for may be elsewhere. Any other error is the answer of the node that keeps it, or of
/// each: the manager, which may be away, is not asked for it.
fn is_of_place(error: &Error, member: &Membership) -> bool {
    match error {
        Error::Lost(_) | Error::Timeout(_) | Error::Busy(_) => true,
        Error::Revoked(_) => !member.is_revoked(),
        _ => member.has_moved(),
    }
}

/// This process as the hosts of a part know it, as long as the space is open.
struct Admitted(Weak<Place>);

impl Admitted {
    fn place(&self) -> Result<Arc<Place>> {
        self.0
            .upgrade()
            .ok_or_else(|| Error::Lost("the space was closed".into()))
    }
}

impl Admission for Admitted {
    fn pass(&self) -> Result<Pass> {
        self.place()?.member().pass()
    }

    fn renew(&self, refused: Pass) -> Result<Pass> {
        let place = self.place()?;
        let member = place.member();
        let renewed = member.renew(refused);
        let is_new = renewed.as_ref().is_ok_and(|pass| *pass != refused);
        let may_have_left = match &renewed {
            Ok(_) => true,
            Err(error) => is_of_place(error, &member),
        };
        if is_new || !may_have_left || !place.has_left(&member) {
            return renewed;
        }
        place.follow(&member)?;
        place.member().pass()
    }
}
