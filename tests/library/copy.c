/* Copies a checkpoint of any program into one whose tensors are listed: copy SOURCE DESTINATION [metadata] */
#include <perdure.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct perdure_checkpoint *c;
    struct perdure_writer *writer;
    struct perdure_error err;
    struct perdure_info info;
    if (argc < 3) return 2;
    if (perdure_open(argv[1], NULL, &c, &err)) return fprintf(stderr, "%s\n", err.message), 1;
    perdure_info(c, &info);
    struct perdure_slice *slices = calloc(info.tensor_count, sizeof *slices);
    struct perdure_piece *pieces = calloc(info.tensor_count, sizeof *pieces);
    for (uint64_t i = 0; i < info.tensor_count; i++) {
        const struct perdure_tensor *t = perdure_tensor_at(c, i);
        slices[i] = (struct perdure_slice){i, NULL, NULL, PERDURE_AS_STORED, malloc(t->bytes), t->bytes};
        pieces[i] = (struct perdure_piece){.name = t->name, .kind = t->kind, .dtype = t->dtype, .ndim = t->ndim};
        memcpy(pieces[i].shape, t->shape, sizeof t->shape);
        memcpy(pieces[i].count, t->shape, sizeof t->shape);
        pieces[i].data = slices[i].to;
    }
    int status = perdure_read(c, slices, info.tensor_count, NULL, &err);
    if (!status) status = perdure_writer_open(argv[2], NULL, NULL, &writer, &err);
    if (!status) {
        struct perdure_save save = PERDURE_SAVE;
        save.step = 5;
        save.pieces = pieces;
        save.piece_count = info.tensor_count;
        save.metadata = argc > 3 ? argv[3] : NULL;
        status = perdure_save(writer, &save, &err);
        perdure_writer_close(writer);
    }
    for (uint64_t i = 0; i < info.tensor_count; i++)
        free(slices[i].to);
    free(slices);
    free(pieces);
    perdure_close(c);
    return status ? fprintf(stderr, "%s\n", err.message), 1 : 0;
}
