#include "resharder/formats/format.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN PERDURE_SOURCE_DIR "/tests/golden/formats/dcp"

static struct pd_error err;

/* As tests/golden/formats/make_torch.py has them. */
static const struct {
    const char *name;
    uint32_t ndim;
    uint64_t shape[2];
    enum pd_element element;
} golden[] = {
    {"tok_embeddings.weight", 2, {37, 8}, PD_ELEMENT_F32},
    {"layers.0.attention.wq.weight", 2, {12, 10}, PD_ELEMENT_F32},
    {"layers.0.attention_norm.weight", 1, {10, 1}, PD_ELEMENT_F32},
    {"layers.0.half.weight", 2, {6, 5}, PD_ELEMENT_BF16},
    {"norm.weight", 1, {3, 1}, PD_ELEMENT_F32},
};
enum { GOLDEN_COUNT = sizeof golden / sizeof *golden };

static float expected(uint32_t tensor, enum pd_kind kind, uint64_t i)
{
    if (golden[tensor].element == PD_ELEMENT_BF16) return (float)((i + tensor) % 128) - 64;
    return (float)((i * 40503 + tensor * 9973 + (uint64_t)kind * 12345) % 65521) / 64 - 500;
}

/* The piece that element (row, column) lies in, and its byte there. */
static uint64_t place(const struct pd_catalog *c, const struct pd_foreign_tensor *t, const uint64_t at[2],
                      uint32_t *ret_file)
{
    for (uint64_t i = t->piece_begin; i < t->piece_begin + t->piece_count; i++) {
        const struct pd_piece *p = &c->pieces[i];
        uint64_t offset = 0, dense = 1;
        bool is_inside = true;
        for (uint32_t d = t->ndim; d-- > 0; dense *= p->count[d]) {
            is_inside &= at[d] >= p->start[d] && at[d] - p->start[d] < p->count[d];
            offset += (at[d] - p->start[d]) * (p->stride[d] ? p->stride[d] : dense);
        }
        *ret_file = p->file;
        if (is_inside) return p->offset + offset * pd_elements[t->element].block_bytes;
    }
    cr_assert_fail("no piece of %s has (%d, %d)", t->name, (int)at[0], (int)at[1]);
    return 0;
}

static void check_tensor(struct pd_vfs *vfs, const struct pd_catalog *c, uint32_t number, enum pd_kind kind)
{
    const int64_t found = pd_catalog_find(c, golden[number].name, kind);
    cr_assert(found >= 0, "%s", golden[number].name);
    const struct pd_foreign_tensor *t = &c->tensors[found];
    cr_assert(t->element == golden[number].element && t->ndim == golden[number].ndim);
    cr_assert(t->shape[0] == golden[number].shape[0] && t->shape[1] == golden[number].shape[1]);
    for (uint64_t i = 0; i < t->shape[0] * t->shape[1]; i++) {
        unsigned char text[4];
        float value = 0;
        uint32_t number_of_file = 0;
        struct pd_file *file = NULL;
        const uint64_t offset = place(c, t, (uint64_t[]){i / t->shape[1], i % t->shape[1]}, &number_of_file);
        cr_assert_eq(pd_file_open(vfs, c->files[number_of_file].path, PD_OPEN_READ, &file, &err), PD_OK);
        cr_assert_eq(pd_file_read(file, offset, text, pd_elements[t->element].block_bytes, &err), PD_OK, "%s", err.message);
        pd_file_close_readonly(file);
        pd_elements[t->element].to_f32(text, 1, &value);
        cr_assert_eq(value, expected(number, kind, i), "%s %d: element %d is %g", t->name, kind, (int)i, (double)value);
    }
}

Test(dcp, a_checkpoint_of_four_ranks_reads_as_whole_tensors)
{
    struct pd_vfs *vfs = NULL;
    const struct pd_format *format = NULL;
    struct pd_catalog c;
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    cr_assert_eq(pd_format_of(vfs, GOLDEN, &format, &err), PD_OK, "%s", err.message);
    cr_assert_str_eq(format->name, "dcp");
    pd_catalog_init(&c, format->name);
    cr_assert_eq(format->read(vfs, GOLDEN, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_finish(&c, &err), PD_OK, "%s", err.message);
    for (uint32_t i = 0; i < GOLDEN_COUNT; i++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            check_tensor(vfs, &c, i, (enum pd_kind)kind);
    cr_assert_eq(c.tensor_count, GOLDEN_COUNT * PD_KIND_COUNT + 1); /* and the generator's state */
    cr_assert(c.counters.has_updates && c.counters.updates == 7);
    cr_assert(c.counters.has_step && c.counters.step == 9);
    cr_assert(c.counters.has_tokens && c.counters.tokens == UINT64_C(1) << 40);
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
}

/* What an export asks for: the golden tensors, to be written under `directory`. */
static void fill_wanted(struct pd_catalog *wanted)
{
    pd_catalog_init(wanted, "dcp");
    for (uint32_t i = 0; i < GOLDEN_COUNT; i++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            struct pd_foreign_tensor t = {.name = (char *)(uintptr_t)golden[i].name,
                                          .kind = (enum pd_kind)kind,
                                          .element = golden[i].element,
                                          .ndim = golden[i].ndim,
                                          .shape = {golden[i].shape[0], golden[i].shape[1], 1, 1, 1, 1, 1, 1}};
            cr_assert_eq(pd_catalog_add_tensor(wanted, &t, NULL, &err), PD_OK, "%s", err.message);
        }
    wanted->counters.has_updates = true;
    wanted->counters.updates = 7;
}

static void write_values(struct pd_vfs *vfs, const struct pd_format *format, void *state, const struct pd_catalog *wanted)
{
    for (uint32_t n = 0; n < wanted->tensor_count; n++) {
        const struct pd_foreign_tensor *t = &wanted->tensors[n];
        const struct pd_piece *piece = &wanted->pieces[t->piece_begin];
        const uint32_t size = pd_elements[t->element].block_bytes;
        unsigned char text[2048];
        struct pd_file *file = NULL;
        cr_assert_eq(t->piece_count, 1);
        for (uint64_t i = 0; i < pd_foreign_elements(t); i++) {
            const float value = expected(n / PD_KIND_COUNT, t->kind, i);
            pd_elements[t->element].from_f32(&value, 1, text + i * size);
        }
        format->observe(state, n, text, 5); /* in two parts */
        format->observe(state, n, text + 5, pd_foreign_bytes(t) - 5);
        cr_assert_eq(pd_file_open(vfs, wanted->files[piece->file].path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, &err), PD_OK);
        cr_assert_eq(pd_file_write(file, piece->offset, text, pd_foreign_bytes(t), &err), PD_OK);
        cr_assert_eq(pd_file_close(file, &err), PD_OK);
    }
}

Test(dcp, what_is_written_reads_back)
{
    struct pd_vfs *vfs = NULL;
    const struct pd_format *format = pd_format_find("dcp");
    struct pd_catalog wanted, c;
    char directory[] = "/tmp/perdure-dcp-XXXXXX", path[128];
    cr_assert_not_null(mkdtemp(directory));
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    fill_wanted(&wanted);
    struct pd_format_plan plan = {.directory = directory, .wanted = &wanted, .shard_bytes_max = 9000};
    void *state = NULL;
    cr_assert_eq(format->plan(vfs, &plan, &state, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_finish(&wanted, &err), PD_OK, "%s", err.message);
    write_values(vfs, format, state, &wanted);
    cr_assert_eq(format->finish(state, PD_OK, &err), PD_OK, "%s", err.message);
    pd_catalog_init(&c, "dcp");
    cr_assert_eq(format->read(vfs, directory, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_finish(&c, &err), PD_OK, "%s", err.message);
    for (uint32_t i = 0; i < GOLDEN_COUNT; i++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            check_tensor(vfs, &c, i, (enum pd_kind)kind);
    cr_assert(c.counters.has_updates && c.counters.updates == 7);
    cr_assert(c.file_count > 1);
    cr_assert_eq(c.unmapped_count, 0);
    for (uint32_t f = 0; f < wanted.file_count; f++)
        remove(wanted.files[f].path);
    snprintf(path, sizeof path, "%s/.metadata", directory);
    remove(path);
    cr_assert_eq(remove(directory), 0);
    pd_catalog_deinit(&c);
    pd_catalog_deinit(&wanted);
    pd_vfs_free(vfs);
}

/* Every file cut at every some bytes, and with bytes of `.metadata` changed: an error that names a file, or a catalog that
 * holds together. */
static void try_damaged(struct pd_vfs *vfs, const char *directory)
{
    struct pd_catalog c;
    pd_catalog_init(&c, "dcp");
    err.message[0] = '\0';
    pd_status st = pd_format_find("dcp")->read(vfs, directory, &c, &err);
    if (!st) st = pd_catalog_finish(&c, &err);
    if (st) cr_assert(err.message[0] != '\0');
    pd_catalog_deinit(&c);
}

static size_t slurp(const char *path, unsigned char *text, size_t most)
{
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f);
    const size_t bytes = fread(text, 1, most, f);
    fclose(f);
    return bytes;
}

static void spill(const char *path, const unsigned char *text, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(text, 1, bytes, f), bytes);
    fclose(f);
}

Test(dcp, damage_never_goes_through_unnoticed_or_crashes)
{
    static const char *const names[] = {".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp"};
    enum { NAMES = sizeof names / sizeof *names, MOST = 1 << 16 };
    static unsigned char texts[NAMES][MOST];
    size_t bytes[NAMES];
    struct pd_vfs *vfs = NULL;
    char directory[] = "/tmp/perdure-dcp-XXXXXX", path[128];
    cr_assert_not_null(mkdtemp(directory));
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    for (int i = 0; i < NAMES; i++) {
        snprintf(path, sizeof path, GOLDEN "/%s", names[i]);
        bytes[i] = slurp(path, texts[i], MOST);
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        spill(path, texts[i], bytes[i]);
    }
    uint64_t random = 1;
    for (int round = 0; round < 400; round++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const int file = round % 2 ? 0 : (int)(random >> 60) % NAMES;
        const size_t at = (size_t)(random >> 20) % bytes[file];
        snprintf(path, sizeof path, "%s/%s", directory, names[file]);
        const unsigned char was = texts[file][at];
        texts[file][at] = (unsigned char)(random >> 40);
        spill(path, texts[file], round % 5 == 4 ? at : bytes[file]);
        try_damaged(vfs, directory);
        texts[file][at] = was;
        spill(path, texts[file], bytes[file]);
    }
    for (int i = 0; i < NAMES; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        remove(path);
    }
    remove(directory);
    pd_vfs_free(vfs);
}
