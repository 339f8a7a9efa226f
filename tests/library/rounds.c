/* Opens, reads and closes 1,000 times: neither descriptors nor heap may grow. Then ten threads read one checkpoint, each
 * slices of its own, and compare them with what one thread reads: rounds PATH [threads] */
#include <dirent.h>
#include <malloc.h>
#include <perdure.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 1000, WARM = 300, THREADS = 10, PASSES = 20 };

static struct perdure_error err;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, err.message);
    exit(1);
}

static int count_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void *read_all(struct perdure_checkpoint *c, uint64_t *ret_bytes)
{
    struct perdure_info info;
    perdure_info(c, &info);
    unsigned char *data = malloc(info.bytes);
    struct perdure_slice *slices = calloc(info.tensor_count, sizeof *slices);
    uint64_t at = 0;
    for (uint64_t i = 0; i < info.tensor_count; at += perdure_tensor_at(c, i)->bytes, i++)
        slices[i] = (struct perdure_slice){i, NULL, NULL, PERDURE_AS_STORED, data + at, perdure_tensor_at(c, i)->bytes};
    if (perdure_read(c, slices, info.tensor_count, NULL, &err)) fail("read");
    free(slices);
    *ret_bytes = at;
    return data;
}

static void go_round(const char *path)
{
    struct perdure_checkpoint *c;
    uint64_t bytes;
    if (perdure_open(path, NULL, &c, &err)) fail("open");
    free(read_all(c, &bytes));
    perdure_close(c);
}

static void rounds(const char *path)
{
    int descriptors = 0;
    size_t heap = 0;
    for (int i = 0; i < ROUNDS; i++) {
        go_round(path);
        if (i == WARM) descriptors = count_descriptors(), heap = mallinfo2().uordblks;
    }
    if (count_descriptors() != descriptors) fail("descriptors grow");
    if (mallinfo2().uordblks > heap + 16384) { /* caches of the allocator move by some KiB */
        fprintf(stderr, "the heap has grown from %zu to %zu bytes\n", heap, mallinfo2().uordblks);
        exit(1);
    }
}

struct reader {
    struct perdure_checkpoint *c;
    const unsigned char *whole;
    uint64_t seed;
    const char *wrong;
};

static void *read_slices(void *context)
{
    struct reader *r = context;
    struct perdure_info info;
    perdure_info(r->c, &info);
    for (int pass = 0; pass < PASSES && !r->wrong; pass++) {
        uint64_t at = 0;
        for (uint64_t i = 0; i < info.tensor_count && !r->wrong; at += perdure_tensor_at(r->c, i)->bytes, i++) {
            const struct perdure_tensor *t = perdure_tensor_at(r->c, i);
            r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
            if (!t->ndim || !t->shape[0] || perdure_find(r->c, t->name, t->kind) != (int64_t)i) continue;
            uint64_t start[PERDURE_DIMS_MAX] = {(r->seed >> 33) % t->shape[0]}, count[PERDURE_DIMS_MAX] = {1};
            for (uint32_t d = 1; d < t->ndim; d++)
                count[d] = t->shape[d];
            const uint64_t row = t->bytes / t->shape[0];
            unsigned char *mine = malloc(row + 1);
            const struct perdure_slice slice = {i, start, count, PERDURE_AS_STORED, mine, row};
            if (perdure_read(r->c, &slice, 1, NULL, NULL))
                r->wrong = t->name;
            else if (memcmp(mine, r->whole + at + start[0] * row, row))
                r->wrong = t->name;
            free(mine);
        }
    }
    return NULL;
}

static void threads(const char *path)
{
    struct perdure_checkpoint *c;
    struct reader readers[THREADS];
    pthread_t ids[THREADS];
    uint64_t bytes;
    if (perdure_open(path, NULL, &c, &err)) fail("open");
    unsigned char *whole = read_all(c, &bytes);
    for (int i = 0; i < THREADS; i++) {
        readers[i] = (struct reader){c, whole, (uint64_t)i, NULL};
        if (pthread_create(&ids[i], NULL, read_slices, &readers[i])) fail("thread");
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(ids[i], NULL);
        if (!readers[i].wrong) continue;
        fprintf(stderr, "thread %d: %s is not what one thread reads\n", i, readers[i].wrong);
        exit(1);
    }
    free(whole);
    perdure_close(c);
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    if (argc == 2) rounds(argv[1]);
    threads(argv[1]);
    return 0;
}
