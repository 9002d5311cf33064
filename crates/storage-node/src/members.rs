//! The servers of a database, as the node that leads knows them: each says several times a second what it is.
//!
//! Nothing here is replicated or on disk. A node that begins to lead hears of all servers within a beat, and says for
//! how long it has listened: a server of which it has not heard counts as silent for no longer than that. Which server
//! has the database is another matter: the replicated state says so, and no other is let write.

use std::collections::BTreeMap;

use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Lsn, Result};

use crate::codec::{Reader, Writer};
use crate::demand::{Demand, Demanded, Demands, put_demanded, take_demanded};

/// How long a server is listed that says nothing more.
const LISTED: Nanos = Nanos::from_secs(30);
/// Servers at a time.
const SERVERS_MAX: usize = 256;
/// How long a request for a switch stands.
const SWITCH: Nanos = Nanos::from_secs(10);
/// How long the address of the server that has the database is no other's, from its last word on.
const ADDRESS_KEPT: Nanos = Nanos::from_secs(1);
/// How long a writer that was found silent is not heard: the server that found it so takes the database meanwhile.
const CLAIM: Nanos = Nanos::from_secs(5);
/// A node that is late waits for a server for so many times as long as others do.
const LATE_COUNTS: u64 = 5;
/// Bytes of a server's name, or of its address.
const TEXT_MAX: usize = 255;

/// What a server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerRole {
    /// It has the database.
    Writer,
    /// It reads what another one changes.
    Reader,
    /// It begins to do one of the two, or ends: no client is served. Of a start that has the database, if it names one.
    Opening,
    /// It had the database, and has stopped in order: nothing more comes of it.
    Gone,
    /// It serves no clients and has no memory for pages, until it is needed: by clients of proxies, or of its own
    /// address.
    Paused,
}

/// A server, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Drawn when its process started.
    pub id: u128,
    /// What people call it.
    pub name: String,
    /// Where clients reach it.
    pub address: String,
    /// What it does.
    pub role: ServerRole,
    /// Of its start, where it has or had the database; else zero.
    pub epoch: u64,
    /// The position of the log up to which it shows commits.
    pub position: Lsn,
    /// Whether it takes the database where no server has it.
    pub may_write: bool,
    /// Sessions of clients.
    pub sessions: u32,
}

/// A server, as a node has heard of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSeen {
    /// What it said last.
    pub server: Server,
    /// How long ago.
    pub ago: Nanos,
}

/// The servers of a database, and who has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The start that has the database, or had it last; zero: none ever had.
    pub epoch: u64,
    /// Whether there is a database.
    pub has_database: bool,
    /// Its number; zero: there is none, or its control record is damaged.
    pub database: u128,
    /// For how long it is without a server, where that of this start has stopped in order.
    pub vacant_for: Option<Nanos>,
    /// The Raft term in which the node leads that says so.
    pub term: u64,
    /// For how long this node has listened, or that start has had the database: the less.
    pub listens_for: Nanos,
    /// The server that is to have the database next; zero: none is named.
    pub switch_to: u128,
    /// What clients of proxies need.
    pub demanded: Demanded,
    /// The servers, by their numbers.
    pub servers: Vec<ServerSeen>,
}

impl Membership {
    /// The server that has the database, if it has been heard of.
    pub fn writer(&self) -> Option<&ServerSeen> {
        self.servers.iter().find(|seen| seen.server.has_start(self.epoch))
    }
}

impl Server {
    /// Whether it is the server of start `epoch`, whether or not it serves clients already.
    fn has_start(&self, epoch: u64) -> bool {
        matches!(self.role, ServerRole::Writer | ServerRole::Opening) && self.epoch == epoch && epoch > 0
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Members(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// The term in which this node has listened.
    term: u64,
    /// The start that has the database.
    epoch: u64,
    /// Since when both are so.
    since: Nanos,
    servers: BTreeMap<u128, (Server, Nanos)>,
    /// The start whose server has stopped in order, and when.
    vacant: Option<(u64, Nanos)>,
    /// When a server of that start was heard last.
    heard: Option<Nanos>,
    /// The start whose server was found silent, and when.
    claimed: Option<Claim>,
    /// The server that is to have the database behind a start, and when that was asked for.
    switch: Option<(u128, u64, Nanos)>,
    demands: Demands,
}

/// The server of a start was found silent, and another takes the database.
#[derive(Debug, Clone, Copy)]
struct Claim {
    epoch: u64,
    at: Nanos,
    /// It has said a word since, and was not heard.
    was_wrong: bool,
}

/// What the replicated state says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Led {
    pub term: u64,
    pub epoch: u64,
    pub has_database: bool,
    /// Its number, if its control record says one.
    pub database: u128,
}

impl Members {
    /// A server says what it is.
    ///
    /// # Errors
    /// [`Error::Busy`]: there are too many, or another server takes the database, since this one was silent.
    pub fn note(&self, led: Led, server: Server) -> Result<()> {
        let mut table = self.0.lock();
        table.listen(led);
        if let Some(claim) = &mut table.claimed
            && server.has_start(claim.epoch)
            && !planted(Fault::ClaimHeard)
        {
            claim.was_wrong = true;
            return Err(Error::Busy(
                "it was silent, and another server takes the database".into(),
            ));
        }
        if table.servers.len() >= SERVERS_MAX && !table.servers.contains_key(&server.id) {
            return Err(Error::Busy(format!("this database has {SERVERS_MAX} servers already")));
        }
        table.take_address(led, &server)?;
        if server.has_start(led.epoch) {
            table.heard = Some(rt::now());
        }
        // A paused one goes on to say it: a node that leads anew hears of it.
        if matches!(server.role, ServerRole::Gone | ServerRole::Paused) && server.epoch == led.epoch {
            table.leave(server.epoch);
        }
        table.servers.insert(server.id, (server, rt::now()));
        Ok(())
    }

    /// A proxy says what its clients need.
    ///
    /// # Errors
    /// [`Error::Busy`]: there are too many.
    pub fn demand(&self, led: Led, demand: Demand) -> Result<()> {
        let mut table = self.0.lock();
        table.listen(led);
        table.demands.note(demand, rt::now())
    }

    /// The server of that number is to have the database next.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it is none that could.
    pub fn switch(&self, led: Led, to: u128) -> Result<()> {
        let mut table = self.0.lock();
        table.listen(led);
        match table.servers.get(&to).map(|(server, _)| server) {
            Some(server) if server.role == ServerRole::Reader && server.may_write => {
                table.switch = Some((to, led.epoch, rt::now()));
                Ok(())
            }
            Some(server) if server.role == ServerRole::Writer && server.epoch == led.epoch => {
                Err(Error::Invalid(format!("{} has the database already", server.name)))
            }
            Some(server) if server.role == ServerRole::Paused => Err(Error::Invalid(format!(
                "{} is paused: it serves when clients need it",
                server.name
            ))),
            Some(server) => Err(Error::Invalid(format!(
                "{} cannot take the database: it was not started with --role auto, or is not ready",
                server.name
            ))),
            None => Err(Error::Invalid("there is no such server".into())),
        }
    }

    /// Whether the server of start `after` has been silent for so long, in which this node was not late (`late_at`), or
    /// for five times as long: words may wait in a node that gets no processor. From here on it is not heard, so that
    /// no lease of it begins while another server takes the database.
    ///
    /// # Errors
    /// [`Error::Busy`]: it has been heard.
    pub fn claim(&self, led: Led, after: u64, silent: Nanos, late_at: Nanos) -> Result<()> {
        let mut table = self.0.lock();
        table.listen(led);
        let now = rt::now();
        let heard = table.heard.unwrap_or(table.since);
        let is_gone = table.vacant_since(after).is_some();
        // It lives: a claim that is made again and again would keep it from being heard for good.
        if !is_gone && table.claimed.is_some_and(|claim| claim.was_wrong) {
            return Err(Error::Busy(
                "the server that has the database was not silent for long".into(),
            ));
        }
        let is_silent = now.since(heard.max(late_at)) >= silent || now.since(heard) >= Nanos(LATE_COUNTS * silent.0);
        match led.epoch == after && (is_gone || is_silent) {
            true => {
                table.claimed = Some(Claim {
                    epoch: after,
                    at: now,
                    was_wrong: false,
                });
                Ok(())
            }
            false => Err(Error::Busy("the server that has the database has been heard".into())),
        }
    }

    pub fn seen(&self, led: Led) -> Membership {
        let mut table = self.0.lock();
        table.listen(led);
        let now = rt::now();
        let seen = |(server, at): &(Server, Nanos)| ServerSeen {
            server: server.clone(),
            ago: now.since(*at),
        };
        Membership {
            epoch: led.epoch,
            term: led.term,
            has_database: led.has_database,
            database: led.database,
            vacant_for: table.vacant_since(led.epoch).map(|since| now.since(since)),
            listens_for: now.since(table.since),
            switch_to: table.switch.map_or(0, |(to, ..)| to),
            demanded: table.demands.sum(now),
            servers: table.servers.values().map(seen).collect(),
        }
    }
}

impl Table {
    /// The server of a start has stopped in order.
    fn leave(&mut self, epoch: u64) {
        if epoch > 0 && self.vacant_since(epoch).is_none() {
            self.vacant = Some((epoch, rt::now()));
        }
    }

    /// Since when start `epoch` is without a server.
    fn vacant_since(&self, epoch: u64) -> Option<Nanos> {
        self.vacant
            .filter(|(vacant, _)| *vacant == epoch)
            .map(|(_, since)| since)
    }

    /// An address is one process's: where another comes with it, the one before has ended. Unless that has the database,
    /// and was heard just now: then two servers say the same address, and the one that is heard counts.
    ///
    /// # Errors
    /// [`Error::Busy`]: the address is that server's.
    fn take_address(&mut self, led: Led, server: &Server) -> Result<()> {
        let is_same = |other: &Server| other.address == server.address && other.id != server.id;
        let is_writers = |(other, at): &(Server, Nanos)| {
            is_same(other) && other.has_start(led.epoch) && rt::now().since(*at) < ADDRESS_KEPT
        };
        if let Some((other, _)) = self.servers.values().find(|known| is_writers(known)) {
            return Err(Error::Busy(format!(
                "{} is the address of the server that has the database ({}), heard just now",
                server.address, other.name
            )));
        }
        self.servers.retain(|_, (other, _)| !is_same(other));
        Ok(())
    }

    /// What a former term's node knew, or this one did in a former term, is not known any more. A thread that was stopped
    /// since it looked which term it is tells nothing.
    fn listen(&mut self, led: Led) {
        let now = rt::now();
        if (led.term, led.epoch) < (self.term, self.epoch) {
            return;
        }
        if self.term != led.term {
            *self = Table {
                term: led.term,
                ..Table::default()
            };
        }
        if self.epoch != led.epoch || self.since == Nanos::ZERO {
            (self.epoch, self.since, self.heard) = (led.epoch, now, None);
        }
        self.servers.retain(|_, (_, at)| now.since(*at) < LISTED);
        self.claimed
            .take_if(|claim| claim.epoch != led.epoch || now.since(claim.at) > CLAIM);
        self.switch
            .take_if(|(_, epoch, at)| *epoch != led.epoch || now.since(*at) > SWITCH);
    }
}

// ---- bytes ----

pub(crate) fn put_server(writer: Writer, server: &Server) -> Writer {
    let role = match server.role {
        ServerRole::Writer => 1,
        ServerRole::Reader => 2,
        ServerRole::Opening => 3,
        ServerRole::Gone => 4,
        ServerRole::Paused => 5,
    };
    writer
        .u128(server.id)
        .text(&server.name)
        .text(&server.address)
        .u8(role)
        .u64(server.epoch)
        .lsn(server.position)
        .u8(server.may_write.into())
        .u32(server.sessions)
}

pub(crate) fn take_server(r: &mut Reader<'_>) -> Result<Server> {
    let (id, name, address) = (r.u128()?, r.text()?, r.text()?);
    if id == 0 || name.len() > TEXT_MAX || address.len() > TEXT_MAX {
        return Err(r.wrong("a server says nothing that could be it"));
    }
    let role = match r.u8()? {
        1 => ServerRole::Writer,
        2 => ServerRole::Reader,
        3 => ServerRole::Opening,
        4 => ServerRole::Gone,
        5 => ServerRole::Paused,
        _ => return Err(r.wrong("a server's role is none")),
    };
    Ok(Server {
        id,
        name,
        address,
        role,
        epoch: r.u64()?,
        position: r.lsn()?,
        may_write: r.u8()? == 1,
        sessions: r.u32()?,
    })
}

pub(crate) fn put_membership(writer: Writer, members: &Membership) -> Writer {
    let head = writer
        .u64(members.epoch)
        .u8(members.has_database.into())
        .u128(members.database)
        .u8(members.vacant_for.is_some().into())
        .u64(members.vacant_for.unwrap_or_default().0)
        .u64(members.term)
        .u64(members.listens_for.0)
        .u128(members.switch_to);
    put_demanded(head, &members.demanded).each(&members.servers, |w, seen| put_server(w, &seen.server).u64(seen.ago.0))
}

pub(crate) fn take_membership(r: &mut Reader<'_>) -> Result<Membership> {
    let (epoch, has_database) = (r.u64()?, r.u8()? == 1);
    let (database, is_vacant) = (r.u128()?, r.u8()? == 1);
    let vacant = Nanos(r.u64()?);
    Ok(Membership {
        epoch,
        has_database,
        database,
        vacant_for: is_vacant.then_some(vacant),
        term: r.u64()?,
        listens_for: Nanos(r.u64()?),
        switch_to: r.u128()?,
        demanded: take_demanded(r)?,
        servers: r.each(|r| {
            Ok(ServerSeen {
                server: take_server(r)?,
                ago: Nanos(r.u64()?),
            })
        })?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Led = Led {
        term: 1,
        epoch: 4,
        has_database: true,
        database: 9,
    };

    fn server(id: u128, role: ServerRole) -> Server {
        Server {
            id,
            name: format!("s{id}"),
            address: format!("127.0.0.1:{id}"),
            role,
            epoch: if role == ServerRole::Reader { 0 } else { 4 },
            position: Lsn::from_raw(9),
            may_write: true,
            sessions: 3,
        }
    }

    #[test]
    fn a_server_that_stopped_in_order_leaves_the_database_to_others() {
        let members = Members::default();
        members.note(FIRST, server(1, ServerRole::Writer)).expect("noted");
        members.note(FIRST, server(2, ServerRole::Reader)).expect("noted");
        let seen = members.seen(FIRST);
        assert_eq!(seen.writer().map(|seen| seen.server.id), Some(1));
        assert_eq!(seen.vacant_for, None);
        members.note(FIRST, server(1, ServerRole::Gone)).expect("noted");
        let seen = members.seen(FIRST);
        assert!(seen.vacant_for.is_some() && seen.writer().is_none());
        // It may be a reader from here on.
        members.note(FIRST, server(1, ServerRole::Reader)).expect("noted");
        assert!(members.seen(FIRST).vacant_for.is_some());
        // A paused server goes on to say which start has left it, to a node that leads anew, too.
        let anew = Led { term: 2, ..FIRST };
        assert_eq!(members.seen(anew).vacant_for, None);
        let paused = server(1, ServerRole::Paused);
        let former = Server {
            epoch: 3,
            ..paused.clone()
        };
        members.note(anew, former).expect("noted");
        assert_eq!(members.seen(anew).vacant_for, None, "a former start's");
        members.note(anew, paused).expect("noted");
        assert!(members.seen(anew).vacant_for.is_some());
        assert!(members.switch(anew, 1).is_err(), "it is paused");
        // The next start has it: nothing is vacant.
        let next = Led { epoch: 5, ..anew };
        assert_eq!(members.seen(next).vacant_for, None);
    }

    #[test]
    fn a_switch_names_a_server_that_can_and_ends_with_the_start() {
        let members = Members::default();
        members.note(FIRST, server(1, ServerRole::Writer)).expect("noted");
        members.note(FIRST, server(2, ServerRole::Reader)).expect("noted");
        let fixed = Server {
            may_write: false,
            ..server(3, ServerRole::Reader)
        };
        members.note(FIRST, fixed).expect("noted");
        for wrong in [1, 3, 77] {
            let refused = members.switch(FIRST, wrong).expect_err("refused");
            assert!(matches!(refused, Error::Invalid(_)), "{wrong}: {refused}");
        }
        members.switch(FIRST, 2).expect("asked for");
        assert_eq!(members.seen(FIRST).switch_to, 2);
        assert_eq!(members.seen(Led { epoch: 5, ..FIRST }).switch_to, 0);
    }

    #[test]
    fn a_node_that_was_late_counts_silence_from_there_and_not_for_good() {
        let (members, silent) = (Members::default(), Nanos::from_millis(40));
        members.note(FIRST, server(1, ServerRole::Writer)).expect("noted");
        rt::sleep(silent);
        let late = members.claim(FIRST, 4, silent, rt::now() + Nanos::from_secs(9));
        assert!(matches!(late, Err(Error::Busy(_))), "{late:?}");
        rt::sleep(Nanos(LATE_COUNTS * silent.0));
        members.claim(FIRST, 4, silent, rt::now()).expect("silent for long");
    }

    #[test]
    fn a_writer_that_was_found_silent_is_not_heard_while_another_takes_its_place() {
        let members = Members::default();
        members.note(FIRST, server(1, ServerRole::Writer)).expect("noted");
        let soon = members.claim(FIRST, 4, Nanos::from_secs(60), Nanos::ZERO);
        assert!(matches!(soon, Err(Error::Busy(_))), "{soon:?}");
        members.note(FIRST, server(1, ServerRole::Writer)).expect("noted");
        assert!(
            members.claim(FIRST, 3, Nanos::ZERO, Nanos::ZERO).is_err(),
            "another start has it"
        );
        members.claim(FIRST, 4, Nanos::ZERO, Nanos::ZERO).expect("silent");
        members
            .claim(FIRST, 4, Nanos::ZERO, Nanos::ZERO)
            .expect("silent still: as long from here on");
        let late = members.note(FIRST, server(1, ServerRole::Writer));
        assert!(matches!(late, Err(Error::Busy(_))), "{late:?}");
        let again = members.claim(FIRST, 4, Nanos::ZERO, Nanos::ZERO);
        assert!(matches!(again, Err(Error::Busy(_))), "it lives: {again:?}");
        members.note(FIRST, server(2, ServerRole::Reader)).expect("noted");
        // The next start is another one.
        let next = Led { epoch: 5, ..FIRST };
        let writer = Server {
            epoch: 5,
            ..server(2, ServerRole::Writer)
        };
        members.note(next, writer).expect("noted");
    }

    #[test]
    fn a_process_that_has_anothers_address_is_in_its_place() {
        let members = Members::default();
        members.note(FIRST, server(1, ServerRole::Writer)).expect("noted");
        let next = Server {
            id: 9,
            epoch: 0,
            ..server(1, ServerRole::Opening)
        };
        // Not while that one is heard: both would be it in turns.
        let refused = members.note(FIRST, next.clone());
        assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
        members.note(FIRST, server(2, ServerRole::Reader)).expect("noted");
        let other = Server {
            address: "127.0.0.1:2".into(),
            ..next
        };
        members.note(FIRST, other).expect("noted");
        let seen = members.seen(FIRST);
        assert_eq!(seen.servers.len(), 2);
        assert_eq!(seen.writer().map(|one| one.server.id), Some(1));
    }

    #[test]
    fn a_node_that_leads_anew_has_heard_nothing() {
        let members = Members::default();
        members.note(FIRST, server(1, ServerRole::Writer)).expect("noted");
        let seen = members.seen(Led { term: 2, ..FIRST });
        assert!(seen.servers.is_empty() && seen.listens_for < Nanos::from_secs(1));
    }

    #[test]
    fn bytes_come_back_and_garbage_is_refused() {
        let members = Members::default();
        members.note(FIRST, server(1, ServerRole::Writer)).expect("noted");
        let seen = members.seen(FIRST);
        let bytes = put_membership(Writer::default(), &seen).done();
        let mut r = Reader::new(&bytes, "test");
        assert_eq!(take_membership(&mut r).expect("whole"), seen);
        for cut in 0..bytes.len() {
            let mut r = Reader::new(&bytes[..cut], "test");
            assert!(take_membership(&mut r).and_then(|_| r.end()).is_err(), "{cut}");
        }
    }
}
