#include "trainer/sample/inference.h"

#include "ckpt/base/cpu.h"
#include "resharder/load/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IO_BYTES (16ull << 20)

/* One checkpoint is given as <root>/<name>: *ret_name then points into `root`. */
static void split_path(struct pd_inference *s, const char *path, char *root, const char **ret_name)
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

static pd_status find_entry(struct pd_inference *s, const char *path, const char *name, struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_store_count(s->store); i++) {
        s->entry = pd_store_entry_at(s->store, i);
        if (!name || !strcmp(s->entry->name, name)) return PD_OK;
    }
    PD_FAIL(err, PD_CORRUPT, "%s: no valid checkpoint; look with: perdure ckpt verify %s", path, path);
}

pd_status pd_inference_open(const char *checkpoints, struct pd_inference *s, struct pd_error *err)
{
    char root[4096];
    const char *name;
    const struct pd_store_options options = {.writable = false, .keep_last = 1};
    *s = (struct pd_inference){.length = 0};
    pd_group_init_single(&s->group);
    PD_TRY(pd_vfs_new_auto(&s->vfs, err));
    split_path(s, checkpoints, root, &name);
    PD_TRY(pd_store_open(s->vfs, root, &options, &s->group, &s->store, err));
    PD_TRY(find_entry(s, checkpoints, name, err));
    PD_TRY(pd_store_read_commit(s->store, s->entry, &s->commit, err));
    PD_TRY(pd_error_context(err, pd_commit_check_is_run(&s->commit, err), "%s", checkpoints));
    return pd_config_parse_saved(s->commit.state.config, NULL, 0, &s->config, err);
}

void pd_inference_compute_in(struct pd_inference *s, enum pd_dtype precision)
{
    if (precision < PD_DTYPE_COUNT) s->config.numerics.precision = precision;
}

void pd_inference_close(struct pd_inference *s)
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
    free(s->weights);
}

/* One rank, tensors in the chunks of training's sums. Tokens stay uncut: a short prompt has no pieces. */
static struct pd_partition partition_of(const struct pd_inference *s)
{
    struct pd_partition p = pd_partition_whole();
    p.virtual_tp = s->config.numerics.virtual_tp;
    return p;
}

/* The recipe: run dry, then for real. */
static pd_status inference_take(struct pd_inference *s, struct pd_arena *arena, unsigned threads, struct pd_error *err)
{
    const enum pd_dtype precision = s->config.numerics.precision;
    struct pd_transformer_options options = pd_config_transformer(&s->config);
    options.sequences = 1;
    options.length = s->length;
    options.partition = partition_of(s);
    const uint64_t parameters = s->model->parameter_count;
    s->master = pd_arena_take(arena, PD_MEMORY_PARAMETERS, parameters * sizeof(float));
    s->compute = (char *)s->master;
    if (precision != PD_F32) s->compute = pd_arena_take(arena, PD_MEMORY_PARAMETERS, parameters * pd_dtype_bytes(precision));
    s->io_buffers = pd_arena_take(arena, PD_MEMORY_BUFFERS, IO_BYTES);
    PD_TRY(pd_math_cpu_new(s->pool, threads, PD_ISA_AUTO, arena, &s->math, err));
    return pd_transformer_new(s->model, s->math, &options, arena, &s->transformer, err);
}

static pd_status inference_build(struct pd_inference *s, unsigned threads, struct pd_error *err)
{
    struct pd_memory_plan plan;
    PD_TRY(pd_config_model(&s->config, &s->model, err));
    PD_TRY(pd_thread_pool_new(threads, &s->pool, err));
    PD_TRY(pd_arena_new_dry(&s->arena, err));
    PD_TRY(inference_take(s, s->arena, threads, err));
    pd_arena_usage(s->arena, &plan);
    pd_transformer_free(s->transformer);
    s->transformer = NULL;
    pd_arena_free(s->arena);
    s->arena = NULL;
    PD_TRY(pd_arena_new(&plan, &s->arena, err));
    PD_TRY(inference_take(s, s->arena, threads, err));
    s->offset = calloc(s->model->tensors.count, sizeof *s->offset);
    s->weights = calloc(s->model->tensors.count + 1ull, sizeof *s->weights);
    if (!s->offset || !s->weights)
        PD_FAIL(err, PD_NO_MEMORY, "no memory for a model of %u tensors", s->model->tensors.count);
    for (uint32_t t = 1; t < s->model->tensors.count; t++)
        s->offset[t] = s->offset[t - 1] + pd_tensor_elements(&s->model->tensors.tensors[t - 1]);
    for (uint32_t t = 0; t < s->model->tensors.count; t++)
        s->weights[t] = s->compute + s->offset[t] * pd_dtype_bytes(s->config.numerics.precision);
    s->weights[s->model->tensors.count] = s->compute;
    return PD_OK;
}

/* A tensor split on dimension 1 has one dense box per chunk, stored consecutively. */
static void *destination(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    struct pd_inference *s = context;
    const struct pd_partition p = partition_of(s);
    struct pd_box boxes[256];
    uint32_t count = pd_partition_needed(s->model, &p, tensor, boxes, 256);
    float *place = s->master + s->offset[tensor];
    PD_CHECK(kind == PD_PARAM && box < count);
    for (uint32_t i = 0; i < box; i++)
        place += pd_box_elements(&boxes[i]);
    return place;
}

pd_status pd_inference_begin(struct pd_inference *s, uint32_t length, uint32_t threads, struct pd_error *err)
{
    s->length = length;
    PD_TRY(inference_build(s, threads ? threads : pd_cpu_cores(), err));
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

pd_status pd_inference_blocks(struct pd_inference *s, struct pd_error *err)
{
    PD_TRY(pd_transformer_embed(s->transformer, 0, pd_inference_weights(s, 0), err));
    for (uint32_t block = 0; block < s->model->config.layers; block++)
        PD_TRY(pd_transformer_block_forward(s->transformer, 0, block, pd_inference_weights(s, block + 1), NULL, err));
    return PD_OK;
}

void *const *pd_inference_weights(const struct pd_inference *s, uint32_t unit)
{
    return s->weights + s->model->unit_first[unit];
}
