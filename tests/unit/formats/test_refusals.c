/* Files that no program wrote, byte by byte, and the words in which each is refused; the last of a table is whole. */
#include "resharder/formats/format.h"
#include "resharder/torch/archive.h"
#include "tests/fuzz/input/disk.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* `bytes` in words: cN, sN, uN, qN a number of 1, 2, 4, 8 bytes; zN zeros; x:TEXT as it is; t:TEXT behind its length (8 bytes). */
struct file {
    const char *bytes, *says; /* NULL: it is read */
    pd_status status;
};

static struct pd_error err;

static size_t assemble(const char *words, unsigned char *out)
{
    size_t bytes = 0;
    char *copy = strdup(words), *rest = copy;
    for (const char *word; (word = strsep(&rest, " "));) {
        const char *text = word[0] && word[1] == ':' ? word + 2 : "";
        const uint64_t number = strtoull(word + (word[0] != 0), NULL, 0);
        const size_t width = word[0] == 'c' ? 1 : word[0] == 's' ? 2 : word[0] == 'u' ? 4 : word[0] == 'q' ? 8 : 0;
        const uint64_t length = strlen(text);
        memcpy(out + bytes, &number, width);
        if (word[0] == 'z') memset(out + bytes, 0, number);
        if (word[0] == 't') memcpy(out + bytes, &length, 8);
        bytes += word[0] == 'z' ? number : word[0] == 't' ? 8 : width;
        memcpy(out + bytes, text, length);
        bytes += length;
    }
    free(copy);
    return bytes;
}

static void check(const struct file *files, size_t count, pd_status (*read)(struct pd_vfs *vfs, const char *path))
{
    static unsigned char text[1 << 20];
    for (size_t i = 0; i < count; i++) {
        const size_t bytes = assemble(files[i].bytes, text);
        struct pd_vfs *vfs = input_disk_of(text, bytes);
        err = (struct pd_error){0};
        const pd_status st = read(vfs, INPUT_PATH);
        cr_assert_eq(st, files[i].status, "%s: %s: %s", files[i].bytes, pd_status_name(st), err.message);
        if (!st) continue;
        cr_assert(err.status == st && strstr(err.message, INPUT_PATH), "%s: %s", files[i].bytes, err.message);
        cr_assert(strstr(err.message, files[i].says), "%s: %s", files[i].bytes, err.message);
    }
}
#define CHECK(files, read) check(files, sizeof(files) / sizeof(files)[0], read)

static pd_status read_as(const struct pd_format *format, struct pd_vfs *vfs, const char *path)
{
    struct pd_catalog c;
    pd_catalog_init(&c, format->name);
    pd_status st = format->read(vfs, path, &c, &err);
    if (!st) st = pd_catalog_finish(&c, &err);
    pd_catalog_deinit(&c);
    return st;
}

/* ---- archives of torch.save ---- */

static pd_status open_archive(struct pd_vfs *vfs, const char *path)
{
    struct pd_file *file = NULL;
    struct pd_stat stat;
    struct pd_torch_archive archive;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_READ, &file, &err));
    pd_status st = pd_file_stat(file, &stat, &err);
    if (!st) st = pd_torch_open(file, path, 0, stat.bytes, &archive, &err);
    if (!st) pd_torch_close(&archive);
    pd_file_close_readonly(file);
    return st;
}

#define END(count, bytes, offset) "u0x06054b50 z4 s" #count " s" #count " u" #bytes " u" #offset " s0"
#define LOCATOR(offset) "u0x07064b50 u0 q" #offset " u1"
#define LOCAL(name_bytes) "u0x04034b50 z22 s" #name_bytes " s0"
#define CENTRAL(flags, method, stored, bytes, name_bytes, extra_bytes, offset) \
    "u0x02014b50 z4 s" #flags " s" #method " z8 u" #stored " u" #bytes " s" #name_bytes " s" #extra_bytes " z10 u" #offset
/* "a/data.pkl" holds None; 42 bytes. */
#define NONE LOCAL(10) " x:a/data.pkl x:N."
#define NONE_ENTRY CENTRAL(0, 0, 2, 2, 10, 0, 0) " x:a/data.pkl"

Test(refusals, archives)
{
    static const struct file files[] = {
        {"z10", "10 bytes at 0 are not an archive", PD_CORRUPT},
        {"z100", "no torch.save archive ends at byte 100", PD_CORRUPT},
        {"z70000", "no torch.save archive ends at byte 70000", PD_CORRUPT},
        {END(65535, 0, 0), "a zip64 archive without its locator", PD_CORRUPT},
        {"z20 " END(0, 4294967295, 0), "a zip64 archive without its locator", PD_CORRUPT},
        {LOCATOR(999) " " END(0, 0, 4294967295), "the zip64 end record lies outside the archive, at 999", PD_CORRUPT},
        {"z56 " LOCATOR(0) " " END(0, 0, 4294967295), "no zip64 end record at byte 0", PD_CORRUPT},
        {END(5, 10, 0), "should have 5 entries in 10 bytes at 0", PD_CORRUPT},
        {END(0, 100000000, 0), "should have 0 entries in 100000000 bytes at 0", PD_CORRUPT},
        {END(0, 1, 100), "should have 0 entries in 1 bytes at 100", PD_CORRUPT},
        {"z46 " END(1, 46, 0), "entry 0 of the archive's directory is damaged, at byte 0", PD_CORRUPT},
        {CENTRAL(0, 0, 0, 0, 9, 0, 0) " " END(1, 46, 0), "entry 0 of", PD_CORRUPT},
        {CENTRAL(0, 0, 0, 0, 0, 0, 9999) " " END(1, 46, 0), "entry 0 of", PD_CORRUPT},
        {CENTRAL(0, 0, 9999, 0, 0, 0, 0) " " END(1, 46, 0), "entry 0 of", PD_CORRUPT},
        {CENTRAL(0, 0, 0, 4294967295, 0, 0, 0) " " END(1, 46, 0), "entry 0 of", PD_CORRUPT},
        {CENTRAL(0, 0, 4294967295, 0, 0, 0, 0) " " END(1, 46, 0), "entry 0 of", PD_CORRUPT},
        {CENTRAL(0, 0, 0, 0, 0, 0, 4294967295) " " END(1, 46, 0), "entry 0 of", PD_CORRUPT},
        {CENTRAL(0, 0, 0, 4294967295, 0, 4, 0) " s1 s0 " END(1, 50, 0), "entry 0 of", PD_CORRUPT},
        {CENTRAL(0, 0, 0, 4294967295, 0, 4, 0) " s1 s8 " END(1, 50, 0), "entry 0 of", PD_CORRUPT},
        {END(0, 0, 0), "an archive without data.pkl", PD_CORRUPT},
        {NONE " " CENTRAL(0, 8, 2, 2, 10, 0, 0) " x:a/data.pkl " END(1, 56, 42), "a/data.pkl is compressed or encrypted",
         PD_UNSUPPORTED},
        {NONE " " CENTRAL(1, 0, 2, 2, 10, 0, 0) " x:a/data.pkl " END(1, 56, 42), "a/data.pkl is compressed or encrypted",
         PD_UNSUPPORTED},
        {NONE " " CENTRAL(0, 0, 2, 3, 10, 0, 0) " x:a/data.pkl " END(1, 56, 42), "a/data.pkl is compressed or encrypted",
         PD_UNSUPPORTED},
        {"z42 " NONE_ENTRY " " END(1, 56, 42), "a/data.pkl has no data at byte 30", PD_CORRUPT},
        {LOCAL(60000) " x:a/data.pkl x:N. " NONE_ENTRY " " END(1, 56, 42), "a/data.pkl has no data at byte 60030",
         PD_CORRUPT},
        {LOCAL(10) " x:a/data.pkl x:N. " CENTRAL(0, 0, 100, 100, 10, 0, 0) " x:a/data.pkl " END(1, 56, 42),
         "a/data.pkl has no data at byte 40", PD_CORRUPT},
        {LOCAL(11) " x:a/byteorder x:big " CENTRAL(0, 0, 3, 3, 11, 0, 0) " x:a/byteorder " END(1, 57, 44),
         "its numbers are not little-endian", PD_UNSUPPORTED},
        {LOCAL(11) " x:a/byteorder x:bigbig " CENTRAL(0, 0, 6, 6, 11, 0, 0) " x:a/byteorder " END(1, 57, 47),
         "its numbers are not little-endian", PD_UNSUPPORTED},
        {LOCAL(11) " x:a/byteorder z20 " CENTRAL(0, 0, 20, 20, 11, 0, 0) " x:a/byteorder " END(1, 57, 61),
         "a/byteorder takes 20 bytes; at most 16 are read", PD_CORRUPT},
        {LOCAL(10) " x:a/data.pkl x:NN " NONE_ENTRY " " END(1, 56, 42), "the file ends before", PD_CORRUPT},
        {NONE " " NONE_ENTRY " " END(1, 56, 42), NULL, PD_OK},
        /* another field before the one of zip64 */
        {NONE " " CENTRAL(0, 0, 4294967295, 4294967295, 10, 24, 0) " x:a/data.pkl s9 s0 s1 s16 q2 q2 " END(1, 80, 42), NULL,
         PD_OK},
    };
    CHECK(files, open_archive);
}

/* ---- GGUF ---- */

static pd_status read_gguf(struct pd_vfs *vfs, const char *path)
{
    return read_as(pd_format_find("gguf"), vfs, path);
}

#define GGUF(tensors, pairs) "x:GGUF u3 q" #tensors " q" #pairs " "
#define LLAMA "t:general.architecture u8 t:llama "
#define LONG "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define ROPE(count) "t:rope_freqs.weight u1 q" #count " u0 q0 "
#define F32_ONE "u0x3f800000 "
#define F32_EIGHT "u0x41000000 "

Test(refusals, gguf)
{
    static const struct file files[] = {
        {"", "ends at byte 0, where 4 more are wanted at 0", PD_CORRUPT},
        {"x:GGUX u3 q0 q0", "does not begin with GGUF", PD_CORRUPT},
        {"x:GGUF u1 q0 q0", "version 1 of GGUF; perdure reads 2 and 3", PD_UNSUPPORTED},
        {"x:GGUF u0x3000000 q0 q0", "version 50331648 of GGUF", PD_UNSUPPORTED},
        {GGUF(0, 65537), "0 tensors and 65537 pairs of metadata", PD_CORRUPT},
        {GGUF(4294967295, 0), "4294967295 tensors and 0 pairs of metadata", PD_CORRUPT},
        {GGUF(0, 1) "q200000000000", "a text of 200000000000 bytes begins at byte 32", PD_CORRUPT},
        {GGUF(0, 1) "q5 x:abc", "a text of 5 bytes begins at byte 32", PD_CORRUPT},
        {GGUF(0, 1) "t:" LONG LONG LONG LONG " u4 u1", "a key of 256 bytes", PD_CORRUPT},
        {GGUF(0, 1) "q3 z3 u4 u1", "a key of 3 bytes", PD_CORRUPT},
        {GGUF(0, 1) "t:key u13", "a value of type 13", PD_CORRUPT},
        {GGUF(0, 1) "t:key u9 u99 q0", "a value of type 99", PD_CORRUPT},
        {GGUF(0, 1) "t:key u9 u9 q0", "an array of arrays at byte", PD_UNSUPPORTED},
        {GGUF(0, 1) "t:key u9 u4 q2 u1", "an array of 2 values at byte", PD_CORRUPT},
        {GGUF(0, 1) "t:key u9 u8 q1 u1", "an array of 1 values at byte", PD_CORRUPT},
        {GGUF(0, 1) "t:key u9 u8 q1 q99", "a text of 99 bytes", PD_CORRUPT},
        {GGUF(0, 1) "t:tokenizer.key u9 u8 q1 q99", "a text of 99 bytes", PD_CORRUPT},
        {GGUF(0, 1) "t:tokenizer.key u10 u1", "where 8 more are wanted", PD_CORRUPT},
        {GGUF(0, 1) "t:tokenizer.key u4", "where 4 more are wanted", PD_CORRUPT},
        {GGUF(0, 1) "t:key u4", "where 4 more are wanted", PD_CORRUPT},
        {GGUF(0, 1) "t:llama.block_count u4", "where 4 more are wanted", PD_CORRUPT},
        {GGUF(0, 1) "t:general.alignment u4 u3", "general.alignment is 3; it is a power of two", PD_CORRUPT},
        {GGUF(0, 1) "t:general.alignment u4 u0x200000", "general.alignment is 2.09715e+06", PD_CORRUPT},
        {GGUF(0, 1) "t:general.alignment u8 t:many", "general.alignment is 0", PD_CORRUPT},
        {GGUF(0, 0), NULL, PD_OK}, /* whoever needs a model refuses it */
        {GGUF(0, 1) "t:general.architecture u8 t:mamba", NULL, PD_OK},
        {GGUF(0, 1) "t:split.count u4 u3", "is one of 3 parts (split.count)", PD_INVALID},
        {GGUF(1, 1) LLAMA "q0 u1 q1 u0 q0", "a tensor's name of 0 bytes", PD_CORRUPT},
        {GGUF(1, 1) LLAMA "q2 s0 u1 q1 u0 q0", "a tensor's name of 2 bytes", PD_CORRUPT},
        {GGUF(1, 1) LLAMA "t:" LONG LONG LONG LONG LONG LONG LONG LONG " u1 q1 u0 q0", "a tensor's name of 512 bytes",
         PD_CORRUPT},
        {GGUF(1, 1) LLAMA "t:a u5", "a has 5 dimensions; there are 4 at most", PD_CORRUPT},
        {GGUF(1, 1) LLAMA "t:a u1 q1 u99 q0", NULL, PD_OK}, /* listed */
        {GGUF(1, 1) LLAMA "t:a u1 q1 u0 q1", "a lies at 1 of the data, which is not a multiple of 32", PD_CORRUPT},
        {GGUF(1, 1) LLAMA "t:a u1 q1 u0 q0xffffffffffffffe0", "of the data, which is not a multiple of 32", PD_CORRUPT},
        {GGUF(1, 1) LLAMA "t:a u2 q9223372036854775807 q3 u0 q0", "more than 2^64 elements", PD_CORRUPT},
        {GGUF(1, 1) LLAMA "t:a u1 q33 u8 q0", "rows of 33", PD_CORRUPT},
        {GGUF(1, 1) LLAMA "t:a u1 q64 u0 q0", "ends beyond the file's", PD_CORRUPT},
        {GGUF(1, 1) LLAMA ROPE(2) "z96", "rope_freqs.weight is not a scaling of Llama 3: factor 0 is 0, not 1",
         PD_UNSUPPORTED},
        {GGUF(1, 2) LLAMA "t:perdure.rope_scaling.original_context_length u6 u0xbf800000 " ROPE(2) "z200",
         "perdure.rope_scaling.original_context_length is -1", PD_CORRUPT},
        {GGUF(1, 2) LLAMA "t:perdure.rope_scaling.original_context_length u6 u0x7fc00000 " ROPE(2) "z200",
         "perdure.rope_scaling.original_context_length is nan", PD_CORRUPT},
        {GGUF(1, 1) LLAMA ROPE(2) "c0", "/input", PD_CORRUPT}, /* its factors lie beyond the file */
        {GGUF(0, 8) LLAMA "t:llama.block_count u1 c2 t:llama.head_count u3 s2 t:llama.context_length u5 u2 "
                          "t:llama.embedding_length u11 q2 t:llama.rope.freq_base u12 q0 t:a u7 c1 t:b u0 c1",
         NULL, PD_OK},
    };
    CHECK(files, read_gguf);
}

/* ---- llm.c ---- */

static pd_status read_llmc(struct pd_vfs *vfs, const char *path)
{
    return read_as(pd_format_find("llmc"), vfs, path);
}

#define LLMC(magic, version, context, vocab, padded) \
    "u" #magic " u" #version " u" #context " u" #vocab " u1 u1 u1 u" #padded " z992"

Test(refusals, llmc)
{
    static const struct file files[] = {
        {"z100", "/input", PD_CORRUPT},
        {LLMC(1, 3, 1, 1, 1), "begins with 1, version 3; a model of llm.c begins with 20240326", PD_CORRUPT},
        {LLMC(20240326, 4, 1, 1, 1), "begins with 20240326, version 4", PD_CORRUPT},
        {LLMC(20240326, 3, 0, 1, 1), "number 2 of the header is 0", PD_CORRUPT},
        {LLMC(20240326, 3, 1, 0x7fffffff, 1), "number 3 of the header is 2147483647", PD_CORRUPT},
        {LLMC(20240326, 3, 1, 2, 1), "a padded vocabulary of 1 for one of 2", PD_CORRUPT},
        {LLMC(20240326, 3, 1, 1, 1), "takes 1024 bytes where its header gives 1140", PD_CORRUPT},
        {LLMC(20240326, 3, 1, 1, 1) " z116", NULL, PD_OK},
        {LLMC(20240326, 5, 1, 1, 1) " z58", NULL, PD_OK},
    };
    CHECK(files, read_llmc);
}
