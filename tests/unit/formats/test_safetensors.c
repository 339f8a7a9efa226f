#include "resharder/formats/safetensors.h"
#include "tests/unit/formats/directory_fixture.h"

#include <sys/stat.h>

TestSuite(safetensors, .init = setup, .fini = teardown);

static const char *at(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void put(const char *name, const void *data, size_t bytes)
{
    FILE *f = fopen(at(name), "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(data, 1, bytes, f), bytes);
    cr_assert_eq(fclose(f), 0);
}

/* A header of this text and so many bytes of data. */
static void put_tensors(const char *name, const char *header, size_t data_bytes)
{
    char file[4096] = {0};
    const uint64_t bytes = strlen(header);
    memcpy(file, &bytes, 8);
    memcpy(file + 8, header, bytes);
    put(name, file, 8 + bytes + data_bytes);
}

static pd_status read_catalog(const char *path, struct pd_catalog *c)
{
    const struct pd_format *format = NULL;
    PD_TRY(pd_format_of(vfs, path, &format, &err));
    cr_assert_str_eq(format->name, "safetensors");
    pd_catalog_init(c, format->name);
    PD_TRY(format->read(vfs, path, c, &err));
    return pd_catalog_finish(c, &err);
}

Test(safetensors, a_file_is_read)
{
    struct pd_catalog c;
    put_tensors("model.safetensors",
                "{\"__metadata__\":{\"format\":\"pt\",\"by\":\"me\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],"
                "\"data_offsets\":[4,16]},\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                "\"empty\":{\"dtype\":\"F16\",\"shape\":[0,9],\"data_offsets\":[16,16]}}",
                16);
    put("config.json", "{}", 2);
    cr_assert_eq(read_catalog(dir, &c), PD_OK, "%s", err.message);
    cr_assert_eq(c.tensor_count, 3);
    const struct pd_foreign_tensor *b = &c.tensors[pd_catalog_find(&c, "b", PD_PARAM)];
    cr_assert(b->element == PD_ELEMENT_BF16 && b->ndim == 2 && b->shape[0] == 2 && b->shape[1] == 3);
    cr_assert_eq(c.pieces[b->piece_begin].offset, c.files[0].bytes - 12);
    cr_assert_eq(c.unmapped_count, 1);
    cr_assert_str_eq(c.unmapped[0], "__metadata__.by");
    cr_assert_str_eq(pd_catalog_text(&c, "config.json")->text, "{}");
    pd_catalog_deinit(&c);
}

/* Beside the one file of a model lies what it is; beside one of several that is not known. */
Test(safetensors, a_file_alone_says_what_its_directory_says)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}";
    struct pd_catalog c;
    put("config.json", "{}", 2);
    put_tensors("mine.safetensors", header, 4);
    cr_assert_eq(read_catalog(at("mine.safetensors"), &c), PD_OK, "%s", err.message);
    cr_assert_not_null(pd_catalog_text(&c, "config.json"));
    pd_catalog_deinit(&c);
    put_tensors("model.safetensors", header, 4);
    cr_assert_eq(read_catalog(at("mine.safetensors"), &c), PD_OK, "%s", err.message);
    cr_assert_null(pd_catalog_text(&c, "config.json"));
    pd_catalog_deinit(&c);
    cr_assert_eq(read_catalog(at("model.safetensors"), &c), PD_OK, "%s", err.message);
    cr_assert_not_null(pd_catalog_text(&c, "config.json"));
    pd_catalog_deinit(&c);
}

Test(safetensors, what_is_wrong_is_named)
{
#define T(offsets) "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" offsets "}"
    static const struct {
        const char *header, *message;
    } cases[] = {
        {"{\"a\":" T("[0,8]") ",\"b\":" T("[8,16]") "}", NULL},
        {"{\"a\":" T("[0,8]") ",\"b\":" T("[4,12]") "}",
         "tensor b begins at byte 4 of the data, where byte 8 is the next free"},
        {"{\"a\":" T("[0,8]") "}", "end at byte 8 of the data, and there are 16"},
        {"{\"a\":" T("[8,16]") "}", "tensor a begins at byte 8 of the data, where byte 0 is nobody's"},
        {"{\"a\":" T("[0,16]") "}", "tensor a has 16 bytes where its shape takes 8"},
        {"{\"a\":" T("[16,8]") "}", "no data_offsets"},
        {"{\"a\":" T("[0,-8]") "}", "no data_offsets"},
        {"{\"a\":" T("[0,80]") "}", "80 bytes where its shape takes 8"},
        {"{\"a\":" T("[0,8]") ",\"a\":" T("[8,16]") "}", "duplicate"},
        {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[16],\"data_offsets\":[0,16]}}", NULL},
        {"{\"a\":{\"dtype\":\"F8_E8M0\",\"shape\":[16],\"data_offsets\":[0,16]}}", NULL}, /* listed */
        {"{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", "has no dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1,1,1,1,1,1,1,2],\"data_offsets\":[0,16]}}",
         "no shape, or one of more than"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,2],\"data_offsets\":[0,16]}}", "2^64"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,16]}}", "not a size"},
        {"{\"a\":7}", "tensor a is not an object"},
        {"[]", "not a JSON object"},
        {"{\"a\":", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_catalog c;
        put_tensors("x.safetensors", cases[i].header, 16);
        const pd_status st = read_catalog(at("x.safetensors"), &c);
        cr_assert_eq(st == PD_OK, !cases[i].message, "%s: %s", cases[i].header, err.message);
        if (strstr(cases[i].header, "F8_E8M0"))
            cr_assert(!c.tensor_count && strcmp(c.unmapped[0], "tensor a: type F8_E8M0 is not read") == 0);
        if (st) cr_assert_not_null(strstr(err.message, cases[i].message), "%s", err.message);
        if (st) cr_assert_not_null(strstr(err.message, "x.safetensors"), "%s", err.message);
        pd_catalog_deinit(&c);
    }
}

Test(safetensors, a_length_that_lies_is_refused)
{
    struct pd_catalog c;
    const uint64_t lengths[] = {UINT64_MAX, 100000001, 3, 1};
    for (size_t i = 0; i < 4; i++) {
        unsigned char file[11] = {0};
        memcpy(file, &lengths[i], 8);
        put("x.safetensors", file, sizeof file - (i == 2));
        cr_assert_eq(read_catalog(at("x.safetensors"), &c), PD_CORRUPT);
        pd_catalog_deinit(&c);
    }
    put("x.safetensors", "abc", 3);
    cr_assert_eq(read_catalog(at("x.safetensors"), &c), PD_CORRUPT);
    pd_catalog_deinit(&c);
}

/* Two tensors, 24 and 8 bytes. */
static void write_model(const char *directory, uint64_t shard_bytes_max, pd_status mine)
{
    struct pd_catalog wanted;
    void *state = NULL;
    pd_catalog_init(&wanted, "safetensors");
    const struct pd_foreign_tensor a = {.name = "a \"quoted\"", .element = PD_ELEMENT_F32, .ndim = 2, .shape = {3, 2}},
                                   b = {.name = "b", .element = PD_ELEMENT_F16, .ndim = 1, .shape = {4}};
    cr_assert_eq(pd_catalog_add_tensor(&wanted, &a, NULL, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_tensor(&wanted, &b, NULL, &err), PD_OK);
    cr_assert_eq(pd_catalog_add_text(&wanted, "config.json", "{1}", 3, &err), PD_OK);
    struct pd_format_plan plan = {.directory = directory, .wanted = &wanted, .shard_bytes_max = shard_bytes_max};
    cr_assert_eq(pd_format_safetensors.plan(vfs, &plan, &state, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_finish(&wanted, &err), PD_OK, "%s", err.message);
    for (uint32_t t = 0; t < wanted.tensor_count; t++) {
        const struct pd_piece *piece = &wanted.pieces[wanted.tensors[t].piece_begin];
        struct pd_file *file = NULL;
        const char data[24] = "0123456789abcdef0123456";
        cr_assert_eq(pd_file_open(vfs, wanted.files[piece->file].path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, &err), PD_OK);
        cr_assert_eq(pd_file_write(file, piece->offset, data, pd_foreign_bytes(&wanted.tensors[t]), &err), PD_OK);
        cr_assert_eq(pd_file_close(file, &err), PD_OK);
    }
    cr_assert_eq(pd_format_safetensors.finish(state, mine, &err), mine, "%s", err.message);
    pd_catalog_deinit(&wanted);
}

Test(safetensors, what_is_written_is_read)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        struct pd_catalog c;
        char directory[128];
        snprintf(directory, sizeof directory, "%s", at(sharded ? "shards" : "single"));
        cr_assert_eq(mkdir(directory, 0777), 0);
        write_model(directory, sharded ? 24 : 0, PD_OK);
        cr_assert_eq(read_catalog(directory, &c), PD_OK, "%s", err.message);
        cr_assert_eq(c.file_count, sharded ? 2 : 1);
        cr_assert_eq(c.tensor_count, 2);
        const int64_t a = pd_catalog_find(&c, "a \"quoted\"", PD_PARAM);
        cr_assert(a >= 0 && c.tensors[a].element == PD_ELEMENT_F32 && c.tensors[a].shape[1] == 2);
        cr_assert_eq(c.pieces[c.tensors[a].piece_begin].offset % 8, 0);
        cr_assert_str_eq(pd_catalog_text(&c, "config.json")->text, "{1}");
        pd_catalog_deinit(&c);
    }
}

Test(safetensors, an_index_that_lies_is_refused)
{
    struct pd_catalog c;
    static const char *const files[] = {"../x.safetensors", "absent.safetensors", "model-00002-of-00002.safetensors"};
    write_model(dir, 24, PD_OK);
    for (size_t i = 0; i < 3; i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"weight_map\":{\"a \\\"quoted\\\"\":\"%s\"}}", files[i]);
        put(PD_SAFETENSORS_INDEX, text, strlen(text));
        cr_assert_neq(read_catalog(dir, &c), PD_OK);
        cr_assert_not_null(strstr(err.message, i == 2 ? "and does not" : files[i]), "%s", err.message);
        pd_catalog_deinit(&c);
    }
    put(PD_SAFETENSORS_INDEX, "{\"weight_map\":{\"a\":1}}", 22);
    cr_assert_eq(read_catalog(dir, &c), PD_CORRUPT);
    pd_catalog_deinit(&c);
}

Test(safetensors, an_export_that_failed_writes_nothing_more)
{
    write_model(dir, 0, PD_IO);
    cr_assert_neq(access(at("config.json"), F_OK), 0);
}
