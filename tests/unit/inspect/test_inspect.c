#include "ckpt/inspect/inspect.h"
#include "tests/unit/inspect/checkpoint_fixture.h"

static const struct checkpoint_cut three_shards = {3, 0, 0};

static uint32_t count_damage(struct fixture *f, const char *directory, struct pd_damage *ret_first)
{
    struct pd_inspect *in = NULL;
    struct pd_damage_list list = {0};
    OK(pd_inspect_open(f->vfs, directory, &in, err));
    OK(pd_inspect_verify(in, NULL, NULL, (pd_should_stop){0}, &list, err));
    uint32_t count = list.count;
    if (count) *ret_first = list.items[0];
    pd_damage_list_deinit(&list);
    pd_inspect_close(in);
    return count;
}

Test(inspect, verify_names_every_damage)
{
    struct fixture f;
    struct pd_damage first = {0};
    char directory[256], path[300];
    checkpoint_model(&f);
    checkpoint_write(&f, "c", &three_shards, directory, sizeof directory);
    cr_assert_eq(count_damage(&f, directory, &first), 0);

    struct pd_inspect *in = NULL;
    for (int s = 0; s < 2; s++) {
        struct pd_shard *shard = NULL;
        uint32_t large = 0;
        snprintf(path, sizeof path, "%s/shard-%05d.h5", directory, s);
        OK(pd_shard_open(f.vfs, path, NULL, NULL, &shard, err));
        while (pd_shard_boxes(shard)[large].kind != PD_EXP_AVG || pd_shard_box_bytes(shard, large) <= 4096)
            cr_assert_lt(++large, pd_shard_box_count(shard));
        checkpoint_flip(path, (pd_shard_box_offset(shard, large) + 5) * 8);
        pd_shard_close(shard);
    }
    cr_assert_eq(count_damage(&f, directory, &first), 2);
    cr_assert_str_eq(first.file, "shard-00000.h5");
    cr_assert_str_eq(first.tensor, "embed.weight");
    cr_assert_eq(first.kind, PD_EXP_AVG);
    cr_assert_eq(first.block, 0);
    cr_assert_not_null(strstr(first.text, "block 0"));

    snprintf(path, sizeof path, "%s/shard-00002.h5", directory);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(count_damage(&f, directory, &first), 3);
    struct pd_error error;
    OK(pd_inspect_open(f.vfs, directory, &in, err));
    cr_assert_eq(pd_inspect_check_complete(in, &error), PD_NOT_FOUND);
    cr_assert_not_null(strstr(error.message, "shard-00002.h5"));
    pd_inspect_close(in);
    fixture_deinit(&f);
}

Test(inspect, no_checkpoint_is_said_so)
{
    struct fixture f;
    struct pd_inspect *in = NULL;
    struct pd_error error;
    checkpoint_model(&f);
    cr_assert_eq(pd_inspect_open(f.vfs, f.directory, &in, &error), PD_NOT_FOUND);
    cr_assert_not_null(strstr(error.message, "commit.h5"));
    cr_assert_null(in);
    fixture_deinit(&f);
}

/* Each shard is whole; together they are not the state. */
Test(inspect, shards_that_do_not_fit_together_are_found)
{
    static const struct {
        struct checkpoint_cut cut;
        const char *damage;
    } rows[] = {{{3, 0, 1}, "boxes of shards 0 and 1 overlap"},
                {{3, 0, -1}, "the shards hold"},
                {{2, 16, 2}, "boxes of shards 0 and 1 overlap"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fixture f;
        struct pd_damage first = {0};
        char directory[256];
        checkpoint_model(&f);
        checkpoint_write(&f, "c", &rows[i].cut, directory, sizeof directory);
        cr_assert_geq(count_damage(&f, directory, &first), 1);
        cr_assert(first.status == PD_CORRUPT && strstr(first.text, rows[i].damage), "%zu: %s", i, first.text);
        fixture_deinit(&f);
    }
}

Test(inspect, an_index_of_other_bytes_is_found)
{
    struct fixture f;
    char directory[256], path[300];
    struct pd_inspect *in = NULL;
    struct pd_error error = {0};
    checkpoint_model(&f);
    checkpoint_write(&f, "c", &three_shards, directory, sizeof directory);
    snprintf(path, sizeof path, "%s/index.h5", directory);
    OK(pd_inspect_open(f.vfs, directory, &in, err));
    OK(pd_inspect_check_index(in, err));
    checkpoint_flip(path, 40001);
    cr_assert_eq(pd_inspect_check_index(in, &error), PD_CORRUPT);
    cr_assert(strstr(error.message, "index.h5 does not match the digest in commit.h5"), "%s", error.message);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(pd_inspect_check_index(in, &error), PD_NOT_FOUND);
    pd_inspect_close(in);
    fixture_deinit(&f);
}
