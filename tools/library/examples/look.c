/* Lists the tensors of a checkpoint of any program, or prints the first numbers of one: look PATH [TENSOR] */
#include <inttypes.h>
#include <perdure.h>
#include <stdio.h>
#include <stdlib.h>

static void list(const struct perdure_checkpoint *checkpoint)
{
    struct perdure_info info;
    perdure_info(checkpoint, &info);
    printf("%s: %s, step %" PRIu64 ", %" PRIu64 " tensors, %" PRIu64 " bytes\n", info.path, info.format, info.step,
           info.tensor_count, info.bytes);
    for (uint64_t i = 0; i < info.tensor_count; i++) {
        const struct perdure_tensor *tensor = perdure_tensor_at(checkpoint, i);
        printf("%s %s (", tensor->name, perdure_dtype_name(tensor->dtype));
        for (uint32_t d = 0; d < tensor->ndim; d++)
            printf("%s%" PRIu64, d ? ", " : "", tensor->shape[d]);
        printf(")%s\n", tensor->has_moments ? " with moments" : "");
    }
}

static int print_tensor(struct perdure_checkpoint *checkpoint, const char *name, struct perdure_error *err)
{
    const int64_t number = perdure_find(checkpoint, name, PERDURE_PARAM);
    if (number < 0) return fprintf(stderr, "there is no tensor %s\n", name), 1;
    const struct perdure_tensor *tensor = perdure_tensor_at(checkpoint, (uint64_t)number);
    const uint64_t start[PERDURE_DIMS_MAX] = {0};
    uint64_t count[PERDURE_DIMS_MAX], elements = 1;
    for (uint32_t d = 0; d < tensor->ndim; d++) { /* of each dimension at most 4 */
        count[d] = tensor->shape[d] < 4 ? tensor->shape[d] : 4;
        elements *= count[d];
    }
    float *values = calloc(elements, sizeof *values);
    const struct perdure_slice slice = {(uint64_t)number, start, count, PERDURE_F32, values, elements * sizeof *values};
    const int status = perdure_read(checkpoint, &slice, 1, NULL, err);
    for (uint64_t i = 0; !status && i < elements; i++)
        printf("%.9g\n", (double)values[i]);
    free(values);
    return status ? fprintf(stderr, "%s\n", err->message), 1 : 0;
}

int main(int argc, char **argv)
{
    struct perdure_checkpoint *checkpoint;
    struct perdure_error err;
    int failed = 0;
    if (argc < 2) return fprintf(stderr, "look PATH [TENSOR]\n"), 2;
    if (perdure_open(argv[1], NULL, &checkpoint, &err)) return fprintf(stderr, "%s\n", err.message), 1;
    if (argc > 2)
        failed = print_tensor(checkpoint, argv[2], &err);
    else
        list(checkpoint);
    perdure_close(checkpoint);
    return failed;
}
