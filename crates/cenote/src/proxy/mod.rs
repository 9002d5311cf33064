//! A proxy between PostgreSQL's clients and the servers of a database: connections stay while servers change.
//!
//! ```text
//!  clients, a task each            sessions of servers, so many each
//!   idle ────────────┐
//!   batch ── route ──┼──► writer   pool of sessions, each any client's by its state
//!   block ───────────┼──► reader
//!   idle ────────────┘      ▲
//!                       directory: the writer, the readers
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `words`, `outcome` | what a text begins with; what a loss means: pure choices |
//! | `counted` | numbers of what is there |
//! | `protocol`, `state`, `statements`, `passwords` | messages, and what travels |
//! | `directory`, `members` | which servers there are |
//! | `backend`, `pool` | a session of a server; all of one server's |
//! | `dialogue`, `batch`, `expected`, `relay`, `failed` | a client; what it sends; one batch to a server and back; a lost block |
//! | `shared`, `route`, `status`, `cancel`, `startup`, `client` | all clients; a session for a batch; a client's life |
//!
//! See `docs/proxy.md`.

mod backend;
mod batch;
mod cancel;
mod client;
mod counted;
mod dialogue;
pub mod directory;
mod expected;
mod failed;
pub mod members;
mod outcome;
mod passwords;
mod pool;
mod protocol;
mod relay;
mod route;
mod shared;
mod startup;
mod state;
mod statements;
mod status;
mod words;

use crate::log;
use crate::server::auth::fill_random;
use crate::server::startup::STARTUP_TIME_MAX;
use bytes::BytesMut;
use client::{Client, Leaves, shutting_down, tell};
use counted::Counted;
use dialogue::Dialogue;
pub use passwords::Users;
use protocol::{Inbound, Refusal, put, put_ready};
use shared::{Known, Target, lock};
pub use shared::{Options, Reads, Shared};
use startup::{Arriving, Wanted};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Connections beyond the limit that may be told so, or bring a cancel request.
const SPARE_CONNECTIONS: usize = 32;
/// How long transactions have to end when the proxy stops.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);
/// Between two looks at idle sessions.
const SWEEP: Duration = Duration::from_secs(5);

/// Serves clients until `stop` says so, and those with a transaction ten seconds longer.
pub async fn serve(listener: TcpListener, shared: Arc<Shared>, stop: tokio::sync::oneshot::Receiver<()>) {
    let asked = Arc::downgrade(&shared);
    shared
        .directory
        .serve_needs(Box::new(move || asked.upgrade().map(|shared| shared.need())));
    let keepers = [
        tokio::spawn(follow(shared.clone())),
        tokio::spawn(sweep(shared.clone())),
    ];
    tokio::select! {
        () = accept(&listener, &shared) => {}
        _ = stop => {}
    }
    drop(listener);
    shared.stopping.send_replace(true);
    let until = tokio::time::Instant::now() + STOP_TIME_MAX;
    while shared.connections.load(Ordering::Acquire) > 0 && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    keepers.iter().for_each(tokio::task::JoinHandle::abort);
}

async fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let counted = Counted::new(&shared.connections);
                if shared.connections.load(Ordering::Relaxed) > shared.options.max_connections + SPARE_CONNECTIONS {
                    continue;
                }
                tokio::spawn(welcome(stream, shared.clone(), counted));
            }
            Err(error) => {
                // Out of file descriptors, most likely: clients that leave give some back.
                log::error!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Sessions of servers that the directory no longer names end.
async fn follow(shared: Arc<Shared>) {
    let mut changes = shared.directory.watch();
    loop {
        let servers = changes.borrow_and_update().clone();
        shared.retire_others(&servers);
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn sweep(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        shared.all_pools().iter().for_each(|pool| pool.sweep());
    }
}

/// A client from its first byte to its last.
async fn welcome(stream: TcpStream, shared: Arc<Shared>, _counted: Counted) {
    stream.set_nodelay(true).ok();
    let inbound = Inbound::default();
    let mut arriving = Arriving { stream, inbound };
    let wanted = tokio::time::timeout(STARTUP_TIME_MAX, Box::pin(arriving.wants(shared.users.as_ref()))).await;
    match wanted {
        Ok(Ok(Wanted::Session(startup))) => {
            let id = shared.last_client.fetch_add(1, Ordering::Relaxed) + 1;
            if let Some(refusal) = full(&shared) {
                return tell(&mut arriving.stream, &refusal).await;
            }
            match Box::pin(arriving.begin(id, startup, &shared)).await {
                Ok(dialogue) => converse(dialogue, shared).await,
                Err((mut stream, refusal)) => tell(&mut stream, &refusal).await,
            }
        }
        Ok(Ok(Wanted::Cancel { id, secret })) => Box::pin(cancel::cancel(&shared, id, secret)).await,
        Ok(Err(Some(refusal))) => tell(&mut arriving.stream, &refusal).await,
        // It left, or did not finish its startup in time.
        Ok(Err(None)) | Err(_) => {}
    }
}

fn full(shared: &Shared) -> Option<Refusal> {
    let most = shared.options.max_connections;
    let is_full = lock(&shared.clients).len() >= most;
    is_full.then(|| {
        Refusal::new(
            "53300",
            format!("the proxy has {most} clients, as many as it may (--max-connections)"),
        )
    })
}

/// A client that is known by a number.
struct Registered {
    shared: Arc<Shared>,
    id: i32,
    secret: i32,
    target: Arc<Target>,
}

impl Registered {
    fn new(shared: Arc<Shared>) -> Registered {
        let (target, mut clients) = (Arc::new(Target::default()), lock(&shared.clients));
        loop {
            let mut random = [0; 8];
            fill_random(&mut random);
            let [a, b, c, d, e, f, g, h] = random;
            let (id, secret) = (
                i32::from_be_bytes([a & 0x7f, b, c, d]),
                i32::from_be_bytes([e, f, g, h]),
            );
            if id == 0 || clients.contains_key(&id) {
                continue;
            }
            let known = Known {
                secret,
                target: target.clone(),
            };
            clients.insert(id, known);
            drop(clients);
            return Registered {
                shared,
                id,
                secret,
                target,
            };
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        lock(&self.shared.clients).remove(&self.id);
    }
}

async fn converse(mut dialogue: Dialogue, shared: Arc<Shared>) {
    let registered = Registered::new(shared.clone());
    let mut out = BytesMut::new();
    put(&mut out, b'R', &[&0i32.to_be_bytes()]);
    dialogue.put_greeting(&mut out);
    put(
        &mut out,
        b'K',
        &[&registered.id.to_be_bytes(), &registered.secret.to_be_bytes()],
    );
    put_ready(&mut out, b'I');
    if dialogue.stream.write_all(&out).await.is_err() {
        return;
    }
    drop(out);
    let mut stopping = shared.stopping.subscribe();
    let mut client = Client::new(shared, dialogue, registered.target.clone());
    let leaves: Leaves = tokio::select! {
        leaves = client.run() => leaves,
        () = too_late(&mut stopping) => Some(shutting_down()),
    };
    if let Some(refusal) = leaves {
        client.tell(&refusal).await;
    }
}

/// When the proxy stops, and the time for transactions is over.
async fn too_late(stopping: &mut tokio::sync::watch::Receiver<bool>) {
    // An error: the proxy is no more, which is as late.
    stopping.wait_for(|stopping| *stopping).await.ok();
    tokio::time::sleep(STOP_TIME_MAX - Duration::from_millis(500)).await;
}

/// A runtime for a proxy.
///
/// # Errors
/// The system gives no threads.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}
