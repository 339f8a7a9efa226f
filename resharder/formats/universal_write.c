/* Writes DeepSpeed's universal checkpoints: <tag>/zero/<parameter>/fp32.pt, exp_avg.pt and exp_avg_sq.pt, each a
 * dictionary with only the whole tensor as "param", and step.pt beside them; the other files that DeepSpeed's loader
 * needs; and latest_universal, which names the tag.
 *
 * The loader visits as many parameter groups as both file and optimizer have, and takes over the settings in the file.
 * Rates and decay should come from the loading run, so our groups are empty, and there are more than any optimizer has.
 * Source: deepspeed/runtime/{engine,base_optimizer}.py, runtime/zero/{stage_1_and_2,stage3}.py. */
#include "resharder/formats/deepspeed.h"

#include "ckpt/base/digest.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/torch/archive.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS 64
#define VERSION "0.16.0" /* DeepSpeed version with this file layout */

struct output {
    struct pd_torch_output archive;
    char *path;
    uint32_t crc;
};

struct writer {
    struct pd_vfs *vfs;
    const struct pd_format_plan *plan;
    char tag[40];
    char directory[PD_FORMATS_PATH_MAX], zero[PD_FORMATS_PATH_MAX]; /* of the tag */
    struct output *outputs;                                         /* (wanted tensors) */
};

/* ---- the plan ---- */

static pd_status make_directories(struct writer *w, struct pd_error *err)
{
    snprintf(w->tag, sizeof w->tag, "global_step%" PRIu64, w->plan->wanted->counters.step);
    PD_TRY(pd_formats_path(w->plan->directory, w->tag, w->directory, err));
    PD_TRY(pd_vfs_mkdir(w->vfs, w->directory, err));
    PD_TRY(pd_formats_path(w->directory, "zero", w->zero, err));
    return pd_vfs_mkdir(w->vfs, w->zero, err);
}

static pd_status universal_write_place(struct writer *w, uint32_t number, struct pd_error *err)
{
    static const char *const files[PD_KIND_COUNT] = {
        [PD_PARAM] = "fp32.pt", [PD_EXP_AVG] = "exp_avg.pt", [PD_EXP_AVG_SQ] = "exp_avg_sq.pt"};
    struct pd_catalog *wanted = w->plan->wanted;
    const struct pd_foreign_tensor *t = &wanted->tensors[number];
    struct output *o = &w->outputs[number];
    char directory[PD_FORMATS_PATH_MAX], path[PD_FORMATS_PATH_MAX];
    uint32_t file;
    if (t->element != PD_ELEMENT_F32)
        PD_FAIL(err, PD_UNSUPPORTED,
                "universal checkpoints hold fp32 only, and DeepSpeed rounds them itself: leave out --dtype");
    PD_TRY(pd_formats_path(w->zero, t->name, directory, err));
    const pd_status st = pd_vfs_mkdir(w->vfs, directory, err);
    if (st && st != PD_EXISTS) return st;
    PD_TRY(pd_formats_path(directory, files[t->kind], path, err));
    PD_TRY(pd_torch_plan(t, "param", &o->archive, err));
    o->path = strdup(path);
    if (!o->path) PD_FAIL(err, PD_NO_MEMORY, "no memory to write %s", path);
    PD_TRY(pd_catalog_add_file(wanted, path, o->archive.bytes, &file, err));
    return pd_catalog_place(wanted, number, file, o->archive.data_offset, err);
}

pd_status pd_universal_plan(struct pd_vfs *vfs, struct pd_format_plan *plan, void **ret_state, struct pd_error *err)
{
    struct writer *w = *ret_state = calloc(1, sizeof *w);
    if (!w) PD_FAIL(err, PD_NO_MEMORY, "no memory to write a universal checkpoint");
    *w = (struct writer){.vfs = vfs, .plan = plan};
    PD_TRY(make_directories(w, err));
    w->outputs = calloc((size_t)plan->wanted->tensor_count + 1, sizeof *w->outputs);
    if (!w->outputs) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u tensors", plan->wanted->tensor_count);
    for (uint32_t t = 0; t < plan->wanted->tensor_count; t++)
        PD_TRY(universal_write_place(w, t, err));
    return PD_OK;
}

void pd_universal_observe(void *state, uint32_t tensor, const void *data, uint64_t bytes)
{
    struct output *o = &((struct writer *)state)->outputs[tensor];
    o->crc = pd_crc32(o->crc, data, bytes);
}

/* ---- other files ---- */

/* Optimizers count in a tensor (torch's) or in a number converted from one (DeepSpeed's own). */
static const struct pd_foreign_tensor step_tensor = {.element = PD_ELEMENT_F32, .shape = {1, 1, 1, 1, 1, 1, 1, 1}};

/* Finishes and frees `pickle`. */
static pd_status universal_write_write_file(const struct writer *w, const char *directory, const char *name,
                                            struct pd_pickle_writer *pickle, bool has_step, struct pd_error *err)
{
    const struct pd_catalog_counters *c = &w->plan->wanted->counters;
    const float step = (float)(c->has_updates ? c->updates : c->step);
    char path[PD_FORMATS_PATH_MAX];
    pd_status st = pd_pickle_finish(pickle, err);
    if (!st) st = pd_formats_path(directory, name, path, err);
    if (!st) st = pd_torch_write_small(w->vfs, path, pickle, has_step ? &step : NULL, sizeof step, err);
    pd_pickle_writer_deinit(pickle);
    return st;
}

static pd_status write_step(const struct writer *w, const char *parameter, struct pd_error *err)
{
    struct pd_pickle_writer p = {0};
    char directory[PD_FORMATS_PATH_MAX];
    PD_TRY(pd_formats_path(w->zero, parameter, directory, err));
    pd_pickle_begin(&p);
    pd_torch_put_tensor(&p, &step_tensor);
    return universal_write_write_file(w, directory, "step.pt", &p, true, err);
}

static void put_groups(struct pd_pickle_writer *p)
{
    pd_pickle_put(p, "param_groups", "](");
    for (int g = 0; g < GROUPS; g++)
        pd_pickle_do(p, "}");
    pd_pickle_do(p, "e");
}

static pd_status write_model_states(const struct writer *w, const char *name, struct pd_error *err)
{
    const struct pd_catalog_counters *c = &w->plan->wanted->counters;
    struct pd_pickle_writer p = {0};
    pd_pickle_begin(&p);
    pd_pickle_do(&p, "}(");
    pd_pickle_put_text(&p, NULL, "module"); /* parameters come from zero/ */
    pd_pickle_do(&p, "}");
    const struct pd_catalog *wanted = w->plan->wanted;
    pd_pickle_put(&p, "param_shapes", "](}(");
    for (uint32_t t = 0; t < wanted->tensor_count; t++) {
        if (wanted->tensors[t].kind != PD_PARAM) continue;
        pd_pickle_put_text(&p, NULL, wanted->tensors[t].name);
        pd_pickle_put_global(&p, "torch", "Size");
        pd_pickle_put_sizes(&p, wanted->tensors[t].shape, wanted->tensors[t].ndim);
        pd_pickle_do(&p, "\x85R");
    }
    pd_pickle_do(&p, "ue");
    /* For schedules of DeepSpeed and of torch, which start counting elsewhere. */
    uint64_t step = c->step;
    pd_pickle_put(&p, "lr_scheduler", "}(");
    pd_pickle_put_u64(&p, "last_batch_iteration", step ? step - 1 : 0);
    pd_pickle_put_u64(&p, "last_epoch", step);
    pd_pickle_do(&p, "u");
    pd_pickle_put_u64(&p, "global_steps", c->step);
    pd_pickle_put_u64(&p, "global_samples", c->samples);
    pd_pickle_put_u64(&p, "skipped_steps", c->has_updates && c->updates < c->step ? c->step - c->updates : 0);
    pd_pickle_put_u64(&p, "dp_world_size", 1);
    pd_pickle_put_u64(&p, "mp_world_size", 1);
    pd_pickle_put_text(&p, "ds_version", VERSION);
    pd_pickle_do(&p, "u");
    return universal_write_write_file(w, w->directory, name, &p, false, err);
}

/* ---- the end ---- */

static pd_status end_archive(struct writer *w, struct output *o, struct pd_error *err)
{
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(w->vfs, o->path, PD_OPEN_WRITE | PD_OPEN_CREATE, &file, err));
    const pd_status st = pd_torch_write(&o->archive, o->crc, file, 0, err);
    const pd_status closed = pd_file_close(file, st ? NULL : err);
    return st ? st : closed;
}

static pd_status write_rest(struct writer *w, struct pd_error *err)
{
    char path[PD_FORMATS_PATH_MAX];
    /* Stages 1 and 2 read the separate groups, stage 3 those beside the step. Its loader gives all groups the same step
     * object, so several would count it up together; torch's optimizers do not accept a plain number. */
    struct pd_pickle_writer p = {0};
    pd_pickle_begin(&p);
    pd_pickle_do(&p, "}(");
    pd_pickle_put_text(&p, "ds_version", VERSION);
    put_groups(&p);
    pd_pickle_put(&p, "optimizer_state_dict", "}(");
    put_groups(&p);
    pd_pickle_put(&p, "state", "}(");
    pd_pickle_put_u64(&p, NULL, 0);
    pd_pickle_do(&p, "}(");
    pd_pickle_put_text(&p, NULL, "step");
    pd_torch_put_tensor(&p, &step_tensor);
    pd_pickle_do(&p, "uuuu");
    PD_TRY(universal_write_write_file(w, w->zero, "optimizer_state.pt", &p, true, err));
    PD_TRY(write_model_states(w, "mp_rank_00_model_states.pt", err));                /* stages 1 and 2 */
    PD_TRY(write_model_states(w, "zero_pp_rank_0_mp_rank_00_model_states.pt", err)); /* stage 3 */
    PD_TRY(pd_formats_path(w->plan->directory, "latest_universal", path, err));
    PD_TRY(pd_formats_write_text(w->vfs, path, w->tag, strlen(w->tag), err));
    return pd_formats_write_texts(w->vfs, w->plan->directory, w->plan->wanted, err);
}

pd_status pd_universal_finish(void *state, pd_status mine, struct pd_error *err)
{
    struct writer *w = state;
    const struct pd_catalog *wanted = w->plan->wanted;
    pd_status st = mine;
    for (uint32_t t = 0; !st && t < wanted->tensor_count; t++) {
        st = end_archive(w, &w->outputs[t], err);
        if (!st && wanted->tensors[t].kind == PD_EXP_AVG) st = write_step(w, wanted->tensors[t].name, err);
    }
    if (!st) st = write_rest(w, err);
    for (uint32_t t = 0; w->outputs && t < wanted->tensor_count; t++) {
        pd_torch_output_deinit(&w->outputs[t].archive);
        free(w->outputs[t].path);
    }
    free(w->outputs);
    free(w);
    return st;
}
