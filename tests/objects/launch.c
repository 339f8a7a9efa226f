/* A launch of one rank that saves into a bucket, driven line by line as program.c is: "open URL", "save DIRECTORY", "prune", "close".
 * The first argument is how many MiB are sent from. */
#include "ckpt/objects/bucket_store.h"

#include "ckpt/base/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEEP 2u

struct launch {
    struct pd_vfs *vfs;
    struct pd_group group;
    struct pd_bucket_store *store;
    void *memory;
    uint64_t bytes;
};

static pd_status save(struct launch *l, const char *directory, char ret_name[64], struct pd_error *err)
{
    char path[4096];
    struct pd_commit commit = {0};
    snprintf(path, sizeof path, "%.4000s/commit.h5", directory);
    PD_TRY(pd_commit_read(l->vfs, path, &commit, err));
    const pd_status st = pd_bucket_store_save(l->store, l->vfs, directory, &commit, ret_name, err);
    pd_commit_deinit(&commit);
    return st;
}

static pd_status call(struct launch *l, const char *what, const char *argument, char ret_name[64], struct pd_error *err)
{
    const struct pd_bucket_store_options options = {.keep_last = KEEP, .memory = l->memory, .memory_bytes = l->bytes};
    if (strcmp(what, "open") == 0) return pd_bucket_store_open(argument, &options, &l->group, &l->store, err);
    if (strcmp(what, "save") == 0) return save(l, argument, ret_name, err);
    if (strcmp(what, "prune") == 0) return pd_bucket_store_prune(l->store, err);
    PD_CHECK(strcmp(what, "close") == 0);
    pd_bucket_store_close(l->store);
    l->store = NULL;
    return PD_OK;
}

int main(int argc, char **argv)
{
    struct launch l = {.store = NULL};
    struct pd_error err = {0};
    char *line = NULL;
    size_t room = 0;
    PD_CHECK(argc == 2 && pd_parse_u64(argv[1], &l.bytes) && pd_vfs_new_auto(&l.vfs, &err) == PD_OK);
    l.bytes <<= 20;
    l.memory = aligned_alloc(PD_VFS_ALIGN, l.bytes);
    PD_CHECK(l.memory);
    pd_group_init_single(&l.group);
    while (getline(&line, &room, stdin) > 0) {
        char *rest = line, *what = strsep(&rest, "\t\n"), *argument = strsep(&rest, "\t\n"), name[64] = "";
        err = (struct pd_error){.status = PD_OK};
        const pd_status st = call(&l, what, argument, name, &err);
        printf("%s\t%s\n", pd_status_name(st), st ? err.message : name);
        fflush(stdout);
    }
    pd_bucket_store_close(l.store);
    pd_vfs_free(l.vfs);
    free(l.memory);
    free(line);
    return 0;
}
