/* Token files of nanoGPT, llm.c and Megatron, and text. The first byte is the format that is asked for, the second the
 * vocabulary; records of the .bin and the .idx follow. Tokens that are read are those that a scan has seen. */
#include "tests/fuzz/input/directory.h"
#include "tests/fuzz/input/names.h"
#include "tests/fuzz/target.h"
#include "trainer/data/token_file.h"

#include <stdio.h>
#include <stdlib.h>

enum { READ_MAX = 64 };

static void read_documents(const struct pd_token_file *file)
{
    uint64_t *starts, count;
    struct pd_error err = {0};
    const pd_status st = pd_token_file_documents(file, &starts, &count, &err);
    if (st && !err.message[0]) abort();
    if (st) return;
    for (uint64_t i = 0; i < count; i++)
        if (starts[i] > file->token_count || (i ? starts[i] < starts[i - 1] : starts[i] != 0)) abort();
    free(starts);
}

static void read_tokens(const struct pd_token_file *file, uint32_t vocab)
{
    struct pd_token_scan scan;
    struct pd_error err = {0};
    int32_t tokens[READ_MAX];
    const uint32_t count = file->token_count < READ_MAX ? (uint32_t)file->token_count : READ_MAX;
    const pd_status st = pd_token_file_scan(file, vocab, NULL, &scan, &err);
    if (st && !err.message[0]) abort();
    if (st) return;
    if (pd_token_file_read(file, file->token_count - count, count, tokens, &err)) abort();
    for (uint32_t i = 0; i < count && scan.max <= INT32_MAX && scan.min >= INT32_MIN; i++)
        if (tokens[i] < scan.min || tokens[i] > scan.max || (vocab && (uint32_t)tokens[i] >= vocab)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"t.bin", "t.idx", "t.txt"};
    struct pd_token_file file;
    struct pd_error err = {0};
    struct input_record record;
    char path[128];
    if (bytes < 2) return 0;
    const unsigned format = data[0] % 8, vocab = data[1];
    const char *directory = input_names(names, 3);
    for (uint32_t i = 0; i < 3; i++)
        input_name_set(i, NULL, 0);
    data += 2, bytes -= 2;
    while (input_record_take(&data, &bytes, 3, &record))
        input_name_set(record.part, record.data, record.bytes);
    snprintf(path, sizeof path, "%s/%s", directory, names[format > PD_DATA_MEGATRON ? 2 : 0]);
    const pd_status st =
        pd_token_file_open(path, format > PD_DATA_MEGATRON ? PD_DATA_AUTO : (enum pd_data_format)format, &file, &err);
    if (st && !err.message[0]) abort();
    if (st) return 0;
    read_tokens(&file, vocab);
    if (file.format == PD_DATA_MEGATRON) read_documents(&file);
    pd_token_file_close(&file);
    return 0;
}
