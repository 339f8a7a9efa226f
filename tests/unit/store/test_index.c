#include "tests/unit/inspect/checkpoint_fixture.h"

#include <time.h>

/* Output of a command, or NULL where the tool is not installed. */
static char *output_of(const char *format, const char *argument)
{
    char command[1024];
    snprintf(command, sizeof command, format, argument);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    size_t used = 0, capacity = 1 << 16;
    char *text = malloc(capacity);
    for (size_t n; (n = fread(text + used, 1, capacity - used - 1, pipe)) > 0;) {
        used += n;
        if (capacity - used < 2) text = realloc(text, capacity *= 2);
    }
    text[used] = '\0';
    if (pclose(pipe) == 0) return text;
    free(text);
    return NULL;
}

static bool has_tools(void)
{
    char *text = output_of("%s --version 2>/dev/null", "h5dump");
    bool has = text != NULL;
    free(text);
    return has;
}

#define NEEDS_TOOLS()                                                                          \
    do {                                                                                       \
        if (!has_tools()) cr_skip_test("h5dump is not installed: apt-get install hdf5-tools"); \
    } while (0)

Test(index, whole_tensors_in_h5dump)
{
    static const struct checkpoint_cut cut = {3, 17, 0};
    struct fixture f;
    char directory[256], command[1024];
    NEEDS_TOOLS();
    checkpoint_model(&f);
    checkpoint_write(&f, "c", &cut, directory, sizeof directory);
    for (uint32_t t = 0; t < f.tensors.count; t++) {
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            char path[300];
            snprintf(command, sizeof command, "h5dump -d '/%s/%s' -b LE -o %s/out %s/index.h5 >/dev/null",
                     pd_kind_name((enum pd_kind)kind), f.tensors.tensors[t].name, f.directory, directory);
            cr_assert_eq(system(command), 0, "%s", command);
            snprintf(path, sizeof path, "%s/out", f.directory);
            uint64_t bytes = pd_tensor_elements(&f.tensors.tensors[t]) * sizeof(float);
            float *values = checkpoint_values(&f, t, kind), *dumped = malloc(bytes);
            FILE *file = fopen(path, "rb");
            cr_assert(file && fread(dumped, 1, bytes, file) == bytes && fgetc(file) == EOF);
            fclose(file);
            cr_assert_eq(memcmp(values, dumped, bytes), 0, "%s", f.tensors.tensors[t].name);
            free(values);
            free(dumped);
        }
    }
    fixture_deinit(&f);
}

Test(index, h5ls_lists_tensors_and_boxes)
{
    static const struct checkpoint_cut cut = {2, 0, 0};
    struct fixture f;
    char directory[256];
    NEEDS_TOOLS();
    checkpoint_model(&f);
    checkpoint_write(&f, "c", &cut, directory, sizeof directory);
    char *index = output_of("h5ls -r %s/index.h5", directory);
    cr_assert(strstr(index, "/param/mlp.up.weight") && strstr(index, "{600, 70}"), "%s", index);
    cr_assert(strstr(index, "/exp_avg_sq/scale") && strstr(index, "{1}"));
    char *shard = output_of("h5ls -r %s/shard-00001.h5", directory);
    cr_assert(strstr(shard, "/param/mlp.up.weight[300:600,0:70] Dataset {300, 70}"), "%s", shard);
    cr_assert_not_null(strstr(shard, "/identity"));
    char *identity = output_of("h5dump -d /identity %s/shard-00001.h5", directory);
    cr_assert_not_null(strstr(identity, "\"step\";"), "%s", identity);
    char *commit = output_of("h5dump -d /state -d /shards -d /created_by %s/commit.h5", directory);
    cr_assert(commit && strstr(commit, "writer_rank"));
    free(index);
    free(shard);
    free(identity);
    free(commit);
    fixture_deinit(&f);
}

Test(index, a_missing_shard_reads_as_nan)
{
    static const struct checkpoint_cut cut = {2, 0, 0};
    struct fixture f;
    char directory[256], path[300];
    NEEDS_TOOLS();
    checkpoint_model(&f);
    checkpoint_write(&f, "c", &cut, directory, sizeof directory);
    snprintf(path, sizeof path, "%s/shard-00001.h5", directory);
    cr_assert_eq(unlink(path), 0);
    char *text = output_of("h5dump -d /param/norm.weight -y %s/index.h5", directory);
    char *nan = text ? strstr(text, "nan") : NULL;
    cr_assert_not_null(nan, "%s", text);
    int count = 0;
    for (; nan; nan = strstr(nan + 1, "nan"))
        count++;
    cr_assert_eq(count, 16, "17 rows lie in the first shard");
    free(text);
    fixture_deinit(&f);
}

Test(index, thousands_of_tensors_in_seconds)
{
    const uint32_t tensors = 1000, shards = 16;
    struct pd_tensor_table table = {.tensors = calloc(tensors, sizeof(struct pd_tensor)), .count = tensors};
    struct pd_index_source *sources = calloc(shards, sizeof *sources);
    char(*names)[32] = calloc(shards, sizeof *names);
    for (uint32_t t = 0; t < tensors; t++) {
        table.tensors[t] = (struct pd_tensor){.ndim = 2, .shape = {4096, 4096, 1, 1}, .tp_dim = -1, .tp_unit = 1};
        snprintf(table.tensors[t].name, sizeof table.tensors[t].name, "model.layers.%u.weight", t);
    }
    for (uint32_t s = 0; s < shards; s++) {
        struct pd_shard_box *boxes = calloc(tensors, sizeof *boxes);
        for (uint32_t t = 0; t < tensors; t++)
            boxes[t] = (struct pd_shard_box){t, PD_PARAM, {{s * 256, 0, 0, 0}, {256, 4096, 1, 1}}};
        snprintf(names[s], sizeof names[s], "shard-%05u.h5", s);
        sources[s] = (struct pd_index_source){names[s], boxes, tensors};
    }
    void *data = NULL, *again = NULL;
    uint64_t bytes = 0, again_bytes = 0;
    OK(pd_index_build(&table, sources, shards, &data, &bytes, err));
    OK(pd_index_build(&table, sources, shards, &again, &again_bytes, err));
    cr_assert(bytes == again_bytes && memcmp(data, again, bytes) == 0);
    cr_assert_lt(bytes, 8u << 20);
    free(data);
    free(again);
    for (uint32_t s = 0; s < shards; s++)
        free((void *)(uintptr_t)sources[s].boxes);
    free(sources);
    free(names);
    pd_tensor_table_deinit(&table);
}
