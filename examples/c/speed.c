/* What an access costs through C: `speed FILE [OBJECTS]` reads objects of 64 bytes in random order, one by one and 64 at once, and loads and stores words.
 * FILE is made, and removed. crates/pool/examples/access.rs does the same in Rust, beside memcpy.
 */
#define _POSIX_C_SOURCE 200809L
#include <cenote_pool.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ACCESSES 500000
#define BATCH 64
#define ROUNDS 11

static cenote_space *space;
static cenote_address *objects;
static uint64_t n, state = 88172645463325252u;

static void check(cenote_status status, const cenote_error *error) {
    if (status == CENOTE_OK) return;
    fprintf(stderr, "speed: %s\n", error->message);
    exit(1);
}

static uint64_t random_word(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

enum kind { READ, READ_MANY, WRITE, LOAD, FETCH_ADD, KINDS };
static const char *const names[KINDS] = {"read", "read, 64 at once", "write", "load", "fetch_add"};

static void read_batch(const cenote_address *at) {
    static char bytes[BATCH][64];
    static cenote_read_op ops[BATCH];
    cenote_error error;
    int i;
    for (i = 0; i < BATCH; i++) {
        ops[i].address = at[i];
        ops[i].into = bytes[i];
        ops[i].len = 64;
    }
    check(cenote_read_many(space, ops, BATCH, &error), &error);
}

static double once(enum kind kind, const cenote_address *at) {
    static char bytes[64];
    cenote_error error;
    uint64_t i, word;
    double began = now();
    for (i = 0; i < ACCESSES; i++) {
        switch (kind) {
        case READ: check(cenote_read(space, at[i], bytes, 64, &error), &error); break;
        case WRITE: check(cenote_write(space, at[i], bytes, 64, &error), &error); break;
        case LOAD: check(cenote_load(space, at[i], &word, &error), &error); break;
        case FETCH_ADD: check(cenote_fetch_add(space, at[i], 1, NULL, &error), &error); break;
        default: if (i % BATCH == 0 && i + BATCH <= ACCESSES) read_batch(at + i);
        }
    }
    return (now() - began) / ACCESSES;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(void) {
    static cenote_address at[ACCESSES];
    static double times[KINDS][ROUNDS];
    int round, kind, i;
    for (round = 0; round < ROUNDS; round++) {
        for (kind = 0; kind < KINDS; kind++) {
            for (i = 0; i < ACCESSES; i++) at[i] = objects[random_word() % n];
            times[kind][round] = once((enum kind)kind, at);
        }
    }
    for (kind = 0; kind < KINDS; kind++) {
        qsort(times[kind], ROUNDS, sizeof(double), ascending);
        printf("%-18s %7.1f ns\n", names[kind], times[kind][ROUNDS / 2]);
    }
}

int main(int argc, char **argv) {
    cenote_space_options options = {0, 0, 0};
    cenote_session *session;
    cenote_error error;
    uint64_t i;
    if (argc < 2) {
        fputs("usage: speed FILE [OBJECTS]\n", stderr);
        return 2;
    }
    n = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)1 << 24;
    objects = malloc(n * sizeof *objects);
    if (n == 0 || objects == NULL) return 1;
    options.bytes = n * 65 + ((uint64_t)16 << 20);
    check(cenote_space_create(argv[1], &options, &space, &error), &error);
    check(cenote_session_begin(space, &session, &error), &error);
    for (i = 0; i < n; i++) check(cenote_alloc(session, 64, CENOTE_LIFETIME_SPACE, &objects[i], &error), &error);
    printf("%" PRIu64 " objects of 64 bytes; ns an access, median of %d rounds\n", n, ROUNDS);
    measure();
    check(cenote_session_close(session, &error), &error);
    check(cenote_space_close(space, &error), &error);
    unlink(argv[1]);
    free(objects);
    return 0;
}
