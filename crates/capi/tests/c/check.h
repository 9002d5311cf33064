/* What the tests in C have in common. */
#ifndef CHECK_H
#define CHECK_H

#include "cenote_pool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cenote_error error;

#define CHECK(is_so)                                                                   \
    do {                                                                               \
        if (!(is_so)) {                                                                \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #is_so);        \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* A call that succeeds. */
#define OK(call)                                                                       \
    do {                                                                               \
        cenote_status got = (call);                                                    \
        if (got != CENOTE_OK) {                                                        \
            fprintf(stderr, "%s:%d: %s: status %d: %s\n", __FILE__, __LINE__, #call,   \
                    (int)got, error.message);                                          \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* A call that fails so, with words in its message. */
#define FAILS(expected, words, call)                                                   \
    do {                                                                               \
        cenote_status got;                                                             \
        error.status = CENOTE_OK;                                                      \
        error.message[0] = 0;                                                          \
        got = (call);                                                                  \
        if (got != (expected) || error.status != (expected) ||                         \
            strstr(error.message, words) == NULL) {                                    \
            fprintf(stderr, "%s:%d: %s: status %d, not %d with \"%s\": %s\n",          \
                    __FILE__, __LINE__, #call, (int)got, (int)(expected), words,       \
                    error.message);                                                    \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

#endif
