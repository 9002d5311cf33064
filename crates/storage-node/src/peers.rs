//! Messages to the other nodes: a thread and a queue for each.
//!
//! Raft wants messages to come soon or not at all. So a queue is bounded, what does not fit is dropped, and a node
//! that cannot be reached costs a try a moment. Each node says hello to all others, whether it has messages for them
//! or not: so that each of them knows the directory that it has.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use cenote_base::Result;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, Condvar, Mutex, Nanos};
use cenote_fabric::message::{Connection, Network};

use crate::state_file::{ANOTHER_DIRECTORY, REPLACED_DIRECTORY};
use crate::wire::{Hello, Reply};

const CONNECT_TIMEOUT: Nanos = Nanos::from_secs(1);
const WELCOME_TIMEOUT: Nanos = Nanos::from_secs(2);
/// Before a node that could not be reached is tried again.
const AGAIN: Nanos = Nanos::from_millis(200);
/// A connection that was not used for so long may be over, which a message that is sent over it would not tell: nodes
/// that follow the same leader speak to each other when it is lost, and an election would wait for the next time-out.
const QUIET: Nanos = Nanos::from_millis(100);
/// Before a node is said hello to for which there is no message, or its connection is looked at.
const HELLO: Nanos = Nanos::from_millis(500);
/// Bytes that wait for a node at most.
const QUEUE_BYTES: usize = 16 << 20;

/// See the module.
pub(crate) struct Peers {
    network: Arc<dyn Network>,
    hello: Hello,
    queues: BTreeMap<u64, Arc<Queue>>,
}

struct Queue {
    to: u64,
    address: String,
    state: Mutex<Waiting>,
    came: Condvar,
    /// Whether the node takes this one for a directory that it does not know.
    is_refused: AtomicBool,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    is_closed: bool,
}

impl Peers {
    /// Of a node that says `hello`; the others by number and address.
    pub fn new(network: Arc<dyn Network>, hello: Hello, others: &BTreeMap<u64, String>) -> Peers {
        let queue = |(to, address): (&u64, &String)| {
            let queue = Queue {
                to: *to,
                address: address.clone(),
                state: Mutex::default(),
                came: Condvar::default(),
                is_refused: AtomicBool::new(false),
            };
            (*to, Arc::new(queue))
        };
        Peers {
            network,
            hello,
            queues: others.iter().map(queue).collect(),
        }
    }

    pub fn send(&self, to: u64, message: Vec<u8>) {
        let Some(queue) = self.queues.get(&to) else { return };
        let mut waiting = queue.state.lock();
        if waiting.bytes + message.len() <= QUEUE_BYTES {
            waiting.bytes += message.len();
            waiting.messages.push_back(message);
            drop(waiting);
            queue.came.notify_one();
        }
    }

    /// Whether a node takes this one for a directory that it does not know.
    pub fn is_refused(&self) -> bool {
        self.queues
            .values()
            .any(|queue| queue.is_refused.load(Ordering::Acquire))
    }

    /// The threads that send.
    pub fn start(&self) -> Vec<rt::JoinHandle<()>> {
        let start = |queue: &Arc<Queue>| {
            let (queue, network) = (Arc::clone(queue), Arc::clone(&self.network));
            let hello = Hello {
                to: queue.to,
                ..self.hello.clone()
            };
            rt::spawn("storage-peer", move || queue.serve(&*network, &hello))
        };
        self.queues.values().map(start).collect()
    }

    pub fn close(&self) {
        for queue in self.queues.values() {
            queue.state.lock().is_closed = true;
            queue.came.notify_all();
        }
    }
}

impl Queue {
    fn serve(&self, network: &dyn Network, hello: &Hello) {
        let mut connection: Option<Arc<dyn Connection>> = None;
        let (mut said, mut used) = (String::new(), rt::now());
        while let Some(message) = self.next() {
            connection.take_if(|connection| rt::now().since(used) > QUIET && connection.try_receive().is_err());
            used = rt::now();
            if connection.is_none() {
                match connect(network, &self.address, hello, WELCOME_TIMEOUT) {
                    Ok(made) => {
                        connection = Some(made);
                        self.is_refused.store(false, Ordering::Release);
                    }
                    Err(error) => {
                        let text = error.to_string();
                        let is_refused = text.contains(ANOTHER_DIRECTORY) || text.contains(REPLACED_DIRECTORY);
                        self.is_refused.store(is_refused, Ordering::Release);
                        if text != said {
                            eprintln!("cenote storage: node {} at {}: {text}", self.to, self.address);
                            said = text;
                        }
                        self.forget();
                        rt::sleep(AGAIN);
                        continue;
                    }
                }
                said.clear();
            }
            let Some(message) = message else { continue };
            let sent = connection.as_ref().map(|connection| connection.send(&message));
            if sent.is_some_and(|sent| sent.is_err()) {
                connection = None;
            }
        }
        if let Some(connection) = connection {
            connection.close();
        }
    }

    /// The next message; none after a while, to look at the connection. `None`: the node ends.
    fn next(&self) -> Option<Option<Vec<u8>>> {
        let mut waiting = self.state.lock();
        let until = rt::now() + HELLO;
        loop {
            if waiting.is_closed {
                return None;
            }
            if let Some(message) = waiting.messages.pop_front() {
                waiting.bytes -= message.len();
                return Some(Some(message));
            }
            if rt::now() >= until {
                return Some(None);
            }
            waiting = self.came.wait_timeout(waiting, HELLO).0;
        }
    }

    fn forget(&self) {
        let mut waiting = self.state.lock();
        waiting.messages.clear();
        waiting.bytes = 0;
    }
}

/// A connection to a node that has let this one in, which takes it so long for a step at most.
///
/// # Errors
/// Those of the network, and what the node said.
pub(crate) fn connect(
    network: &dyn Network,
    address: &str,
    hello: &Hello,
    patience: Nanos,
) -> Result<Arc<dyn Connection>> {
    let connection = network.connect(address, CONNECT_TIMEOUT.min(patience))?;
    connection.send(&hello.encode())?;
    let answer = connection
        .receive(WELCOME_TIMEOUT.min(patience))
        .and_then(|bytes| Reply::decode(&bytes));
    match answer {
        Ok(Reply::Welcome { .. }) => Ok(connection),
        Ok(Reply::Failed(error)) => {
            connection.close();
            Err(error)
        }
        Ok(_) => {
            connection.close();
            Err(cenote_base::Error::corrupt(format!(
                "{address} answers as no storage node does"
            )))
        }
        Err(error) => {
            connection.close();
            Err(error)
        }
    }
}
