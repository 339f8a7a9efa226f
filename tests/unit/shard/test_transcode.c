#include "ckpt/shard/transcode.h"
#include "tests/unit/shard/shard_fixture.h"

#include <stdatomic.h>

static const struct pd_shard_codec PLAIN = {.codec = PD_CODEC_NONE}, ZSTD = {.codec = PD_CODEC_ZSTD, .level = 2};

static void add_model(struct fixture *f)
{
    static const uint64_t shapes[][2] = {{30, 1}, {1024, 1}, {700, 768}, {3, 300001}, {999, 333}, {5000, 111}, {262145, 1}};
    const uint32_t count = sizeof shapes / sizeof *shapes;
    fixture_init(f, count, count);
    for (uint32_t t = 0; t < count; t++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%u.weight", t);
        fixture_tensor(f, t, name, shapes[t][1] > 1 ? 2 : 1, shapes[t][0], shapes[t][1]);
        fixture_box(f, t, (enum pd_kind)(t % 3), pd_box_whole(&f->tensors.tensors[t]), 0);
    }
}

static void save(struct fixture *f, const char *name, const struct pd_shard_codec *codec,
                 struct pd_shard_summary *ret_summary)
{
    char path[256];
    struct pd_shard_writer *writer = NULL;
    fixture_path(f, name, path, sizeof path);
    OK(pd_shard_writer_new(f->vfs, &f->tensors, f->boxes, f->box_count, f->buffers, FIXTURE_BUFFER_BYTES, codec, &writer,
                           err));
    OK(pd_shard_write(writer, path, &f->identity, 3, (const void *const *)f->data, ret_summary, err));
    pd_shard_writer_free(writer);
}

static pd_status transcode(struct fixture *f, const char *from, const char *to, const struct pd_shard_summary *expect,
                           const struct pd_shard_codec *codec, atomic_bool *stop, struct pd_shard_summary *ret_summary,
                           struct pd_error *err)
{
    char from_path[256], to_path[256];
    fixture_path(f, from, from_path, sizeof from_path);
    fixture_path(f, to, to_path, sizeof to_path);
    const struct pd_shard_copy request = {.from = from_path,
                                          .to = to_path,
                                          .identity = &f->identity,
                                          .expect = expect,
                                          .buffers = f->buffers,
                                          .buffer_bytes = FIXTURE_BUFFER_BYTES,
                                          .stop = stop};
    return pd_shard_transcode(f->vfs, &request, codec, ret_summary, err);
}

static bool same_files(struct fixture *f, const char *left, const char *right)
{
    char command[600];
    snprintf(command, sizeof command, "cmp -s %s/%s %s/%s", f->directory, left, f->directory, right);
    return system(command) == 0;
}

/* It is the file that its rank would have written. */
Test(shard_transcode, as_if_written_like_that, .timeout = 600)
{
    struct fixture f;
    struct pd_shard_summary plain, direct, made;
    add_model(&f);
    save(&f, "plain.h5", &PLAIN, &plain);
    save(&f, "direct.h5", &ZSTD, &direct);
    plain.host = direct.host = 5;
    for (unsigned threads = 1; threads < 9; threads *= 4) {
        struct pd_shard_codec codec = ZSTD;
        OK(pd_thread_pool_new(threads, &codec.pool, err));
        OK(transcode(&f, "plain.h5", "made.h5", &plain, &codec, NULL, &made, err));
        cr_assert(same_files(&f, "made.h5", "direct.h5"), "%u threads", threads);
        cr_assert_eq(memcmp(&made, &direct, sizeof made), 0);
        pd_thread_pool_free(codec.pool);
    }
    OK(transcode(&f, "made.h5", "again.h5", &made, &PLAIN, NULL, &plain, err)); /* small it is already */
    cr_assert(same_files(&f, "again.h5", "direct.h5"));
    cr_assert_eq(memcmp(&plain, &direct, sizeof made), 0);
    OK(transcode(&f, "plain.h5", "again.h5", NULL, NULL, NULL, &made, err));
    cr_assert(same_files(&f, "again.h5", "plain.h5"));
    fixture_deinit(&f);
}

static void damage(struct fixture *f, const char *name, uint64_t at)
{
    char path[256];
    fixture_path(f, name, path, sizeof path);
    FILE *file = fopen(path, "r+b");
    cr_assert(file && fseek(file, (long)at, SEEK_SET) == 0);
    const int byte = fgetc(file);
    cr_assert(fseek(file, (long)at, SEEK_SET) == 0 && fputc(byte ^ 1, file) != EOF && fclose(file) == 0);
}

/* Of the source, whatever the copy reads like. */
Test(shard_transcode, damage_is_not_carried_on)
{
    struct fixture f;
    struct pd_shard_summary summary, made;
    struct pd_error error = {0};
    add_model(&f);
    for (int compressed = 0; compressed < 2; compressed++) {
        struct pd_shard *shard = NULL;
        char path[256];
        save(&f, "s.h5", compressed ? &ZSTD : &PLAIN, &summary);
        fixture_path(&f, "s.h5", path, sizeof path);
        OK(pd_shard_open(f.vfs, path, &f.identity, &summary, &shard, err));
        const uint64_t at = pd_shard_box_offset(shard, 4) + 5000;
        pd_shard_close(shard);
        damage(&f, "s.h5", at);
        cr_assert_eq(transcode(&f, "s.h5", "t.h5", &summary, &ZSTD, NULL, &made, &error), PD_CORRUPT);
        cr_assert(strstr(error.message, "s.h5") && strstr(error.message, "model.layers.4.weight"), "%s", error.message);
    }
    fixture_deinit(&f);
}

Test(shard_transcode, it_can_be_given_up)
{
    struct fixture f;
    struct pd_shard_summary summary, made;
    struct pd_error error = {0};
    atomic_bool stop = true;
    add_model(&f);
    save(&f, "s.h5", &PLAIN, &summary);
    cr_assert_eq(transcode(&f, "s.h5", "t.h5", &summary, &ZSTD, &stop, &made, &error), PD_STOPPED);
    stop = false;
    OK(transcode(&f, "s.h5", "t.h5", &summary, &ZSTD, &stop, &made, err));
    fixture_deinit(&f);
}
