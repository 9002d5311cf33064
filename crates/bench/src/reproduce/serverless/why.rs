//! Why our numbers differ from the paper's where they do: shown beside a comparison that is off by more than a fifth.

/// Figure 11, at PolarDB's cost and at Cenote's.
pub const LOSS: [&str; 2] = [
    "a miss is one one-sided read of 7.1 us: the server knows the slot, and asks no home for it. With 0.5 GB local, rows \
     asked for uniformly, a statement brings 1.4 pages and takes some 16 us more of a vCPU than with all local (115 us \
     for 99): 10 us are the reads, which a thread polls for, about 3 us the writing of 0.4 changed pages by the evictor, \
     the rest copies, checksums and the search for frames. Pages that leave unchanged are not written again.",
    "the paper's losses are those of statements that take a processor several times as long. A statement of Cenote's \
     takes 12 us on average, and brings as many pages as PolarDB's: with 0.5 GB local the reads alone take as long as \
     the statement, and their bytes come near to what the card carries (12 GB/s each way). The faster a statement is, \
     the more of its pages have to be local.",
];

/// Figure 8, sizes in order.
pub const IN_ORDER: &str = "a size that comes to no more than a smaller one has either not been warmed in its time, or \
    processors bound both: then what is in storage costs sessions a wait, and no throughput.";

/// Figure 8, after an expansion.
pub const GROWS: &str = "a slab begins empty, and its slots are filled by what storage is asked for. Its link gives some \
    180,000 pages a second, which fill 72 GB of the paper's, here 3,700 pages, in 20 ms at best.";

/// Figure 8, after a shrink.
pub const SHRINKS: &str = "slabs go one after the other, and pages that were used later than others elsewhere move into \
    their slots first. It takes some milliseconds, whatever the load: in a run of short times that is more than a tenth \
    of them.";

/// Figure 8, sessions that may wait.
pub const WAITS_HIDE: &str = "a statement takes 175 us of a vCPU, and what it asks storage for makes its session wait, \
    not its vCPU: others go on. Three sessions a vCPU hide all of it, and processors bound every size. The paper does \
    not say how many sessions its figure has.";

/// Figure 10, as much remote memory as PolarDB has local.
pub const EQUAL_REMOTE: &str = "both read about as many pages from storage for a statement. What differs is changed \
    pages: PolarDB's pool writes one to storage, twice and with syncs, before another page gets its frame, and \
    statements wait for frames meanwhile (see its p99). Ours writes it to remote memory, in 6 us; a changed page that \
    has to leave that, too, is made again from its image in storage and its chain of redo when it is asked for. The \
    window is of tens of milliseconds: writing back by age, which both do later, is not in it.";

/// Figure 10, as much local memory as PolarDB.
pub const EQUAL_LOCAL: &str = "remote memory holds what PolarDB has in storage: 7 us for a page in the place of 60 us, \
    and no page is written to storage to make room.";

/// Figure 10, all local.
pub const ALL_LOCAL: &str = "with all pages local nothing below is asked, and a hit executes the same instructions in \
    both pools.";

/// Figure 9, replay.
pub const REPLAY: &str = "the paper's server replays the redo of a long load; the ratio grows with the redo, and here it \
    is that of a load of less than a second. Replay asks for log and pages side by side, and the processor time of \
    applying records is not charged. A start on storage nodes replays nothing. What it takes is connections, the take \
    by a majority, the directory of remote memory, and reads of pages of transactions, undo and catalog from storage \
    nodes: the newest of these had only been in the frames of the server that is gone.";

/// Figure 9, where storage nodes lag.
pub const LAG: &str = "a read as of the log's end waits until a node has taken that redo in. With 1 MiB for redo each \
    node merges pages all the time; one thread that merges 64 pages at a time, each read, written twice and synced, \
    is slower than 12 MB of redo a second that goes to pages anywhere, and what it lags by grows with the load. So a \
    start waits for the nodes' merging, which the classic start, whose log is as long, does not have to do.";

/// Figure 9, a cold start on storage nodes.
pub const COLD: &str = "what a start reads, and what statements miss behind it, comes from drives of storage nodes, some \
    90 us a page, in the place of 7 us from remote memory. The paper's database is larger to its load: it warms up for \
    seconds, ours in milliseconds, so that the start itself weighs more.";

/// Figure 9, a switch.
pub const SWITCH: &str = "the paper's 16 s of a crash hold its detection, and what its servers do to take remote memory \
    over; a switch spares both. Here detection is left out (a second at most, see cluster.md), and a crash leaves \
    nothing to be tidied up: the next server takes the database at once. In a \
    switch the server first ends its transactions and threads, and writes the pages that it has changed to remote \
    memory.";

/// Figure 14.
pub const OPTIMISTIC: &str = "reads rise with the threads where the paper's fall a little: 16 threads a server leave \
    vCPUs idle while these wait for clients, for the log and for storage nodes, 64 do not. A reader latches nothing \
    that another server knows of, so its threads wait for no one; the paper does not say how many vCPUs its nodes have.";

/// Figure 15, over remote memory and over storage.
pub const PREFETCH: [&str; 2] = [
    "the statements here do nothing but read 300 rows, whose pages mostly are remote; a query of TPC-H joins, sorts and \
     sums besides. Page by page each miss is a trip of 7 us; together up to 32 pages share a doorbell, and all but the \
     first arrive at the card's width.",
    "as over remote memory: reads alone, without a query's other work. Up to 32 reads of 60 us are under way side by \
     side.",
];

/// Figure 10 by TPC-H, as much remote memory as PolarDB has local.
pub const QUERIES_EQUAL_REMOTE: &str = "as much remote memory behind a small local one holds no more than as much local \
    memory does, and a page of it is a trip more.";

/// Figure 12, at PolarDB's cost and at Cenote's.
pub const QUERIES_LOCAL: [&str; 2] = [
    "a query of Cenote's mostly scans and hashes: of the pages that it asks for all but some 0.4% are in local memory \
     when they are asked for, however small that is, since the leaves ahead of a scan come in the background, many at a \
     time, and those of a join's next keys together. The paper's queries join by nested loops over indexes, page by \
     page. At PolarDB's cost a page's rows take the processor 50 us, so that what little is waited for vanishes.",
    "as at PolarDB's cost: scans and joins know what they will ask for. At Cenote's cost the pages of lookups that are \
     waited for weigh more: queries 4, 10, 17, 19 and 20, which look up many keys, save a third to a half, those that \
     scan some per cent.",
];

/// Figure 13, which queries.
pub const QUERIES_SHARE: [&str; 2] = [
    "storage gives 180,000 pages a second to reads that are side by side, one each 5.5 us; at PolarDB's cost a query \
     takes the processor 50 us a page, and the next ones come meanwhile.",
    "at Cenote's cost a query takes the processor 7 us a page, which hides little of what storage takes. Queries 2, 13, 16 \
     and 22 gain less than a fifth; the paper's are 2, 11, 16, 17 and 19, short ones, which 32 GB hold: here each query \
     comes behind all others, which have used that memory.",
];

/// Figure 13, by how much, at PolarDB's cost and at Cenote's.
pub const QUERIES_REMOTE: [&str; 2] = [
    "as above: reads that were announced hide behind the processor. The paper's plans ask for page by page, and wait 60 \
     us or more for each.",
    "pages that are announced come from storage side by side, one each 5.5 us, in the place of one after the other in 60 \
     us: there is less to be gained from memory than by the paper's plans.",
];

/// Figure 15 by TPC-H, over remote memory and over storage.
pub const QUERIES_PREFETCH: [&str; 2] = [
    "at PolarDB's cost a page's rows take the processor seven times as long as a page takes over RDMA, and there is less \
     to be saved; at Cenote's as long, and there is more. The paper does not say what its queries' processor time is.",
    "the more of its time a query waits for storage, page by page, the more is saved: at Cenote's cost nearly all of it is \
     waiting.",
];

/// Figure 10 by TPC-C, as much remote memory as PolarDB has local.
pub const TRANSACTIONS_EQUAL_REMOTE: &str = "a page that left remote memory changed is made again of its image in storage \
    and its chain of redo, whose records lie far apart: a read of 100 us each. With storage nodes these make the pages.";

/// Figure 11 by TPC-C, at PolarDB's cost and at Cenote's.
pub const TRANSACTIONS_LOSS: [&str; 2] = [
    "one access in eleven brings a page, 50,000 a second by 16 vCPUs that are busy all the time: 0.36 of a vCPU polls. \
     What a transaction takes the processor otherwise is the input.",
    "at Cenote's cost six times as many pages a second are brought: 296,000, 4.8 GB/s, for which 2.1 of 16 vCPUs poll; \
     the rest is changed pages that leave, and the pool's own work for a miss.",
];
