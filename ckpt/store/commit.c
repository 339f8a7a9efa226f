/* Encoding and decoding of commit records (FORMAT.md, "commit.h5").
 *
 *   invariants  1. the trailer page covers itself, and its body digest covers everything before it: one flipped bit anywhere
 *                  is detected before anything is used
 *               2. equal input gives equal bytes, on every host
 *               3. HDF5 writes records and never reads them: places come from the trailer */
#include "ckpt/store/commit.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/digest.h"
#include "ckpt/hdf5/h5.h"
#include "ckpt/shard/table.h"
#include "ckpt/store/dir.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define COMMIT_MAGIC UINT64_C(0x54494d4d4f434450) /* "PDCOMMIT" */
#define COMMIT_FORMAT 1u
#define COMMIT_FORMAT_MOMENTS 3u                        /* moments are not fp32 */
#define COMMIT_FORMAT_LISTED 5u                         /* the layout is listed */
#define COMMIT_FORMAT_SIZES 7u                          /* sizes of gradients */
#define COMMIT_FORMAT_LATEST 7u                         /* 2 and 4 were 1 and 3 with shards on several drives */
#define COMMIT_STRUCTURE_BYTES_MAX (UINT64_C(64) << 10) /* most bytes of everything but rows of shards and texts */
#define COMMIT_BOUND "at most 64 MiB can be written and read"

/* A struct member in memory and its column in a record, which takes eight bytes. */
struct field {
    struct pd_h5_field column;
    size_t offset, bytes;
};
#define FIELD(type, name, member, column_type)                                                 \
    {                                                                                          \
        {name, column_type}, offsetof(struct type, member), sizeof(((struct type *)0)->member) \
    }
#define STATE(name, member) FIELD(pd_run_state, name, member, PD_H5_U64)
#define LAYOUT(member) FIELD(pd_layout, #member, member, PD_H5_U64)
#define SHARD(member) FIELD(pd_shard_summary, #member, member, PD_H5_U64)
/* clang-format off */
static const struct field state_fields[] = {
    STATE("run_id_0", identity.run_id[0]), STATE("run_id_1", identity.run_id[1]), STATE("lineage", identity.lineage),
    STATE("step", identity.step), STATE("fence", fence), STATE("updates", updates), STATE("samples", samples),
    STATE("tokens", tokens), FIELD(pd_run_state, "loss_scale", loss_scale, PD_H5_F64),
    STATE("loss_scale_good_steps", loss_scale_good_steps), STATE("skipped_steps", skipped_steps), STATE("seed", seed),
    STATE("data_fingerprint_0", data_fingerprint[0]), STATE("data_fingerprint_1", data_fingerprint[1]),
    FIELD(pd_run_state, "last_loss", last_loss, PD_H5_F64),
    FIELD(pd_run_state, "best_validation_loss", best_validation_loss, PD_H5_F64),
    STATE("tensor_count", tensor_count), STATE("parameter_count", parameter_count)};
static const struct field layout_fields[] = {
    LAYOUT(dp), LAYOUT(tp), LAYOUT(pp), LAYOUT(sp), LAYOUT(virtual_tp), LAYOUT(virtual_sp), LAYOUT(zero_shard),
    LAYOUT(zero_stage), LAYOUT(interleave), LAYOUT(small_bytes), LAYOUT(stage_count)};
static const struct field shard_fields[] = {
    SHARD(file_bytes), SHARD(table_offset), SHARD(table_bytes), SHARD(digest), SHARD(data_bytes), SHARD(box_count),
    SHARD(writer_rank), SHARD(host)};
/* clang-format on */
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define STATE_BYTES (COUNT(state_fields) * 8)
#define LAYOUT_BYTES (COUNT(layout_fields) * 8)
#define SHARD_BYTES (COUNT(shard_fields) * 8)

struct extent {
    uint64_t offset, bytes;
};

struct trailer {
    uint64_t magic, version, file_bytes, reserved_head;
    struct extent state, layout, first_unit, shards, created_by, config, environment;
    struct extent reserved_stripes; /* zeros in versions 1 and 3 */
    uint64_t tokenizer_digest;
    struct pd_guard_state guard;
    uint64_t index_digest;
    uint64_t agreed_step;
    uint64_t moments; /* zero in version 1 */
    uint64_t ep;      /* zero: 1 */
    int8_t gradient_sizes[64];
    uint64_t reserved[471];
    uint64_t body_digest; /* seed PD_SHARD_SEED, of all pages before this one */
    uint64_t self_digest; /* seed 0, of all of this page before it: the same place in every version */
};

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

static void commit_pack(const struct field *fields, size_t count, const void *from, unsigned char *row)
{
    for (size_t i = 0; i < count; i++) {
        const char *member = (const char *)from + fields[i].offset;
        uint64_t word =
            fields[i].bytes == 4 ? *(const uint32_t *)(const void *)member : *(const uint64_t *)(const void *)member;
        memcpy(row + 8 * i, &word, sizeof word);
    }
}

static pd_status unpack(const struct field *fields, size_t count, const unsigned char *row, void *to, struct pd_error *err)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t word;
        memcpy(&word, row + 8 * i, sizeof word);
        if (fields[i].bytes == 4 && word > UINT32_MAX)
            PD_FAIL(err, PD_CORRUPT, "its %s is too large", fields[i].column.name);
        const uint32_t half = (uint32_t)word;
        memcpy((char *)to + fields[i].offset, fields[i].bytes == 4 ? (const void *)&half : &word, fields[i].bytes);
    }
    return PD_OK;
}

/* ---- encoding ---- */

static pd_status add_records(struct pd_h5_file *file, const char *path, const struct field *fields, uint32_t field_count,
                             uint64_t rows, struct extent *ret_extent, struct pd_error *err)
{
    struct pd_h5_field columns[COUNT(state_fields)];
    for (uint32_t i = 0; i < field_count; i++)
        columns[i] = fields[i].column;
    ret_extent->bytes = rows * field_count * 8;
    return pd_h5_records(file, path, columns, field_count, rows, &ret_extent->offset, err);
}

/* Includes the terminator, so that no dataset is empty. */
static pd_status add_text(struct pd_h5_file *file, const char *path, const char *text, struct extent *ret_extent,
                          struct pd_error *err)
{
    ret_extent->bytes = text ? strlen(text) + 1 : 1;
    return pd_h5_dataset(file, path, PD_H5_TEXT, 1, &ret_extent->bytes, &ret_extent->offset, err);
}

static uint64_t version_of(const struct pd_run_state *s)
{
    static const int8_t none[sizeof s->gradient_sizes];
    if (s->layout.is_listed) return COMMIT_FORMAT_LISTED;
    if (memcmp(s->gradient_sizes, none, sizeof none) != 0) return COMMIT_FORMAT_SIZES;
    return s->moments == PD_F32 ? COMMIT_FORMAT : COMMIT_FORMAT_MOMENTS;
}

static pd_status add_structure(const struct pd_commit *commit, struct pd_h5_file *file, struct trailer *t,
                               struct pd_error *err)
{
    const struct pd_run_state *s = &commit->state;
    uint64_t stages = s->layout.stage_count;
    PD_TRY(pd_h5_note(file, "/", "format", "perdure commit", err));
    PD_TRY(pd_h5_note_u64(file, "/", "format_version", t->version, err));
    if (t->tokenizer_digest) PD_TRY(pd_h5_note_u64(file, "/", "tokenizer_digest", t->tokenizer_digest, err));
    PD_TRY(add_records(file, "/state", state_fields, COUNT(state_fields), 1, &t->state, err));
    PD_TRY(add_records(file, "/layout", layout_fields, COUNT(layout_fields), 1, &t->layout, err));
    PD_TRY(pd_h5_dataset(file, "/first_unit", PD_H5_U64, 1, &stages, &t->first_unit.offset, err));
    t->first_unit.bytes = stages * 8;
    PD_TRY(add_records(file, "/shards", shard_fields, COUNT(shard_fields), commit->shard_count, &t->shards, err));
    PD_TRY(add_text(file, "/created_by", s->created_by, &t->created_by, err));
    PD_TRY(add_text(file, "/config", s->config, &t->config, err));
    return add_text(file, "/environment", s->environment, &t->environment, err);
}

static void commit_put(unsigned char *body, struct extent extent, const void *data)
{
    memcpy(body + extent.offset, data, extent.bytes);
}

static void fill_body(const struct pd_commit *commit, const struct trailer *t, unsigned char *body)
{
    commit_pack(state_fields, COUNT(state_fields), &commit->state, body + t->state.offset);
    commit_pack(layout_fields, COUNT(layout_fields), &commit->state.layout, body + t->layout.offset);
    for (uint32_t i = 0; i < commit->state.layout.stage_count; i++) {
        const uint64_t word = commit->state.layout.first_unit[i];
        memcpy(body + t->first_unit.offset + i * sizeof word, &word, sizeof word);
    }
    for (uint32_t i = 0; i < commit->shard_count; i++)
        commit_pack(shard_fields, COUNT(shard_fields), &commit->shards[i], body + t->shards.offset + i * SHARD_BYTES);
    commit_put(body, t->created_by, commit->state.created_by);
    commit_put(body, t->config, commit->state.config ? commit->state.config : "");
    commit_put(body, t->environment, commit->state.environment ? commit->state.environment : "");
}

static uint64_t rows_and_texts(const struct pd_commit *commit)
{
    const struct pd_run_state *s = &commit->state;
    return (uint64_t)commit->shard_count * SHARD_BYTES + (s->config ? strlen(s->config) : 0) +
           (s->environment ? strlen(s->environment) : 0);
}

pd_status pd_commit_encode(const struct pd_commit *commit, void **ret_data, uint64_t *ret_bytes, struct pd_error *err)
{
    PD_TRY(pd_commit_check(commit, err));
    if (rows_and_texts(commit) > PD_COMMIT_BYTES_MAX - COMMIT_STRUCTURE_BYTES_MAX)
        PD_FAIL(err, PD_INVALID, "a commit record of %u shards has %" PRIu64 " bytes, and " COMMIT_BOUND,
                commit->shard_count, rows_and_texts(commit));
    if (!memchr(commit->state.created_by, 0, sizeof commit->state.created_by))
        PD_FAIL(err, PD_INVALID, "created_by is not terminated");
    struct trailer t = {.magic = COMMIT_MAGIC,
                        .version = version_of(&commit->state),
                        .tokenizer_digest = commit->state.tokenizer_digest,
                        .guard = commit->state.guard,
                        .agreed_step = commit->state.agreed_step,
                        .moments = commit->state.moments,
                        .ep = commit->state.layout.ep > 1 ? commit->state.layout.ep : 0,
                        .index_digest = commit->state.index_digest};
    memcpy(t.gradient_sizes, commit->state.gradient_sizes, sizeof t.gradient_sizes);
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
        PD_FAIL(err, PD_CORRUPT, "%" PRIu64 " bytes are too few for a record", bytes);
    struct trailer t;
    memcpy(&t, data + bytes - sizeof t, sizeof t);
    if (pd_digest64(&t, sizeof t - sizeof t.self_digest, 0) != t.self_digest)
        PD_FAIL(err, PD_CORRUPT, "its trailer does not match its digest: the record is incomplete or damaged");
    if (t.magic != COMMIT_MAGIC) PD_FAIL(err, PD_CORRUPT, "it is not a commit record");
    if (t.version < 1 || t.version > COMMIT_FORMAT_LATEST)
        PD_FAIL(err, PD_UNSUPPORTED, "it has format version %" PRIu64 " and this perdure reads up to %u; use a newer one",
                t.version, COMMIT_FORMAT_LATEST);
    if (t.version % 2 == 0)
        PD_FAIL(err, PD_UNSUPPORTED,
                "its shards lie on several drives (checkpoint.stripes), which this perdure no longer reads: export or "
                "reshard it with the version that wrote it, and use one RAID-0 of mdadm for several drives");
    if (t.version < COMMIT_FORMAT_MOMENTS || t.version == COMMIT_FORMAT_LISTED) t.moments = PD_F32;
    if (t.file_bytes != bytes)
        PD_FAIL(err, PD_CORRUPT, "it has %" PRIu64 " bytes where its trailer says %" PRIu64, bytes, t.file_bytes);
    if (pd_digest64(data, bytes - sizeof t, PD_SHARD_SEED) != t.body_digest)
        PD_FAIL(err, PD_CORRUPT, "its contents do not match their digest");
    *ret_trailer = t;
    return PD_OK;
}

static pd_status check_places(const struct trailer *t, struct pd_error *err)
{
    const struct extent *extents[] = {&t->state,      &t->layout, &t->first_unit, &t->shards,
                                      &t->created_by, &t->config, &t->environment};
    bool ok = t->state.bytes == STATE_BYTES && t->layout.bytes == LAYOUT_BYTES && t->first_unit.bytes % 8 == 0 &&
              t->shards.bytes % SHARD_BYTES == 0 && t->shards.bytes > 0 && t->created_by.bytes > 0 &&
              t->created_by.bytes <= sizeof((struct pd_run_state *)0)->created_by && t->config.bytes > 0 &&
              t->environment.bytes > 0 && t->moments < PD_F16;
    for (size_t i = 0; ok && i < COUNT(extents); i++)
        ok = pd_checked_range(extents[i]->offset, extents[i]->bytes, t->file_bytes - sizeof *t);
    if (!ok) PD_FAIL(err, PD_CORRUPT, "the offsets in its trailer are invalid");
    return PD_OK;
}

static pd_status commit_take_text(const unsigned char *data, struct extent extent, char **ret_text, struct pd_error *err)
{
    const char *text = (const char *)data + extent.offset;
    if (memchr(text, 0, extent.bytes) != text + extent.bytes - 1)
        PD_FAIL(err, PD_CORRUPT, "one of its texts is not terminated");
    *ret_text = strdup(text);
    if (!*ret_text) PD_FAIL(err, PD_NO_MEMORY, "no memory for its texts");
    return PD_OK;
}

static pd_status take_layout(const unsigned char *data, const struct trailer *t, struct pd_layout *ret_layout,
                             struct pd_error *err)
{
    PD_TRY(unpack(layout_fields, COUNT(layout_fields), data + t->layout.offset, ret_layout, err));
    if (ret_layout->stage_count > PD_LAYOUT_STAGES_MAX)
        PD_FAIL(err, PD_CORRUPT, "its layout has %" PRIu32 " stages", ret_layout->stage_count);
    if (t->first_unit.bytes != ret_layout->stage_count * UINT64_C(8))
        PD_FAIL(err, PD_CORRUPT, "its stages do not fit its layout");
    for (uint32_t i = 0; i < ret_layout->stage_count; i++) {
        uint64_t word;
        memcpy(&word, data + t->first_unit.offset + i * sizeof word, sizeof word);
        if (word > UINT16_MAX) PD_FAIL(err, PD_CORRUPT, "the first unit of stage %u of its layout is %" PRIu64, i, word);
        ret_layout->first_unit[i] = (uint16_t)word;
    }
    return PD_OK;
}

static pd_status take_body(const unsigned char *data, const struct trailer *t, struct pd_commit *c, struct pd_error *err)
{
    PD_TRY(unpack(state_fields, COUNT(state_fields), data + t->state.offset, &c->state, err));
    PD_TRY(take_layout(data, t, &c->state.layout, err));
    if (t->ep > UINT32_MAX) PD_FAIL(err, PD_CORRUPT, "its layout has ep %" PRIu64, t->ep);
    c->state.layout.is_listed = t->version == COMMIT_FORMAT_LISTED;
    c->state.layout.ep = t->ep ? (uint32_t)t->ep : 1;
    c->state.tokenizer_digest = t->tokenizer_digest;
    c->state.guard = t->guard;
    c->state.agreed_step = t->agreed_step;
    c->state.moments = (enum pd_dtype)t->moments;
    c->state.index_digest = t->index_digest;
    memcpy(c->state.gradient_sizes, t->gradient_sizes, sizeof t->gradient_sizes);
    memcpy(c->state.created_by, data + t->created_by.offset, t->created_by.bytes);
    c->state.created_by[sizeof c->state.created_by - 1] = '\0';
    PD_TRY(commit_take_text(data, t->config, &c->state.config, err));
    PD_TRY(commit_take_text(data, t->environment, &c->state.environment, err));
    c->shard_count = (uint32_t)(t->shards.bytes / SHARD_BYTES);
    c->shards = calloc(c->shard_count, sizeof *c->shards);
    if (!c->shards) PD_FAIL(err, PD_NO_MEMORY, "no memory for its %u shards", c->shard_count);
    pd_status st = PD_OK;
    for (uint32_t i = 0; st == PD_OK && i < c->shard_count; i++)
        st = unpack(shard_fields, COUNT(shard_fields), data + t->shards.offset + i * SHARD_BYTES, &c->shards[i], err);
    return st;
}

pd_status pd_commit_decode(const char *path, const void *data, uint64_t bytes, struct pd_commit *ret_commit,
                           struct pd_error *err)
{
    struct trailer t;
    struct pd_commit commit = {0};
    pd_status st = check_trailer(data, bytes, &t, err);
    if (!st) st = check_places(&t, err);
    if (!st) st = take_body(data, &t, &commit, err);
    if (!st && pd_commit_check(&commit, err))
        st = pd_error_context(err, pd_error_change(err, PD_CORRUPT), "its digests match, but it is invalid");
    if (st) {
        pd_commit_deinit(&commit);
        return pd_error_context(err, st, "commit record %s", path);
    }
    *ret_commit = commit;
    return PD_OK;
}

/* A read may go wrong on its way: only bytes that are wrong twice are damage. */
pd_status pd_commit_read(struct pd_vfs *vfs, const char *path, struct pd_commit *ret_commit, struct pd_error *err)
{
    pd_status st = PD_CORRUPT;
    for (int attempt = 0; attempt < 2 && st == PD_CORRUPT; attempt++) {
        void *data = NULL;
        uint64_t bytes = 0;
        PD_TRY(store_file_read(vfs, path, PD_COMMIT_BYTES_MAX, &data, &bytes, err));
        st = pd_commit_decode(path, data, bytes, ret_commit, err);
        free(data);
    }
    return st;
}
