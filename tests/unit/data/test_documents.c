#include "trainer/data/documents.h"

#include "compressed.h"
#include "trainer/data/input_list.h"

static struct pd_error err;

TestSuite(documents, .init = test_dir_make, .fini = test_dir_remove);

/* ---- helpers ---- */

struct read { /* all documents of some inputs: "one|two|" */
    char *text;
    size_t bytes;
    uint64_t documents, pieces;
    struct pd_documents_progress progress;
};

static pd_status read_from(const struct pd_documents_options *options, struct read *ret)
{
    struct pd_documents *documents;
    const struct pd_document_piece *pieces;
    uint32_t count = 0;
    *ret = (struct read){0};
    FILE *out = open_memstream(&ret->text, &ret->bytes);
    pd_status status = pd_documents_open(options, &documents, &err);
    if (status) {
        fclose(out);
        return status;
    }
    while (!(status = pd_documents_next(documents, &pieces, &count, &err)) && count)
        for (uint32_t i = 0; i < count; i++) {
            fwrite(pieces[i].text, 1, pieces[i].bytes, out);
            ret->pieces++;
            if (!pieces[i].ends) continue;
            fputc('|', out);
            ret->documents++;
        }
    ret->progress = pd_documents_progress(documents);
    fclose(out);
    pd_documents_close(documents);
    return status;
}

static struct read read_ok(const char *path, const char *separator)
{
    struct read got;
    const struct pd_documents_options options = {.inputs = &path, .input_count = 1, .separator = separator};
    cr_assert_eq(read_from(&options, &got), PD_OK, "%s", err.message);
    return got;
}

static void expect(const char *path, const char *separator, const char *expected)
{
    struct read got = read_ok(path, separator);
    cr_expect_str_eq(got.text, expected, "%s: \"%s\"", path, got.text);
    cr_expect_eq(got.progress.stored_bytes, got.progress.stored_bytes_total);
    free(got.text);
}

static void refused(const char *path, pd_status expected, const char *text)
{
    struct read got;
    const struct pd_documents_options options = {.inputs = &path, .input_count = 1};
    cr_expect_eq(read_from(&options, &got), expected, "%s: %s", path, err.message);
    cr_expect_not_null(strstr(err.message, text), "\"%s\" has no \"%s\"", err.message, text);
    free(got.text);
}

/* Lines of varying length; malloc'ed. */
static char *long_text(size_t bytes)
{
    char *text = malloc(bytes + 1);
    uint32_t state = 7;
    for (size_t i = 0; i < bytes; i++) {
        state = state * 1664525u + 1013904223u;
        text[i] = (state >> 24) % 61 == 0 ? '\n' : (char)('a' + (state >> 16) % 26);
    }
    text[bytes] = '\0';
    return text;
}

#define WRITE(name, text) test_write((name), (text), sizeof(text) - 1)

/* ---- text ---- */

Test(documents, text_loses_its_mark_and_returns_at_line_ends_alone)
{
    expect(WRITE("plain", "one\ntwo\n"), NULL, "one\ntwo\n|");
    expect(WRITE("mark", "\xef\xbb\xbfone"), NULL, "one|");
    expect(WRITE("crlf", "\r\none\r\n\r\ntwo\r\r\n\rthree\r"), NULL, "\none\n\ntwo\r\n\rthree\r|");
    expect(WRITE("only", "\xef\xbb\xbf"), NULL, "|");
    expect(WRITE("empty", ""), NULL, "|");
    expect(WRITE("split", "one\r\n\r\ntwo\r\n\r\n"), "\n\n", "one|two||");
    struct read got = read_ok(test_path("mark"), NULL);
    cr_expect_eq(got.progress.marked_files, 1);
    cr_expect_eq(got.progress.crlf_files, 0);
    free(got.text);
    got = read_ok(test_path("crlf"), NULL);
    cr_expect_eq(got.progress.crlf_files, 1);
    free(got.text);
}

Test(documents, text_of_any_size_and_compression_comes_whole)
{
    const size_t bytes = (5u << 20) + 123;
    char *text = long_text(bytes);
    const char *paths[] = {test_write("a.txt", text, bytes), write_compressed("a.gz", gzipped, text, bytes, 1, 0),
                           write_compressed("b.gz", gzipped, text, bytes, 7, 0),
                           write_compressed("a.zst", zstd_framed, text, bytes, 1, 0),
                           write_compressed("b.zst", zstd_framed, text, bytes, 7, 0)};
    for (unsigned i = 0; i < 5; i++) {
        struct read got = read_ok(paths[i], NULL);
        cr_assert_eq(got.bytes, bytes + 1, "%s", paths[i]);
        cr_expect_eq(memcmp(got.text, text, bytes), 0, "%s", paths[i]);
        cr_expect_eq(got.documents, 1);
        cr_expect_gt(got.pieces, 4);
        free(got.text);
    }
    free(text);
}

Test(documents, returns_and_separators_across_the_ends_of_pieces)
{
    enum { BYTES = PD_DOCUMENTS_PIECE_MAX + 200000 };
    char *text = malloc(BYTES);
    for (int before = -2; before < 12; before++) {
        memset(text, 'x', BYTES);
        memcpy(text + PD_DOCUMENTS_PIECE_MAX - before, "\r\n\r\n", 4);
        struct read got = read_ok(test_write("in", text, BYTES), "\n\n");
        cr_expect_eq(got.documents, 2, "%d", before);
        cr_expect_eq(got.bytes, BYTES - 4 + 2, "%d", before);
        cr_expect_eq(got.text[PD_DOCUMENTS_PIECE_MAX - before], '|');
        free(got.text);
    }
    free(text);
}

/* ---- JSON lines ---- */

Test(documents, lines_of_json_are_documents)
{
    static const char lines[] = "{\"text\": \"one\\r\\n\\u00e9\\ud83d\\ude00\"}\r\n\n   \n{\"id\": 3, \"text\": \"\"}\n"
                                "{\"text\": \"a\\\"b\", \"x\": [1, {\"text\": 2}]}";
    static const char expected[] = "one\r\n\xc3\xa9\xf0\x9f\x98\x80||a\"b|";
    expect(test_write("x.jsonl", lines, sizeof lines - 1), NULL, expected);
    expect(test_write("known_by_content", lines, sizeof lines - 1), NULL, expected);
    expect(write_compressed("x.jsonl.zst", zstd_framed, lines, sizeof lines - 1, 1, 0), NULL, expected);
    expect(write_compressed("x.jsonl.gz", gzipped, lines, sizeof lines - 1, 2, 0), NULL, expected);
    expect(WRITE("mark.jsonl", "\xef\xbb\xbf{\"text\":\"one\"}"), NULL, "one|");
    struct read got;
    const char *path = WRITE("named.jsonl", "{\"content\":\"one\\u0000two\", \"text\": 1}\n");
    const struct pd_documents_options options = {.inputs = &path, .input_count = 1, .field = "content"};
    cr_assert_eq(read_from(&options, &got), PD_OK, "%s", err.message);
    cr_expect_eq(got.bytes, 8, "a zero byte is text here");
    free(got.text);
}

Test(documents, many_lines_keep_their_order_under_threads)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    for (unsigned i = 0; i < 300000; i++)
        fprintf(out, "{\"url\": \"http://%u\", \"text\": \"%u\"}\n%s", i * 7, i, i % 1000 ? "" : "\n");
    fclose(out);
    const char *path = write_compressed("many.jsonl.zst", zstd_framed, text, bytes, 3, 0);
    free(text);
    struct pd_thread_pool *pool;
    cr_assert_eq(pd_thread_pool_new(4, &pool, &err), PD_OK);
    struct read got;
    const struct pd_documents_options options = {.inputs = &path, .input_count = 1, .pool = pool};
    cr_assert_eq(read_from(&options, &got), PD_OK, "%s", err.message);
    cr_expect_eq(got.documents, 300000);
    const char *at = got.text;
    for (unsigned i = 0; i < 300000; i++) {
        char *end;
        cr_assert_eq(strtoul(at, &end, 10), i);
        cr_assert_eq(*end, '|');
        at = end + 1;
    }
    free(got.text);
    pd_thread_pool_free(pool);
}

Test(documents, damaged_lines_are_named_by_file_and_line)
{
    refused(WRITE("a.jsonl", "{\"text\":\"a\"}\n\n{\"text\":\"b\"\n"), PD_CORRUPT, "a.jsonl:3: no valid JSON at column ");
    refused(WRITE("b.jsonl", "{\"text\":\"a\"}\n[1]\n"), PD_CORRUPT, "b.jsonl:2: the line is an array, not an object");
    refused(WRITE("c.jsonl", "{\"body\":\"a\", \"id\": 1}\n"), PD_INVALID,
            "c.jsonl:1: the object has no \"text\", it has body, id; name the field of the text with --field");
    refused(WRITE("d.jsonl", "{\"text\":null}\n"), PD_CORRUPT, "d.jsonl:1: \"text\" is null, not a string");
    refused(WRITE("e.jsonl", "{\"text\":\"\xff\"}\n"), PD_CORRUPT, "e.jsonl:1: no valid JSON");
    refused(WRITE("f.jsonl", "{\"text\":\"a\"} {\"text\":\"b\"}\n"), PD_CORRUPT, "f.jsonl:1: no valid JSON");
    refused(WRITE("g.jsonl", "{}\n"), PD_INVALID, "the object has no \"text\", it has nothing");
}

Test(documents, the_first_of_several_faults_is_told)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    for (unsigned i = 1; i <= 200000; i++)
        fputs(i == 150000 || i == 190000 ? "damaged\n" : "{\"text\": \"some words of a line\"}\n", out);
    fclose(out);
    refused(test_write("two.jsonl", text, bytes), PD_CORRUPT, "two.jsonl:150000: ");
    free(text);
}

Test(documents, a_line_without_end_is_bounded)
{
    const size_t bytes = PD_DOCUMENTS_LINE_MAX + (1u << 20);
    char *text = malloc(bytes);
    memset(text, 'x', bytes);
    memcpy(text, "{\"text\": \"a\"}\n{\"text\": \"", 24);
    refused(write_compressed("bomb.jsonl.zst", zstd_framed, text, bytes, 1, 0), PD_CORRUPT,
            "bomb.jsonl.zst:2: the line is longer than 128 MiB");
    free(text);
}

Test(documents, a_long_line_is_one_piece)
{
    const size_t bytes = 9u << 20;
    char *text = malloc(bytes);
    memset(text, 'x', bytes);
    memcpy(text, "{\"text\": \"", 10);
    memcpy(text + bytes - 17, "\"}\n{\"text\": \"b\"}\n", 17);
    struct read got = read_ok(test_write("long.jsonl", text, bytes), NULL);
    cr_expect_eq(got.pieces, 2);
    cr_expect_eq(got.bytes, bytes - 10 - 17 + 3);
    free(got.text);
    free(text);
}

/* ---- compressed data that is no good ---- */

Test(documents, compressed_data_that_is_cut_off_or_damaged_is_told)
{
    const size_t bytes = 1u << 20;
    char *text = long_text(bytes);
    refused(write_compressed("cut.txt.gz", gzipped, text, bytes, 1, 5), PD_CORRUPT, "cut.txt.gz ends in the middle");
    refused(write_compressed("cut2.txt.gz", gzipped, text, bytes, 2, 200000), PD_CORRUPT, "it was cut off; copy it again");
    refused(write_compressed("cut.txt.zst", zstd_framed, text, bytes, 1, 5), PD_CORRUPT, "cut.txt.zst ends in the middle");
    refused(write_compressed("cut2.txt.zst", zstd_framed, text, bytes, 3, 100), PD_CORRUPT, "(zstd -t ");
    char *path = write_compressed("bad.gz", gzipped, text, bytes, 1, 0);
    test_patch(path, 300000, "damagedamage", 12);
    refused(path, PD_CORRUPT, "bad.gz, before byte ");
    path = write_compressed("bad.zst", zstd_framed, text, bytes, 1, 0);
    test_patch(path, 6, "damage", 6);
    refused(path, PD_CORRUPT, "bad.zst, before byte ");
    refused(WRITE("head.gz", "\x1f\x8b\x08"), PD_CORRUPT, "head.gz ends in the middle");
    size_t once;
    unsigned char *inner = gzipped("text", 4, &once);
    refused(write_compressed("twice.gz", gzipped, (char *)inner, once, 1, 0), PD_INVALID, "is compressed twice");
    free(inner);
    free(text);
}

Test(documents, zeros_behind_gzip_are_padding_and_other_bytes_are_not)
{
    size_t bytes;
    unsigned char *made = gzipped("text", 4, &bytes), *padded = calloc(1, 100000);
    memcpy(padded, made, bytes);
    expect(test_write("padded.gz", padded, 100000), NULL, "text|");
    padded[50000] = 'x';
    refused(test_write("more.gz", padded, 100000), PD_CORRUPT, "more.gz, before byte ");
    free(made);
    free(padded);
}

/* ---- what is no text ---- */

Test(documents, what_is_something_else_is_refused_by_name)
{
    static const struct {
        const char *name, *bytes;
        size_t count;
        const char *what;
    } files[] = {
#define FILE_ROW(name, bytes, what) {name, bytes, sizeof(bytes) - 1, what}
        FILE_ROW("a.parquet", "PAR1\x15\x04", "a.parquet is a Parquet file; give text in UTF-8 or JSON lines"),
        FILE_ROW("a.arrow", "ARROW1\0\0", "is an Arrow file"),
        FILE_ROW("a.zip", "PK\x03\x04rest", "is a zip archive; "),
        FILE_ROW("a.xz",
                 "\xfd"
                 "7zXZ\0",
                 "is compressed with xz; "),
        FILE_ROW("a.bz2", "BZh91AY&SY", "is compressed with bzip2"),
        FILE_ROW("utf16.txt", "\xff\xfeh\0i\0", "is text in UTF-16; "),
        FILE_ROW("utf16_bare.txt", "h\0e\0l\0l\0o\0", "is text in UTF-16, it seems; "),
        FILE_ROW("zeros", "text\0text", "is not text: it has zero bytes"),
        FILE_ROW("array.json", "[\n {\"text\": \"a\"}]", "is one JSON array, not JSON lines (jq"),
        FILE_ROW("pretty.json", "{\n \"text\": \"a\"}", "is one JSON value over several lines"),
        FILE_ROW("tokens.bin", "\x01\0\x02\0", "is a token file; "),
        FILE_ROW("it's.pdf", "%PDF-1.4", "it's.pdf is a PDF; "),
    };
    for (unsigned i = 0; i < sizeof files / sizeof files[0]; i++)
        refused(test_write(files[i].name, files[i].bytes, files[i].count), PD_INVALID, files[i].what);
    char tar[512] = "name";
    memcpy(tar + 257, "ustar", 5);
    refused(test_write("a.tar", tar, sizeof tar), PD_INVALID, "is a tar archive; ");
    refused(write_compressed("a.tar.gz", gzipped, tar, sizeof tar, 1, 0), PD_INVALID, "a.tar.gz is a tar archive");
    refused(test_path("none"), PD_NOT_FOUND, "none cannot be read");
}

/* ---- lists ---- */

static struct pd_input_list listed(const char *entry, bool takes_tokens)
{
    struct pd_input_list list = {0};
    cr_assert_eq(pd_input_list_add(&list, entry, takes_tokens, &err), PD_OK, "%s", err.message);
    return list;
}

static void check_list(struct pd_input_list list, const char *const *names, const char *note)
{
    uint32_t count = 0;
    for (; names[count]; count++)
        cr_assert(count < list.count && strcmp(strrchr(list.paths[count], '/') + 1, names[count]) == 0, "%s", names[count]);
    cr_assert_eq(list.count, count);
    cr_assert_eq(list.note_count, note ? 1 : 0);
    if (note) cr_expect_not_null(strstr(list.notes[0], note), "\"%s\" has no \"%s\"", list.notes[0], note);
    pd_input_list_deinit(&list);
}

Test(documents, directories_and_globs_stand_for_their_files_by_name)
{
    const char *names[] = {"b.txt", "a.jsonl", "B.txt", "star[1].txt", ".hidden"};
    for (unsigned i = 0; i < 5; i++)
        WRITE(names[i], "text");
    WRITE("c.bin", "\x01\0");
    WRITE("c.idx", "index");
    WRITE("c.bin.tokenizer.json", "{\"model\": {}}"); /* as data pack leaves it */
    WRITE("d.zip", "PK\x03\x04");
    WRITE("e.txt", "");
    cr_assert_eq(mkdir(test_path("inner"), 0777), 0);
    check_list(listed(test_dir, false), (const char *const[]){"B.txt", "a.jsonl", "b.txt", "star[1].txt", NULL},
               ": 4 files: B.txt, a.jsonl, b.txt, star[1].txt; left out: c.bin (a token file), c.idx (the index of a token "
               "file), d.zip (a zip archive), e.txt (empty), inner (a directory)");
    check_list(listed(test_dir, true), (const char *const[]){"B.txt", "a.jsonl", "b.txt", "c.bin", "star[1].txt", NULL},
               "left out: d.zip (a zip archive), e.txt (empty), inner (a directory)");
    check_list(listed(test_path("*.*"), true),
               (const char *const[]){"B.txt", "a.jsonl", "b.txt", "c.bin", "star[1].txt", NULL}, "/e.txt (empty)");
    cr_expect_eq(pd_input_list_add(&(struct pd_input_list){0}, test_path("e*"), false, &err), PD_INVALID);
    cr_expect_not_null(strstr(err.message, "matches no file of text, JSON lines or tokens, but "), "%s", err.message);
    check_list(listed(test_path("[bB].txt"), false), (const char *const[]){"B.txt", "b.txt", NULL}, ": 2 files: ");
    check_list(listed(test_path("star[1].txt"), false), (const char *const[]){"star[1].txt", NULL}, NULL);
    struct pd_input_list list = {0};
    cr_expect_eq(pd_input_list_add(&list, test_path("*.none"), false, &err), PD_NOT_FOUND);
    cr_expect_not_null(strstr(err.message, "no file matches "), "%s", err.message);
    cr_expect_eq(pd_input_list_add(&list, test_path("inner"), false, &err), PD_INVALID);
    cr_expect_not_null(strstr(err.message, "is an empty directory"), "%s", err.message);
    pd_input_list_deinit(&list);
}

Test(documents, what_is_damaged_in_a_directory_is_not_left_out)
{
    WRITE("a.txt", "text");
    WRITE("b.gz", "\x1f\x8b\x08\0damaged");
    struct pd_input_list list = {0};
    cr_expect_eq(pd_input_list_add(&list, test_dir, false, &err), PD_CORRUPT, "%s", err.message);
    pd_input_list_deinit(&list);
}

Test(documents, files_come_in_order_and_closing_early_is_fine)
{
    char *text = long_text(1u << 20);
    const char *paths[100];
    for (unsigned i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof name, "%02u", i);
        paths[i] = strdup(test_write(name, text, i % 10 ? i : 1u << 20));
    }
    struct read got;
    const struct pd_documents_options options = {.inputs = paths, .input_count = 100};
    cr_assert_eq(read_from(&options, &got), PD_OK, "%s", err.message);
    cr_expect_eq(got.documents, 100);
    size_t at = 0;
    for (unsigned i = 0; i < 100; i++) {
        const size_t bytes = i % 10 ? i : 1u << 20;
        cr_assert_eq(memcmp(got.text + at, text, bytes), 0, "%u", i);
        cr_assert_eq(got.text[at + bytes], '|');
        at += bytes + 1;
    }
    free(got.text);
    struct pd_documents *documents;
    for (unsigned calls = 0; calls < 3; calls++) {
        const struct pd_document_piece *pieces;
        uint32_t count;
        cr_assert_eq(pd_documents_open(&options, &documents, &err), PD_OK);
        for (unsigned i = 0; i < calls; i++)
            cr_assert_eq(pd_documents_next(documents, &pieces, &count, &err), PD_OK);
        pd_documents_close(documents);
    }
    for (unsigned i = 0; i < 100; i++)
        free((char *)(uintptr_t)paths[i]);
    free(text);
}

/* ---- damage of any kind ---- */

/* Bytes change, come and go; what comes out is documents or an error that names the file, never a crash or a wait. */
Test(documents, mutated_inputs_are_read_or_refused)
{
    static const char lines[] =
        "{\"text\": \"one \\u00e9\", \"id\": 1}\n\n{\"id\": [1, {\"a\": null}], \"text\": \"two\\r\\n\"}\r\n";
    static const char words[] = "\xef\xbb\xbfone\r\ntwo\n\nthree\r\n\r\nfour";
    static const char *const names[] = {"m.jsonl", "m.txt", "m.jsonl.gz", "m.txt.zst"};
    uint32_t state = 20261122;
    unsigned read = 0, refusals = 0;
    for (unsigned round = 0; round < 4000; round++) {
        const unsigned kind = round % 4;
        const bool is_lines = kind % 2 == 0;
        size_t bytes = is_lines ? sizeof lines - 1 : sizeof words - 1;
        unsigned char *data = kind == 2   ? gzipped(lines, bytes, &bytes)
                              : kind == 3 ? zstd_framed(words, bytes, &bytes)
                                          : memcpy(malloc(bytes), is_lines ? lines : words, bytes);
        for (unsigned change = 0; change < 1 + round / 4 % 3 && bytes > 1; change++) {
            state = state * 1664525u + 1013904223u;
            const size_t at = (state >> 8) % bytes;
            if (state >> 30 == 0) bytes = at + 1;
            if (state >> 30 == 1) memmove(data + at, data + at + 1, --bytes - at);
            if (state >> 30 >= 2) data[at] ^= (unsigned char)(1u << (state & 7)) | (state >> 29 & 0x80);
        }
        const char *path = test_write(names[kind], data, bytes);
        struct read got;
        const struct pd_documents_options options = {.inputs = &path, .input_count = 1, .separator = "\n\n"};
        const pd_status status = read_from(&options, &got);
        cr_assert(status == PD_OK || status == PD_CORRUPT || status == PD_INVALID, "round %u: %s", round, err.message);
        if (status) cr_assert_not_null(strstr(err.message, names[kind]), "round %u: %s", round, err.message);
        read += status == PD_OK;
        refusals += status != PD_OK;
        free(got.text);
        free(data);
    }
    cr_expect_gt(read, 500);
    cr_expect_gt(refusals, 500);
}
