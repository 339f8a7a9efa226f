/* DeepSpeed's universal checkpoints: `latest_universal` names a directory where zero/<parameter>/fp32.pt, exp_avg.pt and
 * exp_avg_sq.pt are whole tensors, alone or under "param" of a dictionary; step.pt is the optimizer's count.
 * Source: deepspeed/checkpoint/{ds_to_universal,universal_checkpoint}.py. */
#include "ckpt/base/checked.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/formats/deepspeed.h"
#include "resharder/torch/archive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct universal {
    struct pd_vfs *vfs;
    struct pd_catalog *catalog;
    char directory[PD_FORMATS_PATH_MAX];   /* of zero */
    char states_path[PD_FORMATS_PATH_MAX]; /* file with the shapes */
    struct pd_torch_archive states;        /* no pickle: there is no such file */
};

/* Finds `path`/zero, or zero in the directory named in `path`/latest_universal; false: neither exists. */
static bool universal_find_directory(struct pd_vfs *vfs, const char *path, char ret[PD_FORMATS_PATH_MAX])
{
    char tagged[PD_FORMATS_PATH_MAX];
    if (pd_formats_path(path, "zero", ret, NULL) == PD_OK && pd_formats_is_directory(vfs, ret)) return true;
    return pd_formats_follow(vfs, path, "latest_universal", tagged) && pd_formats_path(tagged, "zero", ret, NULL) == PD_OK &&
           pd_formats_is_directory(vfs, ret);
}

/* Tensors from ZeRO-3 are flat; the model states beside `zero` have the shapes. */
static pd_status open_states(struct universal *u, struct pd_error *err)
{
    static const char *const names[] = {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"};
    char above[PD_FORMATS_PATH_MAX];
    snprintf(above, sizeof above, "%.*s", (int)(strrchr(u->directory, '/') - u->directory), u->directory);
    for (int i = 0; i < 2; i++) {
        if (!pd_formats_has_file(u->vfs, above, names[i])) continue;
        PD_TRY(pd_formats_path(above, names[i], u->states_path, err));
        PD_TRY(pd_torch_open_file(u->vfs, u->states_path, &u->states, err));
        const struct pd_pickle_node *root = pd_pickle_root(u->states.pickle);
        struct pd_catalog_counters *c = &u->catalog->counters;
        c->has_step = pd_pickle_is_u64(pd_pickle_member(root, "global_steps"), &c->step);
        c->has_samples = pd_pickle_is_u64(pd_pickle_member(root, "global_samples"), &c->samples);
        return PD_OK;
    }
    return PD_OK;
}

/* Gives a flat dense tensor the shape of its name in the model states. */
static void reshape(const struct universal *u, struct pd_foreign_tensor *tensor)
{
    const struct pd_pickle_node *root = u->states.pickle ? pd_pickle_root(u->states.pickle) : NULL;
    const struct pd_pickle_node *groups = pd_pickle_member(root, "param_shapes"), *group = NULL;
    struct pd_foreign_tensor shaped = *tensor;
    for (uint32_t g = 0; (group = pd_pickle_at(groups, g)); g++) {
        const struct pd_pickle_node *size = pd_pickle_member(group, tensor->name);
        uint64_t elements = 1;
        if (!pd_pickle_is_sizes(size, PD_FOREIGN_DIMS_MAX, shaped.shape, &shaped.ndim)) continue;
        for (uint32_t d = 0; d < shaped.ndim; d++)
            if (!pd_checked_mul_u64(elements, shaped.shape[d], &elements)) return;
        if (elements == tensor->shape[0]) *tensor = shaped;
        return;
    }
}

static pd_status take_tensor(struct universal *u, const char *name, enum pd_kind kind,
                             const struct pd_torch_archive *archive, struct pd_error *err)
{
    const struct pd_pickle_node *root = pd_pickle_root(archive->pickle), *node = pd_pickle_member(root, "param");
    struct pd_torch_tensor t;
    uint32_t number = 0;
    PD_TRY(pd_torch_tensor(archive, name, node ? node : root, &t, err));
    struct pd_foreign_tensor tensor = {.name = (char *)(uintptr_t)name, .kind = kind, .element = t.element, .ndim = t.ndim};
    memcpy(tensor.shape, t.shape, sizeof tensor.shape);
    struct pd_piece piece = pd_torch_piece(&t, 0);
    if (t.ndim == 1 && t.stride[0] <= 1) {
        piece.is_range = true;
        piece.stride[0] = 0;
        reshape(u, &tensor);
    }
    PD_TRY(pd_catalog_add_file(u->catalog, archive->path, archive->zip.end, &piece.file, err));
    const pd_status st = pd_catalog_add_tensor(u->catalog, &tensor, &number, err);
    if (st) return pd_error_context(err, st, "%s", archive->path);
    return pd_catalog_add_piece(u->catalog, number, &piece, err);
}

static pd_status take_step(struct universal *u, const char *name, const struct pd_torch_archive *archive,
                           struct pd_error *err)
{
    double step = 0;
    PD_TRY(pd_torch_number(archive, name, pd_pickle_root(archive->pickle), &step, err));
    if (pd_torch_is_count(step, &u->catalog->counters.updates)) u->catalog->counters.has_updates = true;
    return PD_OK;
}

enum { STEP = PD_KIND_COUNT };

/* Reads one file of a parameter's directory; a moment may be absent. */
static pd_status take_file(struct universal *u, const char *directory, const char *name, int what, struct pd_error *err)
{
    static const char *const files[] = {
        [PD_PARAM] = "fp32.pt", [PD_EXP_AVG] = "exp_avg.pt", [PD_EXP_AVG_SQ] = "exp_avg_sq.pt", [STEP] = "step.pt"};
    char path[PD_FORMATS_PATH_MAX];
    struct pd_torch_archive archive = {0};
    if (what != PD_PARAM && !pd_formats_has_file(u->vfs, directory, files[what])) return PD_OK;
    PD_TRY(pd_formats_path(directory, files[what], path, err));
    PD_TRY(pd_torch_open_file(u->vfs, path, &archive, err));
    const pd_status st =
        what == STEP ? take_step(u, name, &archive, err) : take_tensor(u, name, (enum pd_kind)what, &archive, err);
    pd_torch_close(&archive);
    return st;
}

static pd_status take_parameters(struct universal *u, const struct pd_listing *listing, struct pd_error *err)
{
    for (uint32_t i = 0; i < listing->count; i++) {
        char directory[PD_FORMATS_PATH_MAX];
        PD_TRY(pd_formats_path(u->directory, listing->names[i], directory, err));
        if (!pd_formats_is_directory(u->vfs, directory)) continue;
        for (int what = 0; what <= STEP; what++)
            PD_TRY(take_file(u, directory, listing->names[i], what, err));
    }
    return PD_OK;
}

static pd_status universal_read_checkpoint(struct pd_vfs *vfs, const char *path, struct pd_catalog *catalog,
                                           struct pd_error *err)
{
    struct universal u = {.vfs = vfs, .catalog = catalog};
    struct pd_listing listing = {0};
    if (!universal_find_directory(vfs, path, u.directory))
        PD_FAIL(err, PD_NOT_FOUND, "%s: no directory zero, and no latest_universal that names one with it", path);
    PD_TRY(pd_vfs_list(vfs, u.directory, &listing, err));
    pd_status st = open_states(&u, err);
    if (!st) st = take_parameters(&u, &listing, err);
    pd_listing_deinit(&listing);
    pd_torch_close(&u.states);
    return st ? st : pd_formats_add_texts(vfs, path, catalog, err);
}

static bool universal_recognizes(struct pd_vfs *vfs, const char *path)
{
    char directory[PD_FORMATS_PATH_MAX];
    return universal_find_directory(vfs, path, directory);
}

const struct pd_format pd_format_universal = {
    .name = "universal",
    .about = "DeepSpeed's universal checkpoint: a directory with `latest_universal`, or with zero",
    .recognizes = universal_recognizes,
    .read = universal_read_checkpoint,
    .holds_moments = true,
    .plan = pd_universal_plan,
    .observe = pd_universal_observe,
    .finish = pd_universal_finish,
};
