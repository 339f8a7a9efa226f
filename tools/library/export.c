/* Converts a checkpoint, ours or another program's, to another program's format. */
#include "resharder/convert/export.h"
#include "ckpt/base/arena.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/json.h"
#include "resharder/catalog/model_directory.h"
#include "resharder/formats/gguf.h"
#include "resharder/formats/perdure.h"
#include "tools/library/convert.h"
#include "trainer/model/hugging_face.h"
#include "trainer/model/links.h"
#include "trainer/sample/sample_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum pd_element as_asked(const struct pd_foreign_tensor *tensor, enum pd_element wanted)
{
    (void)tensor;
    return wanted;
}

/* The dialect of a format's file names, and the type of a tensor if one was requested. */
static const struct {
    const char *format, *dialect;
    enum pd_element (*element_of)(const struct pd_foreign_tensor *tensor, enum pd_element wanted);
} dialects[] = {{"gguf", "gguf", pd_gguf_element},
                {"llmc", "llmc", as_asked},
                {"megatron", "megatron", as_asked},
                {"torchtitan", "torchtitan", as_asked},
                {NULL, "hugging_face", as_asked}};

struct export
{
    const struct pd_convert *options;
    const struct pd_convert_watch *watch;
    const struct pd_format *format;
    const char *dialect;
    enum pd_element (*element_of)(const struct pd_foreign_tensor *tensor, enum pd_element wanted);
    enum pd_dtype dtype;
    enum pd_element element;
    enum pd_expert_form experts;
    struct pd_ckpt_foreign source;
    bool is_foreign, has_moments; /* of the source */
    bool is_fresh;                /* missing moments begin at zero */
    struct pd_config config;      /* of the run that saved it */
    struct pd_model *model;
    struct pd_links source_links; /* if it is foreign */
    struct pd_catalog whole;      /* everything the format could hold, for its links */
    struct pd_catalog wanted;     /* the requested part of it */
    struct pd_links links;
    struct pd_export_report report;
    struct pd_expert_count count;
    double seconds;
};

/* ---- what is requested ---- */

static pd_status choose_format(struct export *x, struct pd_error *err)
{
    const char *name = x->options->format, *dtype = x->options->dtype ? x->options->dtype : "fp32";
    x->format = name ? pd_format_find(name) : NULL;
    if (!x->format || x->format->plan == pd_format_not_written) {
        char known[200] = "";
        size_t used = 0;
        for (const struct pd_format *const *f = pd_formats; *f; f++)
            if ((*f)->plan != pd_format_not_written && used < sizeof known)
                used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", (*f)->name);
        if (!name) PD_FAIL(err, PD_USAGE, "choose a format: --format=safetensors; there are %s", known);
        PD_FAIL(err, PD_USAGE, "--format=%s: expected one of %s", name, known);
    }
    uint32_t i = 0;
    while (dialects[i].format && strcmp(dialects[i].format, name) != 0)
        i++;
    x->dialect = dialects[i].dialect;
    x->element_of = dialects[i].element_of;
    static const struct {
        const char *name;
        enum pd_dtype dtype;
        enum pd_element element;
    } types[] = {{"fp32", PD_F32, PD_ELEMENT_F32},
                 {"bf16", PD_BF16, PD_ELEMENT_BF16},
                 {"fp16", PD_F16, PD_ELEMENT_F16},
                 {"q8_0", PD_F32, PD_ELEMENT_Q8_0}};
    const bool is_gguf = x->format == &pd_format_gguf;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        if (strcmp(types[t].name, dtype) == 0 && (is_gguf || types[t].element != PD_ELEMENT_Q8_0)) {
            x->dtype = types[t].dtype;
            x->element = types[t].element;
            return PD_OK;
        }
    PD_FAIL(err, PD_USAGE, "--dtype=%s: expected fp32, bf16%s fp16%s", dtype, is_gguf ? "," : " or",
            is_gguf ? " or q8_0" : "");
}

static pd_status choose_experts(struct export *x, struct pd_error *err)
{
    const char *form = x->options->experts;
    const bool is_fused = form && strcmp(form, "fused") == 0;
    if (!form) return PD_OK;
    if (!is_fused && strcmp(form, "separate") != 0) PD_FAIL(err, PD_USAGE, "--experts=%s: expected separate or fused", form);
    if (strcmp(x->dialect, "hugging_face") != 0)
        PD_FAIL(err, PD_USAGE, "--experts=%s: %s has one form of experts; leave it out", form, x->format->name);
    x->experts = is_fused ? PD_EXPERTS_FUSED : PD_EXPERTS_USUAL;
    return PD_OK;
}

static pd_status read_config(struct export *x, struct pd_error *err)
{
    const char *file = x->options->config_file;
    const struct pd_catalog_text *yaml = pd_catalog_text(&x->source.catalog, "config.yaml");
    if (x->is_foreign) return pd_ckpt_foreign_configure(&x->source, file, &x->config, err);
    if (file) PD_FAIL(err, PD_USAGE, "--config=%s: %s describes its model itself; leave it out", file, x->source.path);
    return pd_config_parse_saved(yaml->text, NULL, 0, &x->config, err);
}

/* As an import would. */
static pd_status link_source(struct export *x, struct pd_error *err)
{
    const bool is_fresh = x->options->fresh_optimizer || !x->format->holds_moments;
    PD_TRY(pd_ckpt_foreign_link(&x->source, x->model, is_fresh, &x->source_links, err));
    PD_TRY(pd_ckpt_foreign_check_tied(&x->source, x->model, &x->source_links, err));
    if (x->format->holds_moments && !x->has_moments && x->is_fresh && !x->options->fresh_optimizer)
        pd_note(x->watch->plain_notes, "%s has no moments: the export's are zero", x->source.path);
    if (x->format->holds_moments && !x->has_moments && !x->is_fresh && !x->options->dry_run)
        PD_FAIL(err, PD_INVALID, "%s has no %s of tensor %s; give --fresh-optimizer, and moments begin at zero",
                x->source.path, pd_kind_name(PD_EXP_AVG), x->model->tensors.tensors[0].name);
    return pd_ckpt_foreign_list_beyond(&x->source, x->model, &x->source_links, x->format->holds_moments, "not exported",
                                       x->watch->plain_notes, err);
}

static pd_status open_source(struct export *x, struct pd_error *err)
{
    PD_TRY(pd_ckpt_foreign_open(x->options->source, x->options->step, x->watch->notes, &x->source, err));
    x->source.catalog.prefix = x->options->prefix;
    x->is_foreign = !pd_ckpt_foreign_is_run(&x->source);
    x->has_moments = pd_ckpt_foreign_has_moments(&x->source);
    x->is_fresh = x->options->fresh_optimizer || (x->is_foreign && pd_ckpt_foreign_is_model(&x->source));
    PD_TRY(pd_ckpt_foreign_refuse_step(&x->source, x->options->step, err));
    PD_TRY(read_config(x, err));
    PD_TRY(pd_config_model(&x->config, &x->model, err));
    return x->is_foreign ? link_source(x, err) : PD_OK;
}

/* Links need a finished catalog, but do not look at file offsets. */
static pd_status link_whole(struct export *x, struct pd_error *err)
{
    pd_catalog_init(&x->whole, x->format->name);
    PD_TRY(pd_model_foreign(x->model, x->dialect, PD_ELEMENT_F32, x->experts, x->format->holds_moments, &x->whole, err));
    PD_TRY(pd_catalog_add_file(&x->whole, "all", UINT64_MAX, NULL, err));
    for (uint32_t t = 0; t < x->whole.tensor_count; t++) {
        if (x->whole.tensors[t].kind == PD_PARAM)
            x->whole.tensors[t].element = x->element_of(&x->whole.tensors[t], x->element);
        PD_TRY(pd_catalog_place(&x->whole, t, 0, 0, err));
    }
    PD_TRY(pd_catalog_finish(&x->whole, err));
    return pd_model_links(x->model, x->dialect, &x->whole, x->format->holds_moments, &x->links, err);
}

/* An import puts the tokenizer into the directory of checkpoints; a run keeps its own in run.dir. */
static pd_status add_tokenizer_beside(struct export *x, struct pd_catalog *beside, struct pd_error *err)
{
    char path[PD_FORMATS_PATH_MAX + 64], *text = NULL;
    uint64_t bytes = 0;
    if (pd_catalog_text(beside, PD_TOKENIZER_FILE) || pd_catalog_text(beside, PD_TOKENIZER_GGUF_FILE)) return PD_OK;
    if (!pd_sample_text_find(x->options->source, path, sizeof path) &&
        !pd_sample_text_find(x->source.place.root, path, sizeof path))
        return PD_OK;
    PD_TRY(pd_formats_read_text(x->source.vfs, path, PD_CATALOG_TEXT_MAX, &text, &bytes, err));
    const pd_status st = pd_catalog_add_text(beside, strrchr(path, '/') + 1, text, bytes, err);
    free(text);
    return st;
}

/* Takes the tokenizer beside the run, or bytes if its tokens are bytes. *ret_text NULL: there is none. */
static pd_status make_gguf_tokenizer(const struct export *x, const struct pd_catalog *beside,
                                     const struct pd_special_tokens *tokens, char **ret_text, struct pd_error *err)
{
    const int64_t eos = tokens->eos_count ? tokens->eos[0] : -1;
    const uint32_t vocab = x->model->config.vocab;
    struct pd_tokenizer *tokenizer = NULL;
    PD_TRY(pd_ckpt_foreign_open_tokenizer(beside, &tokenizer, err));
    if (!tokenizer && vocab != 256) return PD_OK;
    if (!tokenizer) PD_TRY(pd_tokenizer_open("byte", &tokenizer, err));
    const pd_status st = pd_tokenizer_save_gguf(tokenizer, vocab, tokens->bos, eos, ret_text, err);
    pd_tokenizer_free(tokenizer);
    return st;
}

/* GGUF holds the tokenizer inside. If it cannot express this one, tokenizer.huggingface.json carries it unchanged. */
static pd_status add_gguf_tokenizer(struct export *x, const struct pd_catalog *beside,
                                    const struct pd_special_tokens *tokens, struct pd_error *err)
{
    const struct pd_catalog_text *json = pd_catalog_text(beside, PD_TOKENIZER_FILE);
    struct pd_error why = {0};
    char *text = NULL;
    if (pd_catalog_text(beside, PD_TOKENIZER_GGUF_FILE)) return PD_OK;
    pd_status st = make_gguf_tokenizer(x, beside, tokens, &text, &why);
    if (st == PD_UNSUPPORTED && json)
        pd_note(x->watch->plain_notes,
                "the tokenizer is stored as tokenizer.huggingface.json, which llama.cpp does not read: %s", why.message);
    else if (st)
        return pd_error_pass(err, st, &why);
    if (text)
        st = pd_catalog_add_text(&x->wanted, PD_TOKENIZER_GGUF_FILE, text, strlen(text), err);
    else {
        /* Writes `json` (or NULL) unchanged, and the tokens that begin and end a text. */
        struct pd_json_writer w;
        pd_json_writer_init_object(&w, 0);
        if (json) pd_json_string(&w, "huggingface.json", json->text);
        if (tokens->bos >= 0) pd_json_i64(&w, "ggml.bos_token_id", tokens->bos);
        if (tokens->eos_count) pd_json_i64(&w, "ggml.eos_token_id", tokens->eos[0]);
        st = pd_catalog_add_json(&x->wanted, PD_TOKENIZER_GGUF_FILE, &w, PD_OK, err);
    }
    free(text);
    return st;
}

/* From config.json, or if that lacks them from generation_config.json. */
static struct pd_special_tokens find_tokens(const struct pd_catalog *beside)
{
    static const char *const names[] = {"config.json", "generation_config.json"};
    struct pd_special_tokens found = {.bos = -1};
    for (int i = 0; i < 2; i++) {
        const struct pd_catalog_text *text = pd_catalog_text(beside, names[i]);
        struct pd_special_tokens tokens;
        if (!text || pd_hugging_face_read_tokens(text->name, text->text, text->bytes, &tokens, NULL)) continue;
        if (found.bos < 0) found.bos = tokens.bos;
        if (!found.eos_count) {
            tokens.bos = found.bos;
            found = tokens;
        }
    }
    return found;
}

/* A program that loads the files uses the tokenizer beside them, or bytes without one: warn if the model used another. */
static pd_status warn_of_other_tokenizer(const struct export *x, const struct pd_catalog *beside, struct pd_error *err)
{
    struct pd_commit commit = {0};
    struct pd_tokenizer *bytes = NULL;
    PD_TRY(pd_ckpt_foreign_record(&x->source, &commit, err));
    const uint64_t trained = commit.state.tokenizer_digest, here = pd_ckpt_foreign_tokenizer(beside);
    pd_commit_deinit(&commit);
    PD_TRY(pd_tokenizer_open("byte", &bytes, err));
    const bool is_other = trained && trained != (here ? here : pd_tokenizer_digest(bytes));
    pd_tokenizer_free(bytes);
    if (is_other && here)
        pd_note(x->watch->plain_notes,
                "the exported tokenizer is not the one the model was trained with (digest %016" PRIx64
                "; the checkpoint has %016" PRIx64 ")",
                here, trained);
    else if (is_other)
        pd_note(x->watch->plain_notes,
                "not exported: the tokenizer that the model was trained with (digest %016" PRIx64
                "), which is not beside it",
                trained);
    return PD_OK;
}

/* Reads what an import has put beside the checkpoints, or would. */
static pd_status read_beside(struct export *x, struct pd_catalog *beside, struct pd_error *err)
{
    if (x->is_foreign) return pd_formats_copy_texts(&x->source.catalog, beside, err);
    PD_TRY(pd_formats_add_texts(x->source.vfs, x->source.place.root, beside, err));
    PD_TRY(add_tokenizer_beside(x, beside, err));
    return x->options->dry_run ? PD_OK : warn_of_other_tokenizer(x, beside, err);
}

/* transformers reads tokenizer.json only. */
static void warn_of_gguf_tokenizer(const struct export *x, const struct pd_catalog *beside)
{
    if (pd_catalog_text(beside, PD_TOKENIZER_GGUF_FILE) && !pd_catalog_text(beside, PD_TOKENIZER_FILE))
        pd_note(x->watch->plain_notes,
                "the tokenizer is stored as " PD_TOKENIZER_GGUF_FILE
                ", which perdure reads and transformers does not; put the model's " PD_TOKENIZER_FILE
                " beside it, or let transformers make one of the GGUF file: python3 -c 'from transformers import "
                "AutoTokenizer; AutoTokenizer.from_pretrained(\".\", gguf_file=\"model.gguf\")"
                ".save_pretrained(\"tokenizer\")'");
}

static pd_status want(struct export *x, struct pd_error *err)
{
    pd_catalog_init(&x->wanted, x->format->name);
    x->wanted.counters = pd_ckpt_foreign_counters(&x->source, &x->config);
    x->wanted.adam = (struct pd_catalog_adam){.is_known = true,
                                              .rate = x->config.optimizer.lr,
                                              .beta1 = x->config.optimizer.beta1,
                                              .beta2 = x->config.optimizer.beta2,
                                              .epsilon = x->config.optimizer.epsilon,
                                              .decay = x->config.optimizer.weight_decay};
    for (uint32_t t = 0; t < x->whole.tensor_count; t++)
        if (!x->options->only || strstr(x->whole.tensors[t].name, x->options->only))
            PD_TRY(pd_catalog_add_tensor(&x->wanted, &x->whole.tensors[t], NULL, err));
    if (!x->wanted.tensor_count)
        PD_FAIL(err, PD_USAGE, "--only=%s: no tensor has that in its name; perdure ckpt stats %s lists them",
                x->options->only, x->source.path);
    if (x->has_moments && !x->format->holds_moments && !x->options->dry_run)
        pd_note(x->watch->plain_notes, "not exported: moments of the optimizer, which %s has no place for", x->format->name);
    /* config.json, generation_config.json, and the files beside the checkpoint. */
    struct pd_catalog beside;
    char *config = NULL, *generation = NULL;
    pd_catalog_init(&beside, "");
    pd_status st = read_beside(x, &beside, err);
    const struct pd_special_tokens tokens = find_tokens(&beside);
    const struct pd_catalog_text *sampling = pd_catalog_text(&beside, "generation_config.json");
    if (!st) st = pd_hugging_face_write(&x->model->config, x->dtype, &tokens, &config, &generation, err);
    if (!st) st = pd_catalog_add_text(&x->wanted, "config.json", config, strlen(config), err);
    if (!st && !sampling)
        st = pd_catalog_add_text(&x->wanted, "generation_config.json", generation, strlen(generation), err);
    if (!st && x->format == &pd_format_gguf)
        st = add_gguf_tokenizer(x, &beside, &tokens, err);
    else if (!st)
        warn_of_gguf_tokenizer(x, &beside);
    for (uint32_t i = 0; !st && i < beside.text_count; i++)
        if (!pd_catalog_text(&x->wanted, beside.texts[i].name))
            st = pd_catalog_add_text(&x->wanted, beside.texts[i].name, beside.texts[i].text, beside.texts[i].bytes, err);
    free(config);
    free(generation);
    pd_catalog_deinit(&beside);
    return st;
}

/* ---- the work ---- */

/* The files have been read back: they hold what was wanted. Without --only that is all of the source's experts. */
static pd_status count_experts(struct export *x, struct pd_error *err)
{
    const struct pd_links *from = x->is_foreign ? &x->source_links : NULL;
    PD_TRY(pd_expert_count_catalog(x->model, from, &x->source.catalog, &x->count.in, err));
    PD_TRY(pd_expert_count_catalog(x->model, &x->links, &x->wanted, &x->count.out, err));
    return x->options->only ? PD_OK : pd_expert_count_compare(&x->count, x->source.path, err);
}

static pd_status ckpt_export_work(struct export *x, struct pd_error *err)
{
    const uint64_t start_ns = pd_clock_monotonic_ns(NULL);
    const struct pd_convert_watch *w = x->watch;
    struct pd_arena *arena = NULL;
    struct pd_export *export = NULL;
    const struct pd_memory_plan memory = {.bytes = {[PD_MEMORY_BUFFERS] = PD_EXPORT_BUFFER_BYTES}};
    PD_TRY(pd_export_begin(x->source.vfs, x->format, &x->wanted, x->options->destination, 0, &export, err));
    pd_status st = pd_arena_new(&memory, &arena, err);
    if (st) return pd_export_end(export, st, err);
    const struct pd_export_request request = {.source = x->source.path,
                                              .catalog = &x->source.catalog,
                                              .tensors = &x->model->tensors,
                                              .links = &x->links,
                                              .source_links = x->is_foreign ? &x->source_links : NULL,
                                              .fresh_optimizer = x->is_fresh,
                                              .buffers = pd_arena_take(arena, PD_MEMORY_BUFFERS, PD_EXPORT_BUFFER_BYTES),
                                              .should_stop = w->should_stop,
                                              .progress = w->progress,
                                              .context = w->context};
    if (w->begin) w->begin(w->context);
    st = pd_export_run(export, &request, &x->report, err);
    if (w->end) w->end(w->context);
    if (!st) st = count_experts(x, err);
    st = pd_export_end(export, st, err);
    x->seconds = pd_clock_seconds_since(start_ns);
    pd_arena_free(arena);
    return x->is_foreign ? st : pd_ckpt_add_advice(st, err);
}

pd_status pd_convert_export(const struct pd_convert *options, const struct pd_convert_watch *watch, struct pd_error *err)
{
    struct export x = {.options = options, .watch = watch};
    PD_TRY(choose_format(&x, err));
    PD_TRY(choose_experts(&x, err));
    pd_status st = open_source(&x, err);
    if (!st) st = link_whole(&x, err);
    if (!st) st = want(&x, err);
    const struct pd_ckpt_mapping mapping = {.model = x.model,
                                            .links = &x.links,
                                            .catalog = &x.whole,
                                            .only = options->only,
                                            .sources = x.is_foreign ? &x.source_links : NULL};
    if (!st && options->dry_run && watch->mapping) st = watch->mapping(watch->context, &mapping, err);
    if (!st && !options->dry_run) st = ckpt_export_work(&x, err);
    if (x.is_foreign || st == PD_NO_SPACE) st = pd_ckpt_foreign_add_advice(st, options->source, err);
    const struct pd_exported result = {.path = options->destination,
                                       .format = x.format ? x.format->name : NULL,
                                       .step = x.source.catalog.counters.step,
                                       .report = &x.report,
                                       .experts = x.model && x.model->config.experts && !options->only ? &x.count : NULL,
                                       .seconds = x.seconds};
    if (!st && !options->dry_run && watch->exported) st = watch->exported(watch->context, &result, err);
    pd_links_deinit(&x.links);
    pd_links_deinit(&x.source_links);
    pd_catalog_deinit(&x.whole);
    pd_catalog_deinit(&x.wanted);
    pd_model_free(x.model);
    pd_config_deinit(&x.config);
    pd_ckpt_foreign_close(&x.source);
    return st;
}
