/* Ways to a pool that are wrong, and one that is right. Argument: the manager's address. */
#include "check.h"

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
    puts("connect: ok");
    return 0;
}
