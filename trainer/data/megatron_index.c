#include "trainer/data/megatron_index.h"

#include "ckpt/base/checked.h"
#include "trainer/data/data_file.h"
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 8192u /* entries read at a time */
#define TYPE_F64 6
#define TYPE_F32 7

char *pd_megatron_path(const char *path, const char *end)
{
    const size_t length = strlen(path), at = length < 4 ? 0 : length - 4;
    const bool has_end = !strcmp(path + at, ".bin") || !strcmp(path + at, ".idx");
    const size_t stem = has_end ? at : length, bytes = stem + strlen(end) + 1;
    char *result = malloc(bytes);
    if (result) snprintf(result, bytes, "%.*s%s", (int)stem, path, end);
    return result;
}

bool pd_megatron_is_pair(const char *path)
{
    char *index = pd_megatron_path(path, ".idx");
    char magic[PD_MEGATRON_MAGIC_BYTES] = {0};
    FILE *stream = index ? fopen(index, "rbe") : NULL;
    bool found = stream && fread(magic, 1, sizeof magic, stream) == sizeof magic &&
                 memcmp(magic, PD_MEGATRON_MAGIC, sizeof magic) == 0;
    if (stream) fclose(stream);
    free(index);
    return found;
}

static uint64_t offsets_at(const struct pd_token_file *file)
{
    return PD_MEGATRON_HEADER_BYTES + 4 * file->sequence_count;
}

static uint64_t documents_at(const struct pd_token_file *file)
{
    return offsets_at(file) + 8 * file->sequence_count;
}

static uint64_t load64(const unsigned char *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return le64toh(value);
}

static pd_status parse_header(struct pd_token_file *file, struct pd_error *err)
{
    unsigned char header[PD_MEGATRON_HEADER_BYTES];
    const char *path = file->index_path;
    if (file->index_bytes < sizeof header)
        PD_FAIL(err, PD_INVALID, "%s has %" PRIu64 " bytes: too short for an index; write it again", path,
                file->index_bytes);
    PD_TRY(pd_data_file_read(file->index_fd, path, 0, header, sizeof header, err));
    if (memcmp(header, PD_MEGATRON_MAGIC, PD_MEGATRON_MAGIC_BYTES) != 0)
        PD_FAIL(err, PD_INVALID, "%s does not begin with MMIDIDX: it is not an index of Megatron", path);
    uint64_t version = load64(header + 9);
    if (version != 1) PD_FAIL(err, PD_INVALID, "%s: version %" PRIu64 " is not known; 1 is", path, version);
    unsigned code = header[17];
    if (code == TYPE_F64 || code == TYPE_F32)
        PD_FAIL(err, PD_INVALID, "%s: its entries are floating point numbers (type %u), not tokens", file->index_path, code);
    if (code < PD_TOKEN_U8 || code > PD_TOKEN_U16)
        PD_FAIL(err, PD_INVALID, "%s: type %u is not known; 1 to 5 and 8 are", file->index_path, code);
    file->type = (enum pd_token_type)code;
    uint64_t sequences = load64(header + 18), bounds = load64(header + 26), a, b, total;
    bool fits = pd_checked_mul_u64(sequences, 12, &a) && pd_checked_mul_u64(bounds, 8, &b) &&
                pd_checked_add_u64(a, b, &total) && pd_checked_add_u64(total, PD_MEGATRON_HEADER_BYTES, &total);
    if (!fits || file->index_bytes < total || (file->index_bytes > total && file->index_bytes - total != sequences))
        PD_FAIL(err, PD_INVALID,
                "%s has %" PRIu64 " bytes, which is not what %" PRIu64 " sequences and %" PRIu64
                " document bounds take: truncated or "
                "damaged; write it again",
                path, file->index_bytes, sequences, bounds);
    if (sequences == 0 || bounds < 2) PD_FAIL(err, PD_INVALID, "%s holds no document", path);
    file->sequence_count = sequences;
    file->document_count = bounds - 1;
    return PD_OK;
}

/* Entries [first, first + count) of both tables continue the .bin at *position (bytes). */
static pd_status check_sequences(const struct pd_token_file *file, uint64_t first, uint32_t count, uint64_t *position,
                                 struct pd_error *err)
{
    int32_t lengths[CHUNK];
    int64_t offsets[CHUNK];
    const char *path = file->index_path;
    PD_TRY(pd_data_file_read(file->index_fd, path, PD_MEGATRON_HEADER_BYTES + 4 * first, lengths, 4ull * count, err));
    PD_TRY(pd_data_file_read(file->index_fd, path, offsets_at(file) + 8 * first, offsets, 8ull * count, err));
    for (uint32_t i = 0; i < count; i++) {
        int32_t length = (int32_t)le32toh((uint32_t)lengths[i]);
        uint64_t offset = le64toh((uint64_t)offsets[i]);
        if (length < 0) PD_FAIL(err, PD_INVALID, "%s: sequence %" PRIu64 " has a length of %d", path, first + i, length);
        uint64_t bytes = (uint64_t)length * pd_token_bytes(file->type);
        if (!pd_checked_range(offset, bytes, file->file_bytes))
            PD_FAIL(err, PD_INVALID,
                    "%s: sequence %" PRIu64 " (byte %" PRIu64 ", %d tokens) lies outside %s of %" PRIu64
                    " bytes: the .bin is truncated or not its pair",
                    path, first + i, offset, length, file->path, file->file_bytes);
        if (offset != *position)
            PD_FAIL(err, PD_INVALID,
                    "%s: sequence %" PRIu64 " begins at byte %" PRIu64 " and the one before ends at %" PRIu64
                    ": only sequences in the order of the .bin can be read",
                    path, first + i, offset, *position);
        *position += bytes;
    }
    return PD_OK;
}

static pd_status check_bounds(const struct pd_token_file *file, uint64_t first, uint32_t count, uint64_t *before,
                              struct pd_error *err)
{
    uint64_t bounds[CHUNK];
    PD_TRY(pd_data_file_read(file->index_fd, file->index_path, documents_at(file) + 8 * first, bounds, 8ull * count, err));
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bound = le64toh(bounds[i]);
        bool last = first + i == file->document_count;
        bool right = first + i == 0 ? bound == 0 : last ? bound == file->sequence_count : bound >= *before;
        if (!right || bound < *before || bound > file->sequence_count)
            PD_FAIL(err, PD_INVALID,
                    "%s: document bound %" PRIu64 " is sequence %" PRIu64 " of %" PRIu64
                    ": bounds begin at 0, ascend and end at the number of sequences",
                    file->index_path, first + i, bound, file->sequence_count);
        *before = bound;
    }
    return PD_OK;
}

pd_status pd_megatron_index_open(struct pd_token_file *file, struct pd_error *err)
{
    PD_TRY(parse_header(file, err));
    uint64_t position = 0, before = 0;
    for (uint64_t first = 0; first < file->sequence_count; first += CHUNK) {
        uint64_t left = file->sequence_count - first;
        PD_TRY(check_sequences(file, first, (uint32_t)(left < CHUNK ? left : CHUNK), &position, err));
    }
    for (uint64_t first = 0; first <= file->document_count; first += CHUNK) {
        uint64_t left = file->document_count + 1 - first;
        PD_TRY(check_bounds(file, first, (uint32_t)(left < CHUNK ? left : CHUNK), &before, err));
    }
    if (position != file->file_bytes)
        PD_FAIL(err, PD_INVALID, "%s has %" PRIu64 " bytes and its index %s accounts for %" PRIu64 ": they are not a pair",
                file->path, file->file_bytes, file->index_path, position);
    return PD_OK;
}

/* bounds[i] becomes the token position at which sequence bounds[i] begins. */
static pd_status bounds_to_positions(const struct pd_token_file *file, uint64_t *bounds, uint64_t count,
                                     struct pd_error *err)
{
    int64_t offsets[CHUNK];
    uint64_t held_first = 0, held = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t sequence = le64toh(bounds[i]);
        if (sequence == file->sequence_count) { /* an empty document at the end */
            bounds[i] = file->token_count;
            continue;
        }
        if (sequence < held_first || sequence >= held_first + held) {
            uint64_t left = file->sequence_count - sequence;
            held_first = sequence;
            held = left < CHUNK ? left : CHUNK;
            PD_TRY(pd_data_file_read(file->index_fd, file->index_path, offsets_at(file) + 8 * sequence, offsets, 8 * held,
                                     err));
        }
        bounds[i] = le64toh((uint64_t)offsets[sequence - held_first]) / pd_token_bytes(file->type);
    }
    return PD_OK;
}

pd_status pd_token_file_documents(const struct pd_token_file *file, uint64_t **ret_starts, uint64_t *ret_count,
                                  struct pd_error *err)
{
    PD_CHECK(file->format == PD_DATA_MEGATRON);
    uint64_t bytes;
    uint64_t *starts = NULL;
    if (pd_checked_mul_u64(file->document_count, 8, &bytes)) starts = malloc(bytes);
    if (!starts)
        PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for the bounds of %" PRIu64 " documents", file->index_path,
                file->document_count);
    pd_status status = pd_data_file_read(file->index_fd, file->index_path, documents_at(file), starts, bytes, err);
    if (!status) status = bounds_to_positions(file, starts, file->document_count, err);
    if (status) {
        free(starts);
        return status;
    }
    *ret_starts = starts;
    *ret_count = file->document_count;
    return PD_OK;
}
