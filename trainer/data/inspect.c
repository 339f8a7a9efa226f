#include "trainer/data/inspect.h"

#include <stdlib.h>

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

static pd_status inspect_file(int64_t document_token, struct pd_data_inspection *x, struct pd_error *err)
{
    PD_TRY(pd_token_file_scan(&x->file, 0, NULL, &x->scan, err));
    x->documents = x->file.document_count;
    x->first_count = x->file.token_count < PD_INSPECT_FIRST ? (uint32_t)x->file.token_count : PD_INSPECT_FIRST;
    PD_TRY(pd_token_file_read(&x->file, 0, x->first_count, x->first, err));
    if (x->scan.min < 0 || x->scan.max >= (int64_t)COUNTED_TOKENS) return PD_OK;
    uint64_t *counts = calloc(COUNTED_TOKENS, sizeof *counts); /* pages that are not counted in are never touched */
    if (!counts) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory to count tokens", x->file.path);
    pd_status status = count_tokens(&x->file, counts, err);
    for (int64_t token = x->scan.min; !status && token <= x->scan.max; token++) {
        if (!counts[token]) continue;
        x->distinct++;
        top_insert(x, token, counts[token]);
        if (token == document_token && x->file.format != PD_DATA_MEGATRON) x->documents = counts[token];
    }
    free(counts);
    return status;
}

pd_status pd_data_inspect(const char *path, enum pd_data_format format, int64_t document_token,
                          struct pd_data_inspection *ret_inspection, struct pd_error *err)
{
    struct pd_data_inspection inspection = {0};
    PD_TRY(pd_token_file_open(path, format, &inspection.file, err));
    pd_status status = inspect_file(document_token, &inspection, err);
    if (!status) status = pd_token_origin_read(inspection.file.path, &inspection.tokenizer, err);
    if (status) pd_token_file_close(&inspection.file);
    if (!status) *ret_inspection = inspection;
    return status;
}

void pd_data_inspection_deinit(struct pd_data_inspection *inspection)
{
    if (inspection) pd_token_file_close(&inspection->file);
}
