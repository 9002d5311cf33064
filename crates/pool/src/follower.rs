//! A process of the pool that does what the manager orders: a memory node, or the agent of a host.
//!
//! ```text
//!   greet ─▶ join ─▶ obey one order after the other ──▶ the manager is silent: does another lead?  ── yes ─▶ join there
//!     ▲                     │ the connection is over, or silent for too long
//!     └──── RETRY ──────────┘
//! ```
//!
//! It has one connection, and begins a new one only when the orders of the last are done: none of those comes late.

use crate::managers::{Greeted, Managers};
use crate::wire::{self, Hello, Order, OrderReply, Welcome};
use cenote_base::rt::{self, Event, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::{Connection, Network};

/// Between two tries to reach the manager.
const RETRY: Nanos = Nanos::from_millis(200);
/// The manager says something within this time, or is gone.
const SILENCE_MAX: Nanos = Nanos::from_secs(10);
/// When it has said nothing for so long, others are asked whether they lead, as often as that. It says something every
/// two seconds.
const DOUBT_AFTER: Nanos = Nanos::from_secs(3);
const DOUBT_EVERY: Nanos = Nanos::from_secs(1);
/// How long each of them may take to say so.
const DOUBT_TIMEOUT: Nanos = Nanos::from_secs(1);
const TURN: Nanos = Nanos::from_millis(100);

/// See the module.
pub(crate) trait Follower {
    /// For people.
    fn name(&self) -> &'static str;
    fn managers(&self) -> &Managers;
    fn network(&self) -> &dyn Network;
    fn is_stopping(&self) -> bool;
    /// Set while the manager has accepted it.
    fn joined(&self) -> &Event;

    /// How it presents itself now.
    ///
    /// # Errors
    /// Those of looking.
    fn hello(&self) -> Result<Hello>;

    /// Takes up with a manager, and tells it so last: no order comes before.
    ///
    /// # Errors
    /// It does not follow this manager; those of the connection.
    fn join(&self, connection: &dyn Connection, welcome: &Welcome) -> Result<()>;

    /// Does what is ordered, which may have been done before.
    ///
    /// # Errors
    /// Those of doing it: the manager is told.
    fn execute(&self, order: &Order) -> Result<OrderReply>;

    /// No manager was found, it refused, or the connection is over.
    fn has_failed(&self, _: &Error) {}
}

/// Follows the managers until it is to stop.
pub(crate) fn follow(follower: &impl Follower) {
    let (mut said, mut next) = (String::new(), None);
    while !follower.is_stopping() {
        let ended = serve(follower, next.take());
        follower.joined().reset();
        match ended {
            Ok(later) => next = later,
            Err(error) if !follower.is_stopping() => {
                say_once(follower.name(), &error, &mut said);
                follower.has_failed(&error);
                rt::sleep(RETRY);
            }
            Err(_) => {}
        }
    }
}

fn say_once(name: &str, error: &Error, said: &mut String) {
    let text = error.to_string();
    if text != *said {
        eprintln!("cenote: {name}: {text}; trying again");
        *said = text;
    }
}

/// A manager that does not know yet that another leads gives no orders. `obeyed`: the latest term that was obeyed.
///
/// # Errors
/// [`Error::Mismatch`].
pub(crate) fn check_term(name: &str, obeyed: u64, welcome: &Welcome) -> Result<()> {
    match welcome.term < obeyed {
        false => Ok(()),
        true => Err(Error::Mismatch(format!(
            "this {name} has obeyed the pool's manager of term {obeyed}, and this one is of term {}: it leads no more, or its grant table is an old copy",
            welcome.term
        ))),
    }
}

/// One connection with the manager, from its beginning to its end: a new one, or the one that was accepted from a
/// manager that took over. The next one, if another has taken over again.
fn serve(follower: &impl Follower, greeted: Option<Greeted>) -> Result<Option<Greeted>> {
    let (connection, welcome) = match greeted {
        Some(greeted) => greeted,
        None => {
            let hello = follower.hello()?;
            follower.managers().greet(follower.network(), &hello, SILENCE_MAX)?
        }
    };
    let joined = follower.join(&*connection, &welcome);
    let served = joined.and_then(|()| obey(follower, &*connection, &welcome));
    connection.close();
    if !matches!(served, Ok(Some(_))) {
        follower.managers().turn_away();
    }
    served
}

fn obey(follower: &impl Follower, connection: &dyn Connection, welcome: &Welcome) -> Result<Option<Greeted>> {
    let (mut heard, mut asked) = (rt::now(), rt::now());
    while !follower.is_stopping() {
        match wire::receive::<Order>(connection, TURN) {
            Ok(order) => {
                let reply = follower.execute(&order);
                let reply = reply.unwrap_or_else(|error| OrderReply::Failed(error.into()));
                wire::answer(connection, &reply, OrderReply::Failed)?;
                heard = rt::now();
            }
            Err(Error::Timeout(_)) => {
                let silent = rt::now().since(heard);
                if silent >= DOUBT_AFTER && rt::now().since(asked) >= DOUBT_EVERY {
                    if let Some(later) = later_manager(follower, welcome)? {
                        return Ok(Some(later));
                    }
                    asked = rt::now();
                }
                if silent >= SILENCE_MAX {
                    return Err(Error::Lost("the manager says nothing".into()));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The manager says nothing. Another may lead by now, and need not wait until this one is given up.
fn later_manager(follower: &impl Follower, now: &Welcome) -> Result<Option<Greeted>> {
    let hello = follower.hello()?;
    let is_later = |welcome: &Welcome| welcome.pool == now.pool && welcome.term > now.term;
    Ok(follower
        .managers()
        .greet_others(follower.network(), &hello, DOUBT_TIMEOUT, is_later))
}
