/* All of the header, as a program uses it, and as it must not. Argument: a path where nothing is. */
#include "check.h"

static void versions(void) {
    CHECK(cenote_pool_abi() == CENOTE_POOL_ABI);
    CHECK(strchr(cenote_pool_version(), '.') != NULL);
    CHECK(sizeof(cenote_error) == 512);
}

static void addresses(void) {
    char text[CENOTE_ADDRESS_TEXT];
    cenote_address address = 0, last = 0;
    OK(cenote_address_parse("2.17+4096@3", &address, &error));
    OK(cenote_address_format(address, text, sizeof text, &error));
    CHECK(strcmp(text, "2.17+4096@3") == 0);
    OK(cenote_address_format(cenote_address_add(address, 5), text, sizeof text, &error));
    CHECK(strcmp(text, "2.17+4101@3") == 0);
    OK(cenote_address_format(CENOTE_NULL, text, 5, &error));
    CHECK(strcmp(text, "null") == 0);
    OK(cenote_address_format(UINT64_MAX, text, sizeof text, &error));
    CHECK(strcmp(text, "255.131071+2097151@262143") == 0);
    OK(cenote_address_parse("1.131071+2097151@9", &last, &error));
    CHECK(cenote_address_add(last, 0) == last);
    CHECK(cenote_address_add(last, 1) == CENOTE_NULL && cenote_address_add(last, UINT64_MAX) == CENOTE_NULL);
    FAILS(CENOTE_INVALID, "needs 5", cenote_address_format(CENOTE_NULL, text, 4, &error));
    FAILS(CENOTE_INVALID, "NULL", cenote_address_format(address, NULL, 32, &error));
    FAILS(CENOTE_INVALID, "needs", cenote_address_format(address, NULL, 0, &error));
    FAILS(CENOTE_INVALID, "no address", cenote_address_parse("2.17+4096", &last, &error));
    FAILS(CENOTE_INVALID, "UTF-8", cenote_address_parse("\xff\xfe", &last, &error));
    FAILS(CENOTE_INVALID, "NULL", cenote_address_parse(NULL, &last, &error));
    FAILS(CENOTE_INVALID, "place", cenote_address_parse("null", NULL, &error));
}

static void opening(const char *path) {
    cenote_space_options options = {0, 0, 0};
    cenote_space *space = NULL, *again = (cenote_space *)&space;
    options.bytes = 1000;
    FAILS(CENOTE_INVALID, "", cenote_space_create(path, &options, &space, &error));
    CHECK(space == NULL);
    options.bytes = (uint64_t)16 << 20;
    FAILS(CENOTE_INVALID, "path is NULL", cenote_space_create(NULL, &options, &space, &error));
    FAILS(CENOTE_INVALID, "path is empty", cenote_space_open("", &options, &space, &error));
    FAILS(CENOTE_INVALID, "place", cenote_space_create(path, &options, NULL, &error));
    FAILS(CENOTE_IO, path, cenote_space_open(path, NULL, &space, &error));
    OK(cenote_space_create(path, &options, &space, &error));
    FAILS(CENOTE_INVALID, "holds something", cenote_space_create(path, &options, &again, &error));
    CHECK(again == NULL);
    FAILS(CENOTE_BUSY, "", cenote_space_open(path, NULL, &again, &error));
    OK(cenote_space_close(space, &error));
    OK(cenote_space_open(path, NULL, &again, &error));
    OK(cenote_space_close(again, NULL));
}

static void locks(cenote_space *space, cenote_session *session) {
    cenote_session *other;
    cenote_address lock, object;
    cenote_held held = {CENOTE_LOCK_READ, 7};
    OK(cenote_session_begin(space, &other, &error));
    OK(cenote_lock_new(session, &lock, &error));
    OK(cenote_lock(session, lock, CENOTE_LOCK_WRITE, CENOTE_FOREVER, &held, &error));
    CHECK(held.mode == CENOTE_LOCK_WRITE && held.owner_died == 0);
    FAILS(CENOTE_TIMEOUT, "", cenote_lock(other, lock, CENOTE_LOCK_READ, 0, &held, &error));
    FAILS(CENOTE_INVALID, "", cenote_unlock(other, lock, CENOTE_LOCK_WRITE, &error));
    OK(cenote_unlock(session, lock, CENOTE_LOCK_WRITE, &error));
    FAILS(CENOTE_INVALID, "", cenote_unlock(session, lock, CENOTE_LOCK_WRITE, &error));
    OK(cenote_lock(session, lock, CENOTE_LOCK_READ, 0, &held, &error));
    OK(cenote_lock(other, lock, CENOTE_LOCK_READ, 1000, &held, &error));
    CHECK(held.mode == CENOTE_LOCK_READ);
    OK(cenote_unlock(session, lock, CENOTE_LOCK_READ, &error));
    OK(cenote_unlock(other, lock, CENOTE_LOCK_READ, &error));
    OK(cenote_lock(other, lock, CENOTE_LOCK_WRITE, 0, &held, &error));
    OK(cenote_session_close(other, &error));
    OK(cenote_lock(session, lock, CENOTE_LOCK_WRITE, CENOTE_FOREVER, &held, &error));
    CHECK(held.owner_died == 1);
    OK(cenote_unlock(session, lock, CENOTE_LOCK_WRITE, &error));
    FAILS(CENOTE_INVALID, "mode", cenote_lock(session, lock, (cenote_lock_mode)5, 0, &held, &error));
    FAILS(CENOTE_INVALID, "place", cenote_lock(session, lock, CENOTE_LOCK_READ, 0, NULL, &error));
    FAILS(CENOTE_INVALID, "", cenote_lock(NULL, lock, CENOTE_LOCK_READ, 0, &held, &error));
    OK(cenote_alloc(session, 128, CENOTE_LIFETIME_SPACE, &object, &error));
    FAILS(CENOTE_INVALID, "", cenote_lock(session, CENOTE_NULL, CENOTE_LOCK_READ, 0, &held, &error));
    OK(cenote_free(space, object, &error));
    OK(cenote_free(space, lock, &error));
}

static void left_broken(cenote_space *space, cenote_session *session) {
    cenote_address lock;
    cenote_held held;
    OK(cenote_lock_new(session, &lock, &error));
    FAILS(CENOTE_INVALID, "hold", cenote_lock_leave_broken(session, lock, CENOTE_LOCK_WRITE, &error));
    FAILS(CENOTE_INVALID, "hold", cenote_lock_leave_broken(session, lock, CENOTE_LOCK_READ, &error));
    FAILS(CENOTE_INVALID, "mode", cenote_lock_leave_broken(session, lock, (cenote_lock_mode)5, &error));
    OK(cenote_lock(session, lock, CENOTE_LOCK_WRITE, CENOTE_FOREVER, &held, &error));
    CHECK(held.owner_died == 0);
    OK(cenote_lock_leave_broken(session, lock, held.mode, &error));
    OK(cenote_lock(session, lock, CENOTE_LOCK_READ, 0, &held, &error));
    CHECK(held.mode == CENOTE_LOCK_WRITE && held.owner_died == 1);
    OK(cenote_unlock(session, lock, held.mode, &error));
    OK(cenote_lock(session, lock, CENOTE_LOCK_READ, 0, &held, &error));
    CHECK(held.mode == CENOTE_LOCK_READ && held.owner_died == 0);
    OK(cenote_lock_leave_broken(session, lock, held.mode, &error));
    OK(cenote_lock(session, lock, CENOTE_LOCK_WRITE, 0, &held, &error));
    CHECK(held.owner_died == 0); /* readers leave nothing behind */
    OK(cenote_unlock(session, lock, held.mode, &error));
    OK(cenote_free(space, lock, &error));
}

static void under_locks(cenote_space *space, cenote_session *session) {
    cenote_address lock, object;
    cenote_held held;
    cenote_cache_stats stats;
    char text[6] = "";
    OK(cenote_lock_new(session, &lock, &error));
    OK(cenote_alloc(session, 64, CENOTE_LIFETIME_SPACE, &object, &error));
    FAILS(CENOTE_INVALID, "hold", cenote_lock_read(session, lock, object, text, 6, &error));
    OK(cenote_lock(session, lock, CENOTE_LOCK_READ, CENOTE_FOREVER, &held, &error));
    OK(cenote_lock_read(session, lock, object, text, 6, &error));
    FAILS(CENOTE_INVALID, "to write", cenote_lock_write(session, lock, object, "hello", 6, &error));
    FAILS(CENOTE_INVALID, "to write", cenote_lock_sync(session, lock, &error));
    FAILS(CENOTE_OUT_OF_BOUNDS, "", cenote_lock_read(session, lock, object + 60, text, 6, &error));
    OK(cenote_unlock(session, lock, held.mode, &error));
    OK(cenote_lock(session, lock, CENOTE_LOCK_WRITE, CENOTE_FOREVER, &held, &error));
    OK(cenote_lock_write(session, lock, object, "hello", 6, &error));
    OK(cenote_lock_sync(session, lock, &error));
    FAILS(CENOTE_INVALID, "NULL", cenote_lock_write(session, lock, object, NULL, 6, &error));
    OK(cenote_lock_read(session, lock, object, text, 6, &error));
    OK(cenote_unlock(session, lock, held.mode, &error));
    CHECK(strcmp(text, "hello") == 0);
    OK(cenote_cache_limit(space, 1 << 20, &error));
    OK(cenote_cache_stats_of(space, &stats, &error));
    CHECK(stats.hits == 0 && stats.misses == 0 && stats.buffered == 0); /* all of it is near */
    OK(cenote_free(space, object, &error));
    OK(cenote_free(space, lock, &error));
}

static void objects(cenote_space *space, cenote_session *session) {
    cenote_address a, run;
    char bytes[5000] = "hello";
    uint64_t size = 0;
    OK(cenote_alloc(session, 100, CENOTE_LIFETIME_SPACE, &a, &error));
    OK(cenote_size_of(space, a, &size, &error));
    CHECK(size >= 100);
    OK(cenote_write(space, a, bytes, 6, &error));
    memset(bytes, 1, sizeof bytes);
    OK(cenote_read(space, cenote_address_add(a, 1), bytes, 99, &error));
    CHECK(strcmp(bytes, "ello") == 0 && bytes[98] == 0);
    OK(cenote_read(space, a, NULL, 0, &error));
    OK(cenote_write(space, a, NULL, 0, &error));

    FAILS(CENOTE_OUT_OF_BOUNDS, "5000", cenote_read(space, a, bytes, sizeof bytes, &error));
    FAILS(CENOTE_OUT_OF_BOUNDS, "", cenote_write(space, a, bytes, sizeof bytes, &error));
    FAILS(CENOTE_INVALID, "NULL", cenote_read(space, a, NULL, 1, &error));
    FAILS(CENOTE_INVALID, "NULL", cenote_write(space, a, NULL, 1, &error));
    FAILS(CENOTE_INVALID, "no memory has", cenote_read(space, a, bytes, SIZE_MAX, &error));
    FAILS(CENOTE_INVALID, "no memory has", cenote_write(space, a, bytes, SIZE_MAX / 2 + 1, &error));
    FAILS(CENOTE_INVALID, "null", cenote_read(space, CENOTE_NULL, bytes, 1, &error));
    FAILS(CENOTE_INVALID, "part 255", cenote_read(space, UINT64_MAX, bytes, 1, &error));
    FAILS(CENOTE_INVALID, "place", cenote_size_of(space, a, NULL, &error));
    FAILS(CENOTE_INVALID, "one byte", cenote_alloc(session, 0, CENOTE_LIFETIME_SPACE, &run, &error));
    FAILS(CENOTE_INVALID, "lifetime", cenote_alloc(session, 1, (cenote_lifetime)2, &run, &error));
    FAILS(CENOTE_INVALID, "place", cenote_alloc(session, 1, CENOTE_LIFETIME_SPACE, NULL, &error));
    FAILS(CENOTE_FULL, "", cenote_alloc(session, UINT64_MAX, CENOTE_LIFETIME_SPACE, &run, &error));
    FAILS(CENOTE_INVALID, "inside", cenote_free(space, a + 64, &error));

    OK(cenote_alloc(session, (uint64_t)5 << 20, CENOTE_LIFETIME_SPACE, &run, &error));
    OK(cenote_write(space, cenote_address_add(run, (2 << 20) - 3), "across", 7, &error));
    OK(cenote_read(space, cenote_address_add(run, (2 << 20) - 3), bytes, 7, &error));
    CHECK(strcmp(bytes, "across") == 0);
    OK(cenote_free(space, run, &error));
    OK(cenote_free(space, a, &error));
    FAILS(CENOTE_INVALID, "freed", cenote_free(space, a, &error));
    FAILS(CENOTE_INVALID, "no object", cenote_free(space, run, &error));
    CHECK(cenote_read(space, a, bytes, 1, NULL) == CENOTE_INVALID);
}

static void words(cenote_space *space, cenote_session *session) {
    cenote_address a;
    uint64_t found = 99;
    OK(cenote_alloc(session, 64, CENOTE_LIFETIME_SPACE, &a, &error));
    OK(cenote_store(space, a, 5, &error));
    OK(cenote_load(space, a, &found, &error));
    CHECK(found == 5);
    OK(cenote_cas(space, a, 5, 6, &found, &error));
    CHECK(found == 5);
    OK(cenote_cas(space, a, 5, 7, &found, &error));
    CHECK(found == 6);
    OK(cenote_cas(space, a, 6, 8, NULL, &error));
    OK(cenote_fetch_add(space, a, UINT64_MAX, &found, &error));
    CHECK(found == 8);
    OK(cenote_fetch_add(space, a, 1, NULL, &error));
    OK(cenote_load(space, a, &found, &error));
    CHECK(found == 8);
    FAILS(CENOTE_INVALID, "multiple of 8", cenote_load(space, a + 4, &found, &error));
    FAILS(CENOTE_INVALID, "place", cenote_load(space, a, NULL, &error));
    FAILS(CENOTE_INVALID, "null", cenote_fetch_add(space, CENOTE_NULL, 1, &found, &error));
    CHECK(found == 8);
    OK(cenote_free(space, a, &error));
}

#define MANY 100

static void batches(cenote_space *space, cenote_session *session) {
    cenote_write_op writes[MANY];
    cenote_read_op reads[MANY];
    uint64_t in[MANY], out[MANY];
    size_t i;
    for (i = 0; i < MANY; i++) {
        in[i] = i + 1;
        out[i] = 0;
        OK(cenote_alloc(session, 64, CENOTE_LIFETIME_SPACE, &writes[i].address, &error));
        writes[i].from = &in[i];
        writes[i].len = 8;
        reads[i].address = writes[i].address;
        reads[i].into = &out[i];
        reads[i].len = 8;
    }
    OK(cenote_write_many(space, writes, MANY, &error));
    OK(cenote_read_many(space, reads, MANY, &error));
    CHECK(memcmp(in, out, sizeof in) == 0);
    OK(cenote_read_many(space, NULL, 0, &error));
    FAILS(CENOTE_INVALID, "NULL", cenote_read_many(space, NULL, 1, &error));
    FAILS(CENOTE_INVALID, "no memory has", cenote_write_many(space, writes, SIZE_MAX / 8, &error));

    /* The first that fails ends it: here one inside of what is handed on together, whose memory or object is not there. */
    memset(out, 0, sizeof out);
    reads[20].into = NULL;
    FAILS(CENOTE_INVALID, "NULL", cenote_read_many(space, reads, MANY, &error));
    CHECK(out[19] == 20 && out[21] == 0);
    memset(in, 0, sizeof in);
    OK(cenote_free(space, writes[20].address, &error));
    FAILS(CENOTE_INVALID, "freed", cenote_write_many(space, writes, MANY, &error));
    OK(cenote_load(space, writes[19].address, &out[0], &error));
    OK(cenote_load(space, writes[21].address, &out[1], &error));
    CHECK(out[0] == 0 && out[1] == 22);
    for (i = 0; i < MANY; i++) {
        if (i != 20) OK(cenote_free(space, writes[i].address, &error));
    }
}

static void lifetimes(cenote_space *space) {
    cenote_session *session;
    cenote_address stays, goes;
    uint64_t word;
    OK(cenote_session_begin(space, &session, &error));
    OK(cenote_alloc(session, 64, CENOTE_LIFETIME_SPACE, &stays, &error));
    OK(cenote_alloc(session, 64, CENOTE_LIFETIME_SESSION, &goes, &error));
    OK(cenote_session_close(session, &error));
    OK(cenote_load(space, stays, &word, &error));
    FAILS(CENOTE_INVALID, "no object", cenote_load(space, goes, &word, &error));
    OK(cenote_free(space, stays, &error));
}

static void tell(const char *text, void *context) {
    fprintf(stderr, "audit: %s\n", text);
    ++*(int *)context;
}

static void statistics(cenote_space *space, cenote_session *session) {
    cenote_space_stats all, first;
    cenote_address root, object;
    uint64_t problems = 9;
    int told = 0;
    OK(cenote_root(space, &root, &error));
    CHECK(root == CENOTE_NULL);
    OK(cenote_alloc(session, 64, CENOTE_LIFETIME_SPACE, &object, &error));
    OK(cenote_set_root(space, object, &error));
    OK(cenote_root(space, &root, &error));
    CHECK(root == object);
    OK(cenote_stats(space, 0, &all, &error));
    OK(cenote_stats(space, 1, &first, &error));
    CHECK(memcmp(&all, &first, sizeof all) == 0);
    CHECK(all.parts == 1 && all.objects == 1 && all.bytes == 64 && all.broken_extents == 0);
    CHECK(all.extents == all.free_extents + all.slab_extents + all.run_extents + all.retired_extents);
    FAILS(CENOTE_INVALID, "no part 2", cenote_stats(space, 2, &all, &error));
    FAILS(CENOTE_INVALID, "place", cenote_stats(space, 0, NULL, &error));
    OK(cenote_audit(space, tell, &told, &problems, &error));
    CHECK(problems == 0 && told == 0);
    OK(cenote_audit(space, NULL, NULL, &problems, &error));
    FAILS(CENOTE_INVALID, "place", cenote_audit(space, tell, &told, NULL, &error));
    FAILS(CENOTE_INVALID, "place", cenote_root(space, NULL, &error));
}

/* Handles that are none, of another kind, or closed. */
static void handles(cenote_space *space, cenote_session *session) {
    uint64_t garbage[8] = {1, 2, 3, 4, 5, 6, 7, 8}, word;
    cenote_space *none = NULL, *odd = (cenote_space *)((char *)garbage + 1);
    cenote_session *ended;
    int i;
    FAILS(CENOTE_INVALID, "NULL", cenote_load(none, 0, &word, &error));
    FAILS(CENOTE_INVALID, "NULL", cenote_load(odd, 0, &word, &error));
    FAILS(CENOTE_INVALID, "no handle of a space", cenote_load((cenote_space *)garbage, 0, &word, &error));
    FAILS(CENOTE_INVALID, "no handle of a space", cenote_load((cenote_space *)session, 0, &word, &error));
    FAILS(CENOTE_INVALID, "no handle of a space", cenote_space_close((cenote_space *)session, &error));
    FAILS(CENOTE_INVALID, "no handle of a session", cenote_session_close((cenote_session *)space, &error));
    FAILS(CENOTE_INVALID, "NULL", cenote_space_close(NULL, &error));
    FAILS(CENOTE_INVALID, "NULL", cenote_session_close(NULL, &error));
    FAILS(CENOTE_INVALID, "NULL", cenote_session_begin(NULL, &ended, &error));
    CHECK(ended == NULL);
    FAILS(CENOTE_INVALID, "place", cenote_session_begin(space, NULL, &error));
    OK(cenote_session_begin(space, &ended, &error));
    OK(cenote_session_close(ended, &error));
    FAILS(CENOTE_INVALID, "closed", cenote_session_close(ended, &error));
    FAILS(CENOTE_INVALID, "closed", cenote_alloc(ended, 64, CENOTE_LIFETIME_SPACE, &word, &error));
    /* Closed handles go in the end. */
    for (i = 0; i < 3000; i++) {
        OK(cenote_session_begin(space, &ended, &error));
        OK(cenote_session_close(ended, &error));
    }
}

int main(int argc, char **argv) {
    cenote_space *space;
    cenote_session *session;
    cenote_address root;
    CHECK(argc == 2);
    versions();
    addresses();
    opening(argv[1]);
    OK(cenote_space_open(argv[1], NULL, &space, &error));
    OK(cenote_session_begin(space, &session, &error));
    objects(space, session);
    locks(space, session);
    left_broken(space, session);
    under_locks(space, session);
    words(space, session);
    batches(space, session);
    lifetimes(space);
    handles(space, session);
    statistics(space, session);
    /* A session keeps what it needs of its space. */
    OK(cenote_space_close(space, &error));
    FAILS(CENOTE_INVALID, "closed", cenote_root(space, &root, &error));
    FAILS(CENOTE_INVALID, "closed", cenote_space_close(space, &error));
    OK(cenote_alloc(session, 64, CENOTE_LIFETIME_SPACE, &root, &error));
    OK(cenote_session_close(session, &error));
    puts("heap: ok");
    return 0;
}
