/* Where benches of the disk work: a directory of their own on a real disk, gone at the end whatever happened, and the
 * options they share. */
#ifndef PD_TOOLS_BENCH_ROOM_H
#define PD_TOOLS_BENCH_ROOM_H

#include "ckpt/io/vfs.h"
#include "trainer/config/config.h"

struct pd_bench_options {
    const char *dir;       /* the room is made inside; "." by default */
    uint64_t bytes, pairs; /* defaults are the caller's */
    uint64_t threads;      /* 0: not an option of this bench */
    const char
        *every_doc; /* of --every, and with it --state, --steps, --flush-ms, --device; NULL: no options of this bench */
    uint64_t every;
    bool state_in_files; /* --state nvme */
    enum pd_device_choice device;
    uint64_t steps, flush_ms;    /* 0: not given */
    const char *compression_doc; /* of --compression, and with it --from; NULL: no options of this bench */
    const char *compression, *from;
    bool json;
};

/* --dir, --bytes, --pairs, --threads, --every and its own, --compression, --from, --json, --help. `program_doc` is what
 * --help says first.   errors  PD_USAGE */
PD_MUST_USE pd_status pd_bench_parse(const char *program_doc, int argc, char **argv, struct pd_bench_options *options,
                                     bool *ret_done, struct pd_error *err);

struct pd_bench_room {
    struct pd_vfs *vfs;
    char path[3072];
};

/* Signals that ask to leave are caught from here on, so that gigabytes do not stay behind.
 *   errors  PD_NO_SPACE: fewer than `bytes` are free; PD_INVALID: `dir` is in memory and measures no disk */
PD_MUST_USE pd_status pd_bench_room_open(const char *dir, uint64_t bytes, struct pd_bench_room *ret_room,
                                         struct pd_error *err);
/* The same, in memory too. */
PD_MUST_USE pd_status pd_bench_room_open_anywhere(const char *dir, uint64_t bytes, struct pd_bench_room *ret_room,
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

#endif
