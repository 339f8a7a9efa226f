/* Saves two tensors and an object of bytes, changes one tensor, saves again, and reads it back: save DIRECTORY */
#include <inttypes.h>
#include <perdure.h>
#include <stdio.h>
#include <string.h>

static float weight[4][8];
static const char object[] = "anything, kept as it is";

static int save_step(struct perdure_writer *writer, uint64_t step, struct perdure_error *err)
{
    const struct perdure_piece pieces[] = {
        {.name = "layer.weight", .ndim = 2, .shape = {4, 8}, .count = {4, 8}, .data = weight},
        {.name = "layer.weight", .kind = PERDURE_EXP_AVG, .ndim = 2, .shape = {4, 8}, .count = {4, 8}, .data = weight},
        {.name = "step", .dtype = PERDURE_U64, .data = &step}, /* a scalar */
        {.name = "loader state",
         .dtype = PERDURE_U8,
         .is_bytes = 1,
         .ndim = 1,
         .shape = {sizeof object},
         .count = {sizeof object},
         .data = object}};
    struct perdure_save save = PERDURE_SAVE;
    save.step = step, save.pieces = pieces, save.piece_count = sizeof pieces / sizeof *pieces;
    save.metadata = "{\"by\": \"an example\"}";
    return perdure_save(writer, &save, err);
}

static int read_back(const char *directory, struct perdure_error *err)
{
    struct perdure_checkpoint *checkpoint;
    char bytes[sizeof object];
    float row[8];
    const uint64_t start[] = {2, 0}, count[] = {1, 8};
    if (perdure_open(directory, NULL, &checkpoint, err)) return 1;
    const struct perdure_slice slices[] = {
        {(uint64_t)perdure_find(checkpoint, "layer.weight", PERDURE_PARAM), start, count, PERDURE_F32, row, sizeof row},
        {(uint64_t)perdure_find(checkpoint, "loader state", PERDURE_PARAM), NULL, NULL, PERDURE_AS_STORED, bytes,
         sizeof bytes}};
    const int status = perdure_read(checkpoint, slices, 2, NULL, err);
    if (!status) printf("%g %s %s\n", (double)row[3], bytes, perdure_text(checkpoint, "metadata", NULL));
    perdure_close(checkpoint);
    return status;
}

int main(int argc, char **argv)
{
    struct perdure_writer *writer;
    struct perdure_error err;
    if (argc != 2) return fprintf(stderr, "save DIRECTORY\n"), 2;
    int status = perdure_writer_open(argv[1], NULL, NULL, &writer, &err);
    if (status) return fprintf(stderr, "%s\n", err.message), 1;
    status = save_step(writer, 1, &err);
    weight[2][3] = 7;
    if (!status) status = save_step(writer, 2, &err);
    perdure_writer_close(writer);
    if (!status) status = read_back(argv[1], &err);
    return status ? fprintf(stderr, "%s\n", err.message), 1 : 0;
}
