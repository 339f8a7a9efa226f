/* Listed checkpoints: tensors of every type, cut over ranks that are threads, saved on a simulated disk and read back through
 * the format, the inspector and the slices. */
#include "ckpt/inspect/inspect.h"
#include "resharder/catalog/slice.h"
#include "resharder/formats/perdure.h"
#include "tests/helpers/local_group.h"
#include "tests/simulated_disk/simulated_disk.h"
#include "tools/library/listed.h"
#include "tools/library/writer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(expression)                                                               \
    do {                                                                             \
        const pd_status ok_st_ = (expression);                                       \
        cr_assert_eq(ok_st_, PD_OK, "%s: %s", pd_status_name(ok_st_), err->message); \
    } while (0)

enum { ROWS = 1200, COLUMNS = 70, RANKS = 3 };

static struct pd_error error, *err = &error;
static struct pd_simulated_disk *disk;
static struct pd_vfs *vfs;

static void setup(void)
{
    const struct pd_disk_options options = {.seed = 5};
    OK(pd_simulated_disk_new(&options, &disk, err));
    OK(pd_simulated_disk_vfs(disk, 0, &vfs, err));
}

static void teardown(void)
{
    pd_vfs_free(vfs);
    pd_simulated_disk_free(disk);
}

TestSuite(listed, .init = setup, .fini = teardown);

/* Byte `at` of tensor `name`, whatever its type; of bool 0 or 1. */
static unsigned char byte_of(const char *name, enum perdure_dtype dtype, uint64_t step, uint64_t at)
{
    const uint64_t x = (at + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ step * 77 ^ (uint64_t)name[0] << 40;
    return dtype == PERDURE_BOOL ? x >> 33 & 1 : (unsigned char)(x >> 29);
}

static uint32_t bytes_of(enum perdure_dtype dtype)
{
    uint32_t bytes = 0;
    cr_assert(perdure_dtype_block(dtype, NULL, &bytes));
    return bytes;
}

/* The elements of a piece of a matrix, or of all of it. */
static void *fill(const struct perdure_piece *p, uint64_t step)
{
    const uint32_t size = bytes_of(p->dtype);
    const uint64_t rows = p->ndim > 0 ? p->count[0] : 1, columns = p->ndim > 1 ? p->count[1] : 1,
                   width = p->ndim > 1 ? p->shape[1] : 1;
    unsigned char *data = malloc(rows * columns * size);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = 0; i < columns * size; i++)
            data[r * columns * size + i] =
                byte_of(p->name, p->dtype, step, ((p->start[0] + r) * width + p->start[1]) * size + i);
    return data;
}

struct job {
    uint64_t step;
    const char *compression;
    uint32_t keep_last;
    pd_status wanted;
    char message[400];                                                            /* part of what a failure says */
    void (*change)(struct perdure_piece *pieces, uint64_t *count, uint32_t rank); /* or NULL */
};

static const enum perdure_dtype types[] = {PERDURE_F32, PERDURE_BF16,    PERDURE_F16, PERDURE_F64, PERDURE_F8_E4M3,
                                           PERDURE_I8,  PERDURE_F8_E5M2, PERDURE_I16, PERDURE_I32, PERDURE_I64,
                                           PERDURE_U8,  PERDURE_U16,     PERDURE_U32, PERDURE_U64, PERDURE_BOOL};
enum { TYPES = sizeof types / sizeof *types };

/* A matrix of each type cut by rows, one with moments cut by columns, and on rank 1 a scalar and an object. */
static uint64_t make_pieces(uint32_t rank, struct perdure_piece *pieces, char names[][16])
{
    uint64_t n = 0;
    for (uint32_t t = 0; t < TYPES; t++) {
        snprintf(names[t], 16, "%c of type %u", 'a' + (char)t, t);
        const uint64_t rows = t % 4 ? ROWS : 5, begin = rows * rank / RANKS, end = rows * (rank + 1) / RANKS;
        pieces[n++] = (struct perdure_piece){.name = names[t],
                                             .dtype = types[t],
                                             .ndim = 2,
                                             .shape = {rows, COLUMNS},
                                             .start = {begin},
                                             .count = {end - begin, COLUMNS}};
    }
    for (uint32_t kind = 0; kind < 3; kind++) {
        const uint64_t begin = COLUMNS * rank / RANKS, end = COLUMNS * (rank + 1) / RANKS;
        pieces[n++] = (struct perdure_piece){.name = "trained",
                                             .kind = (enum perdure_kind)kind,
                                             .dtype = kind ? PERDURE_F32 : PERDURE_BF16,
                                             .ndim = 2,
                                             .shape = {ROWS, COLUMNS},
                                             .start = {0, begin},
                                             .count = {ROWS, end - begin}};
    }
    if (rank != 1) return n;
    pieces[n++] = (struct perdure_piece){.name = "scalar", .dtype = PERDURE_I64};
    pieces[n++] = (struct perdure_piece){
        .name = "object/100%", .dtype = PERDURE_U8, .is_bytes = 1, .ndim = 1, .shape = {77}, .count = {77}};
    return n;
}

static pd_status save_rank(struct pd_group *group, void *context, struct pd_error *own)
{
    const struct job *job = context;
    struct perdure_piece pieces[TYPES + 6];
    char names[TYPES][16];
    struct perdure_writer_options options = PERDURE_WRITER_OPTIONS;
    struct perdure_writer *writer = NULL;
    struct perdure_save save = PERDURE_SAVE;
    if (job->compression) options.compression = job->compression;
    options.keep_last = job->keep_last;
    uint64_t count = make_pieces(group->rank, pieces, names);
    const uint64_t made = count;
    if (job->change) job->change(pieces, &count, group->rank);
    for (uint64_t i = 0; i < made; i++)
        pieces[i].data = fill(&pieces[i], job->step);
    save.step = job->step, save.pieces = pieces, save.piece_count = count, save.metadata = "notes";
    pd_status st = pd_writer_open(vfs, group, "/dir", &options, &writer, own);
    if (!st) st = pd_writer_save(writer, &save, own);
    perdure_writer_close(writer);
    for (uint64_t i = 0; i < made; i++)
        free((void *)(uintptr_t)pieces[i].data);
    return st;
}

static void save(struct job job)
{
    error = (struct pd_error){0};
    const pd_status st = pd_group_run_local(RANKS, 1, save_rank, &job, err);
    cr_assert_eq(st, job.wanted, "%s: %s", pd_status_name(st), err->message);
    cr_assert(strstr(err->message, job.message), "%s", err->message);
}

/* No checksum is wrong, and the index is right. */
static void check_whole(const char *path)
{
    struct pd_inspect *inspect = NULL;
    struct pd_damage_list list;
    OK(pd_inspect_open(vfs, path, &inspect, err));
    OK(pd_inspect_verify(inspect, NULL, NULL, (pd_should_stop){0}, &list, err));
    cr_assert_eq(list.count, 0, "%s", list.count ? list.items[0].text : "");
    OK(pd_inspect_check_index(inspect, err));
    pd_damage_list_deinit(&list);
    pd_inspect_close(inspect);
}

static void open_catalog(const char *path, struct pd_catalog *ret_catalog)
{
    pd_catalog_init(ret_catalog, "perdure");
    OK(pd_format_perdure.read(vfs, path, ret_catalog, err));
    OK(pd_catalog_finish(ret_catalog, err));
}

/* Every tensor of a catalog, whole, is what was saved. */
static void check(const char *path, uint64_t step)
{
    struct pd_catalog c;
    struct pd_slicer *slicer = NULL;
    check_whole(path);
    open_catalog(path, &c);
    cr_assert_eq(c.tensor_count, TYPES + 3 + 2);
    cr_assert_eq(c.counters.step, step);
    cr_assert_str_eq(pd_catalog_text(&c, PD_FORMAT_LISTED_TEXT)->text, "notes");
    OK(pd_slicer_new(vfs, &c, &slicer, err));
    for (uint32_t t = 0; t < c.tensor_count; t++) {
        const struct pd_foreign_tensor *tensor = &c.tensors[t];
        char name[PD_TENSOR_NAME_MAX];
        snprintf(name, sizeof name, "%s", tensor->name);
        pd_listed_text(name);
        const uint64_t bytes = pd_foreign_bytes(tensor);
        struct pd_slice slice = {.tensor = t, .to = malloc(bytes)};
        memcpy(slice.count, tensor->shape, sizeof slice.count);
        OK(pd_slicer_read(slicer, &slice, 1, NULL, NULL, NULL, err));
        cr_assert_eq(tensor->is_bytes, !strcmp(name, "object/100%"));
        for (uint64_t i = 0; i < bytes; i++)
            cr_assert_eq(((unsigned char *)slice.to)[i],
                         byte_of(name, tensor->element == PD_ELEMENT_BOOL ? PERDURE_BOOL : PERDURE_U8, step, i),
                         "%s, byte %d", name, (int)i);
        free(slice.to);
    }
    pd_slicer_free(slicer);
    pd_catalog_deinit(&c);
}

Test(listed, every_type_from_three_ranks)
{
    save((struct job){.step = 7});
    check("/dir/step-000000000007-1", 7);
    save((struct job){.step = 9, .compression = "zstd:1"});
    check("/dir/step-000000000009-2", 9);
    check("/dir/step-000000000007-1", 7);
}

Test(listed, an_earlier_step_is_newer_and_retention_counts)
{
    struct pd_commit commit;
    save((struct job){.step = 7});
    save((struct job){.step = 8});
    save((struct job){.step = 3, .keep_last = 2});
    OK(pd_commit_read(vfs, "/dir/step-000000000003-3/commit.h5", &commit, err));
    cr_assert_eq(commit.state.identity.lineage, 1);
    cr_assert(commit.state.layout.is_listed);
    cr_assert_eq(commit.state.updates, 3);
    pd_commit_deinit(&commit);
    cr_assert_eq(pd_commit_read(vfs, "/dir/step-000000000007-1/commit.h5", &commit, NULL), PD_NOT_FOUND);
    check("/dir/step-000000000008-2", 8);
    check("/dir/step-000000000003-3", 3);
}

static void overlap(struct perdure_piece *pieces, uint64_t *count, uint32_t rank)
{
    (void)count;
    if (rank == 2) pieces[1].start[0]--, pieces[1].count[0]++;
}

static void leave_gap(struct perdure_piece *pieces, uint64_t *count, uint32_t rank)
{
    (void)count;
    if (rank == 2) pieces[1].count[0]--;
}

static void other_shape(struct perdure_piece *pieces, uint64_t *count, uint32_t rank)
{
    (void)count;
    if (rank == 0) pieces[2].shape[1]++;
}

static void other_type(struct perdure_piece *pieces, uint64_t *count, uint32_t rank)
{
    (void)count;
    if (rank == 1) pieces[2].dtype = PERDURE_I16;
}

static void other_moments(struct perdure_piece *pieces, uint64_t *count, uint32_t rank)
{
    (void)count;
    if (rank == 1) pieces[TYPES + 2].dtype = PERDURE_BF16;
}

static void outside(struct perdure_piece *pieces, uint64_t *count, uint32_t rank)
{
    (void)count;
    if (rank == 1) pieces[0].start[1] = 1;
}

static void long_name(struct perdure_piece *pieces, uint64_t *count, uint32_t rank)
{
    static char name[200];
    memset(name, rank == 1 ? 'x' : 'y', sizeof name - 1);
    (void)count;
    if (rank == 1) pieces[0].name = name;
}

static void nothing(struct perdure_piece *pieces, uint64_t *count, uint32_t rank)
{
    (void)pieces, (void)rank;
    *count = 0;
}

static void moments_as_bytes(struct perdure_piece *pieces, uint64_t *count, uint32_t rank)
{
    (void)count;
    if (rank == 0) pieces[0].is_bytes = 1;
}

/* What ranks give wrong is refused on all of them by tensor and rank; the checkpoint before stays, and the next one works. */
Test(listed, refusals)
{
    save((struct job){.step = 1});
    save((struct job){.step = 2, .wanted = PD_INVALID, .change = overlap, .message = "ranks 1 and 2 give the same part"});
    save((struct job){.step = 2, .wanted = PD_INVALID, .change = leave_gap, .message = "elements; give all"});
    save((struct job){.step = 2, .wanted = PD_INVALID, .change = other_shape, .message = "rank 1: tensor c~20of"});
    save((struct job){.step = 2, .wanted = PD_INVALID, .change = other_type, .message = "has two types"});
    save((struct job){
        .step = 2, .wanted = PD_INVALID, .change = other_moments, .message = "moments of two types, fp32 and bf16"});
    save((struct job){.step = 2, .wanted = PD_INVALID, .change = outside, .message = "leaves dimension 1"});
    save((struct job){.step = 2, .wanted = PD_INVALID, .change = long_name, .message = "too long"});
    save((struct job){.step = 2, .wanted = PD_INVALID, .change = nothing, .message = "nothing to save"});
    save((struct job){.step = 2, .wanted = PD_INVALID, .change = moments_as_bytes, .message = "is of bytes"});
    save((struct job){.step = 2, .wanted = PD_INVALID, .compression = "lzma", .message = "expected none, or zstd"});
    check("/dir/step-000000000001-1", 1);
    save((struct job){.step = 2});
    check("/dir/step-000000000002-11", 2);
}

/* ---- shapes that no row of a shard can hold ---- */

enum { DEEP_ROWS = 6, DEEP_ROW = 3 * 2 * 2 * 70 * 40 };

/* Tensors of 5 and of 8 dimensions, the first cut over the ranks along dimension 1, and ones without elements. `wrong`: what one
 * rank does otherwise. */
static uint64_t make_deep(uint32_t rank, unsigned wrong, const float *rows, struct perdure_piece *pieces)
{
    uint64_t n = 0;
    pieces[n++] = (struct perdure_piece){
        .name = "deep",
        .ndim = 5,
        .shape = {1, DEEP_ROWS, 3, wrong == 1 && rank == 1 ? 280 : 4, wrong == 1 && rank == 1 ? 40 : 2800},
        .start = {0, 2 * rank},
        .count = {1, 2, 3, 4, 2800},
        .data = rows + (size_t)2 * rank * 3 * 4 * 2800};
    memcpy(pieces[0].count + 2, pieces[0].shape + 2, 3 * sizeof *pieces[0].shape);
    for (uint32_t kind = 0; rank == 2 && kind < 3; kind++)
        pieces[n++] = (struct perdure_piece){.name = "deepest",
                                             .kind = (enum perdure_kind)kind,
                                             .ndim = wrong == 2 ? 9 : 8,
                                             .shape = {DEEP_ROWS, 3, 2, 2, 5, 7, 4, 20},
                                             .count = {DEEP_ROWS, 3, 2, 2, 5, wrong == 3 ? 6 : 7, 4, 20},
                                             .data = rows + kind};
    if (rank == 2) return n;
    pieces[n++] = (struct perdure_piece){.name = "empty",
                                         .dtype = PERDURE_I16,
                                         .ndim = 2,
                                         .shape = {wrong == 4 && rank == 1 ? 1 : 0, 3},
                                         .count = {wrong == 4 && rank == 1 ? 1 : 0, 3},
                                         .data = wrong == 4 && rank == 1 ? rows : NULL};
    if (wrong == 5 && rank == 1) pieces[n - 1].dtype = PERDURE_I32;
    pieces[n++] = (struct perdure_piece){.name = "no bytes", .dtype = PERDURE_U8, .is_bytes = 1, .ndim = 1};
    return n;
}

struct deep_job {
    const float *rows;
    unsigned wrong;
    const char *compression;
};

static pd_status save_deep(struct pd_group *group, void *context, struct pd_error *own)
{
    const struct deep_job *job = context;
    struct perdure_piece pieces[8];
    struct perdure_writer_options options = PERDURE_WRITER_OPTIONS;
    struct perdure_writer *writer = NULL;
    struct perdure_save save = PERDURE_SAVE;
    options.compression = job->compression;
    save.step = 1, save.pieces = pieces, save.piece_count = make_deep(group->rank, job->wrong, job->rows, pieces);
    pd_status st = pd_writer_open(vfs, group, "/dir", &options, &writer, own);
    if (!st) st = pd_writer_save(writer, &save, own);
    perdure_writer_close(writer);
    return st;
}

static void check_deep(const char *path, const float *rows)
{
    static const uint64_t shapes[][8] = {{1, DEEP_ROWS, 3, 4, 2800, 1, 1, 1},
                                         {DEEP_ROWS, 3, 2, 2, 5, 7, 4, 20},
                                         {0, 3, 1, 1, 1, 1, 1, 1},
                                         {0, 1, 1, 1, 1, 1, 1, 1}};
    static const struct {
        const char *name;
        uint32_t shape, ndim;
        enum pd_element element;
    } wanted[] = {{"deep", 0, 5, PD_ELEMENT_F32},    {"deepest", 1, 8, PD_ELEMENT_F32}, {"deepest", 1, 8, PD_ELEMENT_F32},
                  {"deepest", 1, 8, PD_ELEMENT_F32}, {"empty", 2, 2, PD_ELEMENT_I16},   {"no~20bytes", 3, 1, PD_ELEMENT_U8}};
    struct pd_catalog c;
    struct pd_slicer *slicer = NULL;
    check_whole(path);
    open_catalog(path, &c);
    OK(pd_slicer_new(vfs, &c, &slicer, err));
    cr_assert_eq(c.tensor_count, sizeof wanted / sizeof *wanted);
    for (uint32_t t = 0; t < c.tensor_count; t++) {
        const struct pd_foreign_tensor *tensor = &c.tensors[t];
        cr_assert_str_eq(tensor->name, wanted[t].name);
        cr_assert_eq(tensor->ndim, wanted[t].ndim);
        cr_assert_eq(tensor->element, wanted[t].element);
        cr_assert_eq(tensor->is_bytes, t == 5);
        cr_assert_arr_eq(tensor->shape, shapes[wanted[t].shape], sizeof tensor->shape);
        const uint64_t bytes = pd_foreign_bytes(tensor);
        struct pd_slice slice = {.tensor = t, .to = malloc(bytes + 1)};
        memcpy(slice.count, tensor->shape, sizeof slice.count);
        OK(pd_slicer_read(slicer, &slice, 1, NULL, NULL, NULL, err));
        cr_assert_arr_eq(slice.to, rows + (tensor->ndim == 8 ? tensor->kind : 0), bytes);
        if (tensor->ndim == 5) { /* a part along each dimension */
            memcpy(slice.start, (uint64_t[]){0, 3, 1, 2, 2000}, 5 * sizeof *slice.start);
            memcpy(slice.count, (uint64_t[]){1, 1, 1, 1, 9}, 5 * sizeof *slice.count);
            OK(pd_slicer_read(slicer, &slice, 1, NULL, NULL, NULL, err));
            cr_assert_arr_eq(slice.to, rows + ((3 * 3 + 1) * 4 + 2) * 2800 + 2000, 9 * sizeof *rows);
        }
        free(slice.to);
    }
    pd_slicer_free(slicer);
    pd_catalog_deinit(&c);
}

Test(listed, shapes_of_many_dimensions_and_without_elements)
{
    float *rows = malloc((DEEP_ROWS * DEEP_ROW + 3) * sizeof *rows);
    static const char *const messages[] = {"",
                                           "two shapes",
                                           "9 dimensions, and a checkpoint has 8",
                                           "cut along dimension 5",
                                           "empty has two shapes",
                                           "empty has two types"};
    for (uint32_t i = 0; i < DEEP_ROWS * DEEP_ROW + 3; i++)
        rows[i] = (float)i;
    for (unsigned wrong = 5; wrong > 0; wrong--) {
        struct deep_job job = {rows, wrong, "none"};
        error = (struct pd_error){0};
        cr_assert_eq(pd_group_run_local(RANKS, 1, save_deep, &job, err), PD_INVALID, "%u", wrong);
        cr_assert(strstr(err->message, messages[wrong]), "%u: %s", wrong, err->message);
    }
    for (int round = 0; round < 2; round++) {
        struct deep_job job = {rows, 0, round ? "zstd:1" : "none"};
        char path[64];
        OK(pd_group_run_local(RANKS, 1, save_deep, &job, err));
        snprintf(path, sizeof path, "/dir/step-000000000001-%d", 6 + round);
        check_deep(path, rows);
    }
    free(rows);
}

static int stop(void *context, uint64_t done, uint64_t total)
{
    (void)total;
    return (*(int *)context)-- == 0 || (done && *(int *)context == -100);
}

/* A caller that stops a save leaves no trace of it; the writer goes on. */
Test(listed, a_save_is_stopped)
{
    struct perdure_writer *writer = NULL;
    struct perdure_writer_options options = PERDURE_WRITER_OPTIONS;
    const float value = 3;
    const struct perdure_piece piece = {.name = "x", .data = &value};
    OK(pd_writer_open(vfs, NULL, "/dir", &options, &writer, err));
    for (int asks = 0; asks < 2; asks++) {
        int left = asks;
        const struct perdure_watch watch = {&left, stop, NULL};
        struct perdure_save save = PERDURE_SAVE;
        save.step = 4, save.pieces = &piece, save.piece_count = 1, save.watch = &watch;
        cr_assert_eq(pd_writer_save(writer, &save, err), PD_STOPPED);
    }
    struct pd_listing listing;
    OK(pd_vfs_list(vfs, "/dir", &listing, err));
    for (uint32_t i = 0; i < listing.count; i++)
        cr_assert_neq(strncmp(listing.names[i], "step-", 5), 0, "%s", listing.names[i]);
    pd_listing_deinit(&listing);
    struct perdure_save save = PERDURE_SAVE;
    save.step = 4, save.pieces = &piece, save.piece_count = 1;
    OK(pd_writer_save(writer, &save, err));
    cr_assert_eq(pd_writer_save(writer, &save, err), PD_EXISTS, "%s", err->message);
    perdure_writer_close(writer);
}

Test(listed, names)
{
    char name[PD_TENSOR_NAME_MAX];
    const char *const texts[] = {"model.layers.0", "a b", "~", "50%/[x]", "..", ".", "\xc3\xa9", "~2g~20"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        OK(pd_listed_name(texts[i], name, err));
        for (const char *c = name; *c; c++)
            cr_assert(*c > ' ' && !strchr("/%[]", *c), "%s", name);
        pd_listed_text(name);
        cr_assert_str_eq(name, texts[i]);
    }
    cr_assert_eq(pd_listed_name("", name, err), PD_INVALID);
}
