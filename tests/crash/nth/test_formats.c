/* Every call of a reader and of a writer of each format fails once, and from then on. Golden files lie on a disk that fails. */
#include "ckpt/base/log.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/catalog/read.h"
#include "resharder/formats/format.h"
#include "resharder/formats/llmc.h"
#include "tests/helpers/failing_sweep.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define GOLDEN PERDURE_SOURCE_DIR "/tests/golden/formats/"

static struct pd_error error;
#define OK(expression) cr_assert_eq(expression, PD_OK, "%s", error.message)

/* To read: what is copied to /golden and what of it is a checkpoint. To write: the format. */
struct job {
    const char *golden, *path, *format;
};
struct work {
    struct pd_simulated_disk *disk;
    struct pd_vfs *vfs;
    const struct job *job;
    void *buffers;
    float *values;
    uint32_t written;
};
enum { VALUES = 1 << 20 };

/* ---- golden files ---- */

static void copy_file(struct pd_vfs *vfs, const char *from, const char *to)
{
    static unsigned char text[1 << 22];
    struct pd_file *file = NULL;
    FILE *f = fopen(from, "rb");
    cr_assert(f, "%s", from);
    const size_t bytes = fread(text, 1, sizeof text, f);
    cr_assert(feof(f) && fclose(f) == 0);
    OK(pd_file_open(vfs, to, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, &error));
    OK(pd_file_write(file, 0, text, bytes, &error));
    OK(pd_file_close(file, &error));
}

static void copy_tree(struct pd_vfs *vfs, const char *from, const char *to)
{
    struct stat st;
    cr_assert_eq(stat(from, &st), 0, "%s", from);
    if (!S_ISDIR(st.st_mode)) {
        copy_file(vfs, from, to);
        return;
    }
    OK(pd_vfs_mkdir(vfs, to, &error));
    DIR *directory = opendir(from);
    for (struct dirent *entry; (entry = readdir(directory));) {
        char source[1024], target[1024];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(source, sizeof source, "%s/%s", from, entry->d_name);
        snprintf(target, sizeof target, "%s/%s", to, entry->d_name);
        copy_tree(vfs, source, target);
    }
    closedir(directory);
}

static void swallow(void *context, const char *line, size_t bytes)
{
    (void)context, (void)line, (void)bytes;
}

static void *set_up(const void *context)
{
    static struct pd_simulated_disk *base;
    static const struct job *job;
    static void *buffers, *values;
    const struct pd_disk_options options = {.seed = 1};
    struct work *w = calloc(1, sizeof *w);
    if (job != context) {
        struct pd_vfs *vfs = NULL;
        char from[1024];
        job = context;
        pd_log_set_sink(swallow, NULL);
        OK(pd_simulated_disk_new(&options, &base, &error));
        OK(pd_simulated_disk_vfs(base, 0, &vfs, &error));
        snprintf(from, sizeof from, GOLDEN "%s", job->golden ? job->golden : "");
        if (job->golden) copy_tree(vfs, from, "/golden");
        pd_vfs_free(vfs);
        buffers = aligned_alloc(PD_VFS_ALIGN, PD_READER_BUFFER_BYTES_MIN);
        values = malloc(VALUES * sizeof(float));
    }
    *w = (struct work){.job = job, .buffers = buffers, .values = values};
    OK(pd_simulated_disk_clone(base, &w->disk, &error));
    OK(pd_simulated_disk_vfs(w->disk, 0, &w->vfs, &error));
    return w;
}

static void tear_down(void *state)
{
    struct work *w = state;
    pd_vfs_free(w->vfs);
    pd_simulated_disk_free(w->disk);
    free(w);
}

static struct pd_simulated_disk *disk_of(void *state)
{
    return ((struct work *)state)->disk;
}

/* ---- reading ---- */

static pd_status read_values(struct work *w, const struct pd_catalog *c, struct pd_error *err)
{
    struct pd_reader *reader = NULL;
    PD_TRY(pd_reader_open(w->vfs, c, w->buffers, PD_READER_BUFFER_BYTES_MIN, &reader, err));
    pd_status st = PD_OK;
    for (uint32_t t = 0; !st && t < c->tensor_count; t++) {
        const struct pd_view all = {.ndim = 1, .count = {pd_foreign_elements(&c->tensors[t])}, .stride = {1}};
        if (all.count[0] <= VALUES) st = pd_reader_read(reader, t, &all, w->values, err);
    }
    pd_reader_close(reader);
    return st;
}

static pd_status read_path(struct work *w, const char *path, struct pd_error *err)
{
    const struct pd_format *format = NULL;
    struct pd_catalog c;
    PD_TRY(pd_format_of(w->vfs, path, &format, err));
    pd_catalog_init(&c, format->name);
    pd_status st = format->read(w->vfs, path, &c, err);
    if (!st) st = pd_catalog_finish(&c, err);
    if (!st) st = read_values(w, &c, err);
    pd_catalog_deinit(&c);
    return st;
}

static pd_status read_golden(void *state, struct pd_error *err)
{
    struct work *w = state;
    return read_path(w, w->job->path, err);
}

/* ---- writing ---- */

static const struct {
    const char *name;
    uint32_t ndim;
    uint64_t shape[3];
} tensors[] = {
    {"decoder.layers.mlp.linear_fc1.weight", 3, {2, 8, 64}},
    {"embedding.word_embeddings.weight", 2, {5, 64, 1}},
    {"decoder.final_layernorm.weight", 1, {64, 1, 1}},
};

static pd_status want(struct pd_catalog *c, const struct pd_foreign_tensor *tensor, bool has_moments, struct pd_error *err)
{
    struct pd_foreign_tensor t = *tensor;
    for (int kind = 0; kind < (has_moments ? PD_KIND_COUNT : 1); kind++) {
        t.kind = (enum pd_kind)kind;
        PD_TRY(pd_catalog_add_tensor(c, &t, NULL, err));
    }
    return PD_OK;
}

static pd_status want_all(struct pd_catalog *c, const struct pd_format *format, struct pd_error *err)
{
    static const struct pd_llmc_sizes sizes = {
        .vocab = 5, .context = 4, .layers = 2, .width = 8, .padded_vocab = 128, .heads = 2};
    static const char config[] =
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":2,"
        "\"intermediate_size\":8,\"vocab_size\":5,\"n_head\":2,\"rope_theta\":10000.0}";
    static const char tokens[] =
        "{\"ggml.model\":\"llama\",\"ggml.tokens\":[\"a\",\"b\"],\"ggml.scores\":[0,-1],\"ggml.merges\":[]}";
    for (size_t i = 0; strcmp(format->name, "llmc") != 0 && i < sizeof tensors / sizeof *tensors; i++) {
        struct pd_foreign_tensor t = {
            .name = (char *)(uintptr_t)tensors[i].name, .element = PD_ELEMENT_F32, .ndim = tensors[i].ndim};
        for (int d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
            t.shape[d] = d < 3 ? tensors[i].shape[d] : 1;
        PD_TRY(want(c, &t, format->holds_moments, err));
    }
    for (int t = 0; strcmp(format->name, "llmc") == 0 && t < PD_LLMC_TENSORS; t++) {
        uint64_t layers;
        struct pd_foreign_tensor tensor = pd_llmc_tensor(&sizes, t, &layers);
        if (t == 0) tensor.shape[0] = 5;
        PD_TRY(want(c, &tensor, true, err));
    }
    c->counters =
        (struct pd_catalog_counters){.has_step = true, .step = 7, .has_updates = true, .updates = 7, .samples = 56};
    PD_TRY(pd_catalog_add_text(c, "config.json", config, sizeof config - 1, err));
    return pd_catalog_add_text(c, "tokenizer.gguf", tokens, sizeof tokens - 1, err);
}

/* Zeros, where the plan wants them. */
static pd_status fill(struct work *w, const struct pd_format *format, void *plan, const struct pd_catalog *c,
                      struct pd_error *err)
{
    memset(w->values, 0, VALUES * sizeof *w->values);
    for (uint32_t t = 0; t < c->tensor_count; t++) {
        const struct pd_foreign_tensor *tensor = &c->tensors[t];
        for (uint64_t p = tensor->piece_begin; p < tensor->piece_begin + tensor->piece_count; p++) {
            const struct pd_piece *piece = &c->pieces[p];
            const uint64_t bytes = pd_piece_bytes(tensor, piece);
            struct pd_file *file = NULL;
            format->observe(plan, t, w->values, bytes);
            PD_TRY(pd_file_open(w->vfs, c->files[piece->file].path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
            const pd_status st = pd_file_write(file, piece->offset, w->values, bytes, err);
            const pd_status closed = pd_file_close(file, st ? NULL : err);
            PD_TRY(st ? st : closed);
        }
    }
    return PD_OK;
}

static pd_status write_to(struct work *w, const struct pd_format *format, const char *directory, struct pd_error *err)
{
    struct pd_catalog wanted;
    void *plan = NULL;
    pd_catalog_init(&wanted, format->name);
    struct pd_format_plan job = {.directory = directory, .wanted = &wanted, .shard_bytes_max = 3000};
    pd_status st = want_all(&wanted, format, err);
    if (!st) st = format->plan(w->vfs, &job, &plan, err);
    if (!st) st = pd_catalog_finish(&wanted, err);
    if (!st) st = fill(w, format, plan, &wanted, err);
    if (plan) st = format->finish(plan, st, err);
    pd_catalog_deinit(&wanted);
    return st;
}

static pd_status write_and_read_at(struct work *w, const char *directory, struct pd_error *err)
{
    const struct pd_format *format = pd_format_find(w->job->format);
    char path[PD_FORMATS_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s%s%s", directory, format->file ? "/" : "", format->file ? format->file : "");
    PD_TRY(pd_vfs_mkdir(w->vfs, directory, err));
    PD_TRY(write_to(w, format, directory, err));
    return read_path(w, path, err);
}

/* Each time into a directory of its own. */
static pd_status write_and_read(void *state, struct pd_error *err)
{
    struct work *w = state;
    char directory[32];
    snprintf(directory, sizeof directory, "/out-%u", w->written++);
    return write_and_read_at(w, directory, err);
}

static void sweep(const struct job *job)
{
    const struct failing_case c = {.name = job->golden ? job->path : job->format,
                                   .set_up = set_up,
                                   .act = job->golden ? read_golden : write_and_read,
                                   .tear_down = tear_down,
                                   .disk = disk_of,
                                   .context = job};
    failing_sweep(&c);
}

#define READS(name, golden, path)                           \
    Test(nth_formats, reads_##name)                         \
    {                                                       \
        static const struct job job = {golden, path, NULL}; \
        sweep(&job);                                        \
    }
#define WRITES(name)                                       \
    Test(nth_formats, writes_##name)                       \
    {                                                      \
        static const struct job job = {NULL, NULL, #name}; \
        sweep(&job);                                       \
    }

READS(dcp, "dcp", "/golden")
READS(gguf, "golden.gguf", "/golden")
READS(megatron_buckets, "megatron/dp_reshardable", "/golden")
READS(megatron_stages, "megatron/tp2_pp2", "/golden/iter_0000002")
READS(megatron_whole, "megatron/fully_reshardable", "/golden")
READS(deepspeed_1, "deepspeed/zero1", "/golden")
READS(deepspeed_2, "deepspeed/zero2", "/golden")
READS(deepspeed_3, "deepspeed/zero3", "/golden")
READS(universal, "deepspeed/universal3", "/golden")
READS(torch, "plain.pt", "/golden")
WRITES(safetensors)
WRITES(dcp)
WRITES(megatron)
WRITES(universal)
WRITES(gguf)
WRITES(llmc)

/* ---- paths that are too long ---- */

/* The directory whose path has so many bytes; those above it are there. */
static void long_directory(char path[PD_FORMATS_PATH_MAX], size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        path[i] = i % 256 ? 'a' : '/';
    path[bytes] = '\0';
}

static void make_long_directory(struct pd_vfs *vfs, size_t bytes)
{
    char path[PD_FORMATS_PATH_MAX];
    for (size_t at = 256; at <= bytes; at += 256) {
        long_directory(path, at);
        OK(pd_vfs_mkdir(vfs, path, &error));
    }
}

enum { ABOVE = 15 * 256, FITS = ABOVE + 140 };

/* As long as all paths in it fit it is done; any longer directory is refused, by a reader perhaps since it finds none of a format there. */
static void check_lengths(const struct job *job,
                          pd_status (*act)(struct work *w, const char *directory, struct pd_error *err))
{
    struct work *w = set_up(job);
    bool was_refused = false;
    make_long_directory(w->vfs, ABOVE);
    for (size_t bytes = FITS; bytes < PD_FORMATS_PATH_MAX; bytes++) {
        char directory[PD_FORMATS_PATH_MAX];
        struct pd_error refusal = {0};
        long_directory(directory, bytes);
        const pd_status st = act(w, directory, &refusal);
        cr_assert(!st || st == PD_INVALID, "%s, %zu: %s: %s", job->format, bytes, pd_status_name(st), refusal.message);
        cr_assert(st || !was_refused, "%s, %zu", job->format, bytes);
        cr_assert(!st || job->golden || strstr(refusal.message, "too long"), "%s, %zu: %s", job->format, bytes,
                  refusal.message);
        was_refused = st != PD_OK;
    }
    cr_assert(was_refused, "%s", job->format);
    tear_down(w);
}

Test(nth_formats, too_long_a_path_is_refused_by_writers)
{
    static const struct job jobs[] = {{.format = "safetensors"}, {.format = "dcp"},  {.format = "megatron"},
                                      {.format = "universal"},   {.format = "gguf"}, {.format = "llmc"}};
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        check_lengths(&jobs[i], write_and_read_at);
}

/* What lay under a shorter name lies under this one. */
static pd_status move_and_read(struct work *w, const char *directory, struct pd_error *err)
{
    char before[PD_FORMATS_PATH_MAX];
    long_directory(before, strlen(directory) - 1);
    OK(pd_vfs_rename(w->vfs, strlen(directory) == FITS ? "/golden" : before, directory, err));
    return read_path(w, directory, err);
}

Test(nth_formats, too_long_a_path_is_refused_by_readers)
{
    static const struct job jobs[] = {{"dcp", NULL, "dcp"},
                                      {"megatron/dp_reshardable", NULL, "megatron"},
                                      {"megatron/fully_reshardable", NULL, "megatron"},
                                      {"deepspeed/zero2", NULL, "deepspeed"},
                                      {"deepspeed/universal3", NULL, "universal"}};
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        check_lengths(&jobs[i], move_and_read);
}
