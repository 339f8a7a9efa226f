/* perdure ckpt show, stats, diff of checkpoints of other systems, and of one of ours beside one of theirs. */
#include "ckpt/base/arena.h"
#include "ckpt/base/words.h"
#include "resharder/catalog/family.h"
#include "resharder/convert/compare.h"
#include "resharder/formats/perdure.h"
#include "tools/commands/ckpt.h"
#include "tools/commands/ckpt_foreign.h"
#include "tools/output.h"
#include "trainer/model/links.h"
#include "trainer/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- show ---- */

static struct pd_text shape_text(const struct pd_foreign_tensor *t)
{
    struct pd_text text = {""};
    size_t used = 0;
    for (uint32_t d = 0; d < t->ndim && used < sizeof text.text; d++)
        used += (size_t)snprintf(text.text + used, sizeof text.text - used, "%s%" PRIu64, d ? " x " : "", t->shape[d]);
    if (!t->ndim) snprintf(text.text, sizeof text.text, "1");
    return text;
}

static uint64_t file_bytes(const struct pd_catalog *c)
{
    uint64_t bytes = 0;
    for (uint32_t f = 0; f < c->file_count; f++)
        bytes += c->files[f].bytes;
    return bytes;
}

/* Architecture, parameters, context, types and tokenizer, as far as the files say them. */
static void show_model(const struct pd_ckpt_foreign *f)
{
    const struct pd_catalog *c = &f->catalog;
    struct pd_model *model = NULL;
    struct pd_error why = {0};
    struct pd_tokenizer *tokenizer = NULL;
    const pd_status st = pd_ckpt_foreign_model(f, &model, &why);
    if (!st) {
        const struct pd_model_config *m = &model->config;
        printf("model: %s, %s parameters, %s, hidden %u, %s (%u of keys), vocabulary %u, context %u\n",
               pd_family_names[m->family], pd_text_count(model->parameter_count).text, pd_counted(m->layers, "block").text,
               m->hidden, pd_counted(m->heads, "head").text, m->kv_heads, m->vocab, m->context);
    } else if (st != PD_NOT_FOUND) {
        printf("model: not one that perdure computes: %s\n", why.message);
    }
    pd_model_free(model);
    printf("types:");
    for (int e = 0, shown = 0; e < PD_ELEMENT_COUNT; e++) {
        uint32_t count = 0;
        for (uint32_t t = 0; t < c->tensor_count; t++)
            count += c->tensors[t].element == (enum pd_element)e;
        if (count) printf("%s %u of %s", shown++ ? "," : "", count, pd_elements[e].name);
    }
    putchar('\n');
    if (pd_ckpt_foreign_open_tokenizer(c, &tokenizer, &why))
        printf("tokenizer: one that perdure does not read: %s\n", why.message);
    else if (tokenizer)
        printf("tokenizer: %u tokens, digest %s\n", pd_tokenizer_vocab(tokenizer),
               pd_text_hex(pd_tokenizer_digest(tokenizer)).text);
    pd_tokenizer_free(tokenizer);
}

static pd_status show_text(const struct pd_ckpt_foreign *f, struct pd_error *err)
{
    const struct pd_catalog *c = &f->catalog;
    struct pd_table table;
    printf("%s: %s, %s in %s, %s\n", f->path, f->format->name, pd_counted(c->tensor_count, "tensor").text,
           pd_counted(c->file_count, "file").text, pd_text_bytes(file_bytes(c)).text);
    show_model(f);
    if (c->counters.has_step) printf("step %" PRIu64 "\n", c->counters.step);
    for (uint32_t i = 0; i < c->text_count; i++)
        printf("with %s, %s\n", c->texts[i].name, pd_text_bytes(c->texts[i].bytes).text);
    for (uint32_t i = 0; i < c->unmapped_count; i++)
        printf("an import leaves this out: %s\n", c->unmapped[i]);
    PD_TABLE_INIT(&table, "TENSOR", "KIND", "TYPE", "SHAPE");
    for (uint32_t t = 0; t < c->tensor_count; t++)
        PD_TABLE_ROW(&table, c->tensors[t].name, pd_kind_name(c->tensors[t].kind), pd_elements[c->tensors[t].element].name,
                     shape_text(&c->tensors[t]).text);
    return pd_table_print(&table, err);
}

static pd_status show_json(const struct pd_ckpt_foreign *f, struct pd_error *err)
{
    const struct pd_catalog *c = &f->catalog;
    struct pd_json_writer w;
    pd_json_writer_init_object(&w, 2);
    PD_JSON_STRINGS(&w, {"path", f->path}, {"format", f->format->name});
    PD_JSON_U64S(&w, {"files", c->file_count}, {"bytes", file_bytes(c)}, {"step", c->counters.step});
    const uint64_t digest = pd_ckpt_foreign_tokenizer(c);
    if (digest) pd_json_hex64(&w, "tokenizer", digest);
    pd_json_array_begin(&w, "texts");
    for (uint32_t i = 0; i < c->text_count; i++)
        pd_json_string(&w, NULL, c->texts[i].name);
    pd_json_array_end(&w);
    pd_json_array_begin(&w, "unmapped");
    for (uint32_t i = 0; i < c->unmapped_count; i++)
        pd_json_string(&w, NULL, c->unmapped[i]);
    pd_json_array_end(&w);
    pd_json_array_begin(&w, "tensors");
    for (uint32_t t = 0; t < c->tensor_count; t++) {
        pd_json_object_begin(&w, NULL);
        PD_JSON_STRINGS(&w, {"tensor", c->tensors[t].name}, {"kind", pd_kind_name(c->tensors[t].kind)},
                        {"type", pd_elements[c->tensors[t].element].name});
        pd_json_array_begin(&w, "shape");
        for (uint32_t d = 0; d < c->tensors[t].ndim; d++)
            pd_json_u64(&w, NULL, c->tensors[t].shape[d]);
        pd_json_array_end(&w);
        pd_json_object_end(&w);
    }
    return pd_output_json(&w, err);
}

/* --config: JSON is YAML. */
static pd_status show_config(const struct pd_ckpt_foreign *f, struct pd_error *err)
{
    const struct pd_catalog_text *text = pd_catalog_text(&f->catalog, "config.json");
    if (!text) PD_FAIL(err, PD_INVALID, "%s does not say which model it is; leave out --config to see its tensors", f->path);
    fwrite(text->text, 1, text->bytes, stdout);
    return PD_OK;
}

pd_status pd_ckpt_foreign_show(const struct pd_ckpt_options *options, struct pd_error *err)
{
    struct pd_ckpt_foreign f;
    PD_TRY(pd_ckpt_foreign_open(options->paths[0], UINT64_MAX, &f, err));
    pd_status st = pd_ckpt_foreign_refuse_step(&f, options->step, err);
    if (!st && options->config && !options->json)
        st = show_config(&f, err);
    else if (!st)
        st = options->json ? show_json(&f, err) : show_text(&f, err);
    pd_ckpt_foreign_close(&f);
    return st;
}

/* ---- stats ---- */

static pd_status print_stats(const struct pd_ckpt_foreign *f, const bool *wanted, const struct pd_tensor_report *reports,
                             bool is_json, struct pd_error *err)
{
    struct pd_table table;
    struct pd_json_writer w;
    PD_TABLE_INIT(&table, "TENSOR", "KIND", ">ELEMENTS", ">MIN", ">MAX", ">MEAN", ">RMS", "DIGEST", "");
    pd_json_writer_init_object(&w, 2);
    pd_json_array_begin(&w, "tensors");
    for (uint32_t t = 0; t < f->catalog.tensor_count; t++) {
        if (!wanted[t]) continue;
        pd_ckpt_stats_row(&table, f->catalog.tensors[t].name, f->catalog.tensors[t].kind, &reports[t]);
        pd_ckpt_stats_json(&w, f->catalog.tensors[t].name, f->catalog.tensors[t].ndim, f->catalog.tensors[t].shape,
                           f->catalog.tensors[t].kind, &reports[t]);
    }
    const pd_status st = is_json ? pd_output_json(&w, err) : pd_table_print(&table, err);
    pd_json_writer_deinit(&w);
    pd_table_deinit(&table);
    return st;
}

static pd_status compute_stats(const struct pd_ckpt_options *o, struct pd_ckpt_foreign *f, void *buffers, bool *wanted,
                               struct pd_tensor_report *reports, struct pd_error *err)
{
    struct pd_shown_progress progress;
    bool any = !o->tensor;
    for (uint32_t t = 0; t < f->catalog.tensor_count; t++) {
        wanted[t] = !o->tensor || strstr(f->catalog.tensors[t].name, o->tensor);
        any = any || wanted[t];
    }
    if (!any) PD_FAIL(err, PD_USAGE, "no tensor has \"%s\" in its name; leave --tensor out to see all", o->tensor);
    const struct pd_compare_request request = {.left = {.catalog = &f->catalog},
                                               .buffers = buffers,
                                               .progress = pd_shown_progress_start(&progress),
                                               .context = &progress};
    const pd_status st = pd_compare_report(f->vfs, &request, wanted, reports, err);
    pd_shown_progress_end(&progress);
    return st ? st : print_stats(f, wanted, reports, o->json, err);
}

pd_status pd_ckpt_foreign_stats(const struct pd_ckpt_options *options, struct pd_error *err)
{
    struct pd_ckpt_foreign f;
    struct pd_arena *arena = NULL;
    const struct pd_memory_plan memory = {.bytes = {[PD_MEMORY_BUFFERS] = PD_COMPARE_BUFFER_BYTES}};
    PD_TRY(pd_ckpt_foreign_open(options->paths[0], UINT64_MAX, &f, err));
    bool *wanted = calloc((size_t)f.catalog.tensor_count + 1, sizeof *wanted);
    struct pd_tensor_report *reports = calloc((size_t)f.catalog.tensor_count + 1, sizeof *reports);
    pd_status st = pd_ckpt_foreign_refuse_step(&f, options->step, err);
    if (!st)
        st = wanted && reports ? pd_arena_new(&memory, &arena, err)
                               : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for statistics");
    if (!st)
        st = compute_stats(options, &f, pd_arena_take(arena, PD_MEMORY_BUFFERS, PD_COMPARE_BUFFER_BYTES), wanted, reports,
                           err);
    pd_arena_free(arena);
    free(wanted);
    free(reports);
    pd_ckpt_foreign_close(&f);
    return st;
}

/* ---- diff ---- */

struct sides {
    struct pd_ckpt_foreign of[2];
    struct pd_links links[2];
    struct pd_model *model; /* that one of them says it is; NULL: neither does */
};

/* A checkpoint of ours has the model's tensors as they are. */
static pd_status link_ours(const struct pd_ckpt_foreign *f, const struct pd_model *model, struct pd_links *links,
                           struct pd_error *err)
{
    for (uint32_t t = 0; t < model->tensors.count; t++)
        for (int kind = 0; kind < PD_KIND_COUNT; kind++) {
            struct pd_tensor *tensor = &model->tensors.tensors[t];
            const int64_t found = pd_catalog_find(&f->catalog, tensor->name, (enum pd_kind)kind);
            const struct pd_link link = {
                .tensor = t, .kind = (enum pd_kind)kind, .name = tensor->name, .view = pd_view_dense(tensor)};
            if (found >= 0 && pd_foreign_elements(&f->catalog.tensors[found]) != pd_tensor_elements(tensor))
                PD_FAIL(err, PD_INVALID, "tensor %s does not have the shape that the other checkpoint's model gives it",
                        tensor->name);
            if (found >= 0) PD_TRY(pd_links_add(links, &link, err));
        }
    return PD_OK;
}

static pd_status link_side(const struct pd_ckpt_foreign *f, const struct pd_model *model, struct pd_links *links,
                           struct pd_error *err)
{
    if (f->format == &pd_format_perdure) return link_ours(f, model, links, err);
    return pd_model_links(model, NULL, &f->catalog, pd_ckpt_foreign_has_moments(f), links, err);
}

/* Two parts of a model, as an export with --only leaves them, have no model to be linked to. */
static bool share_names(const struct sides *s)
{
    const struct pd_catalog *left = &s->of[0].catalog;
    if (s->of[0].format == &pd_format_perdure || s->of[1].format == &pd_format_perdure) return false;
    for (uint32_t t = 0; t < left->tensor_count; t++)
        if (pd_catalog_find(&s->of[1].catalog, left->tensors[t].name, left->tensors[t].kind) >= 0) return true;
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
    pd_status st = pd_ckpt_foreign_model(&s->of[0], &s->model, err);
    if (st == PD_NOT_FOUND) st = pd_ckpt_foreign_model(&s->of[1], &s->model, err);
    if (st == PD_NOT_FOUND) return PD_OK;
    int i = 0;
    while (!st && i < 2) {
        st = link_side(&s->of[i], s->model, &s->links[i], err);
        i += !st;
    }
    if (!st || i == 2) return st;
    if (st == PD_INVALID && share_names(s)) {
        unlink_sides(s);
        pd_error_clear(err);
        return PD_OK;
    }
    st = pd_error_context(err, st, "%s", s->of[i].path);
    pd_error_append(err, "; perdure ckpt show lists what each has");
    return st;
}

static pd_status diff_sides(const struct pd_ckpt_options *o, struct sides *s, void *buffers, struct pd_error *err)
{
    struct pd_shown_progress progress;
    struct pd_diff diff = {0};
    const pd_inspect_progress show = pd_shown_progress_start(&progress);
    struct pd_compare_request request = {.left = {.catalog = &s->of[0].catalog},
                                         .right = {.catalog = &s->of[1].catalog},
                                         .buffers = buffers,
                                         .progress = o->quiet ? NULL : show,
                                         .context = &progress};
    if (s->model) {
        request.tensors = &s->model->tensors;
        request.left.links = &s->links[0];
        request.right.links = &s->links[1];
    }
    pd_status st = pd_compare(s->of[0].vfs, &request, &diff, err);
    pd_shown_progress_end(&progress);
    const char *paths[2] = {s->of[0].path, s->of[1].path};
    const uint64_t steps[2] = {s->of[0].catalog.counters.step, s->of[1].catalog.counters.step};
    if (!st && !o->quiet && !o->json) printf("%s and %s\n", s->of[0].format->name, s->of[1].format->name);
    if (!st && o->json)
        st = pd_ckpt_diff_json(paths, steps, &diff, err);
    else if (!st && !o->quiet)
        st = pd_ckpt_diff_print(&diff, err);
    if (!st && diff.different_count)
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s and %s hold different state", paths[0], paths[1]);
    if (st == PD_CORRUPT && o->quiet && diff.different_count) pd_error_clear(err);
    pd_diff_deinit(&diff);
    return st;
}

pd_status pd_ckpt_foreign_diff(const struct pd_ckpt_options *options, struct pd_error *err)
{
    struct sides s = {.model = NULL};
    struct pd_arena *arena = NULL;
    const struct pd_memory_plan memory = {.bytes = {[PD_MEMORY_BUFFERS] = PD_COMPARE_BUFFER_BYTES}};
    PD_TRY(pd_ckpt_foreign_open(options->paths[0], UINT64_MAX, &s.of[0], err));
    pd_status st = pd_ckpt_foreign_open(options->paths[1], UINT64_MAX, &s.of[1], err);
    if (!st) {
        st = link_sides(&s, err);
        if (!st) st = pd_arena_new(&memory, &arena, err);
        if (!st) st = diff_sides(options, &s, pd_arena_take(arena, PD_MEMORY_BUFFERS, PD_COMPARE_BUFFER_BYTES), err);
        pd_ckpt_foreign_close(&s.of[1]);
    }
    pd_arena_free(arena);
    unlink_sides(&s);
    pd_ckpt_foreign_close(&s.of[0]);
    return st;
}
