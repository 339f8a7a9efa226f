/* DeepSpeed's checkpoints of models with its MoE layer. torch.save wrote in the directory of a tag:
 *
 *   mp_rank_00_model_states.pt                               module: everything but experts; num_experts, counters
 *   layer_<l>_expert_<e>_mp_rank_00_model_states.pt          expert e of the l-th MoE layer
 *   expp_rank_<r>_mp_rank_00_optim_states.pt                 moments, by the numbers of an optimizer: not read
 *
 * Its modules stand between ours: x.deepspeed_moe.experts.deepspeed_experts.3.w1 is our x.experts.3.w1, and
 * x.deepspeed_moe.gate.wg our x.gate.
 * Source: deepspeed/runtime/engine.py (_save_moe_checkpoint), deepspeed/moe/layer.py. */
#include "resharder/formats/deepspeed.h"

#include "ckpt/base/words.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/formats/torch.h"
#include "resharder/torch/archive.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "mp_rank_00_model_states.pt"
#define EXPERTS ".deepspeed_moe.experts.deepspeed_experts."
#define GATE ".deepspeed_moe.gate.wg."
#define LAYERS_MAX 4096u
#define EXPERTS_MAX 65536u

struct experts {
    struct pd_vfs *vfs;
    const char *directory;
    struct pd_catalog *catalog;
    struct pd_listing listing;
    uint32_t *count;      /* (layer_count) files of experts in each MoE layer */
    uint32_t layer_count; /* 1 + the highest layer of a file */
    struct pd_deepspeed_count step, samples;
};

static void expert_file(uint32_t layer, uint32_t expert, char ret[96])
{
    snprintf(ret, 96, "layer_%u_expert_%u_" MODEL, layer, expert);
}

/* Numbers in the name of an expert's file. */
static bool parse_file(const char *name, uint32_t *ret_layer, uint32_t *ret_expert)
{
    char again[96];
    if (sscanf(name, "layer_%9" SCNu32 "_expert_%9" SCNu32 "_", ret_layer, ret_expert) != 2) return false;
    expert_file(*ret_layer, *ret_expert, again);
    return strcmp(name, again) == 0;
}

bool pd_deepspeed_has_experts(struct pd_vfs *vfs, const char *directory)
{
    struct pd_listing listing;
    uint32_t layer, expert;
    bool has = false;
    if (!pd_formats_has_file(vfs, directory, MODEL) || pd_vfs_list(vfs, directory, &listing, NULL)) return false;
    for (uint32_t i = 0; i < listing.count && !has; i++)
        has = parse_file(listing.names[i], &layer, &expert);
    pd_listing_deinit(&listing);
    return has;
}

/* ---- names ---- */

/* Our name; false: too long. *ret_expert: the number in it, UINT32_MAX: it is not of an expert. */
static bool our_name(const char *name, char ret[PD_FOREIGN_NAME_MAX], uint32_t *ret_expert)
{
    const char *experts = strstr(name, EXPERTS), *gate = strstr(name, GATE);
    const char *at = experts ? experts : gate;
    const size_t bytes = experts ? sizeof EXPERTS - 1 : sizeof GATE - 1;
    *ret_expert = UINT32_MAX;
    if (experts) (void)sscanf(experts + bytes, "%9" SCNu32, ret_expert);
    const int used = at ? snprintf(ret, PD_FOREIGN_NAME_MAX, "%.*s%s%s", (int)(at - name), name,
                                   experts ? ".experts." : ".gate.", at + bytes)
                        : snprintf(ret, PD_FOREIGN_NAME_MAX, "%s", name);
    return used < (int)PD_FOREIGN_NAME_MAX;
}

/* `expert` UINT32_MAX: the file has the rest of the model. */
static pd_status add_tensors(struct experts *x, const struct pd_torch_archive *archive, uint32_t file,
                             const struct pd_pickle_node *dict, uint32_t expert, struct pd_error *err)
{
    for (uint32_t i = 0; i + 1 < dict->count; i += 2) {
        const char *name = pd_pickle_text(dict->items[i]);
        char ours[PD_FOREIGN_NAME_MAX];
        uint32_t number;
        if (!name || dict->items[i + 1]->type != PD_PICKLE_OBJECT) continue; /* a buffer's size, a version */
        if (!our_name(name, ours, &number)) PD_FAIL(err, PD_CORRUPT, "%s: a name of %zu bytes", archive->path, strlen(name));
        if (number != expert && expert != UINT32_MAX)
            PD_FAIL(err, PD_CORRUPT, "%s: it holds %s, which is not of expert %u", archive->path, name, expert);
        PD_TRY(pd_torch_add_tensor(x->catalog, archive, file, ours, dict->items[i + 1], err));
    }
    return PD_OK;
}

/* ---- files ---- */

static pd_status count_files(struct experts *x, struct pd_error *err)
{
    uint32_t layer, expert;
    PD_TRY(pd_vfs_list(x->vfs, x->directory, &x->listing, err));
    x->count = calloc(LAYERS_MAX, sizeof *x->count);
    if (!x->count) PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for its experts", x->directory);
    for (uint32_t i = 0; i < x->listing.count; i++) {
        const char *name = x->listing.names[i];
        if (!parse_file(name, &layer, &expert)) continue;
        if (layer >= LAYERS_MAX || expert >= EXPERTS_MAX)
            PD_FAIL(err, PD_CORRUPT, "%s/%s: at most %u layers of %u experts are read", x->directory, name, LAYERS_MAX,
                    EXPERTS_MAX);
        x->count[layer]++;
        if (layer >= x->layer_count) x->layer_count = layer + 1;
    }
    return PD_OK;
}

/* num_experts is a list with a number for each layer, or with one for all. */
static uint64_t experts_of(const struct pd_pickle_node *root, uint32_t layer, uint64_t absent)
{
    const struct pd_pickle_node *list = pd_pickle_member(root, "num_experts");
    uint64_t number = absent;
    if (pd_pickle_is_u64(list, &number)) return number;
    (void)pd_pickle_is_u64(pd_pickle_at(list, layer) ? pd_pickle_at(list, layer) : pd_pickle_at(list, 0), &number);
    return number;
}

static pd_status read_layer(struct experts *x, uint32_t layer, uint64_t experts, struct pd_error *err)
{
    if (experts < x->count[layer])
        PD_FAIL(err, PD_CORRUPT, "%s: MoE layer %u has %u files of experts, and num_experts is %" PRIu64, x->directory,
                layer, x->count[layer], experts);
    for (uint32_t e = 0; e < experts; e++) {
        struct pd_torch_archive archive = {0};
        char name[96], path[PD_FORMATS_PATH_MAX];
        uint32_t file = 0;
        expert_file(layer, e, name);
        PD_TRY(pd_formats_path(x->directory, name, path, err));
        pd_status st = pd_torch_open_file(x->vfs, path, &archive, err);
        if (st == PD_NOT_FOUND)
            PD_FAIL(err, PD_CORRUPT, "%s is missing: MoE layer %u has %" PRIu64 " experts, and %u files", path, layer,
                    experts, x->count[layer]);
        if (!st) st = pd_catalog_add_file(x->catalog, path, archive.zip.end, &file, err);
        const struct pd_pickle_node *root = st ? NULL : pd_pickle_root(archive.pickle);
        if (!st && root->type != PD_PICKLE_DICT)
            st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s is not a dictionary of tensors", path);
        if (!st) st = add_tensors(x, &archive, file, root, e, err);
        pd_torch_close(&archive);
        PD_TRY(st);
    }
    return PD_OK;
}

static pd_status list_optimizers(struct experts *x, struct pd_error *err)
{
    for (uint32_t i = 0; i < x->listing.count; i++)
        if (pd_ends_with(x->listing.names[i], "_optim_states.pt"))
            PD_TRY(pd_catalog_add_unmapped(x->catalog, x->listing.names[i], err));
    return PD_OK;
}

static pd_status read_open(struct experts *x, const struct pd_torch_archive *archive, struct pd_error *err)
{
    const struct pd_pickle_node *root = pd_pickle_root(archive->pickle), *module = pd_pickle_member(root, "module");
    uint64_t model_ranks = 1;
    uint32_t file = 0;
    if (!module || module->type != PD_PICKLE_DICT)
        PD_FAIL(err, PD_CORRUPT, "%s: no dictionary `module`, which has the model but for its experts", archive->path);
    if (pd_pickle_is_u64(pd_pickle_member(root, "mp_world_size"), &model_ranks) && model_ranks > 1)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: %" PRIu64 " ranks of model parallelism, which perdure does not read",
                archive->path, model_ranks);
    x->step.is_known = pd_pickle_is_u64(pd_pickle_member(root, "global_steps"), &x->step.value);
    x->samples.is_known = pd_pickle_is_u64(pd_pickle_member(root, "global_samples"), &x->samples.value);
    PD_TRY(pd_catalog_add_file(x->catalog, archive->path, archive->zip.end, &file, err));
    PD_TRY(add_tensors(x, archive, file, module, UINT32_MAX, err));
    for (uint32_t l = 0; l < x->layer_count; l++)
        PD_TRY(read_layer(x, l, experts_of(root, l, x->count[l]), err));
    return list_optimizers(x, err);
}

pd_status pd_deepspeed_read_experts(struct pd_vfs *vfs, const char *directory, struct pd_catalog *catalog,
                                    struct pd_deepspeed_count *ret_step, struct pd_deepspeed_count *ret_samples,
                                    struct pd_error *err)
{
    struct experts x = {.vfs = vfs, .directory = directory, .catalog = catalog};
    struct pd_torch_archive archive = {0};
    char path[PD_FORMATS_PATH_MAX];
    pd_status st = count_files(&x, err);
    if (!st) st = pd_formats_path(directory, MODEL, path, err);
    if (!st) st = pd_torch_open_file(vfs, path, &archive, err);
    if (!st) st = read_open(&x, &archive, err);
    pd_torch_close(&archive);
    pd_listing_deinit(&x.listing);
    free(x.count);
    *ret_step = x.step;
    *ret_samples = x.samples;
    return st;
}
