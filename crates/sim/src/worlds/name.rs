//! The worlds that there are, by their names on the command line.

use std::fmt;
use std::str::FromStr;

/// A world: what goes on in it, and which faults befall it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// Random transactions, and processes that are killed.
    Transactions,
    /// Definitions beside them.
    Ddl,
    /// Kills and power cuts, many, also during recovery.
    Crash,
    /// Lost hosts, with the dirty lines of their caches.
    HostLoss,
    /// Disks that fail, fill up, are slow, or return flipped bits.
    Disk,
    /// The database moves between hosts that share memory and storage.
    Handover,
    /// Frames in local memory, remote memory below them: the node and the way to it come and go.
    Tiered,
    /// The memory device is lost with all that was in it, or the link to it.
    DeviceLoss,
    /// The memory pool: users in several pods share a space whose extents move; hosts, users and pods go.
    Pool,
    /// The memory pool's manager, memory nodes and holders: leases, fencing, restarts.
    Grants,
    /// Copies are taken under load.
    Backup,
    /// Several managers of the memory pool, of which one leads by a lease at etcd.
    Leaders,
    /// Sessions of SQL.
    Sql,
    /// The buffer pool alone: pages, redo, files.
    Pages,
    /// Mirrors on another machine, and the way to them.
    Mirrors,
    /// Hosts that share a device of the memory pool: their agents, holders, managers, and the switch.
    Hosts,
    /// The store that all processes share, in a space of the memory pool.
    Store,
    /// A mirrored space of the memory pool: its keeper goes, with its memory, and the mirror takes its place.
    Spaces,
    /// Storage nodes: the log of a database on a majority of three, and pages that each of them makes of it.
    StorageNodes,
    /// Readers of a database on storage nodes, beside the server that changes it.
    Readers,
    /// Servers of a database on storage nodes: which of them has it, and when they pause.
    Servers,
}

impl Name {
    /// All of them.
    pub const ALL: [Name; 21] = [
        Name::Transactions,
        Name::Ddl,
        Name::Crash,
        Name::HostLoss,
        Name::Disk,
        Name::Handover,
        Name::Tiered,
        Name::DeviceLoss,
        Name::Pool,
        Name::Grants,
        Name::Backup,
        Name::Leaders,
        Name::Sql,
        Name::Pages,
        Name::Mirrors,
        Name::Hosts,
        Name::Store,
        Name::Spaces,
        Name::StorageNodes,
        Name::Readers,
        Name::Servers,
    ];

    /// As on the command line.
    pub fn text(self) -> &'static str {
        match self {
            Name::Transactions => "transactions",
            Name::Ddl => "ddl",
            Name::Crash => "crash",
            Name::HostLoss => "host-loss",
            Name::Disk => "disk",
            Name::Handover => "handover",
            Name::Tiered => "tiered",
            Name::DeviceLoss => "device-loss",
            Name::Pool => "pool",
            Name::Grants => "grants",
            Name::Leaders => "leaders",
            Name::Sql => "sql",
            Name::Pages => "pages",
            Name::Mirrors => "mirrors",
            Name::Hosts => "hosts",
            Name::Store => "store",
            Name::Spaces => "spaces",
            Name::StorageNodes => "storage-nodes",
            Name::Readers => "readers",
            Name::Servers => "servers",
            Name::Backup => "backup",
        }
    }

    /// What happens there, in a line.
    pub fn about(self) -> &'static str {
        match self {
            Name::Transactions => "random transactions; processes are killed now and then",
            Name::Ddl => "the same beside CREATE, DROP and TRUNCATE of tables and indexes",
            Name::Crash => "kills and power cuts at any step, also during recovery",
            Name::HostLoss => "hosts are lost with the dirty lines of their caches",
            Name::Handover => "the database moves between hosts that share memory and storage",
            Name::Disk => "failed syncs, full and slow disks, short transfers, flipped bits, for once or for good",
            Name::Tiered => {
                "remote memory over RDMA: nodes lost, ways cut, messages lost and late; kills and power cuts"
            }
            Name::DeviceLoss => {
                "the memory device is lost under a running engine or between two, links to it are cut and mended"
            }
            Name::Pool => {
                "a space of the memory pool over several pods: extents move, ways are cut, users, hosts and pods are lost"
            }
            Name::Sql => {
                "sessions of SQL: upserts, conditions, portals in parts, savepoints, timeouts, retries; kills and power cuts"
            }
            Name::Pages => {
                "the buffer pool alone, page by page: many short lives; kills, power cuts, lost hosts, also during recovery"
            }
            Name::Mirrors => {
                "a mirror on another machine, its stream cut anywhere: holders killed, cut off, taken for lost and living on"
            }
            Name::Hosts => {
                "hosts share an incoherent device of the pool: agents, holders, managers and hosts are lost, stopped, cut off"
            }
            Name::Store => {
                "the shared store in a space of the pool: members in several pods, on coherent memory and not; stopped, fenced, killed"
            }
            Name::Spaces => {
                "a mirrored space: its keeper is lost with its memory, killed, cut off, taken for lost and living on"
            }
            Name::StorageNodes => {
                "three storage nodes keep a log and make pages: killed, cut off, late; writers take over from each other"
            }
            Name::Readers => {
                "readers of a database on storage nodes, beside the server that changes it: killed, cut off, late"
            }
            Name::Servers => {
                "which of a database's servers has it, and when they pause: killed, cut off, standing still; clocks drift"
            }
            Name::Backup => "backups are taken under load, restored beside and read; kills and power cuts",
            Name::Leaders => {
                "the same with several managers, of which one leads by a lease at etcd: clocks drift, answers come late, etcd goes"
            }
            Name::Grants => {
                "the memory pool's manager, memory nodes and holders: leases, fencing; programs are killed, ways between them cut"
            }
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Name::ALL.map(Name::text).join(", ");
        let found = Name::ALL.into_iter().find(|n| n.text() == text);
        found.ok_or_else(|| format!("no world is called \"{text}\": there are {} and all", known()))
    }
}
