/* Our side of transformers_agree.py. A directory of weights is config.json, weights.txt (a line a tensor: name, offset in
 * elements, dimensions, shape) and weights.bin (fp32), with names and arrangements of transformers.
 *
 *   families init CONFIG SEED DIR        initial values of the model that CONFIG says, into DIR, with our config.json and the
 *                                        keys of a run's model section in model.yaml
 *   families logits DIR OUT TOKEN...     logits of each token, (tokens, vocab) fp32 */
#include "trainer/math/math_cpu.h"
#include "trainer/model/hugging_face.h"
#include "trainer/model/links.h"
#include "trainer/model/transformer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(call) must((call), #call)

static struct pd_error err;

static void must(pd_status status, const char *what)
{
    if (status == PD_OK) return;
    fprintf(stderr, "families: %s: %s\n", what, err.message);
    exit(1);
}

static FILE *open_in(const char *directory, const char *name, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s%s", directory, *name ? "/" : "", name);
    FILE *file = fopen(path, mode);
    if (!file) perror(path), exit(1);
    return file;
}

static void write_text(const char *directory, const char *name, const char *text)
{
    FILE *file = open_in(directory, name, "w");
    fputs(text, file);
    fclose(file);
}

static struct pd_model *read_model(const char *path)
{
    static char text[65536];
    struct pd_model_config config;
    struct pd_model *model;
    FILE *file = open_in(path, "", "r");
    const size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    MUST(pd_hugging_face_read(path, text, bytes, &config, NULL, &err));
    MUST(pd_model_new(&config, &model, &err));
    return model;
}

/* ---- init ---- */

static void write_keys(const struct pd_model_config *c, const char *directory)
{
    static const char *const scaling[] = {"none", "llama3", "linear"};
    FILE *f = open_in(directory, "model.yaml", "w");
    fprintf(f, "model: {family: %s, vocab: %u, context: %u, layers: %u, hidden: %u, heads: %u, kv_heads: %u, ",
            pd_family_names[c->family], c->vocab, c->context, c->layers, c->hidden, c->heads, c->kv_heads);
    fprintf(f, "head_size: %u, ffn: %u, qkv_bias: %s, tie_embeddings: %s, norm_epsilon: %.9g, rope_theta: %.9g, ",
            c->head_size, c->ffn, c->qkv_bias ? "true" : "false", c->tie_embeddings ? "true" : "false",
            (double)c->norm_epsilon, (double)c->rope_theta);
    fprintf(f, "rope_scaling: %s, rope_factor: %.9g, rope_low_frequency_factor: %.9g, rope_high_frequency_factor: %.9g, ",
            scaling[c->rope_scaling], (double)c->rope_factor, (double)c->rope_low_frequency_factor,
            (double)c->rope_high_frequency_factor);
    if (c->experts) {
        fprintf(f, "qk_norm: %s, rotated: %u, experts: %u, experts_per_token: %u, expert_ffn: %u, shared_experts: %u, ",
                c->qk_norm ? "true" : "false", c->rotated, c->experts, c->experts_per_token, c->expert_ffn,
                c->shared_experts);
        fprintf(f, "dense_blocks: %u, router_groups: %u, router_groups_kept: %u, renormalise: %s, routed_scale: %.9g, ",
                c->dense_blocks, c->router_groups, c->router_groups_kept, c->renormalise ? "true" : "false",
                (double)c->routed_scale);
        fprintf(f, "balance_loss: %.9g, ", (double)c->balance_loss);
    }
    fprintf(f, "rope_original_context: %u, init_std: %.9g}\n", c->rope_original_context, (double)c->init_std);
    fclose(f);
}

/* Tensors lie one behind the other in the order of the catalog. */
static uint64_t *places_of(const struct pd_catalog *c, uint64_t *ret_elements)
{
    uint64_t *places = calloc(c->tensor_count + 1, sizeof *places);
    for (uint32_t i = 0; i < c->tensor_count; i++)
        places[i + 1] = places[i] + pd_foreign_elements(&c->tensors[i]);
    *ret_elements = places[c->tensor_count];
    return places;
}

static void add_pieces(struct pd_catalog *c)
{
    uint32_t file;
    uint64_t elements, *places = places_of(c, &elements);
    MUST(pd_catalog_add_file(c, "weights.bin", elements * sizeof(float), &file, &err));
    for (uint32_t i = 0; i < c->tensor_count; i++) {
        struct pd_piece piece = {.file = file, .offset = places[i] * sizeof(float)};
        for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++)
            piece.count[d] = c->tensors[i].shape[d];
        MUST(pd_catalog_add_piece(c, i, &piece, &err));
    }
    free(places);
    MUST(pd_catalog_finish(c, &err));
}

/* Between a tensor of the model, dense, and its elements in the foreign one. */
static void move(const struct pd_view *view, float *ours, float *theirs, bool to_theirs)
{
    for (uint64_t i = 0, run = 0; i < pd_view_elements(view); i += run) {
        run = pd_view_elements(view) - i;
        const uint64_t at = pd_view_run(view, i, &run);
        memcpy(to_theirs ? theirs + at : ours + i, to_theirs ? ours + i : theirs + at, run * sizeof(float));
    }
}

static void write_weights(const struct pd_model *model, uint64_t seed, const char *directory)
{
    struct pd_catalog c;
    struct pd_links links;
    uint64_t elements;
    pd_catalog_init(&c, "families");
    MUST(pd_model_foreign(model, "hugging_face", PD_ELEMENT_F32, PD_EXPERTS_USUAL, false, &c, &err));
    add_pieces(&c);
    MUST(pd_model_links(model, "hugging_face", &c, false, &links, &err));
    uint64_t *places = places_of(&c, &elements);
    float *theirs = calloc(elements, sizeof *theirs), *ours = calloc(elements, sizeof *ours);
    for (uint32_t i = 0; i < links.count; i++) {
        const struct pd_link *link = &links.items[i];
        const struct pd_box whole = pd_box_whole(&model->tensors.tensors[link->tensor]);
        pd_model_init_box(model, link->tensor, &whole, seed, ours);
        move(&link->view, ours, theirs + places[pd_catalog_find(&c, link->name, PD_PARAM)], true);
    }
    FILE *data = open_in(directory, "weights.bin", "w"), *list = open_in(directory, "weights.txt", "w");
    fwrite(theirs, sizeof *theirs, elements, data);
    for (uint32_t i = 0; i < c.tensor_count; i++) {
        fprintf(list, "%s %" PRIu64 " %u", c.tensors[i].name, places[i], c.tensors[i].ndim);
        for (uint32_t d = 0; d < c.tensors[i].ndim; d++)
            fprintf(list, " %" PRIu64, c.tensors[i].shape[d]);
        fprintf(list, "\n");
    }
    fclose(data), fclose(list);
    free(theirs), free(ours), free(places);
    pd_links_deinit(&links);
    pd_catalog_deinit(&c);
}

static void run_init(const char *config, const char *seed, const char *directory)
{
    struct pd_model *model = read_model(config);
    char *text, *generation;
    MUST(pd_hugging_face_write(&model->config, PD_F32, NULL, &text, &generation, &err));
    write_text(directory, "config.json", text);
    write_text(directory, "generation_config.json", generation);
    write_keys(&model->config, directory);
    write_weights(model, strtoull(seed, NULL, 10), directory);
    free(text), free(generation);
    pd_model_free(model);
}

/* ---- logits ---- */

static void read_list(const char *directory, struct pd_catalog *c)
{
    char name[512];
    struct pd_foreign_tensor t = {.name = name, .element = PD_ELEMENT_F32};
    FILE *list = open_in(directory, "weights.txt", "r");
    while (fscanf(list, "%511s %*u %u", name, &t.ndim) == 2) {
        for (uint32_t d = 0; d < PD_FOREIGN_DIMS_MAX; d++) {
            t.shape[d] = 1;
            if (d < t.ndim && fscanf(list, "%" SCNu64, &t.shape[d]) != 1) exit(1);
        }
        MUST(pd_catalog_add_tensor(c, &t, NULL, &err));
    }
    fclose(list);
    add_pieces(c);
}

/* (tensors) dense, one behind the other: q, k and v are one matrix, and gate and up. */
static void **read_weights(const struct pd_model *model, const char *directory)
{
    struct pd_catalog c;
    struct pd_links links;
    uint64_t elements;
    pd_catalog_init(&c, "families");
    read_list(directory, &c);
    MUST(pd_model_links(model, NULL, &c, false, &links, &err));
    uint64_t *places = places_of(&c, &elements);
    float *theirs = calloc(elements, sizeof *theirs);
    FILE *data = open_in(directory, "weights.bin", "r");
    if (fread(theirs, sizeof *theirs, elements, data) != elements) exit(1);
    fclose(data);
    float *ours = calloc(model->parameter_count, sizeof *ours);
    void **weights = calloc(model->tensors.count, sizeof *weights);
    for (uint32_t i = 0; i < model->tensors.count; i++) {
        weights[i] = ours;
        ours += pd_tensor_elements(&model->tensors.tensors[i]);
    }
    for (uint32_t i = 0; i < links.count; i++) {
        const struct pd_link *link = &links.items[i];
        move(&link->view, weights[link->tensor], theirs + places[pd_catalog_find(&c, link->name, PD_PARAM)], false);
    }
    bool *beyond = calloc(c.tensor_count, sizeof *beyond);
    pd_model_links_beyond(model, &links, &c, beyond);
    for (uint32_t i = 0; i < c.tensor_count; i++)
        if (beyond[i]) fprintf(stderr, "families: nothing takes %s\n", c.tensors[i].name), exit(1);
    free(theirs), free(places), free(beyond);
    pd_links_deinit(&links);
    pd_catalog_deinit(&c);
    return weights;
}

static struct pd_transformer *transformer_of(const struct pd_model *model, uint32_t length, struct pd_thread_pool *pool,
                                             struct pd_math **ret_math)
{
    const struct pd_transformer_options options = {
        .sequences = 1, .length = length, .dtype = PD_F32, .partition = pd_partition_whole()};
    struct pd_arena *arena;
    struct pd_memory_plan plan;
    struct pd_transformer *t;
    MUST(pd_arena_new_dry(&arena, &err));
    for (int pass = 0; pass < 2; pass++) {
        MUST(pd_math_cpu_new(pool, 1, PD_ISA_AUTO, arena, ret_math, &err));
        MUST(pd_transformer_new(model, *ret_math, &options, arena, &t, &err));
        if (pass) break;
        pd_arena_usage(arena, &plan);
        pd_transformer_free(t);
        pd_arena_free(arena);
        MUST(pd_arena_new(&plan, &arena, &err));
    }
    return t;
}

static void run_logits(const char *directory, const char *out, uint32_t length, char **tokens)
{
    char path[4096];
    struct pd_thread_pool *pool;
    struct pd_math *math;
    snprintf(path, sizeof path, "%s/config.json", directory);
    struct pd_model *model = read_model(path);
    void **weights = read_weights(model, directory);
    const uint32_t layers = model->config.layers;
    MUST(pd_thread_pool_new(1, &pool, &err));
    struct pd_transformer *t = transformer_of(model, length, pool, &math);
    struct pd_micro_batch_input *in = pd_transformer_input(t, 0);
    for (uint32_t i = 0; i < length; i++) {
        in->tokens[i] = (int32_t)strtol(tokens[i], NULL, 10);
        in->targets[i] = -1;
        in->positions[i] = (int32_t)i;
        in->first[i] = 0;
    }
    MUST(pd_transformer_embed(t, 0, weights, &err));
    for (uint32_t b = 0; b < layers; b++)
        MUST(pd_transformer_block_forward(t, 0, b, weights + model->unit_first[b + 1], NULL, &err));
    const uint32_t head = model->unit_first[layers + 1];
    void *last[3] = {weights[head], head + 1 < model->tensors.count ? weights[head + 1] : weights[0], weights[0]};
    float *logits = calloc(model->config.vocab, sizeof *logits);
    FILE *file = open_in(out, "", "w");
    for (uint32_t i = 0; i < length; i++) {
        MUST(pd_transformer_row_logits(t, last, i, logits, &err));
        fwrite(logits, sizeof *logits, model->config.vocab, file);
    }
    fclose(file);
}

int main(int count, char **arguments)
{
    if (count == 5 && strcmp(arguments[1], "init") == 0)
        run_init(arguments[2], arguments[3], arguments[4]);
    else if (count > 4 && strcmp(arguments[1], "logits") == 0)
        run_logits(arguments[2], arguments[3], (uint32_t)count - 4, arguments + 4);
    else
        return fprintf(stderr, "usage: families init CONFIG SEED DIR | logits DIR OUT TOKEN...\n"), 64;
    return 0;
}
