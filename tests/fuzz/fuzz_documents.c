/* Text, JSON lines, gzip or zstd, to be packed. The first byte says whether a separator or turns are asked for. Documents come in pieces
 * of files and lines that are there. */
#include "tests/fuzz/input/names.h"
#include "tests/fuzz/target.h"
#include "trainer/data/documents.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { ONE_AS_WIDE = 512 }; /* of so many inputs, by their bytes: none that descends from it is wide too */

/* Every byte is looked at: by memcpy, which the sanitizer checks as a whole, and not one by one, each with its comparison traced. */
static void look_at(const char *text, size_t bytes)
{
    static char seen[64 << 10];
    for (size_t at = 0; at < bytes; at += sizeof seen) {
        const size_t left = bytes - at;
        memcpy(seen, text + at, left < sizeof seen ? left : sizeof seen);
        __asm__ volatile("" : : "r"(seen) : "memory"); /* or nobody reads it, and the compiler leaves the copy out */
    }
}

static pd_status read_documents(struct pd_documents *documents, struct pd_error *err)
{
    const struct pd_document_piece *pieces;
    uint32_t count = 0;
    uint64_t line = 0;
    do {
        PD_TRY(pd_documents_next(documents, &pieces, &count, err));
        for (uint32_t i = 0; i < count; i++) {
            if (pieces[i].file || pieces[i].line < line || (pieces[i].line && !pieces[i].ends)) abort();
            line = pieces[i].line;
            look_at(pieces[i].text, pieces[i].bytes);
            for (uint32_t k = 0; pieces[i].turns && k < pieces[i].turns->count; k++) {
                const uint32_t *cuts = pieces[i].turns->cuts;
                if (cuts[k] > pieces[i].bytes || (k && cuts[k] < cuts[k - 1])) abort();
            }
        }
    } while (count);
    return PD_OK;
}

/* The address sanitizer paints a window of 2 GiB for a tenth of a second, and a chain of frames that repeat a byte is megabytes. So
 * frames of zstd keep 32 KiB at most by their headers (RFC 8878, 3.1.1.1), which bounds their blocks too. */
static void narrow(uint8_t *header, size_t bytes)
{
    static const unsigned dictionary_bytes[] = {0, 1, 2, 4}, content_bytes[] = {1, 2, 4, 8};
    if (bytes < 2) return;
    if (!(header[0] & 0x20)) {
        if (header[1] >> 3 > 4) header[1] = (uint8_t)(header[1] & 7) | 4 << 3;
        return;
    }
    const size_t at = 1 + dictionary_bytes[header[0] & 3], wide = content_bytes[header[0] >> 6];
    for (size_t i = 1; i < wide && at + i < bytes; i++)
        header[at + i] &= i == 1 ? 0x3f : 0;
}

static void narrow_frames(uint8_t *data, size_t bytes)
{
    static const uint8_t magic[] = {0x28, 0xb5, 0x2f, 0xfd};
    for (uint8_t *at = data, *end = data + bytes; (at = memmem(at, (size_t)(end - at), magic, sizeof magic));) {
        at += sizeof magic;
        narrow(at, (size_t)(end - at));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"input"};
    struct pd_documents *documents;
    struct pd_error err = {0};
    char path[128];
    if (!bytes) return 0;
    uint8_t *text = malloc(bytes);
    if (!text) abort();
    memcpy(text, data + 1, bytes - 1);
    if (crc32(0, data, (uInt)bytes) % ONE_AS_WIDE) narrow_frames(text, bytes - 1);
    snprintf(path, sizeof path, "%s/input", input_names(names, 1));
    input_name_set(0, text, bytes - 1);
    free(text);
    const char *const input = path;
    const struct pd_documents_options options = {.inputs = &input,
                                                 .input_count = 1,
                                                 .separator = data[0] & 1 ? "<|endoftext|>" : NULL,
                                                 .turns = {data[0] & 2 ? "text" : NULL, (data[0] & 6) == 6 ? "t" : NULL}};
    pd_status st = pd_documents_open(&options, &documents, &err);
    if (!st) {
        st = read_documents(documents, &err);
        pd_documents_close(documents);
    }
    if (st && !err.message[0]) abort();
    return 0;
}
