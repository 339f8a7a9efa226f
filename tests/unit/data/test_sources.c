#include "trainer/data/input_list.h"

#include "compressed.h"

static struct pd_error err;

TestSuite(sources, .init = test_dir_make, .fini = test_dir_remove);

struct list {
    struct pd_data_source *sources;
    uint32_t count;
    char *notes;
};

static pd_status find(const char *path, enum pd_data_format format, double weight, struct list *ret)
{
    size_t bytes;
    *ret = (struct list){.sources = calloc(1, sizeof *ret->sources), .count = 1};
    ret->sources[0] = (struct pd_data_source){strdup(path), format, weight};
    FILE *notes = open_memstream(&ret->notes, &bytes);
    pd_status status = pd_sources_find(&ret->sources, &ret->count, "data.train", notes, &err);
    fclose(notes);
    return status;
}

static void list_free(struct list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        free(list->sources[i].path);
    free(list->sources);
    free(list->notes);
}

static struct list found(const char *path, double weight)
{
    struct list list;
    cr_assert_eq(find(path, PD_DATA_AUTO, weight, &list), PD_OK, "%s", err.message);
    return list;
}

/* The message, in which $ stands for the test's directory. */
static void refused(const char *path, enum pd_data_format format, pd_status expected, const char *text)
{
    struct list list;
    char whole[1200];
    size_t used = 0;
    for (const char *at = text; *at; at++)
        used += (size_t)(*at == '$' ? snprintf(whole + used, sizeof whole - used, "%s", test_dir)
                                    : snprintf(whole + used, sizeof whole - used, "%c", *at));
    cr_expect_eq(find(path, format, 0, &list), expected, "%s", err.message);
    cr_expect_not_null(strstr(err.message, whole), "\"%s\" has no \"%s\"", err.message, whole);
    list_free(&list);
}

#define WRITE(name, text) test_write((name), (text), sizeof(text) - 1)

Test(sources, a_directory_becomes_its_files_and_they_share_its_weight)
{
    WRITE("b.txt", "123");
    WRITE("a.bin", "\1\0");
    WRITE("m.bin", "\1\0\2");
    WRITE("m.idx", "MMIDIDX\0\0");
    struct list list = found(test_dir, 4);
    cr_assert_eq(list.count, 3);
    cr_expect_str_eq(strrchr(list.sources[0].path, '/'), "/a.bin");
    cr_expect_str_eq(strrchr(list.sources[1].path, '/'), "/b.txt");
    cr_expect_str_eq(strrchr(list.sources[2].path, '/'), "/m.bin");
    cr_expect_eq(list.sources[0].weight, 1);
    cr_expect_eq(list.sources[1].weight, 1.5);
    cr_expect_not_null(strstr(list.notes, ": 3 files: a.bin, b.txt, m.bin\n"), "%s", list.notes);
    list_free(&list);
    list = found(test_path("[ab].*"), 0);
    cr_assert_eq(list.count, 2);
    cr_expect_eq(list.sources[1].weight, 0, "by size");
    list_free(&list);
}

Test(sources, what_is_one_file_or_none_stays)
{
    struct list list = found(WRITE("a.txt", "text"), 3);
    cr_assert_eq(list.count, 1);
    cr_expect_eq(list.sources[0].weight, 3);
    cr_expect_str_eq(list.notes, "");
    list_free(&list);
    list = found(test_path("of_another_host.txt"), 0);
    cr_assert_eq(list.count, 1);
    list_free(&list);
    refused(test_path("*.none"), PD_DATA_AUTO, PD_NOT_FOUND, "data.train[0]: no file matches $/*.none");
}

Test(sources, marks_and_returns_are_noted)
{
    struct list list = found(WRITE("a.txt", "\xef\xbb\xbfone\r\ntwo\r\n"), 0);
    char expected[1200];
    snprintf(expected, sizeof expected,
             "%s/a.txt: its byte order mark is skipped\n%s/a.txt: its lines end in CRLF, and both bytes are learned; "
             "perdure data pack writes LF\n",
             test_dir, test_dir);
    cr_expect_str_eq(list.notes, expected, "%s", list.notes);
    list_free(&list);
}

Test(sources, what_is_not_plain_text_is_refused)
{
    static const char line[] = "{\"text\": \"one\"}\n", words[] = "words of a text";
    refused(WRITE("a.jsonl", "{\"text\": \"one\"}\n"), PD_DATA_AUTO, PD_INVALID,
            "data.train[0]: $/a.jsonl is JSON lines, and training reads plain text or tokens; pack it once with perdure "
            "data pack, "
            "and name its output");
    refused(write_compressed("b.txt.gz", gzipped, words, sizeof words - 1, 1, 0), PD_DATA_AUTO, PD_INVALID,
            "$/b.txt.gz is compressed with gzip, and training reads plain text or tokens; pack it once with");
    refused(write_compressed("c.jsonl.zst", zstd_framed, line, sizeof line - 1, 1, 0), PD_DATA_TEXT, PD_INVALID,
            "is compressed with zstd");
    refused(write_compressed("d.bin.gz", gzipped, "\1\0\2\0", 4, 1, 0), PD_DATA_AUTO, PD_INVALID,
            "$/d.bin.gz is compressed with gzip; give text in UTF-8");
    refused(WRITE("e.parquet", "PAR1"), PD_DATA_TEXT, PD_INVALID, "$/e.parquet is a Parquet file; give text in UTF-8");
    refused(WRITE("f", "zero\0byte"), PD_DATA_AUTO, PD_INVALID, "$/f is not text: it has zero bytes; give");
    refused(test_dir, PD_DATA_AUTO, PD_INVALID, "$/a.jsonl is JSON lines, and");
    refused(test_path("*.jsonl"), PD_DATA_AUTO, PD_INVALID, "$/a.jsonl is JSON lines, and");
    struct list list;
    cr_expect_eq(find(test_path("a.jsonl"), PD_DATA_TEXT, 0, &list), PD_OK, "who says text means it");
    list_free(&list);
    cr_expect_eq(find(test_path("e.parquet"), PD_DATA_NANOGPT, 0, &list), PD_OK);
    list_free(&list);
}

Test(sources, too_many_files_are_refused)
{
    char name[32];
    for (unsigned i = 0; i <= PD_SOURCES_MAX; i++) {
        snprintf(name, sizeof name, "%u", i);
        test_write(name, "text", 4);
    }
    refused(test_dir, PD_DATA_AUTO, PD_INVALID, "$ stands for 513 files, and training reads up to 512 of one; pack them");
}
