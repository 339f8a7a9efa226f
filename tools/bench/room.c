#include "tools/bench/room.h"
#include "ckpt/base/parse.h"
#include "tools/bench/bench.h"
#include "tools/command.h"
#include "tools/output.h"
#include "trainer/run/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- options ---- */

#define BYTES_MIN (UINT64_C(32) << 20)
#define BYTES_MAX (UINT64_C(1) << 46)

enum {
    OPTION_DIR = 0x2001,
    OPTION_BYTES,
    OPTION_PAIRS,
    OPTION_THREADS,
    OPTION_EVERY,
    OPTION_STATE,
    OPTION_DEVICE,
    OPTION_STEPS,
    OPTION_FLUSH_MS,
    OPTION_COMPRESSION,
    OPTION_FROM
};
#define THREADS_MAX 1024u
#define EVERY_MAX 1000u
#define STEPS_MAX 1000u
#define FLUSH_MS_MAX 1000u

struct parsing {
    struct pd_bench_options *options;
    struct pd_error *err;
};

static error_t refuse(struct parsing *p, const char *option, const char *text, const char *expected)
{
    (void)pd_error_set(p->err, PD_USAGE, PD_WHERE, 0, "--%s=%s: expected %s", option, text, expected);
    return EINVAL;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct parsing *p = state->input;
    struct pd_bench_options *o = p->options;
    switch (key) {
    case OPTION_DIR:
        o->dir = argument;
        return 0;
    case OPTION_BYTES:
        if (pd_parse_bytes(argument, &o->bytes) && o->bytes >= BYTES_MIN && o->bytes <= BYTES_MAX) return 0;
        return refuse(p, "bytes", argument, "32M or more, such as 512M or 2G");
    case OPTION_PAIRS:
        if (pd_parse_u64(argument, &o->pairs) && o->pairs >= 1 && o->pairs <= PD_BENCH_PAIRS_MAX) return 0;
        return refuse(p, "pairs", argument, "a number from 1 to 99");
    case OPTION_THREADS:
        if (pd_parse_u64(argument, &o->threads) && o->threads >= 1 && o->threads <= THREADS_MAX) return 0;
        return refuse(p, "threads", argument, "a number from 1 to 1024");
    case OPTION_EVERY:
        if (pd_parse_u64(argument, &o->every) && o->every >= 1 && o->every <= EVERY_MAX) return 0;
        return refuse(p, "every", argument, "a number of steps from 1 to 1000");
    case OPTION_STATE:
        o->state_in_files = strcmp(argument, "nvme") == 0;
        return o->state_in_files || strcmp(argument, "memory") == 0 ? 0 : refuse(p, "state", argument, "memory or nvme");
    case OPTION_DEVICE:
        o->device = strcmp(argument, "gpu") == 0   ? PD_DEVICE_GPU
                    : strcmp(argument, "cpu") == 0 ? PD_DEVICE_CPU
                                                   : PD_DEVICE_AUTO;
        return o->device || strcmp(argument, "auto") == 0 ? 0 : refuse(p, "device", argument, "auto, cpu or gpu");
    case OPTION_STEPS:
        if (pd_parse_u64(argument, &o->steps) && o->steps >= 1 && o->steps <= STEPS_MAX) return 0;
        return refuse(p, "steps", argument, "a number from 1 to 1000");
    case OPTION_FLUSH_MS:
        if (pd_parse_u64(argument, &o->flush_ms) && o->flush_ms <= FLUSH_MS_MAX) return 0;
        return refuse(p, "flush-ms", argument, "milliseconds from 0 to 1000");
    case OPTION_COMPRESSION:
        o->compression = argument;
        return 0;
    case OPTION_FROM:
        o->from = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

pd_status pd_bench_parse(const char *program_doc, int argc, char **argv, struct pd_bench_options *options, bool *ret_done,
                         struct pd_error *err)
{
    const struct argp_option every = {"every", OPTION_EVERY, "N", 0, options->every_doc, 0}, none = {0};
    const struct argp_option compression = {"compression", OPTION_COMPRESSION, "HOW", 0, options->compression_doc, 0};
    const struct argp_option from = {"from", OPTION_FROM, "DIR", 0, "with --compression: state of this checkpoint", 0};
    const struct argp_option state = {"state", OPTION_STATE, "WHERE", 0, "with --every: memory, or nvme", 0};
    const struct argp_option device = {"device", OPTION_DEVICE, "NAME", 0, "with --every: auto, cpu or gpu", 0};
    const struct argp_option steps = {"steps", OPTION_STEPS, "N", 0, "with --state nvme: steps of one measurement", 0};
    const struct argp_option flush = {
        "flush-ms", OPTION_FLUSH_MS, "N", 0, "with --state nvme: every flush takes so much longer (0)", 0};
    const bool compresses = options->compression_doc != NULL;
    const struct argp_option rows[] = {
        {"threads", OPTION_THREADS, "N", 0, "threads that compute (2)", 0},
        {"dir", OPTION_DIR, "DIR", 0, "where files of the bench live while it runs (.)", 0},
        {"bytes", OPTION_BYTES, "N", 0, "bytes of one file, 32M or more: 512M, 2G", 0},
        {"pairs", OPTION_PAIRS, "N", 0, "alternated pairs of measurements, 1 to 99 (7)", 0},
        options->every_doc ? every : none,
        options->every_doc ? state : none, /* only behind --every */
        options->every_doc ? device : none,
        options->every_doc ? steps : none,
        options->every_doc ? flush : none,
        compresses ? compression : none,
        compresses ? from : none,
        none,
    };
    const struct argp argp = {options->threads ? rows : rows + 1, parse, NULL, program_doc, NULL, NULL, NULL};
    struct parsing parsing = {options, err};
    return pd_command_parse(&argp, argc, argv, &parsing, &options->json, ret_done, err);
}

/* ---- the room ---- */

static pd_status check_space(struct pd_vfs *vfs, const char *dir, uint64_t bytes, bool on_disk, struct pd_error *err)
{
    struct pd_space space;
    struct stat st;
    if (stat(dir, &st) || !S_ISDIR(st.st_mode))
        PD_FAIL(err, PD_NOT_FOUND, "--dir=%s: there is no such directory; name one on the disk to be measured", dir);
    PD_TRY(pd_vfs_space(vfs, dir, &space, err));
    if (space.in_memory && on_disk)
        PD_FAIL(err, PD_INVALID, "%s is in memory (%s) and says nothing about a disk: give a directory on one with --dir",
                dir, space.type_name);
    if (space.available_bytes < bytes)
        PD_FAIL(err, PD_NO_SPACE, "%s has %s free and the bench needs %s: give another with --dir, or less with --bytes",
                dir, pd_text_bytes(space.available_bytes).text, pd_text_bytes(bytes).text);
    return PD_OK;
}

static pd_status open_room(const char *dir, uint64_t bytes, bool on_disk, struct pd_bench_room *ret_room,
                           struct pd_error *err)
{
    struct pd_bench_room room = {0};
    int length = snprintf(room.path, sizeof room.path, "%s/perdure-bench-XXXXXX", dir);
    if (length < 0 || (size_t)length >= sizeof room.path) PD_FAIL(err, PD_INVALID, "--dir: the path is too long");
    PD_TRY(pd_signals_install(err));
    PD_TRY(pd_vfs_new_auto(&room.vfs, err));
    pd_status st = check_space(room.vfs, dir, bytes, on_disk, err);
    if (!st && !mkdtemp(room.path)) {
        int number = errno;
        st = pd_error_set(err, pd_status_from_errno(number), PD_WHERE, number, "%s: making a directory for the bench", dir);
    }
    if (st) {
        pd_vfs_free(room.vfs);
        return st;
    }
    *ret_room = room;
    return PD_OK;
}

pd_status pd_bench_room_open(const char *dir, uint64_t bytes, struct pd_bench_room *ret_room, struct pd_error *err)
{
    return open_room(dir, bytes, true, ret_room, err);
}

pd_status pd_bench_room_open_anywhere(const char *dir, uint64_t bytes, struct pd_bench_room *ret_room, struct pd_error *err)
{
    return open_room(dir, bytes, false, ret_room, err);
}

void pd_bench_room_path(const struct pd_bench_room *room, const char *name, char *ret_path)
{
    int length = snprintf(ret_path, 4096, "%s/%s", room->path, name);
    PD_CHECK(length > 0 && length < 4096);
}

static pd_status remove_tree(struct pd_vfs *vfs, const char *path, struct pd_error *err)
{
    struct pd_stat stat;
    struct pd_listing listing;
    pd_status st = pd_vfs_stat(vfs, path, &stat, err);
    if (st) return st == PD_NOT_FOUND ? PD_OK : st;
    if (stat.type != PD_ENTRY_DIRECTORY) return pd_vfs_unlink(vfs, path, err);
    PD_TRY(pd_vfs_list(vfs, path, &listing, err));
    for (uint32_t i = 0; !st && i < listing.count; i++) {
        char below[4096];
        int length = snprintf(below, sizeof below, "%s/%s", path, listing.names[i]);
        PD_CHECK(length > 0 && (size_t)length < sizeof below);
        st = remove_tree(vfs, below, err);
    }
    pd_listing_deinit(&listing);
    return st ? st : pd_vfs_rmdir(vfs, path, err);
}

pd_status pd_bench_room_remove(const struct pd_bench_room *room, const char *name, struct pd_error *err)
{
    char path[4096];
    pd_bench_room_path(room, name, path);
    return remove_tree(room->vfs, path, err);
}

void pd_bench_room_close(struct pd_bench_room *room)
{
    struct pd_error err;
    if (!room->vfs) return;
    if (remove_tree(room->vfs, room->path, &err)) fprintf(stderr, "perdure: %s stays behind: %s\n", room->path, err.message);
    pd_vfs_free(room->vfs);
}

pd_status pd_bench_room_settle(const struct pd_bench_room *room, struct pd_error *err)
{
    if (pd_signals_pending() != PD_SIGNAL_NONE) PD_FAIL(err, PD_STOPPED, "bench: asked to leave, its files are removed");
    int fd = open(room->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) PD_FAIL_ERRNO(err, errno, "%s: opening", room->path);
    int failed = syncfs(fd) ? errno : 0;
    close(fd);
    if (failed) PD_FAIL_ERRNO(err, failed, "%s: waiting for the file system", room->path);
    return PD_OK;
}
