/* Opens a shard file and parses its description of itself.
 *
 *   invariants  1. nothing in the file is trusted before a digest that covers it was checked
 *               2. a mismatch is damage only if a second read mismatches too */
#include "ckpt/shard/open.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/digest.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- identity ---- */

static pd_status check_identity(const struct pd_shard *shard, const struct pd_identity *wanted, struct pd_error *err)
{
    const struct pd_identity *have = &shard->identity;
    if (!wanted || memcmp(have, wanted, sizeof *have) == 0) return PD_OK;
    if (memcmp(have->run_id, wanted->run_id, sizeof have->run_id) != 0)
        PD_FAIL(err, PD_CORRUPT, "it belongs to run %016" PRIx64 "%016" PRIx64 ", not to %016" PRIx64 "%016" PRIx64,
                have->run_id[0], have->run_id[1], wanted->run_id[0], wanted->run_id[1]);
    PD_FAIL(err, PD_CORRUPT,
            "it holds step %" PRIu64 " of lineage %" PRIu64 " where step %" PRIu64 " of lineage %" PRIu64 " is expected",
            have->step, have->lineage, wanted->step, wanted->lineage);
}

/* ---- opening ---- */

static pd_status check_trailer(const struct pd_shard_trailer *trailer, uint64_t file_bytes, struct pd_error *err)
{
    uint64_t digest = pd_digest64(trailer, sizeof *trailer - sizeof trailer->self_digest, 0);
    if (digest != trailer->self_digest)
        PD_FAIL(err, PD_CORRUPT, "the trailer (last %u bytes) does not match its digest", PD_SHARD_PAGE_BYTES);
    if (trailer->magic != PD_SHARD_TRAILER_MAGIC) PD_FAIL(err, PD_CORRUPT, "the trailer does not begin with \"PDTRAIL1\"");
    if (trailer->version < PD_SHARD_FORMAT_VERSION || trailer->version > PD_SHARD_FORMAT_LATEST)
        PD_FAIL(err, PD_UNSUPPORTED,
                "it has format version %" PRIu64 " and this perdure reads versions up to %u; use a newer one",
                trailer->version, PD_SHARD_FORMAT_LATEST);
    bool fits = trailer->file_bytes == file_bytes && trailer->table_offset % PD_SHARD_PAGE_BYTES == 0 &&
                trailer->table_bytes % PD_SHARD_PAGE_BYTES == 0 && trailer->table_bytes >= sizeof(struct pd_shard_head) &&
                pd_checked_range(trailer->table_offset, trailer->table_bytes, file_bytes - PD_SHARD_PAGE_BYTES);
    if (!fits) PD_FAIL(err, PD_CORRUPT, "the offsets in the trailer are invalid");
    return PD_OK;
}

static pd_status load_trailer(struct pd_shard *shard, const struct pd_shard_summary *expect, struct pd_error *err)
{
    struct pd_stat st;
    PD_TRY(pd_file_stat(shard->file, &st, err));
    if (expect && st.bytes != expect->file_bytes)
        PD_FAIL(err, PD_CORRUPT, "it has %" PRIu64 " bytes where the commit record says %" PRIu64, st.bytes,
                expect->file_bytes);
    if (st.bytes < 2 * PD_SHARD_PAGE_BYTES || st.bytes % PD_SHARD_PAGE_BYTES)
        PD_FAIL(err, PD_CORRUPT, "%" PRIu64 " bytes are too few for a shard: it was truncated or is another file", st.bytes);
    shard->file_bytes = st.bytes;
    pd_status status = PD_CORRUPT;
    for (int attempt = 0; attempt < 2 && status == PD_CORRUPT; attempt++) {
        PD_TRY(pd_file_read(shard->file, st.bytes - PD_SHARD_PAGE_BYTES, shard->bounce, PD_SHARD_PAGE_BYTES, err));
        memcpy(&shard->trailer, shard->bounce, sizeof shard->trailer);
        status = check_trailer(&shard->trailer, st.bytes, err);
    }
    if (status) return status;
    const struct pd_shard_trailer *trailer = &shard->trailer;
    if (!expect) return PD_OK;
    if (trailer->table_offset != expect->table_offset || trailer->table_bytes != expect->table_bytes)
        PD_FAIL(err, PD_CORRUPT,
                "its table is at %" PRIu64 " where the commit record says %" PRIu64
                ": it is not the file that was committed",
                trailer->table_offset, expect->table_offset);
    if (trailer->table_digest != expect->digest)
        PD_FAIL(err, PD_CORRUPT,
                "its digest is %016" PRIx64 " where the commit record says %016" PRIx64
                ": it is another shard or another step",
                trailer->table_digest, expect->digest);
    return PD_OK;
}

/* The digest's seed is the identity, which the table itself states, so a stale table states a stale identity. */
static pd_status check_table(struct pd_shard *shard, struct pd_error *err)
{
    const struct pd_shard_head *head = (const void *)shard->table;
    struct pd_identity stated = {.lineage = head->lineage, .step = head->step};
    memcpy(stated.run_id, head->run_id, sizeof stated.run_id);
    uint64_t digest = pd_digest64(shard->table, shard->trailer.table_bytes, pd_shard_table_seed(&stated));
    if (digest != shard->trailer.table_digest)
        PD_FAIL(err, PD_CORRUPT,
                "the table of boxes and checksums (%" PRIu64 " bytes at %" PRIu64 ") does not match its digest",
                shard->trailer.table_bytes, shard->trailer.table_offset);
    shard->identity = stated;
    return PD_OK;
}

static pd_status open_parts(struct pd_shard *shard, const struct pd_identity *identity,
                            const struct pd_shard_summary *expect, struct pd_error *err)
{
    shard->bounce = aligned_alloc(PD_VFS_ALIGN, PD_SHARD_BOUNCE_BYTES);
    if (!shard->bounce) PD_FAIL(err, PD_NO_MEMORY, "no memory for a buffer");
    PD_TRY(pd_file_open(shard->vfs, shard->path, PD_OPEN_READ | PD_OPEN_DIRECT, &shard->file, err));
    PD_TRY(load_trailer(shard, expect, err));
    const uint64_t bytes = shard->trailer.table_bytes;
    shard->table = aligned_alloc(PD_VFS_ALIGN, bytes);
    if (!shard->table) PD_FAIL(err, PD_NO_MEMORY, "no memory for its table of %" PRIu64 " bytes", bytes);
    pd_status status = PD_CORRUPT;
    for (int attempt = 0; attempt < 2 && status == PD_CORRUPT; attempt++) {
        PD_TRY(pd_file_read(shard->file, shard->trailer.table_offset, shard->table, bytes, err));
        status = check_table(shard, err);
    }
    PD_TRY(status);
    PD_TRY(check_identity(shard, identity, err));
    PD_TRY(pd_shard_table_parse(shard->table, shard->trailer.table_bytes, shard->file_bytes, &shard->contents, err));
    const struct pd_shard_head *head = (const void *)shard->table;
    if (head->version != shard->trailer.version) PD_FAIL(err, PD_CORRUPT, "table and trailer have different versions");
    const struct pd_shard_extents extents = {
        shard->contents.places,      shard->contents.box_count,  shard->contents.chunks, shard->contents.chunk_count,
        shard->trailer.table_offset, shard->trailer.table_bytes, shard->file_bytes};
    PD_TRY(pd_shard_map_init(&extents, &shard->map, err));
    shard->checksums = (const uint64_t *)(const void *)(shard->table + head->checksums_at);
    if (expect && (expect->box_count != head->box_count || expect->writer_rank != head->writer_rank))
        PD_FAIL(err, PD_CORRUPT,
                "it was written by rank %" PRIu64 " with %" PRIu64 " boxes where the commit record says rank %u, %u",
                head->writer_rank, head->box_count, expect->writer_rank, expect->box_count);
    shard->box_seeds = malloc(((size_t)shard->contents.box_count + 1) * sizeof *shard->box_seeds);
    if (!shard->box_seeds) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u boxes", shard->contents.box_count);
    for (uint32_t b = 0; b < shard->contents.box_count; b++) {
        const struct pd_shard_box *box = &shard->contents.boxes[b];
        uint64_t name = pd_shard_name_digest(&shard->contents.tensors.tensors[box->tensor]);
        shard->box_seeds[b] = pd_shard_box_seed(&shard->identity, name, box->kind, &box->box);
    }
    return pd_shard_verify_rest(shard, err);
}

pd_status pd_shard_open(struct pd_vfs *vfs, const char *path, const struct pd_identity *identity,
                        const struct pd_shard_summary *expect, struct pd_shard **ret_shard, struct pd_error *err)
{
    struct pd_shard *shard = calloc(1, sizeof *shard);
    if (shard) shard->path = strdup(path);
    if (!shard || !shard->path) {
        free(shard);
        PD_FAIL(err, PD_NO_MEMORY, "no memory to open %s", path);
    }
    shard->vfs = vfs;
    pd_status st = open_parts(shard, identity, expect, err);
    if (st) {
        pd_shard_release(shard);
        return pd_error_context(err, st, "shard %s", path);
    }
    *ret_shard = shard;
    return PD_OK;
}

void pd_shard_release(struct pd_shard *shard)
{
    pd_file_close_readonly(shard->file);
    pd_shard_contents_deinit(&shard->contents);
    pd_shard_map_deinit(&shard->map);
    free(shard->box_seeds);
    free(shard->table);
    free(shard->bounce);
    free(shard->path);
    free(shard);
}

/* ---- what it holds ---- */

uint32_t pd_shard_box_count(const struct pd_shard *shard)
{
    return shard->contents.box_count;
}

const struct pd_tensor_table *pd_shard_tensors(const struct pd_shard *shard)
{
    return &shard->contents.tensors;
}

const struct pd_shard_box *pd_shard_boxes(const struct pd_shard *shard)
{
    return shard->contents.boxes;
}

uint64_t pd_shard_box_offset(const struct pd_shard *shard, uint32_t box)
{
    PD_CHECK(box < shard->contents.box_count);
    const struct pd_shard_place *place = &shard->contents.places[box];
    uint64_t bytes = 0;
    return place->grid.chunk_bytes ? pd_shard_chunk_extent(&shard->contents, box, 0, &bytes) : place->offset;
}

bool pd_shard_is_compressed(const struct pd_shard *shard)
{
    return pd_shard_version_has_chunks(shard->trailer.version);
}

bool pd_shard_box_is_in_chunks(const struct pd_shard *shard, uint32_t box)
{
    PD_CHECK(box < shard->contents.box_count);
    return shard->contents.places[box].grid.chunk_bytes != 0;
}

void pd_shard_summary_of(const struct pd_shard *shard, struct pd_shard_summary *ret_summary)
{
    const struct pd_shard_head *head = (const void *)shard->table;
    *ret_summary = (struct pd_shard_summary){.file_bytes = shard->file_bytes,
                                             .table_offset = shard->trailer.table_offset,
                                             .table_bytes = shard->trailer.table_bytes,
                                             .digest = shard->trailer.table_digest,
                                             .data_bytes = head->data_bytes,
                                             .box_count = shard->contents.box_count,
                                             .writer_rank = (uint32_t)head->writer_rank};
}

uint64_t pd_shard_box_bytes(const struct pd_shard *shard, uint32_t box)
{
    PD_CHECK(box < shard->contents.box_count);
    return shard->contents.places[box].bytes;
}

uint64_t pd_shard_block_count(const struct pd_shard *shard, uint32_t box)
{
    return pd_shard_blocks_of(pd_shard_box_bytes(shard, box));
}

struct pd_file *pd_shard_file(const struct pd_shard *shard)
{
    return shard->file;
}

const struct pd_identity *pd_shard_identity(const struct pd_shard *shard)
{
    return &shard->identity;
}

uint32_t pd_shard_writer_rank(const struct pd_shard *shard)
{
    return (uint32_t)((const struct pd_shard_head *)(const void *)shard->table)->writer_rank;
}
