/* perdure ckpt show: prints the record of a checkpoint, or describes another program's files. */
#include "ckpt/base/words.h"
#include "resharder/catalog/family.h"
#include "resharder/formats/perdure.h"
#include "resharder/layout.h"
#include "tools/commands/ckpt.h"
#include "tools/library/foreign.h"
#include "tools/output.h"
#include "trainer/engine/computed_on.h"
#include "trainer/sample/sample_text.h"
#include "trainer/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- ours: the commit record, without reading tensors ---- */

/* Path of a checkpoint's tokenizer, and whether it has changed. */
struct shown_tokenizer {
    uint64_t digest, here; /* 0: unknown; none there that perdure reads */
    char path[4200];       /* "": none */
};

static struct shown_tokenizer find_tokenizer(const char *path, const struct pd_ckpt_place *place,
                                             const struct pd_run_state *s)
{
    struct shown_tokenizer t = {.digest = s->tokenizer_digest};
    struct pd_tokenizer *tokenizer = NULL;
    if (!pd_sample_text_find(path, t.path, sizeof t.path) && !pd_sample_text_find(place->root, t.path, sizeof t.path))
        t.path[0] = '\0';
    if (t.path[0] && !pd_tokenizer_open(t.path, &tokenizer, NULL)) t.here = pd_tokenizer_digest(tokenizer);
    pd_tokenizer_free(tokenizer);
    return t;
}

static void ours_tokenizer(const struct shown_tokenizer *t)
{
    if (!t->digest && !t->path[0]) return;
    const bool is_bytes = t->digest == pd_tokenizer_digest_of_bytes();
    printf("tokenizer   %s", is_bytes ? "bytes" : t->digest ? pd_text_hex(t->digest).text : "not remembered");
    if (t->path[0])
        printf("; %s %s",
               t->here == t->digest ? "it is"
               : t->here            ? "another lies in"
                                    : "one that is not read here lies in",
               t->path);
    else if (!is_bytes)
        printf("; not beside the checkpoint");
    printf("\n");
}

static void ours_text(const struct pd_store_entry *e, const struct pd_commit *commit,
                      const struct shown_tokenizer *tokenizer)
{
    const struct pd_run_state *s = &commit->state;
    const struct pd_layout *l = &s->layout;
    char device[160];
    printf("checkpoint  %s, %s in %s\n", e->name, pd_text_bytes(e->bytes).text,
           pd_counted(commit->shard_count, "shard").text);
    printf("run         %s%s\n", pd_text_hex(s->identity.run_id[0]).text, pd_text_hex(s->identity.run_id[1]).text);
    printf("step        %" PRIu64 ", lineage %" PRIu64 ", saved by launch %" PRIu64 "\n", s->identity.step,
           s->identity.lineage, s->fence);
    printf("done        %s update%s, %s sequence%s, %s tokens\n", pd_text_count(s->updates).text, s->updates == 1 ? "" : "s",
           pd_text_count(s->samples).text, s->samples == 1 ? "" : "s", pd_text_count(s->tokens).text);
    printf("loss        ");
    if (isnan(s->last_loss)) /* imported */
        printf("-");
    else
        printf("%.6f", s->last_loss);
    if (!isnan(s->best_validation_loss)) printf(", best validation loss %.6f", s->best_validation_loss);
    printf("\nmodel       %s parameters in %" PRIu64 " tensors\n", pd_text_count(s->parameter_count).text, s->tensor_count);
    printf("layout      dp %u, tp %u, pp %u, sp %u; state in %s, ZeRO %u\n", l->dp, l->tp, l->pp, l->sp,
           pd_counted(l->zero_shard, "part").text, l->zero_stage);
    if (l->ep > 1) printf("            experts spread over %u data ranks each (ep)\n", l->ep);
    if (l->virtual_tp > 1 || l->virtual_sp > 1)
        printf("            admits tp up to %u and sp up to %u\n", l->virtual_tp, l->virtual_sp);
    if (l->stage_count > 1) {
        printf("            %u stages from unit", l->stage_count);
        for (uint32_t i = 0; i < l->stage_count; i++)
            printf("%s %u", i ? "," : "", l->first_unit[i]);
        printf("%s\n", l->interleave > 1 ? ", dealt round the pp ranks" : "");
    }
    printf("seed        %" PRIu64 "\n", s->seed);
    printf("data        %s%s\n", pd_text_hex(s->data_fingerprint[0]).text, pd_text_hex(s->data_fingerprint[1]).text);
    ours_tokenizer(tokenizer);
    printf("made by     %s\n", s->created_by);
    if (!s->updates) return; /* initial or imported: not trained here */
    pd_computed_on_describe(s->environment, device, sizeof device);
    printf("computed    on %s\n", device);
}

static pd_status ours_json(const struct pd_store_entry *e, const struct pd_commit *commit,
                           const struct shown_tokenizer *tokenizer, struct pd_error *err)
{
    const struct pd_run_state *s = &commit->state;
    struct pd_json_writer w;
    char words[72];
    pd_json_writer_init_object(&w, 2);
    pd_json_string(&w, "name", e->name);
    snprintf(words, sizeof words, "%s%s", pd_text_hex(s->identity.run_id[0]).text, pd_text_hex(s->identity.run_id[1]).text);
    pd_json_string(&w, "run_id", words);
    PD_JSON_U64S(&w, {"step", s->identity.step}, {"lineage", s->identity.lineage}, {"fence", s->fence},
                 {"updates", s->updates}, {"samples", s->samples}, {"tokens", s->tokens});
    pd_json_measured(&w, "loss", s->last_loss);
    pd_json_measured(&w, "best_validation_loss", s->best_validation_loss);
    PD_JSON_U64S(&w, {"parameters", s->parameter_count}, {"tensors", s->tensor_count}, {"bytes", e->bytes},
                 {"shards", commit->shard_count});
    pd_ckpt_json_layout(&w, &s->layout);
    pd_json_u64(&w, "seed", s->seed);
    snprintf(words, sizeof words, "%s%s", pd_text_hex(s->data_fingerprint[0]).text,
             pd_text_hex(s->data_fingerprint[1]).text);
    pd_json_string(&w, "data_fingerprint", words);
    if (tokenizer->digest) pd_json_hex64(&w, "tokenizer", tokenizer->digest);
    if (tokenizer->path[0]) pd_json_string(&w, "tokenizer_path", tokenizer->path);
    if (tokenizer->here) pd_json_hex64(&w, "tokenizer_here", tokenizer->here);
    PD_JSON_STRINGS(&w, {"created_by", s->created_by}, {"config", s->config}, {"environment", s->environment});
    return pd_output_json(&w, err);
}

/* ---- other programs, and tensors that a program listed ---- */

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

/* Prints architecture, parameters, context, types and tokenizer, as far as the files give them. */
static void theirs_model(const struct pd_ckpt_foreign *f)
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

static pd_status theirs_text(const struct pd_ckpt_foreign *f, struct pd_error *err)
{
    const struct pd_catalog *c = &f->catalog;
    struct pd_table table;
    printf("%s: %s, %s in %s, %s\n", f->path, f->format->name, pd_counted(c->tensor_count, "tensor").text,
           pd_counted(c->file_count, "file").text, pd_text_bytes(file_bytes(c)).text);
    theirs_model(f);
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

static pd_status theirs_json(const struct pd_ckpt_foreign *f, struct pd_error *err)
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

/* For --config: JSON is YAML. */
static pd_status theirs_config(const struct pd_ckpt_foreign *f, struct pd_error *err)
{
    const struct pd_catalog_text *text = pd_catalog_text(&f->catalog, "config.json");
    if (!text) text = pd_catalog_text(&f->catalog, PD_FORMAT_LISTED_TEXT);
    if (!text) PD_FAIL(err, PD_INVALID, "%s does not say which model it is; leave out --config to see its tensors", f->path);
    fwrite(text->text, 1, text->bytes, stdout);
    return PD_OK;
}

static pd_status show_theirs(const struct pd_ckpt_options *options, struct pd_error *err)
{
    struct pd_ckpt_foreign f;
    PD_TRY(pd_ckpt_foreign_open(options->paths[0], options->step, &pd_ckpt_notes, &f, err));
    pd_status st = pd_ckpt_foreign_refuse_step(&f, options->step, err);
    if (!st && options->config && !options->json)
        st = theirs_config(&f, err);
    else if (!st)
        st = options->json ? theirs_json(&f, err) : theirs_text(&f, err);
    pd_ckpt_foreign_close(&f);
    return st;
}

static pd_status show_ours(const struct pd_ckpt_options *o, struct pd_error *err)
{
    struct pd_ckpt_place place;
    const struct pd_store_entry *entry;
    struct pd_commit commit = {0};
    PD_TRY(pd_ckpt_place_open(o->paths[0], NULL, &pd_ckpt_notes, &place, err));
    pd_status status = pd_ckpt_place_choose(&place, o->step, &entry, err);
    if (!status) status = pd_store_read_commit(place.store, entry, &commit, err);
    while (status && entry && pd_ckpt_place_next_copy(&place, err, &entry))
        status = pd_store_read_commit(place.store, entry, &commit, err);
    const bool is_listed = !status && commit.state.layout.is_listed;
    if (!status && !is_listed) {
        const struct shown_tokenizer tokenizer = find_tokenizer(o->paths[0], &place, &commit.state);
        if (o->config && !o->json)
            fputs(commit.state.config, stdout);
        else if (o->json)
            status = ours_json(entry, &commit, &tokenizer, err);
        else
            ours_text(entry, &commit, &tokenizer);
    }
    pd_commit_deinit(&commit);
    pd_ckpt_place_close(&place);
    return is_listed ? show_theirs(o, err) : status;
}

pd_status pd_ckpt_show(const struct pd_ckpt_options *options, struct pd_error *err)
{
    return pd_ckpt_is_foreign(options->paths[0]) ? show_theirs(options, err) : show_ours(options, err);
}
