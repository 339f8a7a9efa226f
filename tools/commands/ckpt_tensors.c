/* perdure ckpt stats and diff: the tensors of checkpoints, ours and other programs'. */
#include "ckpt/base/arena.h"
#include "ckpt/base/words.h"
#include "resharder/convert/compare.h"
#include "resharder/formats/perdure.h"
#include "tools/commands/ckpt.h"
#include "tools/library/foreign.h"
#include "tools/output.h"
#include "trainer/model/links.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_ours(const struct pd_ckpt_foreign *f)
{
    return pd_ckpt_foreign_is_run(f);
}

static pd_status take_buffers(struct pd_arena **ret_arena, void **ret_buffers, struct pd_error *err)
{
    const struct pd_memory_plan memory = {.bytes = {[PD_MEMORY_BUFFERS] = PD_COMPARE_BUFFER_BYTES}};
    PD_TRY(pd_arena_new(&memory, ret_arena, err));
    *ret_buffers = pd_arena_take(*ret_arena, PD_MEMORY_BUFFERS, PD_COMPARE_BUFFER_BYTES);
    return PD_OK;
}

/* ---- stats ---- */

struct stats {
    struct pd_ckpt_foreign f;
    const char *part;                 /* of a name, or NULL */
    bool *wanted;                     /* (tensors) */
    struct pd_tensor_report *reports; /* (tensors) */
    uint64_t bytes_read, state_digest;
    bool has_digest; /* of the state: all of our checkpoint was read */
};

static pd_status stats_read(struct stats *s, void *buffers, struct pd_error *err)
{
    const struct pd_catalog *c = &s->f.catalog;
    struct pd_shown_progress progress;
    bool any = !s->part;
    for (uint32_t t = 0; t < c->tensor_count; t++) {
        s->wanted[t] = !s->part || strstr(c->tensors[t].name, s->part);
        any = any || s->wanted[t];
    }
    if (!any) PD_FAIL(err, PD_USAGE, "no tensor has \"%s\" in its name; leave --tensor out to see all", s->part);
    const struct pd_compare_request request = {
        .left = {.catalog = c}, .buffers = buffers, .progress = pd_shown_progress_start(&progress), .context = &progress};
    PD_TRY(pd_compare_report(s->f.vfs, &request, s->wanted, s->reports, &s->bytes_read, err));
    pd_shown_progress_end(&progress);
    s->has_digest = is_ours(&s->f) && !s->part;
    return s->has_digest ? pd_compare_state_digest(c, s->reports, &s->state_digest, err) : PD_OK;
}

/* Copies of a checkpoint have the same arrays, under any layout. */
static pd_status stats_read_any(struct stats *s, struct pd_error *err)
{
    struct pd_arena *arena = NULL;
    void *buffers;
    s->wanted = calloc((size_t)s->f.catalog.tensor_count + 1, sizeof *s->wanted);
    s->reports = calloc((size_t)s->f.catalog.tensor_count + 1, sizeof *s->reports);
    if (!s->wanted || !s->reports) PD_FAIL(err, PD_NO_MEMORY, "no memory for statistics");
    PD_TRY(take_buffers(&arena, &buffers, err));
    pd_status st;
    do {
        st = stats_read(s, buffers, err);
    } while (st && !(st = pd_ckpt_foreign_take_copy(&s->f, st, err)));
    pd_arena_free(arena);
    return is_ours(&s->f) ? pd_ckpt_add_advice(st, err) : st;
}

static pd_status stats_open(const char *path, uint64_t step, const char *part, struct stats *s, struct pd_error *err)
{
    *s = (struct stats){.part = part};
    PD_TRY(pd_ckpt_foreign_open(path, step, &pd_ckpt_notes, &s->f, err));
    PD_TRY(pd_ckpt_foreign_refuse_step(&s->f, step, err));
    return stats_read_any(s, err);
}

static void stats_close(struct stats *s)
{
    free(s->wanted);
    free(s->reports);
    pd_ckpt_foreign_close(&s->f);
}

static void stats_row(struct pd_table *table, const struct pd_foreign_tensor *t, const struct pd_tensor_report *r)
{
    char bad[64] = "";
    if (r->nan_count || r->inf_count)
        snprintf(bad, sizeof bad, "%" PRIu64 " NaN, %" PRIu64 " inf", r->nan_count, r->inf_count);
    PD_TABLE_ROW(table, t->name, pd_kind_name(t->kind), pd_text_count(r->elements).text, pd_text_number(r->min).text,
                 pd_text_number(r->max).text, pd_text_number(r->mean).text, pd_text_number(r->rms).text,
                 pd_text_hex(r->digest).text, bad);
}

static void stats_json(struct pd_json_writer *w, const struct pd_foreign_tensor *t, const struct pd_tensor_report *r)
{
    pd_json_object_begin(w, NULL);
    PD_JSON_STRINGS(w, {"tensor", t->name}, {"kind", pd_kind_name(t->kind)});
    pd_json_array_begin(w, "shape");
    for (uint32_t d = 0; d < t->ndim; d++)
        pd_json_u64(w, NULL, t->shape[d]);
    pd_json_array_end(w);
    pd_json_u64(w, "elements", r->elements);
    pd_json_hex64(w, "digest", r->digest);
    PD_JSON_DOUBLES(w, {"min", r->min}, {"max", r->max}, {"mean", r->mean}, {"rms", r->rms});
    PD_JSON_U64S(w, {"nan", r->nan_count}, {"inf", r->inf_count});
    pd_json_object_end(w);
}

static pd_status stats_print(const struct stats *s, bool is_json, struct pd_error *err)
{
    const struct pd_catalog *c = &s->f.catalog;
    struct pd_table table;
    struct pd_json_writer w;
    PD_TABLE_INIT(&table, "TENSOR", "KIND", ">ELEMENTS", ">MIN", ">MAX", ">MEAN", ">RMS", "DIGEST", "");
    pd_json_writer_init_object(&w, 2);
    pd_json_string(&w, "checkpoint", s->f.path);
    pd_json_u64(&w, "step", c->counters.step);
    if (s->has_digest) pd_json_hex64(&w, "state_digest", s->state_digest);
    pd_json_u64(&w, "bytes_read", s->bytes_read);
    pd_json_array_begin(&w, "tensors");
    for (uint32_t t = 0; t < c->tensor_count; t++) {
        if (!s->wanted[t]) continue;
        stats_row(&table, &c->tensors[t], &s->reports[t]);
        stats_json(&w, &c->tensors[t], &s->reports[t]);
    }
    const pd_status st = is_json ? pd_output_json(&w, err) : pd_table_print(&table, err);
    if (!st && !is_json && s->has_digest)
        printf("state digest of step %" PRIu64 ": %s\n", c->counters.step, pd_text_hex(s->state_digest).text);
    pd_json_writer_deinit(&w);
    pd_table_deinit(&table);
    return st;
}

pd_status pd_ckpt_stats(const struct pd_ckpt_options *options, struct pd_error *err)
{
    struct stats s;
    pd_status st = stats_open(options->paths[0], options->step, options->tensor, &s, err);
    if (!st) st = stats_print(&s, options->json, err);
    stats_close(&s);
    return st;
}

pd_status pd_ckpt_state_digest(const char *path, uint64_t *ret_digest, struct pd_error *err)
{
    struct stats s;
    const pd_status st = stats_open(path, UINT64_MAX, NULL, &s, err);
    *ret_digest = s.state_digest;
    stats_close(&s);
    return st;
}

/* ---- diff ---- */

struct sides {
    struct pd_ckpt_foreign opened[2], *of[2]; /* if both are the same, it is opened once */
    struct pd_links links[2];
    struct pd_model *model; /* from one of them; NULL: match tensors by name */
};

/* Our checkpoints have the model's tensors unchanged. */
static pd_status link_ours(const struct pd_ckpt_foreign *f, const struct pd_model *model, struct pd_links *links,
                           struct pd_error *err)
{
    for (uint32_t t = 0; t < model->tensors.count; t++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            const struct pd_tensor *tensor = &model->tensors.tensors[t];
            const int64_t found = pd_catalog_find(&f->catalog, tensor->name, (enum pd_kind)kind);
            if (found >= 0 && pd_foreign_elements(&f->catalog.tensors[found]) != pd_tensor_elements(tensor))
                PD_FAIL(err, PD_INVALID, "tensor %s does not have the shape that the other checkpoint's model gives it",
                        tensor->name);
            if (found >= 0) PD_TRY(pd_links_add_own(links, &model->tensors, t, (enum pd_kind)kind, err));
        }
    return PD_OK;
}

static pd_status link_side(const struct pd_ckpt_foreign *f, const struct pd_model *model, struct pd_links *links,
                           struct pd_error *err)
{
    if (is_ours(f)) return link_ours(f, model, links, err);
    return pd_model_links(model, NULL, &f->catalog, pd_ckpt_foreign_has_moments(f), links, err);
}

/* Parts of a model, from an export with --only, cannot be linked to a model. */
static bool share_names(const struct sides *s)
{
    const struct pd_catalog *left = &s->of[0]->catalog;
    if (is_ours(s->of[0]) || is_ours(s->of[1])) return false;
    for (uint32_t t = 0; t < left->tensor_count; t++)
        if (pd_catalog_find(&s->of[1]->catalog, left->tensors[t].name, left->tensors[t].kind) >= 0) return true;
    return false;
}

static void unlink_sides(struct sides *s)
{
    for (int i = 0; i < 2; i++) {
        pd_links_deinit(&s->links[i]);
        s->links[i] = (struct pd_links){0};
    }
    pd_model_free(s->model);
    s->model = NULL;
}

static pd_status link_sides(struct sides *s, struct pd_error *err)
{
    if (s->of[0]->format == &pd_format_perdure && s->of[1]->format == &pd_format_perdure) return PD_OK;
    pd_status st = pd_ckpt_foreign_model(s->of[0], &s->model, err);
    if (st == PD_NOT_FOUND) st = pd_ckpt_foreign_model(s->of[1], &s->model, err);
    if (st == PD_NOT_FOUND) return PD_OK;
    int i = 0;
    while (!st && i < 2) {
        st = link_side(s->of[i], s->model, &s->links[i], err);
        i += !st;
    }
    if (!st || i == 2) return st;
    if (st == PD_INVALID && share_names(s)) {
        unlink_sides(s);
        pd_error_clear(err);
        return PD_OK;
    }
    st = pd_error_context(err, st, "%s", s->of[i]->path);
    pd_error_append(err, "; perdure ckpt show lists what each has");
    return st;
}

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

/* PD_ONLY_LEFT or PD_ONLY_RIGHT if one side has all moments and the other none; *ret_count of them. Else PD_SAME. */
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

/* "step 6 under dp 2, tp 1, pp 1, sp 1 and step 6 under dp 1, ...", or the two formats. */
static pd_status print_sides(const struct sides *s, struct pd_error *err)
{
    struct pd_commit commits[2] = {0};
    if (!is_ours(s->of[0]) || !is_ours(s->of[1])) {
        printf("%s and %s\n", s->of[0]->format->name, s->of[1]->format->name);
        return PD_OK;
    }
    pd_status st = pd_ckpt_foreign_record(s->of[0], &commits[0], err);
    if (!st) st = pd_ckpt_foreign_record(s->of[1], &commits[1], err);
    const struct pd_identity *left = &commits[0].state.identity, *right = &commits[1].state.identity;
    for (int i = 0; !st && i < 2; i++) {
        const struct pd_layout *l = &commits[i].state.layout;
        printf("%sstep %" PRIu64 " under dp %u, tp %u, pp %u, sp %u", i ? " and " : "", commits[i].state.identity.step,
               l->dp, l->tp, l->pp, l->sp);
        if (l->ep > 1) printf(", ep %u", l->ep);
    }
    if (!st) puts(memcmp(left->run_id, right->run_id, sizeof left->run_id) ? ", of two runs" : "");
    pd_commit_deinit(&commits[0]);
    pd_commit_deinit(&commits[1]);
    return st;
}

static pd_status diff_print(const struct sides *s, const struct pd_diff *diff, struct pd_error *err)
{
    struct pd_table table;
    uint64_t moments;
    const enum pd_difference lone = find_lone_moments(diff, &moments);
    PD_TRY(print_sides(s, err));
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

static pd_status diff_json(const struct sides *s, const struct pd_diff *diff, struct pd_error *err)
{
    static const char *const words[] = {"same", "different", "only_left", "only_right", "other_shape"};
    struct pd_json_writer w;
    pd_json_writer_init_object(&w, 2);
    PD_JSON_STRINGS(&w, {"left", s->of[0]->path}, {"right", s->of[1]->path});
    PD_JSON_U64S(&w, {"left_step", s->of[0]->catalog.counters.step}, {"right_step", s->of[1]->catalog.counters.step},
                 {"arrays", diff->count}, {"different", diff->different_count});
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

/* If one side cannot be read, continues with a copy in another tier. */
static pd_status diff_read(const struct pd_ckpt_options *o, struct sides *s, void *buffers, struct pd_diff *ret_diff,
                           struct pd_error *err)
{
    struct pd_shown_progress progress;
    int bad = 0;
    pd_status st;
    do {
        const pd_inspect_progress show = pd_shown_progress_start(&progress);
        const struct pd_compare_request request = {
            .left = {.catalog = &s->of[0]->catalog, .links = s->model ? &s->links[0] : NULL},
            .right = {.catalog = &s->of[1]->catalog, .links = s->model ? &s->links[1] : NULL},
            .tensors = s->model ? &s->model->tensors : NULL,
            .buffers = buffers,
            .progress = o->quiet ? NULL : show,
            .context = &progress,
            .bad_side = &bad};
        st = pd_compare(s->of[0]->vfs, &request, ret_diff, err);
        pd_shown_progress_end(&progress);
    } while (st && !(st = pd_ckpt_foreign_take_copy(s->of[bad], st, err)));
    return st && is_ours(s->of[bad]) ? pd_ckpt_add_advice(st, err) : st;
}

static pd_status diff_sides(const struct pd_ckpt_options *o, struct sides *s, struct pd_error *err)
{
    struct pd_arena *arena = NULL;
    struct pd_diff diff = {0};
    void *buffers;
    PD_TRY(link_sides(s, err));
    PD_TRY(take_buffers(&arena, &buffers, err));
    pd_status st = diff_read(o, s, buffers, &diff, err);
    if (!st && o->json)
        st = diff_json(s, &diff, err);
    else if (!st && !o->quiet)
        st = diff_print(s, &diff, err);
    if (!st && diff.different_count)
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s and %s hold different state", s->of[0]->path, s->of[1]->path);
    if (st == PD_CORRUPT && o->quiet && diff.different_count) pd_error_clear(err);
    pd_diff_deinit(&diff);
    pd_arena_free(arena);
    return st;
}

pd_status pd_ckpt_diff(const struct pd_ckpt_options *options, struct pd_error *err)
{
    struct sides s = {.of = {&s.opened[0], &s.opened[0]}};
    PD_TRY(pd_ckpt_foreign_open(options->paths[0], UINT64_MAX, &pd_ckpt_notes, &s.opened[0], err));
    pd_status st = PD_OK;
    if (strcmp(options->paths[0], options->paths[1]) != 0) {
        s.of[1] = &s.opened[1];
        st = pd_ckpt_foreign_open(options->paths[1], UINT64_MAX, &pd_ckpt_notes, &s.opened[1], err);
    }
    if (!st) st = diff_sides(options, &s, err);
    unlink_sides(&s);
    for (int i = 0; i < 2; i++)
        pd_ckpt_foreign_close(&s.opened[i]);
    return st;
}
