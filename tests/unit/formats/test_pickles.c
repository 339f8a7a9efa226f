/* Checkpoints that others wrote, with one value of one pickle replaced, each in turn: a reader refuses it by the file's name, or what
 * it takes holds together. What it may say is listed, and all that is listed is said.
 *
 * PERDURE_TEST_SCALE=10 puts every replacement everywhere; a shorter run a few of them. */
#include "resharder/formats/format.h"
#include "resharder/torch/zip.h"
#include "tests/fuzz/input/disk.h"
#include "tests/helpers/scale.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define GOLDEN PERDURE_SOURCE_DIR "/tests/golden/formats/"

enum { FILES_MAX = 64, RECORDS_MAX = 64, REFUSALS_MAX = 32 };

static struct pd_error err;

/* ---- files ---- */

static struct input_file files[FILES_MAX];
static uint32_t file_count;

static void set_file(struct input_file *file, const unsigned char *text, size_t bytes)
{
    file->is_there = true;
    file->bytes = bytes;
    file->extents[0] = (struct input_extent){0, bytes, text};
    file->extent_count = 1;
}

static void load(const char *from, const char *to)
{
    struct stat st;
    cr_assert_eq(stat(from, &st), 0, "%s", from);
    if (S_ISDIR(st.st_mode)) {
        DIR *directory = opendir(from);
        for (struct dirent *entry; (entry = readdir(directory));) {
            char source[1024], target[1024];
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
            snprintf(source, sizeof source, "%s/%s", from, entry->d_name);
            snprintf(target, sizeof target, "%s/%s", to, entry->d_name);
            load(source, target);
        }
        closedir(directory);
        return;
    }
    unsigned char *text = malloc((size_t)st.st_size + 1);
    FILE *f = fopen(from, "rb");
    cr_assert(f && file_count < FILES_MAX && fread(text, 1, (size_t)st.st_size, f) == (size_t)st.st_size, "%s", from);
    fclose(f);
    files[file_count].name = strdup(to);
    set_file(&files[file_count++], text, (size_t)st.st_size);
}

/* ---- a file with another pickle ---- */

/* What torch.save made, as records that can be placed anew. */
struct whole {
    struct pd_zip_record records[RECORDS_MAX];
    const unsigned char *data[RECORDS_MAX];
    uint32_t count, pickle; /* which of them */
};

static bool ends_with(const char *name, const char *end)
{
    const size_t bytes = strlen(name), end_bytes = strlen(end);
    return bytes >= end_bytes && strcmp(name + bytes - end_bytes, end) == 0;
}

static void take_apart(struct pd_vfs *vfs, const struct input_file *file, struct whole *ret)
{
    struct pd_file *open = NULL;
    struct pd_zip zip;
    cr_assert_eq(pd_file_open(vfs, file->name, PD_OPEN_READ, &open, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_zip_read(open, file->name, 0, file->bytes, &zip, &err), PD_OK, "%s", err.message);
    cr_assert_leq(zip.count, RECORDS_MAX);
    *ret = (struct whole){.count = zip.count};
    for (uint32_t i = 0; i < zip.count; i++) {
        const struct pd_zip_entry *entry = &zip.entries[i];
        uint64_t offset = 0;
        cr_assert_eq(pd_zip_data(open, file->name, &zip, entry, &offset, &err), PD_OK, "%s", err.message);
        snprintf(ret->records[i].name, sizeof ret->records[i].name, "%.*s", (int)entry->name_bytes, entry->name);
        ret->records[i].bytes = entry->bytes;
        ret->data[i] = (const unsigned char *)file->extents[0].data + offset;
        if (ends_with(ret->records[i].name, "/data.pkl")) ret->pickle = i;
    }
    pd_zip_deinit(&zip);
    pd_file_close_readonly(open);
}

static size_t put_together(struct whole *w, const unsigned char *pickle, size_t bytes, unsigned char **ret)
{
    w->records[w->pickle].bytes = bytes;
    w->data[w->pickle] = pickle;
    const uint64_t all = pd_zip_place(w->records, w->count);
    unsigned char *text = calloc(1, all);
    for (uint32_t i = 0; i < w->count; i++) {
        unsigned char header[512];
        memcpy(text + w->records[i].header_offset, header, pd_zip_header(&w->records[i], header));
        memcpy(text + w->records[i].data_offset, w->data[i], w->records[i].bytes);
    }
    pd_zip_directory(w->records, w->count, text + all - pd_zip_directory_bytes(w->records, w->count));
    *ret = text;
    return all;
}

/* ---- pickles ---- */

static uint64_t number_at(const unsigned char *text, int bytes)
{
    uint64_t value = 0;
    memcpy(&value, text, (size_t)bytes);
    return value;
}

/* Bytes of the operation at `text`. */
static size_t operation_bytes(const unsigned char *text)
{
    static const unsigned char fixed[256] = {
        ['K'] = 1, ['M'] = 2, ['J'] = 4, ['G'] = 8, ['q'] = 1, ['h'] = 1, ['r'] = 4, ['j'] = 4, [0x80] = 1, [0x95] = 8};
    static const unsigned char counted[256] = {[0x8a] = 1, [0x8b] = 4, [0x8c] = 1, ['X'] = 4,  [0x8d] = 8, ['U'] = 1,
                                               ['T'] = 4,  ['C'] = 1,  ['B'] = 4,  [0x8e] = 8, [0x96] = 8};
    if (counted[*text]) return 1 + counted[*text] + number_at(text + 1, counted[*text]);
    if (*text != 'c') return 1 + fixed[*text];
    const char *module = (const char *)text + 1, *name = strchr(module, '\n') + 1;
    return (size_t)(strchr(name, '\n') + 1 - (const char *)text);
}

#define VALUE(text)            \
    {                          \
        text, sizeof(text) - 1 \
    }
static const struct {
    const char *text;
    size_t bytes;
} values[] = {
    VALUE("N"),
    VALUE("K\x02"),
    VALUE("X\x00\x00\x00\x00"),
    VALUE("}"),
    VALUE(")"),
    VALUE("]"),
    VALUE("K\x00"),
    VALUE("J\xff\xff\xff\xff"),
    VALUE("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"),
    VALUE("G\x7f\xf0\x00\x00\x00\x00\x00\x00"),
    VALUE("X\x04\x00\x00\x00../x"),
    VALUE("(K\x01K\x01K\x01K\x01K\x01K\x01K\x01K\x01K\x01t"),
    VALUE("\x88"),
};
enum { VALUES = sizeof values / sizeof *values };

/* ---- what is tried ---- */

/* What readers share, or what only some of the replacements lead to. */
static const char *const any[] = {
    "of the pickle: ",
    "is not a plain tensor",
    "has no sizes and strides of at most 8 dimensions",
    "has no storage",
    "and the archive has no such entry",
    "reaches beyond its storage of",
    "repeats its elements, as torch's expand does",
    "which perdure does not read",
    "is not a single number",
    "bytes at ", /* are not an archive */
    "no torch.save archive ends at byte",
    " without a name",
    "reaches beyond its shape",
    "elements where its shape has",
    " overlap",
    "has more than 2^64 elements",
    "ends beyond the file's",
    "the file is cut short",
    "dimensions where",
    "not the metadata of a distributed checkpoint: ",
    " of state_dict_metadata is not a name",
    " has no size, or one of more than 8 dimensions",
    "an entry of storage_data lacks its name, file, offset or length",
    " has no offset in ",
    "outside of the checkpoint",
    ", and state_dict_metadata does not",
    " lies there, says ",
    "groups of buckets and",
    " is not a bucket",
    "the shape of ",
    "occurs twice",
    "ranks of model parallelism; make a universal checkpoint of it first",
    "reads flat fp32",
    "needs the optimizer's states of each",
};

struct refusal {
    const char *words;
    bool is_met;
};
struct job {
    const char *golden, *format;
    struct refusal *refusals;
    uint32_t metadata_stride, stride; /* every how many-th replacement a short run tries: in .metadata; in archives */
};

static pd_status read_all(struct pd_vfs *vfs, const struct pd_format *format)
{
    struct pd_catalog catalog;
    pd_catalog_init(&catalog, format->name);
    err = (struct pd_error){0};
    pd_status st = format->read(vfs, "/input", &catalog, &err);
    if (!st) st = pd_catalog_finish(&catalog, &err);
    const struct pd_catalog_counters *n = &catalog.counters;
    cr_assert(st || ((n->step | n->updates | n->samples | n->tokens) >> 63) == 0, "a count that was no number");
    pd_catalog_deinit(&catalog);
    return st;
}

static void check_refusal(const struct job *job, const char *name, size_t at, int value, pd_status st)
{
    bool is_known = false;
    for (size_t i = 0; i < sizeof any / sizeof *any; i++)
        is_known |= strstr(err.message, any[i]) != NULL;
    for (struct refusal *r = job->refusals; r->words; r++)
        if (strstr(err.message, r->words)) is_known = r->is_met = true;
    cr_assert(st == PD_CORRUPT || st == PD_UNSUPPORTED || st == PD_INVALID || st == PD_NOT_FOUND,
              "%s, byte %zu, value %d: %s: %s", name, at, value, pd_status_name(st), err.message);
    const bool names_file = strstr(err.message, "/input") || strncmp(err.message, job->format, strlen(job->format)) == 0;
    cr_assert(err.status == st && names_file, "%s, byte %zu, value %d: %s", name, at, value, err.message);
    cr_assert(is_known, "%s, byte %zu, value %d: nobody expects \"%s\"", name, at, value, err.message);
}

static void try_pickle(struct pd_vfs *vfs, const struct job *job, struct input_file *file, struct whole *whole,
                       const unsigned char *pickle, size_t bytes)
{
    const struct pd_format *format = pd_format_find(job->format);
    const struct input_file was = *file;
    unsigned char *other = malloc(bytes + 64);
    const uint32_t stride = test_scale() >= 10 ? 1 : whole ? job->stride : job->metadata_stride;
    uint32_t next = 0, refused = 0;
    for (size_t at = 0; at < bytes; at += operation_bytes(pickle + at))
        for (int v = 0; at && v < VALUES; v++) {
            if (next++ % stride) continue;
            unsigned char *text = other;
            size_t all = bytes + 1 + values[v].bytes;
            memcpy(other, pickle, at);
            other[at] = '0'; /* takes what is there */
            memcpy(other + at + 1, values[v].text, values[v].bytes);
            memcpy(other + at + 1 + values[v].bytes, pickle + at, bytes - at);
            if (whole) all = put_together(whole, other, all, &text);
            set_file(file, text, all);
            const pd_status st = read_all(vfs, format);
            if (st) check_refusal(job, file->name, at, v, st);
            refused += st != PD_OK;
            if (whole) free(text);
        }
    cr_log_info("%s: %u of %u refused", file->name, refused, next);
    free(other);
    *file = was;
}

static void sweep(const struct job *job)
{
    char from[512];
    file_count = 0;
    snprintf(from, sizeof from, GOLDEN "%s", job->golden);
    load(from, strchr(job->golden, '.') ? "/input/pytorch_model.bin" : "/input");
    struct pd_vfs *vfs = input_disk(files, file_count);
    cr_assert_eq(read_all(vfs, pd_format_find(job->format)), PD_OK, "%s", err.message);
    for (uint32_t f = 0; f < file_count; f++) {
        static struct whole whole;
        if (ends_with(files[f].name, "/.metadata")) {
            try_pickle(vfs, job, &files[f], NULL, files[f].extents[0].data, files[f].bytes);
        } else if (ends_with(files[f].name, ".pt") || ends_with(files[f].name, ".bin")) {
            take_apart(vfs, &files[f], &whole);
            try_pickle(vfs, job, &files[f], &whole, whole.data[whole.pickle], whole.records[whole.pickle].bytes);
        }
    }
    for (const struct refusal *r = job->refusals; r->words; r++)
        cr_assert(r->is_met, "nothing is refused with \"%s\"", r->words);
}

#define SWEEP(name, golden, format, metadata_stride, stride, ...)                \
    Test(pickles, name)                                                          \
    {                                                                            \
        static struct refusal refusals[] = {__VA_ARGS__, {NULL, false}};         \
        sweep(&(struct job){golden, format, refusals, metadata_stride, stride}); \
    }
#define SAYS(words)  \
    {                \
        words, false \
    }

#define DCP_SAYS                                                                                           \
    SAYS(" of state_dict_metadata is not a name"), SAYS(" has no size, or one of more than 8 dimensions"), \
        SAYS("an entry of storage_data lacks its name, file, offset or length"), SAYS(" has no offset in ")
#define MISSING_SAYS                                                                                                      \
    SAYS("not the metadata of a distributed checkpoint: state_dict_metadata is missing"),                                 \
        SAYS("not the metadata of a distributed checkpoint: storage_data is missing"), SAYS("outside of the checkpoint"), \
        SAYS(", and state_dict_metadata does not"), SAYS(" lies there, says ")
#define DEEPSPEED_SAYS                                                                                       \
    SAYS("no zero_stage and partition_count; it is not a ZeRO checkpoint"), SAYS("there are stages 1 to 3"), \
        SAYS("no list "), SAYS("an entry of param_shapes is not a name with a shape"),                       \
        SAYS("the ranks' flat tensors end "), SAYS("no param_shapes; DeepSpeed before 0.3.17")

SWEEP(dcp, "dcp", "dcp", 7, 1, DCP_SAYS)
SWEEP(megatron_buckets, "megatron/dp_reshardable", "megatron", 61, 7, DCP_SAYS, MISSING_SAYS,
      SAYS(" lacks one of param, exp_avg and exp_avg_sq"), SAYS("and its parameters in them in no order that we know"))
SWEEP(megatron_whole, "megatron/fully_reshardable", "megatron", 1009, 1, SAYS("of the pickle: "))
SWEEP(deepspeed_1, "deepspeed/zero1", "deepspeed", 1, 5, DEEPSPEED_SAYS)
SWEEP(deepspeed_3, "deepspeed/zero3", "deepspeed", 1, 5, DEEPSPEED_SAYS)
SWEEP(universal, "deepspeed/universal3", "universal", 1, 5, SAYS("of the pickle: "))
SWEEP(torch, "plain.pt", "torch", 1, 1,
      SAYS("is not a dictionary of tensors; perdure reads torch.save(model.state_dict(), "))
