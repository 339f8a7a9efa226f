/* A directory of checkpoints under any names, opened to be read. A file is: how long its name is, the name, what it is, two
 * bytes of how many follow, and those: bytes, a size with how the file begins, or a commit record. */
#include "ckpt/store/store.h"
#include "tests/fuzz/input/commit.h"
#include "tests/fuzz/input/disk.h"
#include "tests/fuzz/target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MAX = 12, NAME_MAX_BYTES = 100 };
enum { BYTES, SPARSE, RECORD, KINDS };

static struct input_file files[FILES_MAX + 1] = {{.name = "/input/"}}; /* the directory is there */
static char names[FILES_MAX + 1][NAME_MAX_BYTES + 16];
static unsigned char *records[FILES_MAX + 1]; /* owned */

/* False: there is no more. */
static bool take_file(const uint8_t **data, size_t *bytes, uint32_t number)
{
    struct input_file *f = &files[number];
    if (*bytes < 4 || *bytes - 4 < (*data)[0] % NAME_MAX_BYTES) return false;
    const size_t length = (*data)[0] % NAME_MAX_BYTES;
    const uint8_t *head = *data + 1 + length;
    const size_t left = *bytes - 4 - length, wanted = head[1] | (size_t)head[2] << 8, there = wanted < left ? wanted : left;
    snprintf(names[number], sizeof names[number], "/input/%.*s", (int)length, (const char *)*data + 1);
    *f = (struct input_file){
        .name = names[number], .is_there = true, .bytes = there, .extents = {{0, there, head + 3}}, .extent_count = 1};
    if (head[0] % KINDS == SPARSE && there >= 4) {
        f->extents[0] = (struct input_extent){0, there - 4, head + 7};
        f->bytes = there - 4 + (head[3] | (uint32_t)head[4] << 8 | (uint32_t)head[5] << 16);
    }
    if (head[0] % KINDS == RECORD && (records[number] = input_commit_make(head + 3, there, &f->bytes)))
        f->extents[0] = (struct input_extent){0, f->bytes, records[number]};
    *data = head + 3 + there;
    *bytes = left - there;
    return true;
}

static void look(struct pd_store *store)
{
    struct pd_store_entry unnamed;
    struct pd_error err = {0};
    char path[4096];
    for (uint32_t i = 0; i < pd_store_count(store); i++) {
        struct pd_commit commit;
        const struct pd_store_entry *entry = pd_store_entry_at(store, i);
        pd_store_entry_path(store, entry, path);
        const pd_status st = pd_store_read_commit(store, entry, &commit, &err);
        if (st && !err.message[0]) abort();
        if (!st && commit.state.identity.step != entry->step) abort();
        if (!st) pd_commit_deinit(&commit);
    }
    for (uint32_t i = 0; i < pd_store_unusable_count(store); i++)
        if (!pd_store_unusable_at(store, i)->cause[0]) abort();
    (void)pd_store_unnamed(store, &unnamed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct pd_store_options options = {.quiet = true, .keep_last = 1};
    struct pd_group group = {.size = 1};
    struct pd_store *store;
    struct pd_error err = {0};
    uint32_t count = 1;
    while (count <= FILES_MAX && take_file(&data, &bytes, count))
        count++;
    const pd_status st = pd_store_open(input_disk(files, count), "/input", &options, &group, &store, &err);
    if (st && !err.message[0]) abort();
    if (!st) look(store);
    if (!st) pd_store_close(store);
    for (uint32_t i = 0; i < count; i++) {
        free(records[i]);
        records[i] = NULL;
    }
    return 0;
}
