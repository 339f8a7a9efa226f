#include "trainer/data/inspect.h"

#include "trainer/data/token_file.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COUNTED_TOKENS (1u << 22)
#define CHUNK_TOKENS 8192u

/* counts[token] for every token of the file, all of which lie below the array's length. */
static pd_status count_tokens(const struct pd_token_file *file, uint64_t *counts, struct pd_error *err)
{
    int32_t tokens[CHUNK_TOKENS];
    for (uint64_t at = 0; at < file->token_count;) {
        uint64_t left = file->token_count - at;
        uint32_t count = left < CHUNK_TOKENS ? (uint32_t)left : CHUNK_TOKENS;
        PD_TRY(pd_token_file_read(file, at, count, tokens, err));
        for (uint32_t i = 0; i < count; i++)
            counts[(uint32_t)tokens[i] % COUNTED_TOKENS]++;
        at += count;
    }
    return PD_OK;
}

/* Inserts into the list of the most frequent; tokens come in ascending order. */
static void top_insert(struct pd_data_inspection *inspection, int64_t token, uint64_t count)
{
    uint32_t at = inspection->top_count;
    if (at == PD_INSPECT_TOP) {
        if (count <= inspection->top[at - 1].count) return;
        at--;
    } else {
        inspection->top_count++;
    }
    while (at > 0 && inspection->top[at - 1].count < count) {
        inspection->top[at] = inspection->top[at - 1];
        at--;
    }
    inspection->top[at].token = token;
    inspection->top[at].count = count;
}

static pd_status inspect_counts(const struct pd_token_file *file, int64_t document_token,
                                struct pd_data_inspection *inspection, struct pd_error *err)
{
    if (inspection->min < 0 || inspection->max >= (int64_t)COUNTED_TOKENS) return PD_OK;
    uint64_t *counts = calloc(COUNTED_TOKENS, sizeof *counts); /* pages that are not counted in are never touched */
    if (!counts) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to count tokens", file->path);
    pd_status status = count_tokens(file, counts, err);
    for (int64_t token = inspection->min; !status && token <= inspection->max; token++) {
        if (!counts[token]) continue;
        inspection->distinct++;
        top_insert(inspection, token, counts[token]);
        if (token == document_token && file->format != PD_DATA_MEGATRON) inspection->documents = counts[token];
    }
    free(counts);
    return status;
}

static pd_status inspect_file(struct pd_token_file *file, int64_t document_token, struct pd_data_inspection *inspection,
                              struct pd_error *err)
{
    struct pd_token_scan scan = {0};
    PD_TRY(pd_token_file_scan(file, 0, NULL, &scan, err));
    inspection->format = file->format;
    inspection->format_name = pd_data_format_name(file->format);
    inspection->type_name = pd_token_type_name(file->type);
    inspection->file_bytes = file->file_bytes;
    inspection->tokens = file->token_count;
    inspection->documents = file->document_count;
    inspection->sequences = file->sequence_count;
    inspection->min = scan.min;
    inspection->max = scan.max;
    inspection->digest = scan.digest;
    inspection->first_count = file->token_count < PD_INSPECT_FIRST ? (uint32_t)file->token_count : PD_INSPECT_FIRST;
    PD_TRY(pd_token_file_read(file, 0, inspection->first_count, inspection->first, err));
    PD_TRY(inspect_counts(file, document_token, inspection, err));
    inspection->path = file->path; /* the names change hands */
    inspection->index_path = file->index_path;
    file->path = file->index_path = NULL;
    return PD_OK;
}

pd_status pd_data_inspect(const char *path, enum pd_data_format format, int64_t document_token,
                          struct pd_data_inspection *ret_inspection, struct pd_error *err)
{
    struct pd_token_file file;
    struct pd_data_inspection inspection = {0};
    PD_TRY(pd_token_file_open(path, format, &file, err));
    pd_status status = inspect_file(&file, document_token, &inspection, err);
    pd_token_file_close(&file);
    if (!status) *ret_inspection = inspection;
    return status;
}

void pd_data_inspection_deinit(struct pd_data_inspection *inspection)
{
    if (!inspection) return;
    free(inspection->path);
    free(inspection->index_path);
    inspection->path = inspection->index_path = NULL;
}
