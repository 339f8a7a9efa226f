/* Text, JSON lines, gzip or zstd, to be packed. The first byte says whether a separator is asked for. Documents come in pieces
 * of files and lines that are there. */
#include "tests/fuzz/input_names.h"
#include "tests/fuzz/target.h"
#include "trainer/data/documents.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Log2 of the bytes that a frame of zstd keeps, by its header (RFC 8878, 3.1.1.1): behind its magic number. */
static unsigned window_log(const uint8_t *header, size_t bytes)
{
    static const unsigned dictionary_bytes[] = {0, 1, 2, 4}, content_bytes[] = {1, 2, 4, 8};
    if (bytes < 2) return 0;
    if (!(header[0] & 0x20)) return 10 + (header[1] >> 3);
    const size_t at = 1 + dictionary_bytes[header[0] & 3], wide = content_bytes[header[0] >> 6];
    for (size_t i = wide; i-- > 0;)
        if (at + i < bytes && header[at + i]) return (unsigned)(8 * i) + 8;
    return 0;
}

/* The address sanitizer paints a window of 2 GiB for a tenth of a second: of many such inputs one is enough. */
static bool is_passed_over(const uint8_t *data, size_t bytes)
{
    static const uint8_t magic[] = {0x28, 0xb5, 0x2f, 0xfd};
    static uint64_t wide;
    for (const uint8_t *at = data, *end = data + bytes; (at = memmem(at, (size_t)(end - at), magic, sizeof magic));) {
        at += sizeof magic;
        if (window_log(at, (size_t)(end - at)) > 23) return wide++ % 1024 != 0;
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"input"};
    struct pd_documents *documents;
    struct pd_error err = {0};
    char path[128];
    if (!bytes || is_passed_over(data, bytes)) return 0;
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
