/* One thread reads and converts bands of tensors; the caller's hashes and writes them. I/O is asynchronous in both. */
#include "resharder/convert/export.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/words.h"
#include "ckpt/shard/staging.h"
#include "resharder/catalog/catalog.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/convert/export_tasks.h"
#include "resharder/convert/handoff.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUTPUT_SLOTS 8u
#define OUTPUT_SLOT_BYTES (UINT64_C(2) << 20)

struct output {
    struct pd_vfs *vfs;
    const struct pd_catalog *wanted; /* owns the files */
    struct pd_queue *queue;
    struct pd_shard_staging staging; /* of the open file */
    void *buffers;                   /* (buffer_bytes) */
    uint64_t buffer_bytes, at;       /* at: end of the written bytes */
    struct pd_file *file;
    uint32_t number; /* of the open file */
};

/* buffers (OUTPUT_SLOTS * OUTPUT_SLOT_BYTES) on PD_VFS_ALIGN, borrowed. */
static pd_status output_open(struct pd_vfs *vfs, const struct pd_catalog *wanted, void *buffers, struct output *ret_output,
                             struct pd_error *err)
{
    *ret_output = (struct output){.vfs = vfs, .wanted = wanted, .buffers = buffers, .number = UINT32_MAX};
    uint64_t bytes = OUTPUT_SLOT_BYTES;
    for (uint32_t f = 0; f < wanted->file_count; f++)
        bytes += wanted->files[f].bytes;
    /* Uses no more memory than needed: touching it for the first time is slow. */
    ret_output->buffer_bytes = pd_min_u64(bytes / OUTPUT_SLOT_BYTES, OUTPUT_SLOTS) * OUTPUT_SLOT_BYTES;
    return pd_queue_open(vfs, buffers, ret_output->buffer_bytes, &ret_output->queue, err);
}

/* Writes whole pages, then truncates the file. */
static pd_status end_file(struct output *o, pd_status st, struct pd_error *err)
{
    if (!o->file) return st;
    const uint64_t bytes = o->wanted->files[o->number].bytes;
    struct pd_file *file = o->file;
    if (!st) st = pd_shard_staging_put(&o->staging, o->at, NULL, pd_round_up(bytes, PD_VFS_ALIGN) - o->at, err);
    st = pd_shard_staging_finish(&o->staging, st, err);
    if (!st) st = pd_file_truncate(file, bytes, err);
    o->file = NULL;
    const pd_status closed = pd_file_close(file, st ? NULL : err);
    return st ? st : closed;
}

/* Writes at ascending offsets of a file; a file left for another is not written again. */
static pd_status output_write(struct output *o, uint32_t file, uint64_t offset, const void *data, uint64_t bytes,
                              struct pd_error *err)
{
    if (file != o->number) {
        PD_TRY(end_file(o, PD_OK, err));
        o->number = file;
        o->at = 0;
        const unsigned flags = PD_OPEN_WRITE | PD_OPEN_CREATE | PD_OPEN_EXCLUSIVE | PD_OPEN_DIRECT;
        PD_TRY(pd_file_open(o->vfs, o->wanted->files[file].path, flags, &o->file, err));
        pd_shard_staging_init(&o->staging, o->file, o->queue, o->buffers, o->buffer_bytes, OUTPUT_SLOT_BYTES);
        pd_status st = pd_file_preallocate(o->file, o->wanted->files[file].bytes, err);
        PD_TRY(st == PD_UNSUPPORTED ? PD_OK : st);
    }
    PD_CHECK(offset >= o->at && offset + bytes <= o->wanted->files[file].bytes);
    PD_TRY(pd_shard_staging_put(&o->staging, o->at, NULL, offset - o->at, err));
    o->at = offset + bytes;
    return pd_shard_staging_put(&o->staging, offset, data, bytes, err);
}

/* Closes the open file, even after failures. Syncs nothing. */
static pd_status output_close(struct output *o, pd_status mine, struct pd_error *err)
{
    const pd_status st = end_file(o, mine, err);
    pd_queue_close(o->queue);
    return st;
}

#define READER_BYTES (UINT64_C(48) << 20)
#define DEPTH_MAX 5 /* nested directories: a tag, zero, a parameter */
#define OUTPUT_BYTES (OUTPUT_SLOTS * OUTPUT_SLOT_BYTES)
#define BANDS 3u
#define STORED_BYTES (UINT64_C(1) << 20) /* stays in the cache between conversion, digest and copy */

_Static_assert(READER_BYTES + OUTPUT_BYTES + (BANDS + 1) * PD_EXPORT_BAND_BYTES + STORED_BYTES <= PD_EXPORT_BUFFER_BYTES,
               "what is cut from it");

struct pd_export {
    struct pd_vfs *vfs;
    const struct pd_format *format;
    struct pd_catalog *wanted;
    struct pd_format_plan plan; /* borrowed by the writer until its finish */
    void *state;                /* private to the writer; NULL once it has finished */
    char destination[PD_FORMATS_PATH_MAX], directory[PD_FORMATS_PATH_MAX], lock_path[PD_FORMATS_PATH_MAX];
    struct pd_lock *lock;             /* NULL: the file system has no locks */
    bool is_mine;                     /* this process created the directory */
    struct pd_digest_stream *digests; /* (pieces) of the written bytes */
};

/* ---- directories ---- */

/* Ignores file systems that cannot. */
static pd_status sync_directory(struct pd_vfs *vfs, const char *directory, struct pd_error *err)
{
    const pd_status st = pd_vfs_sync_dir(vfs, directory, err);
    return st == PD_UNSUPPORTED ? PD_OK : st;
}

/* Syncs `directory` and those inside, innermost first. */
static pd_status sync_tree(struct pd_vfs *vfs, const char *directory, int depth, struct pd_error *err)
{
    struct pd_listing listing;
    char path[PD_FORMATS_PATH_MAX];
    if (!depth) PD_FAIL(err, PD_INVALID, "%s: no export makes directories nested as deeply as this", directory);
    PD_TRY(pd_vfs_list(vfs, directory, &listing, err));
    pd_status st = PD_OK;
    for (uint32_t i = 0; !st && i < listing.count; i++) {
        st = pd_formats_path(directory, listing.names[i], path, err);
        if (!st && pd_formats_is_directory(vfs, path)) st = sync_tree(vfs, path, depth - 1, err);
    }
    pd_listing_deinit(&listing);
    return st ? st : sync_directory(vfs, directory, err);
}

static pd_status clear_directory(struct pd_vfs *vfs, const char *directory, struct pd_error *err)
{
    const pd_status st = pd_vfs_remove_tree(vfs, directory, DEPTH_MAX, err);
    return st == PD_NOT_FOUND ? PD_OK : st;
}

static pd_status sync_parent(struct pd_export *e, struct pd_error *err)
{
    char parent[PD_FORMATS_PATH_MAX];
    snprintf(parent, sizeof parent, "%s", e->destination);
    char *slash = strrchr(parent, '/');
    if (!slash) return sync_directory(e->vfs, ".", err);
    slash[slash == parent] = '\0';
    return sync_directory(e->vfs, parent, err);
}

static pd_status name_directories(struct pd_export *e, const char *destination, struct pd_error *err)
{
    size_t bytes = strlen(destination);
    while (bytes > 1 && destination[bytes - 1] == '/')
        bytes--;
    if (!bytes || bytes + sizeof ".exporting.lock" > sizeof e->directory)
        PD_FAIL(err, PD_INVALID, "\"%.200s\" is not a path to export to", destination);
    snprintf(e->destination, sizeof e->destination, "%.*s", (int)bytes, destination);
    snprintf(e->directory, sizeof e->directory, "%.*s.exporting", (int)bytes, destination);
    snprintf(e->lock_path, sizeof e->lock_path, "%.*s.exporting.lock", (int)bytes, destination);
    return PD_OK;
}

/* The lock ends with the process; a lock file left by a killed process locks nothing. */
static pd_status lock_directory(struct pd_export *e, struct pd_error *err)
{
    const pd_status st = pd_vfs_lock(e->vfs, e->lock_path, &e->lock, err);
    if (st == PD_BUSY)
        PD_FAIL(err, st, "another process is exporting to %s; wait until it ends, or name another place", e->destination);
    if (st && st != PD_UNSUPPORTED) return pd_formats_explain_above(st, e->destination, err);
    e->is_mine = true;
    return PD_OK;
}

/* ---- begin and end ---- */

static pd_status export_check_space(struct pd_export *e, struct pd_error *err)
{
    struct pd_space space;
    uint64_t bytes = 0;
    for (uint32_t f = 0; f < e->wanted->file_count; f++)
        bytes += e->wanted->files[f].bytes;
    PD_TRY(pd_vfs_space(e->vfs, e->directory, &space, err));
    if (space.available_bytes >= bytes) return PD_OK;
    PD_FAIL(err, PD_NO_SPACE,
            "%s needs %.1f MiB, and %.1f are free there; free some space, or name a place on another drive", e->destination,
            (double)bytes / 0x1p20, (double)space.available_bytes / 0x1p20);
}

static pd_status plan(struct pd_export *e, struct pd_error *err)
{
    PD_TRY(lock_directory(e, err));
    struct pd_stat stat;
    char target[4096]; /* a dangling link counts as existing */
    if (!pd_vfs_stat(e->vfs, e->destination, &stat, NULL) || !pd_vfs_readlink(e->vfs, e->destination, target, NULL))
        PD_FAIL(err, PD_USAGE, "%s exists already; name a %s that does not exist yet", e->destination,
                e->format->file ? "file" : "directory");
    PD_TRY(clear_directory(e->vfs, e->directory, err));
    PD_TRY(pd_vfs_mkdir(e->vfs, e->directory, err));
    PD_TRY(e->format->plan(e->vfs, &e->plan, &e->state, err));
    PD_TRY(pd_catalog_finish(e->wanted, err));
    PD_TRY(export_check_space(e, err));
    e->digests = aligned_alloc(_Alignof(struct pd_digest_stream), (e->wanted->piece_count + 1) * sizeof *e->digests);
    if (!e->digests) PD_FAIL(err, PD_NO_MEMORY, "no memory for digests of %" PRIu64 " pieces", e->wanted->piece_count);
    for (uint64_t p = 0; p < e->wanted->piece_count; p++)
        pd_digest_stream_init(&e->digests[p], 0);
    return PD_OK;
}

pd_status pd_export_begin(struct pd_vfs *vfs, const struct pd_format *format, struct pd_catalog *wanted,
                          const char *destination, uint64_t shard_bytes_max, struct pd_export **ret_export,
                          struct pd_error *err)
{
    struct pd_export *e = calloc(1, sizeof *e);
    if (!e) PD_FAIL(err, PD_NO_MEMORY, "no memory to export");
    *e = (struct pd_export){.vfs = vfs, .format = format, .wanted = wanted};
    e->plan = (struct pd_format_plan){.directory = e->directory, .wanted = wanted, .shard_bytes_max = shard_bytes_max};
    pd_status st = name_directories(e, destination, err);
    if (st) {
        free(e);
        return st;
    }
    st = plan(e, err);
    if (st) return pd_export_end(e, st, err);
    *ret_export = e;
    return PD_OK;
}

/* Path of what becomes the destination, which the format reads. */
static pd_status path_of(const struct pd_export *e, char ret_path[PD_FORMATS_PATH_MAX], struct pd_error *err)
{
    if (e->format->file) return pd_formats_path(e->directory, e->format->file, ret_path, err);
    memcpy(ret_path, e->directory, PD_FORMATS_PATH_MAX);
    return PD_OK;
}

/* Removes what was written. After PD_STOPPED *err speaks only of the stop. */
static void remove_written(const struct pd_export *e, pd_status st, struct pd_error *err)
{
    struct pd_error why = {0};
    if (!e->is_mine) return;
    const pd_status removed = clear_directory(e->vfs, e->directory, &why);
    if (st == PD_STOPPED) (void)pd_error_set(err, PD_STOPPED, PD_WHERE, 0, "asked to leave");
    if (removed)
        pd_error_append(err, "; the unfinished output stays in %s, and the next export to %s removes it: %s", e->directory,
                        e->destination, why.message);
    else if (st == PD_STOPPED)
        pd_error_append(err, ": what was written of %s is removed", e->destination);
}

pd_status pd_export_end(struct pd_export *e, pd_status mine, struct pd_error *err)
{
    char path[PD_FORMATS_PATH_MAX];
    pd_status st = mine;
    if (e->state) (void)e->format->finish(e->state, PD_STOPPED, NULL);
    if (!st) st = path_of(e, path, err);
    if (!st) st = pd_vfs_rename(e->vfs, path, e->destination, err);
    if (st)
        remove_written(e, st, err);
    else if (e->format->file)
        (void)clear_directory(e->vfs, e->directory, NULL);
    if (e->lock) (void)!pd_vfs_unlink(e->vfs, e->lock_path, NULL); /* while holding it: nobody else's */
    pd_vfs_unlock(e->lock);
    if (!st) st = sync_parent(e, err);
    free(e->digests);
    free(e);
    return st;
}

/* ---- filling ---- */

struct band {
    float *data; /* (PD_EXPORT_BAND_BYTES) */
    struct export_fill fill;
};

struct filling {
    struct pd_export *e;
    const struct pd_export_request *request;
    struct band bands[BANDS];
    struct handoff handoff; /* of bands */

    /* used by the thread while it runs */
    struct export_tasks tasks;
    float *part; /* (PD_EXPORT_BAND_BYTES) */

    /* used by the caller */
    struct output output;
    unsigned char *stored; /* (STORED_BYTES) part of a band in the file's format */
    uint64_t done, total;
};

static pd_status fill_part(struct filling *f, struct pd_reader *reader, const struct pd_read_task *task, float *band,
                           const struct export_fill *fill, struct pd_error *err)
{
    const uint64_t elements = pd_view_elements(&task->view);
    uint64_t export_run = elements;
    const uint64_t at = pd_view_run(&fill->to, 0, &export_run);
    if (export_run == elements) return pd_reader_read(reader, task->tensor, &task->view, band + (at - fill->low), err);
    PD_TRY(pd_reader_read(reader, task->tensor, &task->view, f->part, err));
    for (uint64_t done = 0; done < elements; done += export_run) {
        export_run = elements - done;
        const uint64_t to = pd_view_run(&fill->to, done, &export_run);
        memcpy(band + (to - fill->low), f->part + done, export_run * sizeof(float));
    }
    return PD_OK;
}

/* Runs until all is read, or the caller stops taking bands. */
static pd_status read_bands(void *context, struct pd_reader *reader, struct pd_error *err)
{
    struct filling *f = context;
    struct pd_read_line line;
    struct pd_read_task task;
    uint32_t band = 0;
    pd_read_line_init(&line, reader, export_tasks_next, &f->tasks);
    for (;;) {
        bool has_one = false;
        PD_TRY(pd_read_line_take(&line, &task, &has_one, err));
        if (!has_one) return PD_OK;
        const struct export_fill *fill = export_tasks_fill(&f->tasks, &task);
        if (fill->is_first && !handoff_free(&f->handoff, &band)) return PD_OK;
        struct band *b = &f->bands[band];
        b->fill = *fill;
        const bool is_all = task.tensor != PD_READ_NOTHING && pd_view_elements(&task.view) == fill->high - fill->low;
        if (fill->is_first && !is_all) memset(b->data, 0, (fill->high - fill->low) * sizeof(float));
        if (task.tensor != PD_READ_NOTHING) PD_TRY(fill_part(f, reader, &task, b->data, fill, err));
        if (fill->is_last) handoff_fill(&f->handoff);
    }
}

static pd_status write_band(struct filling *f, const struct band *band, struct pd_error *err)
{
    struct pd_export *e = f->e;
    const struct export_fill *fill = &band->fill;
    const uint32_t tensor = f->tasks.tensor_of[fill->piece];
    const struct pd_element_row *element = &pd_elements[e->wanted->tensors[tensor].element];
    const struct pd_piece *piece = &e->wanted->pieces[fill->piece];
    const uint64_t blocks = (fill->high - fill->low) / element->block_elements,
                   per_read = STORED_BYTES / (sizeof(float) * element->block_elements);
    const uint64_t before = (fill->low - export_tasks_low(&f->tasks, fill->piece)) / element->block_elements;
    for (uint64_t done = 0; done < blocks; done += per_read) {
        const uint64_t n = blocks - done < per_read ? blocks - done : per_read, bytes = n * element->block_bytes;
        const float *values = band->data + done * element->block_elements;
        const bool is_as_stored = element == &pd_elements[PD_ELEMENT_F32];
        const void *stored = is_as_stored ? (const void *)values : f->stored;
        if (!is_as_stored) element->from_f32(values, n, f->stored);
        e->format->observe(e->state, tensor, stored, bytes);
        pd_digest_stream_add(&e->digests[fill->piece], stored, bytes);
        PD_TRY(output_write(&f->output, piece->file, piece->offset + (before + done) * element->block_bytes, stored, bytes,
                            err));
        f->done += bytes;
    }
    if (f->request->progress) f->request->progress(f->request->context, f->done, f->total);
    return PD_OK;
}

static pd_status write_bands(struct filling *f, struct pd_error *err)
{
    uint32_t band = 0;
    bool has_one = false;
    for (;;) {
        PD_TRY(handoff_next(&f->handoff, &band, &has_one, err));
        if (!has_one) return PD_OK;
        PD_TRY(pd_stop_check(f->request->should_stop, "export.write.band", err));
        PD_TRY(write_band(f, &f->bands[band], err));
    }
}

/* ---- verification ---- */

/* Also sets the size of files without tensors. */
static pd_status sync_files(struct pd_export *e, pd_should_stop should_stop, struct pd_error *err)
{
    for (uint32_t n = 0; n < e->wanted->file_count; n++) {
        struct pd_file *file = NULL;
        PD_TRY(pd_stop_check(should_stop, "export.sync.file", err));
        PD_TRY(pd_file_open(e->vfs, e->wanted->files[n].path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
        pd_status st = pd_file_truncate(file, e->wanted->files[n].bytes, err);
        if (!st) st = pd_file_sync(file, err);
        const pd_status closed = pd_file_close(file, st ? NULL : err);
        if (st || closed) return st ? st : closed;
    }
    return sync_tree(e->vfs, e->directory, DEPTH_MAX, err);
}

static bool is_alike(const struct pd_foreign_tensor *a, const struct pd_foreign_tensor *b)
{
    return a->element == b->element && a->ndim == b->ndim && a->piece_count == b->piece_count &&
           !memcmp(a->shape, b->shape, sizeof a->shape);
}

/* A piece that was written, and the tensor that the format's reader found for it. */
struct pair {
    uint64_t mine, there;
    uint32_t tensor; /* in the reader's catalog */
};

struct comparing {
    struct pd_export *e;
    const struct pd_catalog *there;
    struct pd_reader *reader;
    pd_should_stop should_stop;
    struct pair *pairs;    /* (count) */
    uint64_t count, ahead; /* pieces before `ahead` are in flight */
};

static pd_status pair_up(struct comparing *c, struct pd_error *err)
{
    const struct pd_catalog *wanted = c->e->wanted;
    for (uint32_t t = 0; t < wanted->tensor_count; t++) {
        const struct pd_foreign_tensor *mine = &wanted->tensors[t];
        const int64_t found = pd_catalog_find(c->there, mine->name, mine->kind);
        if (found < 0 || !is_alike(mine, &c->there->tensors[found]))
            PD_FAIL(err, PD_CORRUPT, "%s: %s of tensor %s does not read back as it was planned", c->e->directory,
                    pd_kind_name(mine->kind), mine->name);
        for (uint64_t p = 0; p < mine->piece_count; p++)
            c->pairs[c->count++] = (struct pair){
                .mine = mine->piece_begin + p, .there = c->there->tensors[found].piece_begin + p, .tensor = (uint32_t)found};
    }
    return PD_OK;
}

static pd_status compare_pair(struct comparing *c, const struct pair *pair, struct pd_error *err)
{
    const struct pd_foreign_tensor *foreign = &c->there->tensors[pair->tensor];
    const struct pd_piece *piece = &c->there->pieces[pair->there];
    const uint64_t bytes = pd_piece_bytes(foreign, piece);
    struct pd_digest_stream digest;
    pd_digest_stream_init(&digest, 0);
    for (uint64_t done = 0; done < bytes;) {
        const void *data = NULL;
        uint64_t n = 0;
        PD_TRY(pd_stop_check(c->should_stop, "export.read_back.piece", err));
        PD_TRY(pd_reader_stored(c->reader, pair->tensor, pair->there, done, &data, &n, err));
        pd_digest_stream_add(&digest, data, n);
        done += n;
        for (bool fits = true; fits && c->ahead < c->count; c->ahead += fits)
            PD_TRY(pd_reader_expect_stored(c->reader, c->pairs[c->ahead].tensor, c->pairs[c->ahead].there, &fits, err));
    }
    if (pd_digest_stream_value(&digest) == pd_digest_stream_value(&c->e->digests[pair->mine])) return PD_OK;
    PD_FAIL(err, PD_CORRUPT, "%s: tensor %s differs from what was written", c->there->files[piece->file].path,
            foreign->name);
}

static pd_status export_compare(struct pd_export *e, struct pd_reader *reader, const struct pd_catalog *there,
                                pd_should_stop should_stop, struct pd_error *err)
{
    struct comparing c = {.e = e, .there = there, .reader = reader, .should_stop = should_stop};
    c.pairs = malloc((e->wanted->piece_count + 1) * sizeof *c.pairs);
    if (!c.pairs) PD_FAIL(err, PD_NO_MEMORY, "no memory for %" PRIu64 " pieces", e->wanted->piece_count);
    pd_status st = pair_up(&c, err);
    for (uint64_t i = 0; i < c.count && !st; i++) {
        if (c.ahead <= i) c.ahead = i + 1;
        st = compare_pair(&c, &c.pairs[i], err);
    }
    free(c.pairs);
    return st;
}

static pd_status read_back(struct pd_export *e, const struct pd_export_request *request, uint64_t *ret_bytes,
                           struct pd_error *err)
{
    struct pd_catalog there;
    struct pd_reader *reader = NULL;
    char path[PD_FORMATS_PATH_MAX];
    PD_TRY(path_of(e, path, err));
    pd_catalog_init(&there, e->format->name);
    pd_status st = e->format->read(e->vfs, path, &there, err);
    if (!st) st = pd_catalog_finish(&there, err);
    if (!st) st = pd_reader_open(e->vfs, &there, request->buffers, READER_BYTES, &reader, err);
    if (!st) st = export_compare(e, reader, &there, request->should_stop, err);
    if (reader) *ret_bytes = pd_reader_bytes(reader);
    pd_reader_close(reader);
    pd_catalog_deinit(&there);
    return st ? pd_error_context(err, st, "reading back what was written") : PD_OK;
}

static pd_status export_run(struct filling *f, struct pd_export_report *report, struct pd_error *err)
{
    unsigned char *memory = f->request->buffers;
    f->handoff = (struct handoff){.vfs = f->e->vfs,
                                  .catalog = f->request->catalog,
                                  .buffers = memory,
                                  .buffer_bytes = READER_BYTES,
                                  .read = read_bands,
                                  .context = f,
                                  .slots = BANDS};
    memory += READER_BYTES;
    PD_TRY(output_open(f->e->vfs, f->e->wanted, memory, &f->output, err));
    memory += OUTPUT_BYTES;
    for (uint32_t i = 0; i < BANDS; i++, memory += PD_EXPORT_BAND_BYTES)
        f->bands[i].data = (float *)(void *)memory;
    f->part = (float *)(void *)memory;
    f->stored = memory + PD_EXPORT_BAND_BYTES;
    pd_status st = handoff_start(&f->handoff, err);
    if (!st) st = write_bands(f, err);
    handoff_stop(&f->handoff);
    PD_TRY(output_close(&f->output, st, err));
    struct pd_export *e = f->e;
    void *state = e->state;
    e->state = NULL;
    PD_TRY(e->format->finish(state, PD_OK, err));
    PD_TRY(sync_files(f->e, f->request->should_stop, err));
    report->bytes_read = f->handoff.bytes_read;
    report->files = f->e->wanted->file_count;
    report->tensors = f->e->wanted->tensor_count;
    report->bytes_written = f->total;
    return read_back(f->e, f->request, &report->bytes_read_back, err);
}

pd_status pd_export_run(struct pd_export *e, const struct pd_export_request *request, struct pd_export_report *ret_report,
                        struct pd_error *err)
{
    struct pd_export_report report = {0};
    struct filling *f = calloc(1, sizeof *f);
    if (!f) PD_FAIL(err, PD_NO_MEMORY, "no memory to export");
    f->e = e;
    f->request = request;
    for (uint32_t t = 0; t < e->wanted->tensor_count; t++)
        f->total += pd_foreign_bytes(&e->wanted->tensors[t]);
    pd_status st = export_tasks_init(&f->tasks, e->wanted, request, err);
    if (!st) st = export_run(f, &report, err);
    export_tasks_deinit(&f->tasks);
    free(f);
    if (!st && ret_report) *ret_report = report;
    return st;
}
