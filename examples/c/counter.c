/* A counter that outlives its processes: `counter FILE [N]` makes it in FILE, or finds it there, and counts to N by four threads.
 *
 *     counter /dev/shm/heap 1000     4000
 *     counter /dev/shm/heap 1000     8000
 *
 * With CENOTE_MANAGER=127.0.0.1:5440 in the environment FILE is the name of a space of that pool, and many may count at the same time.
 */
#include <cenote_pool.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static cenote_space *space;
static cenote_address counter;
static uint64_t turns = 1000;

static void check(cenote_status status, const cenote_error *error) {
    if (status == CENOTE_OK) return;
    fprintf(stderr, "counter: %s\n", error->message);
    exit(1);
}

static void *count(void *unused) {
    cenote_error error;
    uint64_t i;
    (void)unused;
    for (i = 0; i < turns; i++) check(cenote_fetch_add(space, counter, 1, NULL, &error), &error);
    return NULL;
}

/* What is in the file, or a space made there. */
static void open_space(const char *path) {
    cenote_space_options options = {0, 0, 0};
    cenote_error error;
    cenote_session *session;
    options.bytes = (uint64_t)16 << 20;
    if (getenv("CENOTE_MANAGER") != NULL) {
        cenote_pool_options pool = {NULL, NULL, NULL, NULL, {0, 0, 0}};
        pool.manager = getenv("CENOTE_MANAGER");
        pool.space = options;
        check(cenote_space_connect(path, &pool, &space, &error), &error);
    } else if (cenote_space_create(path, &options, &space, &error) == CENOTE_INVALID)
        check(cenote_space_open(path, NULL, &space, &error), &error);
    else if (space == NULL)
        check(error.status, &error);
    check(cenote_root(space, &counter, &error), &error);
    if (counter != CENOTE_NULL) return;
    check(cenote_session_begin(space, &session, &error), &error);
    check(cenote_alloc(session, 8, CENOTE_LIFETIME_SPACE, &counter, &error), &error);
    check(cenote_set_root(space, counter, &error), &error);
    check(cenote_session_close(session, &error), &error);
}

int main(int argc, char **argv) {
    pthread_t threads[4];
    cenote_error error;
    uint64_t counted;
    int i;
    if (argc < 2) {
        fputs("usage: counter FILE [N]\n", stderr);
        return 2;
    }
    if (argc > 2) turns = strtoull(argv[2], NULL, 10);
    open_space(argv[1]);
    for (i = 0; i < 4; i++) {
        if (pthread_create(&threads[i], NULL, count, NULL) != 0) return 1;
    }
    for (i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    check(cenote_load(space, counter, &counted, &error), &error);
    printf("%" PRIu64 "\n", counted);
    check(cenote_space_close(space, &error), &error);
    return 0;
}
