//! The table that all share: in a space of a pool, by the space's name.

use super::{KvArguments, size};
use crate::cli::{Failure, space};
use crate::kv::Table;
use crate::{calls, log, pooled};
use cenote_base::units::ByteSize;
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_pool::{SpacePhase, SpaceSummary};
use cenote_space::Space;
use cenote_store::{Options, PutOptions, Store, Visibility};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long another server's making of the space is waited for, and between two looks.
const MAKING_TIME_MAX: Duration = Duration::from_secs(30);
const TURN: Duration = Duration::from_millis(20);
/// How long the end of a server may take: others that hold its table, and memory nodes that are to hear of it,
/// together.
const LEAVING_TIME_MAX: Duration = Duration::from_secs(3);

/// A table that is open.
pub struct Opened {
    pub table: Table,
    /// Besides the tables, which are given up before this is, nothing may hold it for good.
    pub store: Arc<Store>,
    space: Space,
    is_mirrored: bool,
}

/// Opens the table of a space, and makes what is not there.
///
/// # Errors
/// The pool cannot be reached or refuses; there is no such space, and no size was given for one; something else lies in
/// it.
pub fn open(name: &str, arguments: &KvArguments) -> Result<Opened, Failure> {
    let (space, is_mirrored) = open_space(name, arguments)?;
    let visibility = if arguments.flush {
        Visibility::Flush
    } else {
        Visibility::Coherent
    };
    let options = Options {
        visibility,
        ..Options::default()
    };
    let store = Store::open_or_create(&space, options)?;
    if arguments.flush && store.visibility() != visibility {
        log::warn!("the table is there, and was made for coherent memory: --flush is for one that is made");
    }
    let put = PutOptions {
        replicas: arguments.replicas.unwrap_or(0),
        ..PutOptions::default()
    };
    Ok(Opened {
        table: Table::new(store.clone(), put),
        store: Arc::new(store),
        space,
        is_mirrored,
    })
}

/// A space, and whether it is mirrored.
fn open_space(name: &str, arguments: &KvArguments) -> Result<(Space, bool), Failure> {
    let manager = arguments.manager.as_deref().unwrap_or_default();
    let credentials = pooled::credentials(&arguments.pool(manager))?;
    let options = ClientOptions {
        name: format!("key-value server, process {}", std::process::id()),
        pod: arguments.pod.clone(),
        callers: calls::callers().ok(),
        on_revoked: Arc::new(pooled::end),
        ..ClientOptions::default()
    };
    let network: Arc<dyn Network> = Arc::new(Tcp);
    let pool = PoolClient::connect(&network, &credentials, options)?;
    let is_mirrored = make_if_missing(&pool, name, arguments)?.mirrored;
    if arguments.mirror && !is_mirrored {
        let text = format!("space {name} is there, and is not mirrored: leave --mirror out, or name another space");
        return Err(text.into());
    }
    Ok((pool.open_space(name)?, is_mirrored))
}

/// Several servers may be the first ones at the same moment: one of them makes the space, and the others wait for it.
fn make_if_missing(pool: &PoolClient, name: &str, arguments: &KvArguments) -> Result<SpaceSummary, Failure> {
    let until = Instant::now() + MAKING_TIME_MAX;
    let look = || -> Result<_, Failure> {
        let spaces = pool.spaces()?;
        Ok(spaces.into_iter().find(|space| space.name == name))
    };
    loop {
        match look()? {
            Some(space) if space.phase == SpacePhase::Making && Instant::now() < until => std::thread::sleep(TURN),
            Some(space) => return Ok(space),
            None if arguments.memory_size.is_none() => {
                return Err(format!(
                    "there is no space {name}: make it with `cenote pool space create {name} --size SIZE`, or give \
                     --memory-size"
                )
                .into());
            }
            None => {
                let made = space::create(pool, name, size(arguments), None, arguments.mirror);
                if let Err(error) = made
                    && look()?.is_none()
                {
                    return Err(error.into());
                }
            }
        }
    }
}

/// For people.
pub fn describe(opened: &Opened, name: &str) -> String {
    if opened.is_mirrored {
        let parts = opened.space.far_parts().count();
        return format!(
            "space {name}, mirrored, used by calls (parts: {parts}; {}); it survives killed processes, and the loss of \
             a memory node while its mirrors are whole",
            mode(&opened.store)
        );
    }
    let length = ByteSize(opened.space.parts().map(|part| part.region().len()).sum());
    let far = match opened.space.far_parts().count() {
        0 => String::new(),
        1 => ", and 1 part of another pod".into(),
        n => format!(", and {n} parts of other pods"),
    };
    let mode = mode(&opened.store);
    format!("{length} in space {name}{far} ({mode}); it survives killed processes, not lost memory nodes")
}

fn mode(store: &Store) -> &'static str {
    match store.visibility() {
        Visibility::Coherent => "coherent",
        Visibility::Flush => "flush",
    }
}

/// Gives up what a server has of the space. A memory node hears of it again and again until it has answered; if one is
/// away the process ends without, and the node finds that it is over.
pub fn leave(opened: Opened) {
    let Opened {
        table, store, space, ..
    } = opened;
    drop(table);
    if let Err(failure) = give_up(store, space, Instant::now() + LEAVING_TIME_MAX) {
        log::warn!("{failure}");
    }
}

/// Gives up a store, and its space after it. One deadline is for both waits: for those that hold the store still, and
/// for memory nodes.
fn give_up<T: Send + Sync + 'static>(store: Arc<T>, space: impl Send + 'static, until: Instant) -> Result<(), Failure> {
    let store = sole(store, until)?;
    let (told, left) = mpsc::channel();
    let leaving = std::thread::Builder::new().name("kv-leave".into());
    let leaving = leaving.spawn(move || {
        drop((store, space));
        told.send(()).ok();
    });
    let time = until.saturating_duration_since(Instant::now());
    match leaving.is_ok() && left.recv_timeout(time).is_err() {
        true => Err("a memory node has not heard that this server ends".into()),
        false => Ok(()),
    }
}

/// What is held here, when nothing else holds it: a request for metrics does while it is answered, and what it gives up
/// last would be given up after the process has said that it is.
fn sole<T>(mut held: Arc<T>, until: Instant) -> Result<T, Failure> {
    loop {
        held = match Arc::try_unwrap(held) {
            Ok(sole) => return Ok(sole),
            Err(held) if Instant::now() < until => held,
            Err(_) => return Err("the table is not given up: a request for metrics reads it still".into()),
        };
        std::thread::sleep(TURN);
    }
}

/// What is in it, for people.
///
/// # Errors
/// Those of the store.
pub fn tell(opened: &Opened) -> Result<String, Failure> {
    let stats = opened.store.stats()?;
    Ok(format!("{} keys in the table", stats.items))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Says when it is given up.
    struct Held(Arc<AtomicBool>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn what_a_request_for_metrics_holds_is_given_up_here_and_not_after() {
        let gone = Arc::new(AtomicBool::new(false));
        let held = Arc::new(Held(Arc::clone(&gone)));
        let request = Arc::clone(&held);
        let asks = std::thread::spawn(move || {
            std::thread::sleep(3 * TURN);
            drop(request);
        });
        drop(sole(held, Instant::now() + Duration::from_secs(60)).ok());
        assert!(gone.load(Ordering::SeqCst), "it is given up when that is said");
        asks.join().expect("joined");
    }

    /// Its end takes as long as the other side lives.
    struct Stuck(mpsc::Receiver<()>);

    impl Drop for Stuck {
        fn drop(&mut self) {
            self.0.recv().ok();
        }
    }

    /// A stop took six seconds, three for each of two waits.
    #[test]
    fn both_waits_of_a_stop_end_at_one_time() {
        let (alive, stuck) = mpsc::channel();
        let began = Instant::now();
        let failure = give_up(Arc::new(()), Stuck(stuck), began).expect_err("a node does not answer");
        assert!(failure.to_string().contains("memory node"), "{failure}");
        assert!(began.elapsed() < LEAVING_TIME_MAX, "the time was over");
        drop(alive);
    }

    #[test]
    fn a_request_that_does_not_end_is_waited_for_no_longer_than_is_said() {
        let held = Arc::new(());
        let _request = Arc::clone(&held);
        let failure = sole(held, Instant::now()).expect_err("it is held");
        assert!(failure.to_string().contains("metrics"), "{failure}");
    }
}
