/* perdure bench convert: `ckpt import` and `ckpt export` against raw direct I/O. Each command runs in a process of its own, so
 * that its largest resident memory is its alone. The raw side writes as much as the command wrote, reads the files that it
 * read, and reads back what it wrote itself: bytes that are verified are bytes read. */
#include "ckpt/base/clock.h"
#include "tools/bench/bench.h"
#include "tools/bench/raw_bench.h"
#include "trainer/model/hugging_face.h"
#include "trainer/model/links.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define FILL_ELEMENTS (UINT64_C(1) << 19)
#define LOOK_NS UINT64_C(1000000) /* at a command that is measured in seconds */

extern char **environ;

/* One direction. */
struct conversion {
    struct pd_pairs pairs;
    uint64_t bytes_read, bytes_written, bytes_read_back; /* by the command */
};

struct convert_bench {
    struct pd_bench_options options;
    const char *format;
    struct pd_bench_room room;
    struct pd_model *model;
    struct pd_raw_bench *raw;
    char source[4096], ours[4096], target[4096], said[4096], errors[4096];
    struct conversion imports, exports;
    uint64_t peak_rss_bytes;
};

/* ---- weights as safetensors, made without ever holding them ---- */

static pd_status make_header(const struct pd_catalog *c, struct pd_json_writer *w, const char **ret_text, size_t *ret_bytes,
                             struct pd_error *err)
{
    uint64_t at = 0;
    pd_json_object_begin(w, NULL);
    for (uint32_t t = 0; t < c->tensor_count; t++) {
        const struct pd_foreign_tensor *tensor = &c->tensors[t];
        uint64_t bytes = sizeof(float);
        pd_json_object_begin(w, tensor->name);
        pd_json_string(w, "dtype", "F32");
        pd_json_array_begin(w, "shape");
        for (uint32_t d = 0; d < tensor->ndim; d++) {
            pd_json_u64(w, NULL, tensor->shape[d]);
            bytes *= tensor->shape[d];
        }
        pd_json_array_end(w);
        pd_json_array_begin(w, "data_offsets");
        pd_json_u64(w, NULL, at);
        pd_json_u64(w, NULL, at += bytes);
        pd_json_array_end(w);
        pd_json_object_end(w);
    }
    return pd_json_writer_finish(w, ret_text, ret_bytes, err);
}

static pd_status write_weights(const struct convert_bench *b, const char *path, const char *header, uint64_t header_bytes,
                               struct pd_error *err)
{
    FILE *file = fopen(path, "we");
    float *numbers = malloc(FILL_ELEMENTS * sizeof *numbers);
    if (!file || !numbers) {
        free(numbers);
        if (file) fclose(file);
        PD_FAIL(err, file ? PD_NO_MEMORY : PD_IO, "%s cannot be written", path);
    }
    (void)fwrite(&header_bytes, sizeof header_bytes, 1, file);
    (void)fwrite(header, 1, header_bytes, file);
    for (uint64_t left = b->model->parameter_count, seed = 1; left; seed++) {
        const uint64_t count = left < FILL_ELEMENTS ? left : FILL_ELEMENTS;
        pd_bench_fill(numbers, count, seed);
        (void)fwrite(numbers, sizeof *numbers, count, file);
        left -= count;
    }
    free(numbers);
    const bool failed = ferror(file);
    if (fclose(file) || failed) PD_FAIL_ERRNO(err, errno, "writing %s", path);
    return PD_OK;
}

static pd_status make_weights(struct convert_bench *b, struct pd_error *err)
{
    struct pd_catalog catalog;
    struct pd_json_writer w;
    const char *header = NULL;
    size_t header_bytes = 0;
    char path[4096 + 32];
    PD_TRY(pd_bench_model_of_bytes(b->options.bytes * PD_KIND_COUNT, &b->model, err));
    PD_TRY(pd_vfs_mkdir(b->room.vfs, b->source, err));
    snprintf(path, sizeof path, "%s/config.json", b->source);
    char *config = NULL, *generation = NULL;
    PD_TRY(pd_hugging_face_write(&b->model->config, PD_F32, NULL, &config, &generation, err));
    FILE *file = fopen(path, "we");
    const bool failed = !file || fputs(config, file) < 0;
    free(config);
    free(generation);
    if ((file && fclose(file)) || failed) PD_FAIL_ERRNO(err, errno, "writing %s", path);
    pd_catalog_init(&catalog, "safetensors");
    pd_json_writer_init(&w, 0);
    pd_status st = pd_model_foreign(b->model, "hugging_face", PD_ELEMENT_F32, false, &catalog, err);
    if (!st) st = make_header(&catalog, &w, &header, &header_bytes, err);
    snprintf(path, sizeof path, "%s/model.safetensors", b->source);
    if (!st) st = write_weights(b, path, header, header_bytes, err);
    pd_json_writer_deinit(&w);
    pd_catalog_deinit(&catalog);
    return st;
}

/* ---- the command ---- */

static pd_status read_text(const char *path, char *text, size_t room, struct pd_error *err)
{
    FILE *file = fopen(path, "re");
    if (!file) PD_FAIL_ERRNO(err, errno, "reading %s", path);
    text[fread(text, 1, room - 1, file)] = '\0';
    fclose(file);
    return PD_OK;
}

static pd_status spawn(const struct convert_bench *b, const char *const *arguments, struct rusage *ret_usage,
                       struct pd_error *err)
{
    posix_spawn_file_actions_t actions;
    char text[1024] = "";
    pid_t pid = 0;
    int status = -1;
    if (posix_spawn_file_actions_init(&actions)) PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for a process");
    int failed = posix_spawn_file_actions_addopen(&actions, 1, b->said, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (!failed) failed = posix_spawn_file_actions_addopen(&actions, 2, b->errors, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (!failed) failed = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, (char *const *)arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) PD_FAIL_ERRNO(err, failed, "starting perdure ckpt %s", arguments[2]);
    for (bool is_told = false; wait4(pid, &status, WNOHANG, ret_usage) == 0; pd_clock_sleep_ns(NULL, LOOK_NS)) {
        if (!is_told && pd_bench_should_leave()) is_told = kill(pid, SIGTERM) == 0;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return PD_OK;
    if (pd_bench_should_leave()) PD_FAIL(err, PD_STOPPED, "bench: asked to leave, its files are removed");
    PD_TRY(read_text(b->errors, text, sizeof text, err));
    PD_FAIL(err, PD_INVALID, "perdure ckpt %s failed: %s", arguments[2], text);
}

/* The command makes "target", which is removed first. */
static pd_status run_command(struct convert_bench *b, const char *const *arguments, struct conversion *c,
                             double *ret_seconds, struct pd_error *err)
{
    struct rusage usage;
    struct pd_json_document *document = NULL;
    char text[4096];
    PD_TRY(pd_bench_room_remove(&b->room, "target", err));
    PD_TRY(pd_bench_room_settle(&b->room, err));
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(spawn(b, arguments, &usage, err));
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    if ((uint64_t)usage.ru_maxrss * 1024 > b->peak_rss_bytes) b->peak_rss_bytes = (uint64_t)usage.ru_maxrss * 1024;
    PD_TRY(read_text(b->said, text, sizeof text, err));
    PD_TRY(pd_json_parse("perdure ckpt --json", text, strlen(text), &document, err));
    const struct pd_json_value *root = pd_json_root(document);
    const bool is_good = pd_json_is_u64(pd_json_member(root, "bytes_read"), &c->bytes_read) &&
                         pd_json_is_u64(pd_json_member(root, "bytes_read_back"), &c->bytes_read_back) &&
                         pd_json_is_u64(pd_json_member(root, "bytes_written"), &c->bytes_written);
    pd_json_document_free(document);
    return is_good ? PD_OK : pd_error_set(err, PD_BUG, PD_WHERE, 0, "bench: ckpt %s does not say its bytes", arguments[2]);
}

static pd_status import(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct convert_bench *b = bench;
    const char *const arguments[] = {"perdure", "ckpt", "import", "--fresh-optimizer", "--json", b->source, b->target, NULL};
    return run_command(b, arguments, &b->imports, ret_seconds, err);
}

static pd_status export_as(struct convert_bench *b, const char *format, double *ret_seconds, struct pd_error *err)
{
    char option[64];
    snprintf(option, sizeof option, "--format=%s", format);
    const char *const arguments[] = {"perdure", "ckpt", "export", option, "--json", b->ours, b->target, NULL};
    return run_command(b, arguments, &b->exports, ret_seconds, err);
}

static pd_status export(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct convert_bench *b = bench;
    return export_as(b, b->format, ret_seconds, err);
}

/* ---- the raw side ---- */

static pd_status read_raw(struct convert_bench *b, const char *path, uint64_t file_bytes, uint64_t *left, double *seconds,
                          struct pd_error *err)
{
    const uint64_t whole = file_bytes / PD_VFS_ALIGN * PD_VFS_ALIGN, bytes = *left < whole ? *left : whole;
    double more = 0;
    if (!bytes) return PD_OK;
    PD_TRY(pd_raw_bench_read(b->raw, path, bytes, &more, err));
    *seconds += more;
    *left -= bytes;
    return PD_OK;
}

/* Up to *left bytes of the files of a directory and of those in it. */
static pd_status read_directory(struct convert_bench *b, const char *directory, uint64_t *left, double *seconds,
                                struct pd_error *err)
{
    struct pd_vfs *vfs = b->room.vfs;
    struct pd_listing listing;
    PD_TRY(pd_vfs_list(vfs, directory, &listing, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; i < listing.count && !st; i++) {
        char path[4096 + 256];
        struct pd_stat stat;
        (void)snprintf(path, sizeof path, "%s/%s", directory, listing.names[i]);
        st = pd_vfs_stat(vfs, path, &stat, err);
        if (!st && stat.type == PD_ENTRY_DIRECTORY)
            st = read_directory(b, path, left, seconds, err);
        else if (!st)
            st = read_raw(b, path, stat.bytes, left, seconds, err);
    }
    pd_listing_deinit(&listing);
    return st;
}

/* What the command read of its source more than once is read of what was written. */
static pd_status move_raw(struct convert_bench *b, const struct conversion *c, const char *source, double *ret_seconds,
                          struct pd_error *err)
{
    char path[4096];
    uint64_t left = c->bytes_read;
    pd_bench_room_path(&b->room, "raw", path);
    PD_TRY(pd_bench_room_remove(&b->room, "raw", err));
    PD_TRY(pd_bench_room_settle(&b->room, err));
    PD_TRY(pd_raw_bench_write(b->raw, path, c->bytes_written, PD_RAW_FRESH, ret_seconds, err));
    PD_TRY(read_directory(b, source, &left, ret_seconds, err));
    for (left += c->bytes_read_back; left >= PD_VFS_ALIGN && c->bytes_written >= PD_VFS_ALIGN;)
        PD_TRY(read_raw(b, path, c->bytes_written, &left, ret_seconds, err));
    return pd_bench_room_remove(&b->room, "raw", err);
}

static pd_status raw_import(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct convert_bench *b = bench;
    return move_raw(b, &b->imports, b->source, ret_seconds, err);
}

static pd_status raw_export(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct convert_bench *b = bench;
    return move_raw(b, &b->exports, b->ours, ret_seconds, err);
}

/* ---- the bench ---- */

static pd_status rename_target(const struct convert_bench *b, const char *to, struct pd_error *err)
{
    if (rename(b->target, to)) PD_FAIL_ERRNO(err, errno, "renaming %s to %s", b->target, to);
    return PD_OK;
}

/* Sources of both directions. A checkpoint of another format than safetensors is an export of ours. */
static pd_status prepare(struct convert_bench *b, struct pd_error *err)
{
    double unused;
    pd_bench_room_path(&b->room, "source", b->source);
    pd_bench_room_path(&b->room, "ours", b->ours);
    pd_bench_room_path(&b->room, "target", b->target);
    pd_bench_room_path(&b->room, "said", b->said);
    pd_bench_room_path(&b->room, "errors", b->errors);
    PD_TRY(pd_raw_bench_new(b->room.vfs, 0, 0, &b->raw, err));
    PD_TRY(make_weights(b, err));
    PD_TRY(import(b, &unused, err));
    PD_TRY(rename_target(b, b->ours, err));
    if (strcmp(b->format, "safetensors") == 0) return PD_OK;
    PD_TRY(export_as(b, b->format, &unused, err));
    PD_TRY(pd_bench_room_remove(&b->room, "source", err));
    return rename_target(b, b->source, err);
}

static void report_conversion(const struct conversion *c, const char *ratio, const char *seconds, const char *bytes,
                              struct pd_report *r)
{
    const struct pd_pairs_summary summary = pd_pairs_summarise(&c->pairs);
    pd_bench_report_ratio(r, ratio, &summary);
    pd_report_double(r, seconds, summary.candidate_s, PD_UNIT_SECONDS);
    pd_report_u64(r, bytes, c->bytes_read + c->bytes_written + c->bytes_read_back, PD_UNIT_BYTES);
}

static pd_status measure_and_report(struct convert_bench *b, struct pd_error *err)
{
    struct pd_report r;
    PD_TRY(prepare(b, err));
    for (uint64_t pair = 0; pair < b->options.pairs; pair++) {
        PD_TRY(pd_pairs_measure(&b->imports.pairs, b, import, raw_import, err));
        PD_TRY(pd_pairs_measure(&b->exports.pairs, b, export, raw_export, err));
    }
    pd_report_begin(&r, b->options.json);
    report_conversion(&b->imports, "import_ratio", "import_seconds", "import_bytes", &r);
    report_conversion(&b->exports, "export_ratio", "export_seconds", "export_bytes", &r);
    pd_report_u64(&r, "peak_rss_bytes", b->peak_rss_bytes, PD_UNIT_BYTES);
    pd_report_text(&r, "format", b->format);
    pd_report_u64(&r, "weight_bytes", b->model->parameter_count * sizeof(float), PD_UNIT_BYTES);
    pd_report_u64(&r, "pairs", b->options.pairs, PD_UNIT_NONE);
    pd_report_text(&r, "engine", pd_vfs_describe(b->room.vfs));
    return pd_report_end(&r, err);
}

pd_status pd_bench_convert(int argc, char **argv, struct pd_error *err)
{
    struct convert_bench b = {.options = {.dir = ".", .bytes = UINT64_C(256) << 20, .pairs = 3}, .format = "safetensors"};
    struct pd_option options[] = {PD_BENCH_ROOM_OPTIONS(&b.options),
                                  PD_OPTION("format", "NAME", "safetensors or dcp (safetensors)", PD_OPTION_TEXT, &b.format,
                                            .expected = "safetensors or dcp"),
                                  {0}};
    const struct pd_usage usage = {.doc = "perdure ckpt import and export of weights of --bytes in fp32, alternated with "
                                          "raw direct writes of as many bytes and reads of the same files. What the "
                                          "commands read back to verify counts as read. import_ratio, export_ratio: "
                                          "seconds of the command / raw. peak_rss_bytes: the largest of the commands.",
                                   .options = options,
                                   .json = &b.options.json};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    PD_TRY(pd_bench_room_open(b.options.dir, 14 * b.options.bytes, true, &b.room, err));
    const pd_status st = measure_and_report(&b, err);
    pd_raw_bench_free(b.raw);
    pd_model_free(b.model);
    pd_bench_room_close(&b.room);
    return st;
}
