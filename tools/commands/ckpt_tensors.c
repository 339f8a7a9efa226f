/* perdure ckpt diff, stats: the tensors of checkpoints. */
#include "ckpt/base/words.h"
#include "tools/commands/ckpt.h"
#include "tools/commands/ckpt_place.h"
#include "tools/output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One checkpoint, looked into. */
struct opened {
    struct pd_ckpt_place place;
    const struct pd_store_entry *entry; /* NULL: PATH named it */
    struct pd_inspect *inspect;
    char path[4096];
};

static void opened_close(struct opened *o)
{
    pd_inspect_close(o->inspect);
    o->inspect = NULL;
    pd_ckpt_place_close(&o->place);
}

static pd_status look_into(struct opened *o, struct pd_error *err)
{
    pd_inspect_close(o->inspect);
    o->inspect = NULL;
    if (o->entry) pd_store_entry_path(o->place.store, o->entry, o->path);
    pd_status status = pd_inspect_open(o->place.vfs, o->path, &o->inspect, err);
    if (!status) status = pd_inspect_check_complete(o->inspect, err);
    return status == PD_NOT_FOUND ? PD_CORRUPT : status; /* there must be a valid checkpoint */
}

/* After reading it failed with `status` and *err: opens a copy in another tier. PD_OK: one is open. */
static pd_status take_copy(struct opened *o, pd_status status, struct pd_error *err)
{
    while (status && o->entry && pd_ckpt_place_next_copy(&o->place, err, &o->entry))
        if ((status = look_into(o, err)) == PD_OK) return PD_OK;
    return status;
}

/* A checkpoint that PATH names is opened even when the store would not list it. */
static pd_status opened_open(const char *path, uint64_t step, bool is_quiet, struct opened *o, struct pd_error *err)
{
    *o = (struct opened){0};
    PD_TRY(is_quiet ? pd_ckpt_place_open_quiet(path, &o->place, err) : pd_ckpt_place_open(path, NULL, &o->place, err));
    pd_status status = PD_OK;
    if (o->place.named[0]) {
        int length = snprintf(o->path, sizeof o->path, "%s/%s", o->place.root, o->place.named);
        PD_CHECK(length > 0 && (size_t)length < sizeof o->path);
    } else {
        status = pd_ckpt_place_choose(&o->place, step, &o->entry, err);
    }
    if (!status && (status = look_into(o, err))) status = take_copy(o, status, err);
    if (status) opened_close(o);
    return status;
}

/* ---- stats ---- */

static bool wanted(const struct pd_ckpt_options *options, const char *name)
{
    return !options->tensor || strstr(name, options->tensor);
}

void pd_ckpt_stats_row(struct pd_table *table, const char *name, enum pd_kind kind, const struct pd_tensor_report *r)
{
    char bad[64] = "";
    if (r->nan_count || r->inf_count)
        snprintf(bad, sizeof bad, "%" PRIu64 " NaN, %" PRIu64 " inf", r->nan_count, r->inf_count);
    PD_TABLE_ROW(table, name, pd_kind_name(kind), pd_text_count(r->elements).text, pd_text_number(r->min).text,
                 pd_text_number(r->max).text, pd_text_number(r->mean).text, pd_text_number(r->rms).text,
                 pd_text_hex(r->digest).text, bad);
}

void pd_ckpt_stats_json(struct pd_json_writer *w, const char *name, uint32_t ndim, const uint64_t *shape, enum pd_kind kind,
                        const struct pd_tensor_report *r)
{
    pd_json_object_begin(w, NULL);
    PD_JSON_STRINGS(w, {"tensor", name}, {"kind", pd_kind_name(kind)});
    pd_json_array_begin(w, "shape");
    for (uint32_t d = 0; d < ndim; d++)
        pd_json_u64(w, NULL, shape[d]);
    pd_json_array_end(w);
    pd_json_u64(w, "elements", r->elements);
    pd_json_hex64(w, "digest", r->digest);
    PD_JSON_DOUBLES(w, {"min", r->min}, {"max", r->max}, {"mean", r->mean}, {"rms", r->rms});
    PD_JSON_U64S(w, {"nan", r->nan_count}, {"inf", r->inf_count});
    pd_json_object_end(w);
}

static pd_status stats_print(const struct pd_ckpt_options *options, const struct opened *o,
                             const struct pd_state_report *report, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = pd_inspect_tensors(o->inspect);
    struct pd_json_writer w;
    struct pd_table table;
    uint32_t shown = 0;
    pd_json_writer_init(&w, 2);
    PD_TABLE_INIT(&table, "TENSOR", "KIND", ">ELEMENTS", ">MIN", ">MAX", ">MEAN", ">RMS", "DIGEST", "");
    pd_json_object_begin(&w, NULL);
    pd_json_string(&w, "checkpoint", o->path);
    pd_json_u64(&w, "step", pd_inspect_commit(o->inspect)->state.identity.step);
    if (!options->tensor) pd_json_hex64(&w, "state_digest", report->state_digest);
    pd_json_u64(&w, "bytes_read", report->bytes_read);
    pd_json_array_begin(&w, "tensors");
    for (uint32_t i = 0; i < tensors->count * PD_KIND_COUNT; i++) {
        const struct pd_tensor *t = &tensors->tensors[i / PD_KIND_COUNT];
        if (!wanted(options, t->name)) continue;
        pd_ckpt_stats_row(&table, t->name, (enum pd_kind)(i % PD_KIND_COUNT), &report->rows[i]);
        pd_ckpt_stats_json(&w, t->name, t->ndim, t->shape, (enum pd_kind)(i % PD_KIND_COUNT), &report->rows[i]);
        shown++;
    }
    pd_json_array_end(&w);
    pd_json_object_end(&w);
    pd_status status = PD_OK;
    if (!shown)
        status = pd_error_set(err, PD_USAGE, PD_WHERE, 0, "no tensor has \"%s\" in its name; leave --tensor out to see all",
                              options->tensor);
    else if (options->json)
        status = pd_output_json(&w, err);
    else
        status = pd_table_print(&table, err);
    if (!status && !options->json && !options->tensor)
        printf("state digest of step %" PRIu64 ": %s\n", pd_inspect_commit(o->inspect)->state.identity.step,
               pd_text_hex(report->state_digest).text);
    pd_json_writer_deinit(&w);
    pd_table_deinit(&table);
    return status;
}

/* All tensors with the digest of the whole, or the named ones, for which nothing else is read. */
static pd_status stats_report(const struct pd_ckpt_options *options, const struct opened *o, pd_inspect_progress show,
                              struct pd_shown_progress *progress, struct pd_state_report *ret_report, struct pd_error *err)
{
    const struct pd_tensor_table *tensors = pd_inspect_tensors(o->inspect);
    if (!options->tensor) return pd_inspect_report(o->inspect, true, show, progress, ret_report, err);
    bool *chosen = calloc(tensors->count + 1ull, sizeof *chosen);
    if (!chosen) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u tensors", tensors->count);
    for (uint32_t t = 0; t < tensors->count; t++)
        chosen[t] = wanted(options, tensors->tensors[t].name);
    pd_status status = pd_inspect_report_some(o->inspect, chosen, show, progress, ret_report, err);
    free(chosen);
    return status;
}

pd_status pd_ckpt_stats(const struct pd_ckpt_options *options, struct pd_error *err)
{
    struct opened o;
    struct pd_shown_progress progress;
    struct pd_state_report report = {0};
    PD_TRY(opened_open(options->paths[0], options->step, false, &o, err));
    pd_status status = PD_OK;
    do {
        status = stats_report(options, &o, pd_shown_progress_start(&progress), &progress, &report, err);
    } while (status && !(status = take_copy(&o, status, err)));
    status = pd_ckpt_add_advice(status, err);
    if (!status) {
        pd_shown_progress_end(&progress);
        status = stats_print(options, &o, &report, err);
    }
    pd_state_report_deinit(&report);
    opened_close(&o);
    return status;
}

/* ---- diff ---- */

static const char *const difference_names[] = {"same", "different", "only in the first", "only in the second",
                                               "other shape"};

static void diff_row(struct pd_table *table, const struct pd_diff_row *r)
{
    char share[96] = "", first[64] = "", values[80] = "";
    if (r->difference == PD_DIFFERENT) {
        snprintf(share, sizeof share, "%s of %s", pd_text_count(r->differing).text, pd_text_count(r->elements).text);
        snprintf(first, sizeof first, "%s", pd_text_count(r->first).text);
        snprintf(values, sizeof values, "%.9g, %.9g", r->left, r->right);
    }
    PD_TABLE_ROW(table, r->name, pd_kind_name(r->kind), difference_names[r->difference], share,
                 r->difference == PD_DIFFERENT ? pd_text_number(r->max_abs).text : "", first, values);
}

/* PD_ONLY_LEFT or PD_ONLY_RIGHT where one side has all moments and the other none; *ret_count of them. Else PD_SAME. */
static enum pd_difference find_lone_moments(const struct pd_diff *diff, uint64_t *ret_count)
{
    enum pd_difference lone = PD_SAME;
    *ret_count = 0;
    for (uint64_t i = 0; i < diff->count; i++) {
        const enum pd_difference one = diff->rows[i].difference;
        if (diff->rows[i].kind == PD_PARAM) continue;
        if ((one != PD_ONLY_LEFT && one != PD_ONLY_RIGHT) || (lone && one != lone)) return PD_SAME;
        lone = one;
        ++*ret_count;
    }
    return lone;
}

pd_status pd_ckpt_diff_print(const struct pd_diff *diff, struct pd_error *err)
{
    struct pd_table table;
    uint64_t moments;
    const enum pd_difference lone = find_lone_moments(diff, &moments);
    if (diff->different_count > (lone ? moments : 0)) {
        PD_TABLE_INIT(&table, "TENSOR", "KIND", "", "ELEMENTS", ">LARGEST", ">FIRST", "VALUES");
        for (uint64_t i = 0; i < diff->count; i++)
            if (diff->rows[i].difference != PD_SAME && (!lone || diff->rows[i].kind == PD_PARAM))
                diff_row(&table, &diff->rows[i]);
        PD_TRY(pd_table_print(&table, err));
    }
    if (lone) printf("%s of moments %s\n", pd_counted(moments, "array").text, difference_names[lone]);
    printf("%" PRIu64 " of %s differ\n", diff->different_count, pd_counted(diff->count, "array").text);
    return PD_OK;
}

static pd_status diff_text(const struct opened sides[2], const struct pd_diff *diff, struct pd_error *err)
{
    /* "steps 2 and 6, both under dp 2, tp 1, pp 1, sp 1" */
    const struct pd_run_state *s[2];
    char layouts[2][80];
    for (int i = 0; i < 2; i++) {
        s[i] = &pd_inspect_commit(sides[i].inspect)->state;
        const struct pd_layout *l = &s[i]->layout;
        snprintf(layouts[i], sizeof layouts[i], "dp %u, tp %u, pp %u, sp %u", l->dp, l->tp, l->pp, l->sp);
    }
    const uint64_t steps[2] = {s[0]->identity.step, s[1]->identity.step};
    if (steps[0] == steps[1])
        printf("both of step %" PRIu64, steps[0]);
    else
        printf("steps %" PRIu64 " and %" PRIu64, steps[0], steps[1]);
    if (strcmp(layouts[0], layouts[1]) == 0)
        printf(", both under %s", layouts[0]);
    else
        printf(", under %s and under %s", layouts[0], layouts[1]);
    printf("%s\n",
           memcmp(s[0]->identity.run_id, s[1]->identity.run_id, sizeof s[0]->identity.run_id) ? ", of two runs" : "");
    return pd_ckpt_diff_print(diff, err);
}

pd_status pd_ckpt_diff_json(const char *const paths[2], const uint64_t steps[2], const struct pd_diff *diff,
                            struct pd_error *err)
{
    static const char *const words[] = {"same", "different", "only_left", "only_right", "other_shape"};
    struct pd_json_writer w;
    pd_json_writer_init_object(&w, 2);
    PD_JSON_STRINGS(&w, {"left", paths[0]}, {"right", paths[1]});
    PD_JSON_U64S(&w, {"left_step", steps[0]}, {"right_step", steps[1]}, {"arrays", diff->count},
                 {"different", diff->different_count});
    pd_json_array_begin(&w, "differences");
    for (uint64_t i = 0; i < diff->count; i++) {
        const struct pd_diff_row *r = &diff->rows[i];
        if (r->difference == PD_SAME) continue;
        pd_json_object_begin(&w, NULL);
        PD_JSON_STRINGS(&w, {"tensor", r->name}, {"kind", pd_kind_name(r->kind)}, {"difference", words[r->difference]});
        PD_JSON_U64S(&w, {"elements", r->elements}, {"differing", r->differing});
        pd_json_double(&w, "max_abs", r->max_abs);
        pd_json_u64(&w, "first", r->first);
        PD_JSON_DOUBLES(&w, {"left", r->left}, {"right", r->right});
        pd_json_object_end(&w);
    }
    return pd_output_json(&w, err);
}

/* Whether this is the damaged side: reads all of it. */
static bool is_bad(struct opened *o, struct pd_error *err)
{
    struct pd_damage_list list = {0};
    pd_status status = pd_inspect_verify(o->inspect, NULL, NULL, &list, err);
    const bool bad = status || list.count;
    if (!status && bad) (void)pd_error_set(err, list.items[0].status, PD_WHERE, 0, "%s", list.items[0].text);
    pd_damage_list_deinit(&list);
    return bad;
}

static pd_status take_other_side(struct opened sides[2], pd_status status)
{
    for (int i = 0; i < 2 && pd_ckpt_is_of_copy(status); i++) {
        struct pd_error own = {0};
        if (sides[i].place.tiers.count == 1 || !sides[i].entry || !is_bad(&sides[i], &own)) continue;
        if (!take_copy(&sides[i], own.status, &own)) return PD_OK;
        return status; /* that side is closed now */
    }
    return status;
}

static pd_status diff_opened(const struct pd_ckpt_options *options, struct opened sides[2], struct pd_error *err)
{
    struct pd_shown_progress progress;
    struct pd_diff diff = {0};
    pd_status status = PD_OK;
    do {
        const pd_inspect_progress show = pd_shown_progress_start(&progress);
        status = pd_inspect_diff(sides[0].inspect, sides[1].inspect, options->quiet ? NULL : show, &progress, &diff, err);
        pd_shown_progress_end(&progress);
    } while (status && !(status = take_other_side(sides, status)));
    status = pd_ckpt_add_advice(status, err);
    if (!status && options->json) {
        const char *const paths[2] = {sides[0].path, sides[1].path};
        const uint64_t steps[2] = {pd_inspect_commit(sides[0].inspect)->state.identity.step,
                                   pd_inspect_commit(sides[1].inspect)->state.identity.step};
        status = pd_ckpt_diff_json(paths, steps, &diff, err);
    } else if (!status && !options->quiet)
        status = diff_text(sides, &diff, err);
    if (!status && diff.different_count)
        status = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s and %s hold different state", sides[0].path, sides[1].path);
    if (status == PD_CORRUPT && options->quiet && diff.different_count) pd_error_clear(err);
    pd_diff_deinit(&diff);
    return status;
}

pd_status pd_ckpt_diff(const struct pd_ckpt_options *options, struct pd_error *err)
{
    struct opened sides[2];
    PD_TRY(opened_open(options->paths[0], options->step, false, &sides[0], err));
    const bool is_known = strcmp(options->paths[0], options->paths[1]) == 0; /* what is wrong there has been said */
    pd_status status = opened_open(options->paths[1], options->step, is_known, &sides[1], err);
    if (!status) {
        status = diff_opened(options, sides, err);
        opened_close(&sides[1]);
    }
    opened_close(&sides[0]);
    return status;
}
