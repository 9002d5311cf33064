/* Ways to a pool that are wrong, and one that is right; a space that grows while it is open, and is dropped. Argument: the manager's address. */
#include "check.h"

/* Objects of 1 MiB for which there is room. */
static int filled(cenote_session *session) {
    cenote_address a;
    int n = 0;
    while (cenote_alloc(session, (uint64_t)1 << 20, CENOTE_LIFETIME_SPACE, &a, &error) == CENOTE_OK) n++;
    CHECK(error.status == CENOTE_FULL);
    return n;
}

static void grows_and_is_dropped(const cenote_pool_options *pool) {
    const char *here[] = {"rack1"}, *elsewhere[] = {"rack1", "moon"}, *none[] = {NULL};
    const uint64_t more = (uint64_t)16 << 20;
    cenote_space *space;
    cenote_session *session;
    uint64_t problems = 9;
    cenote_status status;
    FAILS(CENOTE_INVALID, "none", cenote_space_grow("none", more, NULL, 0, pool, &error));
    FAILS(CENOTE_INVALID, "name is NULL", cenote_space_grow(NULL, more, NULL, 0, pool, &error));
    FAILS(CENOTE_INVALID, "NULL", cenote_space_grow("heap", more, NULL, 1, pool, &error));
    FAILS(CENOTE_INVALID, "a pod is NULL", cenote_space_grow("heap", more, none, 1, pool, &error));
    FAILS(CENOTE_INVALID, "of 0 pods", cenote_space_grow("heap", more, here, 0, pool, &error));
    FAILS(CENOTE_FULL, "moon", cenote_space_grow("heap", more, elsewhere + 1, 1, pool, &error));
    FAILS(CENOTE_FULL, "", cenote_space_grow("heap", (uint64_t)1 << 50, NULL, 0, pool, &error));
    FAILS(CENOTE_INVALID, "none", cenote_space_drop("none", pool, &error));
    FAILS(CENOTE_INVALID, "name is NULL", cenote_space_drop(NULL, pool, &error));

    OK(cenote_space_connect("heap", pool, &space, &error));
    OK(cenote_session_begin(space, &session, &error));
    CHECK(filled(session) > 0 && filled(session) == 0);
    OK(cenote_space_grow("heap", more, here, 1, pool, &error));
    CHECK(filled(session) > 4);
    OK(cenote_space_grow("heap", more, NULL, 0, pool, &error));
    CHECK(filled(session) > 4);
    OK(cenote_audit(space, NULL, NULL, &problems, &error));
    CHECK(problems == 0);
    OK(cenote_session_close(session, &error));
    OK(cenote_space_close(space, &error));
    OK(cenote_space_drop("heap", pool, &error));
    /* Until the memory nodes have let go of it. */
    do {
        status = cenote_space_connect("heap", pool, &space, &error);
    } while (status == CENOTE_BUSY);
    CHECK(status == CENOTE_INVALID && space == NULL && strstr(error.message, "heap") != NULL);
}

int main(int argc, char **argv) {
    cenote_pool_options pool = {NULL, NULL, NULL, NULL, {0, 0, 0}};
    cenote_space *space = NULL, *other = NULL;
    cenote_session *session;
    cenote_address a;
    uint64_t problems = 9, word = 0;
    cenote_space_stats stats;
    CHECK(argc == 2);
    pool.manager = "127.0.0.1:1";
    FAILS(CENOTE_LOST, "", cenote_space_connect("heap", &pool, &space, &error));
    pool.manager = argv[1];
    FAILS(CENOTE_INVALID, "heap", cenote_space_connect("heap", &pool, &space, &error));
    FAILS(CENOTE_INVALID, "name is NULL", cenote_space_connect(NULL, &pool, &space, &error));
    FAILS(CENOTE_INVALID, "UTF-8", cenote_space_connect("\xff", &pool, &space, &error));
    FAILS(CENOTE_INVALID, "place", cenote_space_connect("heap", &pool, NULL, &error));
    pool.tenant = "nobody";
    FAILS(CENOTE_INVALID, "nobody", cenote_space_connect("heap", &pool, &space, &error));
    pool.tenant = NULL;
    pool.space.bytes = (uint64_t)1 << 50;
    FAILS(CENOTE_FULL, "", cenote_space_connect("heap", &pool, &space, &error));
    CHECK(space == NULL);

    pool.space.bytes = (uint64_t)32 << 20;
    OK(cenote_space_connect("heap", &pool, &space, &error));
    OK(cenote_session_begin(space, &session, &error));
    OK(cenote_alloc(session, 64, CENOTE_LIFETIME_SPACE, &a, &error));
    OK(cenote_store(space, a, 7, &error));
    OK(cenote_set_root(space, a, &error));
    OK(cenote_stats(space, 0, &stats, &error));
    CHECK(stats.parts == 2 && stats.objects == 1);
    OK(cenote_session_close(session, &error));
    OK(cenote_space_close(space, &error));

    /* It is there still, and its size is not asked for again. */
    pool.space.bytes = 0;
    pool.pod = "rack1";
    OK(cenote_space_connect("heap", &pool, &other, &error));
    OK(cenote_root(other, &a, &error));
    OK(cenote_load(other, a, &word, &error));
    CHECK(word == 7);
    OK(cenote_audit(other, NULL, NULL, &problems, &error));
    CHECK(problems == 0);
    OK(cenote_space_close(other, &error));
    pool.pod = NULL;
    grows_and_is_dropped(&pool);
    puts("connect: ok");
    return 0;
}
