//! Which server a batch goes to, and a session there.

use super::backend::{Failure, Left};
use super::counted::Counted;
use super::dialogue::Dialogue;
use super::pool::{Lease, NoSession, Pool, TOO_MANY_CONNECTIONS};
use super::protocol::Refusal;
use super::shared::{Reads, Shared};
use super::state::{Start, State};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Between two tries to enter a server that does not answer.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// How long readers have to go on with a block.
const READER_TIME: Duration = Duration::from_secs(1);
/// How long a block that a writer does not take yet waits for it, or for another one.
const AHEAD_TIME: Duration = Duration::from_secs(2);
const SNAPSHOT_TOO_OLD: &str = "72000";
const CANNOT_CONNECT_NOW: &str = "57P03";

/// A session for a client, with its state in it: of a reader where `reads`, else of the writer.
///
/// # Errors
/// There is none in time, or servers refuse the client.
pub async fn session(shared: &Shared, dialogue: &mut Dialogue, reads: bool, until: Instant) -> Result<Lease, Refusal> {
    let is_readers = reads && shared.options.reads != Reads::Writer;
    let reading = is_readers.then(|| Counted::new(&shared.reads));
    let mut lease = server_for(shared, dialogue, is_readers, until).await?;
    lease.reading = reading;
    Ok(lease)
}

/// A block whose server goes.
pub struct LeftBlock {
    /// Where it is.
    pub left: Left,
    /// The server that goes.
    pub from: String,
    /// Whose it is: the client's number and its role.
    pub client: u64,
    /// See `client`.
    pub user: String,
    /// What the client's connection began with.
    pub start: Option<Start>,
}

/// A block that goes on. Dropped, it ends.
pub struct TakenUp {
    /// Its session.
    pub lease: Lease,
    /// The client's settings there.
    pub state: State,
    /// Its transaction status.
    pub status: u8,
}

/// A session in which the client's block goes on that its last server left: at another reader, if it was a reader's,
/// else at the writer.
///
/// # Errors
/// There is no writer in time, or the block is not there any more.
pub async fn take_up(shared: &Shared, left: &LeftBlock, until: Instant) -> Result<TakenUp, Refusal> {
    let is_with_proxy = matches!(left.left, Left::WithProxy(_));
    if is_with_proxy && let Some(taken) = at_reader(shared, left, until).await {
        return Ok(taken);
    }
    let mut ahead_since = None;
    let mut changes = shared.directory.watch();
    let (mut counted, mut why) = (None, "the database has no writer".to_owned());
    loop {
        let servers = changes.borrow_and_update().clone();
        if let Some(writer) = &servers.writer {
            let pool = shared.pool(writer, false);
            // Of thousands that wait for it, one tries again.
            let entered = match pool.has_failed_within(AGAIN_AFTER) {
                true => Err(NoSession::Failed(Failure::Gone("it did not just now".into()))),
                false => enter_block(shared, &pool, left).await,
            };
            match entered {
                Ok(taken) => return Ok(taken),
                // Others have all of its sessions at the moment, and may wait for this block.
                Err(NoSession::Failed(Failure::Refused(refusal))) if refusal.code == TOO_MANY_CONNECTIONS => {
                    why = refusal.message;
                }
                // A writer that another one has passed over is behind what the block has seen.
                Err(NoSession::Failed(Failure::Refused(refusal)))
                    if is_with_proxy
                        && refusal.code == SNAPSHOT_TOO_OLD
                        && ahead_since.get_or_insert_with(Instant::now).elapsed() < AHEAD_TIME =>
                {
                    why = refusal.message;
                }
                Err(NoSession::Failed(Failure::Refused(refusal))) => return Err(refusal),
                Err(NoSession::Failed(Failure::Gone(cause))) => why = cause,
                Err(NoSession::Busy | NoSession::Retired) => shared.retire_others(&shared.directory.servers()),
            }
        }
        counted.get_or_insert_with(|| Waits::new(shared));
        shared.directory.hurry();
        wait(shared, &mut changes, until, &why).await?;
    }
}

/// At another reader than the one that goes. What they refuse, or do not answer soon, the writer may take.
async fn at_reader(shared: &Shared, left: &LeftBlock, until: Instant) -> Option<TakenUp> {
    shared.directory.hurry();
    let soon = until.min(Instant::now() + READER_TIME);
    for pool in readers(shared).iter().filter(|pool| pool.address != left.from) {
        if let Ok(Ok(taken)) = tokio::time::timeout_at(soon, enter_block(shared, pool, left)).await {
            return Some(taken);
        }
    }
    None
}

async fn enter_block(shared: &Shared, pool: &Arc<Pool>, left: &LeftBlock) -> Result<TakenUp, NoSession> {
    let mut lease = pool.take_beyond(&left.user, shared.users.as_ref()).await?;
    let taken = lease.take_up(&left.left, left.start.clone()).await;
    let (state, status) = taken.map_err(NoSession::Failed)?;
    lease.owner = left.client;
    Ok(TakenUp { lease, state, status })
}

async fn server_for(
    shared: &Shared,
    dialogue: &mut Dialogue,
    is_readers: bool,
    until: Instant,
) -> Result<Lease, Refusal> {
    if is_readers {
        for pool in readers(shared) {
            // A reader that has no session free for long, or is not there, is no reason to wait.
            match enter(shared, &pool, dialogue, until).await {
                Ok(lease) => return Ok(lease),
                Err(NoSession::Failed(Failure::Refused(refusal))) => return Err(refusal),
                Err(NoSession::Busy) => return Err(busy(shared, &pool)),
                Err(NoSession::Retired | NoSession::Failed(Failure::Gone(_))) => {}
            }
        }
    }
    writers(shared, dialogue, until).await
}

/// Readers, the least busy first.
fn readers(shared: &Shared) -> Vec<Arc<Pool>> {
    let servers = shared.directory.servers();
    let pools = servers.readers.iter().map(|server| shared.pool(server, true));
    let mut pools: Vec<_> = pools.filter(|pool| !pool.is_avoided()).collect();
    pools.sort_by_key(|pool| pool.load());
    pools
}

async fn writers(shared: &Shared, dialogue: &mut Dialogue, until: Instant) -> Result<Lease, Refusal> {
    let mut changes = shared.directory.watch();
    let (mut counted, mut why) = (None, "the database has no writer".to_owned());
    loop {
        let servers = changes.borrow_and_update().clone();
        if let Some(writer) = &servers.writer {
            let pool = shared.pool(writer, false);
            // Of thousands that wait for it, one tries again.
            let entered = match pool.has_failed_within(AGAIN_AFTER) {
                true => Err(NoSession::Failed(Failure::Gone("it did not just now".into()))),
                false => enter(shared, &pool, dialogue, until).await,
            };
            match entered {
                Ok(lease) => return Ok(lease),
                Err(NoSession::Failed(Failure::Refused(refusal))) => return Err(refusal),
                Err(NoSession::Busy) => return Err(busy(shared, &pool)),
                Err(NoSession::Failed(Failure::Gone(cause))) => {
                    why = format!("the writer {} does not answer: {cause}", pool.address);
                }
                Err(NoSession::Retired) => {
                    // The pool of a server that the directory has not forgotten yet, or has again.
                    shared.retire_others(&shared.directory.servers());
                }
            }
        }
        counted.get_or_insert_with(|| Waits::new(shared));
        shared.directory.hurry();
        wait(shared, &mut changes, until, &why).await?;
    }
}

/// Until the directory says something else, or it is time to try again.
async fn wait(
    shared: &Shared,
    changes: &mut watch::Receiver<Arc<super::directory::Servers>>,
    until: Instant,
    why: &str,
) -> Result<(), Refusal> {
    if Instant::now() >= until {
        let seconds = shared.options.wait.as_secs_f32();
        return Err(Refusal::new(
            CANNOT_CONNECT_NOW,
            format!("no writer took the statement within {seconds} s: {why}"),
        ));
    }
    let next = until.min(Instant::now() + AGAIN_AFTER);
    // An error: the directory is gone, and the time passes as well.
    if let Ok(Err(_)) = tokio::time::timeout_at(next, changes.changed()).await {
        tokio::time::sleep_until(next).await;
    }
    Ok(())
}

/// A client that waits for a writer is counted.
struct Waits<'a>(&'a Shared);

impl<'a> Waits<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.without_writer.fetch_add(1, Ordering::Relaxed);
        Waits(shared)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.without_writer.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn enter(shared: &Shared, pool: &Arc<Pool>, dialogue: &mut Dialogue, until: Instant) -> Result<Lease, NoSession> {
    let mut lease = pool
        .take(&dialogue.user, dialogue.id, shared.users.as_ref(), until)
        .await?;
    let read_after = match pool.is_reader && shared.options.reads == Reads::Session {
        true => dialogue.position,
        false => 0,
    };
    let became = lease.become_clients(dialogue.id, &dialogue.state, read_after).await;
    dialogue.state = became.map_err(NoSession::Failed)?;
    Ok(lease)
}

fn busy(shared: &Shared, pool: &Pool) -> Refusal {
    let (seconds, size) = (shared.options.wait.as_secs_f32(), shared.options.pool_size);
    Refusal::new(
        TOO_MANY_CONNECTIONS,
        format!(
            "none of the {size} sessions of {} was free within {seconds} s (--pool-size, --wait)",
            pool.address
        ),
    )
}
