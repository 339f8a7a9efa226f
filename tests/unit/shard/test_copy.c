#include "ckpt/shard/copy.h"
#include "tests/unit/shard/shard_fixture.h"

/* Boxes around pages, blocks and chunks; small ones share pages. */
static void make_shard(struct fixture *f, struct pd_shard_summary *ret_summary)
{
    static const uint64_t elements[] = {1, 7, 1023, 1024, 1025, 16383, 16384, 16385, 32768, 262144, 300001, 1050001, 15};
    const uint32_t count = sizeof elements / sizeof *elements;
    fixture_init(f, count, count);
    for (uint32_t t = 0; t < count; t++) {
        char name[32];
        snprintf(name, sizeof name, "t%u", t);
        fixture_tensor(f, t, name, 1, elements[t], 1);
        fixture_box(f, t, (enum pd_kind)(t % 3), pd_box_whole(&f->tensors.tensors[t]), 0);
    }
    fixture_save(f, "from.h5", ret_summary);
}

struct paths {
    char from[256], to[256];
};

static struct paths paths_of(const struct fixture *f)
{
    struct paths p;
    fixture_path(f, "from.h5", p.from, sizeof p.from);
    fixture_path(f, "to.h5", p.to, sizeof p.to);
    return p;
}

static struct pd_shard_copy request_of(const struct fixture *f, const struct paths *p,
                                       const struct pd_shard_summary *summary, uint64_t buffer_bytes)
{
    return (struct pd_shard_copy){.from = p->from,
                                  .to = p->to,
                                  .identity = &f->identity,
                                  .expect = summary,
                                  .buffers = f->buffers,
                                  .buffer_bytes = buffer_bytes};
}

static void expect_equal(const struct paths *p)
{
    char command[640];
    snprintf(command, sizeof command, "cmp %s %s", p->from, p->to);
    cr_assert_eq(system(command), 0);
}

Test(shard_copy, is_the_same_file_whatever_the_buffers)
{
    struct fixture f;
    struct pd_shard_summary summary;
    make_shard(&f, &summary);
    const struct paths p = paths_of(&f);
    for (uint64_t bytes = 1 << 20; bytes <= FIXTURE_BUFFER_BYTES; bytes += 1300 << 10) {
        const struct pd_shard_copy copy = request_of(&f, &p, &summary, bytes / 4096 * 4096);
        OK(pd_shard_copy_with(f.vfs, &copy, err)); /* from the second on over a file that is there */
        expect_equal(&p);
    }
    FILE *longer = fopen(p.to, "a");
    for (int i = 0; i < 100000; i++)
        fputc(1, longer);
    fclose(longer);
    OK(pd_shard_copy(f.vfs, p.from, p.to, &f.identity, f.buffers, FIXTURE_BUFFER_BYTES, err));
    expect_equal(&p);
    fixture_deinit(&f);
}

/* Wherever a bit of the source is wrong, it is found, and named as the source's. */
Test(shard_copy, damage_of_the_source_is_found)
{
    struct fixture f;
    struct pd_shard_summary summary;
    make_shard(&f, &summary);
    const struct paths p = paths_of(&f);
    const struct pd_shard_copy copy = request_of(&f, &p, &summary, 1 << 20);
    uint64_t random = 7;
    FILE *file = fopen(p.from, "r+");
    for (unsigned i = 0; i < 60 * fixture_scale(); i++) {
        struct pd_error err = {0};
        const long at = (long)(fixture_random(&random) % summary.file_bytes);
        fseek(file, at, SEEK_SET);
        const int before = fgetc(file);
        fseek(file, at, SEEK_SET);
        fputc(before ^ 1 << fixture_random(&random) % 8, file);
        fflush(file);
        pd_status st = pd_shard_copy_with(f.vfs, &copy, &err);
        /* Boxes under a page are verified where they arrived. */
        cr_assert(st == PD_CORRUPT || (st == PD_IO && strstr(err.message, "reads back different")), "byte %ld: %s %s", at,
                  pd_status_name(st), err.message);
        fseek(file, at, SEEK_SET);
        fputc(before, file);
        fflush(file);
    }
    fclose(file);
    OK(pd_shard_copy_with(f.vfs, &copy, err));
    fixture_deinit(&f);
}

/* A byte a second would take for ever. */
Test(shard_copy, stops_when_asked)
{
    struct fixture f;
    struct pd_shard_summary summary;
    struct pd_error error;
    atomic_bool stop = true;
    make_shard(&f, &summary);
    const struct paths p = paths_of(&f);
    struct pd_shard_copy copy = request_of(&f, &p, &summary, 1 << 20);
    copy.bytes_per_second = 1;
    copy.stop = &stop;
    cr_assert_eq(pd_shard_copy_with(f.vfs, &copy, &error), PD_STOPPED);
    stop = false;
    copy.bytes_per_second = UINT64_MAX;
    OK(pd_shard_copy_with(f.vfs, &copy, err));
    expect_equal(&p);
    fixture_deinit(&f);
}
