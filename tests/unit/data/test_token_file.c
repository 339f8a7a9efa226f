#include "trainer/data/token_file.h"

#include "files.h"
#include "trainer/data/token_format.h"

static struct pd_error err;

TestSuite(token_file, .init = test_dir_make, .fini = test_dir_remove);

static void open_ok(const char *path, enum pd_data_format format, struct pd_token_file *file)
{
    cr_assert_eq(pd_token_file_open(path, format, file, &err), PD_OK, "%s", err.message);
}

/* The open or the scan fails with `status`, and the message has all the words. */
static void refused(const char *path, enum pd_data_format format, uint32_t vocab, pd_status expected, const char *a,
                    const char *b)
{
    struct pd_token_file file;
    struct pd_token_scan scan;
    memset(&err, 0, sizeof err);
    pd_status status = pd_token_file_open(path, format, &file, &err);
    if (!status) {
        status = pd_token_file_scan(&file, vocab, NULL, &scan, &err);
        pd_token_file_close(&file);
    }
    cr_assert_eq(status, expected, "%s: %s", path, err.message);
    cr_assert_not_null(strstr(err.message, a), "\"%s\" has no \"%s\"", err.message, a);
    cr_assert_not_null(strstr(err.message, b), "\"%s\" has no \"%s\"", err.message, b);
}

static void write_llmc(const char *name, uint32_t magic, uint32_t version, uint32_t promised, uint32_t count, uint32_t width)
{
    uint32_t *words = calloc(256 + count, 4);
    words[0] = magic, words[1] = version, words[2] = promised;
    for (uint32_t i = 0; i < count; i++) {
        if (width == 4)
            words[256 + i] = 70000 + i;
        else
            ((uint16_t *)(words + 256))[i] = (uint16_t)(50000 + i);
    }
    test_write(name, words, 1024 + (size_t)count * width);
    free(words);
}

Test(token_file, text_is_bytes)
{
    struct pd_token_file file;
    struct pd_token_scan scan;
    int32_t tokens[5];
    open_ok(test_write("a.txt", "hello\xff", 6), PD_DATA_AUTO, &file);
    cr_assert_eq(file.format, PD_DATA_TEXT);
    cr_assert_eq(file.token_count, 6);
    cr_assert_eq(pd_token_file_read(&file, 1, 5, tokens, &err), PD_OK);
    cr_assert_eq(tokens[0], 'e');
    cr_assert_eq(tokens[4], 0xff);
    cr_assert_eq(pd_token_file_scan(&file, 256, NULL, &scan, &err), PD_OK);
    cr_assert_eq(scan.min, 'e');
    cr_assert_eq(scan.max, 0xff);
    pd_token_file_close(&file);
    refused(test_path("a.txt"), PD_DATA_TEXT, 255, PD_INVALID, "token 255 at position 5 (byte 5)", "vocabulary has 255");
}

Test(token_file, nanogpt_is_known_by_its_name)
{
    struct pd_token_file file;
    int32_t tokens[10000];
    open_ok(test_write_u16("a.bin", 20000, 5, 40000), PD_DATA_AUTO, &file);
    cr_assert_eq(file.format, PD_DATA_NANOGPT);
    cr_assert_eq(file.token_count, 20000);
    cr_assert_eq(pd_token_file_read(&file, 9999, 10000, tokens, &err), PD_OK);
    for (int i = 0; i < 10000; i++)
        cr_assert_eq(tokens[i], 10004 + i);
    pd_token_file_close(&file);
}

Test(token_file, llmc_of_both_widths)
{
    struct pd_token_file file;
    int32_t tokens[3];
    write_llmc("a.bin", PD_LLMC_MAGIC_U16, 1, 100, 100, 2);
    open_ok(test_path("a.bin"), PD_DATA_AUTO, &file);
    cr_assert_eq(file.format, PD_DATA_LLMC);
    cr_assert_eq(pd_token_file_read(&file, 97, 3, tokens, &err), PD_OK);
    cr_assert_eq(tokens[2], 50099);
    pd_token_file_close(&file);
    write_llmc("b.bin", PD_LLMC_MAGIC_U32, 7, 100, 100, 4);
    open_ok(test_path("b.bin"), PD_DATA_AUTO, &file);
    cr_assert_eq(file.type, PD_TOKEN_U32);
    cr_assert_eq(pd_token_file_read(&file, 0, 3, tokens, &err), PD_OK);
    cr_assert_eq(tokens[2], 70002);
    pd_token_file_close(&file);
    refused(test_path("b.bin"), PD_DATA_LLMC, 70050, PD_INVALID, "token 70050 at position 50 (byte 1224)", "b.bin");
}

Test(token_file, bad_files_are_refused_with_their_cause)
{
    refused(test_path("none"), PD_DATA_AUTO, 0, PD_NOT_FOUND, "none", "No such file");
    refused(test_write("empty", "", 0), PD_DATA_AUTO, 0, PD_INVALID, "empty is empty", "");
    refused(test_dir, PD_DATA_AUTO, 0, PD_INVALID, "is a directory", test_dir);
    refused("/dev/zero", PD_DATA_TEXT, 0, PD_INVALID, "not a regular file", "/dev/zero");
    refused(test_write("odd.bin", "abc", 3), PD_DATA_AUTO, 0, PD_INVALID, "3 bytes, an odd number", "odd.bin");
    refused(test_write("zip", "PK\0\0", 4), PD_DATA_AUTO, 0, PD_INVALID, "format", "not text");
    write_llmc("version.bin", PD_LLMC_MAGIC_U16, 2, 10, 10, 2);
    refused(test_path("version.bin"), PD_DATA_AUTO, 0, PD_INVALID, "version 2", "version.bin");
    write_llmc("short.bin", PD_LLMC_MAGIC_U16, 1, 11, 10, 2);
    refused(test_path("short.bin"), PD_DATA_AUTO, 0, PD_INVALID, "truncated", "promises 11 tokens");
    write_llmc("long.bin", PD_LLMC_MAGIC_U16, 1, 9, 10, 2);
    refused(test_path("long.bin"), PD_DATA_AUTO, 0, PD_INVALID, "damaged", "long.bin");
    refused(test_path("long.bin"), PD_DATA_NANOGPT, 0, PD_INVALID, "header of llm.c", "format: llmc");
    write_llmc("none.bin", PD_LLMC_MAGIC_U16, 1, 0, 0, 2);
    refused(test_path("none.bin"), PD_DATA_AUTO, 0, PD_INVALID, "holds no tokens", "none.bin");
    refused(test_write("head.bin", "abcdefgh", 8), PD_DATA_LLMC, 0, PD_INVALID, "less than the header", "head.bin");
    test_write_u16("magic.bin", 2000, 0, 100);
    refused(test_path("magic.bin"), PD_DATA_LLMC, 0, PD_INVALID, "not a magic of llm.c", "magic.bin");
}

Test(token_file, a_file_without_permission_is_a_storage_error)
{
    char *path = test_write("closed.txt", "abc", 3);
    cr_assert_eq(chmod(path, 0), 0);
    uid_t user = geteuid();
    if (user == 0) cr_assert_eq(seteuid(65534), 0); /* root reads everything */
    refused(path, PD_DATA_AUTO, 0, PD_IO, "Permission denied", "closed.txt");
    if (user == 0) cr_assert_eq(seteuid(user), 0);
}

/* ---- Megatron ---- */

struct index {
    unsigned char bytes[4096];
    size_t count;
};

static void put(struct index *index, const void *data, size_t bytes)
{
    memcpy(index->bytes + index->count, data, bytes);
    index->count += bytes;
}

static const int32_t lengths[] = {3, 0, 4, 2};
static const int64_t bounds[] = {0, 1, 3, 4};

static void index_begin(struct index *index, unsigned char type)
{
    const uint64_t version = 1, sequences = 4, documents = 4;
    index->count = 0;
    put(index, "MMIDIDX\0", 9);
    put(index, &version, 8);
    put(index, &type, 1);
    put(index, &sequences, 8);
    put(index, &documents, 8);
}

static void index_make(struct index *index, unsigned char type, int64_t width)
{
    int64_t offset = 0;
    index_begin(index, type);
    put(index, lengths, sizeof lengths);
    for (int i = 0; i < 4; i++) {
        put(index, &offset, 8);
        offset += lengths[i] * width;
    }
    put(index, bounds, sizeof bounds);
}

static void write_pair(const char *stem, unsigned char type, int64_t width)
{
    struct index index;
    unsigned char tokens[9 * 8] = {0};
    char name[64];
    for (int i = 0; i < 9; i++)
        tokens[i * width] = (unsigned char)(10 + i);
    index_make(&index, type, width);
    snprintf(name, sizeof name, "%s.bin", stem);
    test_write(name, tokens, (size_t)(9 * width));
    snprintf(name, sizeof name, "%s.idx", stem);
    test_write(name, index.bytes, index.count);
}

Test(token_file, megatron_of_every_type_and_by_every_name)
{
    static const unsigned char types[] = {1, 2, 3, 4, 5, 8};
    static const int64_t widths[] = {1, 1, 2, 4, 8, 2};
    static const char *const names[] = {"m.bin", "m.idx", "m"};
    for (int i = 0; i < 6; i++) {
        write_pair("m", types[i], widths[i]);
        for (int n = 0; n < 3; n++) {
            struct pd_token_file file;
            struct pd_token_scan scan;
            int32_t tokens[9];
            open_ok(test_path(names[n]), n ? PD_DATA_AUTO : PD_DATA_MEGATRON, &file);
            cr_assert_eq(file.format, PD_DATA_MEGATRON);
            cr_assert_eq(file.token_count, 9);
            cr_assert_eq(file.document_count, 3);
            cr_assert_eq(pd_token_file_read(&file, 0, 9, tokens, &err), PD_OK);
            for (int t = 0; t < 9; t++)
                cr_assert_eq(tokens[t], 10 + t);
            cr_assert_eq(pd_token_file_scan(&file, 19, NULL, &scan, &err), PD_OK);
            cr_assert_eq(scan.max, 18);
            uint64_t *starts = NULL, count = 0;
            cr_assert_eq(pd_token_file_documents(&file, &starts, &count, &err), PD_OK);
            cr_assert_eq(count, 3);
            cr_assert_eq(starts[0], 0);
            cr_assert_eq(starts[1], 3);
            cr_assert_eq(starts[2], 7);
            free(starts);
            pd_token_file_close(&file);
        }
    }
    refused(test_path("m"), PD_DATA_AUTO, 18, PD_INVALID, "token 18 at position 8 (byte 16)", "m.bin");
}

Test(token_file, negative_tokens_are_out_of_range)
{
    write_pair("m", 3, 2);
    int16_t tokens[9] = {1, 2, 3, -4, 5, 6, 7, 8, 9};
    test_write("m.bin", tokens, sizeof tokens);
    refused(test_path("m.bin"), PD_DATA_AUTO, 100, PD_INVALID, "token -4 at position 3", "m.bin");
}

Test(token_file, a_megatron_index_of_anything_else_is_refused)
{
    struct index index;
    write_pair("m", 8, 2);
    index_make(&index, 8, 2);
    char *path = test_path("m.bin");
    unlink(test_path("m.idx"));
    refused(path, PD_DATA_MEGATRON, 0, PD_NOT_FOUND, "m.idx", "index of");
    for (size_t bytes = 1; bytes < index.count; bytes++) {
        test_write("m.idx", index.bytes, bytes);
        struct pd_token_file file;
        cr_assert_eq(pd_token_file_open(path, PD_DATA_MEGATRON, &file, &err), PD_INVALID, "%zu bytes", bytes);
        cr_assert_not_null(strstr(err.message, "m.idx"), "%s", err.message);
    }
    test_write("m.idx", index.bytes, index.count);
    test_write("m.bin", "0123456789", 10);
    refused(path, PD_DATA_MEGATRON, 0, PD_INVALID, "sequence 2", "truncated");
    test_write("m.bin", "0123456789012345678", 19);
    refused(path, PD_DATA_MEGATRON, 0, PD_INVALID, "not a pair", "19 bytes");
    test_write("m.bin", "012345678901234567", 18);
    struct pd_token_file file;
    open_ok(path, PD_DATA_MEGATRON, &file);
    pd_token_file_close(&file);

    struct index bad = index;
    bad.bytes[17] = 6;
    test_write("m.idx", bad.bytes, bad.count);
    refused(path, PD_DATA_MEGATRON, 0, PD_INVALID, "floating point", "m.idx");
    bad.bytes[17] = 9;
    test_write("m.idx", bad.bytes, bad.count);
    refused(path, PD_DATA_MEGATRON, 0, PD_INVALID, "type 9", "m.idx");
    bad = index, bad.bytes[9] = 2;
    test_write("m.idx", bad.bytes, bad.count);
    refused(path, PD_DATA_MEGATRON, 0, PD_INVALID, "version 2", "m.idx");
    bad = index, bad.bytes[0] = 'X';
    test_write("m.idx", bad.bytes, bad.count);
    refused(path, PD_DATA_MEGATRON, 0, PD_INVALID, "MMIDIDX", "m.idx");
    bad = index, memset(bad.bytes + 18, 0xff, 8);
    test_write("m.idx", bad.bytes, bad.count);
    refused(path, PD_DATA_MEGATRON, 0, PD_INVALID, "truncated or damaged", "m.idx");
    uint64_t many = (UINT64_MAX - 200) / 13, rest; /* with a byte each they take, modulo 2^64, what the file has */
    while ((rest = index.count - 34 - 13 * many) % 8)
        many--;
    rest /= 8;
    bad = index, memcpy(bad.bytes + 18, &many, 8), memcpy(bad.bytes + 26, &rest, 8);
    test_write("m.idx", bad.bytes, bad.count);
    refused(path, PD_DATA_MEGATRON, 0, PD_INVALID, "truncated or damaged", "m.idx");
    bad = index, memset(bad.bytes + 34, 0xff, 4);
    test_write("m.idx", bad.bytes, bad.count);
    refused(path, PD_DATA_MEGATRON, 0, PD_INVALID, "sequence 0 has a length of -1", "m.idx");
    bad = index, bad.bytes[34 + 16 + 8] = 8; /* overlaps */
    test_write("m.idx", bad.bytes, bad.count);
    refused(path, PD_DATA_MEGATRON, 0, PD_INVALID, "the one before ends at 6", "m.idx");
    bad = index, memset(bad.bytes + 34 + 16 + 8, 0xff, 8); /* a negative offset */
    test_write("m.idx", bad.bytes, bad.count);
    refused(path, PD_DATA_MEGATRON, 0, PD_INVALID, "lies outside", "m.idx");
    for (int b = 0; b < 4; b++) {
        bad = index, bad.bytes[34 + 16 + 32 + 8 * b] = b == 0 ? 2 : b == 3 ? 3 : 200;
        test_write("m.idx", bad.bytes, bad.count);
        refused(path, PD_DATA_MEGATRON, 0, PD_INVALID, "document bound", "m.idx");
    }
}

/* Whatever the bytes of an index or header are, the answer is a status, and what was accepted can be read. */
Test(token_file, random_damage_is_refused_or_harmless)
{
    struct index index;
    uint64_t state = 88172645463325252ull;
    unsigned char tokens[18] = {0};
    unsigned accepted = 0;
    test_write("m.bin", tokens, sizeof tokens);
    for (int round = 0; round < 1000; round++) {
        index_make(&index, 8, 2);
        for (int flips = 1 + round % 3; flips > 0; flips--) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            index.bytes[(state >> 8) % index.count] ^= (unsigned char)(1u << (state >> 40) % 8);
        }
        test_write("m.idx", index.bytes, index.count);
        struct pd_token_file file;
        pd_status status = pd_token_file_open(test_path("m"), PD_DATA_MEGATRON, &file, &err);
        if (status) {
            cr_assert_eq(status, PD_INVALID, "%s", err.message);
            continue;
        }
        uint64_t *starts = NULL, count = 0;
        int32_t back[18];
        accepted++;
        cr_assert_eq(pd_token_file_read(&file, 0, (uint32_t)file.token_count, back, &err), PD_OK);
        cr_assert_eq(pd_token_file_documents(&file, &starts, &count, &err), PD_OK);
        for (uint64_t i = 0; i < count; i++)
            cr_assert_leq(starts[i], file.token_count);
        free(starts);
        pd_token_file_close(&file);
    }
    cr_assert_gt(accepted, 0); /* document bounds may move by a sequence, u16 may become i16 */
    cr_assert_lt(accepted, 100);
}

/* ---- scanning ---- */

Test(token_file, the_scan_finds_the_first_bad_token_wherever_it_is)
{
    enum { COUNT = 5 << 20 };
    uint16_t *tokens = malloc(COUNT * sizeof *tokens);
    for (uint32_t i = 0; i < COUNT; i++)
        tokens[i] = (uint16_t)(i % 50000);
    static const uint32_t places[] = {0, 1, 32767, 32768, (2u << 20) - 1, 2u << 20, 4u << 20, COUNT - 1};
    static const uint16_t bad = 60000;
    struct pd_thread_pool *pool = NULL;
    cr_assert_eq(pd_thread_pool_new(3, &pool, NULL), PD_OK);
    char *path = test_write("a.bin", tokens, COUNT * sizeof *tokens);
    test_patch(path, 2ul * (COUNT - 1), &bad, sizeof bad); /* a later one does not hide it */
    for (unsigned p = 0; p < sizeof places / sizeof places[0]; p++) {
        char expected[64];
        struct pd_token_file file;
        struct pd_token_scan scan;
        test_patch(path, 2ul * places[p], &bad, sizeof bad);
        open_ok(path, PD_DATA_AUTO, &file);
        cr_assert_eq(pd_token_file_scan(&file, 50257, pool, &scan, &err), PD_INVALID);
        snprintf(expected, sizeof expected, "token 60000 at position %u (byte %u)", places[p], 2 * places[p]);
        cr_assert_not_null(strstr(err.message, expected), "%s", err.message);
        cr_assert_eq(pd_token_file_scan(&file, 60001, pool, &scan, &err), PD_OK);
        cr_assert_eq(scan.max, 60000);
        pd_token_file_close(&file);
        test_patch(path, 2ul * places[p], &tokens[places[p]], sizeof *tokens);
    }
    pd_thread_pool_free(pool);
    free(tokens);
}

Test(token_file, every_byte_is_in_the_digest)
{
    enum { BYTES = 9 << 20 };
    static const unsigned char one = 1, zero = 0;
    uint64_t digest = 0, last = 1;
    struct pd_token_scan scan = {0};
    unsigned char *bytes = calloc(BYTES, 1);
    char *path = test_write("a.bin", bytes, BYTES);
    free(bytes);
    for (size_t place = 0; place < BYTES; place += 1 + (place > 0) * 777777) {
        struct pd_token_file changed;
        test_patch(path, place, &one, 1);
        open_ok(path, PD_DATA_NANOGPT, &changed);
        cr_assert_eq(pd_token_file_scan(&changed, 0, NULL, &scan, &err), PD_OK);
        digest = scan.digest;
        cr_assert_neq(digest, last, "byte %zu", place);
        last = digest;
        test_patch(path, place, &zero, 1);
        pd_token_file_close(&changed);
    }
    write_pair("m", 8, 2);
    struct pd_token_file file;
    open_ok(test_path("m"), PD_DATA_AUTO, &file);
    cr_assert_eq(pd_token_file_scan(&file, 0, NULL, &scan, &err), PD_OK);
    digest = scan.digest;
    pd_token_file_close(&file);
    struct index index;
    index_make(&index, 8, 2);
    index.bytes[34 + 16 + 32 + 16] = 2; /* another document bound */
    test_write("m.idx", index.bytes, index.count);
    open_ok(test_path("m"), PD_DATA_AUTO, &file);
    cr_assert_eq(pd_token_file_scan(&file, 0, NULL, &scan, &err), PD_OK);
    cr_assert_neq(scan.digest, digest);
    pd_token_file_close(&file);
}

Test(token_file, a_file_truncated_while_open_is_an_error_that_names_it)
{
    struct pd_token_file file;
    int32_t tokens[100];
    char *path = test_write_u16("a.bin", 100000, 0, 1000);
    open_ok(path, PD_DATA_AUTO, &file);
    cr_assert_eq(truncate(path, 1000), 0);
    cr_assert_eq(pd_token_file_read(&file, 0, 100, tokens, &err), PD_OK);
    cr_assert_eq(pd_token_file_read(&file, 450, 100, tokens, &err), PD_IO);
    cr_assert_not_null(strstr(err.message, "a.bin ends at byte 1000"), "%s", err.message);
    struct pd_token_scan scan;
    cr_assert_eq(pd_token_file_scan(&file, 0, NULL, &scan, &err), PD_IO);
    cr_assert_not_null(strstr(err.message, "a.bin ends at byte 1000"), "%s", err.message);
    pd_token_file_close(&file);
}
