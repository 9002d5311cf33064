/* What Cenote uses of libfabric, as plain functions: see shim.rs, its only user.
 *
 * libfabric is loaded when it is first wanted (dlopen), so that a program built with it starts on a machine without it: its
 * headers are needed for building, and only few functions are symbols; the others are reached through tables in its
 * objects. Without the headers everything here answers "not built".
 *
 * Ownership: an endpoint owns all that it opened, and gives it back in cf_close; a registration is the caller's until
 * cf_unregister, which comes before cf_close. Memory given to an operation is the caller's, and stays where it is
 * until the operation's completion was read or the endpoint is closed. Nothing is allocated for an operation.
 *
 * Threads: all may be called by any thread at any time (FI_THREAD_SAFE), except cf_close, which comes last.
 * At the process's exit nothing gets into libfabric any more: it takes itself down while threads still run.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct cf_options {
    const char *provider; /* as libfabric names it */
    const char *node;     /* own address or name; NULL: any */
    const char *service;  /* own port; NULL: any */
    uint32_t hardware;    /* the provider may ask for local registration, own keys, virtual addresses */
    uint32_t pad;
};

struct cf_done {
    uint64_t context;
    uint64_t length;
    int32_t error; /* 0, or libfabric's number, positive */
    uint32_t received;
};

struct cf_target {
    uint64_t peer;
    uint64_t address;
    uint64_t key;
};

/* What peers do with memory: whatever there is, if it is none of these. */
enum { CF_WRITTEN = 1, CF_TO_READ = 2 };
enum { CF_SEND, CF_READ, CF_WRITE, CF_FETCH_ADD, CF_COMPARE_AND_SWAP, CF_PUT };

#if __has_include(<rdma/fabric.h>)
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define CF_VERSION FI_VERSION(1, 17)

struct cf_endpoint {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    int wake; /* an eventfd */
    int fd;   /* readable when there may be completions; -1: the provider has none */
};

static struct {
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
} lib;

static atomic_int inside;
static atomic_bool ending;

static int enter(void) {
    atomic_fetch_add(&inside, 1);
    if (!atomic_load(&ending)) return 1;
    atomic_fetch_sub(&inside, 1);
    return 0;
}

static void leave(void) { atomic_fetch_sub(&inside, 1); }

#define GUARDED(call)                    \
    do {                                 \
        if (!enter()) return -FI_EINTR;  \
        __typeof__(call) result = call;  \
        leave();                         \
        return result;                   \
    } while (0)

/* Runs before libfabric's own: handlers are called in the reverse order, and libfabric's is a destructor. */
static void at_exit(void) {
    const struct timespec turn = {0, 1000000};
    atomic_store(&ending, 1);
    for (int i = 0; i < 200 && atomic_load(&inside); i++) nanosleep(&turn, NULL);
}

/* A page of 16 KiB with its heads in one message: beyond this size ofi_rxm asks first, which costs more than the message.
 * Before main, while there is one thread: nobody reads the environment meanwhile. A setting of the user's stays. */
__attribute__((constructor)) static void whole_pages(void) { setenv("FI_OFI_RXM_BUFFER_SIZE", "20480", 0); }

/* Some providers' libraries (psm, infinipath) take the process's signals as they are loaded, and end it with status 1 on a SIGTERM that the program wanted to see. What
 * they took is given back. */
static const int TAKEN[] = {SIGHUP, SIGINT, SIGTERM, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP};
enum { SIGNALS = sizeof TAKEN / sizeof *TAKEN };

struct signals {
    struct sigaction before[SIGNALS];
};

static void note_signals(struct signals *s) {
    for (int i = 0; i < SIGNALS; i++) sigaction(TAKEN[i], NULL, &s->before[i]);
}

static int is_providers(const struct sigaction *action) {
    Dl_info where;
    void *handler = *(void *const *)&action->sa_sigaction;
    if (!handler || handler == *(void *const *)&(__sighandler_t){SIG_IGN}) return 0;
    if (!dladdr(handler, &where) || !where.dli_fname) return 0;
    return strstr(where.dli_fname, "psm") || strstr(where.dli_fname, "infinipath");
}

static void give_back_signals(const struct signals *s) {
    for (int i = 0; i < SIGNALS; i++) {
        struct sigaction now;
        if (!sigaction(TAKEN[i], NULL, &now) && is_providers(&now)) sigaction(TAKEN[i], &s->before[i], NULL);
    }
}

int cf_load(char *why, size_t room) {
    struct signals signals;
    note_signals(&signals);
    void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    give_back_signals(&signals);
    if (!library) {
        snprintf(why, room, "%s: install Debian's libfabric1, or your vendor's libfabric", dlerror());
        return -FI_ENOSYS;
    }
    *(void **)&lib.getinfo = dlsym(library, "fi_getinfo");
    *(void **)&lib.freeinfo = dlsym(library, "fi_freeinfo");
    *(void **)&lib.dupinfo = dlsym(library, "fi_dupinfo");
    *(void **)&lib.fabric = dlsym(library, "fi_fabric");
    *(void **)&lib.strerror = dlsym(library, "fi_strerror");
    if (!lib.getinfo || !lib.freeinfo || !lib.dupinfo || !lib.fabric || !lib.strerror) {
        snprintf(why, room, "libfabric.so.1 lacks a function that every version since 1.3 has");
        return -FI_ENOSYS;
    }
    atexit(at_exit);
    return 0;
}

const char *cf_strerror(int error) { return lib.strerror ? lib.strerror(error) : "no libfabric"; }

static struct fi_info *wishes(const struct cf_options *o) {
    struct fi_info *h = lib.dupinfo(NULL);
    if (!h) return NULL;
    h->caps = FI_MSG | FI_RMA | (o->hardware ? 0 : FI_ATOMIC);
    h->ep_attr->type = FI_EP_RDM;
    h->tx_attr->size = h->rx_attr->size = 256; /* ofi_rxm has a buffer of its own for each */
    h->domain_attr->threading = FI_THREAD_SAFE;
    h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    h->domain_attr->resource_mgmt = FI_RM_ENABLED;
    h->domain_attr->mr_mode = o->hardware ? FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY : 0;
    h->fabric_attr->prov_name = strdup(o->provider);
    return h;
}

void cf_close(struct cf_endpoint *r) {
    if (enter()) {
        if (r->ep) fi_close(&r->ep->fid);
        if (r->cq) fi_close(&r->cq->fid);
        if (r->av) fi_close(&r->av->fid);
        if (r->domain) fi_close(&r->domain->fid);
        if (r->fabric) fi_close(&r->fabric->fid);
        if (r->info) lib.freeinfo(r->info);
        leave();
    }
    if (r->wake >= 0) close(r->wake);
    free(r);
}

static int open_cq(struct cf_endpoint *r) {
    struct fi_cq_attr attr = {.size = 1024, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
    r->fd = -1;
    if (!fi_cq_open(r->domain, &attr, &r->cq, NULL)) return fi_control(&r->cq->fid, FI_GETWAIT, &r->fd);
    attr.wait_obj = FI_WAIT_NONE;
    return fi_cq_open(r->domain, &attr, &r->cq, NULL);
}

static int open_all(struct cf_endpoint *r) {
    struct fi_av_attr av = {.type = FI_AV_TABLE, .count = 64};
    int e;
    if ((e = lib.fabric(r->info->fabric_attr, &r->fabric, NULL))) return e;
    if ((e = fi_domain(r->fabric, r->info, &r->domain, NULL))) return e;
    if ((e = open_cq(r))) return e;
    if ((e = fi_av_open(r->domain, &av, &r->av, NULL))) return e;
    if ((e = fi_endpoint(r->domain, r->info, &r->ep, NULL))) return e;
    if ((e = fi_ep_bind(r->ep, &r->av->fid, 0))) return e;
    if ((e = fi_ep_bind(r->ep, &r->cq->fid, FI_TRANSMIT | FI_RECV))) return e;
    return fi_enable(r->ep);
}

static int open_endpoint(const struct cf_options *o, struct cf_endpoint **out) {
    struct fi_info *hints = wishes(o);
    struct cf_endpoint *r = calloc(1, sizeof *r);
    int e = hints && r ? 0 : -FI_ENOMEM;
    struct signals signals;
    note_signals(&signals);
    if (!e) e = lib.getinfo(CF_VERSION, o->node, o->service, o->node ? FI_SOURCE : 0, hints, &r->info);
    give_back_signals(&signals);
    if (hints) lib.freeinfo(hints);
    if (r) r->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!e && r->wake < 0) e = -errno;
    if (!e) e = open_all(r);
    if (e && r) cf_close(r);
    else *out = r;
    return e;
}

int cf_open(const struct cf_options *o, struct cf_endpoint **out) { GUARDED(open_endpoint(o, out)); }

/* FI_MR_... that hold for the memory that is registered. */
int cf_wants_local_registration(struct cf_endpoint *r) { return !!(r->info->domain_attr->mr_mode & FI_MR_LOCAL); }

/* The endpoint's own address; size comes in as the room, and goes out as what is needed. */
int cf_name(struct cf_endpoint *r, void *name, size_t *size) { GUARDED(fi_getname(&r->ep->fid, name, size)); }

static int insert(struct cf_endpoint *r, const void *name, uint64_t *peer) {
    int n = fi_av_insert(r->av, name, 1, peer, 0, NULL);
    return n == 1 ? 0 : n < 0 ? n : -FI_EINVAL;
}

/* The name has been checked: providers believe it. */
int cf_insert(struct cf_endpoint *r, const void *name, uint64_t *peer) { GUARDED(insert(r, name, peer)); }

int cf_remove(struct cf_endpoint *r, uint64_t peer) { GUARDED(fi_av_remove(r->av, &peer, 1, 0)); }

static int registered(struct cf_endpoint *r, void *at, size_t len, int access, uint64_t want, struct fid_mr **mr) {
    const uint64_t all = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    const uint64_t flags = access == CF_WRITTEN ? FI_REMOTE_WRITE : access == CF_TO_READ ? FI_REMOTE_READ : all;
    return fi_mr_reg(r->domain, at, len, flags, 0, want, 0, mr, NULL);
}

/* Registers memory under the key `want`, unless the provider has keys of its own; both out: what a peer has to say. `access`: what
 * peers do with it. */
int cf_register(struct cf_endpoint *r, void *at, size_t len, int access, uint64_t want, struct fid_mr **mr,
                struct cf_target *target) {
    if (!enter()) return -FI_EINTR;
    int e = registered(r, at, len, access, want, mr);
    leave();
    if (e) return e;
    target->key = fi_mr_key(*mr);
    target->address = r->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)at : 0;
    return target->key == FI_KEY_NOTAVAIL ? -FI_ENOSYS : 0;
}

int cf_unregister(struct fid_mr *mr) { GUARDED(fi_close(&mr->fid)); }

int cf_receive(struct cf_endpoint *r, void *at, size_t len, struct fid_mr *mr, uint64_t context) {
    GUARDED(fi_recv(r->ep, at, len, mr ? fi_mr_desc(mr) : NULL, FI_ADDR_UNSPEC, (void *)(uintptr_t)context));
}

static ssize_t message(struct cf_endpoint *r, const struct iovec *io, void **desc, uint64_t peer, void *context, uint64_t flags) {
    const struct fi_msg m = {.msg_iov = io, .desc = desc, .iov_count = 1, .addr = peer, .context = context};
    return fi_sendmsg(r->ep, &m, flags);
}

static ssize_t transfer(struct cf_endpoint *r, int op, const struct iovec *io, void **desc, const struct cf_target *t,
                        void *context, uint64_t flags) {
    const struct fi_rma_iov remote = {.addr = t->address, .len = io->iov_len, .key = t->key};
    const struct fi_msg_rma m = {.msg_iov = io, .desc = desc, .iov_count = 1, .addr = t->peer,
                                 .rma_iov = &remote, .rma_iov_count = 1, .context = context};
    if (op == CF_READ) return fi_readmsg(r->ep, &m, flags);
    /* A write is complete when it is in the peer's memory, not when it has left; one that a message follows may be either. */
    return fi_writemsg(r->ep, &m, op == CF_WRITE ? flags | FI_DELIVERY_COMPLETE : flags);
}

/* The buffer holds the operand, the word to compare with, and room for the word before. */
static ssize_t atomic(struct cf_endpoint *r, int op, uint64_t *words, void **desc, const struct cf_target *t, void *context,
                      uint64_t flags) {
    const struct fi_ioc operand = {words, 1}, result = {words + 2, 1}, expected = {words + 1, 1};
    const struct fi_rma_ioc remote = {.addr = t->address, .count = 1, .key = t->key};
    const struct fi_msg_atomic m = {.msg_iov = &operand, .desc = desc, .iov_count = 1, .addr = t->peer,
                                    .rma_iov = &remote, .rma_iov_count = 1, .datatype = FI_UINT64,
                                    .op = op == CF_FETCH_ADD ? FI_SUM : FI_CSWAP, .context = context};
    if (op == CF_FETCH_ADD)
        return fi_fetch_atomicmsg(r->ep, &m, (struct fi_ioc *)&result, desc, 1, flags);
    return fi_compare_atomicmsg(r->ep, &m, &expected, desc, 1, (struct fi_ioc *)&result, desc, 1, flags);
}

static ssize_t start(struct cf_endpoint *r, int op, void *at, size_t len, struct fid_mr *mr, const struct cf_target *t,
                     uint64_t id, int more) {
    const struct iovec io = {at, len};
    void *desc[1] = {mr ? fi_mr_desc(mr) : NULL}, *context = (void *)(uintptr_t)id;
    const uint64_t flags = FI_COMPLETION | (more ? FI_MORE : 0);
    switch (op) {
    case CF_SEND: return message(r, &io, desc, t->peer, context, flags);
    case CF_READ:
    case CF_PUT:
    case CF_WRITE: return transfer(r, op, &io, desc, t, context, flags);
    default: return atomic(r, op, at, desc, t, context, flags);
    }
}

/* Starts an operation; `more`: others follow at once, the doorbell may wait for them. -FI_EAGAIN: later. */
int cf_start(struct cf_endpoint *r, int op, void *at, size_t len, struct fid_mr *mr, const struct cf_target *t, uint64_t id,
             int more) {
    GUARDED((int)start(r, op, at, len, mr, t, id, more));
}

/* Sends a few bytes (cf_inject_room) that are the caller's again at once; nothing is heard of it unless it fails here. */
int cf_inject(struct cf_endpoint *r, const void *at, size_t len, uint64_t peer) {
    GUARDED((int)fi_inject(r->ep, at, len, peer));
}

size_t cf_inject_room(struct cf_endpoint *r) { return r->info->tx_attr->inject_size; }

/* Whether peers may write to memory that is registered here, and this endpoint to theirs. */
int cf_writes(struct cf_endpoint *r) {
    const uint64_t both = FI_WRITE | FI_REMOTE_WRITE;
    /* Of neither: all of them. */
    return r->info->caps & FI_RMA && (!(r->info->caps & (both | FI_READ | FI_REMOTE_READ)) || (r->info->caps & both) == both);
}

/* Whether a message finds all that was written before it, in the peer's memory. */
int cf_orders_sends_after_writes(struct cf_endpoint *r) {
    return !!(r->info->tx_attr->msg_order & r->info->rx_attr->msg_order & FI_ORDER_SAW);
}

int cf_again(void) { return -FI_EAGAIN; }

static int read_error(struct cf_endpoint *r, struct cf_done *out) {
    struct fi_cq_err_entry e = {0};
    if (fi_cq_readerr(r->cq, &e, 0) != 1) return 0;
    *out = (struct cf_done){(uint64_t)(uintptr_t)e.op_context, e.len, e.err ? e.err : FI_EIO, !!(e.flags & FI_RECV)};
    return 1;
}

static int poll_cq(struct cf_endpoint *r, struct cf_done *out, int room) {
    struct fi_cq_msg_entry entries[32];
    ssize_t n = fi_cq_read(r->cq, entries, room < 32 ? room : 32);
    if (n == -FI_EAVAIL) return read_error(r, out);
    if (n == -FI_EAGAIN) return 0;
    for (ssize_t i = 0; i < n; i++)
        out[i] = (struct cf_done){(uint64_t)(uintptr_t)entries[i].op_context, entries[i].len, 0,
                                  !!(entries[i].flags & FI_RECV)};
    return (int)n;
}

/* Lets the endpoint go on, and reads what is complete: how many, or an error. Never blocks. */
int cf_poll(struct cf_endpoint *r, struct cf_done *out, int room) { GUARDED(poll_cq(r, out, room)); }

static int may_sleep(struct cf_endpoint *r) {
    struct fid *fids[1] = {&r->cq->fid};
    return r->fd < 0 || fi_trywait(r->fabric, fids, 1) == 0;
}

/* Sleeps until something may be complete, cf_wake, or the time has passed. */
int cf_wait(struct cf_endpoint *r, int milliseconds) {
    struct pollfd fds[2] = {{.fd = r->wake, .events = POLLIN}, {.fd = r->fd, .events = POLLIN}};
    uint64_t count;
    if (!enter()) return -FI_EINTR;
    int sleepy = may_sleep(r);
    leave();
    if (sleepy && poll(fds, r->fd < 0 ? 1 : 2, milliseconds) > 0 && fds[0].revents) (void)!read(r->wake, &count, 8);
    return 0;
}

void cf_wake(struct cf_endpoint *r) {
    const uint64_t one = 1;
    (void)!write(r->wake, &one, 8);
}

int cf_has_fd(struct cf_endpoint *r) { return r->fd >= 0; }

#else /* no headers */

struct cf_endpoint;
struct fid_mr;

int cf_load(char *why, size_t room) {
    snprintf(why, room,
             "this program was built without libfabric: install its headers (Debian: libfabric-dev), "
             "then `cargo clean -p cenote-fabric` and build again");
    return -ENOSYS;
}
const char *cf_strerror(int error) { return strerror(error); }
void cf_close(struct cf_endpoint *r) { (void)r; }
int cf_open(const struct cf_options *o, struct cf_endpoint **out) { return (void)o, (void)out, -ENOSYS; }
int cf_wants_local_registration(struct cf_endpoint *r) { return (void)r, 0; }
int cf_name(struct cf_endpoint *r, void *name, size_t *size) { return (void)r, (void)name, (void)size, -ENOSYS; }
int cf_insert(struct cf_endpoint *r, const void *name, uint64_t *p) { return (void)r, (void)name, (void)p, -ENOSYS; }
int cf_remove(struct cf_endpoint *r, uint64_t peer) { return (void)r, (void)peer, -ENOSYS; }
int cf_register(struct cf_endpoint *r, void *at, size_t len, int access, uint64_t want, struct fid_mr **mr,
                struct cf_target *t) {
    return (void)r, (void)at, (void)len, (void)access, (void)want, (void)mr, (void)t, -ENOSYS;
}
int cf_unregister(struct fid_mr *mr) { return (void)mr, -ENOSYS; }
int cf_receive(struct cf_endpoint *r, void *at, size_t len, struct fid_mr *mr, uint64_t context) {
    return (void)r, (void)at, (void)len, (void)mr, (void)context, -ENOSYS;
}
int cf_start(struct cf_endpoint *r, int op, void *at, size_t len, struct fid_mr *mr, const struct cf_target *t, uint64_t id,
             int more) {
    return (void)r, (void)op, (void)at, (void)len, (void)mr, (void)t, (void)id, (void)more, -ENOSYS;
}
int cf_inject(struct cf_endpoint *r, const void *at, size_t len, uint64_t peer) {
    return (void)r, (void)at, (void)len, (void)peer, -ENOSYS;
}
size_t cf_inject_room(struct cf_endpoint *r) { return (void)r, 0; }
int cf_writes(struct cf_endpoint *r) { return (void)r, 0; }
int cf_orders_sends_after_writes(struct cf_endpoint *r) { return (void)r, 0; }
int cf_again(void) { return -EAGAIN; }
int cf_poll(struct cf_endpoint *r, struct cf_done *out, int room) { return (void)r, (void)out, (void)room, -ENOSYS; }
int cf_wait(struct cf_endpoint *r, int milliseconds) { return (void)r, (void)milliseconds, -ENOSYS; }
void cf_wake(struct cf_endpoint *r) { (void)r; }
int cf_has_fd(struct cf_endpoint *r) { return (void)r, 0; }

#endif
