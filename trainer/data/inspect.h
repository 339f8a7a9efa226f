/* What a token file holds, for people. */
#pragma once

#include "trainer/data/token_file.h"
#include "trainer/data/token_origin.h"

#define PD_INSPECT_TOP 16u
#define PD_INSPECT_FIRST 32u

struct pd_data_inspection {
    struct pd_token_file file; /* open */
    struct pd_token_origin tokenizer; /* that made it, as the copy beside the file says */
    struct pd_token_scan scan;
    uint64_t documents; /* by the index, or by document_token; 0: not known */
    uint64_t distinct;  /* different tokens; 0 when there are too many to count (max of 2^22 and more, negative ones) */
    struct {
        int64_t token;
        uint64_t count;
    } top[PD_INSPECT_TOP]; /* most frequent first, ties by token */
    uint32_t top_count, first_count;
    int32_t first[PD_INSPECT_FIRST]; /* the first tokens */
};

/* document_token negative: none. Errors as pd_data_open, but for tokens out of range, and as pd_token_origin_read. */
PD_MUST_USE pd_status pd_data_inspect(const char *path, enum pd_data_format format, int64_t document_token,
                                      struct pd_data_inspection *ret_inspection, struct pd_error *err);
void pd_data_inspection_deinit(struct pd_data_inspection *inspection);
