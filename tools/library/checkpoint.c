/* Open checkpoints: what they hold, slices of it, and whether it is whole. */
#include "ckpt/base/checked.h"
#include "ckpt/base/cpu.h"
#include "ckpt/inspect/inspect.h"
#include "resharder/formats/perdure.h"
#include "tools/library/handle.h"
#include "tools/library/listed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 8u
#define PARALLEL_BYTES_MIN (UINT64_C(2) << 20) /* less is read in the calling thread */

/* Whether names are written as pd_listed_name does. */
static bool is_listed(const struct perdure_checkpoint *c)
{
    return c->foreign.format == &pd_format_perdure && !pd_ckpt_foreign_is_run(&c->foreign);
}

static pd_status name_listed(struct perdure_checkpoint *c, struct pd_error *err)
{
    const struct pd_catalog *catalog = &c->foreign.catalog;
    c->names = calloc((size_t)catalog->tensor_count + 1, PD_TENSOR_NAME_MAX);
    if (!c->names) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u names", catalog->tensor_count);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        char *name = c->names + (size_t)i * PD_TENSOR_NAME_MAX;
        snprintf(name, PD_TENSOR_NAME_MAX, "%s", catalog->tensors[i].name);
        pd_listed_text(name);
        c->tensors[i].name = name;
    }
    return PD_OK;
}

static pd_status describe(struct perdure_checkpoint *c, struct pd_error *err)
{
    const struct pd_catalog *catalog = &c->foreign.catalog;
    c->tensors = calloc((size_t)catalog->tensor_count + 1, sizeof *c->tensors);
    if (!c->tensors) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u tensors", catalog->tensor_count);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct pd_foreign_tensor *from = &catalog->tensors[i];
        struct perdure_tensor *t = &c->tensors[i];
        *t = (struct perdure_tensor){.name = from->name,
                                     .kind = (enum perdure_kind)from->kind,
                                     .dtype = pd_library_dtype(from->element),
                                     .ndim = from->ndim,
                                     .bytes = pd_foreign_bytes(from)};
        memcpy(t->shape, from->shape, sizeof t->shape);
        t->has_moments = from->kind == PD_PARAM && pd_catalog_find(catalog, from->name, PD_EXP_AVG) >= 0 &&
                         pd_catalog_find(catalog, from->name, PD_EXP_AVG_SQ) >= 0;
        t->is_bytes = from->is_bytes;
        c->bytes += t->bytes;
    }
    return is_listed(c) ? name_listed(c, err) : PD_OK;
}

static pd_status open_checkpoint(struct perdure_checkpoint *c, const char *path, const struct perdure_open_options *options,
                                 struct pd_error *err)
{
    const struct pd_notes notes = pd_library_notes(options->watch);
    PD_TRY(pd_ckpt_foreign_open(path, options->step, &notes, &c->foreign, err));
    c->foreign.place.tiers.notes = NULL; /* of the call that opened it */
    PD_TRY(pd_ckpt_foreign_refuse_step(&c->foreign, options->step, err));
    PD_TRY(pd_slicer_new(c->foreign.vfs, &c->foreign.catalog, &c->slicer, err));
    if (!options->is_shared) pd_slicer_read_direct(c->slicer);
    return describe(c, err);
}

enum perdure_status perdure_open(const char *path, const struct perdure_open_options *options,
                                 struct perdure_checkpoint **ret_checkpoint, struct perdure_error *err)
{
    struct perdure_open_options mine = PERDURE_OPEN_OPTIONS;
    struct pd_error own = {0};
    pd_library_begin();
    pd_library_options(&mine, sizeof mine, options, options ? options->size : 0);
    struct perdure_checkpoint *c = calloc(1, sizeof *c);
    if (!c) return pd_library_end(pd_error_set(&own, PD_NO_MEMORY, PD_WHERE, 0, "no memory to open %s", path), &own, err);
    pthread_mutex_init(&c->pool_mutex, NULL);
    c->threads = mine.threads ? mine.threads : (uint32_t)pd_min_u64(pd_cpu_cores(), THREADS_MAX);
    const pd_status st = open_checkpoint(c, path, &mine, &own);
    if (st)
        perdure_close(c);
    else
        *ret_checkpoint = c;
    return pd_library_end(st, &own, err);
}

void perdure_close(struct perdure_checkpoint *c)
{
    if (!c) return;
    pd_thread_pool_free(c->pool);
    pthread_mutex_destroy(&c->pool_mutex);
    pd_slicer_free(c->slicer);
    if (c->foreign.vfs) pd_ckpt_foreign_close(&c->foreign);
    free(c->names);
    free(c->tensors);
    free(c);
}

void perdure_info(const struct perdure_checkpoint *c, struct perdure_info *ret_info)
{
    const struct pd_catalog_counters *n = &c->foreign.catalog.counters;
    *ret_info = (struct perdure_info){.format = c->foreign.format->name,
                                      .path = c->foreign.path,
                                      .step = n->has_step      ? n->step
                                              : n->has_updates ? n->updates
                                                               : 0,
                                      .tensor_count = c->foreign.catalog.tensor_count,
                                      .bytes = c->bytes,
                                      .is_verified = c->foreign.format == &pd_format_perdure};
}

const struct perdure_tensor *perdure_tensor_at(const struct perdure_checkpoint *c, uint64_t number)
{
    return number < c->foreign.catalog.tensor_count ? &c->tensors[number] : NULL;
}

int64_t perdure_find(const struct perdure_checkpoint *c, const char *name, enum perdure_kind kind)
{
    char listed[PD_TENSOR_NAME_MAX];
    if ((unsigned)kind >= PD_KIND_COUNT) return -1;
    if (c->names && pd_listed_name(name, listed, NULL)) return -1;
    return pd_catalog_find(&c->foreign.catalog, c->names ? listed : name, (enum pd_kind)kind);
}

const char *perdure_text(const struct perdure_checkpoint *c, const char *name, uint64_t *ret_bytes)
{
    const struct pd_catalog_text *text = pd_catalog_text(&c->foreign.catalog, name);
    if (text && ret_bytes) *ret_bytes = text->bytes;
    return text ? text->text : NULL;
}

const char *perdure_text_name(const struct perdure_checkpoint *c, uint64_t number)
{
    return number < c->foreign.catalog.text_count ? c->foreign.catalog.texts[number].name : NULL;
}

/* ---- slices ---- */

static pd_status make_slice(const struct perdure_checkpoint *c, const struct perdure_slice *from, struct pd_slice *ret,
                            struct pd_error *err)
{
    const struct pd_catalog *catalog = &c->foreign.catalog;
    if (from->tensor >= catalog->tensor_count)
        PD_FAIL(err, PD_INVALID, "there is no tensor %" PRIu64 "; %s has %u, from 0 on", from->tensor, c->foreign.path,
                catalog->tensor_count);
    const struct pd_foreign_tensor *t = &catalog->tensors[from->tensor];
    struct pd_slice slice = {.tensor = (uint32_t)from->tensor, .to = from->to, .as_f32 = from->as == PERDURE_F32};
    if (from->as != PERDURE_AS_STORED && from->as != PERDURE_F32)
        PD_FAIL(err, PD_INVALID, "tensor %s: a slice is read as stored or as fp32; take PERDURE_AS_STORED or PERDURE_F32",
                t->name);
    if (!from->start != !from->count)
        PD_FAIL(err, PD_INVALID, "tensor %s: give both start and count, or neither for the whole tensor", t->name);
    for (uint32_t d = 0; d < t->ndim; d++) {
        slice.start[d] = from->start ? from->start[d] : 0;
        slice.count[d] = from->count ? from->count[d] : t->shape[d];
    }
    PD_TRY(pd_slice_check(catalog, &slice, err));
    const uint64_t bytes = pd_slice_bytes(catalog, &slice);
    if (from->to_bytes != bytes)
        PD_FAIL(err, PD_INVALID,
                "tensor %s: the slice takes %" PRIu64 " bytes, and to_bytes is %" PRIu64 "; give what it takes", t->name,
                bytes, from->to_bytes);
    *ret = slice;
    return PD_OK;
}

static pd_status slice_progress(void *context, uint64_t done, uint64_t total, struct pd_error *err)
{
    return pd_library_progress(context, done, total, err);
}

/* The pool, if nobody else is using it. Reading works without one. */
static struct pd_thread_pool *take_pool(struct perdure_checkpoint *c, uint64_t bytes, bool *ret_is_taken)
{
    *ret_is_taken = c->threads > 1 && bytes >= PARALLEL_BYTES_MIN && pthread_mutex_trylock(&c->pool_mutex) == 0;
    if (!*ret_is_taken) return NULL;
    if (!c->pool && pd_thread_pool_new(c->threads, &c->pool, NULL)) c->pool = NULL;
    return c->pool;
}

static pd_status read_slices(struct perdure_checkpoint *c, const struct perdure_slice *slices, uint64_t count,
                             const struct perdure_watch *watch, struct pd_error *err)
{
    uint64_t total = 0;
    bool is_taken;
    struct pd_slice *mine = calloc(count + 1, sizeof *mine);
    pd_status st = PD_ALLOCATED(mine, err, "no memory for %" PRIu64 " slices", count);
    for (uint64_t i = 0; !st && i < count; i++) {
        st = make_slice(c, &slices[i], &mine[i], err);
        total += slices[i].to_bytes;
    }
    if (!st) {
        struct pd_thread_pool *pool = take_pool(c, total, &is_taken);
        st = pd_slicer_read(c->slicer, mine, count, pool, slice_progress, (void *)(uintptr_t)watch, err);
        if (is_taken) pthread_mutex_unlock(&c->pool_mutex);
    }
    free(mine);
    return st;
}

enum perdure_status perdure_read(struct perdure_checkpoint *c, const struct perdure_slice *slices, uint64_t count,
                                 const struct perdure_watch *watch, struct perdure_error *err)
{
    struct pd_error own = {0};
    return pd_library_end(read_slices(c, slices, count, watch, &own), &own, err);
}

uint64_t perdure_bytes_read(const struct perdure_checkpoint *c)
{
    return pd_slicer_bytes(c->slicer);
}

/* ---- verify ---- */

struct verifying {
    const struct perdure_watch *watch;
    bool is_stopped;
};

static void verify_progress(void *context, uint64_t done, uint64_t total)
{
    struct verifying *v = context;
    if (!v->is_stopped) v->is_stopped = pd_library_progress(v->watch, done, total, NULL) == PD_STOPPED;
}

static bool verify_is_stopped(void *context)
{
    return ((struct verifying *)context)->is_stopped;
}

static pd_status verify(struct perdure_checkpoint *c, void (*on_damage)(void *context, const struct perdure_damage *damage),
                        void *context, const struct perdure_watch *watch, struct pd_error *err)
{
    struct pd_inspect *inspect = NULL;
    struct pd_damage_list list = {0};
    struct verifying v = {.watch = watch};
    if (c->foreign.format != &pd_format_perdure)
        PD_FAIL(err, PD_UNSUPPORTED,
                "%s is in a format without checksums (%s); perdure_convert or perdure ckpt import makes one that has them",
                c->foreign.path, c->foreign.format->name);
    PD_TRY(pd_inspect_open(c->foreign.vfs, c->foreign.path, &inspect, err));
    pd_status st = pd_inspect_verify(inspect, verify_progress, &v, (pd_should_stop){verify_is_stopped, &v}, &list, err);
    pd_inspect_close(inspect);
    for (uint32_t i = 0; i < list.count; i++) {
        const struct pd_damage *d = &list.items[i];
        const bool is_proven = pd_damage_is_proven(d);
        const struct perdure_damage damage = {d->file, d->tensor, (enum perdure_kind)d->kind, d->block, is_proven, d->text};
        if (on_damage) on_damage(context, &damage);
        if (!st || (st == PD_IO && is_proven))
            st = pd_error_set(err, is_proven ? PD_CORRUPT : PD_IO, PD_WHERE, 0, "%s", d->text);
    }
    pd_damage_list_deinit(&list);
    return st;
}

enum perdure_status perdure_verify(struct perdure_checkpoint *c,
                                   void (*on_damage)(void *context, const struct perdure_damage *damage), void *context,
                                   const struct perdure_watch *watch, struct perdure_error *err)
{
    struct pd_error own = {0};
    return pd_library_end(verify(c, on_damage, context, watch, &own), &own, err);
}
