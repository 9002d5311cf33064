//! What the clients of proxies need of servers: each proxy says it several times a second to the node that leads.
//!
//! Soft, as the list of servers is: nothing is replicated or on disk. By it paused servers know that they are needed.

use std::collections::BTreeMap;

use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};

use crate::codec::{Reader, Writer};

/// How long counts what a proxy has said.
const KEPT: Nanos = Nanos::from_secs(1);
/// Proxies at a time.
const PROXIES_MAX: usize = 256;

/// What the clients of one proxy need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Drawn when its process started.
    pub proxy: u128,
    /// Clients that wait for a writer.
    pub waiting: u32,
    /// Reads under way and those that wait for a session, in hundredths: an average of the last seconds.
    pub load: u32,
}

/// What the clients of all proxies need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demanded {
    /// For how long clients have waited for a writer without a pause; `None`: none waits.
    pub waits_for: Option<Nanos>,
    /// See [`Demand::load`].
    pub load: u32,
}

/// What proxies have said.
#[derive(Debug, Default)]
pub(crate) struct Demands {
    by_proxy: BTreeMap<u128, (Demand, Nanos)>,
    waits_since: Option<Nanos>,
}

impl Demands {
    /// A proxy says what it needs.
    ///
    /// # Errors
    /// [`Error::Busy`]: there are too many.
    pub fn note(&mut self, demand: Demand, now: Nanos) -> Result<()> {
        self.forget_old(now);
        if self.by_proxy.len() >= PROXIES_MAX && !self.by_proxy.contains_key(&demand.proxy) {
            return Err(Error::Busy(format!("this database has {PROXIES_MAX} proxies already")));
        }
        self.by_proxy.insert(demand.proxy, (demand, now));
        self.follow(now);
        Ok(())
    }

    /// What all need.
    pub fn sum(&mut self, now: Nanos) -> Demanded {
        self.forget_old(now);
        Demanded {
            waits_for: self.waits_since.map(|since| now.since(since)),
            load: self
                .by_proxy
                .values()
                .fold(0, |sum, (demand, _)| sum.saturating_add(demand.load)),
        }
    }

    fn forget_old(&mut self, now: Nanos) {
        self.by_proxy.retain(|_, (_, at)| now.since(*at) < KEPT);
        self.follow(now);
    }

    fn follow(&mut self, now: Nanos) {
        match self.by_proxy.values().any(|(demand, _)| demand.waiting > 0) {
            true => drop(self.waits_since.get_or_insert(now)),
            false => self.waits_since = None,
        }
    }
}

pub(crate) fn put_demand(writer: Writer, demand: &Demand) -> Writer {
    writer.u128(demand.proxy).u32(demand.waiting).u32(demand.load)
}

pub(crate) fn take_demand(r: &mut Reader<'_>) -> Result<Demand> {
    Ok(Demand {
        proxy: r.u128()?,
        waiting: r.u32()?,
        load: r.u32()?,
    })
}

pub(crate) fn put_demanded(writer: Writer, demanded: &Demanded) -> Writer {
    writer
        .u8(demanded.waits_for.is_some().into())
        .u64(demanded.waits_for.unwrap_or_default().0)
        .u32(demanded.load)
}

pub(crate) fn take_demanded(r: &mut Reader<'_>) -> Result<Demanded> {
    let (waits, waits_for) = (r.u8()? == 1, Nanos(r.u64()?));
    Ok(Demanded {
        waits_for: waits.then_some(waits_for),
        load: r.u32()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(proxy: u128, waiting: u32, load: u32) -> Demand {
        Demand { proxy, waiting, load }
    }

    #[test]
    fn clients_wait_from_the_first_that_does_until_the_last_has_a_writer() {
        let (mut demands, ms) = (Demands::default(), Nanos::from_millis);
        demands.note(demand(1, 0, 150), ms(10)).expect("noted");
        assert_eq!(demands.sum(ms(20)).waits_for, None);
        demands.note(demand(1, 2, 50), ms(100)).expect("noted");
        demands.note(demand(2, 1, 250), ms(200)).expect("noted");
        demands.note(demand(1, 0, 50), ms(300)).expect("noted");
        let sum = demands.sum(ms(400));
        assert_eq!((sum.waits_for, sum.load), (Some(ms(300)), 300));
        demands.note(demand(2, 0, 250), ms(500)).expect("noted");
        assert_eq!(demands.sum(ms(500)).waits_for, None);
    }

    #[test]
    fn a_proxy_that_says_nothing_more_needs_nothing() {
        let mut demands = Demands::default();
        demands.note(demand(1, 9, 900), Nanos::from_millis(1)).expect("noted");
        assert_eq!(demands.sum(Nanos::from_secs(2)), Demanded::default());
        for proxy in 0..PROXIES_MAX as u128 {
            demands
                .note(demand(proxy, 0, u32::MAX), Nanos::from_secs(3))
                .expect("noted");
        }
        assert_eq!(demands.sum(Nanos::from_secs(3)).load, u32::MAX);
        assert!(demands.note(demand(999, 0, 0), Nanos::from_secs(3)).is_err());
        demands
            .note(demand(7, 0, 0), Nanos::from_secs(3))
            .expect("it is one of them");
    }
}
