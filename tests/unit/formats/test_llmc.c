/* Files made here after llm.c's description: three ranks of ZeRO-1 with fp32 parameters beside a bf16 model, and one with all. Runs
 * of llm.c shuffle unless they are told otherwise, and write the order of their samples behind a state. */
#include "resharder/formats/format.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONTEXT = 6, VOCAB = 10, PADDED = 12, LAYERS = 2, HEADS = 1, WIDTH = 6, TENSORS = 16 };
static const struct {
    const char *name;
    int layers;
    uint64_t size; /* of a layer */
} tensors[TENSORS] = {
    {"wte", 0, PADDED *WIDTH},
    {"wpe", 0, CONTEXT *WIDTH},
    {"ln1w", LAYERS, WIDTH},
    {"ln1b", LAYERS, WIDTH},
    {"qkvw", LAYERS, 3 * WIDTH *WIDTH},
    {"qkvb", LAYERS, 3 * WIDTH},
    {"attprojw", LAYERS, WIDTH *WIDTH},
    {"attprojb", LAYERS, WIDTH},
    {"ln2w", LAYERS, WIDTH},
    {"ln2b", LAYERS, WIDTH},
    {"fcw", LAYERS, 4 * WIDTH *WIDTH},
    {"fcb", LAYERS, 4 * WIDTH},
    {"fcprojw", LAYERS, 4 * WIDTH *WIDTH},
    {"fcprojb", LAYERS, WIDTH},
    {"lnfw", 0, WIDTH},
    {"lnfb", 0, WIDTH},
};

static struct pd_error err;
static char directory[32]; /* of the model that was made last */

static float value(enum pd_kind kind, int t, uint64_t i)
{
    return (float)(kind * 100000 + t * 5000) + (float)i;
}

static void write_file(const char *name, const int32_t *header, const void *data, size_t bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(header, 4, 256, f) == 256 && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0);
}

/* All of a kind that rank `rank` of `parts` has, as gpt2_update walks it. Returns the count. */
static size_t fill_kind(float *out, enum pd_kind kind, uint64_t rank, uint64_t parts)
{
    size_t n = 0;
    for (int t = 0; t < TENSORS; t++)
        for (uint64_t l = 0; l < (tensors[t].layers ? LAYERS : 1); l++)
            for (uint64_t i = 0; i < tensors[t].size / parts; i++)
                out[n++] = value(kind, t, l * tensors[t].size + rank * (tensors[t].size / parts) + i);
    return n;
}

/* Two shards, three samples, a generator.   Returns the bytes. */
static size_t fill_order(unsigned char *out)
{
    enum { SHARDS = 2, SAMPLES = 3, GENERATOR = 2520 };
    const uint64_t shards = SHARDS, samples = SAMPLES;
    memset(out, 1, 16 + 4 * (SHARDS + SAMPLES) + GENERATOR);
    memcpy(out, &shards, 8);
    memcpy(out + 8 + 4 * SHARDS, &samples, 8);
    return 16 + 4 * (SHARDS + SAMPLES) + GENERATOR;
}

static void write_checkpoint(uint64_t ranks, bool is_cut, bool has_order)
{
    static float state[3 * 4096 + 1024];
    static uint16_t model[4096];
    const int32_t model_header[256] = {20240326, 5, CONTEXT, VOCAB, LAYERS, HEADS, WIDTH, PADDED};
    const size_t elements = fill_kind(state, PD_PARAM, 0, 1);
    snprintf(directory, sizeof directory, "%s", "/tmp/perdure-llmc-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
    write_file("model_00000040.bin", model_header, model, elements * 2);
    for (uint64_t r = 0; r < ranks; r++) {
        static const enum pd_kind kinds[] = {PD_EXP_AVG, PD_EXP_AVG_SQ, PD_PARAM};
        const int32_t header[256] = {20240527, 1, (int32_t)ranks, (int32_t)r, 1, has_order, [10] = 40};
        char name[64];
        size_t n = 0, bytes;
        for (int k = 0; k < 3; k++)
            n += fill_kind(state + n, kinds[k], is_cut ? r : 0, is_cut ? ranks : 1);
        bytes = n * 4 + (has_order ? fill_order((unsigned char *)(state + n)) : 0);
        snprintf(name, sizeof name, "state_00000040_%05d.bin", (int)r);
        write_file(name, header, state, bytes);
    }
}

static void remove_checkpoint(uint64_t ranks)
{
    char path[256];
    for (uint64_t r = 0; r < ranks; r++) {
        snprintf(path, sizeof path, "%s/state_00000040_%05d.bin", directory, (int)r);
        remove(path);
    }
    snprintf(path, sizeof path, "%s/model_00000040.bin", directory);
    remove(path);
    cr_assert_eq(remove(directory), 0);
}

static void check_tensor(struct pd_vfs *vfs, const struct pd_catalog *c, int t, enum pd_kind kind)
{
    const int64_t found = pd_catalog_find(c, tensors[t].name, kind);
    uint64_t seen = 0;
    cr_assert(found >= 0, "%s %d", tensors[t].name, kind);
    const struct pd_foreign_tensor *tensor = &c->tensors[found];
    for (uint64_t p = tensor->piece_begin; p < tensor->piece_begin + tensor->piece_count; p++) {
        const struct pd_piece *piece = &c->pieces[p];
        struct pd_file *file = NULL;
        cr_assert_eq(piece->start[0], seen);
        cr_assert_eq(pd_file_open(vfs, c->files[piece->file].path, PD_OPEN_READ, &file, &err), PD_OK);
        for (uint64_t i = 0; i < piece->count[0]; i++, seen++) {
            float is = 0;
            cr_assert_eq(pd_file_read(file, piece->offset + 4 * i, &is, 4, &err), PD_OK, "%s", err.message);
            cr_assert_eq(is, value(kind, t, seen), "%s %d: element %d is %g", tensors[t].name, kind, (int)seen, (double)is);
        }
        pd_file_close_readonly(file);
    }
    cr_assert_eq(seen, tensors[t].size * (tensors[t].layers ? LAYERS : 1));
}

static void check(uint64_t ranks, bool is_cut, bool has_order)
{
    struct pd_vfs *vfs = NULL;
    const struct pd_format *format = NULL;
    struct pd_catalog c;
    char path[256];
    write_checkpoint(ranks, is_cut, has_order);
    snprintf(path, sizeof path, "%s%s", directory, has_order ? "" : "/model_00000040.bin");
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    cr_assert_eq(pd_format_of(vfs, path, &format, &err), PD_OK, "%s", err.message);
    cr_assert_str_eq(format->name, "llmc");
    pd_catalog_init(&c, format->name);
    cr_assert_eq(format->read(vfs, path, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_finish(&c, &err), PD_OK, "%s", err.message);
    for (int t = 0; t < TENSORS; t++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            check_tensor(vfs, &c, t, (enum pd_kind)kind);
    cr_assert(c.counters.has_step && c.counters.step == 40);
    cr_assert_eq(c.unmapped_count, has_order ? 1u : 0u);
    cr_assert_not_null(strstr(pd_catalog_text(&c, "config.json")->text, "\"n_embd\": 6"));
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
    remove_checkpoint(ranks);
}

Test(llmc, parts_of_three_ranks_are_whole_tensors)
{
    check(3, true, false);
}

Test(llmc, without_zero_the_first_rank_has_all)
{
    check(2, false, false);
}

Test(llmc, the_order_of_samples_behind_a_state_is_said_and_left)
{
    check(3, true, true);
    check(2, false, true);
    check(1, false, true);
}

Test(llmc, of_a_run_s_directory_the_newest_that_is_done_is_read)
{
    struct pd_vfs *vfs = NULL;
    struct pd_catalog c;
    char path[256], renamed[256];
    write_checkpoint(1, false, false);
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    write_file("DONE_00000040", (int32_t[256]){0}, "", 0);
    write_file("model_00000050.bin", (int32_t[256]){0}, "", 0); /* cut off, not done */
    pd_catalog_init(&c, "llmc");
    cr_assert_eq(pd_format_find("llmc")->read(vfs, directory, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(c.counters.step, 40u);
    pd_catalog_deinit(&c);
    snprintf(path, sizeof path, "%s/DONE_00000040", directory);
    snprintf(renamed, sizeof renamed, "%s/DONE_00000050", directory);
    cr_assert_eq(rename(path, renamed), 0);
    pd_catalog_init(&c, "llmc");
    cr_assert_eq(pd_format_find("llmc")->read(vfs, directory, &c, &err), PD_CORRUPT);
    cr_assert_not_null(strstr(err.message, "model_00000050.bin: begins with 0"), "%s", err.message);
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
    remove(renamed);
    snprintf(path, sizeof path, "%s/model_00000050.bin", directory);
    remove(path);
    remove_checkpoint(1);
}

Test(llmc, a_model_alone_has_its_own_parameters)
{
    struct pd_vfs *vfs = NULL;
    struct pd_catalog c;
    char path[256];
    write_checkpoint(0, false, false);
    snprintf(path, sizeof path, "%s/model_00000040.bin", directory);
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    pd_catalog_init(&c, "llmc");
    cr_assert_eq(pd_format_find("llmc")->read(vfs, path, &c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_finish(&c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(c.tensor_count, TENSORS);
    cr_assert_eq(c.tensors[0].element, PD_ELEMENT_BF16);
    pd_catalog_deinit(&c);
    cr_assert_eq(truncate(path, 2000), 0);
    pd_catalog_init(&c, "llmc");
    cr_assert_eq(pd_format_find("llmc")->read(vfs, path, &c, &err), PD_CORRUPT);
    cr_assert_not_null(strstr(err.message, "takes 2000 bytes"), "%s", err.message);
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
    remove_checkpoint(0);
}
