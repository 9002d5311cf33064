//! Why our numbers differ from the paper's where they do: shown beside a comparison that is off by more than a fifth.

/// Our own latency.
pub const OURS: &str =
    "a far access is a call there and back, which the profile of the cards decides; half of all accesses are near.";

/// Page swapping's latency.
pub const SWAP: &str = "a fault is 3 us of software here and 3.1 us for the page, and a sixth of the pages is in the \
    host's own memory. To come to 12 us the kernel would have to spend 9 us or more; the paper does not say on what, \
    so nothing was put in for it.";

/// Objects' latency.
pub const OBJECT: &str = "a read is one trip of 2 us and a check of versions, a write one message there and back. The \
    paper's FaRM is a reimplementation; its 8 us would be four trips of these cards, and it does not say which.";

/// Coherent caches' latency.
pub const COHERENT: &str = "a read that misses is one call to the line's home, and a sixth of the reads hits. GAM \
    hands each miss to a worker thread of its node first, which is left out here. A changed line that has to make \
    room is sent home and not waited for, as in GAM's code, so that a write takes one call, too.";

/// CXL over Ethernet's latency.
pub const ETHERNET: &str = "the transfer takes 2 us, the proxy's work 0.6, handing over and back 0.55: the proxy has \
    nothing to wait for when one client asks it. The paper's prototype has no optimisation of its network, and the \
    paper does not tell the parts of its 6 to 8 us.";

/// Others' latency over ours.
pub const TIMES: &str = "ours is at half of the paper's bound, but the others are further below the paper's (above): \
    each was given the benefit of the doubt. The slowest is page swapping, whose faults take half of what the paper \
    measured, the fastest is objects.";

/// The most of all sizes.
pub const MOST_TIMES: &str = "the most is page swapping's, whose faults take half of what the paper measured of \
    Fastswap (above). Large writes to coherent caches take several lines at once, and the lines that make room are \
    not waited for, as in GAM's code: so they degrade less than the paper says, which does not say how far.";

/// Growth with clients.
pub const CLIENTS: &str = "a far access takes 0.8 us of the thread that serves it, so one serves 1.25 million a \
    second. Half of the accesses are far: with one daemon a pod throughput ends at 5 million a second of two pods, \
    with four at 20, which is what 16 clients a pod would ask for if none of them waited for another. Well below it \
    is linear. The paper says the same of Rcmp, up to a point, and gives no number of clients.";

/// Growth with pods, all memory used alike.
pub const PODS: &str = "all memory together stays as large, and all of it is used alike: all is near in one pod, one \
    half in two, one fifth in five. At 0.3 us near and 3.1 us far that is 0.3, 1.7 and 2.5 us an access. The paper \
    does not say how much of its racks' memory was near. With half of it near in any number of pods (the other \
    table) more pods cost nothing.";

/// Growth with pods, half of the accesses near.
pub const PODS_HALF: &str = "one pod has no far memory, so that all of its accesses are near, whatever the load says. \
    From two pods on a pod does as much in any number of them.";

/// Growth of page swapping with pods.
pub const PODS_SWAP: &str = "each pod swaps memory of its own, over cards of its own.";

/// Rings.
pub const RINGS: &str = "half of all requests are far, so that their median lies between both kinds, at either \
    by chance. The slowest of all are far ones of 16 KiB, for which the card and the copy into the ring take 8 us: a \
    second layer does nothing for them. Near requests, which it is for, wait less at all percentiles: what is saved \
    is waiting for payloads that are not whole yet. With 16 clients the one thread that serves has too much to do, \
    and a second structure to poll makes their tails longer. The paper says neither its mix of sizes nor whose \
    latencies these are. A daemon that waited for its writes, which the paper does not rule out for its one ring, \
    would make the difference larger.";

/// YCSB, uniform.
pub const YCSB_UNIFORM: &str = "a write costs page swapping no more than a read here, as dirty pages leave while \
    others come, and it costs ours no more either, so that A is like C. F's write finds page swapping's page where its \
    read has brought it. The paper's lead is half as large with writes; it does not say why.";

/// YCSB, Zipf.
pub const YCSB_ZIPF: &str = "the pages with the hot pairs are in page swapping's own memory, which makes it twice as \
    fast as with uniform keys. Ours gains less: the pairs are hashed over all extents, so that none is hotter than \
    another by much, and which are hot is the same in both pods. The paper's gain comes from hot pages that move \
    (figure hot, where there are some).";

/// Hot extents.
pub const HOT: &str = "a near access takes 0.3 us here, as clients load and store by themselves, and a far one \
    3.1 us, so that moving what is hot is worth more than in the paper. Where each pod has ranks of its own, its hot \
    extents come to it. Where ranks are the same in both pods an extent is as hot in the one as in the other, and \
    has no better place: nothing moves, which the last setting does all the same, at the expense of the slower pod. \
    The paper does not say whose ranks its racks have. What samples may have missed (some 400 accesses) keeps more \
    extents in their places here than in the product, where a hundred times as many accesses come between two looks.";

/// Where modes cross.
pub const CROSSING: &str = "a connection measures itself when it is first asked for 512 bytes. A copy less saves 44 \
    ns for each 1,000 bytes of some 2,800 ns, which shows from some KiB on. While 16 clients load the thread that \
    serves, a probe waits in the same queue as reads, and a copy less does not show before it is larger.";

/// The adaptive choice, one client.
pub const MODES_ALONE: &str = "a trip more is what RPC + one-sided costs a client at every size. Copying is cheap \
    (see above), so that the choice gains little on pure RPC. The pool's look-ups and checks are in its numbers, 0.1 \
    us and more for a read, and not in those of the bare programs.";

/// The adaptive choice, a saturated server.
pub const MODES_BUSY: &str = "one server thread bounds it. It does least for RPC + one-sided, 0.6 us; for the pool it \
    finds the object, checks it and, where the connection has chosen so, copies it twice. A connection chooses by \
    latency: what would spare the thread that serves, but no client's time, it does not see.";

/// Write buffers.
pub const WRITE_BUFFER: &str = "the paper does not say how many writes its clients make while they hold a lock. With \
    16, each but the last of which would wait for a trip of 2.8 us to the other pod, most of the trips go: all of a \
    hold is in the message that unlocks. With one write a hold the buffer saves one trip of three. Rcmp's buffer lies \
    in CXL memory and a thread of the client flushes it, which the paper names as what bounds it; ours are posted to \
    the card.";
