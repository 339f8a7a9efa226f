/* Dictionaries of tensors as torch.save wrote them; tests/golden/formats/plain.pt is torch's own. */
#include "resharder/catalog/read.h"
#include "resharder/formats/format.h"
#include "tests/unit/formats/directory_fixture.h"

#define PLAIN PERDURE_SOURCE_DIR "/tests/golden/formats/plain.pt"

TestSuite(torch, .init = setup, .fini = teardown);

static void run(const char *format, const char *name)
{
    char command[512];
    snprintf(command, sizeof command, format, dir, name);
    cr_assert_eq(system(command), 0);
}

static void put_plain(const char *name)
{
    run("cp " PLAIN " '%s/%s'", name);
}

static pd_status read_catalog(const char *path, struct pd_catalog *c)
{
    const struct pd_format *format = NULL;
    PD_TRY(pd_format_of(vfs, path, &format, &err));
    cr_assert_str_eq(format->name, "torch");
    pd_catalog_init(c, format->name);
    PD_TRY(format->read(vfs, path, c, &err));
    return pd_catalog_finish(c, &err);
}

static const char *at(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* numpy: arange(24).reshape(4, 6) as t turned, row 1 of it as row, and in fp16 as half. */
static void check_plain(const struct pd_catalog *c)
{
    void *buffers = aligned_alloc(PD_VFS_ALIGN, PD_READER_BUFFER_BYTES_MIN);
    struct pd_reader *r = NULL;
    const struct pd_view all = {.ndim = 1, .count = {24}, .stride = {1}}, six = {.ndim = 1, .count = {6}, .stride = {1}};
    const int64_t t = pd_catalog_find(c, "t", PD_PARAM), row = pd_catalog_find(c, "row", PD_PARAM),
                  half = pd_catalog_find(c, "half", PD_PARAM);
    float values[24];
    cr_assert(t >= 0 && row >= 0 && half >= 0);
    cr_assert(c->tensors[t].ndim == 2 && c->tensors[t].shape[0] == 6 && c->tensors[t].shape[1] == 4);
    cr_assert_eq(pd_reader_open(vfs, c, buffers, PD_READER_BUFFER_BYTES_MIN, &r, &err), PD_OK);
    cr_assert_eq(pd_reader_read(r, (uint32_t)t, &all, values, &err), PD_OK, "%s", err.message);
    for (int i = 0; i < 24; i++)
        cr_assert_eq(values[i], (float)(i % 4 * 6 + i / 4));
    cr_assert_eq(pd_reader_read(r, (uint32_t)row, &six, values, &err), PD_OK);
    for (int i = 0; i < 6; i++)
        cr_assert_eq(values[i], (float)(6 + i));
    cr_assert_eq(pd_reader_read(r, (uint32_t)half, &all, values, &err), PD_OK);
    cr_assert_eq(values[23], 23.0f);
    pd_reader_close(r);
    free(buffers);
}

Test(torch, a_file_and_the_directory_of_a_model_are_read)
{
    static const char *const paths[] = {"", "pytorch_model.bin", "another.pt"};
    put_plain("pytorch_model.bin");
    put_plain("another.pt");
    run("echo '{}' > '%s/%s'", "config.json");
    for (int i = 0; i < 3; i++) {
        struct pd_catalog c;
        cr_assert_eq(read_catalog(at(paths[i]), &c), PD_OK, "%s", err.message);
        check_plain(&c);
        cr_assert_eq(c.unmapped_count, 1);
        cr_assert_str_eq(c.unmapped[0], "n");
        cr_assert_eq(!pd_catalog_text(&c, "config.json"), i == 2, "%s", paths[i]);
        pd_catalog_deinit(&c);
    }
}

Test(torch, shards_have_what_their_index_says)
{
    struct pd_catalog c;
    put_plain("a.bin");
    run("echo '{\"weight_map\": {\"t\": \"a.bin\", \"half\": \"a.bin\"}}' > '%s/%s'", "pytorch_model.bin.index.json");
    cr_assert_eq(read_catalog(dir, &c), PD_OK, "%s", err.message);
    check_plain(&c);
    pd_catalog_deinit(&c);
    run("echo '{\"weight_map\": {\"t\": \"a.bin\", \"n\": \"a.bin\"}}' > '%s/%s'", "pytorch_model.bin.index.json");
    cr_assert_eq(read_catalog(dir, &c), PD_CORRUPT);
    cr_assert_not_null(strstr(err.message, "a.bin should, by pytorch_model.bin.index.json, have tensor n, and does not"),
                       "%s", err.message);
    pd_catalog_deinit(&c);
}

/* What is read of it, and the words in which it is refused. */
static void check_refused(const char *made_by, pd_status status, const char *words)
{
    struct pd_catalog c;
    run(made_by, "pytorch_model.bin");
    cr_assert_eq(read_catalog(dir, &c), status, "%s", err.message);
    cr_assert_not_null(strstr(err.message, words), "%s", err.message);
    pd_catalog_deinit(&c);
}

Test(torch, what_is_no_dictionary_of_tensors_is_refused_by_name)
{
    check_refused("printf '\\200\\002\\212\\012l\\374' > '%s/%s'", PD_UNSUPPORTED,
                  "as torch saved before 1.6; save it again: python3 -c 'import torch;");
    check_refused("printf 'PK\\003\\004%%100s' x > '%s/%s'", PD_CORRUPT, "no torch.save archive ends at byte 104");
    check_refused("cp " PERDURE_SOURCE_DIR "/tests/golden/formats/deepspeed/expected-1.pt '%s/%s'", PD_INVALID,
                  "is not a dictionary of tensors; perdure reads torch.save(model.state_dict(), ");
}
