/* A checkpoint of ours, read as a format: every element under any layout, compressed or not, and each stored byte once. */
#include "resharder/formats/perdure.h"

#include "ckpt/store/paths.h"
#include "resharder/catalog/read.h"
#include "tests/unit/resharder/state_fixture.h"

static void open_stored(struct state *s, struct pd_catalog *c)
{
    pd_catalog_init(c, "perdure");
    OK(pd_format_perdure.read(s->vfs, "/stored", c, err));
    OK(pd_catalog_finish(c, err));
}

static void check_tensor(struct state *s, const struct pd_catalog *c, struct pd_reader *reader, uint32_t t,
                         enum pd_kind kind)
{
    const int64_t found = pd_catalog_find(c, s->tensors[t].name, kind);
    cr_assert_geq(found, 0);
    const struct pd_foreign_tensor *foreign = &c->tensors[found];
    const uint64_t elements = pd_tensor_elements(&s->tensors[t]);
    const struct pd_view all = pd_view_dense(&s->tensors[t]);
    float *values = malloc(elements * sizeof *values);
    cr_assert_eq(foreign->ndim, s->tensors[t].ndim);
    cr_assert_eq(memcmp(foreign->shape, s->tensors[t].shape, foreign->ndim * sizeof *foreign->shape), 0);
    OK(pd_reader_read(reader, (uint32_t)found, &all, values, err));
    for (uint64_t i = 0; i < elements; i++)
        cr_assert_eq(values[i], state_value(t, kind, i), "tensor %u, kind %d, element %d", t, kind, (int)i);
    free(values);
}

static void read_once(uint64_t seed, bool is_large, bool compresses)
{
    struct state s;
    struct pd_commit commit;
    struct pd_catalog c;
    struct pd_reader *reader = NULL;
    void *buffers = aligned_alloc(PD_VFS_ALIGN, PD_READER_BUFFER_BYTES);
    state_init(&s, seed);
    s.compresses = compresses;
    if (is_large) state_enlarge(&s);
    const struct pd_layout layout = state_layout(&s, 1u << seed % 4);
    state_save(&s, &layout, "/stored", &commit);
    open_stored(&s, &c);
    cr_assert_eq(c.tensor_count, STATE_TENSORS * PD_KIND_COUNT);
    cr_assert(c.counters.has_step && c.counters.step == commit.state.identity.step);
    cr_assert_str_eq(pd_catalog_text(&c, "config.yaml")->text, commit.state.config);
    OK(pd_reader_open(s.vfs, &c, buffers, PD_READER_BUFFER_BYTES, &reader, err));
    for (uint32_t t = 0; t < STATE_TENSORS; t++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            check_tensor(&s, &c, reader, t, (enum pd_kind)kind);
    pd_reader_close(reader);
    pd_catalog_deinit(&c);
    pd_commit_deinit(&commit);
    state_deinit(&s);
    free(buffers);
}

Test(perdure, every_element_under_any_layout)
{
    for (uint64_t seed = 1; seed <= 8; seed++)
        read_once(seed, false, seed % 2);
}

Test(perdure, boxes_of_many_blocks)
{
    read_once(1, true, false);
    read_once(2, true, true);
}

Test(perdure, what_is_no_checkpoint_is_refused)
{
    struct state s;
    struct pd_commit commit;
    struct pd_catalog c;
    struct pd_error error = {0};
    char path[64];
    state_init(&s, 3);
    const struct pd_layout layout = state_layout(&s, 2);
    state_save(&s, &layout, "/stored", &commit);
    cr_assert(pd_format_perdure.recognizes(s.vfs, "/stored"));
    snprintf(path, sizeof path, "/stored/%s", pd_shard_name(1).text);
    OK(pd_vfs_unlink(s.vfs, path, err));
    pd_catalog_init(&c, "perdure");
    cr_assert_neq(pd_format_perdure.read(s.vfs, "/stored", &c, &error), PD_OK);
    cr_assert_not_null(strstr(error.message, pd_shard_name(1).text), "%s", error.message);
    pd_catalog_deinit(&c);
    OK(pd_vfs_unlink(s.vfs, "/stored/commit.h5", err));
    cr_assert_not(pd_format_perdure.recognizes(s.vfs, "/stored"));
    pd_commit_deinit(&commit);
    state_deinit(&s);
}
