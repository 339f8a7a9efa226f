/* Text, JSON lines, gzip or zstd, to be packed. The first byte says whether a separator is asked for. Documents come in pieces
 * of files and lines that are there. */
#include "tests/fuzz/input_names.h"
#include "tests/fuzz/target.h"
#include "trainer/data/documents.h"

#include <stdio.h>
#include <stdlib.h>

static pd_status read_documents(struct pd_documents *documents, struct pd_error *err)
{
    const struct pd_document_piece *pieces;
    uint32_t count = 0;
    uint64_t line = 0, sum = 0;
    do {
        PD_TRY(pd_documents_next(documents, &pieces, &count, err));
        for (uint32_t i = 0; i < count; i++) {
            if (pieces[i].file || pieces[i].line < line || (pieces[i].line && !pieces[i].ends)) abort();
            line = pieces[i].line;
            for (size_t k = 0; k < pieces[i].bytes; k++)
                sum += (unsigned char)pieces[i].text[k];
        }
    } while (count);
    static volatile uint64_t seen;
    seen = sum;
    (void)seen;
    return PD_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"input"};
    struct pd_documents *documents;
    struct pd_error err = {0};
    char path[128];
    if (!bytes) return 0;
    snprintf(path, sizeof path, "%s/input", input_names(names, 1));
    input_name_set(0, data + 1, bytes - 1);
    const char *const input = path;
    const struct pd_documents_options options = {
        .inputs = &input, .input_count = 1, .separator = data[0] & 1 ? "<|endoftext|>" : NULL};
    pd_status st = pd_documents_open(&options, &documents, &err);
    if (!st) {
        st = read_documents(documents, &err);
        pd_documents_close(documents);
    }
    if (st && !err.message[0]) abort();
    return 0;
}
