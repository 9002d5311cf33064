//! A user's connection as an [`Endpoint`], and batches in flight.

use super::*;
use cenote_fabric::rdma::{Endpoint, InFlight, Limits, Posted};

/// A channel, as an endpoint and as a caller.
#[derive(Debug)]
pub struct Connection(pub Arc<Channel>);

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

    fn fences_are_free(&self) -> bool {
        self.0.peer.path() == Path::Served
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

/// A batch in flight, as the thread that posted it has it. The channel lives as long.
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
        self.wait_spinning(SPIN)
    }

    fn wait_asleep(self: Box<Self>) -> Vec<Work> {
        self.wait_spinning(Nanos::ZERO)
    }
}

impl BatchInFlight {
    fn wait_spinning(&self, spin: Nanos) -> Vec<Work> {
        let client = &self.channel.handle.0;
        client.wait_spinning(&self.batch.event, &self.batch.slept, spin, || self.batch.is_done());
        self.batch.take()
    }
}

impl Drop for BatchInFlight {
    fn drop(&mut self) {
        let batch: Arc<dyn Ends> = Arc::clone(&self.batch) as _;
        self.channel.let_go(batch);
    }
}
