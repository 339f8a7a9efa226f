/* A leader's listings are sent as words: a header for each directory, then (rank, bytes) of its shards, then the sizes in
 * its record. */
#include "ckpt/store/scan.h"

#include "ckpt/base/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_ABSENT UINT64_MAX
#define SIZE_OF_NO_FILE (UINT64_MAX - 1) /* a pipe, a device or a directory has the name */

/* ---- one leader's listings ---- */

static pd_status fill_record(struct store_listing *listing, const struct pd_commit *commit, struct pd_error *err)
{
    listing->expected = calloc((size_t)commit->shard_count + 1, sizeof *listing->expected);
    if (!listing->expected) PD_FAIL(err, PD_NO_MEMORY, "no memory for %u shards", commit->shard_count);
    for (uint32_t i = 0; i < commit->shard_count; i++)
        listing->expected[i] = commit->shards[i].file_bytes;
    listing->shard_count = commit->shard_count;
    listing->lineage = commit->state.identity.lineage;
    memcpy(listing->run_id, commit->state.identity.run_id, sizeof listing->run_id);
    return PD_OK;
}

static bool is_another_shard(const struct store_dir *dir, const char *step, const struct pd_commit *commit, uint32_t number)
{
    char path[STORE_PATH_MAX];
    struct pd_shard *shard = NULL;
    snprintf(path, sizeof path, "%.4000s/%s", step, pd_shard_name(number).text);
    const pd_status st = pd_shard_open(dir->vfs, path, &commit->state.identity, &commit->shards[number], &shard, NULL);
    if (st == PD_OK) pd_shard_close(shard);
    return st == PD_CORRUPT;
}

bool store_has_other_shards(const struct store_dir *dir, const char *step, const struct pd_commit *commit)
{
    for (uint32_t i = 0; i < commit->shard_count; i++)
        if (is_another_shard(dir, step, commit, i)) return true;
    return false;
}

/* The record states the name of its directory. If that differs, and the shards match the record, somebody renamed
 * it. */
static pd_status scan_check_name(const struct store_dir *dir, struct store_listing *listing, const char *step,
                                 const struct pd_commit *commit, struct pd_error *err)
{
    const struct pd_step_name right = {.step = commit->state.identity.step, .fence = commit->state.fence};
    const char *name = strrchr(step, '/') + 1;
    if (right.step == listing->name.step && right.fence == listing->name.fence) return PD_OK;
    if (store_has_other_shards(dir, step, commit))
        PD_FAIL(err, PD_CORRUPT, "%s/commit.h5 is the record of %s, and the shards beside it are others", step,
                pd_step_name_text(&right).text);
    snprintf(listing->misnamed, sizeof listing->misnamed, strlen(name) < PD_STORE_NAME_MAX ? "%s" : "%.60s...", name);
    listing->name = right;
    return PD_OK;
}

static pd_status decode_record(const struct store_dir *dir, struct store_listing *listing, const char *path,
                               const void *data, uint64_t bytes, struct pd_error *err)
{
    char step[STORE_PATH_MAX];
    struct pd_commit commit = {0};
    PD_TRY(pd_commit_decode(path, data, bytes, &commit, err));
    snprintf(step, sizeof step, "%.*s", (int)(strrchr(path, '/') - path), path);
    pd_status st = scan_check_name(dir, listing, step, &commit, err);
    if (st == PD_OK) st = fill_record(listing, &commit, err);
    if (st == PD_OK) listing->digest = pd_digest64(data, bytes, 0);
    pd_commit_deinit(&commit);
    return st;
}

static pd_status read_record(const struct store_dir *dir, struct store_listing *listing, const char *path,
                             struct pd_error *err)
{
    void *data;
    uint64_t bytes;
    PD_TRY(store_file_read(dir->vfs, path, PD_COMMIT_BYTES_MAX, &data, &bytes, err));
    pd_status st = decode_record(dir, listing, path, data, bytes, err);
    free(data);
    return st;
}

/* Removes from a message the directory that the caller will print. */
static const char *below(const char *path, const char *message)
{
    const size_t folder = (size_t)(strrchr(path, '/') + 1 - path);
    return strncmp(message, path, folder) == 0 ? message + folder : message;
}

/* Lists a file of step directory `step`. A dangling symbolic link counts as absent. */
static pd_status list_file(const struct store_dir *dir, struct store_listing *listing, const char *step, const char *name,
                           struct pd_error *err)
{
    char path[STORE_PATH_MAX];
    uint32_t rank;
    struct pd_stat stat;
    if (strcmp(name, PD_STORE_REMOVED) == 0) listing->marks |= STORE_MARK_REMOVED;
    if (!pd_shard_name_parse(name, &rank)) return PD_OK;
    snprintf(path, sizeof path, "%s/%s", step, name);
    pd_status st = pd_vfs_stat(dir->vfs, path, &stat, err);
    if (st == PD_NOT_FOUND) return pd_vfs_stat(dir->vfs, step, &stat, err);
    PD_TRY(st);
    listing->files[2 * listing->file_count] = rank;
    listing->files[2 * listing->file_count + 1] = stat.type == PD_ENTRY_FILE ? stat.bytes : SIZE_OF_NO_FILE;
    listing->file_count++;
    return PD_OK;
}

static pd_status list_files(const struct store_dir *dir, struct store_listing *listing, const char *step,
                            struct pd_error *err)
{
    struct pd_listing names = {0};
    PD_TRY(pd_vfs_list(dir->vfs, step, &names, err));
    listing->files = calloc((size_t)names.count + 1, 2 * sizeof *listing->files);
    pd_status st = PD_ALLOCATED(listing->files, err, "no memory to list %s", step);
    for (uint32_t i = 0; st == PD_OK && i < names.count; i++)
        st = list_file(dir, listing, step, names.names[i], err);
    pd_listing_deinit(&names);
    return st;
}

/* PD_NOT_FOUND: it has disappeared. Only bytes that are wrong twice are damage; an unreadable directory or record proves
 * nothing. */
static pd_status list_step(const struct store_dir *dir, const char *step, struct store_listing *listing,
                           struct pd_error *unreadable)
{
    char path[STORE_PATH_MAX];
    struct pd_error own = {0};
    pd_status st = list_files(dir, listing, step, &own);
    if (st == PD_NOT_FOUND) return st;
    int length = snprintf(path, sizeof path, "%s/commit.h5", step);
    PD_CHECK(length > 0 && (size_t)length < sizeof path);
    if (st == PD_OK && (st = read_record(dir, listing, path, &own)) == PD_CORRUPT)
        st = read_record(dir, listing, path, &own);
    /* Result of reading the record at `path`. */
    snprintf(listing->cause, sizeof listing->cause, "%.191s", below(path, own.message));
    listing->record = st == PD_OK          ? STORE_RECORD_VALID
                      : st == PD_NOT_FOUND ? STORE_RECORD_ABSENT
                      : st == PD_CORRUPT   ? STORE_RECORD_INVALID
                                           : STORE_RECORD_UNREADABLE;
    if (listing->record != STORE_RECORD_UNREADABLE) return PD_OK;
    if (st == PD_NO_MEMORY || unreadable->status == PD_OK) *unreadable = own;
    return st == PD_NO_MEMORY ? st : PD_OK;
}

/* PD_NOT_FOUND: it holds no valid record, so it is ignored. */
static pd_status list_other(const struct store_dir *dir, const char *path, struct store_listing *listing,
                            struct pd_error *unreadable)
{
    char record[STORE_PATH_MAX + 16];
    struct pd_error own = {0};
    snprintf(record, sizeof record, "%s/commit.h5", path);
    const pd_status st = read_record(dir, listing, record, &own);
    listing->record = STORE_RECORD_VALID;
    if (st == PD_NO_MEMORY) *unreadable = own;
    return st == PD_OK || st == PD_NO_MEMORY ? st : PD_NOT_FOUND;
}

static void listing_deinit(struct store_listing *listing)
{
    free(listing->expected);
    free(listing->files);
}

static pd_status list_all(const struct store_dir *dir, struct store_scan *scan, struct pd_error *err)
{
    struct pd_listing names = {0};
    PD_TRY(pd_vfs_list(dir->vfs, dir->root, &names, err));
    scan->listings = calloc((size_t)names.count + 1, sizeof *scan->listings);
    pd_status st = PD_ALLOCATED(scan->listings, err, "no memory to list %s", dir->root);
    for (uint32_t i = 0; st == PD_OK && i < names.count; i++) {
        struct store_listing listing = {0};
        const struct store_text step = store_at(dir, "%s", names.names[i]);
        if (pd_step_name_parse(names.names[i], &listing.name))
            st = list_step(dir, step.text, &listing, &scan->unreadable);
        else
            st = list_other(dir, step.text, &listing, &scan->unreadable);
        if (st == PD_OK)
            scan->listings[scan->listing_count++] = listing;
        else
            listing_deinit(&listing);
        if (st == PD_NO_MEMORY) (void)pd_error_pass(err, st, &scan->unreadable);
        if (st == PD_NOT_FOUND) st = PD_OK;
    }
    pd_listing_deinit(&names);
    return st;
}

/* For a reader a host without the directory just sees nothing, unless no host has it. */
static pd_status list_here(struct store_dir *dir, bool must_be_there, struct store_scan *scan, struct pd_error *err)
{
    struct pd_error own = {0};
    uint64_t is_there = 0, seen;
    pd_status st = PD_OK;
    if (dir->leads_share) {
        st = list_all(dir, scan, &own);
        is_there = st == PD_OK;
        if (st == PD_NOT_FOUND && !must_be_there) st = PD_OK;
    }
    PD_TRY(pd_group_agree(dir->group, pd_error_pass(err, st, &own), err));
    PD_TRY(store_gather_most(dir, is_there, &seen, err));
    if (!seen) PD_FAIL(err, PD_NOT_FOUND, "there is no such directory");
    return PD_OK;
}

/* ---- listings as words ---- */

enum {
    W_STEP,
    W_FENCE,
    W_NAME, /* enum word_name */
    W_RECORD,
    W_MARKS,
    W_LINEAGE,
    W_RUN_ID,
    W_DIGEST = W_RUN_ID + 2,
    W_SHARDS,
    W_FILES,
    W_MISNAMED,
    W_COUNT = W_MISNAMED + PD_STORE_NAME_MAX / 8
};

enum word_name { NAME_FINAL, NAME_TMP, NAME_OTHER }; /* order within one checkpoint */

static uint64_t count_words(const struct store_scan *scan)
{
    uint64_t words = 0;
    for (uint32_t i = 0; i < scan->listing_count; i++)
        words += W_COUNT + 2ull * scan->listings[i].file_count + scan->listings[i].shard_count;
    return words;
}

static void write_words(const struct store_scan *scan, uint64_t *words)
{
    for (uint32_t i = 0; i < scan->listing_count; i++) {
        const struct store_listing *l = &scan->listings[i];
        const enum word_name name = l->misnamed[0] ? NAME_OTHER : l->name.is_tmp ? NAME_TMP : NAME_FINAL;
        const uint64_t header[W_MISNAMED] = {l->name.step, l->name.fence,  name,         l->record,
                                             l->marks,     l->lineage,     l->run_id[0], l->run_id[1],
                                             l->digest,    l->shard_count, l->file_count};
        memcpy(words, header, sizeof header);
        memcpy(words + W_MISNAMED, l->misnamed, sizeof l->misnamed);
        words += W_COUNT;
        if (l->file_count) memcpy(words, l->files, 2ull * l->file_count * sizeof *words);
        words += 2ull * l->file_count;
        if (l->shard_count) memcpy(words, l->expected, l->shard_count * sizeof *words);
        words += l->shard_count;
    }
}

/* A listing within some rank's words. */
struct remote {
    uint32_t rank;
    const uint64_t *header, *files, *expected;
};

struct united {
    uint64_t *counts;    /* (size) words of each rank, owned */
    uint64_t *words;     /* all of them in rank order, owned */
    struct remote *rows; /* (count), owned */
    uint64_t count;
};

static void united_deinit(struct united *u)
{
    free(u->counts);
    free(u->words);
    free(u->rows);
}

static pd_status allocate_united(const struct store_dir *dir, struct united *u, struct pd_group_piece **ret_recvs,
                                 struct pd_error *err)
{
    const uint32_t size = dir->group->size;
    uint64_t total = 0;
    for (uint32_t r = 0; r < size; r++)
        total += u->counts[r];
    u->words = calloc(total + 1, sizeof *u->words);
    u->rows = calloc(total / W_COUNT + 1, sizeof *u->rows);
    struct pd_group_piece *recvs = calloc(size, sizeof *recvs);
    if (!u->words || !u->rows || !recvs) {
        free(recvs);
        PD_FAIL(err, PD_NO_MEMORY, "no memory to unite the listings of %u ranks", size);
    }
    uint64_t at = 0;
    for (uint32_t r = 0; r < size; r++) {
        recvs[r] = (struct pd_group_piece){r, u->words + at, u->counts[r] * sizeof *u->words};
        at += u->counts[r];
    }
    *ret_recvs = recvs;
    return PD_OK;
}

static int compare_remote(const void *a, const void *b)
{
    const struct remote *x = a, *y = b;
    for (unsigned word = W_STEP; word <= W_NAME; word++) {
        if (x->header[word] != y->header[word]) return x->header[word] < y->header[word] ? -1 : 1;
    }
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static void index_united(const struct store_dir *dir, struct united *u)
{
    const uint64_t *at = u->words;
    for (uint32_t r = 0; r < dir->group->size; r++) {
        const uint64_t *end = at + u->counts[r];
        while (at < end) {
            struct remote *row = &u->rows[u->count++];
            *row = (struct remote){.rank = r, .header = at, .files = at + W_COUNT};
            row->expected = row->files + 2 * at[W_FILES];
            at = row->expected + at[W_SHARDS];
        }
    }
    qsort(u->rows, u->count, sizeof *u->rows, compare_remote);
}

/* Rank 0 gets all listings, sorted; the others get none. */
static pd_status unite(const struct store_dir *dir, const struct store_scan *scan, struct united *u, struct pd_error *err)
{
    struct pd_group *group = dir->group;
    bool is_root = group->rank == 0;
    uint64_t words = count_words(scan);
    uint64_t *mine = calloc(words + 1, sizeof *mine);
    u->counts = calloc(group->size, sizeof *u->counts);
    struct pd_group_piece *recvs = NULL;
    pd_status st = PD_ALLOCATED(mine && u->counts, err, "no memory for a listing");
    st = pd_group_agree(group, st, err);
    if (st == PD_OK) {
        write_words(scan, mine);
        st = pd_group_gather(group, 0, &words, sizeof words, u->counts, err);
    }
    if (st == PD_OK) st = pd_group_agree(group, is_root ? allocate_united(dir, u, &recvs, err) : PD_OK, err);
    struct pd_group_piece send = {0, mine, words * sizeof *mine};
    if (st == PD_OK) st = pd_group_exchange(group, &send, 1, recvs, is_root ? group->size : 0, err);
    if (st == PD_OK && is_root) index_united(dir, u);
    free(recvs);
    free(mine);
    return st;
}

/* ---- states ---- */

struct pd_store_name store_state_name(const struct store_state *state, bool is_tmp)
{
    return pd_step_name_text(&(struct pd_step_name){state->step, state->fence, is_tmp});
}

/* The shards in the record compared with the files of all hosts. */
struct shards_seen {
    uint64_t absent, wrong;            /* number of each */
    uint64_t first, first_absent;      /* lowest of both kinds; lowest absent one */
    uint64_t first_bytes, first_right; /* its actual and its right size */
};

static struct shards_seen compare_sizes(const uint64_t *sizes, const struct remote *record)
{
    struct shards_seen seen = {0};
    for (uint64_t i = record->header[W_SHARDS]; i-- > 0;) {
        if (sizes[i] == record->expected[i]) continue;
        seen.first = i;
        seen.first_bytes = sizes[i];
        seen.first_right = record->expected[i];
        if (sizes[i] == SIZE_ABSENT) seen.first_absent = i;
        *(sizes[i] == SIZE_ABSENT ? &seen.absent : &seen.wrong) += 1;
    }
    return seen;
}

/* A shard has the right size if any host has it so. */
static void find_sizes(const struct remote *rows, uint64_t count, const struct remote *record, uint64_t *sizes)
{
    const uint64_t shards = record->header[W_SHARDS];
    for (uint64_t i = 0; i < shards; i++)
        sizes[i] = SIZE_ABSENT;
    for (uint64_t i = 0; i < count; i++) {
        for (uint64_t f = 0; f < rows[i].header[W_FILES]; f++) {
            uint64_t rank = rows[i].files[2 * f];
            if (rank < shards && sizes[rank] != record->expected[rank]) sizes[rank] = rows[i].files[2 * f + 1];
        }
    }
}

/* Only final names count: a copy being made has a temporary one. */
static uint32_t count_hosts(const struct remote *rows, uint64_t count, const struct remote *record, uint64_t *hosts)
{
    const uint64_t shards = record->header[W_SHARDS];
    uint64_t fewest = shards ? UINT32_MAX : 0;
    memset(hosts, 0, shards * sizeof *hosts);
    for (uint64_t i = 0; i < count; i++) {
        for (uint64_t f = 0; rows[i].header[W_NAME] == NAME_FINAL && f < rows[i].header[W_FILES]; f++) {
            const uint64_t rank = rows[i].files[2 * f];
            if (rank < shards) hosts[rank] += rows[i].files[2 * f + 1] == record->expected[rank];
        }
    }
    for (uint64_t s = 0; s < shards; s++)
        fewest = hosts[s] < fewest ? hosts[s] : fewest;
    return (uint32_t)fewest;
}

static void explain_shards(const struct shards_seen *seen, struct store_state *state)
{
    char more[48];
    const struct pd_store_name name = pd_shard_name((uint32_t)seen->first);
    uint64_t others = seen->absent + seen->wrong - 1;
    more[0] = '\0';
    if (others) snprintf(more, 48, " (and %" PRIu64 " more)", others);
    if (seen->first_bytes == SIZE_ABSENT)
        snprintf(state->cause, sizeof state->cause, "%.32s is absent%s", name.text, more);
    else if (seen->first_bytes == SIZE_OF_NO_FILE)
        snprintf(state->cause, sizeof state->cause, "%.32s is not a regular file%s", name.text, more);
    else
        snprintf(state->cause, sizeof state->cause, "%.32s has %" PRIu64 " bytes where the commit record says %" PRIu64 "%s",
                 name.text, seen->first_bytes, seen->first_right, more);
}

static pd_status look_for_shards(const struct remote *rows, uint64_t count, const struct remote *record,
                                 struct shards_seen *ret_seen, struct store_state *state, struct pd_error *err)
{
    const uint64_t shards = record->header[W_SHARDS];
    uint64_t *sizes = malloc((shards + 1) * sizeof *sizes);
    if (!sizes) PD_FAIL(err, PD_NO_MEMORY, "no memory for %" PRIu64 " shards", shards);
    find_sizes(rows, count, record, sizes);
    const struct shards_seen seen = compare_sizes(sizes, record);
    if (seen.absent + seen.wrong) explain_shards(&seen, state);
    state->is_shard_absent = seen.absent > 0;
    state->hosts = count_hosts(rows, count, record, sizes);
    free(sizes);
    *ret_seen = seen;
    return PD_OK;
}

/* A network file system may show an old size for a while, and another host may have the right file: a wrong size proves
 * nothing there. */
static enum store_state_kind kind_with_record(const struct store_dir *dir, bool writable, const struct store_state *state,
                                              const struct shards_seen *seen)
{
    const bool proves = writable && dir->is_local && !dir->has_other_shares && !state->has_tmp;
    if (!seen->absent && !seen->wrong) return STORE_COMMITTED;
    return proves && !seen->absent ? STORE_DAMAGED : STORE_PARTIAL;
}

static enum store_state_kind kind_without_record(const struct remote *rows, uint64_t count)
{
    enum store_state_kind kind = STORE_UNCOMMITTED;
    for (uint64_t i = 0; i < count; i++) {
        if (rows[i].header[W_RECORD] == STORE_RECORD_UNREADABLE) return STORE_UNREADABLE;
        if (rows[i].header[W_RECORD] == STORE_RECORD_INVALID && rows[i].header[W_NAME] == NAME_FINAL) kind = STORE_DAMAGED;
    }
    return kind;
}

static const struct remote *first_valid(const struct remote *rows, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (rows[i].header[W_RECORD] == STORE_RECORD_VALID) return &rows[i];
    return NULL;
}

static bool all_agree(const struct remote *rows, uint64_t count, const struct remote *record)
{
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t *header = rows[i].header;
        if (header[W_RECORD] == STORE_RECORD_VALID && header[W_DIGEST] != record->header[W_DIGEST]) return false;
    }
    return true;
}

static void note_record(const struct remote *record, struct store_state *state)
{
    state->record_rank = record->rank;
    state->lineage = record->header[W_LINEAGE];
    memcpy(state->run_id, &record->header[W_RUN_ID], sizeof state->run_id);
    state->shard_count = (uint32_t)record->header[W_SHARDS];
    for (uint64_t i = 0; i < state->shard_count; i++)
        state->bytes += record->expected[i];
}

/* Counts the leading ones that have a name of ours. Records one of the others. */
static uint64_t count_named(const struct remote *rows, uint64_t count, struct store_state *state)
{
    uint64_t named = 0;
    while (named < count && rows[named].header[W_NAME] != NAME_OTHER)
        named++;
    if (named < count) memcpy(state->misnamed, &rows[named].header[W_MISNAMED], sizeof state->misnamed);
    return named;
}

/* Derives one (step, fence) from all listings (count): first its names, then its record, then its shards. */
static pd_status find_state(const struct store_dir *dir, bool writable, const struct remote *rows, uint64_t count,
                            struct store_state *state, struct pd_error *err)
{
    struct shards_seen seen = {0};
    *state = (struct store_state){.step = rows[0].header[W_STEP], .fence = rows[0].header[W_FENCE]};
    if (!(count = count_named(rows, count, state))) {
        note_record(rows, state);
        state->kind = STORE_MISNAMED;
        return PD_OK;
    }
    const struct remote *record = first_valid(rows, count);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t *header = rows[i].header;
        const bool is_tmp = header[W_NAME] == NAME_TMP;
        if (is_tmp) state->has_tmp = 1;
        state->marks |= (uint32_t)header[W_MARKS];
        if (!is_tmp && header[W_FILES]) state->has_shards = 1;
        if (is_tmp || header[W_RECORD] != STORE_RECORD_VALID) state->needs_repair = 1;
    }
    if (!record) {
        state->kind = kind_without_record(rows, count);
        return PD_OK;
    }
    note_record(record, state);
    PD_TRY(look_for_shards(rows, count, record, &seen, state, err));
    state->kind = kind_with_record(dir, writable, state, &seen);
    if (all_agree(rows, count, record)) return PD_OK;
    if (state->kind == STORE_COMMITTED) state->kind = STORE_PARTIAL;
    snprintf(state->cause, sizeof state->cause, "commit.h5 is not the same on every host");
    return PD_OK;
}

static pd_status find_states(const struct store_dir *dir, bool writable, const struct united *u, struct store_scan *scan,
                             struct pd_error *err)
{
    scan->states = calloc(u->count + 1, sizeof *scan->states);
    if (!scan->states) PD_FAIL(err, PD_NO_MEMORY, "no memory for %" PRIu64 " checkpoints", u->count);
    for (uint64_t first = 0, last = 0; first < u->count; first = last) {
        const uint64_t *header = u->rows[first].header;
        for (last = first + 1; last < u->count; last++) {
            const uint64_t *other = u->rows[last].header;
            if (other[W_STEP] != header[W_STEP] || other[W_FENCE] != header[W_FENCE]) break;
        }
        PD_TRY(find_state(dir, writable, &u->rows[first], last - first, &scan->states[scan->state_count], err));
        scan->state_count++;
    }
    return PD_OK;
}

/* ---- all of it ---- */

static pd_status find_and_spread(const struct store_dir *dir, bool writable, struct store_scan *scan, struct pd_error *err)
{
    const bool is_root = dir->group->rank == 0;
    struct united u = {0};
    pd_status st = unite(dir, scan, &u, err);
    if (st == PD_OK) {
        pd_status mine = is_root ? find_states(dir, writable, &u, scan, err) : PD_OK;
        uint64_t bytes = scan->state_count * sizeof *scan->states;
        void *states = scan->states;
        st = store_spread(dir, 0, mine, &states, &bytes, err);
        scan->states = states;
        scan->state_count = (uint32_t)(bytes / sizeof *scan->states);
    }
    united_deinit(&u);
    return st;
}

pd_status store_scan(struct store_dir *dir, bool writable, struct store_scan *ret_scan, struct pd_error *err)
{
    struct store_scan scan = {0};
    pd_status st = list_here(dir, writable, &scan, err);
    if (st == PD_OK) st = find_and_spread(dir, writable, &scan, err);
    if (st == PD_OK)
        *ret_scan = scan;
    else
        store_scan_deinit(&scan);
    return st;
}

void store_scan_deinit(struct store_scan *scan)
{
    for (uint32_t i = 0; i < scan->listing_count; i++)
        listing_deinit(&scan->listings[i]);
    free(scan->listings);
    free(scan->states);
    *scan = (struct store_scan){0};
}

const struct store_listing *store_scan_find(const struct store_scan *scan, const struct store_state *state, bool is_tmp)
{
    for (uint32_t i = 0; i < scan->listing_count; i++) {
        const struct store_listing *l = &scan->listings[i];
        if (l->misnamed[0] || l->name.step != state->step || l->name.fence != state->fence) continue;
        if (l->name.is_tmp == is_tmp) return l;
    }
    return NULL;
}
