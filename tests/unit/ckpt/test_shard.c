#include "shard_fixture.h"

/* Sizes around every boundary there is: pages, blocks, staging slots, lent and staged. */
static void add_odd_shapes(struct fixture *f)
{
    static const uint64_t elements[] = {1,     2,     15,    1023,  1024,   1025,   2047,    2048,    16383,  16384,
                                        16385, 17408, 32768, 65537, 262144, 262145, 1048576, 1050001, 300000, 7};
    const uint32_t count = sizeof elements / sizeof *elements;
    fixture_init(f, count + 1, 3 * count + 2);
    for (uint32_t t = 0; t < count; t++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%u.weight", t);
        fixture_tensor(f, t, name, 1, elements[t], 1);
        for (int kind = 0; kind < PD_KIND_COUNT; kind++)
            fixture_box(f, t, (enum pd_kind)kind, pd_box_whole(&f->tensors.tensors[t]), kind == 1 ? 0 : 4u * t % 64);
    }
    fixture_tensor(f, count, "lm_head.weight", 2, 50, 30);
    fixture_box(f, count, PD_PARAM, (struct pd_box){{0, 0, 0, 0}, {1, 30, 1, 1}}, 4);
    fixture_box(f, count, PD_PARAM, (struct pd_box){{1, 10, 0, 0}, {49, 20, 1, 1}}, 0);
}

static void check_contents(struct fixture *f, const char *name, const struct pd_shard_summary *summary)
{
    char path[256];
    struct pd_shard *shard = NULL;
    fixture_path(f, name, path, sizeof path);
    OK(pd_shard_open(f->door, path, &f->identity, summary, &shard, err));
    cr_assert_eq(pd_shard_box_count(shard), f->box_count);
    for (uint32_t b = 0; b < f->box_count; b++) {
        const struct pd_shard_box *box = &pd_shard_boxes(shard)[b];
        cr_assert_str_eq(pd_shard_tensors(shard)->tensors[box->tensor].name, f->tensors.tensors[f->boxes[b].tensor].name);
        cr_assert_eq(memcmp(&box->box, &f->boxes[b].box, sizeof box->box), 0);
        cr_assert_eq(box->kind, f->boxes[b].kind);
        uint64_t bytes = pd_shard_box_bytes(shard, b);
        char *data = malloc(bytes);
        OK(pd_shard_read_blocks(shard, b, 0, pd_shard_block_count(shard, b), data, err));
        cr_assert_eq(memcmp(data, f->data[b], bytes), 0, "box %u", b);
        free(data);
    }
    OK(pd_shard_verify(shard, f->buffers, FIXTURE_BUFFER_BYTES, err));
    pd_shard_close(shard);
}

Test(shard, odd_shapes_come_back)
{
    struct fixture f;
    struct pd_shard_summary summary;
    add_odd_shapes(&f);
    fixture_save(&f, "s.h5", &summary);
    cr_assert_eq(summary.box_count, f.box_count);
    check_contents(&f, "s.h5", &summary);
    check_contents(&f, "s.h5", NULL);
    fixture_deinit(&f);
}

Test(shard, empty_shard)
{
    struct fixture f;
    struct pd_shard_summary summary;
    fixture_init(&f, 1, 0);
    fixture_tensor(&f, 0, "unused", 1, 5, 1);
    fixture_save(&f, "s.h5", &summary);
    check_contents(&f, "s.h5", &summary);
    fixture_deinit(&f);
}
