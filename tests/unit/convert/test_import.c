/* What is imported under any layout reads back as what the foreign file holds; what stops midway leaves no checkpoint. */
#include "resharder/catalog/read.h"
#include "resharder/convert/import.h"
#include "resharder/formats/perdure.h"
#include "tests/helpers/scale.h"
#include "tests/helpers/thread_signals.h"
#include "tests/unit/resharder/state_fixture.h"

struct foreign {
    struct pd_catalog catalog;
    struct pd_links links;
};

/* Element number of the model's tensor behind element `i` of the file: matrices with an odd number lie transposed. */
static uint64_t model_element(const struct pd_tensor *tensor, uint32_t t, uint64_t i)
{
    return t % 2 && tensor->ndim == 2 ? i % tensor->shape[0] * tensor->shape[1] + i / tensor->shape[0] : i;
}

static void add_tensor(struct state *s, struct foreign *f, uint32_t t, enum pd_kind kind, struct pd_file *file,
                       uint64_t *offset)
{
    const struct pd_tensor *tensor = &s->tensors[t];
    const uint64_t elements = pd_tensor_elements(tensor);
    char name[64];
    snprintf(name, sizeof name, "foreign.%u", t);
    float *values = malloc(elements * sizeof *values);
    for (uint64_t i = 0; i < elements; i++)
        values[i] = state_value(t, kind, model_element(tensor, t, i));
    OK(pd_file_write(file, *offset, values, elements * sizeof *values, err));
    free(values);
    struct pd_foreign_tensor foreign = {
        .name = name, .kind = kind, .element = PD_ELEMENT_F32, .ndim = 1, .shape = {elements}};
    OK(pd_catalog_add_dense(&f->catalog, &foreign, 0, *offset, err));
    *offset += elements * sizeof(float);
    struct pd_link link = {.tensor = t, .kind = kind, .name = name, .view = pd_view_dense(tensor)};
    if (t % 2 && tensor->ndim == 2) {
        link.view.stride[0] = 1;
        link.view.stride[1] = tensor->shape[0];
    }
    OK(pd_links_add(&f->links, &link, err));
}

/* Moments of every third tensor are not there. */
static bool has_moments(uint32_t t)
{
    return t % 3 != 0;
}

static void make_foreign(struct state *s, struct foreign *f)
{
    struct pd_file *file;
    uint64_t offset = 333, bytes = offset;
    f->links = (struct pd_links){0};
    pd_catalog_init(&f->catalog, "test");
    for (uint32_t t = 0; t < STATE_TENSORS; t++)
        bytes += pd_tensor_elements(&s->tensors[t]) * sizeof(float) * (has_moments(t) ? 3 : 1);
    OK(pd_catalog_add_file(&f->catalog, "/foreign.bin", bytes, NULL, err));
    OK(pd_file_open(s->vfs, "/foreign.bin", PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    for (uint32_t t = 0; t < STATE_TENSORS; t++)
        for (int kind = 0; kind < (has_moments(t) ? PD_KIND_COUNT : 1); kind++)
            add_tensor(s, f, t, (enum pd_kind)kind, file, &offset);
    OK(pd_file_close(file, err));
    OK(pd_catalog_finish(&f->catalog, err));
}

static void check_stored(struct state *s, struct pd_store *store)
{
    char directory[4096];
    struct pd_catalog catalog;
    struct pd_reader *reader = NULL;
    void *buffers = aligned_alloc(PD_VFS_ALIGN, PD_READER_BUFFER_BYTES_MIN);
    cr_assert_eq(pd_store_count(store), 1u);
    pd_store_entry_path(store, pd_store_entry_at(store, 0), directory);
    pd_catalog_init(&catalog, "perdure");
    OK(pd_format_perdure.read(s->vfs, directory, &catalog, err));
    OK(pd_catalog_finish(&catalog, err));
    OK(pd_reader_open(s->vfs, &catalog, buffers, PD_READER_BUFFER_BYTES_MIN, &reader, err));
    for (uint32_t n = 0; n < catalog.tensor_count; n++) {
        const uint32_t t = (uint32_t)pd_tensor_table_find(&s->table, catalog.tensors[n].name);
        const enum pd_kind kind = catalog.tensors[n].kind;
        const uint64_t elements = pd_tensor_elements(&s->tensors[t]);
        const struct pd_view whole = {.ndim = 1, .count = {elements}, .stride = {1}};
        float *values = malloc(elements * sizeof *values);
        OK(pd_reader_read(reader, n, &whole, values, err));
        for (uint64_t i = 0; i < elements; i++)
            cr_assert_eq(values[i], kind && !has_moments(t) ? 0.0f : state_value(t, (uint32_t)kind, i),
                         "tensor %u, kind %d, element %d", t, (int)kind, (int)i);
        free(values);
    }
    pd_reader_close(reader);
    pd_catalog_deinit(&catalog);
    free(buffers);
}

static struct pd_import_request request_of(struct state *s, struct foreign *f, const struct pd_layout *layout,
                                           const struct pd_run_state *run, struct pd_store *store, void *buffers)
{
    return (struct pd_import_request){.source = "/foreign.bin",
                                      .catalog = &f->catalog,
                                      .links = &f->links,
                                      .tensors = &s->table,
                                      .fresh_optimizer = true,
                                      .layout = layout,
                                      .state = run,
                                      .target = store,
                                      .buffers = buffers};
}

static struct pd_store *open_target(struct state *s, struct pd_group *group)
{
    const struct pd_store_options options = {.writable = true, .keep_last = 10, .quarantine_bytes_max = UINT64_MAX};
    struct pd_store *store = NULL;
    OK(pd_store_open(s->vfs, "/target", &options, group, &store, err));
    return store;
}

static void import_once(uint64_t seed, bool is_large, enum pd_codec codec)
{
    struct state s;
    struct foreign f;
    struct pd_group group;
    state_init(&s, seed);
    if (is_large) state_enlarge(&s);
    const struct pd_layout layout = state_layout(&s, 1u << seed % 3);
    const struct pd_run_state run = {
        .identity = s.identity, .config = "a: 1\n", .environment = "{}", .created_by = "test", .loss_scale = 1};
    void *buffers = aligned_alloc(PD_VFS_ALIGN, PD_IMPORT_BUFFER_BYTES);
    make_foreign(&s, &f);
    pd_group_init_single(&group);
    struct pd_store *store = open_target(&s, &group);
    struct pd_import_request request = request_of(&s, &f, &layout, &run, store, buffers);
    struct pd_import_report report;
    request.codec = (struct pd_shard_codec){.codec = codec, .level = 1};
    unsigned threads = 0;
    request.progress = look_at_threads;
    request.context = &threads;
    OK(pd_import(s.vfs, &request, &report, err));
    cr_assert_geq(threads, 1u);
    cr_assert_eq(report.zeroed, 6);
    cr_assert_eq(report.shards, pd_layout_world(&layout));
    cr_assert_geq(report.bytes_read_back, report.bytes_written);
    check_stored(&s, store);
    pd_store_close(store);
    pd_links_deinit(&f.links);
    pd_catalog_deinit(&f.catalog);
    free(buffers);
    state_deinit(&s);
}

Test(import, under_any_layout)
{
    for (uint64_t seed = 1; seed <= 6; seed++)
        import_once(seed, false, seed % 2 ? PD_CODEC_NONE : PD_CODEC_ZSTD);
}

Test(import, of_tensors_larger_than_slots)
{
    for (uint64_t seed = 1; seed <= 2; seed++)
        import_once(seed, true, PD_CODEC_NONE);
}

Test(import, what_is_missing_is_named)
{
    struct state s;
    struct foreign f;
    struct pd_error error = {0};
    struct pd_layout layout;
    const struct pd_run_state run = {.created_by = "test"};
    state_init(&s, 3);
    make_foreign(&s, &f);
    pd_layout_init_dp(&layout, 1);
    struct pd_import_request request = request_of(&s, &f, &layout, &run, NULL, NULL);
    OK(pd_import_check(&request, err));
    request.fresh_optimizer = false;
    cr_assert_eq(pd_import_check(&request, &error), PD_INVALID);
    cr_assert_not_null(strstr(error.message, "/foreign.bin has no exp_avg of tensor layers.0.weight"), "%s", error.message);
    cr_assert_not_null(strstr(error.message, "--fresh-optimizer"), "%s", error.message);
    request.fresh_optimizer = true;
    f.links.items[0].view.offset = 1;
    cr_assert_eq(pd_import_check(&request, &error), PD_INVALID);
    cr_assert_not_null(strstr(error.message, "does not have the shape that layers.0.weight needs"), "%s", error.message);
    f.links.items[0].view.offset = 0;
    f.links.items[0].view.count[0]--;
    cr_assert_eq(pd_import_check(&request, &error), PD_INVALID);
    cr_assert_not_null(strstr(error.message, "does not have the shape that layers.0.weight needs"), "%s", error.message);
    f.links.items[0].view.count[0]++;
    f.catalog.tensors[0].element = PD_ELEMENT_I32;
    cr_assert_eq(pd_import_check(&request, &error), PD_INVALID);
    cr_assert_not_null(strstr(error.message, "and weights are never of that type"), "%s", error.message);
    f.catalog.tensors[0].element = PD_ELEMENT_F32;
    f.links.items[0].name[0] = 'x';
    cr_assert_eq(pd_import_check(&request, &error), PD_INVALID);
    cr_assert_not_null(strstr(error.message, "has no param of tensor xoreign.0"), "%s", error.message);
    f.links.items[0].name[0] = 'f';
    struct pd_link *links = f.links.items;
    const struct pd_links less = {.items = links + 1, .count = f.links.count - 1};
    request.links = &less;
    cr_assert_eq(pd_import_check(&request, &error), PD_INVALID);
    cr_assert_not_null(strstr(error.message, "has nothing for tensor layers.0.weight"), "%s", error.message);
    pd_links_deinit(&f.links);
    pd_catalog_deinit(&f.catalog);
    state_deinit(&s);
}

/* Columns of what lies in one row for all cannot be cut; with one chunk they need not be. */
Test(import, columns_that_cannot_be_cut_are_refused)
{
    struct state s;
    struct foreign f;
    struct pd_layout layout;
    const struct pd_run_state run = {.config = "a: 1\n", .environment = "{}", .created_by = "test", .loss_scale = 1};
    struct pd_error error = {0};
    state_init(&s, 3);
    s.tensors[0] = (struct pd_tensor){
        .name = "layers.0.weight", .ndim = 2, .shape = {6, 4, 1, 1}, .dtype = PD_F32, .tp_dim = 1, .tp_unit = 1};
    make_foreign(&s, &f);
    f.links.items[0].view = (struct pd_view){.ndim = 1, .count = {24}, .stride = {1}};
    pd_layout_init_dp(&layout, 1);
    const struct pd_import_request request = request_of(&s, &f, &layout, &run, NULL, NULL);
    OK(pd_import_check(&request, err));
    layout.virtual_tp = 2;
    cr_assert_eq(pd_import_check(&request, &error), PD_UNSUPPORTED);
    cr_assert_not_null(strstr(error.message, "the columns of tensor foreign.0 of /foreign.bin cannot be cut"), "%s",
                       error.message);
    pd_links_deinit(&f.links);
    pd_catalog_deinit(&f.catalog);
    state_deinit(&s);
}

/* The foreign file shrinks under our feet: the thread fails, the rewrite ends, and nothing is left. */
Test(import, a_source_that_fails_leaves_no_checkpoint)
{
    struct state s;
    struct foreign f;
    struct pd_group group;
    struct pd_error error = {0};
    struct pd_file *file;
    state_init(&s, 5);
    const struct pd_layout layout = state_layout(&s, 2);
    const struct pd_run_state run = {
        .identity = s.identity, .config = "a: 1\n", .environment = "{}", .created_by = "test", .loss_scale = 1};
    void *buffers = aligned_alloc(PD_VFS_ALIGN, PD_IMPORT_BUFFER_BYTES);
    make_foreign(&s, &f);
    OK(pd_file_open(s.vfs, "/foreign.bin", PD_OPEN_WRITE, &file, err));
    OK(pd_file_truncate(file, f.catalog.files[0].bytes / 2, err));
    OK(pd_file_close(file, err));
    pd_group_init_single(&group);
    struct pd_store *store = open_target(&s, &group);
    const struct pd_import_request request = request_of(&s, &f, &layout, &run, store, buffers);
    cr_assert_eq(pd_import(s.vfs, &request, NULL, &error), PD_CORRUPT, "%s", error.message);
    cr_assert_not_null(strstr(error.message, "tensor foreign."), "%s", error.message);
    cr_assert_eq(pd_store_count(store), 0u);
    pd_store_close(store);
    pd_links_deinit(&f.links);
    pd_catalog_deinit(&f.catalog);
    free(buffers);
    state_deinit(&s);
}

static uint64_t questions_left; /* until the answer is yes */

static bool should_stop(void *context)
{
    (void)context;
    return questions_left-- == 0;
}

/* Returns whether it was stopped. */
static bool stop_import(struct state *s, struct foreign *f, void *buffers, uint64_t nth)
{
    const struct pd_store_options options = {
        .writable = true, .keep_last = 10, .quarantine_bytes_max = UINT64_MAX, .leaves_nothing = true};
    const struct pd_layout layout = state_layout(s, 2);
    const struct pd_run_state run = {
        .identity = s->identity, .config = "a: 1\n", .environment = "{}", .created_by = "test", .loss_scale = 1};
    struct pd_group group;
    struct pd_store *store = NULL;
    struct pd_listing listing;
    struct pd_error error = {0};
    pd_group_init_single(&group);
    OK(pd_store_open(s->vfs, "/target", &options, &group, &store, err));
    struct pd_import_request request = request_of(s, f, &layout, &run, store, buffers);
    request.should_stop.ask = should_stop;
    questions_left = nth;
    const pd_status st = pd_import(s->vfs, &request, NULL, &error);
    cr_assert(st == PD_OK || st == PD_STOPPED, "%s", error.message);
    if (!st) check_stored(s, store);
    pd_store_close(store);
    OK(pd_vfs_list(s->vfs, "/target", &listing, err));
    cr_assert(!st || listing.count == 0, "question %d: %s is left", (int)nth, listing.names[0]);
    pd_listing_deinit(&listing);
    return st != PD_OK;
}

Test(import, asked_to_leave_at_any_question_leaves_nothing)
{
    struct state s;
    struct foreign f;
    uint64_t nth = 0;
    state_init(&s, 5);
    make_foreign(&s, &f);
    OK(pd_vfs_mkdir(s.vfs, "/target", err));
    void *buffers = aligned_alloc(PD_VFS_ALIGN, PD_IMPORT_BUFFER_BYTES);
    while (stop_import(&s, &f, buffers, nth))
        nth++;
    cr_assert_gt(nth, 2 * STATE_TENSORS, "pieces and blocks ask, and not %d times in all", (int)nth);
    pd_links_deinit(&f.links);
    pd_catalog_deinit(&f.catalog);
    free(buffers);
    state_deinit(&s);
}
