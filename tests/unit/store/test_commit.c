#include "ckpt/base/digest.h"
#include "ckpt/shard/table.h"
#include "ckpt/store/commit.h"
#include "tests/unit/shard/shard_fixture.h"

#include <math.h>

static struct pd_commit example(uint32_t shards)
{
    struct pd_commit c = {.shard_count = shards};
    c.state = (struct pd_run_state){.identity = {{0x1122334455667788, 0x99aabbccddeeff00}, 2, 1200},
                                    .fence = 5,
                                    .updates = 1198,
                                    .samples = 9600,
                                    .tokens = 4915200,
                                    .loss_scale = 65536.0,
                                    .loss_scale_good_steps = 17,
                                    .skipped_steps = 2,
                                    .seed = 42,
                                    .data_fingerprint = {3, 4},
                                    .tokenizer_digest = 0x123456789abcdef0,
                                    .guard = {2.5, 0.125, 400, 1100, 2, 1},
                                    .agreed_step = 1184,
                                    .last_loss = 2.34375,
                                    .best_validation_loss = NAN,
                                    .tensor_count = 39,
                                    .parameter_count = 1048576,
                                    .created_by = "perdure 0.1.0"};
    c.state.layout = (struct pd_layout){.dp = shards,
                                        .tp = 1,
                                        .pp = 1,
                                        .sp = 1,
                                        .ep = 2 - shards % 2,
                                        .virtual_tp = 1,
                                        .virtual_sp = 1,
                                        .zero_shard = shards,
                                        .zero_stage = 3,
                                        .interleave = 2,
                                        .small_bytes = 65536,
                                        .stage_count = 2,
                                        .first_unit = {0, 7}};
    c.state.config = strdup("model:\n  preset: tiny\n");
    c.state.environment = strdup("{\"perdure\": \"0.1.0\"}");
    c.shards = calloc(shards, sizeof *c.shards);
    for (uint32_t i = 0; i < shards; i++)
        c.shards[i] = (struct pd_shard_summary){4096 * (i + 3ull), 4096ull * i, 4096, 77 * i, 900, 12, i, i / 4};
    return c;
}

Test(commit, comes_back)
{
    struct pd_commit c = example(5), back = {0};
    void *data = NULL, *again = NULL;
    uint64_t bytes = 0, again_bytes = 0;
    OK(pd_commit_encode(&c, &data, &bytes, err));
    OK(pd_commit_encode(&c, &again, &again_bytes, err));
    cr_assert_eq(bytes, again_bytes);
    cr_assert_eq(memcmp(data, again, bytes), 0, "equal input gives equal bytes");
    OK(pd_commit_decode("commit.h5", data, bytes, &back, err));
    cr_assert_eq(memcmp(&back.state.identity, &c.state.identity, sizeof c.state.identity), 0);
    cr_assert_eq(back.state.fence, 5);
    cr_assert_eq(back.state.updates, 1198);
    cr_assert_eq(back.state.samples, 9600);
    cr_assert_eq(back.state.tokens, 4915200);
    cr_assert_eq(back.state.loss_scale, 65536.0);
    cr_assert_eq(back.state.loss_scale_good_steps, 17);
    cr_assert_eq(back.state.skipped_steps, 2);
    cr_assert_eq(back.state.seed, 42);
    cr_assert_eq(back.state.data_fingerprint[1], 4);
    cr_assert_eq(back.state.tokenizer_digest, 0x123456789abcdef0);
    cr_assert_eq(memcmp(&back.state.guard, &c.state.guard, sizeof c.state.guard), 0);
    cr_assert_eq(back.state.agreed_step, 1184);
    cr_assert_eq(back.state.last_loss, 2.34375);
    cr_assert(isnan(back.state.best_validation_loss));
    cr_assert_eq(back.state.tensor_count, 39);
    cr_assert_eq(back.state.parameter_count, 1048576);
    cr_assert_str_eq(back.state.created_by, "perdure 0.1.0");
    cr_assert_str_eq(back.state.config, c.state.config);
    cr_assert_str_eq(back.state.environment, c.state.environment);
    cr_assert_eq(memcmp(&back.state.layout, &c.state.layout, sizeof c.state.layout), 0);
    cr_assert_eq(back.shard_count, 5);
    cr_assert_eq(memcmp(back.shards, c.shards, 5 * sizeof *c.shards), 0);
    pd_commit_deinit(&back);
    pd_commit_deinit(&c);
    free(data);
    free(again);
}

/* Versions 2 and 4 were 1 and 3 with shards on several drives: neither read nor taken for damage. */
Test(commit, one_with_stripes_is_refused)
{
    struct pd_commit c = example(6), back = {0};
    struct pd_error refused = {0};
    void *data = NULL;
    uint64_t bytes = 0, digest;
    for (int moments = 0; moments < 2; moments++) {
        c.state.moments = moments ? PD_BF16 : PD_F32;
        OK(pd_commit_encode(&c, &data, &bytes, err));
        uint64_t *version = (uint64_t *)((char *)data + bytes - 4096 + 8);
        cr_assert_eq(*version, moments ? 3u : 1u);
        ++*version;
        digest = pd_digest64((char *)data + bytes - 4096, 4096 - sizeof digest, 0);
        memcpy((char *)data + bytes - sizeof digest, &digest, sizeof digest);
        cr_assert_eq(pd_commit_decode("commit.h5", data, bytes, &back, &refused), PD_UNSUPPORTED);
        cr_assert(strstr(refused.message, "checkpoint.stripes") && strstr(refused.message, "mdadm"), "%s", refused.message);
        free(data);
    }
    pd_commit_deinit(&c);
}

Test(commit, stays_small)
{
    static const struct {
        uint32_t shards;
        uint64_t bytes_max;
    } table[] = {{1, 65536}, {400, 65536}, {4096, 524288}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct pd_commit c = example(table[i].shards);
        void *data = NULL;
        uint64_t bytes = 0;
        OK(pd_commit_encode(&c, &data, &bytes, err));
        cr_assert_leq(bytes, table[i].bytes_max, "%u shards: %llu bytes", table[i].shards, (unsigned long long)bytes);
        free(data);
        pd_commit_deinit(&c);
    }
}

/* What can be written can be read: a record that would be too large is refused before anything depends on it. */
Test(commit, has_one_bound)
{
    struct pd_commit c = example((uint32_t)(PD_COMMIT_BYTES_MAX / 64));
    struct pd_layout *l = &c.state.layout;
    struct pd_error error = {0};
    void *data = NULL;
    uint64_t bytes = 0;
    l->dp = l->zero_shard = c.shard_count / 16;
    l->tp = l->virtual_tp = 16;
    cr_assert_eq(pd_commit_encode(&c, &data, &bytes, &error), PD_INVALID);
    cr_assert(strstr(error.message, "at most 64 MiB"), "%s", error.message);
    pd_commit_deinit(&c);
    c = example(1);
    free(c.state.config);
    c.state.config = calloc(1, PD_COMMIT_BYTES_MAX + 1);
    memset(c.state.config, 'x', PD_COMMIT_BYTES_MAX);
    cr_assert_eq(pd_commit_encode(&c, &data, &bytes, &error), PD_INVALID);
    pd_commit_deinit(&c);
}

Test(commit, what_no_reader_would_take_is_not_written)
{
    for (int flaw = 0; flaw < 4; flaw++) {
        static const char *const said[] = {"it lists 0 shards", "gives 0 stages", "gives 4294967295 stages", "created_by"};
        struct pd_commit c = example(2);
        struct pd_error error = {0};
        void *data = NULL;
        uint64_t bytes = 0;
        if (flaw == 0) c.shard_count = 0;
        if (flaw == 1) c.state.layout.stage_count = 0;
        if (flaw == 2) c.state.layout.stage_count = UINT32_MAX;
        if (flaw == 3) memset(c.state.created_by, 'x', sizeof c.state.created_by);
        cr_assert_eq(pd_commit_encode(&c, &data, &bytes, &error), PD_INVALID, "%s", said[flaw]);
        cr_assert(strstr(error.message, said[flaw]) && !data, "%s", error.message);
        pd_commit_deinit(&c);
    }
    pd_commit_deinit(NULL);
    pd_run_state_deinit(NULL);
}

Test(commit, every_flipped_bit_and_every_truncation_is_seen)
{
    struct pd_commit c = example(3), back = {0};
    void *data = NULL;
    uint64_t bytes = 0, random = 1;
    OK(pd_commit_encode(&c, &data, &bytes, err));
    unsigned flips = 1000 * fixture_scale();
    for (unsigned i = 0; i < flips; i++) {
        uint64_t bit = fixture_random(&random) % (bytes * 8);
        unsigned char *byte = (unsigned char *)data + bit / 8;
        struct pd_error err;
        *byte ^= (unsigned char)(1u << bit % 8);
        cr_assert_eq(pd_commit_decode("x/commit.h5", data, bytes, &back, &err), PD_CORRUPT, "bit %llu",
                     (unsigned long long)bit);
        cr_assert_not_null(strstr(err.message, "x/commit.h5"));
        *byte ^= (unsigned char)(1u << bit % 8);
    }
    for (uint64_t n = 0; n < bytes; n += n % 4096 < 520 || n % 4096 >= 4094 ? 1 : 17)
        cr_assert_eq(pd_commit_decode("commit.h5", data, n, &back, NULL), PD_CORRUPT, "%llu bytes", (unsigned long long)n);
    free(data);
    pd_commit_deinit(&c);
}

/* ---- records whose digests are right and whose numbers are not ---- */

enum { STATE, LAYOUT, FIRST_UNIT, SHARDS, TRAILER }; /* datasets in the order of the trailer's extents */

static void reseal(unsigned char *data, uint64_t bytes)
{
    const uint64_t body = pd_digest64(data, bytes - 4096, PD_SHARD_SEED);
    memcpy(data + bytes - 16, &body, sizeof body);
    const uint64_t self = pd_digest64(data + bytes - 4096, 4088, 0);
    memcpy(data + bytes - 8, &self, sizeof self);
}

static void set_word(unsigned char *data, uint64_t bytes, int dataset, unsigned word, uint64_t value)
{
    uint64_t offset = bytes - 4096;
    if (dataset != TRAILER) memcpy(&offset, data + bytes - 4096 + 32 + 16 * dataset, sizeof offset);
    memcpy(data + offset + 8 * word, &value, sizeof value);
    reseal(data, bytes);
}

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Words of FORMAT.md, counted from 0. The example has step 1200, 3 shards of 3 to 5 pages, two stages. */
Test(commit, a_sealed_record_of_nonsense_is_damage)
{
    const struct {
        int dataset;
        unsigned word;
        uint64_t value;
        const char *says;
    } cases[] = {
        {LAYOUT, 0, 0, "dp is 0"},
        {LAYOUT, 0, 4, "3 shards where its layout has 4"},
        {LAYOUT, 1, UINT32_MAX, "tp is 4294967295"},
        {LAYOUT, 2, 2, "pp 2 x interleave 2 gives 2 stages"},
        {LAYOUT, 3, 3, "sp 3 does not divide"},
        {LAYOUT, 4, 0, "virtual_tp is 0"},
        {LAYOUT, 4, 3, "virtual_tp is 3"},
        {LAYOUT, 5, 0, "virtual_sp is 0"},
        {LAYOUT, 6, 0, "zero_shard is 0"},
        {LAYOUT, 6, 100000, "zero_shard is 100000"},
        {LAYOUT, 7, 4, "zero_stage is 4"},
        {LAYOUT, 8, 0, "interleave 0"},
        {LAYOUT, 8, UINT32_MAX, "interleave 4294967295"},
        {LAYOUT, 10, 257, "stages"},
        {LAYOUT, 0, UINT64_MAX, "too large"},
        {FIRST_UNIT, 0, 1, "stage 0 starts at unit 1"},
        {FIRST_UNIT, 1, 0, "stage 1 starts at unit 0"},
        {STATE, 2, UINT64_MAX, "lineage is 18446744073709551615"},
        {STATE, 3, UINT64_MAX, "step is 18446744073709551615"},
        {STATE, 4, UINT64_MAX, "fence is"},
        {STATE, 5, UINT64_MAX, "updates is 18446744073709551615 and can be at most 1200"},
        {STATE, 5, 1201, "updates is 1201 and can be at most 1200"},
        {STATE, 6, UINT64_MAX, "samples is"},
        {STATE, 7, UINT64_MAX, "tokens is"},
        {STATE, 8, bits_of(NAN), "loss_scale is"},
        {STATE, 8, bits_of(INFINITY), "loss_scale is inf"},
        {STATE, 8, bits_of(0), "loss_scale is 0"},
        {STATE, 8, bits_of(-1), "loss_scale is -1"},
        {STATE, 8, 3, "loss_scale is 1.4"}, /* 0 to a rank, which takes subnormal numbers for that */
        {STATE, 8, bits_of(1e-300), "loss_scale is 1e-300 and must be from 2^-24 to 2^24"},
        {STATE, 8, bits_of(1e300), "loss_scale is 1e+300"},
        {STATE, 9, 1201, "loss_scale_good_steps is 1201"},
        {STATE, 10, 1201, "skipped_steps is 1201"},
        {STATE, 16, UINT64_C(1) << 32, "tensor_count is 4294967296"},
        {STATE, 17, UINT64_MAX, "parameter_count is"},
        {SHARDS, 0, 4096, "does not fit into a file of 4096 bytes"},
        {SHARDS, 0, 12289, "does not fit into a file of 12289 bytes"},
        {SHARDS, 0, UINT64_C(1) << 63, "cannot take 900 bytes"},
        {SHARDS, 1, 100, "a table of 4096 bytes at 100"},
        {SHARDS, 1, UINT64_MAX - 4095, "does not fit"},
        {SHARDS, 2, 0, "a table of 0 bytes"},
        {SHARDS, 2, 12288, "does not fit"},
        {SHARDS, 4, UINT64_MAX, "cannot take 18446744073709551615 bytes of data"},
        {SHARDS, 5, 43, "cannot hold 43 boxes"},
        {SHARDS, 7, UINT32_MAX, "no host 4294967295"},
        {TRAILER, 21, bits_of(NAN), "mean nan"},
        {TRAILER, 22, bits_of(-1), "variance -1"},
        {TRAILER, 23, 1201, "count of losses"},
        {TRAILER, 24, 1201, "last rolled back step is 1201"},
        {TRAILER, 25, UINT64_MAX, "rollbacks in a row"},
        {TRAILER, 26, UINT64_MAX, "skips in a row"},
        {TRAILER, 28, 1201, "agreed_step is 1201"},
    };
    struct pd_commit c = example(3), back = {0};
    void *sealed = NULL;
    uint64_t bytes = 0;
    OK(pd_commit_encode(&c, &sealed, &bytes, err));
    unsigned char *data = malloc(bytes);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_error error = {0};
        memcpy(data, sealed, bytes);
        set_word(data, bytes, cases[i].dataset, cases[i].word, cases[i].value);
        cr_assert_eq(pd_commit_decode("x/commit.h5", data, bytes, &back, &error), PD_CORRUPT, "%s", cases[i].says);
        cr_assert(strstr(error.message, "x/commit.h5") && strstr(error.message, cases[i].says), "%s: %s", cases[i].says,
                  error.message);
    }
    free(data);
    free(sealed);
    pd_commit_deinit(&c);
}

Test(commit, reading_a_file)
{
    struct fixture f;
    struct pd_commit c = example(2), back = {0};
    struct pd_error error;
    void *data = NULL;
    uint64_t bytes = 0;
    char path[256];
    fixture_init(&f, 1, 1);
    fixture_path(&f, "commit.h5", path, sizeof path);
    cr_assert_eq(pd_commit_read(f.vfs, path, &back, &error), PD_NOT_FOUND);
    OK(pd_commit_encode(&c, &data, &bytes, err));
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
    OK(pd_commit_read(f.vfs, path, &back, err));
    cr_assert_eq(back.shard_count, 2);
    pd_commit_deinit(&back);
    cr_assert_eq(truncate(path, (off_t)bytes - 4096), 0);
    cr_assert_eq(pd_commit_read(f.vfs, path, &back, &error), PD_CORRUPT);
    cr_assert_not_null(strstr(error.message, path));
    cr_assert_eq(truncate(path, (off_t)PD_COMMIT_BYTES_MAX + 4096), 0);
    cr_assert_eq(pd_commit_read(f.vfs, path, &back, &error), PD_CORRUPT);
    cr_assert(strstr(error.message, "at most 67108864"), "%s", error.message);
    free(data);
    pd_commit_deinit(&c);
    fixture_deinit(&f);
}
