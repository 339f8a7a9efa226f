#include "resharder/torch/archive.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAIN PERDURE_SOURCE_DIR "/tests/golden/formats/plain.pt"

static struct pd_error err;

/* ---- pickles ---- */

static pd_status parse(const char *text, size_t bytes, struct pd_pickle **ret)
{
    err.message[0] = '\0';
    return pd_pickle_parse("p", text, bytes, ret, NULL, &err);
}
#define PARSE(text, ret) parse(text, sizeof(text) - 1, ret)

Test(pickle, values_of_each_type)
{
    struct pd_pickle *p = NULL;
    cr_assert_eq(
        PARSE("\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00(K\x07M\x34\x12J\xff\xff\xff\xff\x8a\x01\x80"
              "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00G\x3f\xe0\x00\x00\x00\x00\x00\x00\x88N\x8c\x02hiC\x01\x00t.",
              &p),
        PD_OK, "%s", err.message);
    const struct pd_pickle_node *root = pd_pickle_root(p);
    static const int64_t integers[] = {7, 0x1234, -1, -128};
    uint64_t u = 0;
    double x = 0;
    cr_assert(root->type == PD_PICKLE_TUPLE && root->count == 10);
    for (uint32_t i = 0; i < 4; i++)
        cr_assert_eq(pd_pickle_at(root, i)->integer, integers[i]);
    cr_assert(pd_pickle_is_u64(pd_pickle_at(root, 0), &u) && u == 7);
    cr_assert_not(pd_pickle_is_u64(pd_pickle_at(root, 2), &u));
    cr_assert_eq(pd_pickle_at(root, 4)->type, PD_PICKLE_LONG);
    cr_assert(pd_pickle_is_number(pd_pickle_at(root, 5), &x) && x == 0.5);
    cr_assert(pd_pickle_at(root, 6)->boolean);
    cr_assert_eq(pd_pickle_at(root, 7)->type, PD_PICKLE_NONE);
    cr_assert_str_eq(pd_pickle_text(pd_pickle_at(root, 8)), "hi");
    pd_pickle_free(p);
}

Test(pickle, what_would_be_called_is_only_named)
{
    struct pd_pickle *p = NULL;
    cr_assert_eq(PARSE("\x80\x02"
                       "cos\nsystem\nX\x04\x00\x00\x00true\x85R}X\x01\x00\x00\x00kK\x01sb.",
                       &p),
                 PD_OK, "%s", err.message);
    const struct pd_pickle_node *root = pd_pickle_root(p);
    cr_assert(pd_pickle_is_call(root, "os.system"));
    cr_assert_str_eq(pd_pickle_text(pd_pickle_argument(root, 0)), "true");
    cr_assert_eq(pd_pickle_field(root, "k")->integer, 1);
    cr_assert_null(pd_pickle_field(root, "other"));
    cr_assert_null(pd_pickle_at(pd_pickle_member(pd_pickle_at(NULL, 3), "x"), 1));
    pd_pickle_free(p);
}

Test(pickle, what_does_not_hold_together_is_refused_with_its_byte)
{
    static const struct {
        const char *text;
        size_t bytes;
        const char *says;
    } bad[] = {
        {"", 0, "byte 0 of the pickle: wants 1 bytes"},
        {"\x80\x01.", 3, "protocol 1"},
        {".", 1, "empty stack"},
        {"N", 1, "the file ends before"},
        {"t.", 2, "needs a mark"},
        {"(e.", 3, "adds items to nothing"},
        {"N(Ne.", 5, "adds items to a value that holds none"},
        {"](K\x01u.", 6, "a key without a value"},
        {"h\x05.", 3, "memo 5 is empty"},
        {"Nr\xff\xff\xff\x7f.", 7, "out of order"},
        {"X\xff\xff\xff\xff.", 6, "wants 4294967295 bytes"},
        {"\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", 10, "wants 18446744073709551615 bytes"},
        {"cos\nsystem", 10, "without an end"},
        {"NN\x93.", 4, "a name that is not text"},
        {"i.", 2, "operation 0x69"},
        {"(a.", 3, "empty stack"},
        {"(N1N.", 5, NULL},
        {"N\x86.", 3, "empty stack"},
        {"(\x85.", 3, "empty stack"},
        {"](a.", 4, "takes a value from beyond a mark"},
        {"((e.", 4, "adds items to nothing"},
        {"0.", 2, "empty stack"},
        {"N0.", 3, "empty stack"},
        {"1.", 2, "needs a mark"},
        {"Q.", 2, "empty stack"},
        {"NR.", 3, "empty stack"},
        {"N\x92.", 3, "empty stack"},
        {"Nb.", 3, "empty stack"},
        {"N\x93.", 3, "empty stack"},
        {"cos\nsystem\n)R(Ne(NNu.", 23, "adds both keys and plain items to an object"},
        {"cos\nsystem\n)R(Ne(Ne.", 22, NULL},
        {"Nq\x00q\x00h\x00.", 8, NULL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pd_pickle *p = NULL;
        const pd_status st = parse(bad[i].text, bad[i].bytes, &p);
        cr_assert_eq(st, bad[i].says ? PD_CORRUPT : PD_OK, "%zu: %s", i, err.message);
        cr_assert(!bad[i].says || strstr(err.message, bad[i].says), "%zu: %s", i, err.message);
        pd_pickle_free(p);
    }
}

/* Whatever is on the stack and however much of its argument is there, a text that says no end is none. */
Test(pickle, every_operation_wants_an_end)
{
    static const char *const stacks[] = {"", "(", "N", "NN", "(N", "((", "]N", "}NN", "](N", "cos\nsystem\n", "X\x01"};
    for (size_t s = 0; s < sizeof stacks / sizeof *stacks; s++)
        for (unsigned code = 0; code < 256; code++)
            for (unsigned bytes = 0; bytes < 20; bytes++) {
                char text[64];
                struct pd_pickle *p = NULL;
                const size_t before = strlen(stacks[s]);
                if (code == '.') continue;
                memcpy(text, stacks[s], before);
                text[before] = (char)code;
                memset(text + before + 1, bytes < 10 ? 0 : 0xff, bytes % 10);
                cr_assert_eq(parse(text, before + 1 + bytes % 10, &p), PD_CORRUPT, "%zu, 0x%02x, %u", s, code, bytes);
                cr_assert_eq(strncmp(err.message, "p: byte ", 8), 0, "%s", err.message);
                cr_assert_null(p);
            }
}

Test(pickle, names_and_texts_have_no_zeros_and_are_short)
{
    char text[700] = "c";
    struct pd_pickle *p = NULL;
    cr_assert_eq(PARSE("X\x03\x00\x00\x00"
                       "a\x00"
                       "b.",
                       &p),
                 PD_OK, "%s", err.message);
    cr_assert_null(pd_pickle_text(pd_pickle_root(p)));
    pd_pickle_free(p);
    cr_assert_eq(PARSE("ca\x00\nb\n.", &p), PD_OK, "%s", err.message);
    cr_assert_null(pd_pickle_global(pd_pickle_root(p)));
    cr_assert_null(pd_pickle_argument(pd_pickle_root(p), 0));
    pd_pickle_free(p);
    memset(text + 1, 'a', 300);
    text[301] = '\n';
    memset(text + 302, 'b', 300);
    text[602] = '\n';
    cr_assert_eq(parse(text, 603, &p), PD_CORRUPT);
    cr_assert(strstr(err.message, "a name of 601 bytes"), "%s", err.message);
    cr_assert_eq(parse("", PD_PICKLE_BYTES_MAX + 1, &p), PD_CORRUPT);
    cr_assert(strstr(err.message, "p: a pickle of "), "%s", err.message);
}

Test(pickle, objects_may_be_made_with_keywords_and_named_twice)
{
    struct pd_pickle *p = NULL;
    cr_assert_eq(PARSE("cos\nsystem\nN\x85}\x92\x94h\x00"
                       "\x86.",
                       &p),
                 PD_OK, "%s", err.message);
    const struct pd_pickle_node *both = pd_pickle_root(p);
    cr_assert(both->count == 2 && both->items[0] == both->items[1]);
    cr_assert(pd_pickle_is_call(both->items[0], "os.system"));
    cr_assert_eq(pd_pickle_argument(both->items[0], 0)->type, PD_PICKLE_NONE);
    pd_pickle_free(p);
}

/* Containers that hold themselves are plain data like any other, as long as nobody walks them without a bound. */
Test(pickle, a_list_may_hold_itself)
{
    struct pd_pickle *p = NULL;
    cr_assert_eq(PARSE("]\x94h\x00"
                       "a.",
                       &p),
                 PD_OK, "%s", err.message);
    cr_assert_eq(pd_pickle_at(pd_pickle_root(p), 0), pd_pickle_root(p));
    pd_pickle_free(p);
}

/* ---- archives ---- */

static struct pd_vfs *vfs;
static struct pd_file *file;

static void open_plain(struct pd_torch_archive *archive)
{
    struct pd_stat stat;
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    cr_assert_eq(pd_file_open(vfs, PLAIN, PD_OPEN_READ, &file, &err), PD_OK);
    cr_assert_eq(pd_file_stat(file, &stat, &err), PD_OK);
    cr_assert_eq(pd_torch_open(file, PLAIN, 0, stat.bytes, archive, &err), PD_OK, "%s", err.message);
}

static void close_plain(struct pd_torch_archive *archive)
{
    pd_torch_close(archive);
    pd_file_close_readonly(file);
    pd_vfs_free(vfs);
}

Test(torch_archive, tensors_are_places_in_the_file)
{
    struct pd_torch_archive archive;
    struct pd_torch_tensor t;
    float value = 0;
    double n = 0;
    open_plain(&archive);
    const struct pd_pickle_node *root = pd_pickle_root(archive.pickle);
    cr_assert_eq(pd_torch_tensor(&archive, "t", pd_pickle_member(root, "t"), &t, &err), PD_OK, "%s", err.message);
    cr_assert(t.element == PD_ELEMENT_F32 && t.ndim == 2 && t.shape[0] == 6 && t.shape[1] == 4);
    cr_assert(t.stride[0] == 1 && t.stride[1] == 6);
    cr_assert_eq(t.offset % 64, 0);
    cr_assert_eq(pd_torch_tensor(&archive, "row", pd_pickle_member(root, "row"), &t, &err), PD_OK);
    cr_assert(t.ndim == 1 && t.shape[0] == 6 && t.stride[0] == 1);
    cr_assert_eq(pd_file_read(file, t.offset, &value, sizeof value, &err), PD_OK);
    cr_assert_eq(value, 6);
    cr_assert_eq(pd_torch_tensor(&archive, "half", pd_pickle_member(root, "half"), &t, &err), PD_OK);
    cr_assert_eq(t.element, PD_ELEMENT_F16);
    cr_assert_eq(pd_torch_number(&archive, "n", pd_pickle_member(root, "n"), &n, &err), PD_OK);
    cr_assert_eq(n, 3);
    cr_assert_eq(pd_torch_number(&archive, "half", pd_pickle_member(root, "half"), &n, &err), PD_CORRUPT);
    cr_assert_eq(pd_torch_tensor(&archive, "n", pd_pickle_member(root, "n"), &t, &err), PD_CORRUPT);
    close_plain(&archive);
}

Test(torch_archive, a_file_that_is_cut_is_refused_wherever_it_is_cut)
{
    struct pd_torch_archive archive;
    struct pd_stat stat;
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    cr_assert_eq(pd_file_open(vfs, PLAIN, PD_OPEN_READ, &file, &err), PD_OK);
    cr_assert_eq(pd_file_stat(file, &stat, &err), PD_OK);
    for (uint64_t end = 0; end < stat.bytes; end++) {
        cr_assert_eq(pd_torch_open(file, PLAIN, 0, end, &archive, &err), PD_CORRUPT, "cut at %d", (int)end);
        cr_assert_not_null(strstr(err.message, "plain.pt"));
    }
    pd_file_close_readonly(file);
    pd_vfs_free(vfs);
}

/* Sizes and places beyond 4 GiB: what is written is what is read, without writing 5 GiB. */
Test(zip, large_entries_have_wide_fields)
{
    struct pd_zip_record records[2] = {{.name = "a/big", .bytes = UINT64_C(5) << 30, .crc = 1}, {.name = "a/b", .bytes = 3}};
    const uint64_t bytes = pd_zip_place(records, 2), behind = records[1].data_offset + records[1].bytes;
    unsigned char header[512], *text = malloc(bytes - behind);
    char path[] = "/tmp/perdure-zip-XXXXXX";
    struct pd_zip zip;
    uint64_t offset = 0;
    const int fd = mkstemp(path);
    cr_assert(fd >= 0);
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    cr_assert_eq(pd_file_open(vfs, path, PD_OPEN_READ | PD_OPEN_WRITE, &file, &err), PD_OK);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pd_file_write(file, records[i].header_offset, header, pd_zip_header(&records[i], header), &err), PD_OK);
    pd_zip_directory(records, 2, text);
    cr_assert_eq(pd_file_write(file, behind, text, bytes - behind, &err), PD_OK);
    cr_assert_eq(pd_zip_read(file, path, 0, bytes, &zip, &err), PD_OK, "%s", err.message);
    for (int i = 0; i < 2; i++) {
        const struct pd_zip_entry *e = pd_zip_find(&zip, records[i].name + 2);
        cr_assert(e && e->bytes == records[i].bytes && e->crc == records[i].crc && e->is_stored);
        cr_assert_eq(pd_zip_data(file, path, &zip, e, &offset, &err), PD_OK, "%s", err.message);
        cr_assert_eq(offset, records[i].data_offset);
    }
    cr_assert_null(pd_zip_find(&zip, "g"));
    pd_zip_deinit(&zip);
    pd_file_close_readonly(file);
    pd_vfs_free(vfs);
    remove(path);
    free(text);
}

Test(torch_archive, only_what_fits_is_a_count)
{
    uint64_t count = 7;
    const double none[] = {-1, (double)NAN, (double)INFINITY, 0x1p63, 1e300};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        cr_assert(!pd_torch_is_count(none[i], &count) && count == 7, "%g", none[i]);
    cr_assert(pd_torch_is_count(0x1p62, &count) && count == UINT64_C(1) << 62);
}

/* Offsets of a file beyond 2 GiB. */
Test(pickle, whole_numbers_that_are_written_are_read)
{
    static const uint64_t values[] = {0, INT32_MAX, (uint64_t)INT32_MAX + 1, UINT32_MAX, UINT64_C(1) << 40, INT64_MAX};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        struct pd_pickle_writer w = {0};
        struct pd_pickle *pickle = NULL;
        uint64_t value = 0;
        pd_pickle_begin(&w);
        pd_pickle_put_u64(&w, NULL, values[i]);
        cr_assert_eq(pd_pickle_finish(&w, &err), PD_OK);
        cr_assert_eq(pd_pickle_parse("number", w.text, w.bytes, &pickle, NULL, &err), PD_OK, "%s", err.message);
        cr_assert(pd_pickle_is_u64(pd_pickle_root(pickle), &value) && value == values[i], "%" PRIu64, values[i]);
        pd_pickle_free(pickle);
        pd_pickle_writer_deinit(&w);
    }
}
