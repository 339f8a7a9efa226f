/* perdure ckpt: its subcommands and their options; ls and prune. */
#include "tools/commands/ckpt.h"
#include "ckpt/base/words.h"
#include "resharder/formats/perdure.h"
#include "resharder/layout.h"
#include "tools/command.h"
#include "tools/library/prune.h"
#include "tools/output.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void note_line(void *context, const char *text)
{
    fprintf(stderr, "%s%s\n", (const char *)context, text);
}

const struct pd_notes pd_ckpt_notes = {note_line, "perdure: "}, pd_ckpt_plain_notes = {note_line, ""};

/* ---- ls ---- */

static void ls_row(struct pd_table *table, const struct pd_store_entry *e, const struct pd_commit *commit, const char *root)
{
    char loss[24];
    snprintf(loss, sizeof loss, isnan(commit->state.last_loss) ? "-" : "%.4f", commit->state.last_loss); /* "-": imported */
    PD_TABLE_ROW(table, e->name, pd_text_plain(e->step).text, pd_text_plain(e->lineage).text, pd_text_plain(e->fence).text,
                 pd_text_plain(pd_layout_world(&commit->state.layout)).text,
                 pd_text_short((double)commit->state.tokens).text, loss, pd_text_bytes(e->bytes).text, root);
}

static void ls_json(struct pd_json_writer *w, const struct pd_store_entry *e, const struct pd_commit *commit,
                    const char *root)
{
    pd_json_object_begin(w, NULL);
    PD_JSON_STRINGS(w, {"name", e->name}, {"directory", root});
    PD_JSON_U64S(w, {"step", e->step}, {"lineage", e->lineage}, {"fence", e->fence},
                 {"world", pd_layout_world(&commit->state.layout)}, {"shards", e->shard_count}, {"bytes", e->bytes},
                 {"tokens", commit->state.tokens}, {"samples", commit->state.samples});
    pd_json_measured(w, "loss", commit->state.last_loss);
    pd_json_object_end(w);
}

static pd_status ls_rows(struct pd_ckpt_place *place, struct pd_table *table, struct pd_json_writer *w, struct pd_error *err)
{
    for (uint32_t i = 0; i < pd_store_count(place->store); i++) {
        const struct pd_store_entry *entry = pd_store_entry_at(place->store, i);
        struct pd_commit commit;
        if (place->named[0] && strcmp(place->named, entry->name) != 0) continue;
        PD_TRY(pd_store_read_commit(place->store, entry, &commit, err));
        ls_row(table, entry, &commit, place->root);
        ls_json(w, entry, &commit, place->root);
        pd_commit_deinit(&commit);
    }
    return PD_OK;
}

/* For ls a place without checkpoints is not an error; for verify it is. */
static pd_status ls_none(const struct pd_ckpt_place *place, struct pd_error *err)
{
    char text[4400];
    PD_TRY(pd_ckpt_place_describe_empty(place, text, sizeof text, err));
    printf("%s\n", text);
    return PD_OK;
}

/* Names the quarantined checkpoints, which are not listed. The store has reported other damaged ones. */
static void ls_aside(const struct pd_ckpt_place *place)
{
    for (uint32_t i = 0; !place->named[0] && i < place->tiers.count; i++) {
        const struct pd_run_tier *tier = &place->tiers.tiers[i];
        if (tier->quarantined)
            fprintf(stderr, "perdure: %s/quarantine has %s that launches moved aside; a file in each says why\n", tier->dir,
                    pd_counted(tier->quarantined, "checkpoint").text);
    }
}

static pd_status ls(const struct pd_ckpt_options *o, struct pd_error *err)
{
    static const char *const headings[] = {"CHECKPOINT", ">STEP", ">LINEAGE", ">LAUNCH", ">RANKS",
                                           ">TOKENS",    ">LOSS", ">SIZE",    "TIER"};
    struct pd_ckpt_place place;
    struct pd_table table;
    struct pd_json_writer w;
    const struct pd_store_entry *entry;
    PD_TRY(pd_ckpt_place_open(o->paths[0], NULL, &pd_ckpt_notes, &place, err));
    const uint32_t newest = place.tier;
    pd_table_init(&table, headings, place.tiers.count > 1 ? 9 : 8);
    pd_json_writer_init(&w, 2);
    pd_json_array_begin(&w, NULL);
    pd_status status = place.named[0] ? pd_ckpt_place_choose(&place, UINT64_MAX, &entry, err) : PD_OK;
    for (uint32_t i = 0; !status && i < place.tiers.count; i++)
        if (pd_ckpt_place_turn_to(&place, i)) status = ls_rows(&place, &table, &w, err);
    (void)pd_ckpt_place_turn_to(&place, newest);
    if (!status && o->json) status = pd_output_json(&w, err);
    if (!status && !o->json && table.rows > 1) status = pd_table_print(&table, err);
    if (!status && !o->json && !pd_store_count(place.store)) status = ls_none(&place, err);
    if (!status) ls_aside(&place);
    if (!status) status = pd_run_tiers_unread(&place.tiers, err);
    pd_json_writer_deinit(&w);
    pd_table_deinit(&table);
    pd_ckpt_place_close(&place);
    return status;
}

/* ---- prune ---- */

struct pruning {
    const struct pd_ckpt_options *options;
    struct pd_json_writer w;
    bool names_place; /* if there are several: name each one's figures */
};

/* With nothing to delete it writes nothing, since the path may be a mistake. */
static pd_status prune_tier(struct pruning *p, struct pd_ckpt_place *place, struct pd_error *err)
{
    struct pd_ckpt_pruned pruned = {0};
    char text[4400];
    const bool is_empty = !pd_store_count(place->store);
    if (is_empty) {
        PD_TRY(pd_ckpt_place_describe_empty(place, text, sizeof text, err));
        if (!p->options->json) printf("nothing is removed: %s\n", text);
    }
    const pd_status st = pd_ckpt_prune(place, p->options->keep_last, p->options->keep_every, &pruned, err);
    if (!place->store) return st;
    const uint32_t before = pruned.before, after = pruned.after;
    if (!p->options->json && before)
        printf("%s%s%u of %s removed, %u kept\n", p->names_place ? place->root : "", p->names_place ? ": " : "",
               before - after, pd_counted(before, "checkpoint").text, after);
    pd_json_object_begin(&p->w, NULL);
    if (p->names_place) pd_json_string(&p->w, "directory", place->root);
    pd_json_u64(&p->w, "removed", before - after);
    pd_json_array_begin(&p->w, "kept");
    for (uint32_t i = 0; i < after; i++)
        pd_json_string(&p->w, NULL, pd_store_entry_at(place->store, i)->name);
    pd_json_array_end(&p->w);
    pd_json_object_end(&p->w);
    return st;
}

/* Prunes each tier of a run with several. */
static pd_status prune_all(struct pruning *p, struct pd_error *err)
{
    struct pd_ckpt_place place;
    const char *path = p->options->paths[0];
    PD_TRY(pd_ckpt_place_open(path, NULL, &pd_ckpt_notes, &place, err));
    pd_status status = PD_OK;
    if (place.named[0])
        status = pd_error_set(err, PD_USAGE, PD_WHERE, 0, "%s is one checkpoint; name the directory it lies in", path);
    p->names_place = place.tiers.count > 1;
    if (p->names_place) pd_json_array_begin(&p->w, NULL);
    for (uint32_t i = 0; status != PD_USAGE && i < place.tiers.count; i++) { /* the first failure is the result */
        struct pd_error own = {0};
        const pd_status st = pd_ckpt_place_turn_to(&place, i) ? prune_tier(p, &place, &own) : PD_OK;
        if (!status) status = pd_error_pass(err, st, &own);
    }
    if (p->names_place) pd_json_array_end(&p->w);
    pd_ckpt_place_close(&place);
    return status;
}

static pd_status prune(const struct pd_ckpt_options *o, struct pd_error *err)
{
    struct pruning p = {.options = o};
    if (!o->keep_last)
        PD_FAIL(err, PD_USAGE,
                "say how many checkpoints to keep, at least one: --keep-last=N; see perdure ckpt prune --help");
    pd_json_writer_init(&p.w, 2);
    pd_status status = prune_all(&p, err);
    if (!status && o->json) status = pd_output_json(&p.w, err);
    pd_json_writer_deinit(&p.w);
    return status;
}

/* ---- arguments ---- */

#define PATH_MEANS                                                                                                   \
    "PATH is a run directory, a directory of checkpoints (the newest is used), or one checkpoint, of perdure or of " \
    "another program, and may be s3://bucket/prefix."

typedef pd_status subcommand(const struct pd_ckpt_options *, struct pd_error *);

static pd_status ckpt_run(const char *arguments, const char *doc, struct pd_option *options, struct pd_ckpt_options *o,
                          subcommand *body, int argc, char **argv, struct pd_error *err)
{
    const uint32_t wanted = strchr(arguments, ' ') ? 2 : 1;
    uint32_t count;
    const uint32_t sources = body == pd_ckpt_diff || body == pd_ckpt_send ? 2 : 1;
    const struct pd_usage usage = {.arguments = arguments,
                                   .doc = doc,
                                   .options = options,
                                   .json = &o->json,
                                   PD_WORDS(o->paths, wanted, &count),
                                   .words_in_buckets = sources};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    if (count < wanted)
        PD_FAIL(err, PD_USAGE, "name %s; see %s --help",
                wanted == 1                                         ? "a run or a directory of checkpoints"
                : body == pd_ckpt_reshard || body == pd_ckpt_import ? "a checkpoint and the directory for the new one"
                : body == pd_ckpt_export                            ? "a checkpoint and the directory to create"
                : body == pd_ckpt_send                              ? "a checkpoint and a bucket"
                                                                    : "two checkpoints",
                argv[0]);
    return body(o, err);
}

/* clang-format off */
#define STEP_ROW(doc) \
    PD_OPTION("step", "N", doc, PD_OPTION_U64, &o.step, 0, UINT64_MAX - 1, \
    "a whole number, such as --step=4")
/* clang-format on */

static pd_status run_ls(int argc, char **argv, struct pd_error *err)
{
    struct pd_ckpt_options o = {.step = UINT64_MAX};
    return ckpt_run(
        "PATH",
        "Lists valid checkpoints, newest first. It reads their records and file sizes; ckpt verify reads every byte. "
        "LINEAGE counts changes that gave other bits (accept_new_lineage). LAUNCH counts the launches of the run.",
        NULL, &o, ls, argc, argv, err);
}

static pd_status run_show(int argc, char **argv, struct pd_error *err)
{
    struct pd_ckpt_options o = {.step = UINT64_MAX};
    struct pd_option options[] = {
        STEP_ROW("this step instead of the newest"),
        PD_OPTION("config", NULL, "print only its configuration, as YAML", PD_OPTION_FLAG, &o.config),
        {0}};
    return ckpt_run("PATH", "Shows what a checkpoint's commit record says. " PATH_MEANS, options, &o, pd_ckpt_show, argc,
                    argv, err);
}

static pd_status run_verify(int argc, char **argv, struct pd_error *err)
{
    struct pd_ckpt_options o = {.step = UINT64_MAX};
    struct pd_option options[] = {STEP_ROW("this step only"), {0}};
    return ckpt_run("PATH",
                    "Reads every byte of a checkpoint, or of all checkpoints of a run, and compares it with the checksums. "
                    "Exits with 65 if one is damaged or incomplete. PATH is a run directory, a directory of checkpoints, or "
                    "one checkpoint, and may be s3://bucket/prefix.",
                    options, &o, pd_ckpt_verify, argc, argv, err);
}

static pd_status run_diff(int argc, char **argv, struct pd_error *err)
{
    struct pd_ckpt_options o = {.step = UINT64_MAX};
    struct pd_option options[] = {
        PD_OPTION("quiet", NULL, "print nothing, only set the exit code", PD_OPTION_FLAG, &o.quiet, .letter = 'q'), {0}};
    return ckpt_run("PATH PATH",
                    "Compares the tensors of two checkpoints, under any layouts. Exits with 65 if they differ. " PATH_MEANS,
                    options, &o, pd_ckpt_diff, argc, argv, err);
}

static pd_status run_stats(int argc, char **argv, struct pd_error *err)
{
    struct pd_ckpt_options o = {.step = UINT64_MAX};
    struct pd_option options[] = {
        STEP_ROW("this step instead of the newest"),
        PD_OPTION("tensor", "TEXT", "only tensors whose name contains TEXT", PD_OPTION_TEXT, &o.tensor),
        {0}};
    return ckpt_run(
        "PATH", "Shows digest, minimum, maximum, mean, root mean square and non-finite values of each tensor. " PATH_MEANS,
        options, &o, pd_ckpt_stats, argc, argv, err);
}

static pd_status run_prune(int argc, char **argv, struct pd_error *err)
{
    struct pd_ckpt_options o = {.step = UINT64_MAX};
    struct pd_option options[] = {PD_OPTION("keep-last", "N", "keep the newest N", PD_OPTION_U32, &o.keep_last,
                                            .expected = "a whole number, such as --keep-last=4"),
                                  PD_OPTION("keep-every", "N", "also keep every step that N divides", PD_OPTION_U64,
                                            &o.keep_every, .expected = "a whole number, such as --keep-every=4"),
                                  {0}};
    return ckpt_run("PATH", "Deletes old checkpoints. Refuses while a run is using the directory.", options, &o, prune, argc,
                    argv, err);
}

static pd_status run_reshard(int argc, char **argv, struct pd_error *err)
{
    struct pd_ckpt_options o = {.step = UINT64_MAX};
    struct pd_option options[] = {
        STEP_ROW("this step instead of the newest"),
        PD_OPTION("layout", "dp=N,tp=N,...",
                  "dp, tp, pp, sp, ep, zero_shard, zero_stage, interleave; default 1 (zero_shard: dp*sp)", PD_OPTION_TEXT,
                  &o.layout),
        PD_OPTION("compression", "none|zstd:N", "compress the new shards; default: as in SRC", PD_OPTION_TEXT,
                  &o.compression),
        {0}};
    return ckpt_run(
        "SRC DST",
        "Writes a checkpoint again under another layout: the same state to the bit, in one process and little "
        "memory. You rarely need it, since a run loads any checkpoint under any layout. DST is a directory of "
        "checkpoints; it is created if needed, and nothing in it is overwritten. SRC is a run directory, a directory "
        "of checkpoints (the newest is used), or one checkpoint.",
        options, &o, pd_ckpt_reshard, argc, argv, err);
}

static pd_status run_upload(int argc, char **argv, struct pd_error *err)
{
    struct pd_ckpt_options o = {.step = UINT64_MAX, .memory = UINT64_C(64) << 20};
    struct pd_option options[] = {
        STEP_ROW("this step instead of the newest"),
        PD_OPTION("keep-last", "N", "afterwards delete all but the newest N there", PD_OPTION_U32, &o.keep_last,
                  .expected = "a whole number, such as --keep-last=4"),
        PD_OPTION("bandwidth", "N", "send so many bytes a second at most: 500M", PD_OPTION_BYTES, &o.bandwidth),
        PD_OPTION("memory", "N", "send buffers (default: 64M)", PD_OPTION_BYTES, &o.memory, 8 << 20, UINT64_MAX,
                  "8M or more"),
        {0}};
    return ckpt_run(
        "PATH s3://BUCKET/PREFIX",
        "Copies a checkpoint into a bucket, verified on the way, where every command and run finds it. It exists "
        "there once it is whole. PATH is a run, a directory of checkpoints (the newest is used), or one "
        "checkpoint. During a run, checkpoint.tiers does this by itself.",
        options, &o, pd_ckpt_send, argc, argv, err);
}

#define IMPORT_DOC                                                                                                        \
    "Converts a checkpoint of another program, in little memory. perdure recognizes the format from the files and lists " \
    "what it cannot take over. Parameters and moments become fp32, without loss; numerics.precision decides what a run "  \
    "computes in. The result is read back before it counts. A run continues after the samples that SRC counted, or else " \
    "after its steps times batch.sequences. DST is an empty directory; it is created if needed."

static pd_status run_import(int argc, char **argv, struct pd_error *err)
{
    struct pd_ckpt_options o = {.step = UINT64_MAX};
    struct pd_option options[] = {
        PD_OPTION("layout", "dp=N,tp=N,...",
                  "dp, tp, pp, sp, ep, zero_shard, zero_stage, interleave; default 1 (zero_shard: dp*sp)", PD_OPTION_TEXT,
                  &o.layout),
        PD_OPTION("config", "FILE", "config.json or a run's configuration, if SRC does not describe its model",
                  PD_OPTION_TEXT, &o.config_file),
        PD_OPTION("fresh-optimizer", NULL, "start missing moments at zero", PD_OPTION_FLAG, &o.fresh_optimizer),
        PD_OPTION("compression", "none|zstd:N", "compress the shards", PD_OPTION_TEXT, &o.compression),
        PD_OPTION("dry-run", NULL, "print which tensor becomes which, and write nothing", PD_OPTION_FLAG, &o.dry_run),
        PD_OPTION("prefix", "TEXT", "if SRC holds several models, take the one whose tensor names begin with TEXT",
                  PD_OPTION_TEXT, &o.prefix),
        {0}};
    char doc[2048];
    /* After the options: a row for each format. */
    size_t bytes = sizeof doc;
    size_t used = (size_t)snprintf(doc, bytes, IMPORT_DOC "\vFormats:\n");
    for (const struct pd_format *const *f = pd_formats; *f; f++) {
        if (*f == &pd_format_perdure || (*f)->is_form) continue;
        used += (size_t)snprintf(doc + used, bytes - used, "  %-12s %s\n", (*f)->name, (*f)->about);
        PD_CHECK(used < bytes);
    }
    return ckpt_run("SRC DST", doc, options, &o, pd_ckpt_import, argc, argv, err);
}

static pd_status run_export(int argc, char **argv, struct pd_error *err)
{
    struct pd_ckpt_options o = {.step = UINT64_MAX};
    struct pd_option options[] = {
        STEP_ROW("this step instead of the newest"),
        PD_OPTION("format", "NAME", "safetensors, dcp, torchtitan, megatron, universal, gguf or llmc", PD_OPTION_TEXT,
                  &o.format),
        PD_OPTION("dtype", "fp32|bf16|fp16", "type of parameters (default: fp32); gguf also takes q8_0", PD_OPTION_TEXT,
                  &o.dtype),
        PD_OPTION("experts", "FORM",
                  "separate: one tensor an expert (default); fused: all of a block in two, as transformers 5",
                  PD_OPTION_TEXT, &o.experts),
        PD_OPTION("only", "TEXT", "only tensors whose name contains TEXT", PD_OPTION_TEXT, &o.only),
        PD_OPTION("prefix", "TEXT", "if SRC holds several models, take the one whose tensor names begin with TEXT",
                  PD_OPTION_TEXT, &o.prefix),
        PD_OPTION("config", "FILE", "config.json or a run's configuration, if SRC does not describe its model",
                  PD_OPTION_TEXT, &o.config_file),
        PD_OPTION("fresh-optimizer", NULL, "start missing moments at zero", PD_OPTION_FLAG, &o.fresh_optimizer),
        PD_OPTION("dry-run", NULL, "print which tensor becomes which, and write nothing", PD_OPTION_FLAG, &o.dry_run),
        {0}};
    return ckpt_run(
        "SRC DST",
        "Writes a checkpoint in the format of another program, in little memory. DST is a directory (gguf: a file) "
        "that must not exist yet; it appears once perdure has read its files back. SRC is a run directory, a "
        "directory of checkpoints (the newest is used), or one checkpoint, of perdure or of another program (perdure "
        "ckpt import --help lists formats).",
        options, &o, pd_ckpt_export, argc, argv, err);
}

pd_status pd_cmd_ckpt(int argc, char **argv, struct pd_error *err)
{
    static const struct pd_command commands[] = {
        {"ls", "PATH", "list checkpoints", run_ls},
        {"show", "PATH", "step, layout, progress and configuration of a checkpoint", run_show},
        {"verify", "PATH", "read every byte and compare with its checksums", run_verify},
        {"diff", "PATH PATH", "compare the tensors of two", run_diff},
        {"stats", "PATH", "digest and statistics of each tensor", run_stats},
        {"reshard", "--layout=dp=4,tp=2 SRC DST", "write one again under another layout", run_reshard},
        {"import", "SRC DST", "convert a checkpoint of another program", run_import},
        {"export", "--format=safetensors SRC DST", "convert a checkpoint for another program", run_export},
        {"upload", "PATH s3://BUCKET/PREFIX", "copy one into a bucket", run_upload},
        {"prune", "--keep-last=N PATH", "delete old ones", run_prune},
        {0},
    };
    const pd_status st = pd_command_dispatch(commands, argv[0], argc, argv, err);
    if (st == PD_STOPPED) pd_error_append(err, "; run the same command to start over");
    return st;
}
