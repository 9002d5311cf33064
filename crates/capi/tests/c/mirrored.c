/* A mirrored space whose memory node is lost: what was acknowledged is there, and goes on. Argument: the manager's address. */
#include "check.h"

#define OBJECTS 60
#define LEN 3000

/* Tries again while the part is away: an operator has yet to say that it is lost. */
#define AGAIN(call)                                                                    \
    do {                                                                               \
        int tries = 0;                                                                 \
        cenote_status got;                                                             \
        do got = (call);                                                               \
        while ((got == CENOTE_LOST || got == CENOTE_TIMEOUT || got == CENOTE_BUSY) &&  \
               tries++ < 100000);                                                      \
        if (got != CENOTE_OK) {                                                        \
            fprintf(stderr, "%s:%d: %s: status %d: %s\n", __FILE__, __LINE__, #call,   \
                    (int)got, error.message);                                          \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

static char wanted[LEN], found[LEN];

static void look(cenote_space *space, const cenote_address *objects, uint64_t words) {
    uint64_t word;
    int n;
    for (n = 0; n < OBJECTS; n++) {
        memset(wanted, 'a' + n % 26, LEN);
        AGAIN(cenote_read(space, objects[n], found, LEN, &error));
        CHECK(memcmp(wanted, found, LEN) == 0);
    }
    AGAIN(cenote_load(space, objects[OBJECTS], &word, &error));
    CHECK(word == words);
}

int main(int argc, char **argv) {
    cenote_pool_options pool = {NULL, NULL, NULL, NULL, {0, 0, 0}};
    const char *first[] = {"pod-0"};
    const uint64_t bytes = (uint64_t)32 << 20;
    cenote_space *space;
    cenote_session *session;
    cenote_address objects[OBJECTS + 1], lock, more;
    cenote_held held;
    uint64_t before;
    int n;
    CHECK(argc > 1);
    pool.manager = argv[1];
    FAILS(CENOTE_INVALID, "mirrored is 2", cenote_space_make("c", bytes, 2, NULL, 0, &pool, &error));
    FAILS(CENOTE_INVALID, "name is NULL", cenote_space_make(NULL, bytes, 1, NULL, 0, &pool, &error));
    FAILS(CENOTE_INVALID, "of 0 pods", cenote_space_make("c", bytes, 1, first, 0, &pool, &error));
    FAILS(CENOTE_FULL, "", cenote_space_make("c", (uint64_t)1 << 50, 1, NULL, 0, &pool, &error));
    OK(cenote_space_make("c", bytes, 1, first, 1, &pool, &error));
    FAILS(CENOTE_INVALID, "c", cenote_space_make("c", bytes, 1, first, 1, &pool, &error));
    OK(cenote_space_connect("c", &pool, &space, &error));
    OK(cenote_session_begin(space, &session, &error));
    OK(cenote_lock_new(session, &lock, &error));
    OK(cenote_lock(session, lock, CENOTE_LOCK_WRITE, CENOTE_FOREVER, &held, &error));
    for (n = 0; n <= OBJECTS; n++) OK(cenote_alloc(session, LEN, CENOTE_LIFETIME_SPACE, &objects[n], &error));
    for (n = 0; n < OBJECTS; n++) {
        memset(wanted, 'a' + n % 26, LEN);
        OK(cenote_write(space, objects[n], wanted, LEN, &error));
        OK(cenote_fetch_add(space, objects[OBJECTS], 1, &before, &error));
    }
    OK(cenote_set_root(space, objects[0], &error));
    puts("written");
    fflush(stdout);
    CHECK(getchar() != EOF);
    look(space, objects, OBJECTS);
    AGAIN(cenote_root(space, &more, &error));
    CHECK(more == objects[0]);
    AGAIN(cenote_fetch_add(space, objects[OBJECTS], 1, &before, &error));
    CHECK(before == OBJECTS);
    AGAIN(cenote_alloc(session, LEN, CENOTE_LIFETIME_SPACE, &more, &error));
    AGAIN(cenote_unlock(session, lock, held.mode, &error));
    AGAIN(cenote_lock(session, lock, CENOTE_LOCK_READ, 0, &held, &error));
    CHECK(!held.owner_died);
    AGAIN(cenote_unlock(session, lock, held.mode, &error));
    look(space, objects, OBJECTS + 1);
    OK(cenote_session_close(session, &error));
    OK(cenote_space_close(space, &error));
    puts("all there");
    return 0;
}
