#include "trainer/data/input_kind.h"

#include "trainer/data/token_format.h"
#include <endian.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PANDAS(read)                                                      \
    "make JSON lines of it: python3 -c 'import pandas, sys; pandas." read \
    "(sys.argv[1]).to_json(sys.argv[1] + \".jsonl\", orient=\"records\", lines=True)' @"
#define UTF_8 "-t UTF-8 -o @.utf8 @"

struct signature {
    size_t offset, bytes;
    const char *magic;
    struct pd_input_kind kind;
};

#define MAGIC(offset, text) (offset), sizeof(text) - 1, (text)
/* The longer of two that begin alike comes first. */
static const struct signature signatures[] = {
    {MAGIC(0, "\x1f\x8b\x08"), {PD_INPUT_GZIP, "compressed with gzip", NULL}},
    {MAGIC(0, "\x28\xb5\x2f\xfd"), {PD_INPUT_ZSTD, "compressed with zstd", NULL}},
    {MAGIC(1, "\x2a\x4d\x18"), {PD_INPUT_ZSTD, "compressed with zstd", NULL}}, /* a skippable frame comes first */
    {MAGIC(0, "PAR1"), {PD_INPUT_OTHER, "a Parquet file", PANDAS("read_parquet")}},
    {MAGIC(0, "ARROW1"), {PD_INPUT_OTHER, "an Arrow file", PANDAS("read_feather")}},
    {MAGIC(0, "\xff\xff\xff\xff"),
     {PD_INPUT_OTHER, "an Arrow stream",
      "make JSON lines of it: python3 -c 'import datasets, sys; datasets.Dataset.from_file(sys.argv[1])"
      ".to_json(sys.argv[1] + \".jsonl\")' @"}},
    {MAGIC(0, "PK\x03\x04"), {PD_INPUT_OTHER, "a zip archive", "unpack it: unzip @"}},
    {MAGIC(257, "ustar"), {PD_INPUT_OTHER, "a tar archive", "unpack it: tar -xf @"}},
    {MAGIC(4, "1AY&SY"), {PD_INPUT_OTHER, "compressed with bzip2", "unpack it: bunzip2 -k @"}},
    {MAGIC(0, "\xfd"
              "7zXZ"),
     {PD_INPUT_OTHER, "compressed with xz", "unpack it: unxz -k @"}},
    {MAGIC(0, "\x04\x22\x4d\x18"), {PD_INPUT_OTHER, "compressed with lz4", "unpack it: unlz4 @"}},
    {MAGIC(0, "7z\xbc\xaf"), {PD_INPUT_OTHER, "a 7z archive", "unpack it: 7z x @"}},
    {MAGIC(0, "\xff\xfe\0\0"), {PD_INPUT_OTHER, "text in UTF-32", "make it UTF-8: iconv -f UTF-32 " UTF_8}},
    {MAGIC(0, "\0\0\xfe\xff"), {PD_INPUT_OTHER, "text in UTF-32", "make it UTF-8: iconv -f UTF-32 " UTF_8}},
    {MAGIC(0, "\xff\xfe"), {PD_INPUT_OTHER, "text in UTF-16", "make it UTF-8: iconv -f UTF-16 " UTF_8}},
    {MAGIC(0, "\xfe\xff"), {PD_INPUT_OTHER, "text in UTF-16", "make it UTF-8: iconv -f UTF-16 " UTF_8}},
    {MAGIC(0, "\x93NUMPY"),
     {PD_INPUT_OTHER, "an array of NumPy",
      "where it holds tokens, write them bare: python3 -c 'import numpy, sys; "
      "numpy.load(sys.argv[1]).astype(\"uint16\").tofile(sys.argv[1] + \".bin\")' @"}},
    {MAGIC(0, "\x89HDF"), {PD_INPUT_OTHER, "an HDF5 file", "write its text to a file; h5ls -r @ shows what it holds"}},
    {MAGIC(0, "%PDF-"), {PD_INPUT_OTHER, "a PDF", "make text of it: pdftotext @"}},
    {MAGIC(0, "SQLite format 3"),
     {PD_INPUT_OTHER, "an SQLite database", "write its text to a file: sqlite3 @ 'select COLUMN from TABLE' > TEXT"}},
};

static const struct pd_input_kind no_text = {PD_INPUT_DOUBTFUL, "no text: it has zero bytes",
                                             "make text of it, or give its format: text, nanogpt, llmc or megatron"};
static const struct pd_input_kind utf_16 = {PD_INPUT_OTHER, "text in UTF-16, it seems",
                                            "make it UTF-8: iconv -f UTF-16LE " UTF_8};
static const struct pd_input_kind tokens = {PD_INPUT_TOKENS, "a token file", "it needs no packing, name it in data.train"};

static bool ends_with(const char *text, size_t length, const char *end)
{
    const size_t bytes = strlen(end);
    return length >= bytes && strncmp(text + length - bytes, end, bytes) == 0;
}

/* Without what a compressor added. */
static size_t bare_length(const char *path)
{
    const size_t length = strlen(path);
    return ends_with(path, length, ".gz") ? length - 3 : ends_with(path, length, ".zst") ? length - 4 : length;
}

static bool is_tokens(const char *path, const unsigned char *head, size_t bytes)
{
    uint32_t magic = 0;
    if (bytes >= sizeof magic) memcpy(&magic, head, sizeof magic);
    magic = le32toh(magic);
    return magic == PD_LLMC_MAGIC_U16 || magic == PD_LLMC_MAGIC_U32 || ends_with(path, strlen(path), ".bin");
}

/* { or [ and then what JSON goes on with: text that people write hardly ever begins so. */
static struct pd_input_kind json_or_text(const char *path, size_t length, const unsigned char *head, size_t bytes)
{
    static const struct pd_input_kind text = {PD_INPUT_TEXT, "text", NULL},
                                      lines = {PD_INPUT_JSON_LINES, "JSON lines", NULL},
                                      array = {PD_INPUT_DOUBTFUL, "one JSON array, not JSON lines",
                                               "write one object a line: jq -c '.[]' @ > @.jsonl"},
                                      value = {PD_INPUT_DOUBTFUL, "one JSON value over several lines, not JSON lines",
                                               "write one object a line: jq -c . @ > @.jsonl"};
    if (bytes >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0) head += 3, bytes -= 3;
    size_t at = 0;
    while (at < bytes && strchr(" \t\r\n", head[at]))
        at++;
    const unsigned char opener = at < bytes ? head[at++] : 0;
    const size_t inside = at;
    while (at < bytes && head[at] && strchr(" \t\r\n", head[at]))
        at++;
    const unsigned char next = at < bytes ? head[at] : 0;
    const bool broken = memchr(head + inside, '\n', at - inside) != NULL;
    const bool named = ends_with(path, length, ".jsonl") || ends_with(path, length, ".ndjson");
    if (opener == '[' && (next == '{' || (named && next))) return array;
    if (opener == '{' && next == '"') return broken ? value : lines;
    return named ? lines : text;
}

static size_t count_zeros(const unsigned char *head, size_t bytes)
{
    size_t zeros = 0;
    for (size_t i = 0; i < bytes; i++)
        zeros += head[i] == 0;
    return zeros;
}

struct pd_input_kind pd_input_kind_of(const char *path, const unsigned char *head, size_t bytes)
{
    const size_t length = bare_length(path);
    /* First: tokens may begin like anything. */
    if (is_tokens(path, head, bytes)) return tokens;
    for (size_t i = 0; i < sizeof signatures / sizeof signatures[0]; i++) {
        const struct signature *s = &signatures[i];
        if (bytes >= s->offset + s->bytes && memcmp(head + s->offset, s->magic, s->bytes) == 0) return s->kind;
    }
    if (ends_with(path, length, ".idx"))
        return (struct pd_input_kind){PD_INPUT_OTHER, "the index of a token file", "name its .bin in data.train"};
    const size_t zeros = count_zeros(head, bytes);
    const bool is_named_text = ends_with(path, length, ".txt");
    if (is_named_text && zeros > bytes / 4) return utf_16;
    if (zeros && !is_named_text) return no_text;
    return json_or_text(path, length, head, bytes);
}

/* ---- words ---- */

const char *pd_shell_word(const char *path, char *ret, size_t capacity)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+-,:=@%";
    size_t used = 0;
    if (path[0] && path[strspn(path, plain)] == '\0') {
        snprintf(ret, capacity, "%s", path);
        return ret;
    }
    ret[0] = '\0';
    for (const char *at = path; used + 8 < capacity; at++) {
        const char *open = at == path ? "'" : "";
        if (*at == '\0') {
            snprintf(ret + used, capacity - used, "%s'", open);
            break;
        }
        used += (size_t)(*at == '\'' ? snprintf(ret + used, capacity - used, "%s'\\''", open)
                                     : snprintf(ret + used, capacity - used, "%s%c", open, *at));
    }
    return ret;
}

pd_status pd_input_refuse(const char *path, const struct pd_input_kind *kind, struct pd_error *err)
{
    char word[512], advice[1024];
    size_t used = 0;
    pd_shell_word(path, word, sizeof word);
    for (const char *at = kind->advice; *at && used + 1 < sizeof advice; at++) {
        const int added = *at == '@' ? snprintf(advice + used, sizeof advice - used, "%s", word)
                                     : snprintf(advice + used, sizeof advice - used, "%c", *at);
        used += added > 0 ? (size_t)added : 0;
    }
    PD_FAIL(err, PD_INVALID, "%s is %s; %s", path, kind->what, advice);
}
