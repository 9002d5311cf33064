//! The way to a pool's manager, where there may be several: one leads, the others say that they do not.

use crate::wire::{self, Failure, Hello, Welcome};
use cenote_base::rt::atomic::{AtomicUsize, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::{Connection, Network};
use std::sync::Arc;

const CONNECT_TIMEOUT: Nanos = Nanos::from_secs(2);
/// How long one of several may take to say whether it leads: one that is stopped says nothing.
const SILENCE_MAX: Nanos = Nanos::from_secs(3);
/// Between two rounds.
const RETRY: Nanos = Nanos::from_millis(200);

/// Addresses of managers.
#[derive(Debug)]
pub(crate) struct Managers {
    addresses: Vec<String>,
    /// The one that led when it was asked last.
    first: AtomicUsize,
}

impl Clone for Managers {
    fn clone(&self) -> Self {
        Self {
            addresses: self.addresses.clone(),
            first: AtomicUsize::new(self.first.load(Ordering::Relaxed)),
        }
    }
}

impl Managers {
    /// `ADDR:PORT`, or several with commas in between.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one is empty.
    pub(crate) fn parse(list: &str) -> Result<Self> {
        let addresses: Vec<String> = list.split(',').map(|address| address.trim().to_owned()).collect();
        if addresses.iter().any(String::is_empty) {
            return Err(Error::Invalid(format!(
                "\"{}\" does not say where managers listen: ADDR:PORT, or several with commas in between",
                list.escape_debug()
            )));
        }
        Ok(Self {
            addresses,
            first: AtomicUsize::new(0),
        })
    }

    /// Asks each of them once, and the one first that led last.
    ///
    /// # Errors
    /// What the one said that leads, if it refuses; [`Error::Lost`], [`Error::Timeout`] if none leads.
    pub(crate) fn greet(&self, network: &dyn Network, hello: &Hello, timeout: Nanos) -> Result<Greeted> {
        let (count, first) = (self.addresses.len(), self.first.load(Ordering::Relaxed));
        let timeout = if count > 1 { timeout.min(SILENCE_MAX) } else { timeout };
        let mut failures = Vec::new();
        for at in (first..first + count).map(|at| at % count) {
            match greet(network, &self.addresses[at], hello, timeout) {
                Ok(greeted) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Ok(greeted);
                }
                Err(error) => failures.push(error),
            }
        }
        Err(most_telling(failures))
    }

    /// Asks each of the others once, but not the one that led when it was asked last: has one taken over whom
    /// `is_wanted` takes?
    pub(crate) fn greet_others(
        &self,
        network: &dyn Network,
        hello: &Hello,
        timeout: Nanos,
        is_wanted: impl Fn(&Welcome) -> bool,
    ) -> Option<Greeted> {
        let (count, first) = (self.addresses.len(), self.first.load(Ordering::Relaxed));
        for at in (first + 1..first + count).map(|at| at % count) {
            match greet(network, &self.addresses[at], hello, timeout) {
                Ok(greeted) if is_wanted(&greeted.1) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Some(greeted);
                }
                Ok((connection, _)) => connection.close(),
                Err(_) => {}
            }
        }
        None
    }

    /// As [`Managers::greet`], again and again while none of several leads: one of them is to take over.
    ///
    /// # Errors
    /// As [`Managers::greet`].
    pub(crate) fn greet_patiently(
        &self,
        network: &dyn Network,
        hello: &Hello,
        timeout: Nanos,
        takeover: Nanos,
    ) -> Result<Greeted> {
        let until = rt::now() + takeover;
        loop {
            match self.greet(network, hello, timeout) {
                Err(Error::Lost(_) | Error::Timeout(_)) if self.addresses.len() > 1 && rt::now() < until => {}
                greeted => return greeted,
            }
            rt::sleep(RETRY);
        }
    }

    /// The one that led last did not, whatever it said.
    pub(crate) fn turn_away(&self) {
        let next = (self.first.load(Ordering::Relaxed) + 1) % self.addresses.len();
        self.first.store(next, Ordering::Relaxed);
    }
}

/// A connection with the manager that leads.
pub(crate) type Greeted = (Arc<dyn Connection>, Welcome);

fn greet(network: &dyn Network, address: &str, hello: &Hello, timeout: Nanos) -> Result<Greeted> {
    let connection = network.connect(address, CONNECT_TIMEOUT.min(timeout))?;
    let answer: std::result::Result<Welcome, Failure> = wire::call(&*connection, hello, timeout)?;
    match answer {
        Ok(welcome) => Ok((connection, welcome)),
        Err(failure) => {
            connection.close();
            Err(failure.into())
        }
    }
}

/// A refusal says more than silence; of silence there may be several reasons.
fn most_telling(mut failures: Vec<Error>) -> Error {
    let silent = |error: &Error| matches!(error, Error::Lost(_) | Error::Timeout(_));
    match failures.iter().position(|error| !silent(error)) {
        Some(at) => failures.swap_remove(at),
        None if failures.len() == 1 => failures.swap_remove(0),
        None => {
            let texts: Vec<String> = failures.iter().map(Error::to_string).collect();
            Error::Lost(texts.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Role, VERSION};
    use cenote_fabric::message::tcp::Tcp;

    /// Answers the first client.
    fn manager(answer: std::result::Result<Welcome, Failure>) -> (String, rt::JoinHandle<()>) {
        let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
        let address = listener.address();
        let thread = rt::spawn("manager", move || {
            let connection = listener
                .accept(Nanos::from_secs(60))
                .expect("no error")
                .expect("a client connects");
            let _: Hello = wire::receive(&*connection, Nanos::from_secs(60)).expect("a hello");
            wire::send(&*connection, &answer).expect("sent");
        });
        (address, thread)
    }

    fn nobody() -> String {
        Tcp.listen("127.0.0.1:0").expect("a free port").address()
    }

    fn greet(list: &[&str]) -> Result<Welcome> {
        let hello = Hello {
            version: VERSION,
            role: Role::Operator,
            secret: String::new(),
        };
        let managers = Managers::parse(&list.join(","))?;
        managers
            .greet(&Tcp, &hello, Nanos::from_secs(60))
            .map(|(_, welcome)| welcome)
    }

    #[test]
    fn the_one_that_leads_is_found() {
        let welcome = Welcome {
            pool: 7,
            term: 2,
            lease: 9,
            host: None,
        };
        let (waits, waiting) = manager(Err(Error::Lost("another leads".into()).into()));
        let (leads, leading) = manager(Ok(welcome.clone()));
        assert_eq!(greet(&[&nobody(), &waits, &leads]).expect("found"), welcome);
        waiting.join().expect("no panic");
        leading.join().expect("no panic");
    }

    #[test]
    fn none_that_leads_is_an_error_that_says_why() {
        let (waits, waiting) = manager(Err(Error::Lost("another leads".into()).into()));
        let silent = nobody();
        let none = greet(&[&waits, &silent]).expect_err("none leads");
        let text = none.to_string();
        assert!(
            matches!(none, Error::Lost(_)) && text.contains("another leads") && text.contains(&silent),
            "{text}"
        );
        waiting.join().expect("no panic");
        let (refuses, refusing) = manager(Err(Error::Invalid("the secret".into()).into()));
        let refused = greet(&[&refuses, &nobody()]).expect_err("refused");
        assert!(
            matches!(&refused, Error::Invalid(text) if text == "the secret"),
            "{refused}"
        );
        refusing.join().expect("no panic");
        for bad in ["", "127.0.0.1:1,", ",", "a:1,,b:1"] {
            assert!(matches!(Managers::parse(bad), Err(Error::Invalid(_))), "{bad}");
        }
    }
}
