/* Every call of a load, of a rewrite, of an import and of an export fails once, and from then on. */
#include "ckpt/inspect/inspect.h"
#include "resharder/convert/compare.h"
#include "resharder/convert/export.h"
#include "resharder/convert/reshard.h"
#include "resharder/formats/perdure.h"
#include "resharder/formats/safetensors.h"
#include "resharder/load/load.h"
#include "tests/helpers/failing_sweep.h"
#include "tests/unit/resharder/state_fixture.h"

struct kind {
    bool compresses, writes_compressed;
    uint32_t threads;
};

/* A stored checkpoint, and a place for what becomes of it. */
struct work {
    struct state s;
    struct pd_commit commit;
    struct pd_layout layout;
    struct pd_catalog wanted;
    struct pd_links links;
    struct pd_shard_box *boxes; /* of a load, one rank's */
    float **data;
    uint32_t box_count;
    void *buffers; /* (WORK_BUFFER_BYTES) */
    const struct kind *kind;
};
enum { WORK_BUFFER_BYTES = 193 << 20 };

static void swallow(void *context, const char *line, size_t bytes)
{
    (void)context, (void)line, (void)bytes;
}

static void want(struct work *w)
{
    pd_catalog_init(&w->wanted, "safetensors");
    for (uint32_t t = 0; t < STATE_TENSORS; t++) {
        const struct pd_tensor *tensor = &w->s.tensors[t];
        char name[64];
        snprintf(name, sizeof name, "foreign.%u", t);
        const struct pd_foreign_tensor foreign = {
            .name = name, .element = PD_ELEMENT_BF16, .ndim = 2, .shape = {tensor->shape[0], tensor->shape[1]}};
        const struct pd_link link = {.tensor = t, .name = name, .view = pd_view_dense(tensor)};
        OK(pd_catalog_add_tensor(&w->wanted, &foreign, NULL, err));
        OK(pd_links_add(&w->links, &link, err));
    }
    OK(pd_catalog_add_text(&w->wanted, "config.json", "{}", 2, err));
}

static void make_base(struct work *w, const struct kind *kind)
{
    *w = (struct work){.kind = kind, .buffers = aligned_alloc(PD_VFS_ALIGN, WORK_BUFFER_BYTES)};
    state_init(&w->s, 3);
    pd_log_set_sink(swallow, NULL);
    w->s.compresses = kind->compresses;
    struct pd_layout stored = state_layout(&w->s, 2), alone;
    w->layout = state_layout(&w->s, 2);
    w->s.tensors[0].ndim = 2; /* of several blocks */
    w->s.tensors[0].shape[0] = w->s.tensors[0].tp_unit * 150;
    w->s.tensors[0].shape[1] = 300;
    state_save(&w->s, &stored, "/stored", &w->commit);
    OK(pd_vfs_mkdir(w->s.vfs, "/target", err));
    want(w);
    pd_layout_init_dp(&alone, 1);
    OK(pd_layout_shard_boxes(&alone, &w->s.table, 0, &w->boxes, &w->box_count, err));
    w->data = calloc(w->box_count + 1, sizeof *w->data);
    for (uint32_t b = 0; b < w->box_count; b++)
        w->data[b] = malloc(pd_box_elements(&w->boxes[b].box) * sizeof(float));
}

/* One base for all of a case, a disk of its own for each. */
static void *set_up(const void *context)
{
    static struct work base;
    if (base.kind != context) make_base(&base, context);
    struct work *w = malloc(sizeof *w);
    *w = base;
    w->s.table.tensors = w->s.tensors;
    OK(pd_simulated_disk_clone(base.s.disk, &w->s.disk, err));
    OK(pd_simulated_disk_vfs(w->s.disk, 0, &w->s.vfs, err));
    for (uint32_t b = 0; b < w->box_count; b++)
        memset(w->data[b], 0, pd_box_elements(&w->boxes[b].box) * sizeof(float));
    return w;
}

static void tear_down(void *state)
{
    struct work *w = state;
    pd_vfs_free(w->s.vfs);
    pd_simulated_disk_free(w->s.disk);
    free(w);
}

static struct pd_simulated_disk *disk_of(void *state)
{
    return ((struct work *)state)->s.disk;
}

static pd_status with_pool(const struct work *w, struct pd_thread_pool **ret_pool, struct pd_error *err)
{
    *ret_pool = NULL;
    return w->kind->threads ? pd_thread_pool_new(w->kind->threads, ret_pool, err) : PD_OK;
}

/* ---- load ---- */

static void *destination(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    const struct work *w = context;
    for (uint32_t b = 0; b < w->box_count; b++)
        if (w->boxes[b].tensor == tensor && w->boxes[b].kind == kind && !box--) return w->data[b];
    return NULL;
}

static pd_status load(void *state, struct pd_error *err)
{
    struct work *w = state;
    struct pd_group alone;
    struct pd_layout layout;
    struct pd_thread_pool *pool;
    pd_group_init_single(&alone);
    pd_layout_init_dp(&layout, 1);
    PD_TRY(with_pool(w, &pool, err));
    const struct pd_load_request request = {.directory = "/stored",
                                            .commit = &w->commit,
                                            .tensors = &w->s.table,
                                            .wanted = &layout,
                                            .kinds = 7,
                                            .buffers = w->buffers,
                                            .buffer_bytes = 16 << 20,
                                            .pool = pool,
                                            .has_replicas = w->kind->compresses,
                                            .destination = destination,
                                            .context = w};
    struct pd_load_report report;
    const pd_status st = pd_load(w->s.vfs, &alone, &request, &report, err);
    pd_thread_pool_free(pool);
    return st;
}

static pd_status check_loaded(void *state, struct pd_error *err)
{
    const struct work *w = state;
    for (uint32_t b = 0; b < w->box_count; b++) {
        const uint64_t count = pd_box_elements(&w->boxes[b].box);
        float *values = malloc(count * sizeof *values);
        state_fill(&w->s, &w->boxes[b], values);
        const bool same = memcmp(values, w->data[b], count * sizeof *values) == 0;
        free(values);
        if (!same) PD_FAIL(err, PD_BUG, "box %u is another", b);
    }
    return PD_OK;
}

/* ---- what goes into a store ---- */

static pd_status with_target(struct work *w,
                             pd_status (*body)(struct work *w, struct pd_store *target, struct pd_error *err),
                             struct pd_error *err)
{
    const struct pd_store_options options = {.writable = true, .keep_last = 10, .quarantine_bytes_max = UINT64_MAX};
    struct pd_group alone;
    struct pd_store *store = NULL;
    pd_group_init_single(&alone);
    PD_TRY(pd_store_open(w->s.vfs, "/target", &options, &alone, &store, err));
    const pd_status st = pd_store_count(store) ? PD_OK : body(w, store, err); /* the first time may have come so far */
    pd_store_close(store);
    return st;
}

static pd_status rewrite_into(struct work *w, struct pd_store *target, struct pd_error *err)
{
    struct pd_import_request request = {.source = "/stored",
                                        .ours = &w->commit,
                                        .tensors = &w->s.table,
                                        .layout = &w->layout,
                                        .target = target,
                                        .buffers = w->buffers};
    if (w->kind->writes_compressed) request.codec = (struct pd_shard_codec){.codec = PD_CODEC_ZSTD, .level = 1};
    PD_TRY(with_pool(w, &request.codec.pool, err));
    const pd_status st = pd_reshard(w->s.vfs, &request, NULL, err);
    pd_thread_pool_free(request.codec.pool);
    return st;
}

static pd_status rewrite(void *state, struct pd_error *err)
{
    return with_target(state, rewrite_into, err);
}

static pd_status read_source(struct work *w, struct pd_catalog *ret_source, struct pd_error *err)
{
    pd_catalog_init(ret_source, "perdure");
    PD_TRY(pd_format_perdure.read(w->s.vfs, "/stored", ret_source, err));
    return pd_catalog_finish(ret_source, err);
}

static pd_status link_all(struct work *w, struct pd_links *links, struct pd_error *err)
{
    for (uint32_t t = 0; t < STATE_TENSORS; t++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            const struct pd_link link = {.tensor = t,
                                         .kind = (enum pd_kind)kind,
                                         .name = w->s.tensors[t].name,
                                         .view = pd_view_dense(&w->s.tensors[t])};
            PD_TRY(pd_links_add(links, &link, err));
        }
    return PD_OK;
}

static pd_status import_into(struct work *w, struct pd_store *target, struct pd_error *err)
{
    struct pd_catalog source;
    struct pd_links links = {0};
    struct pd_import_report report;
    pd_status st = read_source(w, &source, err);
    if (!st) st = link_all(w, &links, err);
    const struct pd_import_request request = {.source = "/stored",
                                              .catalog = &source,
                                              .links = &links,
                                              .tensors = &w->s.table,
                                              .layout = &w->layout,
                                              .state = &w->commit.state,
                                              .target = target,
                                              .buffers = w->buffers};
    if (!st) st = pd_import(w->s.vfs, &request, &report, err);
    pd_links_deinit(&links);
    pd_catalog_deinit(&source);
    return st;
}

static pd_status import(void *state, struct pd_error *err)
{
    return with_target(state, import_into, err);
}

/* Every byte, and the values of one tensor. */
static pd_status check_target(void *state, struct pd_error *err)
{
    struct work *w = state;
    struct pd_listing listing = {0};
    struct pd_inspect *inspect = NULL;
    struct pd_damage_list damage = {0};
    char path[512] = "";
    PD_TRY(pd_vfs_list(w->s.vfs, "/target", &listing, err));
    for (uint32_t i = 0; i < listing.count; i++)
        if (strncmp(listing.names[i], "step-", 5) == 0) snprintf(path, sizeof path, "/target/%.255s", listing.names[i]);
    pd_listing_deinit(&listing);
    PD_TRY(pd_inspect_open(w->s.vfs, path, &inspect, err));
    pd_status st = pd_inspect_verify(inspect, NULL, NULL, (pd_should_stop){0}, &damage, err);
    if (!st && damage.count) st = pd_error_set(err, PD_BUG, PD_WHERE, 0, "%s", damage.items[0].text);
    pd_damage_list_deinit(&damage);
    pd_inspect_close(inspect);
    return st;
}

/* ---- export ---- */

static pd_status export_to(struct work *w, const struct pd_catalog *source, struct pd_catalog *wanted, struct pd_error *err)
{
    struct pd_export *export = NULL;
    struct pd_export_report report;
    PD_TRY(pd_export_begin(w->s.vfs, &pd_format_safetensors, wanted, "/out", 100000, &export, err));
    const struct pd_export_request request = {
        .source = "/stored", .catalog = source, .tensors = &w->s.table, .links = &w->links, .buffers = w->buffers};
    return pd_export_end(export, pd_export_run(export, &request, &report, err), err);
}

static pd_status copy_wanted(const struct work *w, struct pd_catalog *ret, struct pd_error *err)
{
    pd_catalog_init(ret, "safetensors");
    for (uint32_t t = 0; t < w->wanted.tensor_count; t++)
        PD_TRY(pd_catalog_add_tensor(ret, &w->wanted.tensors[t], NULL, err));
    return pd_catalog_add_text(ret, "config.json", "{}", 2, err);
}

static bool is_there(struct work *w, const char *path)
{
    struct pd_stat stat;
    return pd_vfs_stat(w->s.vfs, path, &stat, NULL) == PD_OK;
}

static pd_status export(void *state, struct pd_error *err)
{
    struct work *w = state;
    struct pd_catalog source, wanted;
    if (is_there(w, "/out/config.json")) return PD_OK; /* the first time has come so far */
    pd_status st = read_source(w, &source, err);
    const pd_status copied = copy_wanted(w, &wanted, st ? NULL : err);
    if (!st) st = copied;
    if (!st) st = export_to(w, &source, &wanted, err);
    pd_catalog_deinit(&wanted);
    pd_catalog_deinit(&source);
    return st;
}

/* What has its name is read, compared with the source and described. */
static pd_status compare(void *state, struct pd_error *err)
{
    struct work *w = state;
    struct pd_catalog source, out;
    struct pd_links links = {0};
    struct pd_diff diff = {0};
    struct pd_tensor_report reports[STATE_TENSORS];
    pd_catalog_init(&out, "safetensors");
    pd_status st = read_source(w, &source, err);
    if (!st) st = link_all(w, &links, err);
    if (!st) st = pd_format_safetensors.read(w->s.vfs, "/out", &out, err);
    if (!st) st = pd_catalog_finish(&out, err);
    struct pd_compare_request request = {
        .left = {&source, &links}, .right = {&out, &w->links}, .tensors = &w->s.table, .buffers = w->buffers};
    if (!st) st = pd_compare(w->s.vfs, &request, &diff, err);
    request = (struct pd_compare_request){.left = {&out, NULL}, .buffers = w->buffers};
    if (!st) st = pd_compare_report(w->s.vfs, &request, NULL, reports, NULL, err);
    pd_diff_deinit(&diff);
    pd_links_deinit(&links);
    pd_catalog_deinit(&source);
    pd_catalog_deinit(&out);
    return st;
}

static void *set_up_exported(const void *context)
{
    struct work *w = set_up(context);
    OK(export(w, err));
    return w;
}

/* ---- inspect ---- */

static pd_status inspect(void *state, struct pd_error *err)
{
    struct work *w = state;
    struct pd_inspect *in = NULL;
    struct pd_damage_list damage = {0};
    pd_status st = pd_inspect_open(w->s.vfs, "/stored/commit.h5", &in, err);
    if (!st) st = pd_inspect_check_complete(in, err);
    if (!st) st = pd_inspect_verify(in, NULL, NULL, (pd_should_stop){0}, &damage, err);
    if (!st && damage.count) st = pd_error_set(err, damage.items[0].status, PD_WHERE, 0, "%s", damage.items[0].text);
    pd_damage_list_deinit(&damage);
    pd_inspect_close(in);
    return st;
}

static const struct kind plain, compressed = {.compresses = true, .writes_compressed = true, .threads = 2};

#define EACH(name, sets_up, what, checks, how)                                                              \
    Test(nth_reshard, name)                                                                                 \
    {                                                                                                       \
        failing_sweep(&(struct failing_case){#name, true, sets_up, what, checks, tear_down, disk_of, how}); \
    }

EACH(load_plain, set_up, load, check_loaded, &plain)
EACH(load_compressed, set_up, load, check_loaded, &compressed)
EACH(rewrite_plain, set_up, rewrite, check_target, &plain)
EACH(rewrite_compressed, set_up, rewrite, check_target, &compressed)
EACH(import_plain, set_up, import, check_target, &plain)
EACH(export_plain, set_up, export, NULL, &plain)
EACH(export_compressed, set_up, export, NULL, &compressed)
EACH(compare, set_up_exported, compare, NULL, &plain)
EACH(inspect, set_up, inspect, NULL, &plain)
EACH(inspect_compressed, set_up, inspect, NULL, &compressed)
