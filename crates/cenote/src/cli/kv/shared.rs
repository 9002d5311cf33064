//! The table that all share: in a space of a pool, by the space's name.

use super::{KvArguments, size};
use crate::cli::Failure;
use crate::kv::Table;
use crate::{calls, log, pooled};
use cenote_base::units::ByteSize;
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_pool::SpacePhase;
use cenote_pool::client::{ClientOptions, PoolClient};
use cenote_space::Space;
use cenote_store::{Options, PutOptions, Store, Visibility};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long another server's making of the space is waited for, and between two looks.
const MAKING_TIME_MAX: Duration = Duration::from_secs(30);
const TURN: Duration = Duration::from_millis(20);
/// How long a memory node may take to hear that a server ends.
const LEAVING_TIME_MAX: Duration = Duration::from_secs(3);

/// A table that is open.
pub struct Opened {
    pub table: Table,
    /// Besides the tables, which are given up before this is, nothing may hold it for good.
    pub store: Arc<Store>,
    space: Space,
}

/// Opens the table of a space, and makes what is not there.
///
/// # Errors
/// The pool cannot be reached or refuses; there is no such space, and no size was given for one; something else lies in
/// it.
pub fn open(name: &str, arguments: &KvArguments) -> Result<Opened, Failure> {
    let space = open_space(name, arguments)?;
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
    })
}

fn open_space(name: &str, arguments: &KvArguments) -> Result<Space, Failure> {
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
    make_if_missing(&pool, name, arguments)?;
    Ok(pool.open_space(name)?)
}

/// Several servers may be the first ones at the same moment: one of them makes the space, and the others wait for it.
fn make_if_missing(pool: &PoolClient, name: &str, arguments: &KvArguments) -> Result<(), Failure> {
    let until = Instant::now() + MAKING_TIME_MAX;
    let phase = || -> Result<_, Failure> {
        let spaces = pool.spaces()?;
        Ok(spaces.iter().find(|space| space.name == name).map(|space| space.phase))
    };
    loop {
        match phase()? {
            Some(SpacePhase::Making) if Instant::now() < until => std::thread::sleep(TURN),
            Some(_) => return Ok(()),
            None if arguments.memory_size.is_none() => {
                return Err(format!(
                    "there is no space {name}: make it with `cenote pool space create {name} --size SIZE`, or give \
                     --memory-size"
                )
                .into());
            }
            None => {
                let made = pool.create_space(name, size(arguments).bytes(), None);
                if let Err(error) = made
                    && phase()?.is_none()
                {
                    return Err(error.into());
                }
            }
        }
    }
}

/// For people.
pub fn describe(opened: &Opened, name: &str) -> String {
    let length = ByteSize(opened.space.parts().map(|part| part.region().len()).sum());
    let far = match opened.space.far_parts().count() {
        0 => String::new(),
        1 => ", and 1 part of another pod".into(),
        n => format!(", and {n} parts of other pods"),
    };
    let mode = match opened.store.visibility() {
        Visibility::Coherent => "coherent",
        Visibility::Flush => "flush",
    };
    format!("{length} in space {name}{far} ({mode}); it survives killed processes, not lost memory nodes")
}

/// Gives up what a server has of the space. A memory node hears of it again and again until it has answered; if one is
/// away the process ends without, and the node finds that it is over.
pub fn leave(held: impl Send + 'static) {
    let (told, left) = mpsc::channel();
    let leaving = std::thread::Builder::new().name("kv-leave".into());
    let leaving = leaving.spawn(move || {
        drop(held);
        told.send(()).ok();
    });
    if leaving.is_ok() && left.recv_timeout(LEAVING_TIME_MAX).is_err() {
        log::warn!("a memory node has not heard that this server ends");
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
