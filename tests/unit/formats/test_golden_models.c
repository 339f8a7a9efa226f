/* Models that transformers and llm.c wrote themselves (tests/golden/formats/make_transformers.py, make_llmc.py): element i of tensor
 * number t is ((i * 37 + t * 11) mod 101) / 64 - 0.75, exact in fp32, bf16 and fp16. */
#include "resharder/formats/format.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN PERDURE_SOURCE_DIR "/tests/golden/formats/"

static struct pd_error err;

static void open_golden(const char *path, const char *name, struct pd_vfs **ret_vfs, struct pd_catalog *c)
{
    const struct pd_format *format = NULL;
    cr_assert_eq(pd_vfs_new_threads(4, 1, ret_vfs, &err), PD_OK);
    cr_assert_eq(pd_format_of(*ret_vfs, path, &format, &err), PD_OK, "%s", err.message);
    cr_assert_str_eq(format->name, name);
    pd_catalog_init(c, format->name);
    cr_assert_eq(format->read(*ret_vfs, path, c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_finish(c, &err), PD_OK, "%s", err.message);
}

static void read_piece(struct pd_vfs *vfs, const struct pd_catalog *c, const struct pd_foreign_tensor *t, uint64_t piece,
                       float *values)
{
    static unsigned char bytes[1 << 14];
    const struct pd_piece *p = &c->pieces[piece];
    struct pd_file *file = NULL;
    cr_assert_eq(pd_file_open(vfs, c->files[p->file].path, PD_OPEN_READ, &file, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_file_read(file, p->offset, bytes, pd_foreign_bytes(t), &err), PD_OK, "%s", err.message);
    pd_elements[t->element].to_f32(bytes, pd_foreign_elements(t), values);
    pd_file_close_readonly(file);
}

/* used  elements that are no padding */
static void check_tensor(struct pd_vfs *vfs, const struct pd_catalog *c, const struct pd_foreign_tensor *t, uint64_t number,
                         uint64_t used)
{
    static float values[1 << 12];
    const uint64_t elements = pd_foreign_elements(t);
    cr_assert(elements <= 1 << 12 && t->kind == PD_PARAM && t->piece_count == 1, "%s", t->name);
    read_piece(vfs, c, t, t->piece_begin, values);
    for (uint64_t i = 0; i < elements; i++) {
        const float expected = i < used ? (float)((i * 37 + number * 11) % 101) / 64 - 0.75f : 0;
        cr_assert_eq(values[i], expected, "%s: element %d is %g, not %g", t->name, (int)i, (double)values[i],
                     (double)expected);
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct pd_foreign_tensor *const *)a)->name, (*(const struct pd_foreign_tensor *const *)b)->name);
}

static void check_transformers(const char *path, uint32_t tensors, uint32_t files, enum pd_element element)
{
    const struct pd_foreign_tensor *sorted[64];
    struct pd_vfs *vfs = NULL;
    struct pd_catalog c;
    open_golden(path, "safetensors", &vfs, &c);
    cr_assert(c.tensor_count == tensors && tensors <= 64 && c.file_count == files, "%u tensors in %u files", c.tensor_count,
              c.file_count);
    cr_assert_eq(c.unmapped_count, 0);
    cr_assert(pd_catalog_text(&c, "config.json") && pd_catalog_text(&c, "generation_config.json"));
    for (uint32_t t = 0; t < tensors; t++)
        sorted[t] = &c.tensors[t];
    qsort(sorted, tensors, sizeof *sorted, by_name);
    for (uint32_t t = 0; t < tensors; t++) {
        cr_assert_eq(sorted[t]->element, element, "%s", sorted[t]->name);
        check_tensor(vfs, &c, sorted[t], t, UINT64_MAX);
    }
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
}

Test(golden_models, shards_of_transformers_have_their_values)
{
    check_transformers(GOLDEN "transformers/llama", 20, 6, PD_ELEMENT_F32);
}

Test(golden_models, one_file_of_transformers_has_its_values)
{
    check_transformers(GOLDEN "transformers/qwen3", 25, 1, PD_ELEMENT_BF16);
    check_transformers(GOLDEN "transformers/gpt2", 28, 1, PD_ELEMENT_F16);
}

Test(golden_models, what_llmc_wrote_has_its_values)
{
    static const char *const names[] = {"wte",  "wpe",  "ln1w", "ln1b", "qkvw",    "qkvb",    "attprojw", "attprojb",
                                        "ln2w", "ln2b", "fcw",  "fcb",  "fcprojw", "fcprojb", "lnfw",     "lnfb"};
    struct pd_vfs *vfs = NULL;
    struct pd_catalog c;
    open_golden(GOLDEN "llmc/model_00000003.bin", "llmc", &vfs, &c);
    cr_assert_eq(c.tensor_count, 16);
    for (uint64_t t = 0; t < 16; t++) {
        const int64_t found = pd_catalog_find(&c, names[t], PD_PARAM);
        cr_assert(found >= 0 && c.tensors[found].element == PD_ELEMENT_BF16, "%s", names[t]);
        check_tensor(vfs, &c, &c.tensors[found], t, t ? UINT64_MAX : 100 * 16); /* 28 rows of the vocabulary pad */
    }
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
}
