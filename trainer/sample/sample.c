#include "trainer/sample/sample.h"

#include "ckpt/base/cpu.h"
#include "ckpt/base/log.h"
#include "ckpt/store/store.h"
#include "resharder/load/load.h"
#include "trainer/model/init.h"
#include "trainer/model/transformer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IO_BYTES (16ull << 20)

struct sampler {
    const struct pd_sample_options *options;
    struct pd_vfs *vfs;
    struct pd_store *store;
    const struct pd_store_entry *entry; /* the store's */
    struct pd_group group;
    struct pd_commit commit;
    struct pd_config config;
    struct pd_model *model;
    struct pd_thread_pool *pool;
    struct pd_arena *arena;
    struct pd_math *math;
    struct pd_transformer *transformer;
    float *master;    /* all parameters, fp32, table order */
    char *compute;    /* the same as activations see them; == master in fp32 */
    uint64_t *offset; /* (tensors) elements */
    void *io_buffers;
    float *logits;   /* (V) */
    int32_t *window; /* (length) tokens in view */
    uint32_t length, filled;
};

/* One checkpoint is named as <root>/<name>: *ret_name is then inside `root`. */
static void split_path(struct sampler *s, const char *path, char *root, const char **ret_name)
{
    char commit[4200];
    struct pd_stat st;
    snprintf(root, 4096, "%s", path);
    *ret_name = NULL;
    for (size_t length = strlen(root); length > 1 && root[length - 1] == '/'; length--)
        root[length - 1] = '\0';
    snprintf(commit, sizeof commit, "%s/commit.h5", root);
    char *slash = strrchr(root, '/');
    if (!slash || slash == root || pd_vfs_stat(s->vfs, commit, &st, NULL)) return;
    *slash = '\0';
    *ret_name = slash + 1;
}

static pd_status find_entry(struct sampler *s, const char *path, const char *name, struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_store_count(s->store); i++) {
        s->entry = pd_store_entry_at(s->store, i);
        if (!name || !strcmp(s->entry->name, name)) return PD_OK;
    }
    PD_FAIL(err, PD_CORRUPT, "%s: no valid checkpoint; look with: perdure ckpt verify %s", path, path);
}

static pd_status open_newest(struct sampler *s, const char *checkpoints, struct pd_error *err)
{
    char root[4096];
    const char *name;
    const struct pd_store_options options = {.writable = false, .keep_last = 1};
    pd_group_init_single(&s->group);
    PD_TRY(pd_vfs_new_auto(&s->vfs, err));
    split_path(s, checkpoints, root, &name);
    PD_TRY(pd_store_open(s->vfs, root, &options, &s->group, &s->store, err));
    PD_TRY(find_entry(s, checkpoints, name, err));
    PD_TRY(pd_store_read_commit(s->store, s->entry, &s->commit, err));
    return pd_config_parse_saved(s->commit.state.config, NULL, 0, &s->config, err);
}

static void release(struct sampler *s)
{
    pd_transformer_free(s->transformer);
    pd_math_free(s->math);
    pd_arena_free(s->arena);
    pd_thread_pool_free(s->pool);
    pd_model_free(s->model);
    pd_config_deinit(&s->config);
    pd_commit_deinit(&s->commit);
    pd_store_close(s->store);
    pd_vfs_free(s->vfs);
    free(s->offset);
}

pd_status pd_sample_config(const char *checkpoints, struct pd_config *ret_config, uint64_t *ret_tokenizer_digest,
                           struct pd_error *err)
{
    struct sampler s = {0};
    pd_status st = open_newest(&s, checkpoints, err);
    if (!st) {
        *ret_config = s.config;
        *ret_tokenizer_digest = s.commit.state.tokenizer_digest;
        s.config = (struct pd_config){0};
    }
    release(&s);
    return st;
}

/* One rank, tensors in the chunks that training sums by. Tokens stay whole: a short prompt has no pieces. */
static struct pd_partition partition_of(const struct sampler *s)
{
    struct pd_partition p = pd_partition_whole();
    p.virtual_tp = s->config.numerics.virtual_tp;
    return p;
}

/* The recipe: run dry, then for real. */
static pd_status take(struct sampler *s, struct pd_arena *arena, unsigned threads, struct pd_error *err)
{
    const enum pd_dtype precision = s->config.numerics.precision;
    const struct pd_transformer_options options = {.sequences = 1,
                                                   .length = s->length,
                                                   .dtype = precision,
                                                   .fp8_linears = s->config.numerics.linears == PD_LINEARS_FP8,
                                                   .partition = partition_of(s)};
    const uint64_t parameters = s->model->parameter_count;
    s->master = pd_arena_take(arena, PD_MEMORY_PARAMETERS, parameters * sizeof(float));
    s->compute = (char *)s->master;
    if (precision != PD_F32) s->compute = pd_arena_take(arena, PD_MEMORY_PARAMETERS, parameters * pd_dtype_bytes(precision));
    s->io_buffers = pd_arena_take(arena, PD_MEMORY_BUFFERS, IO_BYTES);
    s->logits = pd_arena_take(arena, PD_MEMORY_BUFFERS, s->config.model.vocab * sizeof(float));
    s->window = pd_arena_take(arena, PD_MEMORY_BUFFERS, s->length * sizeof(int32_t));
    PD_TRY(pd_math_cpu_new(s->pool, threads, s->config.numerics.mode, PD_ISA_AUTO, arena, &s->math, err));
    return pd_transformer_new(s->model, s->math, &options, arena, &s->transformer, err);
}

static pd_status build(struct sampler *s, struct pd_error *err)
{
    struct pd_memory_plan plan;
    const unsigned threads = s->options->threads ? s->options->threads : pd_cpu_cores();
    uint64_t wanted = (uint64_t)s->options->prompt_count + s->options->count;
    s->length = wanted < s->config.model.context ? (uint32_t)wanted : s->config.model.context;
    PD_TRY(pd_model_new(&s->config.model, &s->model, err));
    PD_TRY(pd_thread_pool_new(threads, &s->pool, err));
    PD_TRY(pd_arena_new_dry(&s->arena, err));
    PD_TRY(take(s, s->arena, threads, err));
    pd_arena_usage(s->arena, &plan);
    pd_transformer_free(s->transformer);
    s->transformer = NULL;
    pd_arena_free(s->arena);
    s->arena = NULL;
    PD_TRY(pd_arena_new(&plan, &s->arena, err));
    PD_TRY(take(s, s->arena, threads, err));
    s->offset = calloc(s->model->tensors.count, sizeof *s->offset);
    if (!s->offset) PD_FAIL(err, PD_NO_MEMORY, "sample: no memory");
    for (uint32_t t = 1; t < s->model->tensors.count; t++)
        s->offset[t] = s->offset[t - 1] + pd_tensor_elements(&s->model->tensors.tensors[t - 1]);
    return PD_OK;
}

/* A tensor that is split on dimension 1 has one box a chunk, dense, one behind the other. */
static void *destination(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    struct sampler *s = context;
    const struct pd_partition p = partition_of(s);
    struct pd_box boxes[256];
    uint32_t count = pd_partition_needed(s->model, &p, tensor, boxes, 256);
    float *place = s->master + s->offset[tensor];
    PD_CHECK(kind == PD_PARAM && box < count);
    for (uint32_t i = 0; i < box; i++)
        place += pd_box_elements(&boxes[i]);
    return place;
}

static pd_status load(struct sampler *s, struct pd_error *err)
{
    char path[4096];
    struct pd_layout whole;
    pd_layout_init_dp(&whole, 1);
    whole.virtual_tp = s->config.numerics.virtual_tp;
    pd_store_entry_path(s->store, s->entry, path);
    const struct pd_load_request request = {.directory = path,
                                            .commit = &s->commit,
                                            .tensors = &s->model->tensors,
                                            .wanted = &whole,
                                            .kinds = 1u << PD_PARAM,
                                            .buffers = s->io_buffers,
                                            .buffer_bytes = IO_BYTES,
                                            .pool = s->pool,
                                            .destination = destination,
                                            .context = s};
    PD_TRY(pd_load(s->vfs, &s->group, &request, NULL, err));
    if (s->config.numerics.precision == PD_F32) return PD_OK;
    return pd_cast(s->math, s->model->parameter_count, s->config.numerics.precision, s->compute, PD_F32, s->master, err);
}

static void unit_weights(const struct sampler *s, uint32_t unit, void **weights)
{
    uint32_t count = 0;
    const uint64_t bytes = pd_dtype_bytes(s->config.numerics.precision);
    for (uint32_t t = s->model->unit_first[unit]; t < s->model->unit_first[unit + 1]; t++)
        weights[count++] = s->compute + s->offset[t] * bytes;
    if (unit + 1 == s->model->unit_count && s->model->config.tie_embeddings) weights[count] = s->compute;
}

/* Logits after the last token in view. */
static pd_status forward(struct sampler *s, struct pd_error *err)
{
    void *weights[32];
    struct pd_micro_batch_input *in = pd_transformer_input(s->transformer, 0);
    for (uint32_t t = 0; t < s->length; t++) {
        in->tokens[t] = t < s->filled ? s->window[t] : 0; /* causal: what follows the last token is not seen */
        in->targets[t] = -1;
        in->positions[t] = (int32_t)t;
        in->first[t] = 0;
    }
    unit_weights(s, 0, weights);
    PD_TRY(pd_transformer_embed(s->transformer, 0, weights, err));
    for (uint32_t block = 0; block < s->model->config.layers; block++) {
        unit_weights(s, block + 1, weights);
        PD_TRY(pd_transformer_block_forward(s->transformer, 0, block, weights, NULL, err));
    }
    unit_weights(s, s->model->config.layers + 1, weights);
    return pd_transformer_row_logits(s->transformer, weights, s->filled - 1, s->logits, err);
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The k-th largest logit: smaller ones are not drawn. */
static float cutoff(struct sampler *s, const float *logits)
{
    const uint32_t vocab = s->config.model.vocab;
    if (!s->options->top_k || s->options->top_k >= vocab) return -INFINITY;
    float *sorted = malloc(vocab * sizeof *sorted);
    if (!sorted) return -INFINITY;
    memcpy(sorted, logits, vocab * sizeof *sorted);
    qsort(sorted, vocab, sizeof *sorted, descending);
    float least = sorted[s->options->top_k - 1];
    free(sorted);
    return least;
}

static int32_t draw(struct sampler *s, uint64_t index)
{
    const uint32_t vocab = s->config.model.vocab;
    uint32_t words[4], likeliest = 0, last = 0;
    for (uint32_t v = 1; v < vocab; v++)
        if (s->logits[v] > s->logits[likeliest]) likeliest = v;
    if (s->options->temperature <= 0) return (int32_t)likeliest;
    const float least = cutoff(s, s->logits), top = s->logits[likeliest];
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0x73616d70u, 0};
    pd_philox4x32(counter, s->options->seed, words);
    double sum = 0, running = 0;
    for (uint32_t v = 0; v < vocab; v++)
        if (s->logits[v] >= least) sum += exp((double)(s->logits[v] - top) / s->options->temperature);
    double target = sum * ((double)words[0] + 0.5) / 4294967296.0;
    for (uint32_t v = 0; v < vocab; v++) {
        if (s->logits[v] < least) continue;
        last = v;
        running += exp((double)(s->logits[v] - top) / s->options->temperature);
        if (running >= target) break;
    }
    return (int32_t)last;
}

/* The newest token enters the view; when it is full the older half of it leaves. */
static void push(struct sampler *s, int32_t token)
{
    if (s->filled == s->length) {
        uint32_t kept = s->length / 2;
        memmove(s->window, s->window + s->length - kept, kept * sizeof *s->window);
        s->filled = kept;
    }
    s->window[s->filled++] = token;
}

/* What the model will not have seen is said before the first token. */
static void log_forgotten(const struct sampler *s)
{
    const uint32_t prompt = s->options->prompt_count;
    if (prompt > s->length)
        pd_log_warn("sample", "the prompt has %u tokens and the model's context %u: only its last %u are seen", prompt,
                    s->length, s->filled);
    else if ((uint64_t)prompt + s->options->count > (uint64_t)s->length + 1)
        pd_log_warn("sample",
                    "the model's context is %u tokens: each time it is full, the older half is dropped, the prompt first; "
                    "--count=%u is the most that drops nothing",
                    s->length, s->length + 1 - prompt);
}

static pd_status generate(struct sampler *s, struct pd_error *err)
{
    for (uint32_t i = 0; i < s->options->prompt_count; i++)
        push(s, s->options->prompt[i]);
    log_forgotten(s);
    for (uint32_t i = 0; i < s->options->count; i++) {
        PD_TRY(forward(s, err));
        int32_t token = draw(s, i);
        if (!s->options->emit(s->options->context, token)) return PD_OK;
        push(s, token);
    }
    return PD_OK;
}

static pd_status check_prompt(const struct sampler *s, struct pd_error *err)
{
    if (!s->options->prompt_count) PD_FAIL(err, PD_INVALID, "the prompt is empty: give at least one token with --prompt");
    for (uint32_t i = 0; i < s->options->prompt_count; i++)
        if (s->options->prompt[i] < 0 || (uint32_t)s->options->prompt[i] >= s->config.model.vocab)
            PD_FAIL(err, PD_INVALID, "token %d of the prompt is not in the model's vocabulary of %u", s->options->prompt[i],
                    s->config.model.vocab);
    return PD_OK;
}

pd_status pd_sample_run(const struct pd_sample_options *options, struct pd_error *err)
{
    struct sampler s = {.options = options};
    pd_numerics_thread_init();
    pd_status st = open_newest(&s, options->checkpoints, err);
    if (!st) st = check_prompt(&s, err);
    if (!st) st = build(&s, err);
    if (!st) st = load(&s, err);
    if (!st && options->loaded) options->loaded(options->context, &s.config, s.commit.state.identity.step);
    if (!st) st = generate(&s, err);
    release(&s);
    return st;
}
