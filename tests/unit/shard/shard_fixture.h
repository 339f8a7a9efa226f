/* Small models and their shards for the tests of this folder. */
#pragma once

#include "ckpt/shard/shard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIXTURE_BUFFER_BYTES (8u << 20)

struct fixture {
    char directory[64];
    struct pd_vfs *vfs;
    void *buffers;
    struct pd_tensor_table tensors;
    struct pd_shard_box *boxes;
    void **data;
    uint32_t box_count;
    struct pd_identity identity;
};

#define OK(expression)                                                                       \
    do {                                                                                     \
        struct pd_error ok_error_ = {0};                                                     \
        struct pd_error *err = &ok_error_;                                                   \
        pd_status ok_status_ = (expression);                                                 \
        cr_assert_eq(ok_status_, PD_OK, "%s: %s", pd_status_name(ok_status_), err->message); \
    } while (0)

static inline uint64_t fixture_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline unsigned fixture_scale(void)
{
    const char *text = getenv("PERDURE_TEST_SCALE");
    unsigned scale = 1;
    if (text && sscanf(text, "%u", &scale) != 1) scale = 1;
    return scale ? scale : 1;
}

/* Numbers of a normal size: their bits depend on the place alone. */
static inline void fixture_fill(float *data, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++)
        data[i] = (float)((double)(int64_t)fixture_random(&seed) / 9.2e18);
}

static inline void fixture_init(struct fixture *f, uint32_t tensor_count, uint32_t box_count)
{
    *f = (struct fixture){.identity = {{11, 22}, 1, 7}};
    snprintf(f->directory, sizeof f->directory, "%s", "/tmp/perdure-test-XXXXXX");
    cr_assert_not_null(mkdtemp(f->directory));
    OK(pd_vfs_new_threads(16, 2, &f->vfs, err));
    f->buffers = aligned_alloc(PD_VFS_ALIGN, FIXTURE_BUFFER_BYTES);
    f->tensors.tensors = calloc(tensor_count, sizeof *f->tensors.tensors);
    f->tensors.count = tensor_count;
    f->boxes = calloc(box_count + 1, sizeof *f->boxes);
    f->data = calloc(box_count + 1, sizeof *f->data);
    cr_assert(f->buffers && f->tensors.tensors && f->boxes && f->data);
}

static inline void fixture_tensor(struct fixture *f, uint32_t t, const char *name, uint32_t ndim, uint64_t a, uint64_t b)
{
    struct pd_tensor *tensor = &f->tensors.tensors[t];
    *tensor = (struct pd_tensor){.ndim = ndim, .shape = {a, ndim > 1 ? b : 1, 1, 1}, .tp_dim = -1, .tp_unit = 1};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
}

/* `shift` bytes off a page: 0 makes a large box a zero-copy write. */
static inline void fixture_box(struct fixture *f, uint32_t tensor, enum pd_kind kind, struct pd_box box, uint64_t shift)
{
    uint64_t elements = pd_box_elements(&box), bytes = (elements * 4 + shift + 8191) / 4096 * 4096;
    char *memory = aligned_alloc(PD_VFS_ALIGN, bytes);
    cr_assert_not_null(memory);
    fixture_fill((float *)(void *)(memory + shift), elements, tensor * 1000u + (unsigned)kind * 7u + box.start[0]);
    f->boxes[f->box_count] = (struct pd_shard_box){tensor, kind, box};
    f->data[f->box_count++] = memory + shift;
}

static inline void fixture_path(const struct fixture *f, const char *name, char *ret_path, size_t room)
{
    snprintf(ret_path, room, "%s/%s", f->directory, name);
}

static inline void fixture_save(struct fixture *f, const char *name, struct pd_shard_summary *ret_summary)
{
    char path[256];
    struct pd_shard_writer *writer = NULL;
    fixture_path(f, name, path, sizeof path);
    OK(pd_shard_writer_new(f->vfs, &f->tensors, f->boxes, f->box_count, f->buffers, FIXTURE_BUFFER_BYTES, NULL, &writer,
                           err));
    OK(pd_shard_write(writer, path, &f->identity, 3, (const void *const *)f->data, ret_summary, err));
    pd_shard_writer_free(writer);
}

static inline void fixture_deinit(struct fixture *f)
{
    for (uint32_t b = 0; b < f->box_count; b++)
        free((void *)((uintptr_t)f->data[b] / 4096 * 4096));
    free(f->data);
    free(f->boxes);
    pd_tensor_table_deinit(&f->tensors);
    free(f->buffers);
    pd_vfs_free(f->vfs);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", f->directory);
    cr_assert_eq(system(command), 0);
}
