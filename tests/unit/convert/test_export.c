/* What is exported from a checkpoint under any layout is, element by element, what was stored; what fails leaves nothing. */
#include "resharder/catalog/read.h"
#include "resharder/convert/export.h"
#include "resharder/formats/perdure.h"
#include "resharder/formats/safetensors.h"
#include "tests/helpers/scale.h"
#include "tests/helpers/thread_signals.h"
#include "tests/unit/resharder/state_fixture.h"

#include "ckpt/io/vfs_ops.h"
#include "resharder/catalog/model_directory.h"

struct exported {
    struct state s;
    struct pd_commit commit;
    struct pd_catalog source, wanted;
    struct pd_links links, source_links;
    const struct pd_format *from; /* of what lies in `stored` */
    const char *stored, *destination;
    void (*alter)(struct exported *x); /* what was read, before it is exported; or NULL */
    void *buffers;
    struct pd_error error;
};

static bool is_turned(const struct exported *x, const struct pd_tensor *tensor, uint32_t t)
{
    return (t % 2 == 1) == (x->from == &pd_format_perdure) && tensor->ndim == 2;
}

/* Foreign tensors have rows of their own in front and behind; of what comes from ours, matrices with an odd number lie transposed,
 * of what comes from that the others. */
static void want_tensor(struct exported *x, uint32_t t, enum pd_element element)
{
    const struct pd_tensor *tensor = &x->s.tensors[t];
    char name[64];
    snprintf(name, sizeof name, "foreign.%u", t);
    const uint64_t rows = tensor->shape[0], columns = tensor->shape[1];
    struct pd_foreign_tensor foreign = {.name = name, .element = element, .ndim = 2, .shape = {rows + 3, columns}};
    struct pd_link link = {.tensor = t, .name = name, .view = pd_view_dense(tensor)};
    link.view.offset = columns; /* a row before it and two behind it are nobody's */
    if (is_turned(x, tensor, t)) {
        foreign.shape[0] = columns + 3;
        foreign.shape[1] = rows;
        link.view.offset = rows;
        link.view.stride[0] = 1;
        link.view.stride[1] = rows;
    }
    OK(pd_catalog_add_tensor(&x->wanted, &foreign, NULL, err));
    OK(pd_links_add(&x->links, &link, err));
}

static void want(struct exported *x, enum pd_element element)
{
    pd_catalog_init(&x->wanted, "safetensors");
    for (uint32_t t = 0; t < STATE_TENSORS; t++)
        want_tensor(x, t, element);
    OK(pd_catalog_add_text(&x->wanted, "config.json", "{}", 2, err));
}

static void setup(struct exported *x, uint64_t seed, bool is_large, bool compresses, enum pd_element element)
{
    *x = (struct exported){.from = &pd_format_perdure, .stored = "/stored", .destination = "/out"};
    state_init(&x->s, seed);
    x->s.compresses = compresses;
    if (is_large) state_enlarge(&x->s);
    const struct pd_layout layout = state_layout(&x->s, 1u << seed % 3);
    state_save(&x->s, &layout, "/stored", &x->commit);
    x->buffers = aligned_alloc(PD_VFS_ALIGN, PD_EXPORT_BUFFER_BYTES);
    want(x, element);
}

static void teardown(struct exported *x)
{
    pd_catalog_deinit(&x->source);
    pd_catalog_deinit(&x->wanted);
    pd_links_deinit(&x->links);
    pd_links_deinit(&x->source_links);
    pd_commit_deinit(&x->commit);
    free(x->buffers);
    state_deinit(&x->s);
}

static uint64_t questions_left = UINT64_MAX; /* until the answer is yes */

static bool should_stop(void *context)
{
    (void)context;
    return questions_left-- == 0;
}

static pd_status export_it(struct exported *x, uint64_t shard_bytes, struct pd_export_report *report, struct pd_error *err)
{
    struct pd_export *export = NULL;
    unsigned threads = 0; /* at most at once, beside this one */
    pd_catalog_init(&x->source, x->from->name);
    PD_TRY(x->from->read(x->s.vfs, x->stored, &x->source, err));
    PD_TRY(pd_catalog_finish(&x->source, err));
    if (x->alter) x->alter(x);
    PD_TRY(pd_export_begin(x->s.vfs, &pd_format_safetensors, &x->wanted, x->destination, shard_bytes, &export, err));
    const struct pd_export_request request = {.source = x->stored,
                                              .catalog = &x->source,
                                              .tensors = &x->s.table,
                                              .links = &x->links,
                                              .source_links = x->source_links.count ? &x->source_links : NULL,
                                              .buffers = x->buffers,
                                              .should_stop = {.ask = should_stop},
                                              .progress = look_at_threads,
                                              .context = &threads};
    const pd_status st = pd_export_run(export, &request, report, err);
    cr_assert(st || threads);
    return pd_export_end(export, st, err);
}

static float rounded(enum pd_element element, float value)
{
    unsigned char stored[8];
    pd_elements[element].from_f32(&value, 1, stored);
    pd_elements[element].to_f32(stored, 1, &value);
    return value;
}

static void check_tensor(struct exported *x, const struct pd_catalog *c, struct pd_reader *r, uint32_t t)
{
    const struct pd_tensor *tensor = &x->s.tensors[t];
    const struct pd_link *link = &x->links.items[t];
    const int64_t found = pd_catalog_find(c, link->name, PD_PARAM);
    cr_assert_geq(found, 0);
    const struct pd_foreign_tensor *foreign = &c->tensors[found];
    const uint64_t elements = pd_foreign_elements(foreign), mine = pd_tensor_elements(tensor);
    const struct pd_view all = {.ndim = 1, .count = {elements}, .stride = {1}};
    float *values = malloc(elements * sizeof *values), *expected = calloc(elements, sizeof *expected);
    for (uint64_t i = 0; i < mine; i++) {
        uint64_t one = 1;
        expected[pd_view_run(&link->view, i, &one)] = rounded(foreign->element, state_value(t, PD_PARAM, i));
    }
    OK(pd_reader_read(r, (uint32_t)found, &all, values, err));
    cr_assert_eq(memcmp(values, expected, elements * sizeof *values), 0, "tensor %u", t);
    free(values);
    free(expected);
}

static void check_exported(struct exported *x)
{
    struct pd_catalog c;
    struct pd_reader *r = NULL;
    const struct pd_format *format;
    OK(pd_format_of(x->s.vfs, "/out", &format, err));
    pd_catalog_init(&c, format->name);
    OK(format->read(x->s.vfs, "/out", &c, err));
    OK(pd_catalog_finish(&c, err));
    cr_assert_not_null(pd_catalog_text(&c, "config.json"));
    OK(pd_reader_open(x->s.vfs, &c, x->buffers, PD_READER_BUFFER_BYTES_MIN, &r, err));
    for (uint32_t t = 0; t < STATE_TENSORS; t++)
        check_tensor(x, &c, r, t);
    pd_reader_close(r);
    pd_catalog_deinit(&c);
}

/* Of parameters, as they lie in the checkpoint; *ret_boxes of them. */
static uint64_t stored_bytes(const struct pd_catalog *c, uint64_t *ret_boxes)
{
    uint64_t bytes = 0;
    *ret_boxes = 0;
    for (uint32_t t = 0; t < c->tensor_count; t++) {
        if (c->tensors[t].kind != PD_PARAM) continue;
        bytes += pd_foreign_bytes(&c->tensors[t]);
        *ret_boxes += c->tensors[t].piece_count;
    }
    return bytes;
}

/* Each byte once; a box may end within a block of 64 KiB. */
static void check_bytes_read(const struct exported *x, const struct pd_export_report *report)
{
    uint64_t boxes;
    const uint64_t bytes = stored_bytes(&x->source, &boxes);
    cr_assert(report->bytes_read >= bytes && report->bytes_read <= bytes + boxes * PD_SHARD_BLOCK_BYTES,
              "%.3f times what %d boxes have", (double)report->bytes_read / (double)bytes, (int)boxes);
}

static void export_once(uint64_t seed, bool is_large, bool compresses, enum pd_element element, uint64_t shard_bytes)
{
    struct exported x;
    struct pd_export_report report = {0};
    setup(&x, seed, is_large, compresses, element);
    OK(export_it(&x, shard_bytes, &report, err));
    cr_assert_eq(report.tensors, STATE_TENSORS);
    cr_assert(shard_bytes ? report.files > 1 : report.files == 1);
    cr_assert_geq(report.bytes_read_back, report.bytes_written);
    if (is_large && !compresses) check_bytes_read(&x, &report);
    check_exported(&x);
    teardown(&x);
}

Test(export, from_any_layout)
{
    static const enum pd_element elements[] = {PD_ELEMENT_F32, PD_ELEMENT_BF16, PD_ELEMENT_F16};
    for (uint64_t seed = 1; seed <= 9; seed++)
        export_once(seed, false, seed % 2, elements[seed % 3], seed % 2 ? 0 : 100000);
}

Test(export, of_tensors_larger_than_bands)
{
    export_once(1, true, false, PD_ELEMENT_F32, 0);
    export_once(2, true, true, PD_ELEMENT_BF16, 5000000);
}

/* What lies turned there lies straight then, and the other way round. */
static void export_again(uint64_t seed, bool is_large, enum pd_element element)
{
    struct exported x;
    setup(&x, seed, is_large, false, PD_ELEMENT_F32);
    OK(export_it(&x, 0, NULL, err));
    OK(pd_vfs_rename(x.s.vfs, "/out", "/foreign", err));
    pd_catalog_deinit(&x.source);
    pd_catalog_deinit(&x.wanted);
    x.from = &pd_format_safetensors;
    x.stored = "/foreign";
    x.source_links = x.links;
    x.links = (struct pd_links){0};
    want(&x, element);
    OK(export_it(&x, 0, NULL, err));
    check_exported(&x);
    teardown(&x);
}

Test(export, from_another_system)
{
    export_again(1, false, PD_ELEMENT_BF16);
    export_again(2, true, PD_ELEMENT_F32);
}

Test(export, a_damaged_source_leaves_nothing)
{
    struct exported x;
    struct pd_stat stat;
    struct pd_file *file;
    unsigned char byte;
    setup(&x, 4, false, false, PD_ELEMENT_F32);
    pd_catalog_init(&x.source, "perdure");
    OK(pd_format_perdure.read(x.s.vfs, "/stored", &x.source, err));
    OK(pd_catalog_finish(&x.source, err));
    const struct pd_piece *piece = &x.source.pieces[x.source.tensors[0].piece_begin];
    const uint64_t at = piece->offset + 5;
    char path[64];
    snprintf(path, sizeof path, "%s", x.source.files[piece->file].path);
    pd_catalog_deinit(&x.source);
    OK(pd_file_open(x.s.vfs, path, PD_OPEN_READ | PD_OPEN_WRITE, &file, err));
    OK(pd_file_read(file, at, &byte, 1, err));
    byte ^= 4;
    OK(pd_file_write(file, at, &byte, 1, err));
    OK(pd_file_close(file, err));
    const pd_status st = export_it(&x, 0, NULL, &x.error);
    cr_assert_eq(st, PD_CORRUPT, "%s", x.error.message);
    cr_assert_not_null(strstr(x.error.message, path), "%s", x.error.message);
    cr_assert_eq(pd_vfs_stat(x.s.vfs, "/out", &stat, NULL), PD_NOT_FOUND);
    cr_assert_eq(pd_vfs_stat(x.s.vfs, "/out.exporting", &stat, NULL), PD_NOT_FOUND);
    teardown(&x);
}

/* Returns whether there was an operation to hit. */
static bool export_on_a_bad_disk(enum pd_disk_fault_kind kind, uint64_t nth)
{
    struct exported x;
    struct pd_stat stat;
    const struct pd_disk_fault fault = {.kind = kind, .nth = nth};
    setup(&x, 5, false, false, PD_ELEMENT_BF16);
    pd_simulated_disk_set_fault(x.s.disk, &fault);
    const pd_status st = export_it(&x, 100000, NULL, &x.error);
    const bool fired = pd_simulated_disk_fired(x.s.disk) > 0;
    pd_simulated_disk_set_fault(x.s.disk, NULL);
    if (pd_vfs_stat(x.s.vfs, "/out", &stat, NULL) == PD_OK) check_exported(&x);
    cr_assert(st || pd_vfs_stat(x.s.vfs, "/out", &stat, NULL) == PD_OK, "%d %d", (int)kind, (int)nth);
    cr_assert(fired || !st, "%s", x.error.message);
    teardown(&x);
    return fired;
}

/* What has its name is what was stored, whatever the disk did. */
Test(export, on_a_bad_disk)
{
    static const enum pd_disk_fault_kind kinds[] = {PD_DISK_FAULT_ERROR, PD_DISK_FAULT_TORN, PD_DISK_FAULT_LOST,
                                                    PD_DISK_FAULT_MISDIRECTED, PD_DISK_FAULT_FLIP};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (uint64_t nth = test_first(0, test_stride(7)); export_on_a_bad_disk(kinds[k], nth);)
            nth += test_stride(7);
}

Test(export, what_cannot_be_is_refused_by_name)
{
    struct exported x;
    setup(&x, 4, false, false, PD_ELEMENT_F32);
    free(x.links.items[3].name);
    x.links.items[3].name = strdup("another");
    cr_assert_eq(export_it(&x, 0, NULL, &x.error), PD_INVALID);
    cr_assert_not_null(strstr(x.error.message, "/stored has nothing to make param of tensor foreign.3 from"), "%s",
                       x.error.message);
    teardown(&x);
    setup(&x, 4, false, false, PD_ELEMENT_F32);
    OK(pd_vfs_mkdir(x.s.vfs, "/out", err));
    cr_assert_eq(export_it(&x, 0, NULL, &x.error), PD_USAGE);
    cr_assert_not_null(strstr(x.error.message, "/out exists already"), "%s", x.error.message);
    teardown(&x);
}

Test(export, what_a_killed_one_left_is_cleared)
{
    struct exported x;
    struct pd_file *file;
    struct pd_stat stat;
    setup(&x, 2, false, false, PD_ELEMENT_F32);
    OK(pd_vfs_mkdir(x.s.vfs, "/out.exporting", err));
    OK(pd_file_open(x.s.vfs, "/out.exporting/model.safetensors", PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    OK(pd_file_close(file, err));
    OK(export_it(&x, 0, NULL, err));
    check_exported(&x);
    cr_assert_eq(pd_vfs_stat(x.s.vfs, "/out.exporting", &stat, NULL), PD_NOT_FOUND);
    teardown(&x);
}

/* Returns whether it was stopped. */
static bool stop_export(uint64_t nth)
{
    struct exported x;
    struct pd_stat stat;
    setup(&x, 2, false, false, PD_ELEMENT_BF16);
    questions_left = nth;
    const pd_status st = export_it(&x, 100000, NULL, &x.error);
    if (st) {
        cr_assert_eq(st, PD_STOPPED, "%s", x.error.message);
        cr_assert_str_eq(x.error.message, "asked to leave: what was written of /out is removed");
        cr_assert_eq(pd_vfs_stat(x.s.vfs, "/out", &stat, NULL), PD_NOT_FOUND);
        cr_assert_eq(pd_vfs_stat(x.s.vfs, "/out.exporting", &stat, NULL), PD_NOT_FOUND);
        cr_assert_eq(pd_vfs_stat(x.s.vfs, "/out.exporting.lock", &stat, NULL), PD_NOT_FOUND);
    } else {
        check_exported(&x);
    }
    teardown(&x);
    return st != PD_OK;
}

Test(export, asked_to_leave_at_any_question_leaves_nothing)
{
    uint64_t nth = 0;
    while (stop_export(nth))
        nth++;
    cr_assert_gt(nth, 2 * STATE_TENSORS, "bands, files and pieces ask, and not %d times in all", (int)nth);
}

static pd_status begin(struct exported *x, struct pd_catalog *wanted, struct pd_export **ret_export)
{
    return pd_export_begin(x->s.vfs, &pd_format_safetensors, wanted, "/out", 0, ret_export, &x->error);
}

Test(export, two_at_once_do_not_share_a_destination)
{
    struct exported x;
    struct pd_export *first = NULL, *second = NULL;
    struct pd_file *file;
    struct pd_stat stat;
    struct pd_catalog wanted;
    setup(&x, 2, false, false, PD_ELEMENT_F32);
    pd_catalog_init(&wanted, "safetensors");
    OK(pd_file_open(x.s.vfs, "/out.exporting.lock", PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err)); /* of a killed one */
    OK(pd_file_close(file, err));
    cr_assert_eq(begin(&x, &x.wanted, &first), PD_OK, "%s", x.error.message);
    cr_assert_eq(begin(&x, &wanted, &second), PD_BUSY);
    cr_assert_not_null(strstr(x.error.message, "another process is exporting to /out"), "%s", x.error.message);
    OK(pd_vfs_stat(x.s.vfs, "/out.exporting", &stat, err)); /* the first one's */
    cr_assert_eq(pd_export_end(first, PD_STOPPED, NULL), PD_STOPPED);
    cr_assert_eq(pd_vfs_stat(x.s.vfs, "/out.exporting.lock", &stat, NULL), PD_NOT_FOUND);
    pd_catalog_deinit(&wanted);
    teardown(&x);
}

/* ---- where it goes ---- */

static void refuse_destination(struct exported *x, const char *destination, pd_status status, const char *says)
{
    struct pd_export *export = NULL;
    cr_assert_eq(pd_export_begin(x->s.vfs, &pd_format_safetensors, &x->wanted, destination, 0, &export, &x->error), status,
                 "%s: %s", destination, x->error.message);
    cr_assert(strstr(x->error.message, says), "%s, not %s", x->error.message, says);
}

Test(export, destinations_that_cannot_be_are_refused)
{
    struct exported x;
    struct pd_stat stat;
    char path[PD_FORMATS_PATH_MAX] = "/";
    setup(&x, 2, false, false, PD_ELEMENT_F32);
    refuse_destination(&x, "", PD_INVALID, "\"\" is not a path to export to");
    memset(path + 1, 'a', sizeof path - 2);
    refuse_destination(&x, path, PD_INVALID, "is not a path to export to");
    refuse_destination(&x, "/nowhere/out", PD_NOT_FOUND, "the directory above /nowhere/out does not exist");
    OK(pd_simulated_symlink(x.s.vfs, "/nothing", "/link"));
    refuse_destination(&x, "/link", PD_USAGE, "/link exists already");
    size_t length = (size_t)snprintf(path, sizeof path, "/out.exporting");
    for (int depth = 0; depth < 6; depth++) { /* deeper than any format goes: not what an export left */
        OK(pd_vfs_mkdir(x.s.vfs, path, err));
        length += (size_t)snprintf(path + length, sizeof path - length, "/a");
    }
    refuse_destination(&x, "/out", PD_INVALID, "deeper in each other than they are ever made");
    path[length - 2] = '\0';
    OK(pd_vfs_stat(x.s.vfs, path, &stat, err));
    teardown(&x);
}

static const struct pd_vfs_ops *whole_ops;

static int no_space(struct pd_vfs *vfs, const char *path, struct pd_space *ret_space)
{
    const int result = whole_ops->space(vfs, path, ret_space);
    ret_space->available_bytes = 100;
    return result;
}

Test(export, without_room_nothing_is_made)
{
    struct exported x;
    struct pd_stat stat;
    setup(&x, 2, false, false, PD_ELEMENT_F32);
    struct pd_vfs_ops ops = *(whole_ops = x.s.vfs->ops);
    ops.space = no_space;
    x.s.vfs->ops = &ops;
    refuse_destination(&x, "/out", PD_NO_SPACE, "0.0 are free there; free some space");
    x.s.vfs->ops = whole_ops;
    cr_assert_eq(pd_vfs_stat(x.s.vfs, "/out.exporting", &stat, NULL), PD_NOT_FOUND);
    teardown(&x);
}

/* Slashes behind the name are nothing; without locks and syncs of directories there is one export all the same. */
Test(export, on_a_file_system_without_locks)
{
    struct exported x;
    setup(&x, 2, false, false, PD_ELEMENT_F32);
    x.destination = "/out//";
    pd_simulated_disk_set_lacks(x.s.disk, "/", PD_DISK_NO_LOCKS | PD_DISK_NO_PREALLOCATE | PD_DISK_NO_SYNC_DIR);
    OK(export_it(&x, 0, NULL, err));
    check_exported(&x);
    teardown(&x);
}

/* ---- views ---- */

/* Columns of a wider tensor: what is read in one piece goes to many places. */
Test(export, into_columns_of_a_wider_tensor)
{
    struct exported x;
    setup(&x, 3, false, false, PD_ELEMENT_F32);
    pd_catalog_deinit(&x.wanted);
    pd_links_deinit(&x.links);
    pd_catalog_init(&x.wanted, "safetensors");
    for (uint32_t t = 0; t < STATE_TENSORS; t++) {
        const struct pd_tensor *tensor = &x.s.tensors[t];
        const uint64_t rows = tensor->shape[0], columns = tensor->shape[1];
        char name[64];
        snprintf(name, sizeof name, "foreign.%u", t);
        const struct pd_foreign_tensor foreign = {
            .name = name, .element = PD_ELEMENT_F32, .ndim = 2, .shape = {rows, columns + 5, 1, 1, 1, 1, 1, 1}};
        struct pd_link link = {.tensor = t, .name = name, .view = pd_view_dense(tensor)};
        link.view = (struct pd_view){.ndim = 2, .offset = 2, .count = {rows, columns}, .stride = {columns + 5, 1}};
        OK(pd_catalog_add_tensor(&x.wanted, &foreign, NULL, err));
        OK(pd_links_add(&x.links, &link, err));
    }
    OK(pd_catalog_add_text(&x.wanted, "config.json", "{}", 2, err));
    OK(export_it(&x, 0, NULL, err));
    check_exported(&x);
    teardown(&x);
}

static void is_no_float(struct exported *x)
{
    x->source.tensors[pd_catalog_find(&x->source, x->s.tensors[4].name, PD_PARAM)].element = PD_ELEMENT_I64;
}

static void has_fewer(struct exported *x)
{
    x->links.items[4].view.count[0]--;
}

static void goes_beyond(struct exported *x)
{
    x->links.items[4].view.offset += 3 * x->s.tensors[4].shape[1];
}

static void overlaps(struct exported *x)
{
    x->links.items[4].view.stride[0] = 1;
}

/* Rows of one side are no rows of the other, and no elements follow one another in both. */
static void is_no_pair(struct exported *x)
{
    struct pd_tensor *tensor = &x->s.tensors[4];
    const uint64_t rows = tensor->shape[0], columns = tensor->shape[1];
    const struct pd_link link = {
        .tensor = 4, .name = tensor->name, .view = {.ndim = 2, .count = {columns, rows}, .stride = {1, columns}}};
    OK(pd_links_add(&x->source_links, &link, err));
    x->links.items[4].view = (struct pd_view){.ndim = 2, .count = {rows, columns}, .stride = {columns + 1, 1}};
}

static void from_beyond(struct exported *x)
{
    struct pd_link link = {.tensor = 4, .name = x->s.tensors[4].name, .view = pd_view_dense(&x->s.tensors[4])};
    link.view.offset = 1;
    OK(pd_links_add(&x->source_links, &link, err));
}

static void from_fewer(struct exported *x)
{
    struct pd_link link = {.tensor = 4, .name = x->s.tensors[4].name, .view = pd_view_dense(&x->s.tensors[4])};
    link.view.count[0]--;
    OK(pd_links_add(&x->source_links, &link, err));
}

Test(export, views_that_do_not_fit_are_refused)
{
    static const struct {
        void (*alter)(struct exported *x);
        pd_status status;
        const char *says;
    } rows[] = {
        {is_no_float, PD_INVALID, "and weights are never of that type"},
        {has_fewer, PD_INVALID, "does not have the shape that foreign.4 needs"},
        {goes_beyond, PD_INVALID, "does not have the shape that foreign.4 needs"},
        {from_beyond, PD_INVALID, "does not have the shape that foreign.4 needs"},
        {from_fewer, PD_INVALID, "does not have the shape that foreign.4 needs"},
        {overlaps, PD_UNSUPPORTED, "the view of tensor layers.4.weight in foreign.4 overlaps itself"},
        {is_no_pair, PD_UNSUPPORTED, "cannot become foreign.4 in one step: import it first, then export that"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct exported x;
        struct pd_stat stat;
        setup(&x, 4, true, false, PD_ELEMENT_F32);
        x.alter = rows[i].alter;
        cr_assert_eq(export_it(&x, 0, NULL, &x.error), rows[i].status, "%zu: %s", i, x.error.message);
        cr_assert(strstr(x.error.message, rows[i].says), "%s, not %s", x.error.message, rows[i].says);
        cr_assert_eq(pd_vfs_stat(x.s.vfs, "/out.exporting", &stat, NULL), PD_NOT_FOUND);
        teardown(&x);
    }
}
