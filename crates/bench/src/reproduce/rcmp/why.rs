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
    hands each miss to a worker thread of its node first, which is left out here. Writes, which send a changed line \
    home before they take another, are as in the paper.";

/// CXL over Ethernet's latency.
pub const ETHERNET: &str = "the transfer takes 2 us, the proxy's work 0.6, handing over and back 0.55: the proxy has \
    nothing to wait for when one client asks it. The paper's prototype has no optimisation of its network, and the \
    paper does not tell the parts of its 6 to 8 us.";

/// Others' latency over ours.
pub const TIMES: &str = "ours is at half of the paper's bound, but the others are further below the paper's (above): \
    each was given the benefit of the doubt. The slowest is page swapping, whose faults take half of what the paper \
    measured, the fastest is objects.";

/// The most of all sizes.
pub const MOST_TIMES: &str = "that is a write of 4 KiB to coherent caches: eight lines are taken, and as many changed \
    ones are sent home for them, one after the other. The paper says of GAM that it degrades with large writes, not \
    how far; its other systems' latencies are further from ours than 5.2 times in its own section 6.3.";

/// Growth with pods.
pub const PODS: &str = "all memory together stays as large, and all of it is used alike: one half of the accesses is \
    near in two pods, one fifth in five. At 0.2 us near and 2.8 us far that is 1.5 and 2.3 us an access, so 1.6 is \
    what is left of 2.5. The paper does not say how much of its memory was near.";

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
pub const HOT: &str = "a near access takes 0.1 to 0.2 us here, as clients load and store by themselves, and a far one \
    2.8 us, so that moving what is hot is worth more than in the paper. Where each pod has ranks of its own, its hot \
    extents come to it. Where ranks are the same, one pod happens to have more of the hot extents; it is faster for \
    that, so it uses the others more often than their own pod does, and gets them too: the sum rises, and the slower \
    pod does a sixth less than before. The paper does not say whose ranks its racks have.";

/// Where modes cross.
pub const CROSSING: &str = "copying is all that pure RPC pays more here, 44 ns for each 1,000 bytes at either end; \
    messages do not cost more for being of several packets. RPC + one-sided spares the server the first byte's latency \
    as well, so a server that is saturated does more of them at every size, while each client waits for a trip more \
    (the first table): by latency it is the worst at all sizes.";

/// The adaptive choice, one client.
pub const MODES_ALONE: &str = "a trip more is what RPC + one-sided costs a client at every size, and copying is cheap \
    (see above), so that zero-copy gains less on pure RPC than in the paper.";

/// The adaptive choice, a saturated server.
pub const MODES_BUSY: &str = "one server thread bounds it: it does least for RPC + one-sided, 0.6 us, and rings a \
    doorbell for zero-copy, 0.7 us. At 16 KiB the card of 12 GB/s bounds all three.";

/// Write buffers.
pub const WRITE_BUFFER: &str = "the paper does not say how many writes its clients make while they hold a lock. With \
    16, each but the last of which would wait for a trip of 2.8 us to the other pod, most of the trips go: all of a \
    hold is in the message that unlocks. With one write a hold the buffer saves one trip of three. Rcmp's buffer lies \
    in CXL memory and a thread of the client flushes it, which the paper names as what bounds it; ours are posted to \
    the card.";
