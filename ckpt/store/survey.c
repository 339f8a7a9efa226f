/* What lies where. Every leader lists its directory; rank 0 unites the listings and gives one verdict a checkpoint, the same
 * on every rank. Nothing is changed here.
 *
 * A leader's view travels as words: a header a directory, then (rank, bytes) of its shards, then the sizes its record
 * promises.
 */
#include "ckpt/base/digest.h"
#include "ckpt/base/log.h"
#include "ckpt/store/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIGHTING_WORDS 8u

/* ---- one leader's view ---- */

pd_status store_read_file(struct pd_vfs *vfs, const char *path, uint64_t bytes_max, void **ret_data, uint64_t *ret_bytes,
                          struct pd_error *err)
{
    struct pd_file *file = NULL;
    struct pd_stat stat;
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    pd_status st = pd_file_stat(file, &stat, err);
    if (st == PD_OK && stat.bytes > bytes_max)
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s has %" PRIu64 " bytes, at most %" PRIu64 " make sense", path,
                          stat.bytes, bytes_max);
    void *data = NULL;
    if (st == PD_OK && !(data = malloc(stat.bytes + 1)))
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for %s", path);
    if (st == PD_OK && stat.bytes) st = pd_file_read(file, 0, data, stat.bytes, err);
    pd_file_close_readonly(file);
    if (st != PD_OK) {
        free(data);
        return st;
    }
    *ret_data = data;
    *ret_bytes = stat.bytes;
    return PD_OK;
}

static pd_status fill_record(struct store_sighting *sighting, const struct pd_commit *commit, struct pd_error *err)
{
    sighting->expected = calloc((size_t)commit->shard_count + 1, sizeof *sighting->expected);
    if (!sighting->expected) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u shards", commit->shard_count);
    for (uint32_t i = 0; i < commit->shard_count; i++)
        sighting->expected[i] = commit->shards[i].file_bytes;
    sighting->shard_count = commit->shard_count;
    sighting->lineage = commit->state.identity.lineage;
    return PD_OK;
}

static pd_status decode_record(struct store_sighting *sighting, const char *path, const void *data, uint64_t bytes,
                               struct pd_error *err)
{
    struct pd_commit commit = {0};
    PD_TRY(pd_commit_decode(path, data, bytes, &commit, err));
    pd_status st = PD_OK;
    if (commit.state.identity.step != sighting->name.step || commit.state.fence != sighting->name.fence)
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s is the record of step %" PRIu64 " of launch %" PRIu64, path,
                          commit.state.identity.step, commit.state.fence);
    if (st == PD_OK) st = fill_record(sighting, &commit, err);
    if (st == PD_OK) sighting->digest = pd_digest64(data, bytes, 0);
    pd_commit_deinit(&commit);
    return st;
}

static pd_status read_record(struct pd_store *store, struct store_sighting *sighting, const char *path, struct pd_error *err)
{
    void *data;
    uint64_t bytes;
    PD_TRY(store_read_file(store->vfs, path, PD_COMMIT_BYTES_MAX, &data, &bytes, err));
    pd_status st = decode_record(sighting, path, data, bytes, err);
    free(data);
    return st;
}

/* Only bytes that are wrong twice are damage; a record that cannot be read says nothing about it. */
static pd_status look_at_record(struct pd_store *store, struct store_sighting *sighting, const char *path,
                                struct pd_error *unreadable)
{
    struct pd_error own = {0};
    pd_status st = read_record(store, sighting, path, &own);
    if (st == PD_CORRUPT) st = read_record(store, sighting, path, &own);
    snprintf(sighting->cause, sizeof sighting->cause, "%.191s", own.message);
    switch (st) {
    case PD_OK:
        sighting->record = STORE_RECORD_VALID;
        return PD_OK;
    case PD_NOT_FOUND:
        sighting->record = STORE_RECORD_ABSENT;
        return PD_OK;
    case PD_CORRUPT:
        sighting->record = STORE_RECORD_INVALID;
        return PD_OK;
    case PD_NO_MEMORY:
        *unreadable = own;
        return st;
    default:
        break;
    }
    sighting->record = STORE_RECORD_UNREADABLE;
    if (unreadable->status == PD_OK) *unreadable = own;
    return PD_OK;
}

/* A shard that is listed and not there: PD_EXISTS where its directory still is, so that it is a link to a drive that is
 * absent, and not a checkpoint that went away meanwhile. */
static pd_status leads_nowhere(struct pd_store *store, const char *name, struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    struct pd_stat stat;
    store_path(store, path, "%s", name);
    pd_status st = pd_vfs_stat(store->vfs, path, &stat, err);
    return st == PD_OK ? PD_EXISTS : st;
}

static pd_status look_at_shards(struct pd_store *store, struct store_sighting *sighting, const char *name,
                                struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    struct pd_listing listing = {0};
    store_path(store, path, "%s", name);
    PD_TRY(pd_vfs_list(store->vfs, path, &listing, err));
    sighting->files = calloc((size_t)listing.count + 1, 2 * sizeof *sighting->files);
    pd_status st = sighting->files ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory to list %s", path);
    for (uint32_t i = 0; st == PD_OK && i < listing.count; i++) {
        uint32_t rank;
        struct pd_stat stat;
        if (!pd_shard_name_parse(listing.names[i], &rank)) continue;
        store_path(store, path, "%s/%s", name, listing.names[i]);
        st = pd_vfs_stat(store->vfs, path, &stat, err);
        if (st == PD_NOT_FOUND) st = leads_nowhere(store, name, err);
        if (st == PD_EXISTS) {
            st = PD_OK;
            continue;
        }
        if (st != PD_OK || stat.type != PD_ENTRY_FILE) continue;
        sighting->files[2 * sighting->file_count] = rank;
        sighting->files[2 * sighting->file_count + 1] = stat.bytes;
        sighting->file_count++;
    }
    pd_listing_deinit(&listing);
    return st;
}

/* PD_NOT_FOUND: it went away meanwhile. A directory that cannot be looked into counts as unreadable. */
static pd_status look_at(struct pd_store *store, const char *name, struct store_sighting *sighting,
                         struct pd_error *unreadable)
{
    char path[STORE_PATH_MAX];
    struct pd_error own = {0};
    pd_status st = look_at_shards(store, sighting, name, &own);
    if (st == PD_NOT_FOUND) return st;
    store_path(store, path, "%s/commit.h5", name);
    if (st == PD_OK) return look_at_record(store, sighting, path, unreadable);
    if (st == PD_NO_MEMORY || unreadable->status == PD_OK) *unreadable = own;
    snprintf(sighting->cause, sizeof sighting->cause, "%.191s", own.message);
    sighting->record = STORE_RECORD_UNREADABLE;
    return st == PD_NO_MEMORY ? st : PD_OK;
}

static void sighting_deinit(struct store_sighting *sighting)
{
    free(sighting->expected);
    free(sighting->files);
}

static pd_status look_around(struct pd_store *store, struct store_survey *survey, struct pd_error *err)
{
    struct pd_listing listing = {0};
    PD_TRY(pd_vfs_list(store->vfs, store->root, &listing, err));
    survey->sightings = calloc((size_t)listing.count + 1, sizeof *survey->sightings);
    pd_status st =
        survey->sightings ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory to list %s", store->root);
    for (uint32_t i = 0; st == PD_OK && i < listing.count; i++) {
        struct store_sighting sighting = {0};
        if (!pd_step_name_parse(listing.names[i], &sighting.name)) continue;
        st = look_at(store, listing.names[i], &sighting, &survey->unreadable);
        if (st == PD_OK)
            survey->sightings[survey->sighting_count++] = sighting;
        else
            sighting_deinit(&sighting);
        if (st == PD_NO_MEMORY && err) *err = survey->unreadable;
        if (st == PD_NOT_FOUND) st = PD_OK;
    }
    pd_listing_deinit(&listing);
    return st;
}

/* ---- views as words ---- */

static uint64_t view_words(const struct store_survey *survey)
{
    uint64_t words = 0;
    for (uint32_t i = 0; i < survey->sighting_count; i++)
        words += SIGHTING_WORDS + 2ull * survey->sightings[i].file_count + survey->sightings[i].shard_count;
    return words;
}

static void view_write(const struct store_survey *survey, uint64_t *words)
{
    for (uint32_t i = 0; i < survey->sighting_count; i++) {
        const struct store_sighting *s = &survey->sightings[i];
        const uint64_t header[SIGHTING_WORDS] = {s->name.step, s->name.fence, s->name.is_tmp, s->record,
                                                 s->lineage,   s->digest,     s->shard_count, s->file_count};
        memcpy(words, header, sizeof header);
        words += SIGHTING_WORDS;
        if (s->file_count) memcpy(words, s->files, 2ull * s->file_count * sizeof *words);
        words += 2ull * s->file_count;
        if (s->shard_count) memcpy(words, s->expected, s->shard_count * sizeof *words);
        words += s->shard_count;
    }
}

/* A sighting inside the words of some rank's view. */
struct remote_sighting {
    uint32_t rank;
    const uint64_t *header, *files, *expected;
};
enum { W_STEP, W_FENCE, W_TMP, W_RECORD, W_LINEAGE, W_DIGEST, W_SHARDS, W_FILES };

struct views {
    uint64_t *counts;                  /* (size) words of each rank, owned */
    uint64_t *words;                   /* all of them in rank order, owned */
    struct remote_sighting *sightings; /* (count), owned */
    uint64_t count;
};

static void views_deinit(struct views *views)
{
    free(views->counts);
    free(views->words);
    free(views->sightings);
}

static pd_status views_allocate(struct pd_store *store, struct views *views, struct pd_group_piece **ret_recvs,
                                struct pd_error *err)
{
    uint64_t total = 0;
    for (uint32_t r = 0; r < store->group->size; r++)
        total += views->counts[r];
    views->words = calloc(total + 1, sizeof *views->words);
    views->sightings = calloc(total / SIGHTING_WORDS + 1, sizeof *views->sightings);
    struct pd_group_piece *recvs = calloc(store->group->size, sizeof *recvs);
    if (!views->words || !views->sightings || !recvs) {
        free(recvs);
        PD_FAIL(err, PD_NO_MEMORY, "no memory to unite the listings of %u ranks", store->group->size);
    }
    uint64_t at = 0;
    for (uint32_t r = 0; r < store->group->size; r++) {
        recvs[r] = (struct pd_group_piece){r, views->words + at, views->counts[r] * sizeof *views->words};
        at += views->counts[r];
    }
    *ret_recvs = recvs;
    return PD_OK;
}

static void views_index(const struct pd_store *store, struct views *views)
{
    const uint64_t *at = views->words;
    for (uint32_t r = 0; r < store->group->size; r++) {
        const uint64_t *end = at + views->counts[r];
        while (at < end) {
            struct remote_sighting *s = &views->sightings[views->count++];
            *s = (struct remote_sighting){.rank = r, .header = at, .files = at + SIGHTING_WORDS};
            s->expected = s->files + 2 * at[W_FILES];
            at = s->expected + at[W_SHARDS];
        }
    }
}

/* Rank 0 gets everything; the others get nothing. */
static pd_status views_collect(struct pd_store *store, const struct store_survey *survey, struct views *views,
                               struct pd_error *err)
{
    struct pd_group *group = store->group;
    bool is_root = group->rank == 0;
    uint64_t words = view_words(survey);
    uint64_t *mine = calloc(words + 1, sizeof *mine);
    views->counts = calloc(group->size, sizeof *views->counts);
    struct pd_group_piece *recvs = NULL;
    pd_status st = mine && views->counts ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for a listing");
    st = pd_group_agree(group, st, err);
    if (st == PD_OK) {
        view_write(survey, mine);
        st = pd_group_gather(group, 0, &words, sizeof words, views->counts, err);
    }
    if (st == PD_OK) st = pd_group_agree(group, is_root ? views_allocate(store, views, &recvs, err) : PD_OK, err);
    struct pd_group_piece send = {0, mine, words * sizeof *mine};
    if (st == PD_OK) st = pd_group_exchange(group, &send, 1, recvs, is_root ? group->size : 0, err);
    if (st == PD_OK && is_root) views_index(store, views);
    free(recvs);
    free(mine);
    return st;
}

/* ---- verdicts ---- */

static int compare_remote(const void *a, const void *b)
{
    const struct remote_sighting *x = a, *y = b;
    for (unsigned word = W_STEP; word <= W_TMP; word++) { /* within one checkpoint final names come first */
        if (x->header[word] != y->header[word]) return x->header[word] < y->header[word] ? -1 : 1;
    }
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

#define SIZE_ABSENT UINT64_MAX

/* The shards that `record` promises, against what lies somewhere. */
struct shards_seen {
    uint64_t absent, wrong; /* how many */
};

static void explain_shard(uint64_t shard, uint64_t bytes, uint64_t expected, uint64_t others, struct store_verdict *verdict)
{
    char name[PD_STORE_NAME_MAX], more[48] = "";
    pd_shard_name_format((uint32_t)shard, name);
    if (others) snprintf(more, sizeof more, " (and %" PRIu64 " more)", others);
    if (bytes == SIZE_ABSENT)
        snprintf(verdict->cause, sizeof verdict->cause, "%.32s is absent%s", name, more);
    else
        snprintf(verdict->cause, sizeof verdict->cause,
                 "%.32s has %" PRIu64 " bytes where the commit record says %" PRIu64 "%s", name, bytes, expected, more);
}

/* Names alone change while a copy is made: only what has its final one is counted. */
static void count_hosts(const struct remote_sighting *group, uint64_t count, const struct remote_sighting *record,
                        uint64_t *hosts, struct store_verdict *verdict)
{
    const uint64_t shards = record->header[W_SHARDS];
    memset(hosts, 0, shards * sizeof *hosts);
    for (uint64_t i = 0; i < count; i++) {
        for (uint64_t f = 0; !group[i].header[W_TMP] && f < group[i].header[W_FILES]; f++) {
            const uint64_t rank = group[i].files[2 * f];
            if (rank < shards) hosts[rank] += group[i].files[2 * f + 1] == record->expected[rank];
        }
    }
    verdict->hosts = shards ? UINT32_MAX : 0;
    for (uint64_t s = 0; s < shards; s++)
        if (hosts[s] < verdict->hosts) verdict->hosts = (uint32_t)hosts[s];
}

/* Said in full where this host has the links. */
static void explain_drive(struct pd_store *store, uint64_t shard, uint64_t others, struct store_verdict *verdict)
{
    const struct pd_step_name step = {.step = verdict->step, .fence = verdict->fence};
    char name[PD_STORE_NAME_MAX], shard_name[PD_STORE_NAME_MAX], path[STORE_PATH_MAX], dir[STORE_PATH_MAX], more[48] = "";
    pd_step_name_format(&step, name);
    store_path(store, path, "%s", name);
    if (!pd_store_absent_drive(store->vfs, path, (uint32_t)shard, dir)) return;
    verdict->is_drive_absent = 1;
    pd_shard_name_format((uint32_t)shard, shard_name);
    if (others) snprintf(more, sizeof more, " (and %" PRIu64 " more)", others);
    snprintf(verdict->cause, sizeof verdict->cause,
             "%.32s%s lies in %.180s, a directory of checkpoint.stripes whose drive is not there", shard_name, more, dir);
}

static pd_status look_for_shards(struct pd_store *store, const struct remote_sighting *group, uint64_t count,
                                 const struct remote_sighting *record, struct shards_seen *ret_seen,
                                 struct store_verdict *verdict, struct pd_error *err)
{
    uint64_t shards = record->header[W_SHARDS], worst = 0, worst_absent = 0;
    uint64_t *sizes = malloc((shards + 1) * sizeof *sizes);
    if (!sizes) PD_FAIL(err, PD_NO_MEMORY, "no memory for %" PRIu64 " shards", shards);
    for (uint64_t i = 0; i < shards; i++)
        sizes[i] = SIZE_ABSENT;
    for (uint64_t i = 0; i < count; i++) {
        for (uint64_t f = 0; f < group[i].header[W_FILES]; f++) {
            uint64_t rank = group[i].files[2 * f];
            if (rank < shards && sizes[rank] != record->expected[rank]) sizes[rank] = group[i].files[2 * f + 1];
        }
    }
    struct shards_seen seen = {0};
    for (uint64_t i = shards; i-- > 0;) {
        if (sizes[i] == record->expected[i]) continue;
        *(sizes[i] == SIZE_ABSENT ? &seen.absent : &seen.wrong) += 1;
        worst = i;
        if (sizes[i] == SIZE_ABSENT) worst_absent = i;
    }
    if (seen.absent + seen.wrong)
        explain_shard(worst, sizes[worst], record->expected[worst], seen.absent + seen.wrong - 1, verdict);
    verdict->is_shard_absent = seen.absent > 0;
    if (seen.absent) explain_drive(store, worst_absent, seen.absent - 1, verdict);
    count_hosts(group, count, record, sizes, verdict);
    free(sizes);
    *ret_seen = seen;
    return PD_OK;
}

/* A network file system may show an old size for a while, and the right file may be on another host: there another size
 * proves nothing. */
static enum store_verdict_kind judge_recorded(const struct pd_store *store, const struct store_verdict *verdict,
                                              const struct shards_seen *seen, bool agrees)
{
    if (agrees && !seen->absent && !seen->wrong) return STORE_SEALED;
    bool is_alone = store->domain_is_local && !store->has_other_domains;
    bool proves = store->options.writable && is_alone && !verdict->has_tmp;
    return proves && seen->wrong && !seen->absent ? STORE_DAMAGED : STORE_PARTIAL;
}

static enum store_verdict_kind judge_unrecorded(const struct remote_sighting *group, uint64_t count)
{
    enum store_verdict_kind kind = STORE_UNSEALED;
    for (uint64_t i = 0; i < count; i++) {
        if (group[i].header[W_RECORD] == STORE_RECORD_UNREADABLE) return STORE_UNREADABLE;
        if (group[i].header[W_RECORD] == STORE_RECORD_INVALID && !group[i].header[W_TMP]) kind = STORE_DAMAGED;
    }
    return kind;
}

/* All sightings of one (step, fence). */
static pd_status judge(struct pd_store *store, const struct remote_sighting *group, uint64_t count,
                       struct store_verdict *verdict, struct pd_error *err)
{
    const struct remote_sighting *record = NULL;
    struct shards_seen seen = {0};
    bool agrees = true;
    *verdict = (struct store_verdict){.step = group[0].header[W_STEP], .fence = group[0].header[W_FENCE], .is_emptied = 1};
    for (uint64_t i = 0; i < count; i++) {
        bool is_valid = group[i].header[W_RECORD] == STORE_RECORD_VALID;
        if (group[i].header[W_TMP]) verdict->has_tmp = 1;
        if (!group[i].header[W_TMP] && group[i].header[W_FILES]) verdict->is_emptied = 0;
        if (group[i].header[W_TMP] || !is_valid) verdict->needs_repair = 1;
        if (is_valid && !record) record = &group[i];
        if (is_valid && record->header[W_DIGEST] != group[i].header[W_DIGEST]) agrees = false;
    }
    if (!record) {
        verdict->kind = judge_unrecorded(group, count);
        return PD_OK;
    }
    PD_TRY(look_for_shards(store, group, count, record, &seen, verdict, err));
    if (!agrees) snprintf(verdict->cause, sizeof verdict->cause, "commit.h5 is not the same on every host");
    verdict->kind = judge_recorded(store, verdict, &seen, agrees);
    verdict->record_rank = record->rank;
    verdict->lineage = record->header[W_LINEAGE];
    verdict->shard_count = (uint32_t)record->header[W_SHARDS];
    for (uint64_t i = 0; i < verdict->shard_count; i++)
        verdict->bytes += record->expected[i];
    return PD_OK;
}

static pd_status judge_all(struct pd_store *store, struct views *views, struct store_survey *survey, struct pd_error *err)
{
    survey->verdicts = calloc(views->count + 1, sizeof *survey->verdicts);
    if (!survey->verdicts) PD_FAIL(err, PD_NO_MEMORY, "no memory for %" PRIu64 " checkpoints", views->count);
    qsort(views->sightings, views->count, sizeof *views->sightings, compare_remote);
    for (uint64_t first = 0, last = 0; first < views->count; first = last) {
        const uint64_t *header = views->sightings[first].header;
        for (last = first + 1; last < views->count; last++) {
            const uint64_t *other = views->sightings[last].header;
            if (other[W_STEP] != header[W_STEP] || other[W_FENCE] != header[W_FENCE]) break;
        }
        PD_TRY(judge(store, &views->sightings[first], last - first, &survey->verdicts[survey->verdict_count], err));
        survey->verdict_count++;
    }
    return PD_OK;
}

/* Rank 0's verdicts become everybody's. */
static pd_status spread_verdicts(struct pd_store *store, struct store_survey *survey, struct pd_error *err)
{
    struct pd_group *group = store->group;
    PD_TRY(pd_group_broadcast(group, 0, &survey->verdict_count, sizeof survey->verdict_count, err));
    uint64_t bytes = (uint64_t)survey->verdict_count * sizeof *survey->verdicts;
    if (group->rank != 0) survey->verdicts = malloc(bytes + 1);
    pd_status st = PD_OK;
    if (!survey->verdicts)
        st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for %u checkpoints", survey->verdict_count);
    PD_TRY(pd_group_agree(group, st, err));
    return pd_group_broadcast(group, 0, survey->verdicts, bytes, err);
}

/* Where nothing may be made, a host without the directory just sees nothing, unless none has it. */
static pd_status look_if_there(struct pd_store *store, struct store_survey *survey, struct pd_error *err)
{
    uint32_t size = store->group->size, is_there = 0, seen_by = 0, *all = calloc(size, sizeof *all);
    pd_status st = all ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for %u ranks", size);
    struct pd_error own = {0};
    if (st == PD_OK && store->leads_domain) {
        st = look_around(store, survey, &own);
        is_there = st == PD_OK;
        if (st == PD_NOT_FOUND && !store->options.writable) st = PD_OK;
        if (st != PD_OK && err) *err = own;
    }
    st = pd_group_agree(store->group, st, err);
    if (st == PD_OK) st = store_gather_all(store, &is_there, sizeof is_there, all, err);
    for (uint32_t r = 0; st == PD_OK && r < size; r++)
        seen_by += all[r];
    free(all);
    PD_TRY(st);
    if (!seen_by) PD_FAIL(err, PD_NOT_FOUND, "there is no such directory");
    return PD_OK;
}

pd_status store_survey_take(struct pd_store *store, struct store_survey *ret_survey, struct pd_error *err)
{
    struct store_survey survey = {0};
    struct views views = {0};
    pd_status st = look_if_there(store, &survey, err);
    if (st == PD_OK) st = views_collect(store, &survey, &views, err);
    if (st == PD_OK) {
        pd_status mine = store->group->rank == 0 ? judge_all(store, &views, &survey, err) : PD_OK;
        st = pd_group_agree(store->group, mine, err);
    }
    if (st == PD_OK) st = spread_verdicts(store, &survey, err);
    views_deinit(&views);
    if (st != PD_OK) {
        store_survey_deinit(&survey);
        return st;
    }
    *ret_survey = survey;
    return PD_OK;
}

void store_survey_deinit(struct store_survey *survey)
{
    for (uint32_t i = 0; i < survey->sighting_count; i++)
        sighting_deinit(&survey->sightings[i]);
    free(survey->sightings);
    free(survey->verdicts);
    *survey = (struct store_survey){0};
}
