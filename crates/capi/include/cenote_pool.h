/* cenote_pool.h - spaces of the memory pool: heaps that many processes share.
 *
 * Link with libcenote_pool.so (pkg-config cenote_pool). C99, and C++.
 *
 *     cenote_error error;
 *     cenote_space *space;
 *     cenote_session *session;
 *     cenote_address greeting;
 *     if (cenote_space_create("/dev/shm/heap", NULL, &space, &error) != CENOTE_OK) { puts(error.message); return 1; }
 *     cenote_session_begin(space, &session, &error);
 *     cenote_alloc(session, 100, CENOTE_LIFETIME_SPACE, &greeting, &error);
 *     cenote_write(space, greeting, "hello", 6, &error);
 *
 * Rules for all functions
 *
 *   Errors. Each returns a status, CENOTE_OK (0) if it did what it says. Its last argument is where it tells more, or NULL; that is written if
 *   it fails, and left alone otherwise. Memory for results is written if it does not fail; a handle that could not be made is NULL.
 *
 *   Threads. All functions may be called from any thread, with the same handles at the same time. Only closing a handle is for
 *   one alone: when no call uses it, and none will, as with free(). Calls with the same session that allocate wait for each other: give each
 *   thread its own. Memory that is handed in is the call's until it returns.
 *
 *   Handles. NULL, a handle of another kind, and one that was closed not long ago are CENOTE_INVALID. After fork() the child cannot use its
 *   parent's handles, which is CENOTE_INVALID too (closing them there does nothing to the parent's): let it open its own, or call exec.
 *
 *   Bytes come as they are, in the order of this machine. Pointers into a space come from cenote_store_pieces and cenote_store_room alone.
 *
 * The binary interface. The library's name ends with its number, CENOTE_POOL_ABI (libcenote_pool.so.0). Until 1.0 any release may raise it;
 * functions are added without that. A structure's layout and a status's number change with it only.
 */
#ifndef CENOTE_POOL_H
#define CENOTE_POOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version */

#define CENOTE_POOL_ABI 0

/* Of the library that is loaded: the number of its binary interface, and its version, such as "0.1.0". */
uint32_t cenote_pool_abi(void);
const char *cenote_pool_version(void);

/* Errors */

typedef enum cenote_status {
    CENOTE_OK = 0,
    CENOTE_IO = 1,            /* a file or device failed */
    CENOTE_FULL = 2,          /* no more room; the message says where */
    CENOTE_CORRUPT = 3,       /* bytes do not hold what they should; the message says which */
    CENOTE_MISMATCH = 4,      /* a file or setting that does not fit; the message names the field */
    CENOTE_POISONED = 5,      /* an earlier failure made it unsafe to go on; the message says what to do */
    CENOTE_INVALID = 6,       /* a request that makes no sense: no object there, a closed handle, NULL, ... */
    CENOTE_BUSY = 7,          /* another process has what is needed */
    CENOTE_TIMEOUT = 8,       /* no answer in time: it was done once, or not at all */
    CENOTE_REVOKED = 9,       /* what was granted was taken back, the session was ended, or this process was fenced */
    CENOTE_OUT_OF_BOUNDS = 10, /* the object ends before; the message says where */
    CENOTE_LOST = 11,         /* a peer is gone, and what it had */
    CENOTE_BUG = 12           /* a bug in this library, which it noticed; close what you use, and tell us */
} cenote_status;

/* What a call that failed has to say. It needs no initial value, and nothing in it is to be freed. */
typedef struct cenote_error {
    cenote_status status;
    char message[508]; /* UTF-8, ends with a zero; cut off if it would be longer */
} cenote_error;

/* Addresses */

/* Where an object, or a byte of one, lies in a space: the same in every process, and to be kept anywhere, in objects too. Any number may be used as one:
 * what is no object's is CENOTE_INVALID. An address of a former use of its memory is told apart, as far as docs/pool.md says. */
typedef uint64_t cenote_address;

/* No object's. */
#define CENOTE_NULL ((cenote_address)0)

/* Bits of an address that say where in its part of the space it lies. */
#define CENOTE_PLACE_BITS 38

/* The address n bytes further on; CENOTE_NULL if no space reaches so far. Whether it is still in the object is checked when it is used. (address + n is
 * the same where it stays within the object.) */
static inline cenote_address cenote_address_add(cenote_address address, uint64_t n) {
    const uint64_t mask = ((uint64_t)1 << CENOTE_PLACE_BITS) - 1;
    return n > mask - (address & mask) ? CENOTE_NULL : address + n;
}

/* Bytes for an address as text, with its final zero. */
#define CENOTE_ADDRESS_TEXT 32

/* Writes it as people read it: "part.slot+offset@generation", or "null". CENOTE_INVALID if size is too small: CENOTE_ADDRESS_TEXT is enough. */
cenote_status cenote_address_format(cenote_address address, char *text, size_t size, cenote_error *error);

/* Reads such a text. CENOTE_INVALID if it is none. */
cenote_status cenote_address_parse(const char *text, cenote_address *address, cenote_error *error);

/* Spaces */

/* A heap: use it from any thread. */
typedef struct cenote_space cenote_space;

/* How a space is made or opened. All zero is the default, as NULL is. */
typedef struct cenote_space_options {
    uint64_t bytes;       /* its size, all that it needs for itself included; 4 MiB at least. 0: 1 GiB. One that is opened has its size. */
    uint32_t numa;        /* 0: any memory; n: of NUMA node n - 1 */
    uint32_t small_pages; /* not 0: do not ask for huge pages */
} cenote_space_options;

/* Makes a space in a file or device that holds nothing, such as "/dev/shm/heap"; this process keeps it, as long as it has it open.
 * CENOTE_INVALID if something is there; CENOTE_BUSY, CENOTE_FULL, CENOTE_IO. */
cenote_status cenote_space_create(const char *path, const cenote_space_options *options, cenote_space **space,
                                  cenote_error *error);

/* Opens one; this process keeps it. Sessions that did not close end: what they allocated with CENOTE_LIFETIME_SESSION is freed.
 * CENOTE_BUSY if another process keeps it; CENOTE_MISMATCH or CENOTE_CORRUPT if no space is there. */
cenote_status cenote_space_open(const char *path, const cenote_space_options *options, cenote_space **space,
                                cenote_error *error);

/* Makes one in memory of this process, gone with it. */
cenote_status cenote_space_private(const cenote_space_options *options, cenote_space **space, cenote_error *error);

/* How a space of a pool is found. All zero is the default, as NULL is. */
typedef struct cenote_pool_options {
    const char *manager; /* its address; NULL: "127.0.0.1:5440" */
    const char *tenant;  /* whose the space is; NULL: "default" */
    const char *secret;  /* the tenant's; NULL: none */
    const char *pod;     /* only what lies in this pod is mapped; NULL: all that lies on this machine */
    cenote_space_options space; /* its size is that of a new space, if there is none of the name; 0: then it is CENOTE_INVALID */
} cenote_pool_options;

/* Opens a space of a pool (cenote manager, cenote memory), by its name, beside all other processes that have it open. The memory nodes keep it; this process is a member as long as it
 * has it open: one that is stopped for longer than a lease is ended. Open a space once in a process. Messages of what goes on go to stderr.
 * CENOTE_LOST: no manager, or no memory node; CENOTE_INVALID: a wrong name, tenant or secret; CENOTE_FULL. */
cenote_status cenote_space_connect(const char *name, const cenote_pool_options *options, cenote_space **space,
                                   cenote_error *error);

/* Makes a space of a pool, of so many bytes, spread over the memory nodes of n_pods pods, or of all if pods is NULL (n_pods is 0 then). Of the options only the way to the pool counts.
 * cenote_space_connect opens it. mirrored is 0 or 1.
 * Mirrored: each part has a second memory on another memory node, which has every change before it is acknowledged. If the part's node is lost with its memory (`cenote pool forget`), the mirror takes
 * its place: what was acknowledged is there, locks with their holders and sessions too. That holds while `cenote pool status` shows the mirror as whole: this waits for it, 15 seconds at most, and a
 * space that grows has mirrors of its new parts later. Until `forget`, accesses of the lost part are CENOTE_LOST or CENOTE_TIMEOUT: try again. It costs twice the memory, and 8 MiB a part; each access
 * is a call (microseconds), from the part's own pod too, and a change waits for the mirror besides. Processes that open it, and its memory nodes (`cenote memory --rdma`), need libfabric.
 * CENOTE_FULL: the pool, its pods or the tenant's quota; mirrored: no other memory node has room for the mirrors. CENOTE_INVALID: the name is taken, or is none; mirrored: a memory node has no way for
 * calls. CENOTE_BUSY: memory, or the name, is being taken back. CENOTE_LOST and CENOTE_TIMEOUT: it was made once, or not at all. */
cenote_status cenote_space_make(const char *name, uint64_t bytes, uint32_t mirrored, const char *const *pods,
                                size_t n_pods, const cenote_pool_options *options, cenote_error *error);

/* Gives a space of a pool so many bytes more, spread over the memory nodes of n_pods pods, or of all if pods is NULL (n_pods is 0 then). Of the options only the way to the pool counts. Who has the
 * space open finds the new memory when there is no room elsewhere.
 * CENOTE_FULL: the pool, its pods or the tenant's quota; what some of the nodes could give is added in any case. CENOTE_INVALID: no space of the name. CENOTE_BUSY: it is being made. CENOTE_LOST and
 * CENOTE_TIMEOUT: it has grown once, or not at all. */
cenote_status cenote_space_grow(const char *name, uint64_t bytes, const char *const *pods, size_t n_pods,
                                const cenote_pool_options *options, cenote_error *error);

/* Drops a space of a pool: what lies in it is gone. Every process that has it open is killed, this one too: close it before. Returns when nobody can open it any more; its memory and its name
 * are free when the memory nodes have said so (who asks for it before hears CENOTE_BUSY; who makes another one of that name waits). CENOTE_INVALID: no space of the name; CENOTE_LOST. */
cenote_status cenote_space_drop(const char *name, const cenote_pool_options *options, cenote_error *error);

/* Closes the handle. What lies in the space stays; it is unmapped when its sessions are closed too. */
cenote_status cenote_space_close(cenote_space *space, cenote_error *error);

/* The address that what lies in the space is found by: CENOTE_NULL until it is set. Setting it is one step: what lies behind the address must be in
 * order before. */
cenote_status cenote_root(cenote_space *space, cenote_address *root, cenote_error *error);
cenote_status cenote_set_root(cenote_space *space, cenote_address root, cenote_error *error);

/* Sessions: who allocates */

/* Allocates, from memory of its own: one for a thread. */
typedef struct cenote_session cenote_session;

typedef enum cenote_lifetime {
    CENOTE_LIFETIME_SPACE = 0,  /* until it is freed, whatever becomes of the session */
    CENOTE_LIFETIME_SESSION = 1 /* until it is freed, or the session is closed or its process dies */
} cenote_lifetime;

cenote_status cenote_session_begin(cenote_space *space, cenote_session **session, cenote_error *error);

/* Ends it. Its objects of CENOTE_LIFETIME_SESSION are freed. The handle is closed, whatever this returns. */
cenote_status cenote_session_close(cenote_session *session, cenote_error *error);

/* A new object of at least len bytes, all zero. CENOTE_FULL; CENOTE_INVALID if len is 0; CENOTE_REVOKED if the session was ended. */
cenote_status cenote_alloc(cenote_session *session, uint64_t len, cenote_lifetime lifetime, cenote_address *address,
                           cenote_error *error);

/* Frees the object that begins at address, whoever has allocated it. CENOTE_INVALID if none does. */
cenote_status cenote_free(cenote_space *space, cenote_address address, cenote_error *error);

/* Locks
 *
 * A lock lies in the space, and sessions of any process hold it: one writer, or up to 14 sessions that read. Threads of a session that read share its place; who writes is alone, in his session too.
 * A session that ends, as its process is killed, holds nothing any more: who waits takes its locks over, and is told. Do not end a session that another thread waits or holds with. */

typedef enum cenote_lock_mode {
    CENOTE_LOCK_READ = 0, /* with other readers */
    CENOTE_LOCK_WRITE = 1 /* alone */
} cenote_lock_mode;

typedef struct cenote_held {
    cenote_lock_mode mode; /* as it was asked for; or to write, since the last writer died: repair what the lock protects, before you unlock it so */
    int32_t owner_died;    /* 1: the last writer died, or left it broken, and may have left anything half done */
} cenote_held;

/* For as long as the lock's owners live. */
#define CENOTE_FOREVER UINT64_MAX

/* A new lock, held by nobody. It is freed as objects are. */
cenote_status cenote_lock_new(cenote_session *session, cenote_address *lock, cenote_error *error);

/* Takes a lock; waits so many nanoseconds at most (0: not at all; or CENOTE_FOREVER). CENOTE_TIMEOUT; CENOTE_INVALID if no lock is there, or the session writes already. */
cenote_status cenote_lock(cenote_session *session, cenote_address lock, cenote_lock_mode mode, uint64_t nanoseconds, cenote_held *held,
                          cenote_error *error);

/* Lets go of it; mode is how it was held. CENOTE_INVALID if the session does not hold it so. */
cenote_status cenote_unlock(cenote_session *session, cenote_address lock, cenote_lock_mode mode, cenote_error *error);

/* Lets go of it as if its owner had died: whoever has it next is told so, and repairs what it protects. Of what was written by cenote_lock_write and not synced the last may be missing. Held to read:
 * as cenote_unlock, which it fails like. */
cenote_status cenote_lock_leave_broken(cenote_session *session, cenote_address lock, cenote_lock_mode mode, cenote_error *error);

/* What a lock protects that the session holds: as cenote_read and cenote_write (then it holds it to write), and for memory of other pods with fewer trips. What was read under it stays in the process, and
 * is read there for as long as nobody has written under the lock. Writes of up to 256 bytes are collected, and are in their place, in their order, when cenote_lock_sync or cenote_unlock returns; what is wrong
 * with one may be said by a later one, or by these. After that the lock can only be unlocked, which says it again, and its next owner is told that its owner died. CENOTE_INVALID if it is not held so. */
cenote_status cenote_lock_read(cenote_session *session, cenote_address lock, cenote_address address, void *into, size_t len,
                               cenote_error *error);
cenote_status cenote_lock_write(cenote_session *session, cenote_address lock, cenote_address address, const void *from, size_t len,
                                cenote_error *error);
cenote_status cenote_lock_sync(cenote_session *session, cenote_address lock, cenote_error *error);

/* What stays in the process takes so many bytes at most; 0: nothing stays. 64 MiB unless it is said. */
cenote_status cenote_cache_limit(cenote_space *space, uint64_t bytes, cenote_error *error);

/* Of this process and space. */
typedef struct cenote_cache_stats {
    uint64_t hits;     /* reads that needed no trip */
    uint64_t misses;   /* reads that another pod was asked for */
    uint64_t pages;    /* that stay */
    uint64_t bytes;    /* that they take */
    uint64_t buffered; /* writes that were collected */
    uint64_t flushes;  /* messages with them, but for those that unlocked too */
} cenote_cache_stats;

cenote_status cenote_cache_stats_of(cenote_space *space, cenote_cache_stats *stats, cenote_error *error);

/* Access
 *
 * CENOTE_INVALID: no object is there: it was freed, was never allocated, or is of another space. CENOTE_OUT_OF_BOUNDS: it ends before.
 * CENOTE_CORRUPT: the space's own data are broken. Nothing was done then. The checks are of the moment: that nobody frees an object while another uses
 * it is the application's business.
 */

/* Bytes that the object at address can hold: at least those that were asked for. address may lie inside of it. */
cenote_status cenote_size_of(cenote_space *space, cenote_address address, uint64_t *bytes, cenote_error *error);

/* Copies len bytes out of the space, or into it. Who reads while another writes may see a part of that. */
cenote_status cenote_read(cenote_space *space, cenote_address address, void *into, size_t len, cenote_error *error);
cenote_status cenote_write(cenote_space *space, cenote_address address, const void *from, size_t len,
                           cenote_error *error);

typedef struct cenote_read_op {
    cenote_address address;
    void *into;
    size_t len;
} cenote_read_op;

typedef struct cenote_write_op {
    cenote_address address;
    const void *from;
    size_t len;
} cenote_write_op;

/* Many in turn. Memory is asked for ahead: where the objects are in nobody's cache that takes a fraction of the time. The first that fails ends it: those before
 * it are done, those after it not begun.
 * That holds for memory of this pod. Writes to other pods come after those, in no order among each other; if one of them fails, any of the others may be done. */
cenote_status cenote_read_many(cenote_space *space, const cenote_read_op *reads, size_t n, cenote_error *error);
cenote_status cenote_write_many(cenote_space *space, const cenote_write_op *writes, size_t n, cenote_error *error);

/* Words of 8 bytes, at multiples of 8: each of these is one step for all threads and processes. Loads acquire, stores release, the
 * others do both. found is the word that was there, or NULL. cenote_cas writes desired if the word is expected: if *found is expected, it was done. */
cenote_status cenote_load(cenote_space *space, cenote_address address, uint64_t *value, cenote_error *error);
cenote_status cenote_store(cenote_space *space, cenote_address address, uint64_t value, cenote_error *error);
cenote_status cenote_cas(cenote_space *space, cenote_address address, uint64_t expected, uint64_t desired,
                         uint64_t *found, cenote_error *error);
cenote_status cenote_fetch_add(cenote_space *space, cenote_address address, uint64_t n, uint64_t *found,
                               cenote_error *error);

/* What it is used for */

/* Extents have 2 MiB: each is free, cut into objects, of a larger object, retired (worn out), or broken. */
typedef struct cenote_space_stats {
    uint64_t parts;
    uint64_t extents;
    uint64_t free_extents;
    uint64_t slab_extents;
    uint64_t run_extents;
    uint64_t retired_extents;
    uint64_t broken_extents;
    uint64_t objects; /* that are allocated */
    uint64_t bytes;   /* that they can hold */
} cenote_space_stats;

/* Of the part of that number, or of all parts if it is 0. */
cenote_status cenote_stats(cenote_space *space, uint8_t part, cenote_space_stats *stats, cenote_error *error);

/* Is told of each problem, with the context that was handed in. It must return: no longjmp, no exception. */
typedef void (*cenote_problem)(const char *text, void *context);

/* Looks at everything that the space keeps about itself. *problems is 0 if all is in order. problem may be NULL. */
cenote_status cenote_audit(cenote_space *space, cenote_problem problem, void *context, uint64_t *problems,
                           cenote_error *error);

/* The store that everybody shares (docs/store.md) */

/* Values by key in a space, on one table, for any number of processes. Values have up to 1 GiB, keys 1 to 4096 bytes. Values are immutable and the first
 * writer wins, unless a put replaces. What is lost, damaged, expired or evicted is not there; it is never another value. */
typedef struct cenote_store_handle cenote_store_handle;

/* All zero is the default, as NULL is. */
typedef struct cenote_store_options {
    uint64_t bound;     /* bytes that all values may take, what is more is evicted; 0: as much as there is. Of a store that is made now. */
    uint64_t buckets;   /* of its first table, which grows; 0: 1024. Of a store that is made now. */
    uint32_t threads;   /* that copy what is submitted; 0: as many as processors, four at most */
    uint32_t flush;     /* not 0: bytes are written back when published, and invalidated before they are read. Of a store that is made now. */
    uint32_t checksums; /* not 0: long values have checksums also where memory is coherent */
    uint32_t only_open; /* not 0: CENOTE_INVALID if there is no store yet */
} cenote_store_options;

/* Opens the store at the space's root, or makes it there. The space stays open as long as its store. */
cenote_status cenote_store_open(cenote_space *space, const cenote_store_options *options, cenote_store_handle **store,
                                cenote_error *error);

/* Closes it. Batches that have not begun are not done; buffers are the caller's again when it returns. Borrows and rooms may outlive it. */
cenote_status cenote_store_close(cenote_store_handle *store, cenote_error *error);

/* One key of a batch. The value is what is put, or where to a value is copied (which may be shorter); otherwise it is not used. */
typedef struct cenote_store_op {
    const void *key;
    size_t key_len;
    void *value;
    size_t value_len;
} cenote_store_op;

/* All zero is the default, as NULL is. */
typedef struct cenote_store_put_options {
    uint64_t time_to_live; /* nanoseconds; 0: for good */
    uint32_t tenant;       /* whose it is, 0 to 255: see cenote_store_set_bound */
    uint32_t replaces;     /* not 0: it takes the place of a value that is there */
    uint64_t replicas;     /* copies in other parts, 3 at most: one is read where the first is lost; CENOTE_INVALID if there are not so many parts */
} cenote_store_put_options;

/* What comes of a key: of a put 1, or 0 if a value was there and stays; of a get the value's bytes; of exists and remove 1, or 0 if it is not there. */
#define CENOTE_STORE_MISSING (-1)  /* of a get: it is not there */
#define CENOTE_STORE_FAILED (-100) /* minus a status: it failed */

/* Each does its step with n keys, with a result for each. The function itself fails only if its arguments are none. */
cenote_status cenote_store_put(cenote_store_handle *store, const cenote_store_op *ops, size_t n,
                               const cenote_store_put_options *options, int64_t *results, cenote_error *error);
cenote_status cenote_store_get(cenote_store_handle *store, const cenote_store_op *ops, size_t n, int64_t *results,
                               cenote_error *error);
cenote_status cenote_store_remove(cenote_store_handle *store, const cenote_store_op *ops, size_t n, int64_t *results,
                                  cenote_error *error);

/* prefix (or NULL): how many of the first keys are all there. pins not 0: those that are there stay until they are unpinned as often, the store is closed or
 * this process ends. */
cenote_status cenote_store_exists(cenote_store_handle *store, const cenote_store_op *ops, size_t n, int pins,
                                  int64_t *results, size_t *prefix, cenote_error *error);
cenote_status cenote_store_unpin(cenote_store_handle *store, const cenote_store_op *ops, size_t n, cenote_error *error);

/* What is submitted. */
#define CENOTE_STORE_PUT 0
#define CENOTE_STORE_GET 1
#define CENOTE_STORE_EXISTS 2
#define CENOTE_STORE_PIN 3
#define CENOTE_STORE_REMOVE 4

/* Begins a batch and does not wait. Keys are copied; the values' memory is the store's until cenote_store_drain has told of the batch, or the store is closed.
 * CENOTE_FULL if too many keys wait: none of these was begun. */
cenote_status cenote_store_submit(cenote_store_handle *store, int what, const cenote_store_op *ops, size_t n,
                                  const cenote_store_put_options *options, uint64_t *id, cenote_error *error);

/* A descriptor that is readable when batches are done: the store's, to be polled only. */
cenote_status cenote_store_event_fd(cenote_store_handle *store, int *fd, cenote_error *error);

/* The next batch that is done: its number, and the results of its n keys; *id is 0 if there is none. CENOTE_OUT_OF_BOUNDS if there is room for fewer than n:
 * then *n says how many, and it is the next again. Call it until *id is 0. */
cenote_status cenote_store_drain(cenote_store_handle *store, uint64_t *id, int64_t *results, size_t room, size_t *n,
                                 cenote_error *error);

/* Bytes that a tenant's values may take (0: as much as all), or those of all together if tenant is -1. */
cenote_status cenote_store_set_bound(cenote_store_handle *store, int64_t tenant, uint64_t bytes, cenote_error *error);

typedef struct cenote_store_stats {
    uint64_t items;   /* values that there are */
    uint64_t used;    /* bytes of the space that they take */
    uint64_t bound;   /* bytes that they may take; 0: all */
    uint64_t buckets; /* of the table */
    uint64_t evicted; /* by all processes, as the next two */
    uint64_t expired;
    uint64_t orphans; /* objects of dead processes that were freed */
    uint64_t hits;    /* of this process, as all that follows */
    uint64_t misses;
    uint64_t lost;    /* not there as a part of the space was not */
    uint64_t damaged; /* not what their checksum says */
    uint64_t unreplicated; /* replicas that were not made, for want of room */
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t pins;
} cenote_store_stats;

cenote_status cenote_store_stats_of(cenote_store_handle *store, cenote_store_stats *stats, cenote_error *error);

/* Values that this process evicts, of a tenant or (-1) of all for which there is no other directory, go to files in a
 * directory of this store, up to so many bytes (1 MiB at least); gets find them there. Processes that reach each other's
 * files under the same directory read each other's values, for others they are not there. bytes 0: nothing is spilled,
 * and what others have spilled is read. What is removed, replaced or has expired is dead there too. */
cenote_status cenote_store_spill_to(cenote_store_handle *store, const char *directory, uint64_t bytes, int64_t tenant,
                                    cenote_error *error);

/* Waits until what was spilled is in files; CENOTE_TIMEOUT if that takes longer. */
cenote_status cenote_store_flush_spilled(cenote_store_handle *store, uint64_t nanoseconds, cenote_error *error);

/* What all processes did and what there is, as text for Prometheus (its format 0.0.4). The text is there as long as the
 * call takes. */
typedef void (*cenote_store_text)(const char *text, void *context);
cenote_status cenote_store_metrics(cenote_store_handle *store, cenote_store_text text, void *context,
                                   cenote_error *error);

/* A value in place: it is neither evicted nor freed until it is returned. */
typedef struct cenote_store_borrow_handle cenote_store_borrow_handle;

/* Room for a value that is filled in place; others see it when it is published. */
typedef struct cenote_store_room_handle cenote_store_room_handle;

/* Values have up to 1 MiB in one piece, longer ones several. at is NULL where this process does not map it: then cenote_read and cenote_write reach it. */
typedef struct cenote_store_piece {
    void *at;
    uint64_t len;
    cenote_address address;
} cenote_store_piece;

/* *borrow is NULL if the key is not there. In a store that flushes, its checksum is looked at now. */
cenote_status cenote_store_borrow(cenote_store_handle *store, const void *key, size_t key_len,
                                  cenote_store_borrow_handle **borrow, cenote_error *error);

/* Its pieces in their order; *n says how many there are. CENOTE_OUT_OF_BOUNDS if there is room for fewer. Only to be read. */
cenote_status cenote_store_pieces(cenote_store_borrow_handle *borrow, cenote_store_piece *pieces, size_t room, size_t *n,
                                  cenote_error *error);

/* Ends a borrow. *held is 1 if the bytes were the value's to the end; if it is 0, this process was taken for dead, or the
 * value's extent has moved to another pod, and what was read may be anything. */
cenote_status cenote_store_return(cenote_store_borrow_handle *borrow, int *held, cenote_error *error);

/* CENOTE_FULL if there is no room and nothing to evict. */
cenote_status cenote_store_alloc(cenote_store_handle *store, const void *key, size_t key_len, uint64_t value_len,
                                 const cenote_store_put_options *options, cenote_store_room_handle **room,
                                 cenote_error *error);
cenote_status cenote_store_room(cenote_store_room_handle *room, cenote_store_piece *pieces, size_t most, size_t *n,
                                cenote_error *error);

/* Both end the room. The result is that of a put. */
cenote_status cenote_store_publish(cenote_store_room_handle *room, int64_t *result, cenote_error *error);
cenote_status cenote_store_discard(cenote_store_room_handle *room, cenote_error *error);

#ifdef __cplusplus
}
#endif

#endif
