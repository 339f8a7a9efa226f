/* Reads what one rank owns under a layout, verified, and says how much: rank PATH LAYOUT RANK */
#include <inttypes.h>
#include <perdure.h>
#include <stdio.h>
#include <stdlib.h>

static int rank_progress(void *context, uint64_t done, uint64_t total)
{
    (void)context;
    fprintf(stderr, "\r%" PRIu64 " of %" PRIu64 " MB", done / 1000000, total / 1000000);
    return 0; /* 1: stop */
}

static int read_boxes(struct perdure_checkpoint *checkpoint, const struct perdure_box *boxes, uint64_t count,
                      struct perdure_error *err)
{
    const struct perdure_watch watch = {.progress = rank_progress};
    struct perdure_slice *slices = calloc(count + 1, sizeof *slices);
    uint64_t elements = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bytes = sizeof(float);
        for (int d = 0; d < PERDURE_DIMS_MAX; d++)
            bytes *= boxes[i].count[d];
        elements += bytes / sizeof(float);
        slices[i] =
            (struct perdure_slice){boxes[i].tensor, boxes[i].start, boxes[i].count, PERDURE_F32, malloc(bytes), bytes};
    }
    const int status = perdure_read(checkpoint, slices, count, &watch, err);
    for (uint64_t i = 0; i < count; i++)
        free(slices[i].to);
    free(slices);
    if (!status) printf("%" PRIu64 " boxes of %" PRIu64 " elements\n", count, elements);
    return status;
}

int main(int argc, char **argv)
{
    struct perdure_checkpoint *checkpoint;
    struct perdure_error err;
    struct perdure_box *boxes = NULL;
    uint64_t count;
    if (argc != 4) return fprintf(stderr, "rank PATH LAYOUT RANK\n"), 2;
    if (perdure_open(argv[1], NULL, &checkpoint, &err)) return fprintf(stderr, "%s\n", err.message), 1;
    int status = perdure_rank_boxes(checkpoint, argv[2], (uint32_t)strtoul(argv[3], NULL, 10), &boxes, &count, &err);
    if (!status) status = read_boxes(checkpoint, boxes, count, &err);
    if (status) fprintf(stderr, "%s\n", err.message);
    perdure_free(boxes);
    perdure_close(checkpoint);
    return status != 0;
}
