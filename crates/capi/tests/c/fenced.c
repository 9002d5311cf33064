/* A member of another pod: it takes a lock, writes what that protects, and says so. When it is told to go on it has been
   fenced: each of its accesses has to be refused. Arguments: the manager's address, the lock, words. */
#include "check.h"

#define TRIES 30

static int wrong;

static void judge(const char *what, cenote_status got) {
    if (got == CENOTE_REVOKED && error.status == CENOTE_REVOKED) return;
    fprintf(stderr, "%s: status %d: %s\n", what, (int)got, error.message);
    wrong++;
}

static cenote_address parsed(const char *text) {
    cenote_address address;
    OK(cenote_address_parse(text, &address, &error));
    return address;
}

static void try_all(cenote_space *space, cenote_address word) {
    uint64_t found;
    judge("store", cenote_store(space, word, 666, &error));
    judge("fetch_add", cenote_fetch_add(space, word, 1, &found, &error));
    judge("cas", cenote_cas(space, word, 7, 666, &found, &error));
    judge("write", cenote_write(space, word, "666", 3, &error));
    judge("load", cenote_load(space, word, &found, &error));
    judge("read", cenote_read(space, word, &found, sizeof found, &error));
}

int main(int argc, char **argv) {
    cenote_pool_options pool = {NULL, NULL, NULL, "nowhere", {0, 0, 0}};
    cenote_space *space;
    cenote_session *session;
    cenote_address lock, a;
    cenote_held held;
    int n, round;
    CHECK(argc > 3);
    pool.manager = argv[1];
    lock = parsed(argv[2]);
    OK(cenote_space_connect("shared", &pool, &space, &error));
    OK(cenote_session_begin(space, &session, &error));
    OK(cenote_lock(session, lock, CENOTE_LOCK_WRITE, CENOTE_FOREVER, &held, &error));
    for (n = 3; n < argc; n++) {
        OK(cenote_store(space, parsed(argv[n]), 1, &error));
        OK(cenote_lock_write(session, lock, parsed(argv[n]), "2", 1, &error));
    }
    puts("locked");
    fflush(stdout);
    CHECK(getchar() != EOF);
    for (round = 0; round < TRIES; round++)
        for (n = 3; n < argc; n++) try_all(space, parsed(argv[n]));
    judge("sync", cenote_lock_sync(session, lock, &error));
    judge("unlock", cenote_unlock(session, lock, held.mode, &error));
    judge("lock", cenote_lock(session, lock, CENOTE_LOCK_WRITE, 1, &held, &error));
    judge("alloc", cenote_alloc(session, 64, CENOTE_LIFETIME_SPACE, &a, &error));
    printf("wrong: %d\n", wrong);
    return 0;
}
