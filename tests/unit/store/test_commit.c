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
                                        .virtual_tp = 1,
                                        .virtual_sp = 1,
                                        .zero_shard = shards,
                                        .zero_stage = 3,
                                        .interleave = 1,
                                        .small_bytes = 65536,
                                        .stage_count = 2,
                                        .first_unit = {0, 7}};
    c.state.config = strdup("model:\n  preset: tiny\n");
    c.state.environment = strdup("{\"perdure\": \"0.1.0\"}");
    c.shards = calloc(shards, sizeof *c.shards);
    for (uint32_t i = 0; i < shards; i++)
        c.shards[i] = (struct pd_shard_summary){1000 + i, 4096 * i, 4096, 77 * i, 900, 12, i, i / 4};
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

/* Stripes raise the version, since an older reader would look for other boxes; their absence leaves it. */
Test(commit, stripes_come_back)
{
    struct pd_commit c = example(6), back = {0};
    struct pd_layout *l = &c.state.layout;
    void *data = NULL;
    uint64_t bytes = 0, version = 0;
    l->dp = l->zero_shard = 2;
    for (uint32_t stripes = 0; stripes < 4; stripes++) {
        l->stripes = stripes;
        for (uint32_t s = 0; s < stripes; s++)
            l->stripe_weight[s] = (uint16_t)(100 + s);
        OK(pd_commit_encode(&c, &data, &bytes, err));
        memcpy(&version, (char *)data + bytes - 4096 + 8, sizeof version);
        cr_assert_eq(version, stripes > 1 ? 2u : 1u);
        OK(pd_commit_decode("commit.h5", data, bytes, &back, err));
        cr_assert_eq(back.state.layout.stripes, stripes > 1 ? stripes : 0u);
        if (stripes > 1) cr_assert_eq(memcmp(&back.state.layout, l, sizeof *l), 0);
        pd_commit_deinit(&back);
        free(data);
    }
    l->stripes = PD_LAYOUT_STRIPES_MAX + 1;
    cr_assert_eq(pd_commit_encode(&c, &data, &bytes, NULL), PD_INVALID);
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
    struct pd_commit c = example((uint32_t)(PD_COMMIT_BYTES_MAX / 64) + 1);
    struct pd_error error = {0};
    void *data = NULL;
    uint64_t bytes = 0;
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
        static const char *const said[] = {"no shards", "0 stages", "stages cannot be recorded", "created_by"};
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
