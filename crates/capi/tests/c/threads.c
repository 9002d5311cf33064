/* Threads that share a space and a session, a child that inherits them, and one that is killed. Arguments: a path where nothing is. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define TURNS 2000

typedef struct shared {
    const char *path;
    cenote_space *space;
    cenote_session *session;
    cenote_address counter;
} shared;

static void *work(void *of) {
    const shared *with = (const shared *)of;
    cenote_error e;
    cenote_address object;
    uint64_t found, i;
    for (i = 0; i < TURNS; i++) {
        if (cenote_alloc(with->session, 64 + i, CENOTE_LIFETIME_SPACE, &object, &e) != CENOTE_OK ||
            cenote_store(with->space, object, i, &e) != CENOTE_OK ||
            cenote_fetch_add(with->space, with->counter, 1, NULL, &e) != CENOTE_OK ||
            cenote_load(with->space, object, &found, &e) != CENOTE_OK || found != i ||
            cenote_free(with->space, object, &e) != CENOTE_OK ||
            cenote_free(with->space, object, &e) != CENOTE_INVALID || e.status != CENOTE_INVALID) {
            fprintf(stderr, "turn %d: %s\n", (int)i, e.message);
            exit(1);
        }
    }
    return NULL;
}

static void threads(shared *with) {
    pthread_t all[THREADS];
    uint64_t counted = 0;
    int i;
    for (i = 0; i < THREADS; i++) CHECK(pthread_create(&all[i], NULL, work, with) == 0);
    for (i = 0; i < THREADS; i++) CHECK(pthread_join(all[i], NULL) == 0);
    OK(cenote_load(with->space, with->counter, &counted, &error));
    CHECK(counted == THREADS * TURNS);
}

static void *look(void *of) {
    const shared *with = (const shared *)of;
    cenote_error e;
    uint64_t word;
    if (cenote_load(with->space, with->counter, &word, &e) != CENOTE_OK) {
        fprintf(stderr, "%s\n", e.message);
        exit(1);
    }
    return NULL;
}

/* More threads, one after the other, than there may be at once: what each of them took comes back. */
static void many_threads(shared *with) {
    pthread_t one;
    int i;
    for (i = 0; i < 1100; i++) {
        CHECK(pthread_create(&one, NULL, look, with) == 0);
        CHECK(pthread_join(one, NULL) == 0);
    }
}

static int is_mapped(const char *path) {
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) found = found || strstr(line, path) != NULL;
    fclose(maps);
    return found;
}

static void in_child(shared *with) {
    cenote_space *own;
    uint64_t word;
    /* A memory node would end a child that maps what only its parent may. */
    CHECK(!is_mapped(with->path));
    FAILS(CENOTE_INVALID, "forked", cenote_load(with->space, with->counter, &word, &error));
    FAILS(CENOTE_INVALID, "forked", cenote_alloc(with->session, 64, CENOTE_LIFETIME_SPACE, &word, &error));
    OK(cenote_session_close(with->session, &error));
    OK(cenote_space_close(with->space, &error));
    FAILS(CENOTE_INVALID, "closed", cenote_space_close(with->space, &error));
    OK(cenote_space_private(NULL, &own, &error));
    OK(cenote_space_close(own, &error));
}

/* The child can do nothing with its parent's handles, and nothing to them. */
static void forked(shared *with) {
    cenote_address before;
    uint64_t word;
    int status = 0;
    pid_t child;
    OK(cenote_alloc(with->session, 64, CENOTE_LIFETIME_SESSION, &before, &error));
    fflush(NULL);
    child = fork();
    CHECK(child >= 0);
    CHECK(child == 0 || is_mapped(with->path));
    if (child == 0) {
        in_child(with);
        /* A child that goes on as another program leaves nothing of its parent's behind. */
        execlp("true", "true", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(cenote_load(with->space, before, &word, &error));
    OK(cenote_free(with->space, before, &error));
}

int main(int argc, char **argv) {
    cenote_space_options options = {0, 0, 0};
    shared with;
    CHECK(argc == 2);
    with.path = argv[1];
    options.bytes = (uint64_t)64 << 20;
    OK(cenote_space_create(argv[1], &options, &with.space, &error));
    OK(cenote_session_begin(with.space, &with.session, &error));
    OK(cenote_alloc(with.session, 64, CENOTE_LIFETIME_SPACE, &with.counter, &error));
    threads(&with);
    many_threads(&with);
    forked(&with);
    OK(cenote_session_close(with.session, &error));
    OK(cenote_space_close(with.space, &error));
    puts("threads: ok");
    return 0;
}
