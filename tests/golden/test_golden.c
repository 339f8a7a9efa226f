/* Files of format versions 1 to 6 as they were written once. Reading them must work for ever; writing the same state with
 * the same HDF5 library (and zstd) must give the same bytes. PERDURE_GOLDEN_WRITE=<directory> writes <directory>/v1 to v6:
 * for a new format version, never to make an old one pass. */
#include "ckpt/base/checked.h"
#include "ckpt/hdf5/h5.h"
#include "ckpt/inspect/inspect.h"
#include "ckpt/tensor/codec_zstd.h"
#include "tests/unit/inspect/checkpoint_fixture.h"

#include <math.h>

#define GOLDEN_HDF5 "1.10.8"
#define GOLDEN_ZSTD "1.5.4"

static const char *golden_directory(int version)
{
    static char path[4096];
    snprintf(path, sizeof path, PERDURE_SOURCE_DIR "/tests/golden/v%d", version);
    return path;
}

static bool has_chunks(int version)
{
    return version % 2 == 0;
}

/* Whose data is bf16. */
static bool is_narrow(const struct fixture *f, uint32_t box)
{
    return pd_tensor_dtype(&f->tensors.tensors[f->boxes[box].tensor], f->boxes[box].kind) == PD_BF16;
}

static void keep_moments_in_bf16(struct fixture *f)
{
    for (uint32_t t = 0; t < f->tensors.count; t++)
        f->tensors.tensors[t].moments = PD_BF16;
    for (uint32_t b = 0; b < f->box_count; b++)
        if (is_narrow(f, b)) pd_narrow_bf16(f->data[b], f->data[b], pd_box_elements(&f->boxes[b].box));
}

/* Two chunks, the second one short, of a pattern that becomes small. */
static void add_pattern(struct fixture *f)
{
    const uint64_t elements = 300000;
    fixture_tensor(f, 3, "pattern", 2, 300, 1000);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        fixture_box(f, 3, (enum pd_kind)kind, pd_box_whole(&f->tensors.tensors[3]), 0);
        float *values = f->data[f->box_count - 1];
        for (uint64_t i = 0; i < elements; i++)
            values[i] = (float)(i % 10 + (unsigned)kind);
    }
}

/* Tensors that a program listed: any type, any of the kinds. The data is a pattern of bytes. */
static void golden_listed(struct fixture *f, int version)
{
    const struct pd_tensor listed[] = {
        {.name = "frozen.weight", .ndim = 2, .shape = {30, 50, 1, 1}, .dtype = PD_BF16, .kinds = 1},
        {.name = "trained.weight", .ndim = 2, .shape = {60, 40, 1, 1}, .dtype = PD_F32, .moments = PD_BF16, .kinds = 7},
        {.name = "second.moment", .ndim = 1, .shape = {9, 1, 1, 1}, .moments = PD_F64, .kinds = 4},
        {.name = "step", .shape = {1, 1, 1, 1}, .dtype = PD_I64, .kinds = 1},
        {.name = "mask", .ndim = 4, .shape = {2, 3, 4, 5}, .dtype = PD_BOOL, .kinds = 1},
        {.name = "eight", .ndim = 3, .shape = {20, 30, 10, 1}, .dtype = PD_F8_E4M3, .kinds = 1},
        {.name = "other.eight", .ndim = 1, .shape = {7, 1, 1, 1}, .dtype = PD_F8_E5M2, .kinds = 1},
        {.name = "object", .ndim = 1, .shape = {100, 1, 1, 1}, .dtype = PD_U8, .kinds = 1, .is_bytes = true},
        {.name = "wide", .ndim = 2, .shape = {300, 1000, 1, 1}, .dtype = PD_U16, .kinds = 1},
    };
    enum { LISTED = sizeof listed / sizeof *listed };
    const uint32_t count = has_chunks(version) ? LISTED : LISTED - 1; /* wide: two chunks */
    fixture_init(f, count, 20);
    f->identity = (struct pd_identity){{0x0123456789abcdef, 0xfedcba9876543210}, 3, 41};
    f->tensors.is_listed = true;
    for (uint32_t t = 0; t < count; t++) {
        f->tensors.tensors[t] = listed[t];
        f->tensors.tensors[t].tp_dim = -1;
        f->tensors.tensors[t].tp_unit = 1;
        for (uint32_t kind = 0; kind < PD_KIND_COUNT; kind++) {
            if (!(listed[t].kinds >> kind & 1)) continue;
            fixture_box(f, t, (enum pd_kind)kind, pd_box_whole(&listed[t]), 0);
            const uint64_t bytes = pd_tensor_elements(&listed[t]) * pd_tensor_element_bytes(&listed[t], (enum pd_kind)kind);
            unsigned char *data = aligned_alloc(PD_VFS_ALIGN, pd_round_up(bytes, PD_VFS_ALIGN));
            for (uint64_t i = 0; i < bytes; i++)
                data[i] = listed[t].dtype == PD_BOOL ? i % 3 == 0 : (unsigned char)(i * 37 / 10 + kind);
            free(f->data[f->box_count - 1]);
            f->data[f->box_count - 1] = (void *)data;
        }
    }
}

static void golden_model(struct fixture *f, int version)
{
    if (version > 4) {
        golden_listed(f, version);
        return;
    }
    fixture_init(f, has_chunks(version) ? 4 : 3, 10);
    f->identity = (struct pd_identity){{0x0123456789abcdef, 0xfedcba9876543210}, 3, 41};
    fixture_tensor(f, 0, "model.embed_tokens.weight", 2, 30, 50);
    fixture_tensor(f, 1, "model.norm.weight", 1, 50, 1);
    fixture_tensor(f, 2, "scale", 1, 1, 1);
    f->tensors.tensors[0].tp_dim = 0;
    f->tensors.tensors[0].decay = true;
    f->tensors.tensors[1].unit = 2;
    for (uint32_t t = 0; t < 3; t++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            if (t < 2 || kind == 0) fixture_box(f, t, (enum pd_kind)kind, pd_box_whole(&f->tensors.tensors[t]), 0);
    if (has_chunks(version)) add_pattern(f);
    if (version > 2) keep_moments_in_bf16(f);
}

static struct pd_commit golden_commit(const struct fixture *f, struct pd_shard_summary *summary)
{
    struct pd_commit c = {.shard_count = 1, .shards = summary};
    c.state = (struct pd_run_state){.identity = f->identity,
                                    .fence = 4,
                                    .updates = 40,
                                    .samples = 328,
                                    .tokens = 167936,
                                    .loss_scale = 1.0,
                                    .seed = 1234,
                                    .data_fingerprint = {5, 6},
                                    .moments = f->tensors.tensors[0].moments,
                                    .last_loss = 3.25,
                                    .best_validation_loss = 3.5,
                                    .tensor_count = f->tensors.count,
                                    .parameter_count = 0,
                                    .created_by = "perdure 0.1.0",
                                    .config = (char *)(uintptr_t) "model: {preset: golden}\n",
                                    .environment = (char *)(uintptr_t) "{}"};
    if (f->tensors.is_listed) {
        c.state.moments = PD_F32;
        c.state.config = (char *)(uintptr_t) "any text\n";
        pd_layout_init_listed(&c.state.layout, 1);
    }
    for (uint32_t t = 0; t < f->tensors.count; t++)
        c.state.parameter_count += pd_tensor_elements(&f->tensors.tensors[t]);
    if (f->tensors.is_listed) return c;
    c.state.layout = (struct pd_layout){.dp = 1,
                                        .tp = 1,
                                        .pp = 1,
                                        .sp = 1,
                                        .ep = 1,
                                        .virtual_tp = 1,
                                        .virtual_sp = 1,
                                        .zero_shard = 1,
                                        .zero_stage = 3,
                                        .interleave = 1,
                                        .small_bytes = 65536,
                                        .stage_count = 1};
    return c;
}

static unsigned char *load_file(const char *path, uint64_t *ret_bytes)
{
    FILE *file = fopen(path, "rb");
    cr_assert(file && fseek(file, 0, SEEK_END) == 0, "%s", path);
    *ret_bytes = (uint64_t)ftell(file);
    unsigned char *data = malloc(*ret_bytes + 1);
    cr_assert(data && fseek(file, 0, SEEK_SET) == 0 && fread(data, 1, *ret_bytes, file) == *ret_bytes);
    fclose(file);
    return data;
}

static void write_all(struct fixture *f, int version, const char *directory, struct pd_shard_summary *ret_summary)
{
    const struct pd_shard_codec codec = {.codec = has_chunks(version) ? PD_CODEC_ZSTD : PD_CODEC_NONE, .level = 3};
    char path[4096];
    void *data = NULL;
    uint64_t bytes = 0;
    struct pd_shard_writer *writer = NULL;
    snprintf(path, sizeof path, "%s/shard-00000.h5", directory);
    OK(pd_shard_writer_new(f->vfs, &f->tensors, f->boxes, f->box_count, f->buffers, FIXTURE_BUFFER_BYTES, &codec, &writer,
                           err));
    OK(pd_shard_write(writer, path, &f->identity, 0, (const void *const *)f->data, ret_summary, err));
    pd_shard_writer_free(writer);
    struct pd_commit commit = golden_commit(f, ret_summary);
    OK(pd_commit_encode(&commit, &data, &bytes, err));
    snprintf(path, sizeof path, "%s/commit.h5", directory);
    checkpoint_write_file(path, data, bytes);
    free(data);
    const struct pd_index_source source = {"shard-00000.h5", f->boxes, f->box_count};
    OK(pd_index_build(&f->tensors, &source, 1, &data, &bytes, err));
    snprintf(path, sizeof path, "%s/index.h5", directory);
    checkpoint_write_file(path, data, bytes);
    free(data);
}

static void check_reading(int version)
{
    struct fixture f;
    struct pd_inspect *in = NULL;
    char path[4096];
    golden_model(&f, version);
    OK(pd_inspect_open(f.vfs, golden_directory(version), &in, err));
    OK(pd_inspect_check_complete(in, err));
    const struct pd_commit *commit = pd_inspect_commit(in);
    struct pd_shard_summary summary = commit->shards[0];
    struct pd_commit expected = golden_commit(&f, &summary);
    cr_assert_eq(memcmp(&commit->state.identity, &f.identity, sizeof f.identity), 0);
    cr_assert_eq(memcmp(&commit->state.layout, &expected.state.layout, sizeof expected.state.layout), 0);
    cr_assert_eq(commit->state.tokens, 167936);
    cr_assert_eq(commit->state.last_loss, 3.25);
    cr_assert_str_eq(commit->state.config, expected.state.config);
    cr_assert_eq(summary.box_count, f.box_count);
    struct pd_shard *shard = NULL;
    snprintf(path, sizeof path, "%s/shard-00000.h5", golden_directory(version));
    OK(pd_shard_open(f.vfs, path, &f.identity, NULL, &shard, err));
    for (uint32_t b = 0; b < f.box_count; b++) {
        const struct pd_shard_box *box = &f.boxes[b];
        const struct pd_tensor *tensor = &pd_inspect_tensors(in)->tensors[box->tensor];
        cr_assert_eq(memcmp(tensor, &f.tensors.tensors[box->tensor], sizeof *tensor), 0);
        const uint64_t blocks = pd_shard_block_count(shard, b);
        unsigned char *data = aligned_alloc(PD_VFS_ALIGN, blocks * PD_SHARD_BLOCK_BYTES);
        OK(pd_shard_read_blocks(shard, b, 0, blocks, data, err));
        cr_assert_eq(memcmp(data, f.data[b], pd_shard_box_bytes(shard, b)), 0);
        free(data);
    }
    pd_shard_close(shard);
    struct pd_damage_list damage = {0};
    OK(pd_inspect_verify(in, NULL, NULL, (pd_should_stop){0}, &damage, err));
    cr_assert_eq(damage.count, version > 4 ? 0 : 2, "two kinds of scale are not there, and nothing else is wrong");
    pd_damage_list_deinit(&damage);
    pd_inspect_close(in);
    fixture_deinit(&f);
}

Test(golden, versions_are_read)
{
    for (int version = 1; version <= 6; version++)
        check_reading(version);
}

static void check_writing(int version)
{
    static const char *const names[] = {"shard-00000.h5", "commit.h5", "index.h5"};
    struct fixture f;
    struct pd_shard_summary summary;
    golden_model(&f, version);
    const char *target = getenv("PERDURE_GOLDEN_WRITE");
    if (target) {
        char path[4096];
        snprintf(path, sizeof path, "%s/v%d", target, version);
        write_all(&f, version, path, &summary);
    }
    write_all(&f, version, f.directory, &summary);
    for (int i = 0; i < 3; i++) {
        char path[4096];
        uint64_t bytes = 0, expected_bytes = 0;
        snprintf(path, sizeof path, "%s/%s", f.directory, names[i]);
        unsigned char *data = load_file(path, &bytes);
        snprintf(path, sizeof path, "%s/%s", golden_directory(version), names[i]);
        unsigned char *expected = load_file(path, &expected_bytes);
        cr_assert_eq(bytes, expected_bytes, "%s", names[i]);
        for (uint64_t b = 0; b < bytes; b++)
            cr_assert_eq(data[b], expected[b], "%s, byte %llu", names[i], (unsigned long long)b);
        free(data);
        free(expected);
    }
    fixture_deinit(&f);
}

Test(golden, versions_are_written_byte_for_byte)
{
    if (strcmp(pd_h5_version(), GOLDEN_HDF5) != 0)
        cr_skip_test("HDF5 %s lays out metadata in its own way; the files are of " GOLDEN_HDF5, pd_h5_version());
    check_writing(1);
    check_writing(3);
    check_writing(5);
    if (strcmp(pd_zstd_version(), GOLDEN_ZSTD) != 0) return; /* others may find something shorter */
    check_writing(2);
    check_writing(4);
    check_writing(6);
}

/* Numbers that a second implementation must reproduce (FORMAT.md). */
Test(golden, digests_of_the_specification)
{
    struct pd_tensor tensor = {.name = "t", .ndim = 1, .shape = {4, 1, 1, 1}};
    struct pd_box whole = pd_box_whole(&tensor);
    const float values[4] = {0.0f, 1.0f, -2.5f, 1e-30f};
    struct pd_tensor_table table = {.tensors = &tensor, .count = 1};
    uint64_t digests[3] = {pd_tensor_digest(&tensor, &whole, PD_F32, values), 1, 2}, state = 0;
    OK(pd_state_digest(&table, digests, &state, err));
    cr_assert_eq(digests[0], UINT64_C(0x38773023db1018d9), "%016llx", (unsigned long long)digests[0]);
    cr_assert_eq(state, UINT64_C(0x9fd7c074ae6dc66b), "%016llx", (unsigned long long)state);
}
