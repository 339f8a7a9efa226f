/* A queue that fails to submit may have taken the transfer. Whoever submits must not return before it is back: a queue with
 * a transfer in flight cannot be closed, which is how these tests see one that was left behind. */
#include "ckpt/shard/copy.h"
#include "tests/helpers/failing_submit.h"
#include "tests/unit/shard/shard_fixture.h"

/* Boxes that are staged, ones that are zero-copy writes, small ones. */
static void add_boxes(struct fixture *f)
{
    fixture_init(f, 6, 6);
    for (uint32_t t = 0; t < 6; t++) {
        char name[32];
        snprintf(name, sizeof name, "model.%u", t);
        fixture_tensor(f, t, name, 1, t == 0 ? 40 : 700000, 1);
        fixture_box(f, t, PD_PARAM, pd_box_whole(&f->tensors.tensors[t]), t % 2 * 4);
    }
}

static void check_saves(const struct pd_shard_codec *codec)
{
    struct fixture f;
    struct failing_submit failing;
    struct pd_shard_summary summary;
    char path[256];
    bool fired = true;
    add_boxes(&f);
    fixture_path(&f, "s.h5", path, sizeof path);
    failing_submit_begin(&failing, f.vfs);
    for (uint64_t nth = 1; fired; nth++) {
        struct pd_shard_writer *writer = NULL;
        struct pd_error error = {0};
        failing_submit_arm(&failing, nth);
        OK(pd_shard_writer_new(f.vfs, &f.tensors, f.boxes, f.box_count, f.buffers, FIXTURE_BUFFER_BYTES, codec, &writer,
                               err));
        pd_status st = pd_shard_write(writer, path, &f.identity, 3, (const void *const *)f.data, &summary, &error);
        fired = failing_submit_fired(&failing);
        cr_assert_eq(st, fired ? PD_IO : PD_OK, "submit %llu: %s", (unsigned long long)nth, error.message);
        pd_shard_writer_free(writer);
    }
    failing_submit_end(&failing);
    fixture_deinit(&f);
}

Test(submit, a_plain_save_leaves_nothing_in_flight)
{
    check_saves(NULL);
}

Test(submit, a_compressed_save_leaves_nothing_in_flight)
{
    check_saves(&(struct pd_shard_codec){.codec = PD_CODEC_ZSTD, .level = 1});
}

Test(submit, verifying_and_copying_leave_nothing_in_flight)
{
    struct fixture f;
    struct failing_submit failing;
    struct pd_shard_summary summary;
    char path[256], copy[256];
    bool fired = true;
    add_boxes(&f);
    fixture_save(&f, "s.h5", &summary);
    fixture_path(&f, "s.h5", path, sizeof path);
    fixture_path(&f, "c.h5", copy, sizeof copy);
    failing_submit_begin(&failing, f.vfs);
    for (uint64_t nth = 1; fired; nth++) {
        struct pd_shard *shard = NULL;
        struct pd_error error = {0};
        failing_submit_arm(&failing, nth);
        pd_status st = pd_shard_open(f.vfs, path, &f.identity, &summary, &shard, &error);
        if (!st) st = pd_shard_verify(shard, f.buffers, FIXTURE_BUFFER_BYTES, &error);
        pd_shard_close(shard);
        fired = failing_submit_fired(&failing);
        cr_assert_eq(st, fired ? PD_IO : PD_OK, "submit %llu: %s", (unsigned long long)nth, error.message);
    }
    fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        struct pd_error error = {0};
        failing_submit_arm(&failing, nth);
        pd_status st = pd_shard_copy(f.vfs, path, copy, &f.identity, f.buffers, FIXTURE_BUFFER_BYTES, &error);
        fired = failing_submit_fired(&failing);
        cr_assert_eq(st, fired ? PD_IO : PD_OK, "submit %llu: %s", (unsigned long long)nth, error.message);
    }
    failing_submit_end(&failing);
    fixture_deinit(&f);
}
