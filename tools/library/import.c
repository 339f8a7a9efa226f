/* Converts another program's checkpoint to ours. */
#include "resharder/convert/import.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/json.h"
#include "ckpt/base/words.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/formats/perdure.h"
#include "tools/library/convert.h"
#include "tools/library/layout.h"
#include "trainer/config/check.h"
#include "trainer/config/laid_out.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct import {
    const struct pd_convert *options;
    const struct pd_convert_watch *watch;
    struct pd_ckpt_foreign source;
    struct pd_config config;
    struct pd_model *model;
    struct pd_links links;
    struct pd_laid_out laid_out;
    struct pd_run_state state;
    struct pd_ckpt_rewrite rewrite;
    struct pd_expert_count experts;
};

/* ---- the result ---- */

/* True for a run of ours, or its checkpoints. */
static bool holds_ours(const char *path)
{
    struct pd_ckpt_place place;
    if (pd_ckpt_place_open_quiet(path, NULL, &place, NULL)) return false;
    const bool any = pd_store_count(place.store) || pd_store_unusable_count(place.store);
    pd_ckpt_place_close(&place);
    return any;
}

pd_status pd_convert_open_theirs(const char *path, const struct pd_notes *notes, struct pd_ckpt_foreign *ret_source,
                                 struct pd_error *err)
{
    const struct pd_format *format = NULL;
    struct pd_vfs *vfs = NULL;
    PD_TRY(pd_vfs_new_auto(&vfs, err));
    const pd_status st = pd_format_of(vfs, path, &format, err);
    pd_vfs_free(vfs);
    const bool is_ours = format == &pd_format_perdure || (st == PD_INVALID && holds_ours(path));
    if (!is_ours) PD_TRY(st);
    PD_TRY(pd_ckpt_foreign_open(path, UINT64_MAX, notes, ret_source, err));
    if (!is_ours || !pd_ckpt_foreign_is_run(ret_source)) return PD_OK;
    pd_ckpt_foreign_close(ret_source);
    PD_FAIL(err, PD_USAGE, "%s is perdure's own: a run resumes from it, and perdure ckpt reshard rewrites it", path);
}

/* Chooses numerics and a batch that admit the degrees, unless somebody has set them. */
static uint32_t admit(const struct pd_config *config, const struct pd_ckpt_layout *degrees, char texts[4][64])
{
    const uint64_t sequences = degrees->dp * config->batch.micro_batch;
    snprintf(texts[0], sizeof texts[0], "numerics.virtual_tp=%" PRIu64, degrees->tp);
    snprintf(texts[1], sizeof texts[1], "numerics.virtual_sp=%" PRIu64, degrees->sp);
    if (sequences <= config->batch.sequences) return 2;
    snprintf(texts[2], sizeof texts[2], "batch.sequences=%" PRIu64, sequences);
    snprintf(texts[3], sizeof texts[3], "numerics.lanes=%" PRIu64, degrees->dp);
    return 4;
}

static pd_status link_source(struct import *m, struct pd_error *err)
{
    PD_TRY(pd_ckpt_foreign_link(&m->source, m->model, m->options->fresh_optimizer, &m->links, err));
    return pd_ckpt_foreign_check_tied(&m->source, m->model, &m->links, err);
}

static pd_status decide(struct import *m, struct pd_error *err)
{
    struct pd_ckpt_layout degrees;
    /* The degrees of --layout apply to the source's model, so that is read first. */
    char chosen[4][64], *yaml = NULL;
    const char *overrides[PD_CKPT_LAYOUT_TEXTS + 4];
    struct pd_config config;
    PD_TRY(pd_ckpt_layout_parse(m->options->layout ? m->options->layout : "dp=1", &degrees, err));
    PD_TRY(pd_ckpt_foreign_configure(&m->source, m->options->config_file, &m->config, err));
    const bool is_of_run = m->options->config_file && !pd_ckpt_is_model_file(m->options->config_file);
    const uint32_t more = is_of_run ? 0 : admit(&m->config, &degrees, chosen);
    for (uint32_t i = 0; i < PD_CKPT_LAYOUT_TEXTS; i++)
        overrides[i] = degrees.texts[i];
    for (uint32_t i = 0; i < more; i++)
        overrides[PD_CKPT_LAYOUT_TEXTS + i] = chosen[i];
    PD_TRY(pd_config_print(&m->config, &yaml, err));
    const pd_status st = pd_config_parse_saved(yaml, overrides, PD_CKPT_LAYOUT_TEXTS + more, &config, err);
    free(yaml);
    PD_TRY(st);
    pd_config_deinit(&m->config);
    m->config = config;
    PD_TRY(pd_config_model(&m->config, &m->model, err));
    PD_TRY(pd_lay_out_given(&m->config, m->model, (uint32_t)degrees.world, &m->laid_out, err));
    return link_source(m, err);
}

static pd_status list_beyond(const struct import *m, struct pd_error *err)
{
    return pd_ckpt_foreign_list_beyond(&m->source, m->model, &m->links, true, "not imported", m->watch->plain_notes, err);
}

/* Makes a record without data and without a lineage: the first run that resumes from it begins one. */
static pd_status make_state(struct import *m, struct pd_error *err)
{
    const struct pd_catalog_counters n = pd_ckpt_foreign_counters(&m->source, &m->config);
    struct pd_json_writer w;
    const char *text = NULL;
    struct pd_run_state s = {.updates = n.updates,
                             .samples = n.samples,
                             .tokens = n.tokens,
                             .loss_scale = n.loss_scale,
                             .seed = m->config.run.seed,
                             .last_loss = NAN,
                             .best_validation_loss = NAN,
                             .tokenizer_digest = pd_ckpt_foreign_tokenizer(&m->source.catalog),
                             .layout = m->laid_out.layout,
                             .tensor_count = m->model->tensors.count,
                             .parameter_count = m->model->parameter_count};
    s.identity.step = n.step;
    if (getrandom(s.identity.run_id, sizeof s.identity.run_id, 0) < 0) s.identity.run_id[0] = pd_clock_wall_ns();
    snprintf(s.created_by, sizeof s.created_by, "perdure %s", PERDURE_VERSION);
    pd_json_writer_init_object(&w, 0);
    pd_json_string(&w, "imported_from", m->source.format->name);
    pd_status st = pd_json_writer_finish(&w, &text, NULL, err);
    if (!st && !(s.environment = strndup(text, strcspn(text, "\n"))))
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for a record");
    pd_json_writer_deinit(&w);
    if (!st) st = pd_config_print(&m->config, &s.config, err);
    m->state = s;
    return st;
}

static struct pd_import_request request_of(const struct import *m)
{
    return (struct pd_import_request){.source = m->source.path,
                                      .catalog = &m->source.catalog,
                                      .links = &m->links,
                                      .tensors = &m->model->tensors,
                                      .fresh_optimizer = m->options->fresh_optimizer || pd_ckpt_foreign_is_model(&m->source),
                                      .layout = &m->laid_out.layout,
                                      .state = &m->state};
}

/* Weights are stored exactly, but computed with in the configuration's type. NULL: there is nothing to say. */
static const char *stored_type(const struct import *m)
{
    const int64_t tokens = pd_catalog_find(&m->source.catalog, m->links.items[0].name, PD_PARAM);
    const enum pd_element element = tokens < 0 ? PD_ELEMENT_F32 : m->source.catalog.tensors[tokens].element;
    const char *theirs = pd_elements[element].name, *ours = pd_dtype_name(m->config.numerics.precision);
    return strcmp(theirs, ours) == 0 || pd_elements[element].block_elements > 1 ? NULL : theirs;
}

/* ---- the work ---- */

static pd_status open_target(struct import *m, struct pd_error *err)
{
    PD_TRY(pd_ckpt_target_open(m->source.vfs, m->options->destination, m->watch->notes, &m->rewrite.target, err));
    if (pd_store_count(m->rewrite.target.place.store))
        PD_FAIL(err, PD_USAGE, "%s holds checkpoints already; name another directory", m->rewrite.target.place.root);
    return PD_OK;
}

/* Writes the tokenizer and the like beside the checkpoints, for sample and export. */
static pd_status write_texts(struct import *m, struct pd_error *err)
{
    return pd_formats_write_texts(m->rewrite.target.place.vfs, m->rewrite.target.place.root, &m->source.catalog, err);
}

static pd_status count_experts(struct import *m, struct pd_error *err)
{
    const struct pd_import_report *n = &m->rewrite.report;
    m->experts.out = (struct pd_expert_side){n->expert_tensors, n->expert_bytes, n->expert_elements};
    PD_TRY(pd_expert_count_catalog(m->model, &m->links, &m->source.catalog, &m->experts.in, err));
    return pd_expert_count_compare(&m->experts, m->source.path, err);
}

static pd_status convert(struct import *m, struct pd_error *err)
{
    PD_TRY(open_target(m, err));
    PD_TRY(pd_ckpt_rewrite(&m->rewrite, request_of(m), m->watch, err));
    PD_TRY(count_experts(m, err));
    PD_TRY(write_texts(m, err));
    const struct pd_rewritten result = {.rewrite = &m->rewrite,
                                        .format = m->source.format->name,
                                        .layout = &m->laid_out.layout,
                                        .stored = stored_type(m),
                                        .experts = m->model->config.experts ? &m->experts : NULL,
                                        .computed = pd_dtype_name(m->config.numerics.precision)};
    return m->watch->rewritten ? m->watch->rewritten(m->watch->context, &result, err) : PD_OK;
}

static pd_status close_import(struct import *m, pd_status mine, struct pd_error *err)
{
    pd_thread_pool_free(m->rewrite.codec.pool);
    pd_run_state_deinit(&m->state);
    pd_links_deinit(&m->links);
    pd_model_free(m->model);
    pd_config_deinit(&m->config);
    mine = pd_ckpt_foreign_add_advice(pd_ckpt_target_close(&m->rewrite.target, mine, err), m->options->source, err);
    pd_ckpt_foreign_close(&m->source);
    return mine;
}

pd_status pd_convert_import(const struct pd_convert *options, const struct pd_convert_watch *watch, struct pd_error *err)
{
    struct import m = {.options = options, .watch = watch};
    pd_status st = pd_convert_open_theirs(options->source, watch->notes, &m.source, err);
    m.source.catalog.prefix = options->prefix;
    if (!st) st = decide(&m, err);
    if (!st) st = list_beyond(&m, err);
    const struct pd_ckpt_mapping mapping = {m.model, &m.links, &m.source.catalog, .is_import = true};
    if (!st && options->dry_run && watch->mapping) st = watch->mapping(watch->context, &mapping, err);
    if (!st && !options->dry_run) st = make_state(&m, err);
    if (!st && !options->dry_run) st = pd_ckpt_rewrite_codec(options->compression, &m.rewrite.codec, err);
    const struct pd_import_request request = request_of(&m);
    if (!st && !options->dry_run) st = pd_import_check(&request, err);
    if (!st && !options->dry_run) st = convert(&m, err);
    return close_import(&m, st, err);
}

/* ---- init.from ---- */

/* Under the layout of one rank: a run loads any layout. */
static pd_status prepare_for_run(struct import *m, const struct pd_config *config, struct pd_error *err)
{
    char *yaml = NULL;
    PD_TRY(pd_ckpt_foreign_open(config->init.from, UINT64_MAX, m->watch->notes, &m->source, err));
    PD_TRY(pd_config_print(config, &yaml, err));
    const pd_status st = pd_config_parse_saved(yaml, NULL, 0, &m->config, err);
    free(yaml);
    PD_TRY(st);
    PD_TRY(pd_config_model(&m->config, &m->model, err));
    PD_TRY(link_source(m, err));
    pd_layout_init_dp(&m->laid_out.layout, 1);
    m->laid_out.layout.virtual_tp = m->config.numerics.virtual_tp;
    m->laid_out.layout.virtual_sp = m->config.numerics.virtual_sp;
    PD_TRY(list_beyond(m, err));
    return make_state(m, err);
}

pd_status pd_convert_import_for_run(const struct pd_config *config, const char *directory,
                                    const struct pd_convert_watch *watch, struct pd_error *err)
{
    const struct pd_convert options = {.source = config->init.from, .destination = directory, .fresh_optimizer = true};
    struct import m = {.options = &options, .watch = watch};
    pd_status st = prepare_for_run(&m, config, err);
    if (!st) st = convert(&m, err);
    st = close_import(&m, st, err);
    if (st == PD_STOPPED) pd_error_append(err, "; run the same command to start over");
    return st;
}
