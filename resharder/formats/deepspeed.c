/* DeepSpeed's ZeRO checkpoints, stages 1 to 3. `latest` names the directory of the newest. torch.save wrote there:
 *
 *   zero_pp_rank_<dp>_mp_rank_00_model_states.pt (stage 3), mp_rank_00_model_states.pt (1, 2)     names and shapes, counters
 *   [bf16_]zero_pp_rank_<dp>_mp_rank_00_optim_states.pt                                       flat fp32 parameters and moments
 *
 * Parameters are read from the flat fp32 ones, in the order of param_shapes: the module's are rounded.
 *
 *   stage 3     a parameter of n elements takes ceil(n / W) of each rank's groups, concatenated; its tail is padding
 *   stage 1, 2  the partitions of a group, concatenated over ranks, hold parameters without gaps
 *
 * Either way a parameter is a few ranges of some ranks' flat tensors.
 * Source: deepspeed/utils/zero_to_fp32.py, deepspeed/runtime/zero/stage_1_and_2.py and stage3.py. */
#include "resharder/formats/deepspeed.h"
#include "ckpt/base/grow.h"

#include "ckpt/base/checked.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/torch/archive.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 65536u
#define GROUPS_MAX 65536u

/* A flat tensor of one rank: a range of a line of elements. */
struct range {
    uint32_t file, rank, group;
    uint64_t offset, elements; /* bytes in the file; fp32 elements */
};
struct line {
    struct range *ranges; /* (count), in order of discovery: rank after rank, group after group */
    uint32_t count;
};

struct deepspeed {
    struct pd_vfs *vfs;
    struct pd_catalog *catalog;
    char directory[PD_FORMATS_PATH_MAX]; /* of the checkpoint tag */
    uint32_t ranks, stage;
    struct line lines[PD_KIND_COUNT];
    uint64_t consumed;              /* stages 1, 2: elements used of the group's line; stage 3: of every rank's */
    char path[PD_FORMATS_PATH_MAX]; /* of the open file */
    uint32_t file_number;
    struct pd_torch_archive archive;
};

/* ---- files ---- */

static pd_status open_states(struct deepspeed *d, const char *name, struct pd_error *err)
{
    PD_TRY(pd_formats_path(d->directory, name, d->path, err));
    return pd_torch_open_file(d->vfs, d->path, &d->archive, err);
}

static void optimizer_name(uint32_t rank, bool is_bf16, char ret[128])
{
    snprintf(ret, 128, "%szero_pp_rank_%u_mp_rank_00_optim_states.pt", is_bf16 ? "bf16_" : "", rank);
}

/* Finds the first rank's file, under either name. */
static bool has_optimizer(struct pd_vfs *vfs, const char *directory, bool *ret_is_bf16)
{
    char name[128];
    for (int b = 0; b < 2; b++) {
        optimizer_name(0, b, name);
        *ret_is_bf16 = b;
        if (pd_formats_has_file(vfs, directory, name)) return true;
    }
    return false;
}

/* True if `path` is such a directory, or has a `latest` that names one. */
static bool deepspeed_find_directory(struct pd_vfs *vfs, const char *path, char ret[PD_FORMATS_PATH_MAX])
{
    bool is_bf16 = false;
    if (snprintf(ret, PD_FORMATS_PATH_MAX, "%s", path) >= (int)PD_FORMATS_PATH_MAX) return false;
    if (has_optimizer(vfs, ret, &is_bf16) || pd_deepspeed_has_experts(vfs, ret)) return true;
    return pd_formats_follow(vfs, path, "latest", ret) &&
           (has_optimizer(vfs, ret, &is_bf16) || pd_deepspeed_has_experts(vfs, ret));
}

/* ---- flat tensors ---- */

static pd_status add_range(struct deepspeed *d, enum pd_kind kind, uint32_t rank, uint32_t group,
                           const struct pd_pickle_node *node, struct pd_error *err)
{
    struct line *line = &d->lines[kind];
    struct pd_torch_tensor t;
    PD_TRY(pd_torch_tensor(&d->archive, pd_kind_name(kind), node, &t, err));
    if (t.ndim != 1 || t.element != PD_ELEMENT_F32 || (t.shape[0] > 1 && t.stride[0] != 1))
        PD_FAIL(err, PD_UNSUPPORTED, "%s: group %u of %s is %s of %u dimensions; perdure reads flat fp32", d->path, group,
                pd_kind_name(kind), pd_elements[t.element].name, t.ndim);
    if (!pd_grow(&line->ranges, line->count, sizeof *line->ranges))
        PD_FAIL(err, PD_NO_MEMORY, "%s: no memory for %u groups", d->path, line->count + 1);
    line->ranges[line->count++] =
        (struct range){.file = d->file_number, .rank = rank, .group = group, .offset = t.offset, .elements = t.shape[0]};
    return PD_OK;
}

/* Returns the moments of group g: state[g] of a dictionary with keys 0, 1, ..; or element g (elastic checkpoints). */
static const struct pd_pickle_node *state_of_group(const struct pd_pickle_node *states, uint32_t group)
{
    if (!states || states->type != PD_PICKLE_DICT) return pd_pickle_at(states, group);
    for (uint32_t i = 0; i < states->count; i += 2) {
        uint64_t key = 0;
        if (pd_pickle_is_u64(states->items[i], &key) && key == group) return states->items[i + 1];
    }
    return NULL;
}

static pd_status note_updates(struct deepspeed *d, const struct pd_pickle_node *state, struct pd_error *err)
{
    const struct pd_pickle_node *step = pd_pickle_member(state, "step");
    double updates = 0;
    if (!step) return PD_OK;
    PD_TRY(pd_torch_number(&d->archive, "step", step, &updates, err));
    d->catalog->counters.has_updates = pd_torch_is_count(updates, &d->catalog->counters.updates);
    return PD_OK;
}

/* Key of the flat parameters, and of the optimizer over them, by stage. */
static const struct {
    const char *flat, *optimizer;
} keys_of_stage[] = {
    [1] = {"single_partition_of_fp32_groups", "base_optimizer_state"},
    [2] = {"single_partition_of_fp32_groups", "base_optimizer_state"},
    [3] = {"fp32_flat_groups", "optimizer_state_dict"},
};

static pd_status read_groups(struct deepspeed *d, uint32_t rank, struct pd_error *err)
{
    const struct pd_pickle_node *all = pd_pickle_member(pd_pickle_root(d->archive.pickle), "optimizer_state_dict");
    const struct pd_pickle_node *flat = pd_pickle_member(all, keys_of_stage[d->stage].flat);
    const struct pd_pickle_node *optimizer = pd_pickle_member(all, keys_of_stage[d->stage].optimizer);
    const struct pd_pickle_node *states = pd_pickle_member(optimizer, "state");
    if (!flat || flat->type != PD_PICKLE_LIST || flat->count > GROUPS_MAX)
        PD_FAIL(err, PD_CORRUPT, "%s: no list %s in a checkpoint of ZeRO stage %u", d->path, keys_of_stage[d->stage].flat,
                d->stage);
    if (!states) states = optimizer;
    for (uint32_t g = 0; g < flat->count; g++) {
        const struct pd_pickle_node *state = state_of_group(states, g);
        PD_TRY(add_range(d, PD_PARAM, rank, g, flat->items[g], err));
        if (rank == 0 && g == 0) PD_TRY(note_updates(d, state, err));
        if (pd_pickle_member(state, "exp_avg"))
            PD_TRY(add_range(d, PD_EXP_AVG, rank, g, pd_pickle_member(state, "exp_avg"), err));
        if (pd_pickle_member(state, "exp_avg_sq"))
            PD_TRY(add_range(d, PD_EXP_AVG_SQ, rank, g, pd_pickle_member(state, "exp_avg_sq"), err));
    }
    return PD_OK;
}

/* Reads a number, or a list with one per group (stages 1 and 2). */
static bool partition_count(const struct pd_pickle_node *node, uint64_t *ret)
{
    return pd_pickle_is_u64(node, ret) || pd_pickle_is_u64(pd_pickle_at(node, 0), ret);
}

static pd_status read_shape(struct deepspeed *d, struct pd_error *err)
{
    const struct pd_pickle_node *all = pd_pickle_member(pd_pickle_root(d->archive.pickle), "optimizer_state_dict");
    const struct pd_pickle_node *number = pd_pickle_member(all, "zero_stage");
    uint64_t stage = 0, ranks = 0;
    if (pd_pickle_is_call(number, "deepspeed.runtime.zero.config.ZeroStageEnum")) number = pd_pickle_argument(number, 0);
    if (!pd_pickle_is_u64(number, &stage) || !partition_count(pd_pickle_member(all, "partition_count"), &ranks))
        PD_FAIL(err, PD_CORRUPT, "%s: no zero_stage and partition_count; it is not a ZeRO checkpoint of DeepSpeed", d->path);
    if (stage < 1 || stage > 3 || ranks < 1 || ranks > RANKS_MAX)
        PD_FAIL(err, PD_CORRUPT,
                "%s: ZeRO stage %" PRIu64 " over %" PRIu64 " ranks; there are stages 1 to 3, and up to %u ranks", d->path,
                stage, ranks, RANKS_MAX);
    d->stage = (uint32_t)stage;
    d->ranks = (uint32_t)ranks;
    return PD_OK;
}

static pd_status read_rank(struct deepspeed *d, uint32_t rank, bool is_bf16, struct pd_error *err)
{
    char name[128];
    optimizer_name(rank, is_bf16, name);
    pd_status st = open_states(d, name, err);
    if (!st && rank == 0) st = read_shape(d, err);
    if (!st) st = pd_catalog_add_file(d->catalog, d->path, d->archive.zip.end, &d->file_number, err);
    if (!st) st = read_groups(d, rank, err);
    pd_torch_close(&d->archive);
    if (st == PD_NOT_FOUND && rank)
        return pd_error_context(err, st, "a checkpoint of %u ranks needs the optimizer's states of each", d->ranks);
    return st;
}

/* ---- parameters ---- */

/* Adds elements [begin, end) of the line of one rank (stage 3) or one group, as ranges of tensor `t` from its element
 * `at` on. */
static pd_status add_ranges(struct deepspeed *d, const struct line *line, uint32_t which, uint64_t begin, uint64_t end,
                            uint32_t t, uint64_t at, struct pd_error *err)
{
    uint64_t position = 0;
    for (uint32_t s = 0; s < line->count && begin < end; s++) {
        const struct range *range = &line->ranges[s];
        if ((d->stage < 3 ? range->group : range->rank) != which) continue;
        const uint64_t next = position + range->elements;
        if (next > begin) {
            const uint64_t count = (next < end ? next : end) - begin;
            struct pd_piece piece = {.file = range->file, .is_range = true};
            piece.offset = range->offset + (begin - position) * sizeof(float);
            piece.start[0] = at;
            piece.count[0] = count;
            PD_TRY(pd_catalog_add_piece(d->catalog, t, &piece, err));
            begin += count;
            at += count;
        }
        position = next;
    }
    if (begin < end)
        PD_FAIL(err, PD_CORRUPT, "%s: the ranks' flat tensors end %" PRIu64 " elements before %s does", d->directory,
                end - begin, d->catalog->tensors[t].name);
    return PD_OK;
}

static pd_status add_pieces(struct deepspeed *d, enum pd_kind kind, uint32_t group, uint32_t t, uint64_t elements,
                            struct pd_error *err)
{
    const struct line *line = &d->lines[kind];
    if (d->stage < 3) return add_ranges(d, line, group, d->consumed, d->consumed + elements, t, 0, err);
    const uint64_t share = pd_divide_up(elements, d->ranks);
    for (uint32_t r = 0; r < d->ranks; r++) {
        const uint64_t at = r * share, left = at < elements ? elements - at : 0, mine = left < share ? left : share;
        PD_TRY(add_ranges(d, line, r, d->consumed, d->consumed + mine, t, at, err));
    }
    return PD_OK;
}

static pd_status add_parameter(struct deepspeed *d, uint32_t group, const struct pd_pickle_node *name,
                               const struct pd_pickle_node *size, struct pd_error *err)
{
    struct pd_foreign_tensor t = {.name = (char *)(uintptr_t)pd_pickle_text(name), .element = PD_ELEMENT_F32};
    uint64_t elements = 1;
    for (uint32_t i = 0; i < PD_FOREIGN_DIMS_MAX; i++)
        t.shape[i] = 1;
    if (!t.name || !pd_pickle_is_sizes(size, PD_FOREIGN_DIMS_MAX, t.shape, &t.ndim))
        PD_FAIL(err, PD_CORRUPT, "%s: an entry of param_shapes is not a name with a shape", d->path);
    for (uint32_t i = 0; i < t.ndim; i++)
        if (!pd_checked_mul_u64(elements, t.shape[i], &elements) || elements > INT64_MAX)
            PD_FAIL(err, PD_CORRUPT, "%s: the shape of %s overflows", d->path, t.name);
    for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
        uint32_t number = 0;
        t.kind = (enum pd_kind)kind;
        if (!d->lines[kind].count) continue;
        const pd_status st = pd_catalog_add_tensor(d->catalog, &t, &number, err);
        if (st) return pd_error_context(err, st, "%s", d->path);
        PD_TRY(add_pieces(d, t.kind, group, number, elements, err));
    }
    d->consumed += d->stage < 3 ? elements : pd_divide_up(elements, d->ranks);
    return PD_OK;
}

/* One dictionary per group; before DeepSpeed 0.4 one for all. */
static pd_status add_parameters(struct deepspeed *d, const struct pd_pickle_node *shapes, struct pd_error *err)
{
    const bool is_list = shapes && shapes->type == PD_PICKLE_LIST;
    const uint32_t groups = is_list ? shapes->count : 1;
    for (uint32_t g = 0; g < groups; g++) {
        const struct pd_pickle_node *group = is_list ? shapes->items[g] : shapes;
        if (!group || group->type != PD_PICKLE_DICT)
            PD_FAIL(err, PD_CORRUPT, "%s: no param_shapes; DeepSpeed before 0.3.17 did not write them", d->path);
        if (d->stage < 3) d->consumed = 0;
        for (uint32_t i = 0; i < group->count; i += 2)
            PD_TRY(add_parameter(d, g, group->items[i], group->items[i + 1], err));
    }
    return PD_OK;
}

static pd_status list_unmapped(struct deepspeed *d, const struct pd_pickle_node *root, const char *key, struct pd_error *err)
{
    const struct pd_pickle_node *names = pd_pickle_member(root, key);
    const uint32_t stride = names && names->type == PD_PICKLE_DICT ? 2 : 1;
    for (uint32_t i = 0; names && (names->type == PD_PICKLE_DICT || names->type == PD_PICKLE_LIST) && i < names->count;
         i += stride)
        if (pd_pickle_text(names->items[i])) PD_TRY(pd_catalog_add_unmapped(d->catalog, names->items[i]->text, err));
    return PD_OK;
}

static void note_counter(const struct pd_pickle_node *node, bool *ret_has, uint64_t *ret)
{
    if (pd_pickle_is_u64(node, ret)) *ret_has = true;
}

static pd_status deepspeed_read_all(struct deepspeed *d, struct pd_error *err)
{
    bool is_bf16 = false;
    if (!has_optimizer(d->vfs, d->directory, &is_bf16))
        PD_FAIL(err, PD_NOT_FOUND, "%s: the optimizer states of rank 0 are missing", d->directory);
    d->ranks = 1;
    for (uint32_t r = 0; r < d->ranks; r++)
        PD_TRY(read_rank(d, r, is_bf16, err));
    PD_TRY(open_states(d, d->stage == 3 ? "zero_pp_rank_0_mp_rank_00_model_states.pt" : "mp_rank_00_model_states.pt", err));
    /* Omits shared_params, which are other names of parameters that are read. */
    static const char *const unmapped[] = {"buffer_names", "frozen_param_shapes"};
    const struct pd_pickle_node *root = pd_pickle_root(d->archive.pickle);
    struct pd_catalog_counters *c = &d->catalog->counters;
    uint64_t model_ranks = 1;
    if (pd_pickle_is_u64(pd_pickle_member(root, "mp_world_size"), &model_ranks) && model_ranks > 1)
        PD_FAIL(err, PD_UNSUPPORTED,
                "%s: %" PRIu64
                " ranks of model parallelism; make a universal checkpoint of it first, with ds_to_universal.py",
                d->path, model_ranks);
    note_counter(pd_pickle_member(root, "global_steps"), &c->has_step, &c->step);
    note_counter(pd_pickle_member(root, "global_samples"), &c->has_samples, &c->samples);
    for (int i = 0; i < 2; i++)
        PD_TRY(list_unmapped(d, root, unmapped[i], err));
    return add_parameters(d, pd_pickle_member(root, "param_shapes"), err);
}

static void take_count(const struct pd_deepspeed_count *count, bool *ret_has, uint64_t *ret)
{
    *ret_has = count->is_known;
    *ret = count->value;
}

/* A checkpoint with a file for each expert. */
static pd_status read_experts(struct deepspeed *d, struct pd_error *err)
{
    struct pd_catalog_counters *c = &d->catalog->counters;
    struct pd_deepspeed_count step = {0}, samples = {0};
    PD_TRY(pd_deepspeed_read_experts(d->vfs, d->directory, d->catalog, &step, &samples, err));
    take_count(&step, &c->has_step, &c->step);
    take_count(&samples, &c->has_samples, &c->samples);
    return PD_OK;
}

static pd_status deepspeed_read_checkpoint(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog,
                                           struct pd_error *err)
{
    struct deepspeed d = {.vfs = vfs, .catalog = catalog};
    if (!deepspeed_find_directory(vfs, path, d.directory))
        PD_FAIL(err, PD_NOT_FOUND, "%s: there is no `latest` that names a checkpoint, and no optimizer states of rank 0",
                path);
    pd_status st = pd_deepspeed_has_experts(vfs, d.directory) ? read_experts(&d, err) : deepspeed_read_all(&d, err);
    pd_torch_close(&d.archive);
    if (!st) st = pd_formats_add_texts(vfs, path, catalog, err); /* transformers' trainer puts them there */
    for (int kind = 0; kind < PD_KIND_COUNT; kind++)
        free(d.lines[kind].ranges);
    return st;
}

static bool deepspeed_recognizes(struct pd_vfs *vfs, const char *path)
{
    char directory[PD_FORMATS_PATH_MAX];
    return deepspeed_find_directory(vfs, path, directory);
}

const struct pd_format pd_format_deepspeed = {
    .name = "deepspeed",
    .about = "DeepSpeed's ZeRO checkpoint: a directory with `latest`, or one tag's directory",
    .recognizes = deepspeed_recognizes,
    .read = deepspeed_read_checkpoint,
    .plan = pd_format_not_written,
    .observe = pd_format_observe_nothing,
    .finish = pd_format_finish_nothing,
};
