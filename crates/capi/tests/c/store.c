/* The store: batches, what is submitted, what lies in place. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <poll.h>

static cenote_store_op op(const char *key, void *value, size_t len) {
    cenote_store_op op;
    op.key = key;
    op.key_len = strlen(key);
    op.value = value;
    op.value_len = len;
    return op;
}

static void batches(cenote_store_handle *store) {
    char one[] = "one", two[] = "two", room[8] = {0}, other[8] = {0};
    cenote_store_op pair[3];
    cenote_store_put_options replaces = {0, 0, 1, 0};
    int64_t results[3];
    size_t prefix = 9;
    pair[0] = op("a", one, 3);
    pair[1] = op("b", two, 3);
    pair[2] = op("c", NULL, 0);
    OK(cenote_store_put(store, pair, 2, NULL, results, &error));
    CHECK(results[0] == 1 && results[1] == 1);
    OK(cenote_store_put(store, pair, 1, NULL, results, &error));
    CHECK(results[0] == 0);
    OK(cenote_store_put(store, pair, 1, &replaces, results, &error));
    CHECK(results[0] == 1);
    OK(cenote_store_exists(store, pair, 3, 1, results, &prefix, &error));
    CHECK(prefix == 2 && results[0] == 1 && results[2] == 0);
    OK(cenote_store_unpin(store, pair, 3, &error));
    pair[0].value = room;
    pair[0].value_len = sizeof room;
    pair[1].value = other;
    pair[1].value_len = 2;
    OK(cenote_store_get(store, pair, 3, results, &error));
    CHECK(results[0] == 3 && !strcmp(room, "one"));
    CHECK(results[1] == CENOTE_STORE_FAILED - CENOTE_OUT_OF_BOUNDS && results[2] == CENOTE_STORE_MISSING);
    OK(cenote_store_remove(store, pair, 3, results, &error));
    CHECK(results[0] == 1 && results[1] == 1 && results[2] == 0);
    FAILS(CENOTE_INVALID, "NULL", cenote_store_get(store, pair, 3, NULL, &error));
    FAILS(CENOTE_INVALID, "NULL", cenote_store_get(NULL, pair, 3, results, &error));
}

static void submitted(cenote_store_handle *store) {
    char value[] = "value", room[8] = {0};
    cenote_store_op ops[2];
    uint64_t id = 0, done = 0;
    int64_t results[2];
    size_t n = 0;
    struct pollfd ready;
    ops[0] = op("k", value, 5);
    ops[1] = op("l", value, 5);
    ready.events = POLLIN;
    OK(cenote_store_event_fd(store, &ready.fd, &error));
    OK(cenote_store_submit(store, CENOTE_STORE_PUT, ops, 2, NULL, &id, &error));
    CHECK(poll(&ready, 1, 100000) == 1);
    while (!done && !n) {
        cenote_status got = cenote_store_drain(store, &done, results, 1, &n, &error);
        CHECK(got == CENOTE_OK ? !done : got == CENOTE_OUT_OF_BOUNDS);
    }
    CHECK(n == 2);
    OK(cenote_store_drain(store, &done, results, 2, &n, &error));
    CHECK(done == id && n == 2 && results[0] == 1 && results[1] == 1);
    OK(cenote_store_drain(store, &done, results, 2, &n, &error));
    CHECK(done == 0);
    FAILS(CENOTE_INVALID, "no request", cenote_store_submit(store, 77, ops, 2, NULL, &id, &error));
    /* Under way when it is closed: the memory is this program's again then. */
    ops[0].value = room;
    OK(cenote_store_submit(store, CENOTE_STORE_GET, ops, 1, NULL, &id, &error));
}

static void in_place(cenote_store_handle *store) {
    const size_t len = 3 << 19;
    cenote_store_room_handle *room;
    cenote_store_borrow_handle *borrow;
    cenote_store_piece pieces[2];
    size_t n = 0, i;
    int64_t result = 0;
    int held = 0;
    OK(cenote_store_alloc(store, "k", 1, len, NULL, &room, &error));
    FAILS(CENOTE_OUT_OF_BOUNDS, "2 pieces", cenote_store_room(room, pieces, 1, &n, &error));
    OK(cenote_store_room(room, pieces, 2, &n, &error));
    CHECK(n == 2 && pieces[0].len + pieces[1].len == len);
    for (i = 0; i < n; i++) {
        memset(pieces[i].at, 'x', pieces[i].len);
    }
    OK(cenote_store_borrow(store, "k", 1, &borrow, &error));
    CHECK(!borrow);
    OK(cenote_store_publish(room, &result, &error));
    CHECK(result == 1);
    OK(cenote_store_borrow(store, "k", 1, &borrow, &error));
    OK(cenote_store_pieces(borrow, pieces, 2, &n, &error));
    CHECK(n == 2 && ((const char *)pieces[1].at)[100] == 'x');
    OK(cenote_store_return(borrow, &held, &error));
    CHECK(held == 1);
    FAILS(CENOTE_INVALID, "closed", cenote_store_pieces(borrow, pieces, 2, &n, &error));
    OK(cenote_store_alloc(store, "m", 1, 10, NULL, &room, &error));
    OK(cenote_store_discard(room, &error));
}

static void see(const char *text, void *context) {
    int *seen = (int *)context;
    *seen = strstr(text, "# TYPE cenote_store_puts_total counter") && strstr(text, "\ncenote_store_sessions 1\n");
}

static void files(cenote_store_handle *store, const char *directory) {
    static char value[100000];
    char name[16];
    cenote_store_op ops[2];
    cenote_store_stats stats;
    int64_t results[2];
    int n, seen = 0;
    FAILS(CENOTE_INVALID, "NULL", cenote_store_spill_to(store, NULL, 1 << 24, -1, &error));
    FAILS(CENOTE_INVALID, "tenant", cenote_store_spill_to(store, directory, 1 << 24, -2, &error));
    OK(cenote_store_spill_to(store, directory, 1 << 24, -1, &error));
    FAILS(CENOTE_INVALID, "already", cenote_store_spill_to(store, directory, 1 << 24, -1, &error));
    OK(cenote_store_set_bound(store, -1, 1 << 20, &error));
    for (n = 0; n < 40; n++) {
        sprintf(name, "file %d", n);
        ops[0] = op(name, value, sizeof value);
        OK(cenote_store_put(store, ops, 1, NULL, results, &error));
        CHECK(results[0] == 1);
        OK(cenote_store_flush_spilled(store, 100000000000, &error));
    }
    ops[0] = ops[1] = op("file 0", value, sizeof value);
    OK(cenote_store_get(store, ops, 2, results, &error));
    CHECK(results[0] == sizeof value && results[1] == sizeof value);
    OK(cenote_store_stats_of(store, &stats, &error));
    CHECK(stats.used <= 1 << 20 && stats.items >= 40);
    OK(cenote_store_metrics(store, see, &seen, &error));
    CHECK(seen);
    for (n = 0; n < 40; n++) {
        sprintf(name, "file %d", n);
        ops[0] = op(name, NULL, 0);
        OK(cenote_store_remove(store, ops, 1, results, &error));
        CHECK(results[0] == 1);
    }
}

int main(int count, char **arguments) {
    cenote_space_options size = {64 << 20, 0, 1};
    cenote_store_options flush = {0, 0, 2, 1, 0, 0}, only_open = {0, 0, 0, 0, 0, 1};
    cenote_space *space;
    cenote_store_handle *store;
    cenote_store_stats stats;
    char directory[4096];
    CHECK(count == 2);
    OK(cenote_space_create(arguments[1], &size, &space, &error));
    FAILS(CENOTE_INVALID, "no root", cenote_store_open(space, &only_open, &store, &error));
    OK(cenote_store_open(space, &flush, &store, &error));
    batches(store);
    in_place(store);
    snprintf(directory, sizeof directory, "%s-files", arguments[1]);
    files(store, directory);
    OK(cenote_store_set_bound(store, -1, 32 << 20, &error));
    OK(cenote_store_set_bound(store, 3, 1 << 20, &error));
    FAILS(CENOTE_INVALID, "tenant", cenote_store_set_bound(store, 300, 1, &error));
    OK(cenote_store_stats_of(store, &stats, &error));
    CHECK(stats.items == 1 && stats.bound == 32 << 20 && stats.damaged == 0);
    {
        cenote_store_op first = op("k", NULL, 0);
        int64_t result;
        OK(cenote_store_remove(store, &first, 1, &result, &error));
        CHECK(result == 1);
    }
    submitted(store);
    OK(cenote_store_close(store, &error));
    FAILS(CENOTE_INVALID, "closed", cenote_store_stats_of(store, &stats, &error));
    OK(cenote_space_close(space, &error));
    return 0;
}
