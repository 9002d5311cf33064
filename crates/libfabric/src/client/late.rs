//! Late and lost operations: each operation in flight ends.

use super::*;

impl Client {
    /// Asks peers that were silent for long for a sign of life, and ends operations that have waited too long.
    pub(super) fn judge(&self, core: &mut Core, now: Nanos) {
        while core.order.front().is_some_and(|id| !core.in_flight.contains_key(id)) {
            core.order.pop_front();
        }
        let old = |id: &u64| {
            core.in_flight
                .get(id)
                .map(|f| (*id, now.since(f.since), Arc::clone(&f.peer)))
        };
        let suspect: Vec<_> = core
            .order
            .iter()
            .filter_map(old)
            .take_while(|(_, age, _)| age.0 > self.timeout.0 / 4)
            .collect();
        for (id, age, peer) in suspect {
            if self.is_verdict(core, id) {
                // Asking again changes nothing, and the question may have gone down with a connection.
                if let Some(OperationInFlight {
                    what: What::Verdict(batch, doubt),
                    ..
                }) = core.take_from_flight(id)
                {
                    core.doubts.push_back((batch, doubt));
                }
            } else if age > self.timeout && self.may_give_up(core, id, &peer, now) {
                self.give_up(core, id, &peer, now);
            } else if peer.may_ping(now, Nanos(self.timeout.0 / 4)) {
                self.send_control(core, &peer, Kind::Ping);
            }
        }
    }

    /// A call with a time of its own goes on as long as its node gives signs of life.
    fn may_give_up(&self, core: &Core, id: u64, peer: &Peer, now: Nanos) -> bool {
        let silent = now.since(Nanos(peer.heard.load(Ordering::Relaxed)));
        let operation = core.in_flight.get(&id);
        let of_own_time = operation.is_some_and(|o| matches!(&o.what, What::Call(asked) if asked.end.is_some()));
        !of_own_time || silent > self.timeout
    }

    /// A message has failed: all calls in it but the first end.
    pub(super) fn end_beside(&self, core: &mut Core, what: &What, error: &Error) {
        let What::Call(asked) = what else {
            return;
        };
        for id in &asked.beside {
            if let Some(operation) = core.take_from_flight(*id) {
                self.end(core, operation.what, error);
            }
        }
    }

    fn is_verdict(&self, core: &Core, id: u64) -> bool {
        matches!(
            core.in_flight.get(&id),
            Some(OperationInFlight {
                what: What::Verdict(..),
                ..
            })
        )
    }

    /// The time of an operation is over: its node is alive and has not answered it, or gives no sign of life.
    fn give_up(&self, core: &mut Core, id: u64, peer: &Arc<Peer>, now: Nanos) {
        let Some(operation) = core.take_from_flight(id) else {
            return;
        };
        let silent = now.since(Nanos(peer.heard.load(Ordering::Relaxed)));
        if silent.0 < self.timeout.0 / 2 && !matches!(operation.what, What::Hello) {
            let late = Error::Timeout(format!("memory node {}: no answer in time", peer.name));
            return self.end(core, operation.what, &late);
        }
        let lost = peer.lost(&format!("no sign of life for {} ms", silent.as_millis()));
        self.end(core, operation.what, &lost);
        self.break_peer(core, peer, &lost);
    }

    /// An operation in flight ends with an error.
    pub(super) fn end(&self, core: &mut Core, what: What, error: &Error) {
        match what {
            What::Hello => {}
            What::Call(mut asked) => {
                if let Some(on_loan) = asked.on_loan.take() {
                    self.end_unanswered(&asked, on_loan);
                }
                asked.set.complete(asked.index, Err(error.clone()));
            }
            What::Message(batch, pieces) => self.came(core, &batch, |body| {
                let failed = |piece: Piece| body.came(piece, Err(error.clone()), &[]);
                pieces.into_iter().for_each(failed);
            }),
            What::Operation(batch, piece) | What::Verdict(batch, Doubt { piece, .. }) => {
                self.came(core, &batch, |body| body.came(piece, Err(error.clone()), &[]));
            }
            What::Resolve(batch, _) => self.came(core, &batch, |body| {
                body.is_waiting_for_key(false);
                body.fail_next(error);
            }),
        }
    }

    /// All operations in flight to a peer end, and so do all that are posted later.
    pub(super) fn break_peer(&self, core: &mut Core, peer: &Arc<Peer>, error: &Error) {
        peer.state.lock().broken.get_or_insert_with(|| error.clone());
        core.peers.remove(&peer.session());
        let of_peer = |f: &OperationInFlight| Arc::ptr_eq(&f.peer, peer);
        let ids: Vec<u64> = core
            .in_flight
            .iter()
            .filter(|(_, f)| of_peer(f))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some(operation) = core.take_from_flight(id) {
                self.end(core, operation.what, error);
            }
        }
    }

    /// The endpoint itself has failed: no peer can be reached any more.
    pub(super) fn fail_endpoint(&self, core: &mut Core, error: &Error) {
        core.failed = Some(error.clone());
        let mut peers: Vec<Arc<Peer>> = core.peers.values().cloned().collect();
        peers.extend(core.in_flight.values().map(|f| Arc::clone(&f.peer)));
        for peer in peers {
            let lost = peer.lost(&error.to_string());
            self.break_peer(core, &peer, &lost);
        }
    }
}
