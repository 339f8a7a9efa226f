/* Encoding and decoding of commit records (FORMAT.md, "commit.h5").
 *
 *   invariants  1. the trailer page covers itself, and its body digest covers everything before it: one flipped bit anywhere
 *                  is seen before anything is used
 *               2. equal input gives equal bytes, on every host
 *               3. HDF5 writes records and never reads them: places come from the trailer */
#include "ckpt/store/commit.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/digest.h"
#include "ckpt/hdf5/h5.h"
#include "ckpt/shard/table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COMMIT_MAGIC UINT64_C(0x54494d4d4f434450)       /* "PDCOMMIT" */
#define COMMIT_FORMAT_VERSION 2u                        /* with stripes; without, 1 is written */
#define COMMIT_STRUCTURE_BYTES_MAX (UINT64_C(64) << 10) /* of all that is neither a row of shards nor a text */
#define COMMIT_BOUND "at most 64 MiB can be written and read"
#define STAGES_MAX 256u

struct state_row {
    uint64_t run_id[2], lineage, step, fence, updates, samples, tokens;
    double loss_scale;
    uint64_t loss_scale_good_steps, skipped_steps, seed, data_fingerprint[2];
    double last_loss, best_validation_loss;
    uint64_t tensor_count, parameter_count;
};
static const struct pd_h5_field state_fields[] = {{"run_id_0", PD_H5_U64},
                                                  {"run_id_1", PD_H5_U64},
                                                  {"lineage", PD_H5_U64},
                                                  {"step", PD_H5_U64},
                                                  {"fence", PD_H5_U64},
                                                  {"updates", PD_H5_U64},
                                                  {"samples", PD_H5_U64},
                                                  {"tokens", PD_H5_U64},
                                                  {"loss_scale", PD_H5_F64},
                                                  {"loss_scale_good_steps", PD_H5_U64},
                                                  {"skipped_steps", PD_H5_U64},
                                                  {"seed", PD_H5_U64},
                                                  {"data_fingerprint_0", PD_H5_U64},
                                                  {"data_fingerprint_1", PD_H5_U64},
                                                  {"last_loss", PD_H5_F64},
                                                  {"best_validation_loss", PD_H5_F64},
                                                  {"tensor_count", PD_H5_U64},
                                                  {"parameter_count", PD_H5_U64}};

struct layout_row {
    uint64_t dp, tp, pp, sp, virtual_tp, virtual_sp, zero_shard, zero_stage, interleave, small_bytes, stage_count;
};
static const struct pd_h5_field layout_fields[] = {
    {"dp", PD_H5_U64},         {"tp", PD_H5_U64},          {"pp", PD_H5_U64},         {"sp", PD_H5_U64},
    {"virtual_tp", PD_H5_U64}, {"virtual_sp", PD_H5_U64},  {"zero_shard", PD_H5_U64}, {"zero_stage", PD_H5_U64},
    {"interleave", PD_H5_U64}, {"small_bytes", PD_H5_U64}, {"stage_count", PD_H5_U64}};

struct shard_row {
    uint64_t file_bytes, table_offset, table_bytes, digest, data_bytes, box_count, writer_rank, host;
};
static const struct pd_h5_field shard_fields[] = {
    {"file_bytes", PD_H5_U64}, {"table_offset", PD_H5_U64}, {"table_bytes", PD_H5_U64}, {"digest", PD_H5_U64},
    {"data_bytes", PD_H5_U64}, {"box_count", PD_H5_U64},    {"writer_rank", PD_H5_U64}, {"host", PD_H5_U64}};

struct extent {
    uint64_t offset, bytes;
};

struct trailer {
    uint64_t magic, version, file_bytes, reserved_head;
    struct extent state, layout, first_unit, shards, created_by, config, environment;
    struct extent stripes; /* zeros in version 1 */
    uint64_t reserved[490];
    uint64_t body_digest; /* seed PD_SHARD_SEED, of all pages before this one */
    uint64_t self_digest; /* seed 0, of all of this page before it: the same place in every version */
};

#define COUNT(array) (sizeof(array) / sizeof *(array))
_Static_assert(sizeof(struct state_row) == COUNT(state_fields) * 8, "one field each");
_Static_assert(sizeof(struct layout_row) == COUNT(layout_fields) * 8, "one field each");
_Static_assert(sizeof(struct shard_row) == COUNT(shard_fields) * 8, "one field each");
_Static_assert(sizeof(struct trailer) == PD_SHARD_PAGE_BYTES, "one page");

void pd_run_state_deinit(struct pd_run_state *state)
{
    if (!state) return;
    free(state->config);
    free(state->environment);
    state->config = state->environment = NULL;
}

void pd_commit_deinit(struct pd_commit *commit)
{
    if (!commit) return;
    pd_run_state_deinit(&commit->state);
    free(commit->shards);
    commit->shards = NULL;
    commit->shard_count = 0;
}

/* ---- rows ---- */

static void state_to_row(const struct pd_run_state *s, struct state_row *ret_row)
{
    *ret_row = (struct state_row){.run_id = {s->identity.run_id[0], s->identity.run_id[1]},
                                  .lineage = s->identity.lineage,
                                  .step = s->identity.step,
                                  .fence = s->fence,
                                  .updates = s->updates,
                                  .samples = s->samples,
                                  .tokens = s->tokens,
                                  .loss_scale = s->loss_scale,
                                  .loss_scale_good_steps = s->loss_scale_good_steps,
                                  .skipped_steps = s->skipped_steps,
                                  .seed = s->seed,
                                  .data_fingerprint = {s->data_fingerprint[0], s->data_fingerprint[1]},
                                  .last_loss = s->last_loss,
                                  .best_validation_loss = s->best_validation_loss,
                                  .tensor_count = s->tensor_count,
                                  .parameter_count = s->parameter_count};
}

static void row_to_state(const struct state_row *r, struct pd_run_state *ret_state)
{
    *ret_state = (struct pd_run_state){.identity = {{r->run_id[0], r->run_id[1]}, r->lineage, r->step},
                                       .fence = r->fence,
                                       .updates = r->updates,
                                       .samples = r->samples,
                                       .tokens = r->tokens,
                                       .loss_scale = r->loss_scale,
                                       .loss_scale_good_steps = r->loss_scale_good_steps,
                                       .skipped_steps = r->skipped_steps,
                                       .seed = r->seed,
                                       .data_fingerprint = {r->data_fingerprint[0], r->data_fingerprint[1]},
                                       .last_loss = r->last_loss,
                                       .best_validation_loss = r->best_validation_loss,
                                       .tensor_count = r->tensor_count,
                                       .parameter_count = r->parameter_count};
}

static void layout_to_row(const struct pd_layout *l, struct layout_row *ret_row)
{
    *ret_row = (struct layout_row){l->dp,         l->tp,         l->pp,         l->sp,          l->virtual_tp, l->virtual_sp,
                                   l->zero_shard, l->zero_stage, l->interleave, l->small_bytes, l->stage_count};
}

static pd_status row_to_layout(const struct layout_row *r, struct pd_layout *ret_layout, struct pd_error *err)
{
    const uint64_t *degrees = &r->dp;
    for (int i = 0; i < 9; i++)
        if (degrees[i] > UINT32_MAX) PD_FAIL(err, PD_CORRUPT, "%s of its layout is too large", layout_fields[i].name);
    if (r->stage_count > STAGES_MAX) PD_FAIL(err, PD_CORRUPT, "its layout has %" PRIu64 " stages", r->stage_count);
    *ret_layout = (struct pd_layout){.dp = (uint32_t)r->dp,
                                     .tp = (uint32_t)r->tp,
                                     .pp = (uint32_t)r->pp,
                                     .sp = (uint32_t)r->sp,
                                     .virtual_tp = (uint32_t)r->virtual_tp,
                                     .virtual_sp = (uint32_t)r->virtual_sp,
                                     .zero_shard = (uint32_t)r->zero_shard,
                                     .zero_stage = (uint32_t)r->zero_stage,
                                     .interleave = (uint32_t)r->interleave,
                                     .small_bytes = r->small_bytes,
                                     .stage_count = (uint32_t)r->stage_count};
    return PD_OK;
}

static void summary_to_row(const struct pd_shard_summary *s, struct shard_row *ret_row)
{
    *ret_row = (struct shard_row){s->file_bytes, s->table_offset, s->table_bytes, s->digest,
                                  s->data_bytes, s->box_count,    s->writer_rank, s->host};
}

static pd_status row_to_summary(const struct shard_row *r, struct pd_shard_summary *ret_summary, struct pd_error *err)
{
    if (r->box_count > UINT32_MAX || r->writer_rank > UINT32_MAX || r->host > UINT32_MAX)
        PD_FAIL(err, PD_CORRUPT, "a row of its shards is out of range");
    *ret_summary =
        (struct pd_shard_summary){r->file_bytes, r->table_offset,        r->table_bytes,           r->digest,
                                  r->data_bytes, (uint32_t)r->box_count, (uint32_t)r->writer_rank, (uint32_t)r->host};
    return PD_OK;
}

/* ---- encoding ---- */

static pd_status add_records(struct pd_h5_file *file, const char *path, const struct pd_h5_field *fields, size_t field_count,
                             uint64_t rows, struct extent *ret_extent, struct pd_error *err)
{
    PD_TRY(pd_h5_records(file, path, fields, (uint32_t)field_count, rows, &ret_extent->offset, err));
    ret_extent->bytes = rows * field_count * 8;
    return PD_OK;
}

/* With its terminator, so that there is no dataset of no bytes. */
static pd_status add_text(struct pd_h5_file *file, const char *path, const char *text, struct extent *ret_extent,
                          struct pd_error *err)
{
    ret_extent->bytes = text ? strlen(text) + 1 : 1;
    return pd_h5_dataset(file, path, PD_H5_TEXT, 1, &ret_extent->bytes, &ret_extent->offset, err);
}

static bool is_striped(const struct pd_layout *layout)
{
    return layout->stripes > 1;
}

static pd_status add_structure(const struct pd_commit *commit, struct pd_h5_file *file, struct trailer *t,
                               struct pd_error *err)
{
    const struct pd_run_state *s = &commit->state;
    uint64_t stages = s->layout.stage_count, stripes = s->layout.stripes;
    PD_TRY(pd_h5_note(file, "/", "format", "perdure commit", err));
    PD_TRY(pd_h5_note_u64(file, "/", "format_version", t->version, err));
    PD_TRY(add_records(file, "/state", state_fields, COUNT(state_fields), 1, &t->state, err));
    PD_TRY(add_records(file, "/layout", layout_fields, COUNT(layout_fields), 1, &t->layout, err));
    PD_TRY(pd_h5_dataset(file, "/first_unit", PD_H5_U64, 1, &stages, &t->first_unit.offset, err));
    t->first_unit.bytes = stages * 8;
    if (is_striped(&s->layout)) {
        PD_TRY(pd_h5_dataset(file, "/stripe_weights", PD_H5_U64, 1, &stripes, &t->stripes.offset, err));
        t->stripes.bytes = stripes * 8;
    }
    PD_TRY(add_records(file, "/shards", shard_fields, COUNT(shard_fields), commit->shard_count, &t->shards, err));
    PD_TRY(add_text(file, "/created_by", s->created_by, &t->created_by, err));
    PD_TRY(add_text(file, "/config", s->config, &t->config, err));
    return add_text(file, "/environment", s->environment, &t->environment, err);
}

static void put(unsigned char *body, struct extent extent, const void *data)
{
    memcpy(body + extent.offset, data, extent.bytes);
}

static void put_words(unsigned char *body, struct extent extent, const uint16_t *values)
{
    for (uint64_t i = 0; i < extent.bytes / 8; i++) {
        uint64_t word = values[i];
        put(body, (struct extent){extent.offset + i * 8, 8}, &word);
    }
}

static void fill_body(const struct pd_commit *commit, const struct trailer *t, unsigned char *body)
{
    struct state_row state;
    struct layout_row layout;
    state_to_row(&commit->state, &state);
    layout_to_row(&commit->state.layout, &layout);
    put(body, t->state, &state);
    put(body, t->layout, &layout);
    put_words(body, t->first_unit, commit->state.layout.first_unit);
    put_words(body, t->stripes, commit->state.layout.stripe_weight);
    for (uint32_t i = 0; i < commit->shard_count; i++) {
        struct shard_row row;
        summary_to_row(&commit->shards[i], &row);
        put(body, (struct extent){t->shards.offset + i * sizeof row, sizeof row}, &row);
    }
    put(body, t->created_by, commit->state.created_by);
    put(body, t->config, commit->state.config ? commit->state.config : "");
    put(body, t->environment, commit->state.environment ? commit->state.environment : "");
}

static uint64_t rows_and_texts(const struct pd_commit *commit)
{
    const struct pd_run_state *s = &commit->state;
    return (uint64_t)commit->shard_count * sizeof(struct shard_row) + (s->config ? strlen(s->config) : 0) +
           (s->environment ? strlen(s->environment) : 0);
}

static pd_status check_encodable(const struct pd_commit *commit, struct pd_error *err)
{
    const struct pd_layout *l = &commit->state.layout;
    if (commit->shard_count < 1) PD_FAIL(err, PD_INVALID, "a commit record of no shards cannot be written");
    if (rows_and_texts(commit) > PD_COMMIT_BYTES_MAX - COMMIT_STRUCTURE_BYTES_MAX)
        PD_FAIL(err, PD_INVALID, "a commit record of %u shards has %" PRIu64 " bytes, and " COMMIT_BOUND,
                commit->shard_count, rows_and_texts(commit));
    if (l->stage_count < 1 || l->stage_count > STAGES_MAX)
        PD_FAIL(err, PD_INVALID, "a layout of %u stages cannot be recorded", l->stage_count);
    if (l->stripes > PD_LAYOUT_STRIPES_MAX) PD_FAIL(err, PD_INVALID, "%u stripes cannot be recorded", l->stripes);
    if (!memchr(commit->state.created_by, 0, sizeof commit->state.created_by))
        PD_FAIL(err, PD_INVALID, "created_by is not terminated");
    return PD_OK;
}

pd_status pd_commit_encode(const struct pd_commit *commit, void **ret_data, uint64_t *ret_bytes, struct pd_error *err)
{
    PD_TRY(check_encodable(commit, err));
    struct trailer t = {.magic = COMMIT_MAGIC, .version = is_striped(&commit->state.layout) ? COMMIT_FORMAT_VERSION : 1};
    struct pd_h5_file *file = NULL;
    struct pd_h5_pages pages = {0};
    PD_TRY(pd_h5_new(&file, err));
    pd_status st = add_structure(commit, file, &t, err);
    if (st) {
        pd_h5_free(file);
        return st;
    }
    PD_TRY(pd_h5_finish(file, &pages, err));
    uint64_t body_bytes = pd_round_up(pages.bytes, PD_SHARD_PAGE_BYTES);
    unsigned char *data = calloc(1, body_bytes + sizeof t);
    if (data) {
        t.file_bytes = body_bytes + sizeof t;
        pd_h5_pages_read(&pages, 0, data, body_bytes);
        fill_body(commit, &t, data);
        t.body_digest = pd_digest64(data, body_bytes, PD_SHARD_SEED);
        t.self_digest = pd_digest64(&t, sizeof t - sizeof t.self_digest, 0);
        memcpy(data + body_bytes, &t, sizeof t);
    }
    pd_h5_pages_deinit(&pages);
    if (!data) PD_FAIL(err, PD_NO_MEMORY, "no memory for a commit record of %" PRIu64 " bytes", body_bytes);
    *ret_data = data;
    *ret_bytes = t.file_bytes;
    return PD_OK;
}

/* ---- decoding ---- */

static pd_status check_trailer(const unsigned char *data, uint64_t bytes, struct trailer *ret_trailer, struct pd_error *err)
{
    if (bytes < 2 * sizeof *ret_trailer || bytes % sizeof *ret_trailer)
        PD_FAIL(err, PD_CORRUPT, "%" PRIu64 " bytes are no complete record", bytes);
    struct trailer t;
    memcpy(&t, data + bytes - sizeof t, sizeof t);
    if (pd_digest64(&t, sizeof t - sizeof t.self_digest, 0) != t.self_digest)
        PD_FAIL(err, PD_CORRUPT, "its trailer does not match its digest: the record is incomplete or damaged");
    if (t.magic != COMMIT_MAGIC) PD_FAIL(err, PD_CORRUPT, "it is no commit record");
    if (t.version < 1 || t.version > COMMIT_FORMAT_VERSION)
        PD_FAIL(err, PD_UNSUPPORTED, "it has format version %" PRIu64 " and this perdure reads up to %u; use a newer one",
                t.version, COMMIT_FORMAT_VERSION);
    if (t.version == 1) t.stripes = (struct extent){0, 0};
    if (t.file_bytes != bytes)
        PD_FAIL(err, PD_CORRUPT, "it has %" PRIu64 " bytes where its trailer says %" PRIu64, bytes, t.file_bytes);
    if (pd_digest64(data, bytes - sizeof t, PD_SHARD_SEED) != t.body_digest)
        PD_FAIL(err, PD_CORRUPT, "its contents do not match their digest");
    *ret_trailer = t;
    return PD_OK;
}

static pd_status check_places(const struct trailer *t, struct pd_error *err)
{
    const struct extent *extents[] = {&t->state,      &t->layout, &t->first_unit,  &t->shards,
                                      &t->created_by, &t->config, &t->environment, &t->stripes};
    bool ok = t->state.bytes == sizeof(struct state_row) && t->layout.bytes == sizeof(struct layout_row) &&
              t->first_unit.bytes % 8 == 0 && t->shards.bytes % sizeof(struct shard_row) == 0 && t->shards.bytes > 0 &&
              t->created_by.bytes > 0 && t->created_by.bytes <= sizeof((struct pd_run_state *)0)->created_by &&
              t->config.bytes > 0 && t->environment.bytes > 0 && t->stripes.bytes % 8 == 0 &&
              t->stripes.bytes / 8 <= PD_LAYOUT_STRIPES_MAX && (t->version == 1 || t->stripes.bytes >= 16);
    for (size_t i = 0; ok && i < COUNT(extents); i++)
        ok = pd_checked_range(extents[i]->offset, extents[i]->bytes, t->file_bytes - sizeof *t);
    if (!ok) PD_FAIL(err, PD_CORRUPT, "the places in its trailer make no sense");
    return PD_OK;
}

static pd_status take_text(const unsigned char *data, struct extent extent, char **ret_text, struct pd_error *err)
{
    const char *text = (const char *)data + extent.offset;
    if (memchr(text, 0, extent.bytes) != text + extent.bytes - 1)
        PD_FAIL(err, PD_CORRUPT, "one of its texts is not terminated");
    *ret_text = strdup(text);
    if (!*ret_text) PD_FAIL(err, PD_NO_MEMORY, "no memory for its texts");
    return PD_OK;
}

static pd_status take_words(const unsigned char *data, struct extent extent, const char *what, uint16_t *ret_values,
                            struct pd_error *err)
{
    for (uint32_t i = 0; i < extent.bytes / 8; i++) {
        uint64_t word;
        memcpy(&word, data + extent.offset + i * 8, sizeof word);
        if (word > UINT16_MAX) PD_FAIL(err, PD_CORRUPT, "%s %u of its layout is %" PRIu64, what, i, word);
        ret_values[i] = (uint16_t)word;
    }
    return PD_OK;
}

static pd_status take_layout(const unsigned char *data, const struct trailer *t, struct pd_layout *ret_layout,
                             struct pd_error *err)
{
    struct layout_row row;
    memcpy(&row, data + t->layout.offset, sizeof row);
    PD_TRY(row_to_layout(&row, ret_layout, err));
    if (t->first_unit.bytes != row.stage_count * 8) PD_FAIL(err, PD_CORRUPT, "its stages do not fit its layout");
    ret_layout->stripes = (uint32_t)(t->stripes.bytes / 8);
    PD_TRY(take_words(data, t->first_unit, "the first unit of stage", ret_layout->first_unit, err));
    return take_words(data, t->stripes, "the weight of stripe", ret_layout->stripe_weight, err);
}

static pd_status take_body(const unsigned char *data, const struct trailer *t, struct pd_commit *c, struct pd_error *err)
{
    struct state_row state;
    memcpy(&state, data + t->state.offset, sizeof state);
    row_to_state(&state, &c->state);
    PD_TRY(take_layout(data, t, &c->state.layout, err));
    memcpy(c->state.created_by, data + t->created_by.offset, t->created_by.bytes);
    c->state.created_by[sizeof c->state.created_by - 1] = '\0';
    PD_TRY(take_text(data, t->config, &c->state.config, err));
    PD_TRY(take_text(data, t->environment, &c->state.environment, err));
    c->shard_count = (uint32_t)(t->shards.bytes / sizeof(struct shard_row));
    c->shards = calloc(c->shard_count, sizeof *c->shards);
    if (!c->shards) PD_FAIL(err, PD_NO_MEMORY, "no memory for its %u shards", c->shard_count);
    for (uint32_t i = 0; i < c->shard_count; i++) {
        struct shard_row row;
        memcpy(&row, data + t->shards.offset + i * sizeof row, sizeof row);
        PD_TRY(row_to_summary(&row, &c->shards[i], err));
    }
    return PD_OK;
}

pd_status pd_commit_decode(const char *path, const void *data, uint64_t bytes, struct pd_commit *ret_commit,
                           struct pd_error *err)
{
    struct trailer t;
    struct pd_commit commit = {0};
    pd_status st = check_trailer(data, bytes, &t, err);
    if (!st) st = check_places(&t, err);
    if (!st) st = take_body(data, &t, &commit, err);
    if (st) {
        pd_commit_deinit(&commit);
        return pd_error_context(err, st, "commit record %s", path);
    }
    *ret_commit = commit;
    return PD_OK;
}

static pd_status read_file(struct pd_file *file, const char *path, struct pd_commit *ret_commit, struct pd_error *err)
{
    struct pd_stat st;
    PD_TRY(pd_file_stat(file, &st, err));
    if (st.bytes > PD_COMMIT_BYTES_MAX)
        PD_FAIL(err, PD_CORRUPT, "commit record %s has %" PRIu64 " bytes, and " COMMIT_BOUND, path, st.bytes);
    void *data = malloc(st.bytes + 1);
    if (!data) PD_FAIL(err, PD_NO_MEMORY, "no memory to read commit record %s", path);
    pd_status status = PD_CORRUPT;
    for (int attempt = 0; attempt < 2 && status == PD_CORRUPT; attempt++) {
        status = pd_file_read(file, 0, data, st.bytes, err);
        if (!status) status = pd_commit_decode(path, data, st.bytes, ret_commit, err);
    }
    free(data);
    return status;
}

pd_status pd_commit_read(struct pd_vfs *vfs, const char *path, struct pd_commit *ret_commit, struct pd_error *err)
{
    struct pd_file *file = NULL;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    pd_status st = read_file(file, path, ret_commit, err);
    pd_file_close_readonly(file);
    return st;
}
