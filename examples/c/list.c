/* A linked list that outlives its processes: `list FILE [TEXT...]` puts each TEXT at the front of the list in FILE, and prints all of it.
 *
 * The root leads to a word, the address of the first element. An element is one object: 8 bytes, the next element's address; 8 bytes, the text's length; the text. It is whole before
 * the word refers to it, so a process that is killed at any moment leaves a list in order; and the word changes by compare-and-swap, so many may put something in at the same time.
 *
 * With CENOTE_MANAGER=127.0.0.1:5440 in the environment FILE is the name of a space of that pool.
 */
#include <cenote_pool.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT 16

static cenote_space *space;
static cenote_session *session;
static cenote_address first;
static cenote_error error;

static void check(cenote_status status) {
    if (status == CENOTE_OK) return;
    fprintf(stderr, "list: %s\n", error.message);
    exit(1);
}

static void open_space(const char *path) {
    cenote_space_options options = {0, 0, 0};
    options.bytes = (uint64_t)16 << 20;
    if (getenv("CENOTE_MANAGER") != NULL) {
        cenote_pool_options pool = {NULL, NULL, NULL, NULL, {0, 0, 0}};
        pool.manager = getenv("CENOTE_MANAGER");
        pool.space = options;
        check(cenote_space_connect(path, &pool, &space, &error));
    } else if (cenote_space_create(path, &options, &space, &error) == CENOTE_INVALID)
        check(cenote_space_open(path, NULL, &space, &error));
    else if (space == NULL)
        check(error.status);
    check(cenote_session_begin(space, &session, &error));
    check(cenote_root(space, &first, &error));
    if (first != CENOTE_NULL) return;
    check(cenote_alloc(session, 8, CENOTE_LIFETIME_SPACE, &first, &error));
    check(cenote_set_root(space, first, &error));
}

static void push(const char *text) {
    uint64_t head[2], found;
    cenote_address element;
    head[1] = strlen(text);
    check(cenote_alloc(session, TEXT + head[1], CENOTE_LIFETIME_SPACE, &element, &error));
    check(cenote_write(space, element + TEXT, text, head[1], &error));
    check(cenote_load(space, first, &found, &error));
    do {
        head[0] = found;
        check(cenote_write(space, element, head, sizeof head, &error));
        check(cenote_cas(space, first, head[0], element, &found, &error));
    } while (found != head[0]);
}

static void print(void) {
    cenote_address element;
    check(cenote_load(space, first, &element, &error));
    while (element != CENOTE_NULL) {
        uint64_t head[2], size;
        char *text;
        check(cenote_read(space, element, head, sizeof head, &error));
        /* Others could have written anything there. */
        check(cenote_size_of(space, element, &size, &error));
        if (head[1] > size || (text = malloc(head[1] + 1)) == NULL) exit(1);
        check(cenote_read(space, element + TEXT, text, head[1], &error));
        printf("%.*s\n", (int)head[1], text);
        free(text);
        element = head[0];
    }
}

int main(int argc, char **argv) {
    int i;
    if (argc < 2) {
        fputs("usage: list FILE [TEXT...]\n", stderr);
        return 2;
    }
    open_space(argv[1]);
    for (i = 2; i < argc; i++) push(argv[i]);
    print();
    check(cenote_session_close(session, &error));
    check(cenote_space_close(space, &error));
    return 0;
}
