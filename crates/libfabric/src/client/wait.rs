//! Waiting threads, one of which leads, and the background thread, which serves operations that no thread waits for.

use super::*;

impl Client {
    /// Returns when `done`. `event` wakes a thread that sleeps here: it is set when there is news, or when a leader is
    /// needed. `sleeps` is set before the first sleep: while it is not, the event need not be set.
    pub(super) fn wait_until(&self, event: &Arc<Event>, sleeps: &AtomicBool, done: impl Fn() -> bool) {
        self.wait_spinning(event, sleeps, SPIN, done);
    }

    /// As [`Client::wait_until`]; a leader spins for `spin` before it sleeps.
    pub(super) fn wait_spinning(&self, event: &Arc<Event>, sleeps: &AtomicBool, spin: Nanos, done: impl Fn() -> bool) {
        let mut registered = false;
        while !done() {
            if let Some(role) = self.role.try_lock() {
                self.lead(spin, &done);
                drop(role);
                self.hand_over();
            } else if registered {
                event.wait_timeout(FOLLOWER_SLEEP);
                event.reset();
            } else {
                self.core.lock().waiters.push_back(Arc::clone(event));
                sleeps.store(true, Ordering::SeqCst);
                registered = true;
            }
        }
        if registered {
            self.core.lock().waiters.retain(|e| !Arc::ptr_eq(e, event));
            // This thread may have been asked to lead in the meantime.
            if self.role.try_lock().is_some() {
                self.hand_over();
            }
        }
    }

    /// Turns until `done`; sleeps in between when there was no news for `spin`.
    fn lead(&self, spin: Nanos, done: &impl Fn() -> bool) {
        let mut busy = rt::now();
        while !done() {
            if self.turn() > 0 {
                busy = rt::now();
            } else {
                let is_left = !self.core.lock().outbox.is_empty();
                let longest = if is_left { Nanos::ZERO } else { LEADER_SLEEP };
                self.fabric_endpoint.pause(rt::now().since(busy), spin, longest);
            }
        }
    }

    /// One turn, if no thread leads.
    pub(super) fn try_turn(&self) {
        if let Some(role) = self.role.try_lock() {
            self.turn();
            drop(role);
            self.hand_over();
        }
    }

    /// Wakes a waiting thread to lead.
    pub(super) fn hand_over(&self) {
        let next = self.core.lock().waiters.front().cloned();
        next.into_iter().for_each(|event| event.set());
    }

    /// What the background thread does until the last user of the client has gone.
    pub(super) fn attend(&self) {
        let end = |core: &Core| core.posted + core.calling == 0 && core.outbox.is_empty();
        let mut stopped = None;
        loop {
            if self.stop.load(Ordering::Acquire) {
                let since = *stopped.get_or_insert_with(rt::now);
                if end(&self.core.lock()) || rt::now().since(since) > Nanos(self.timeout.0 * 2) {
                    return;
                }
            }
            let busy = self.look_after();
            self.unattended.wait_timeout(if busy || stopped.is_some() {
                BUSY_SLEEP
            } else {
                IDLE_SLEEP
            });
            self.unattended.reset();
        }
    }

    /// Turns if no thread leads; whether there are operations that no thread waits for.
    fn look_after(&self) -> bool {
        if let Some(role) = self.role.try_lock() {
            while self.turn() > 0 {}
            drop(role);
            self.hand_over();
        }
        let mut core = self.core.lock();
        let (over, rest) = core.abandoned.drain(..).partition(|(what, _)| what.has_ended());
        core.abandoned = rest;
        let unsent = !core.queue.is_empty() || !core.unsent.is_empty() || !core.outbox.is_empty();
        let busy = !core.abandoned.is_empty() || unsent;
        drop(core);
        // Not under the lock: a channel that is dropped says so to its node.
        let over: Vec<(Arc<dyn Ends>, Arc<Channel>)> = over;
        drop(over);
        busy
    }
}
