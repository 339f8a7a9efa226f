/* Where benches of the disk work: a directory of their own on a real disk, gone at the end whatever happened, and the
 * options they share. */
#pragma once

#include "ckpt/io/vfs.h"
#include "tools/bench/bench.h"
#include "tools/command.h"
#include "trainer/config/config.h"

struct pd_bench_options {
    const char *dir;       /* the room is made inside; "." by default */
    uint64_t bytes, pairs; /* defaults are the caller's */
    bool json;
    uint64_t threads;        /* of offload */
    uint64_t every;          /* of ckpt, with what follows: 0, no run but one save after the other */
    unsigned state_in_files; /* --state: 0 memory, 1 nvme */
    enum pd_device_choice device;
    uint64_t steps, flush_ms; /* 0: not given */
};

/* clang-format off */
#define PD_BENCH_ROOM_OPTIONS(o)                                                                                       \
    {.name = "dir", "DIR", "where files of the bench live while it runs (.)", PD_OPTION_TEXT, &(o)->dir},               \
    {.name = "bytes", "N", "bytes of one file, 32M or more: 512M, 2G", PD_OPTION_BYTES, &(o)->bytes,                    \
     UINT64_C(32) << 20, UINT64_C(1) << 46, "32M or more, such as 512M or 2G"},                                        \
    {.name = "pairs", "N", "alternated pairs of measurements, 1 to 99", PD_OPTION_U64, &(o)->pairs, 1, PD_BENCH_PAIRS_MAX}
/* clang-format on */

struct pd_bench_room {
    struct pd_vfs *vfs;
    char path[3072];
};

/* Signals that ask to leave are caught from here on, so that gigabytes do not stay behind.
 *   on_disk  a `dir` in memory, which measures no disk, is refused (PD_INVALID)
 *   errors   PD_NO_SPACE: fewer than `bytes` are free */
PD_MUST_USE pd_status pd_bench_room_open(const char *dir, uint64_t bytes, bool on_disk, struct pd_bench_room *ret_room,
                                         struct pd_error *err);
/* Removes everything in it. */
void pd_bench_room_close(struct pd_bench_room *room);
/* ret_path has room for 4096 bytes. */
void pd_bench_room_path(const struct pd_bench_room *room, const char *name, char *ret_path);
/* Removes `name` and all below; nothing there is fine. */
PD_MUST_USE pd_status pd_bench_room_remove(const struct pd_bench_room *room, const char *name, struct pd_error *err);
/* Call before each measurement: what was written or deleted before must not be paid by it.
 *   errors  PD_STOPPED: a signal asked to leave */
PD_MUST_USE pd_status pd_bench_room_settle(const struct pd_bench_room *room, struct pd_error *err);

/* Whether a signal asked to leave, for an engine's should_leave: pd_bench_room_settle then says so. */
bool pd_bench_should_leave(void);

/* bench ckpt --every: tools/bench/every.c. */
PD_MUST_USE pd_status pd_bench_every(const struct pd_bench_options *options, struct pd_error *err);
