//! A fence with two unequal sides: nearly nothing where it is passed often, a system call where it is passed seldom.
//!
//! Dekker's pattern between a thread that announces what it is about to do and looks at a flag, and one that sets the
//! flag and looks at the announcements, needs a full fence on both sides. [`light`] orders only what the compiler does;
//! [`heavy`] makes every processor that runs a thread of a [registered](register) process pass a full fence meanwhile
//! (`membarrier(2)`), so that each light one of theirs was a full one before it or will be after it.
//!
//! ```text
//!   announce; light(); look at the flag          set the flag; heavy(); look at the announcements
//! ```
//!
//! One of the two sees the other.

use super::atomic::{Ordering, compiler_fence, fence};
use super::simulated;
use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
use std::io;
use std::sync::OnceLock;

/// Whether this process's light fences are seen by heavy ones of all processes of the machine. Registers it, the first
/// time.
pub fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        let wanted = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
        membarrier_query().contains(wanted) && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
    })
}

/// The side that is passed often; `registered` as [`register`] said, once.
#[inline(always)]
pub fn light(registered: bool) {
    if registered {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The other side. Around 1 µs, and an interruption of the other processors.
///
/// # Errors
/// The system refuses it: then light fences of registered processes are none. (Those of others are full ones, and this
/// one has been a full one too.)
pub fn heavy() -> io::Result<()> {
    fence(Ordering::SeqCst);
    // Simulated threads are one thread.
    if simulated() {
        return Ok(());
    }
    Ok(membarrier(MembarrierCommand::GlobalExpedited)?)
}

#[cfg(test)]
mod tests {
    use super::super::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    use super::super::{relax, spawn};
    use std::sync::Arc;

    /// Without the fences this machine breaks it within some thousand rounds.
    #[test]
    fn one_of_two_sees_the_other() {
        let registered = super::register();
        // A system that refuses both has full fences on both sides.
        let refused = super::heavy().is_err();
        assert!(!(registered && refused), "what was registered is served");
        let (inside, closed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (done, used) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let theirs = (
            Arc::clone(&inside),
            Arc::clone(&closed),
            Arc::clone(&done),
            Arc::clone(&used),
        );
        let user = spawn("user", move || {
            let (inside, closed, done, used) = theirs;
            while !done.load(Relaxed) {
                inside.store(1, Relaxed);
                super::light(registered);
                if !closed.load(Relaxed) {
                    used.store(used.load(Relaxed) + 1, Relaxed);
                }
                inside.store(0, super::Ordering::Release);
            }
        });
        for round in 0..20_000 {
            closed.store(true, Relaxed);
            assert_eq!(super::heavy().is_err(), refused);
            while inside.load(super::Ordering::Acquire) != 0 {
                relax();
            }
            let before = used.load(Relaxed);
            for _ in 0..20 {
                relax();
            }
            assert_eq!(used.load(Relaxed), before, "round {round}: used while closed");
            closed.store(false, Relaxed);
        }
        done.store(true, Relaxed);
        user.join().expect("ended");
    }
}
