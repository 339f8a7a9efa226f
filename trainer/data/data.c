#include "trainer/data/data.h"

#include "ckpt/base/cpu.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/words.h"
#include "trainer/data/data_cache.h"
#include "trainer/data/order.h"
#include "trainer/data/token_file.h"
#include "trainer/data/token_loss.h"
#include "trainer/data/token_origin.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FINGERPRINT_LANES 7u /* bytes of the second word that stand for files; the 8th is their number */
#define SCAN_THREADS_MAX 8
#define SCAN_PARALLEL_BYTES (64ull << 20) /* below this, starting threads takes longer than reading */

struct member {
    char *given; /* the path that the source has, owned */
    struct pd_token_file file;
    struct pd_token_scan scan;
    double weight;
    uint64_t *document_starts; /* (document_count) token positions, if documents are separate and the format has them */
    uint64_t document_count;
};

/* A run of windows of one file. */
struct range {
    const struct member *member;
    uint64_t first_token, token_count;
    uint64_t window_count;
    uint64_t first_sample, sample_count; /* of the split: a training epoch uses every window, validation some */
};

struct part {
    struct range *ranges; /* (count) */
    uint32_t count;
    uint64_t window_count, sample_count;
};

struct pd_data {
    struct pd_data_cache *cache; /* copies of files in a bucket */
    struct member *members;      /* (member_count) train files, then validation files */
    uint32_t member_count, train_count;
    struct part parts[2];   /* by enum pd_split */
    struct pd_blend *blend; /* NULL: by size */
    uint32_t context;
    bool separate_documents;
    int64_t document_token;
    uint64_t seed;
    uint64_t fingerprint[2];
    struct pd_token_origin origin;        /* the last that was read */
    uint64_t tokenizer_digest;            /* 0: unknown for all files */
    const struct member *tokenizer_known; /* the first file with a known one */
};

/* ---- opening ---- */

static pd_status check_list(const char *list, const struct pd_data_source *sources, uint32_t count, uint32_t *ret_given,
                            struct pd_error *err)
{
    uint32_t given = 0, missing = 0;
    for (uint32_t i = 0; i < count; i++) {
        double weight = sources[i].weight;
        if (!isfinite(weight) || weight < 0)
            PD_FAIL(err, PD_INVALID, "data.%s[%u].weight is %g; a weight is a number above 0", list, i, weight);
        if (weight > 0) given++;
        if (weight == 0) missing = i;
    }
    if (given && given < count)
        PD_FAIL(err, PD_INVALID, "data.%s[%u] (%s) has no weight and others have: give every file one, or none", list,
                missing, sources[missing].path);
    *ret_given = given;
    return PD_OK;
}

static pd_status check_documents(const struct pd_data *data, struct member *member, struct pd_error *err)
{
    if (!data->separate_documents) return PD_OK;
    if (member->file.format == PD_DATA_MEGATRON)
        return pd_token_file_documents(&member->file, &member->document_starts, &member->document_count, err);
    if (data->document_token < 0)
        PD_FAIL(err, PD_INVALID,
                "%s: documents cannot be kept apart, since files of format %s do not mark their ends; set "
                "data.document_token to the token that ends one, or data.separate_documents to false",
                member->file.path, pd_data_format_name(member->file.format));
    return PD_OK;
}

/* Checks that all files with a known tokenizer have the same, with tokens of the model. */
static pd_status check_origin(struct pd_data *data, const struct member *member, uint32_t vocab, struct pd_error *err)
{
    const bool is_text = member->file.format == PD_DATA_TEXT;
    if (!is_text) PD_TRY(pd_token_origin_read(member->file.path, &data->origin, err));
    const uint64_t digest = is_text ? pd_tokenizer_digest_of_bytes() : data->origin.digest;
    if (!digest) return PD_OK;
    if (!is_text && vocab && data->origin.vocab > vocab)
        PD_FAIL(err, PD_INVALID,
                "%s is of a tokenizer with %" PRIu32 " tokens, and the model has %" PRIu32 "; set model.vocab=%" PRIu32,
                member->file.path, data->origin.vocab, vocab, data->origin.vocab);
    if (data->tokenizer_known && data->tokenizer_digest != digest)
        PD_FAIL(err, PD_INVALID,
                "%s and %s are of different tokenizers (digests %016" PRIx64 " and %016" PRIx64
                "): the same number means other text in "
                "them; pack both with one tokenizer",
                data->tokenizer_known->file.path, member->file.path, data->tokenizer_digest, digest);
    if (!data->tokenizer_known) data->tokenizer_known = member;
    data->tokenizer_digest = digest;
    return PD_OK;
}

static pd_status member_open(struct pd_data *data, const struct pd_data_source *source, const char *list, uint32_t index,
                             struct pd_error *err)
{
    const char *path = pd_data_cache_path(data->cache, data->member_count);
    struct member *member = &data->members[data->member_count];
    pd_status status = PD_OK;
    if (!source->path || !*source->path) {
        status = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "no path is given");
    } else {
        status = pd_token_file_open(path, source->format, &member->file, err);
    }
    if (status) return pd_error_context(err, status, "data.%s[%u]", list, index);
    data->member_count++;
    member->weight = source->weight;
    member->given = strdup(source->path);
    if (!member->given) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its name", source->path);
    return pd_error_context(err, check_documents(data, member, err), "data.%s[%u]", list, index);
}

/* The paths of all files, train then validation; the caller frees the list. */
static pd_status list_paths(const struct pd_data_options *options, const char ***ret_paths, struct pd_error *err)
{
    const uint32_t count = options->train_count + options->validation_count;
    const char **paths = malloc((count + 1) * sizeof *paths);
    if (!paths) PD_FAIL(err, PD_NO_MEMORY, "no memory for the list of data files");
    for (uint32_t i = 0; i < count; i++)
        paths[i] = i < options->train_count ? options->train[i].path : options->validation[i - options->train_count].path;
    *ret_paths = paths;
    return PD_OK;
}

static struct pd_data_cache_options cache_options(const struct pd_data_options *options)
{
    return (struct pd_data_cache_options){options->cache_dir, options->cache_bytes, options->should_stop};
}

static pd_status open_members(struct pd_data *data, const struct pd_data_options *options, struct pd_error *err)
{
    const char **paths = NULL;
    const struct pd_data_cache_options cache = cache_options(options);
    PD_TRY(list_paths(options, &paths, err));
    const pd_status status =
        pd_data_cache_open(&cache, paths, options->train_count + options->validation_count, &data->cache, err);
    free(paths);
    PD_TRY(status);
    for (uint32_t i = 0; i < options->train_count; i++)
        PD_TRY(member_open(data, &options->train[i], "train", i, err));
    data->train_count = options->train_count;
    for (uint32_t i = 0; i < options->validation_count; i++)
        PD_TRY(member_open(data, &options->validation[i], "validation", i, err));
    return PD_OK;
}

/* Threads for the pass over all bytes, if worth it; optional, for speed only. */
static struct pd_thread_pool *scan_pool(const struct pd_data *data)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < data->member_count; i++)
        bytes += data->members[i].file.file_bytes;
    struct pd_thread_pool *pool = NULL;
    const uint32_t cores = pd_cpu_cores();
    if (bytes < SCAN_PARALLEL_BYTES) return NULL;
    if (pd_thread_pool_new(cores < SCAN_THREADS_MAX ? cores : SCAN_THREADS_MAX, &pool, NULL)) return NULL;
    return pool;
}

static uint64_t windows_of(uint64_t tokens, uint32_t context)
{
    return tokens ? (tokens - 1) / context : 0;
}

static void part_add(struct part *part, const struct member *member, uint64_t first, uint64_t tokens, uint32_t context)
{
    const uint64_t windows = windows_of(tokens, context);
    part->ranges[part->count++] = (struct range){member, first, tokens, windows, part->window_count, windows};
    part->window_count += windows;
    part->sample_count = part->window_count;
}

static pd_status check_length(const struct pd_data *data, const struct member *member, uint64_t tokens, const char *what,
                              struct pd_error *err)
{
    if (windows_of(tokens, data->context)) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "%s is too short: %s%s, and a sample takes %u (batch.context %u and the token after); use "
            "longer files or a shorter context, or make one file of several with perdure data pack",
            member->file.path, pd_counted(tokens, "token").text, what, data->context + 1, data->context);
}

/* The tail of a train file reserved for validation; none if it would not hold a sample. */
static uint64_t tail_tokens(const struct pd_data *data, const struct pd_data_options *options, uint64_t tokens)
{
    if (options->validation_count) return 0;
    uint64_t tail = (uint64_t)(options->validation_fraction * (double)tokens);
    return windows_of(tail, data->context) ? tail : 0;
}

static pd_status split_members(struct pd_data *data, const struct pd_data_options *options, struct pd_error *err)
{
    struct part *train = &data->parts[PD_SPLIT_TRAIN], *validation = &data->parts[PD_SPLIT_VALIDATION];
    train->ranges = calloc(data->member_count, sizeof *train->ranges);
    validation->ranges = calloc(data->member_count, sizeof *validation->ranges);
    if (!train->ranges || !validation->ranges) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u data files", data->member_count);
    for (uint32_t i = 0; i < data->member_count; i++) {
        const struct member *member = &data->members[i];
        uint64_t tokens = member->file.token_count;
        if (i >= data->train_count) {
            PD_TRY(check_length(data, member, tokens, "", err));
            part_add(validation, member, 0, tokens, data->context);
            continue;
        }
        uint64_t tail = tail_tokens(data, options, tokens);
        PD_TRY(check_length(data, member, tokens - tail, tail ? " without its validation part" : "", err));
        part_add(train, member, 0, tokens - tail, data->context);
        if (tail) part_add(validation, member, tokens - tail, tail, data->context);
    }
    if (options->validation_fraction > 0 && validation->window_count == 0)
        PD_FAIL(err, PD_INVALID,
                "data.validation_fraction %g of no train file holds a sample of %u tokens; raise it, or name "
                "data.validation files",
                options->validation_fraction, data->context + 1);
    return PD_OK;
}

/* ---- validation: which windows ---- */

static double share_weight(const struct range *r)
{
    return r->member->weight > 0 ? r->member->weight : (double)r->window_count;
}

/* Files whose share of `wanted` exceeds their windows give all of them. Returns whether there was one. */
static bool take_small_files(struct part *p, uint64_t *wanted, double *weight)
{
    bool any = false;
    const double rate = *weight > 0 ? (double)*wanted / *weight : 0;
    for (uint32_t i = 0; i < p->count; i++) {
        struct range *r = &p->ranges[i];
        if (r->sample_count || share_weight(r) * rate < (double)r->window_count) continue;
        r->sample_count = r->window_count < *wanted ? r->window_count : *wanted;
        *wanted -= r->sample_count;
        *weight -= share_weight(r);
        any = true;
    }
    return any;
}

/* Rounds the shares of the other files down at their running sum, so that they add up to `wanted`. */
static void take_shares(struct part *p, uint64_t wanted, double weight)
{
    const double rate = weight > 0 ? (double)wanted / weight : 0;
    double sum = 0;
    uint64_t given = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        struct range *r = &p->ranges[i];
        if (r->sample_count) continue;
        sum += share_weight(r) * rate;
        const uint64_t until = sum < (double)wanted ? (uint64_t)(sum + 1e-6) : wanted;
        const uint64_t share = until > given ? until - given : 0;
        r->sample_count = share < r->window_count ? share : r->window_count;
        given += r->sample_count;
    }
    for (uint32_t i = 0; i < p->count && given < wanted; i++) { /* what rounding left */
        struct range *r = &p->ranges[i];
        const uint64_t available = r->window_count - r->sample_count,
                       more = available < wanted - given ? available : wanted - given;
        r->sample_count += more;
        given += more;
    }
}

/* Divides a pass of `wanted` windows, each used once, among files: by weight, or by size without weights. */
static void share_validation(struct part *p, uint64_t wanted)
{
    double weight = 0;
    if (!wanted || wanted >= p->window_count) return; /* all, as they are */
    for (uint32_t i = 0; i < p->count; i++) {
        p->ranges[i].sample_count = 0;
        weight += share_weight(&p->ranges[i]);
    }
    uint64_t left = wanted;
    while (left && take_small_files(p, &left, &weight))
        ;
    take_shares(p, left, weight);
    p->sample_count = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        p->ranges[i].first_sample = p->sample_count;
        p->sample_count += p->ranges[i].sample_count;
    }
}

static pd_status blend_members(struct pd_data *data, struct pd_error *err)
{
    double *weights = calloc(data->train_count, sizeof *weights);
    data->blend = malloc(sizeof *data->blend);
    if (!weights || !data->blend) {
        free(weights);
        PD_FAIL(err, PD_NO_MEMORY, "no memory to blend %u data files", data->train_count);
    }
    for (uint32_t i = 0; i < data->train_count; i++)
        weights[i] = data->members[i].weight;
    pd_blend_init(data->blend, weights, data->train_count);
    free(weights);
    return PD_OK;
}

/* If weights do not affect the training order, 0 and 1 are equal: for a single file, and for validation. */
static double fingerprint_weight(const struct pd_data *data, uint32_t i)
{
    const double weight = data->members[i].weight;
    return weight == 0 && (data->train_count == 1 || i >= data->train_count) ? 1 : weight;
}

static void fingerprint_members(struct pd_data *data)
{
    data->fingerprint[0] = 0;
    data->fingerprint[1] = (uint64_t)(data->member_count & 0xff) << (8 * FINGERPRINT_LANES);
    for (uint32_t i = 0; i < data->member_count; i++) {
        const struct member *member = &data->members[i];
        const double weight = fingerprint_weight(data, i);
        uint64_t weight_bits;
        memcpy(&weight_bits, &weight, sizeof weight_bits);
        const uint64_t words[] = {
            member->scan.digest, member->file.file_bytes, (uint64_t)member->file.format, (uint64_t)member->file.type,
            weight_bits,         i >= data->train_count};
        const bool is_marked = member->file.format == PD_DATA_TEXT && member->file.data_offset;
        uint64_t digest = pd_digest_words(words, sizeof words / sizeof words[0], is_marked);
        data->fingerprint[0] = pd_digest_words(&digest, 1, data->fingerprint[0] + 1);
        data->fingerprint[1] ^= (digest & 0xff) << (8 * (i % FINGERPRINT_LANES));
    }
}

/* Everything except tokens, so that wrong sizes are reported before hours of reading. */
static pd_status data_lay_out(struct pd_data *data, const struct pd_data_options *options, bool *ret_weighted,
                              struct pd_error *err)
{
    if (options->train_count == 0) PD_FAIL(err, PD_INVALID, "data.train names no file");
    if (options->context == 0) PD_FAIL(err, PD_INVALID, "batch.context is 0; a sample needs at least one token");
    if (options->vocab > INT32_MAX) PD_FAIL(err, PD_INVALID, "model.vocab %" PRIu32 " is beyond 31 bits", options->vocab);
    if (!(options->validation_fraction >= 0 && options->validation_fraction < 1))
        PD_FAIL(err, PD_INVALID, "data.validation_fraction is %g; it lies from 0 to below 1", options->validation_fraction);
    if (options->document_token >= 0 && options->vocab && options->document_token >= options->vocab)
        PD_FAIL(err, PD_INVALID, "data.document_token %" PRId64 " is outside the model's vocabulary of %" PRIu32,
                options->document_token, options->vocab);
    uint32_t given = 0;
    PD_TRY(check_list("validation", options->validation, options->validation_count, &given, err));
    PD_TRY(check_list("train", options->train, options->train_count, &given, err));
    if (given && options->train_count > PD_BLEND_SOURCES_MAX)
        PD_FAIL(err, PD_INVALID, "data.train names %u files with weights; %u are possible", options->train_count,
                PD_BLEND_SOURCES_MAX);
    *ret_weighted = given && options->train_count > 1;
    data->members = calloc((size_t)options->train_count + options->validation_count, sizeof *data->members);
    if (!data->members) PD_FAIL(err, PD_NO_MEMORY, "no memory for the list of data files");
    PD_TRY(open_members(data, options, err));
    for (uint32_t i = 0; i < data->member_count; i++)
        PD_TRY(check_origin(data, &data->members[i], options->vocab, err));
    return split_members(data, options, err);
}

static pd_status data_build(struct pd_data *data, const struct pd_data_options *options, struct pd_error *err)
{
    bool weighted = false;
    PD_TRY(data_lay_out(data, options, &weighted, err));
    struct pd_scan_cache *cache = pd_scan_cache_open(options->scan_cache);
    struct pd_thread_pool *pool = scan_pool(data);
    pd_status status = PD_OK;
    for (uint32_t i = 0; !status && i < data->member_count; i++) {
        struct member *member = &data->members[i];
        status = pd_scan_cache_scan(cache, &member->file, options->vocab, pool, &member->scan, err);
    }
    pd_scan_cache_close(cache);
    pd_thread_pool_free(pool);
    PD_TRY(status);
    if (weighted) PD_TRY(blend_members(data, err));
    share_validation(&data->parts[PD_SPLIT_VALIDATION], options->validation_samples);
    fingerprint_members(data);
    return PD_OK;
}

static struct pd_data *data_new(const struct pd_data_options *options)
{
    struct pd_data *data = calloc(1, sizeof *data);
    if (!data) return NULL;
    data->context = options->context;
    data->separate_documents = options->separate_documents;
    data->document_token = options->document_token;
    data->seed = options->seed;
    return data;
}

static bool has_remote(const struct pd_data_options *options)
{
    bool has = false;
    for (uint32_t i = 0; i < options->train_count; i++)
        has |= pd_data_is_remote(options->train[i].path);
    for (uint32_t i = 0; i < options->validation_count; i++)
        has |= pd_data_is_remote(options->validation[i].path);
    return has;
}

pd_status pd_data_check(const struct pd_data_options *options, struct pd_error *err)
{
    bool weighted = false;
    if (has_remote(options)) {
        const char **paths = NULL;
        const struct pd_data_cache_options cache = cache_options(options);
        PD_TRY(list_paths(options, &paths, err));
        const pd_status status = pd_data_cache_check(&cache, paths, options->train_count + options->validation_count, err);
        free(paths);
        return status;
    }
    struct pd_data *data = data_new(options);
    if (!data) PD_FAIL(err, PD_NO_MEMORY, "no memory for the training data");
    const pd_status status = data_lay_out(data, options, &weighted, err);
    pd_data_close(data);
    return status;
}

double pd_data_learned_share(const struct pd_data_options *options)
{
    uint64_t all = 0, learned = 0;
    for (uint32_t i = 0; i < options->train_count; i++) {
        struct pd_token_file file;
        struct pd_digest_stream unused;
        uint64_t here = 0;
        if (pd_data_is_remote(options->train[i].path)) continue;
        if (pd_token_file_open(options->train[i].path, options->train[i].format, &file, NULL)) continue;
        pd_digest_stream_init(&unused, 0);
        if (!pd_token_loss_scan(&file, &unused, &here, NULL)) all += file.token_count, learned += here;
        pd_token_file_close(&file);
    }
    return all ? (double)learned / (double)all : 1;
}

pd_status pd_data_open(const struct pd_data_options *options, struct pd_data **ret_data, struct pd_error *err)
{
    struct pd_data *data = data_new(options);
    if (!data) PD_FAIL(err, PD_NO_MEMORY, "no memory for the training data");
    pd_status status = data_build(data, options, err);
    if (status) {
        pd_data_close(data);
        return status;
    }
    *ret_data = data;
    return PD_OK;
}

void pd_data_close(struct pd_data *data)
{
    if (!data) return;
    for (uint32_t i = 0; i < data->member_count; i++) {
        pd_token_file_close(&data->members[i].file);
        free(data->members[i].document_starts);
        free(data->members[i].given);
    }
    pd_data_cache_close(data->cache);
    free(data->members);
    free(data->parts[PD_SPLIT_TRAIN].ranges);
    free(data->parts[PD_SPLIT_VALIDATION].ranges);
    free(data->blend);
    free(data);
}

uint64_t pd_data_tokenizer(const struct pd_data *data, const char **ret_path)
{
    const bool has_file = data->tokenizer_known && data->tokenizer_known->file.format != PD_DATA_TEXT;
    *ret_path = has_file ? data->tokenizer_known->file.path : NULL;
    return data->tokenizer_digest;
}

uint64_t pd_data_sample_count(const struct pd_data *data, enum pd_split split)
{
    return data->parts[split].sample_count;
}

/* ---- fingerprint ---- */

void pd_data_fingerprint(const struct pd_data *data, uint64_t ret_fingerprint[2])
{
    memcpy(ret_fingerprint, data->fingerprint, sizeof data->fingerprint);
}

uint32_t pd_data_file_count(const struct pd_data *data)
{
    return data->member_count;
}

const char *pd_data_file(const struct pd_data *data, uint32_t i, struct pd_data_file *ret_file)
{
    const struct member *member = &data->members[i];
    *ret_file = (struct pd_data_file){member->file.file_bytes, member->scan.digest};
    return member->given;
}

/* The name that file i had, or NULL. */
static const char *name_before(const struct pd_data_options *before, uint32_t i)
{
    if (!before) return NULL;
    if (i < before->train_count) return before->train[i].path;
    i -= before->train_count;
    return i < before->validation_count ? before->validation[i].path : NULL;
}

/* The files whose bits differ, "a, b (then c)"; empty when the 8 bits agree by chance. */
static void list_changed(const struct pd_data *data, const struct pd_data_options *before, uint64_t difference, FILE *out)
{
    const char *between = "";
    for (uint32_t i = 0; i < data->member_count; i++) {
        if (!(difference >> (8 * (i % FINGERPRINT_LANES)) & 0xff)) continue;
        const char *then = name_before(before, i), *now = data->members[i].given;
        fprintf(out, "%s%s", between, now);
        if (then && strcmp(then, now) != 0) fprintf(out, " (then %s)", then);
        between = ", ";
    }
}

static bool is_member(const struct pd_data *data, const char *path)
{
    for (uint32_t i = 0; i < data->member_count; i++)
        if (strcmp(data->members[i].given, path) == 0) return true;
    return false;
}

static bool was_member(const struct pd_data_options *before, const char *path)
{
    const char *then;
    for (uint32_t i = 0; (then = name_before(before, i)); i++)
        if (strcmp(then, path) == 0) return true;
    return false;
}

/* ": new a, b; gone c" */
static void list_moved(const struct pd_data *data, const struct pd_data_options *before, FILE *out)
{
    const char *then, *between = "; new: ";
    for (uint32_t i = 0; before && i < data->member_count; i++) {
        if (was_member(before, data->members[i].given)) continue;
        fprintf(out, "%s%s", between, data->members[i].given);
        between = ", ";
    }
    between = "; gone: ";
    for (uint32_t i = 0; (then = name_before(before, i)); i++) {
        if (is_member(data, then)) continue;
        fprintf(out, "%s%s", between, then);
        between = ", ";
    }
}

pd_status pd_data_check_fingerprint(const struct pd_data *data, const uint64_t expected[2],
                                    const struct pd_data_options *before, struct pd_error *err)
{
    static const char advice[] = "put the data back, or continue with what there is now (accept_new_lineage=true)";
    char names[512] = "";
    if (memcmp(expected, data->fingerprint, sizeof data->fingerprint) == 0) return PD_OK;
    const uint64_t then = expected[1] >> (8 * FINGERPRINT_LANES), now = data->fingerprint[1] >> (8 * FINGERPRINT_LANES);
    FILE *out = fmemopen(names, sizeof names, "w");
    if (out && then != now) list_moved(data, before, out);
    if (out && then == now) list_changed(data, before, expected[1] ^ data->fingerprint[1], out);
    if (out) fclose(out);
    if (then != now)
        PD_FAIL(err, PD_INVALID, "the list of data files changed since the checkpoint: %s then, %" PRIu64 " now%s; %s",
                pd_counted(then, "file").text, now, names, advice);
    if (!names[0])
        PD_FAIL(err, PD_INVALID, "a data file (content, format, weight or order) changed since the checkpoint; %s", advice);
    PD_FAIL(err, PD_INVALID, "%s changed since the checkpoint (content, format, weight or order)%s; %s", names,
            data->member_count > FINGERPRINT_LANES ? "; with more than 7 files, some of the named ones may be unchanged"
                                                   : "",
            advice);
}

/* ---- samples ---- */

static const struct range *range_of_sample(const struct part *part, uint64_t sample)
{
    uint32_t low = 0, high = part->count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (part->ranges[middle].first_sample <= sample) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return &part->ranges[low];
}

/* Sample i of the run: *ret_window counts inside the range. */
static const struct range *locate(const struct pd_data *data, enum pd_split split, uint64_t i, uint64_t *ret_window)
{
    const struct part *part = &data->parts[split];
    if (split == PD_SPLIT_TRAIN && data->blend) {
        uint32_t source;
        uint64_t k;
        pd_blend_locate(data->blend, i, &source, &k);
        const struct range *range = &part->ranges[source];
        uint64_t n = range->window_count;
        *ret_window = pd_order_permute(n, data->seed, source + 1ull, k / n, k % n);
        return range;
    }
    const uint64_t n = part->sample_count;
    if (split == PD_SPLIT_TRAIN) {
        const uint64_t window = pd_order_permute(n, data->seed, 0, i / n, i % n);
        const struct range *range = range_of_sample(part, window);
        *ret_window = window - range->first_sample;
        return range;
    }
    /* The k-th of a file's n samples: evenly over its windows, the same ones at every pass and under every seed. */
    const struct range *range = range_of_sample(part, i);
    const uint64_t k = i - range->first_sample;
    *ret_window = (uint64_t)((unsigned __int128)k * range->window_count / range->sample_count);
    return range;
}

/* Index of the first document that begins after token `start` of the file. */
static uint64_t document_after(const struct member *member, uint64_t start)
{
    uint64_t low = 0, high = member->document_count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (member->document_starts[middle] <= start) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* positions, first (T) and the targets (T) that lead from one document into the next. */
static void separate(const struct pd_data *data, const struct member *member, uint64_t start, const int32_t *tokens,
                     int32_t *targets, int32_t *positions, int32_t *first)
{
    uint64_t next = member->document_starts ? document_after(member, start) : 0;
    int32_t document = 0;
    for (uint32_t t = 0; t < data->context; t++) {
        if (positions) positions[t] = (int32_t)t - document;
        if (first) first[t] = document;
        bool ends;
        if (member->document_starts) {
            ends = next < member->document_count && member->document_starts[next] == start + t + 1;
            while (next < member->document_count && member->document_starts[next] <= start + t + 1)
                next++; /* empty ones */
        } else {
            ends = tokens[t] == data->document_token;
        }
        if (!ends) continue;
        targets[t] = -1;
        document = (int32_t)t + 1;
    }
}

pd_status pd_data_sample(const struct pd_data *data, enum pd_split split, uint64_t i, int32_t *tokens, int32_t *targets,
                         int32_t *positions, int32_t *first, struct pd_error *err)
{
    if (data->parts[split].window_count == 0)
        PD_FAIL(err, PD_INVALID, "there is no validation data; name data.validation files or set data.validation_fraction");
    if (split == PD_SPLIT_VALIDATION && i >= data->parts[split].sample_count)
        PD_FAIL(err, PD_INVALID, "validation has %" PRIu64 " samples, and number %" PRIu64 " was asked for",
                data->parts[split].sample_count, i);
    uint32_t context = data->context;
    uint64_t window;
    const struct range *range = locate(data, split, i, &window);
    const struct pd_token_file *file = &range->member->file;
    uint64_t start = range->first_token + window * context;
    PD_TRY(pd_token_file_read(file, start, context, tokens, err));
    PD_TRY(pd_token_file_read(file, start + context, 1, &targets[context - 1], err));
    memcpy(targets, tokens + 1, (context - 1) * sizeof *targets);
    PD_TRY(pd_token_loss_apply(file, start + 1, context, targets, err));
    if (data->separate_documents) {
        separate(data, range->member, start, tokens, targets, positions, first);
        return PD_OK;
    }
    for (uint32_t t = 0; positions && t < context; t++)
        positions[t] = (int32_t)t;
    for (uint32_t t = 0; first && t < context; t++)
        first[t] = 0;
    return PD_OK;
}
