/* Buckets that no checkpoint of ours has: made ones, whose elements say where they belong, and those that are refused. */
#include "resharder/catalog/read.h"
#include "resharder/formats/megatron.h"
#include "tests/simulated_disk/simulated_disk.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_FLOATS = 4096 };

static struct pd_error err;
#define OK(expression) cr_assert_eq(expression, PD_OK, "%s", err.message)

#define BUCKET(group, buffer, kind) \
    "optimizer.distributed.dp_group_idx_" #group ".gbuf_idx_" #buffer ".dtype_(torch.bfloat16).bucket_idx_0." kind
#define EMBEDDING "embedding.word_embeddings.weight"
#define NORM "decoder.final_layernorm.weight"
#define FC1 "decoder.layers.0.mlp.linear_fc1.weight"
#define FC2 "decoder.layers.0.mlp.linear_fc2.weight"

/* From float number `at` of the file on; stride 0: dense. */
struct part {
    const char *name;
    uint32_t ndim;
    uint64_t shape[4], at, stride;
    enum pd_element element;
};

struct scene {
    struct pd_simulated_disk *disk;
    struct pd_vfs *vfs;
    struct pd_catalog catalog;
};

static void add_part(struct pd_catalog *c, const struct part *part)
{
    struct pd_foreign_tensor tensor = {.name = (char *)(uintptr_t)part->name, .element = part->element, .ndim = part->ndim};
    struct pd_piece piece = {.offset = part->at * sizeof(float), .stride = {part->stride}};
    uint32_t number;
    for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
        piece.count[d] = tensor.shape[d] = d < part->ndim ? part->shape[d] : 1;
    OK(pd_catalog_add_tensor(c, &tensor, &number, &err));
    OK(pd_catalog_add_piece(c, number, &piece, &err));
}

static void make_scene(struct scene *s, const float values[FILE_FLOATS], const struct part *parts)
{
    const struct pd_disk_options options = {.seed = 1};
    struct pd_file *file = NULL;
    OK(pd_simulated_disk_new(&options, &s->disk, &err));
    OK(pd_simulated_disk_vfs(s->disk, 0, &s->vfs, &err));
    OK(pd_file_open(s->vfs, "/data", PD_OPEN_WRITE | PD_OPEN_CREATE, &file, &err));
    OK(pd_file_write(file, 0, values, FILE_FLOATS * sizeof *values, &err));
    OK(pd_file_close(file, &err));
    pd_catalog_init(&s->catalog, "megatron");
    OK(pd_catalog_add_file(&s->catalog, "/data", FILE_FLOATS * sizeof *values, NULL, &err));
    for (const struct part *p = parts; p->name; p++)
        add_part(&s->catalog, p);
}

static void free_scene(struct scene *s)
{
    pd_catalog_deinit(&s->catalog);
    pd_vfs_free(s->vfs);
    pd_simulated_disk_free(s->disk);
}

static void read_tensor(struct scene *s, const char *name, enum pd_kind kind, float *values, uint64_t count)
{
    struct pd_reader *reader = NULL;
    void *buffers = aligned_alloc(PD_VFS_ALIGN, PD_READER_BUFFER_BYTES_MIN);
    const struct pd_view all = {.ndim = 1, .count = {count}, .stride = {1}};
    const int64_t found = pd_catalog_find(&s->catalog, name, kind);
    cr_assert_geq(found, 0, "%s %d", name, (int)kind);
    cr_assert_eq(pd_foreign_elements(&s->catalog.tensors[found]), count);
    OK(pd_reader_open(s->vfs, &s->catalog, buffers, PD_READER_BUFFER_BYTES_MIN, &reader, &err));
    OK(pd_reader_read(reader, (uint32_t)found, &all, values, &err));
    pd_reader_close(reader);
    free(buffers);
}

/* ---- what is spread ---- */

/* Two tensor ranks share one layer: of the gate and of what it multiplies each has rows, of the other matrix columns. */
Test(buckets, of_a_layer_with_a_number_of_its_own_that_two_ranks_share)
{
    static const struct part parts[] = {
        {FC1, 2, {8, 16}, 0, 0, PD_ELEMENT_F32},
        {FC2, 2, {16, 4}, 128, 0, PD_ELEMENT_F32},
        {BUCKET(0, 0, "param"), 1, {128}, 1000, 0, PD_ELEMENT_F32},
        {BUCKET(1, 0, "param"), 1, {128}, 1128, 0, PD_ELEMENT_F32},
        {BUCKET(0, 0, "exp_avg"), 1, {128}, 2000, 0, PD_ELEMENT_F32},
        {BUCKET(1, 0, "exp_avg"), 1, {128}, 2128, 0, PD_ELEMENT_F32},
        {BUCKET(0, 0, "exp_avg_sq"), 1, {128}, 3000, 0, PD_ELEMENT_F32},
        {BUCKET(1, 0, "exp_avg_sq"), 1, {128}, 3128, 0, PD_ELEMENT_F32},
        {0},
    };
    static float values[FILE_FLOATS];
    float found[128];
    struct scene s;
    for (int i = 0; i < 192; i++)
        values[i] = (float)(i + 1);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        for (int rank = 0; rank < 2; rank++) {
            float *bucket = values + 1000 * (kind + 1) + 128 * rank;
            for (int i = 0; i < 32; i++)
                bucket[i] = (float)(1000 * kind) + values[128 + i / 2 * 4 + 2 * rank + i % 2];
            for (int i = 0; i < 64; i++)
                bucket[64 + i] = (float)(1000 * kind) + values[(i / 32 * 4 + 2 * rank) * 16 + i % 32];
        }
    make_scene(&s, values, parts);
    OK(pd_megatron_spread_buckets(s.vfs, "/", &s.catalog, &err));
    OK(pd_catalog_finish(&s.catalog, &err));
    cr_assert_eq(s.catalog.tensor_count, 6u);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        read_tensor(&s, FC1, (enum pd_kind)kind, found, 128);
        for (int i = 0; i < 128; i++)
            cr_assert_eq(found[i], (float)(1000 * kind) + values[i], "fc1, kind %d, %d", kind, i);
        read_tensor(&s, FC2, (enum pd_kind)kind, found, 64);
        for (int i = 0; i < 64; i++)
            cr_assert_eq(found[i], (float)(1000 * kind) + values[128 + i], "fc2, kind %d, %d", kind, i);
    }
    free_scene(&s);
}

/* A normalization and an embedding in one bucket. */
#define ONE_BUCKET                                                                         \
    {NORM, 1, {64}, 0, 0, PD_ELEMENT_F32}, {EMBEDDING, 2, {2, 64}, 64, 0, PD_ELEMENT_F32}, \
        {BUCKET(0, 0, "exp_avg"), 1, {192}, 0, 0, PD_ELEMENT_F32},                         \
    {                                                                                      \
        BUCKET(0, 0, "exp_avg_sq"), 1, {192}, 0, 0, PD_ELEMENT_F32                         \
    }

Test(buckets, what_is_in_none_stays_as_it_is)
{
    static const struct part parts[] = {ONE_BUCKET,
                                        {BUCKET(0, 0, "param"), 1, {192}, 0, 0, PD_ELEMENT_F32},
                                        {"vision.weight", 1, {7}, 50, 0, PD_ELEMENT_F32},
                                        {0}};
    static float values[FILE_FLOATS];
    float found[192];
    struct scene s;
    for (int i = 0; i < FILE_FLOATS; i++)
        values[i] = (float)i;
    make_scene(&s, values, parts);
    OK(pd_catalog_add_text(&s.catalog, "config.json", "{}", 2, &err));
    OK(pd_catalog_add_unmapped(&s.catalog, "rng_state", &err));
    OK(pd_megatron_spread_buckets(s.vfs, "/", &s.catalog, &err));
    OK(pd_catalog_finish(&s.catalog, &err));
    cr_assert_eq(s.catalog.tensor_count, 7u);
    cr_assert(s.catalog.unmapped_count == 1 && pd_catalog_text(&s.catalog, "config.json"));
    read_tensor(&s, "vision.weight", PD_PARAM, found, 7);
    cr_assert(found[0] == 50 && found[6] == 56);
    read_tensor(&s, NORM, PD_EXP_AVG, found, 64);
    cr_assert(found[0] == 0 && found[63] == 63);
    read_tensor(&s, EMBEDDING, PD_EXP_AVG_SQ, found, 128);
    cr_assert(found[0] == 64 && found[127] == 191);
    free_scene(&s);
}

/* ---- what is refused ---- */

static const struct {
    struct part parts[8];
    pd_status status;
    const char *says;
} refusals[] = {
    {{{BUCKET(0, 1, "param"), 1, {64}, 0, 0, PD_ELEMENT_F32}}, PD_UNSUPPORTED, "of several types or virtual stages"},
    {{{BUCKET(0, 0, "param"), 2, {8, 8}, 0, 0, PD_ELEMENT_F32}}, PD_CORRUPT, "param is not a bucket"},
    {{{BUCKET(9, 0, "param"), 1, {64}, 0, 0, PD_ELEMENT_F32}}, PD_CORRUPT, "param is not a bucket"},
    {{ONE_BUCKET}, PD_CORRUPT, "bucket 0 of group 0 lacks one of param, exp_avg and exp_avg_sq"},
    {{ONE_BUCKET, {BUCKET(0, 0, "param"), 1, {128}, 0, 0, PD_ELEMENT_F32}},
     PD_CORRUPT,
     "bucket 0 of group 0 lacks one of param, exp_avg and exp_avg_sq"},
    {{{BUCKET(2, 0, "param"), 1, {64}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(2, 0, "exp_avg"), 1, {64}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(2, 0, "exp_avg_sq"), 1, {64}, 0, 0, PD_ELEMENT_F32},
      {NORM, 1, {64}, 0, 0, PD_ELEMENT_F32}},
     PD_CORRUPT,
     "3 groups of buckets and 1 buckets"},
    {{{"optimizer.distributed.dp_group_idx_0.param", 1, {64}, 0, 0, PD_ELEMENT_F32},
      {"optimizer.distributed.dp_group_idx_x.bucket_idx_0.param", 1, {64}, 0, 0, PD_ELEMENT_F32},
      {"optimizer.distributed.dp_group_idx_0.gbuf_idx_0.bucket_idx_x.param", 1, {64}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(0, 0, "step"), 1, {64}, 0, 0, PD_ELEMENT_F32}},
     PD_CORRUPT,
     "0 groups of buckets and 0 buckets"},
    {{{NORM, 4, {2, 2, 2, 8}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(0, 0, "param"), 1, {64}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(0, 0, "exp_avg"), 1, {64}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(0, 0, "exp_avg_sq"), 1, {64}, 0, 0, PD_ELEMENT_F32}},
     PD_UNSUPPORTED,
     "in no order that we know"},
    {{{EMBEDDING, 2, {3, 64}, 0, 0, PD_ELEMENT_F32}, /* whose rows two ranks cannot share */
      {BUCKET(0, 0, "param"), 1, {96}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(0, 0, "exp_avg"), 1, {96}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(0, 0, "exp_avg_sq"), 1, {96}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(1, 0, "param"), 1, {96}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(1, 0, "exp_avg"), 1, {96}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(1, 0, "exp_avg_sq"), 1, {96}, 0, 0, PD_ELEMENT_F32}},
     PD_UNSUPPORTED,
     "in no order that we know"},
    {{{NORM, 1, {64}, 0, 0, PD_ELEMENT_Q8_0},
      {BUCKET(0, 0, "param"), 1, {64}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(0, 0, "exp_avg"), 1, {64}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(0, 0, "exp_avg_sq"), 1, {64}, 0, 0, PD_ELEMENT_F32}},
     PD_CORRUPT,
     "element 0 of decoder.final_layernorm.weight is nowhere"},
    {{{NORM, 1, {64}, 0, 2, PD_ELEMENT_F32}, /* every other float */
      {BUCKET(0, 0, "param"), 1, {64}, 0, 2, PD_ELEMENT_F32},
      {BUCKET(0, 0, "exp_avg"), 1, {64}, 0, 0, PD_ELEMENT_F32},
      {BUCKET(0, 0, "exp_avg_sq"), 1, {64}, 0, 0, PD_ELEMENT_F32}},
     PD_UNSUPPORTED,
     "pieces of " BUCKET(0, 0, "param") " have strides"},
};

Test(buckets, that_cannot_be_are_refused)
{
    static float values[FILE_FLOATS];
    for (int i = 0; i < FILE_FLOATS; i++)
        values[i] = (float)i;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct scene s;
        make_scene(&s, values, refusals[i].parts);
        cr_assert_eq(pd_megatron_spread_buckets(s.vfs, "/", &s.catalog, &err), refusals[i].status, "%zu: %s", i,
                     err.message);
        cr_assert(strstr(err.message, refusals[i].says), "%zu: %s, not %s", i, err.message, refusals[i].says);
        free_scene(&s);
    }
}
