/* Each line is run through the slots of the VFS, its results are printed in the trace's own words, and the two texts must
 * be equal. Slots, not wrappers: what is compared is one call of the disk at a time. */
#include "tests/simulated_disk/disk_trace.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/parse.h"
#include "ckpt/io/vfs_ops.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HANDLES_MAX (UINT64_C(1) << 20)

struct replay {
    struct pd_vfs *vfs;
    const char *root;
    void **handles; /* (handle_count): struct pd_file or struct pd_lock, by number */
    bool *is_lock;
    uint64_t handle_count;
    FILE *actual; /* results of the line being run */
};

struct words {
    char **items;
    uint32_t count;
};

/* ---- arguments ---- */

static void print_result(struct replay *replay, int result)
{
    fprintf(replay->actual, "%s", pd_status_name(pd_vfs_name_status(result)));
}

static uint64_t number(const char *word)
{
    uint64_t value = UINT64_MAX; /* what no handle, offset or length is */
    pd_parse_u64(word, &value);
    return value;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* root + the path with its escapes undone; the caller frees. */
static char *real_path(const struct replay *replay, const char *word)
{
    size_t root_length = strlen(replay->root);
    char *path = malloc(root_length + strlen(word) + 2);
    if (!path) return NULL;
    memcpy(path, replay->root, root_length);
    char *to = path + root_length;
    if (*word != '/') *to++ = '/';
    while (*word) {
        bool escaped = word[0] == '%' && hex_digit(word[1]) >= 0 && hex_digit(word[2]) >= 0;
        *to++ = escaped ? (char)(hex_digit(word[1]) * 16 + hex_digit(word[2])) : *word;
        word += escaped ? 3 : 1;
    }
    *to = '\0';
    return path;
}

static void *handle(const struct replay *replay, const char *word, bool is_lock)
{
    uint64_t id = number(word);
    bool known = id < replay->handle_count && replay->is_lock[id] == is_lock;
    return known ? replay->handles[id] : NULL;
}

static int handle_put(struct replay *replay, uint64_t id, void *object, bool is_lock)
{
    if (id >= HANDLES_MAX) return EINVAL;
    if (id >= replay->handle_count) {
        uint64_t count = (id + 1) * 2;
        void **handles = realloc(replay->handles, count * sizeof *handles);
        if (handles) replay->handles = handles;
        bool *kinds = realloc(replay->is_lock, count * sizeof *kinds);
        if (kinds) replay->is_lock = kinds;
        if (!handles || !kinds) return ENOMEM;
        memset(handles + replay->handle_count, 0, (count - replay->handle_count) * sizeof *handles);
        memset(kinds + replay->handle_count, 0, (count - replay->handle_count) * sizeof *kinds);
        replay->handle_count = count;
    }
    replay->handles[id] = object;
    replay->is_lock[id] = is_lock;
    return 0;
}

/* ---- operations: 0, or an errno when the line cannot be run at all ---- */

static int run_open(struct replay *replay, char **words)
{
    struct pd_file *file = calloc(1, sizeof *file);
    char *path = real_path(replay, words[2]);
    if (!file || !path) {
        free(file);
        free(path);
        return ENOMEM;
    }
    unsigned flags = (unsigned)number(words[1]);
    *file = (struct pd_file){.vfs = replay->vfs, .path = path, .flags = flags, .fd = -1};
    int result = replay->vfs->ops->open(file, flags);
    bool refused = result == EINVAL && (flags & PD_OPEN_DIRECT); /* this file system has no direct I/O: same data, slower */
    if (refused) result = replay->vfs->ops->open(file, flags & ~(unsigned)(PD_OPEN_DIRECT | PD_OPEN_EXCLUSIVE));
    atomic_store(&file->direct, !refused && (flags & PD_OPEN_DIRECT));
    print_result(replay, result);
    int broken = result ? 0 : handle_put(replay, number(words[0]), file, false);
    if (!result && !broken) return 0;
    if (!result) replay->vfs->ops->close(file);
    free(path);
    free(file);
    return broken;
}

static void file_free(struct replay *replay, struct pd_file *file, int *ret_result)
{
    *ret_result = replay->vfs->ops->close(file);
    free(file->path);
    free(file);
}

static int run_close(struct replay *replay, char **words)
{
    struct pd_file *file = handle(replay, words[0], false);
    if (!file) return EBADF;
    int result;
    file_free(replay, file, &result);
    replay->handles[number(words[0])] = NULL;
    print_result(replay, result);
    return 0;
}

/* Aligned memory that direct I/O accepts, whatever the trace's process used. */
static void *aligned(uint64_t bytes)
{
    uint64_t rounded = (bytes / PD_VFS_ALIGN + 1) * PD_VFS_ALIGN;
    return bytes < UINT64_C(1) << 32 ? aligned_alloc(PD_VFS_ALIGN, rounded) : NULL;
}

static int run_read(struct replay *replay, char **words)
{
    struct pd_file *file = handle(replay, words[0], false);
    uint64_t bytes = number(words[2]), moved = 0;
    void *data = file ? aligned(bytes) : NULL;
    if (!data) return file ? ENOMEM : EBADF;
    int result = replay->vfs->ops->read(file, number(words[1]), data, bytes, &moved);
    if (result && pd_file_fall_back(file, atomic_load(&file->direct), result))
        result = replay->vfs->ops->read(file, number(words[1]), data, bytes, &moved);
    print_result(replay, result);
    fprintf(replay->actual, " %" PRIu64 " %016" PRIx64, moved, pd_digest64(data, moved, 0));
    free(data);
    return 0;
}

static int run_write(struct replay *replay, char **words)
{
    struct pd_file *file = handle(replay, words[0], false);
    size_t digits = strlen(words[2]);
    if (!file || words[2][0] != 'x' || digits % 2 == 0) return EBADF;
    uint64_t bytes = (digits - 1) / 2, moved = 0;
    uint8_t *data = aligned(bytes);
    if (!data) return ENOMEM;
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(hex_digit(words[2][1 + 2 * i]) * 16 + hex_digit(words[2][2 + 2 * i]));
    int result = replay->vfs->ops->write(file, number(words[1]), data, bytes, &moved);
    if (result && pd_file_fall_back(file, atomic_load(&file->direct), result))
        result = replay->vfs->ops->write(file, number(words[1]), data, bytes, &moved);
    print_result(replay, result);
    fprintf(replay->actual, " %" PRIu64, result ? 0 : moved);
    free(data);
    return 0;
}

static int run_resize(struct replay *replay, char **words, int (*slot)(struct pd_file *, uint64_t))
{
    struct pd_file *file = handle(replay, words[0], false);
    if (!file) return EBADF;
    print_result(replay, slot(file, number(words[1])));
    return 0;
}

static int run_preallocate(struct replay *replay, char **words)
{
    return run_resize(replay, words, replay->vfs->ops->preallocate);
}

static int run_truncate(struct replay *replay, char **words)
{
    return run_resize(replay, words, replay->vfs->ops->truncate);
}

static int run_sync(struct replay *replay, char **words)
{
    struct pd_file *file = handle(replay, words[0], false);
    if (!file) return EBADF;
    print_result(replay, replay->vfs->ops->sync(file));
    return 0;
}

static void print_stat(struct replay *replay, int result, const struct pd_stat *st)
{
    bool is_file = !result && st->type == PD_ENTRY_FILE;
    print_result(replay, result);
    fprintf(replay->actual, " %d %" PRIu64 " %" PRIu64, result ? 0 : (int)st->type, is_file ? st->bytes : 0,
            is_file ? st->link_count : 0);
}

static int run_file_stat(struct replay *replay, char **words)
{
    struct pd_file *file = handle(replay, words[0], false);
    if (!file) return EBADF;
    struct pd_stat st = {0};
    int result = replay->vfs->ops->file_stat(file, &st);
    print_stat(replay, result, &st);
    return 0;
}

static int run_stat(struct replay *replay, char **words)
{
    char *path = real_path(replay, words[0]);
    if (!path) return ENOMEM;
    struct pd_stat st = {0};
    int result = replay->vfs->ops->stat(replay->vfs, path, &st);
    print_stat(replay, result, &st);
    free(path);
    return 0;
}

static int run_space(struct replay *replay, char **words)
{
    char *path = real_path(replay, words[0]);
    if (!path) return ENOMEM;
    struct pd_space space;
    print_result(replay, replay->vfs->ops->space(replay->vfs, path, &space));
    free(path);
    return 0;
}

static int run_list(struct replay *replay, char **words)
{
    char *path = real_path(replay, words[0]);
    if (!path) return ENOMEM;
    struct pd_listing listing = {0};
    pd_status st = pd_vfs_list(replay->vfs, path, &listing, NULL);
    fprintf(replay->actual, "%s", pd_status_name(st));
    for (uint32_t i = 0; i < listing.count; i++) {
        fputc(' ', replay->actual);
        for (const char *at = listing.names[i]; *at; at++) {
            bool plain = *at > ' ' && *at != '%' && *at != 0x7f;
            fprintf(replay->actual, plain ? "%c" : "%%%02x", (unsigned char)*at);
        }
    }
    pd_listing_deinit(&listing);
    free(path);
    return 0;
}

static int run_two_paths(struct replay *replay, char **words, int (*slot)(struct pd_vfs *, const char *, const char *))
{
    char *from = real_path(replay, words[0]), *to = real_path(replay, words[1]);
    if (from && to) print_result(replay, slot(replay->vfs, from, to));
    int result = from && to ? 0 : ENOMEM;
    free(from);
    free(to);
    return result;
}

static int run_rename(struct replay *replay, char **words)
{
    return run_two_paths(replay, words, replay->vfs->ops->rename);
}

static int run_link(struct replay *replay, char **words)
{
    return run_two_paths(replay, words, replay->vfs->ops->link);
}

/* Relative targets stay so: real_path only undoes their escapes. */
static int run_symlink(struct replay *replay, char **words)
{
    char *target = real_path(replay, words[0]), *path = real_path(replay, words[1]);
    const size_t skip = words[0][0] == '/' ? 0 : strlen(replay->root) + 1;
    const int result = target && path ? 0 : ENOMEM;
    if (!result) print_result(replay, symlink(target + skip, path) ? errno : 0);
    free(target);
    free(path);
    return result;
}

static int run_readlink(struct replay *replay, char **words)
{
    char *path = real_path(replay, words[0]), target[PD_VFS_PATH_MAX];
    if (!path) return ENOMEM;
    print_result(replay, replay->vfs->ops->readlink(replay->vfs, path, target));
    free(path);
    return 0;
}

static int run_one_path(struct replay *replay, char **words, int (*slot)(struct pd_vfs *, const char *))
{
    char *path = real_path(replay, words[0]);
    if (!path) return ENOMEM;
    print_result(replay, slot(replay->vfs, path));
    free(path);
    return 0;
}

static int run_unlink(struct replay *replay, char **words)
{
    return run_one_path(replay, words, replay->vfs->ops->unlink);
}

static int run_mkdir(struct replay *replay, char **words)
{
    return run_one_path(replay, words, replay->vfs->ops->mkdir);
}

static int run_rmdir(struct replay *replay, char **words)
{
    return run_one_path(replay, words, replay->vfs->ops->rmdir);
}

static int run_sync_dir(struct replay *replay, char **words)
{
    return run_one_path(replay, words, replay->vfs->ops->sync_dir);
}

static int run_lock(struct replay *replay, char **words)
{
    char *path = real_path(replay, words[1]);
    if (!path) return ENOMEM;
    struct pd_error err;
    struct pd_lock *lock = NULL;
    pd_status st = pd_vfs_lock(replay->vfs, path, &lock, &err);
    free(path);
    fprintf(replay->actual, "%s", pd_status_name(st));
    int broken = st ? 0 : handle_put(replay, number(words[0]), lock, true);
    if (broken) pd_vfs_unlock(lock);
    return broken;
}

static int run_unlock(struct replay *replay, char **words)
{
    struct pd_lock *lock = handle(replay, words[0], true);
    if (!lock) return EBADF;
    pd_vfs_unlock(lock);
    replay->handles[number(words[0])] = NULL;
    return 0;
}

static const struct {
    const char *name;
    uint32_t argument_count;
    int (*run)(struct replay *, char **);
} operations[] = {
    {"open", 3, run_open},         {"close", 1, run_close},         {"read", 3, run_read},
    {"write", 3, run_write},       {"truncate", 2, run_truncate},   {"preallocate", 2, run_preallocate},
    {"sync", 1, run_sync},         {"file_stat", 1, run_file_stat}, {"stat", 1, run_stat},
    {"space", 1, run_space},       {"list", 1, run_list},           {"rename", 2, run_rename},
    {"link", 2, run_link},         {"unlink", 1, run_unlink},       {"mkdir", 1, run_mkdir},
    {"rmdir", 1, run_rmdir},       {"sync_dir", 1, run_sync_dir},   {"symlink", 2, run_symlink},
    {"readlink", 1, run_readlink}, {"lock", 2, run_lock},           {"unlock", 1, run_unlock},
};

/* ---- lines ---- */

/* Splits in place before " = "; *ret_expected is what comes after it, "" without. */
static int split(char *line, struct words *ret_words, const char **ret_expected)
{
    static char nothing[] = "";
    char *equals = strstr(line, " = ");
    if (equals) *equals = '\0';
    *ret_expected = equals ? equals + 3 : nothing;
    uint32_t count = 1;
    for (const char *at = line; *at; at++)
        count += *at == ' ';
    char **items = calloc(count, sizeof *items);
    if (!items) return ENOMEM;
    ret_words->items = items;
    ret_words->count = 0;
    char *rest = line;
    for (char *word; (word = strsep(&rest, " "));)
        items[ret_words->count++] = word;
    return 0;
}

static pd_status run_words(struct replay *replay, const struct words *words, struct pd_error *err)
{
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        if (strcmp(operations[i].name, words->items[0]) != 0) continue;
        if (words->count != operations[i].argument_count + 1)
            PD_FAIL(err, PD_INVALID, "%s takes %" PRIu32 " arguments", operations[i].name, operations[i].argument_count);
        int result = operations[i].run(replay, words->items + 1);
        if (result) PD_FAIL_ERRNO(err, result, "%s cannot be replayed", operations[i].name);
        return PD_OK;
    }
    PD_FAIL(err, PD_INVALID, "no operation is called \"%.40s\"", words->items[0]);
}

static pd_status run_line(struct replay *replay, char *line, struct pd_error *err)
{
    struct words words = {0};
    const char *expected;
    char *text = NULL;
    size_t bytes = 0;
    replay->actual = open_memstream(&text, &bytes);
    if (!replay->actual || split(line, &words, &expected)) {
        if (replay->actual) fclose(replay->actual);
        free(text);
        PD_FAIL_ERRNO(err, ENOMEM, "replaying a trace");
    }
    pd_status st = run_words(replay, &words, err);
    fclose(replay->actual);
    if (!st && strcmp(text, expected) != 0)
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s %.200s: the trace says %.200s, this disk %.200s", words.items[0],
                          words.count > 1 ? words.items[words.count - 1] : "", expected, text);
    free(text);
    free(words.items);
    return st;
}

static void replay_deinit(struct replay *replay)
{
    for (uint64_t i = 0; i < replay->handle_count; i++) {
        int unused;
        if (!replay->handles[i]) continue;
        if (replay->is_lock[i])
            pd_vfs_unlock(replay->handles[i]);
        else
            file_free(replay, replay->handles[i], &unused);
    }
    free(replay->handles);
    free(replay->is_lock);
}

pd_status pd_disk_trace_replay(const char *text, struct pd_vfs *vfs, const char *root, uint64_t *ret_line_count,
                               struct pd_error *err)
{
    char *copy = strdup(text);
    if (!copy) PD_FAIL_ERRNO(err, ENOMEM, "replaying a trace");
    struct replay replay = {.vfs = vfs, .root = root};
    pd_status st = PD_OK;
    uint64_t line_count = 0;
    char *rest = copy;
    for (char *line; !st && (line = strsep(&rest, "\n"));) {
        if (*line == '\0') continue;
        st = run_line(&replay, line, err);
        line_count++;
    }
    if (st) st = pd_error_context(err, st, "line %" PRIu64 " of the trace", line_count);
    replay_deinit(&replay);
    free(copy);
    if (!st) *ret_line_count = line_count;
    return st;
}
