//! A user's connection as an [`Endpoint`], and batches under way.

use super::*;

/// A connection: its end is told to the node.
pub struct Channel {
    pub(super) handle: Arc<Handle>,
    pub(super) peer: Arc<Peer>,
}

impl Channel {
    /// What the provider calls a registration, once it was used over this way.
    pub fn provider_key(&self, key: u64) -> Option<Target> {
        self.peer.state.lock().keys.get(&key).map(|(target, _)| *target)
    }
}

/// What ends, with or without somebody who waits for it.
pub trait Ends: Send + Sync {
    /// Whether it has ended.
    fn has_ended(&self) -> bool;
}

impl Ends for Batch {
    fn has_ended(&self) -> bool {
        self.is_done()
    }
}

impl Channel {
    /// Nobody waits for it any more: it goes on, if it has not ended, and keeps its way.
    pub(super) fn let_go(self: &Arc<Self>, what: Arc<dyn Ends>) {
        if what.has_ended() {
            return;
        }
        let client = &self.handle.0;
        client.core.lock().abandoned.push((what, Arc::clone(self)));
        client.unattended.set();
    }
}

/// A way, as an endpoint and as a caller.
#[derive(Debug)]
pub struct Connection(pub Arc<Channel>);

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "way to {}", self.peer.name)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.handle.0.forget(&self.peer);
    }
}

impl Endpoint for Connection {
    fn peer(&self) -> &str {
        &self.0.peer.name
    }

    fn limits(&self) -> Limits {
        Limits {
            depth: DEPTH,
            transfer: u64::from(u32::MAX / 2),
        }
    }

    fn post(&self, works: Vec<Work>) -> Posted {
        if works.is_empty() {
            return Posted::done(works);
        }
        let client = &self.0.handle.0;
        let room = || client.core.lock().posted < DEPTH;
        if !room() {
            client.wait_until(&Arc::default(), &AtomicBool::default(), room);
        }
        let batch = Arc::new(Batch::new(Arc::clone(&self.0.peer), works));
        client.start(&batch);
        Posted::new(Box::new(BatchInFlight {
            channel: Arc::clone(&self.0),
            batch,
        }))
    }
}

/// A batch under way, as whoever posted it has it. The way lives as long.
struct BatchInFlight {
    channel: Arc<Channel>,
    batch: Arc<Batch>,
}

impl InFlight for BatchInFlight {
    fn poll(&mut self) -> bool {
        if !self.batch.is_done() {
            self.channel.handle.0.try_turn();
        }
        self.batch.is_done()
    }

    fn wait(self: Box<Self>) -> Vec<Work> {
        let client = &self.channel.handle.0;
        client.wait_until(&self.batch.event, &self.batch.slept, || self.batch.is_done());
        self.batch.take()
    }
}

impl Drop for BatchInFlight {
    fn drop(&mut self) {
        let batch: Arc<dyn Ends> = Arc::clone(&self.batch) as _;
        self.channel.let_go(batch);
    }
}
