#include "trainer/run/resume.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/heartbeat.h"
#include "ckpt/base/log.h"
#include "resharder/stored.h"
#include "trainer/engine/computed_on.h"
#include "trainer/run/directories.h"
#include "trainer/run/events.h"
#include "trainer/run/launched.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define MODULE "resume"

const struct pd_resume_limit pd_resume_newest = {.step = UINT64_MAX};

/* ---- configuration ---- */

static void resume_describe(const struct pd_resume_difference *d, uint32_t count, enum pd_resume_effect effect, char *text,
                            size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < count && used < capacity; i++)
        if (d[i].effect == effect)
            used += (size_t)snprintf(text + used, capacity - used, "%s%s was %s and is now %s", used ? "; " : "", d[i].key,
                                     d[i].before, d[i].now);
}

/* Arithmetic or data changed, on purpose. */
struct change {
    bool any;
    char text[640];
};

/* An imported checkpoint has no data and no lineage; lineages count from 1. The first run that continues from it begins one,
 * and fixes batch, numerics and data. */
static bool is_imported(const struct pd_commit *commit)
{
    return commit->state.identity.lineage == 0;
}

/* The schedule may change at any restart, though it affects the bits; run.steps changes optimizer.decay_steps. If the
 * learning rate jumps, warns with the keys that keep the schedule. */
static void log_schedule(const struct pd_engine *e, const struct pd_config *saved, uint64_t updates,
                         const struct pd_resume_difference *d, uint32_t count)
{
    static const char *const schedule[] = {"optimizer.lr", "optimizer.min_lr", "optimizer.warmup_steps",
                                           "optimizer.decay_steps"};
    const double before = pd_learning_rate(saved, updates), now = pd_learning_rate(e->options.config, updates);
    char text[640] = "", keys[320] = "";
    size_t used = 0, keys_used = 0;
    for (uint32_t i = 0; i < count && used < sizeof text; i++) {
        if (d[i].effect != PD_RESUME_FREE || strncmp(d[i].key, "optimizer.", 10) != 0) continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s was %s and is now %s", used ? "; " : "", d[i].key,
                                 d[i].before, d[i].now);
        for (int k = 0; k < 4; k++)
            if (strcmp(d[i].key, schedule[k]) == 0)
                keys_used += (size_t)snprintf(keys + keys_used, sizeof keys - keys_used, " %s=%s", d[i].key, d[i].before);
    }
    if (!used || e->options.rank) return;
    if (now == before)
        pd_log_info(MODULE, "%s: steps from here on follow it, with other bits than a run that began with it", text);
    else
        pd_log_warn(MODULE,
                    "the learning rate of the next step is %.3g, and was to be %.3g: %s%s. Steps from here on follow it; to "
                    "keep the schedule, give%s",
                    now, before, text,
                    saved->run.steps != e->options.config->run.steps && strstr(keys, "decay_steps")
                        ? " (it is run.steps where it is not set)"
                        : "",
                    keys);
}

/* A run that continues an import skips the samples already consumed: as counted by the other system, or computed from its
 * steps in batches of this run. */
static void count_imported_samples(const struct pd_engine *e, struct pd_run_state *s)
{
    const char *why = s->samples ? "as its system counted" : "which is its steps times batch.sequences";
    if (!s->samples && !pd_checked_mul_u64(s->identity.step, e->options.config->batch.sequences, &s->samples)) return;
    if (s->samples && e->options.rank == 0)
        pd_log_info(MODULE, "the checkpoint was imported at step %llu: the data continues after sample %llu, %s",
                    (unsigned long long)s->identity.step, (unsigned long long)s->samples, why);
}

static pd_status compare_keys(const struct pd_engine *e, const struct pd_commit *commit, const struct pd_config *saved,
                              struct change *change, struct pd_error *err)
{
    struct pd_resume_difference differences[32];
    char *text = change->text;
    const size_t capacity = sizeof change->text;
    uint32_t count = pd_config_compare(saved, e->options.config, differences, 32);
    if (count > 32) count = 32;
    resume_describe(differences, count, PD_RESUME_REFUSED, text, capacity);
    if (text[0])
        PD_FAIL(err, PD_INVALID, "this run cannot continue with another model: %s; restore it, or start another run.dir",
                text);
    if (is_imported(commit)) return PD_OK;
    log_schedule(e, saved, commit->state.updates, differences, count);
    resume_describe(differences, count, PD_RESUME_NEW_LINEAGE, text, capacity);
    change->any = text[0] != '\0';
    if (text[0] && !e->options.config->accept_new_lineage)
        PD_FAIL(err, PD_INVALID,
                "%s: steps would no longer have the bits of an uninterrupted run; %s, or continue with other bits from here "
                "on: accept_new_lineage=true",
                text, saved->numerics.lanes ? "restore it" : "take the program that saved it");
    return PD_OK;
}

static pd_status compare_data(const struct pd_engine *e, const struct pd_commit *commit, const struct pd_config *saved,
                              struct change *change, struct pd_error *err)
{
    const struct pd_data_options before = pd_config_data(saved);
    struct pd_error cause;
    const pd_status st = pd_data_check_fingerprint(e->data, commit->state.data_fingerprint, &before, &cause);
    if (!st) return PD_OK;
    if (!e->options.config->accept_new_lineage) {
        if (err) *err = cause;
        return st;
    }
    const size_t used = strlen(change->text);
    snprintf(change->text + used, sizeof change->text - used, "%sthe data is not what it was", used ? "; " : "");
    change->any = true;
    return PD_OK;
}

/* ---- whose checkpoint it is ---- */

/* Two runs in turn would overwrite each other's checkpoints. */
static pd_status check_run_id(const struct pd_engine *e, const char *path, const struct pd_commit *commit,
                              struct pd_error *err)
{
    struct pd_recorded recorded;
    char run_id[PD_RUN_ID_BYTES];
    const char *dir = e->options.config->run.dir;
    pd_recorded_read(dir, &recorded);
    pd_recorded_run_id(commit->state.identity.run_id, run_id);
    if (!recorded.run_id[0] || strcmp(recorded.run_id, run_id) == 0) return PD_OK;
    PD_FAIL(err, PD_INVALID,
            "%.400s is of run %s, and run.dir, %.300s, has the record of run %s: two runs cannot share a directory of "
            "checkpoints; name this run's own with checkpoint.dir=DIR, or continue from that one with another run.dir=DIR",
            path, run_id, dir, recorded.run_id);
}

/* A run.dir moved or copied with its checkpoints has the run's record. */
static void find_other_run(const struct pd_config *now, const struct pd_config *saved, struct pd_resume_report *report)
{
    struct pd_recorded recorded;
    if (strcmp(now->run.dir, saved->run.dir) == 0 || pd_directories_are_same(now->run.dir, saved->run.dir)) return;
    pd_recorded_read(now->run.dir, &recorded);
    const bool by_turns =
        access(saved->run.dir, F_OK) == 0 && pd_directories_are_same(now->checkpoint.dir, saved->checkpoint.dir);
    if (recorded.run_id[0] && !by_turns) return;
    snprintf(report->other_run, sizeof report->other_run, "%.500s", saved->run.dir);
}

static void log_other_run(const struct pd_resume_report *report, const char *dir, uint64_t step)
{
    if (report->other_run[0])
        pd_log_warn(MODULE,
                    "the checkpoints here are another run's: step %llu was saved with run.dir=%s; this run, %s, continues "
                    "from it, and retention will remove those; for a run of its own name another checkpoint.dir",
                    (unsigned long long)step, report->other_run, dir);
}

/* Nothing is known of this run's gradients yet. */
static void begin_sizes(const struct pd_engine *e, struct pd_run_state *state)
{
    struct pd_gradient_sizes sizes = {{0}};
    if (e->options.config->numerics.terms == PD_TERMS_32) pd_gradient_sizes_init(&sizes);
    memcpy(state->gradient_sizes, sizes.log2, sizeof state->gradient_sizes);
}

/* Another precision starts with its own loss scale. */
static pd_status compare_configs(const struct pd_engine *e, struct pd_commit *commit, struct change *ret_change,
                                 struct pd_resume_report *report, struct pd_error *err)
{
    struct pd_config saved;
    PD_TRY(pd_error_context(err, pd_commit_check_is_run(commit, err), "the newest checkpoint here"));
    PD_TRY(
        pd_error_context(err, pd_config_parse_saved(commit->state.config, NULL, 0, &saved, err), "the checkpoint's record"));
    if (is_imported(commit) || saved.numerics.precision != e->options.config->numerics.precision) {
        commit->state.loss_scale = e->loss_scale;
        commit->state.loss_scale_good_steps = 0;
    }
    if (is_imported(commit) || saved.numerics.terms != e->options.config->numerics.terms) begin_sizes(e, &commit->state);
    if (is_imported(commit)) count_imported_samples(e, &commit->state);
    if (report && !is_imported(commit)) find_other_run(e->options.config, &saved, report);
    pd_status st = compare_keys(e, commit, &saved, ret_change, err);
    if (!st && !is_imported(commit)) st = compare_data(e, commit, &saved, ret_change, err);
    pd_config_deinit(&saved);
    return st;
}

/* ---- fresh start ---- */

static pd_status fill_launch(const struct pd_engine *e, const struct pd_tiers *tiers, struct pd_run_state *state,
                             struct pd_error *err)
{
    state->fence = pd_tiers_fence(tiers);
    state->layout = e->grid.layout;
    state->seed = e->options.config->run.seed;
    state->moments = e->options.config->optimizer.moments;
    state->tensor_count = e->options.model->tensors.count;
    state->parameter_count = e->options.model->parameter_count;
    pd_data_fingerprint(e->data, state->data_fingerprint);
    const char *path;
    const uint64_t tokenizer = pd_data_tokenizer(e->data, &path);
    if (tokenizer) state->tokenizer_digest = tokenizer;
    snprintf(state->created_by, sizeof state->created_by, "perdure %s", PERDURE_VERSION);
    free(state->config);
    free(state->environment);
    state->config = state->environment = NULL;
    PD_TRY(pd_computed_on(e->options.device, &state->environment, err));
    return pd_config_print(e->options.config, &state->config, err);
}

/* Another device, or library on it, gives other bits than before. */
static void log_other_device(const struct pd_engine *e, const struct pd_run_state *saved)
{
    char *now = NULL, before_said[320], now_said[320];
    const char *before = saved->environment ? saved->environment : "";
    if (strstr(before, "\"imported_from\"")) return;
    if (pd_computed_on(e->options.device, &now, NULL)) return;
    if (strcmp(before, now) != 0) {
        pd_computed_on_describe(before, before_said, sizeof before_said);
        pd_computed_on_describe(now, now_said, sizeof now_said);
        pd_log(PD_LOG_WARN, MODULE,
               "steps up to %llu were computed on %s, later ones on %s: from step %llu on the bits may differ from a run "
               "that stayed",
               (unsigned long long)saved->identity.step, before_said, now_said,
               (unsigned long long)saved->identity.step + 1);
    }
    free(now);
}

/* Data may change on purpose, but hardly the meaning of its tokens. */
static void log_other_tokenizer(const struct pd_engine *e, const struct pd_run_state *saved)
{
    const char *path;
    const uint64_t now = pd_data_tokenizer(e->data, &path);
    if (!now || !saved->tokenizer_digest || now == saved->tokenizer_digest) return;
    pd_log(PD_LOG_WARN, MODULE,
           "the checkpoint was trained on tokens of another tokenizer (digest %016llx) than the data is now (%016llx): what "
           "the model learned of a token does not hold for it",
           (unsigned long long)saved->tokenizer_digest, (unsigned long long)now);
}

/* of_run: identity of a run with checkpoints only of later steps, or NULL: a new run. */
static pd_status start_fresh(struct pd_group *group, struct pd_engine *e, const struct pd_identity *of_run,
                             struct pd_run_state *state, struct pd_error *err)
{
    *state = (struct pd_run_state){.loss_scale = e->loss_scale, .best_validation_loss = NAN, .last_loss = NAN};
    state->identity.lineage = 1;
    begin_sizes(e, state);
    if (of_run && e->options.config->init.from[0])
        PD_FAIL(err, PD_CORRUPT,
                "the run began with init.from and goes back to a step before its oldest checkpoint, so there is nothing to "
                "continue from; keep more of them (checkpoint.keep_last)");
    if (of_run) {
        state->identity = *of_run;
        state->identity.step = 0;
        return pd_group_agree(group, pd_state_init(e->state, &state->identity, err), err);
    }
    if (group->rank == 0 && getrandom(state->identity.run_id, sizeof state->identity.run_id, 0) < 0)
        state->identity.run_id[0] = pd_clock_wall_ns();
    PD_TRY(pd_group_broadcast(group, 0, state->identity.run_id, sizeof state->identity.run_id, err));
    return pd_group_agree(group, pd_state_init(e->state, &state->identity, err), err);
}

/* ---- one candidate ---- */

struct candidate {
    uint32_t tier;
    struct pd_store *store; /* of its tier */
    struct pd_store_entry entry;
    uint64_t lineage; /* the highest of any tier */
};

static bool resume_choose(struct pd_tiers *tiers, struct candidate *ret)
{
    if (!pd_tiers_newest(tiers, &ret->tier, &ret->entry)) return false;
    ret->store = pd_tiers_store(tiers, ret->tier);
    ret->lineage = pd_tiers_lineage(tiers);
    return true;
}

static void log_new_lineage(const struct pd_identity *identity, const struct change *change)
{
    pd_log(PD_LOG_WARN, MODULE,
           "accept_new_lineage: %s: a new lineage, number %llu, from step %llu on, whose bits differ from a run that never "
           "changed",
           change->text, (unsigned long long)identity->lineage, (unsigned long long)identity->step + 1);
}

/* A record copied here from another run is damage; differences in its configuration are then no useful advice. */
static pd_status check_record(struct pd_vfs *vfs, const char *directory, const struct pd_commit *commit, pd_status st,
                              struct pd_error *err)
{
    struct pd_error own;
    for (uint32_t i = 0; st == PD_INVALID && i < commit->shard_count; i++) {
        struct pd_shard *shard = NULL;
        const pd_status opened = pd_stored_open_shard(vfs, directory, commit, i, &shard, &own);
        if (opened == PD_OK) pd_shard_close(shard);
        if (opened != PD_CORRUPT) continue;
        if (err) *err = own;
        return PD_CORRUPT;
    }
    return st;
}

static pd_status load_entry(struct pd_vfs *vfs, const struct candidate *c, struct pd_group *group, struct pd_engine *e,
                            struct pd_commit *commit, struct pd_resume_report *report, struct pd_error *err)
{
    char path[4096];
    struct pd_load_report load;
    struct change change = {.any = false};
    pd_status st = pd_store_read_commit(c->store, &c->entry, commit, err);
    pd_store_entry_path(c->store, &c->entry, path);
    if (!st && group->rank == 0) st = check_record(vfs, path, commit, check_run_id(e, path, commit, err), err);
    if (!st)
        st = check_record(vfs, path, commit, compare_configs(e, commit, &change, group->rank ? NULL : report, err), err);
    PD_TRY(pd_group_agree(group, st, err));
    struct pd_load_request request = {.directory = path,
                                      .commit = commit,
                                      .tensors = &e->options.model->tensors,
                                      .wanted = &e->grid.layout,
                                      .buffers = e->staging.data,
                                      .buffer_bytes = e->staging.bytes,
                                      .pool = e->pool,
                                      .has_replicas = !pd_store_is_shared(c->store)};
    struct pd_identity identity = commit->state.identity;
    if (change.any || is_imported(commit)) identity.lineage = c->lineage + 1;
    pd_owner_acquire(&e->staging.owner, "load");
    st = pd_state_load(e->state, vfs, group, &request, &identity, &load, err);
    pd_owner_release(&e->staging.owner, "load");
    PD_TRY(st);
    if (change.any && group->rank == 0) log_new_lineage(&identity, &change);
    commit->state.identity = identity;
    report->from_world = pd_layout_world(&commit->state.layout);
    report->resumed = true;
    return PD_OK;
}

/* It is of the same run, but later than wanted. */
static pd_status leave_alone(struct pd_tiers *tiers, const struct candidate *c, struct pd_group *group, const char *doubt,
                             struct pd_identity *ret_identity, struct pd_error *err)
{
    struct pd_commit commit = {0};
    const pd_status st = pd_store_read_commit(c->store, &c->entry, &commit, err);
    if (!st) *ret_identity = commit.state.identity;
    pd_commit_deinit(&commit);
    PD_TRY(pd_group_agree(group, st, err));
    if (!doubt) {
        pd_tiers_pass_over(tiers, c->tier, &c->entry);
        return PD_OK;
    }
    if (group->rank == 0) pd_log_error(MODULE, "step %llu goes to quarantine: %s", (unsigned long long)c->entry.step, doubt);
    return pd_store_quarantine(c->store, &c->entry, doubt, err);
}

static pd_status pass_over(const struct candidate *c, struct pd_group *group, const struct pd_error *damage,
                           struct pd_error *err)
{
    char path[4096];
    pd_store_entry_path(c->store, &c->entry, path);
    if (group->rank == 0)
        pd_log(PD_LOG_ERROR, MODULE, "%s is damaged and goes to quarantine; using the checkpoint before it: %s", path,
               damage->message);
    return pd_store_quarantine(c->store, &c->entry, damage->message, err);
}

/* A storage error does not mean damage. The same step in another tier will do; an older one will not. */
static bool is_elsewhere(struct pd_tiers *tiers, const struct candidate *c, struct pd_group *group,
                         const struct pd_error *cause)
{
    char path[4096];
    struct candidate next;
    pd_tiers_pass_over(tiers, c->tier, &c->entry);
    if (!resume_choose(tiers, &next) || next.entry.lineage != c->entry.lineage || next.entry.step != c->entry.step)
        return false;
    pd_store_entry_path(c->store, &c->entry, path);
    if (group->rank == 0)
        pd_log(PD_LOG_ERROR, MODULE, "%s cannot be read; using the same step of another tier: %s", path, cause->message);
    return true;
}

/* Removed while this launch started: the next one would find it incomplete and use the one before. */
static bool has_gone(struct pd_tiers *tiers, const struct candidate *c, struct pd_group *group)
{
    char path[4096];
    bool is_gone = false;
    if (pd_store_has_gone(c->store, &c->entry, &is_gone, NULL) || !is_gone) return false;
    pd_store_entry_path(c->store, &c->entry, path);
    if (group->rank == 0)
        pd_log_error(MODULE, "%s has lost files since this launch began; using the checkpoint before it", path);
    pd_tiers_pass_over(tiers, c->tier, &c->entry);
    return true;
}

/* Starting at step 1 beside damaged or incomplete checkpoints would eventually delete what might be repaired. */
static pd_status refuse_to_bury(struct pd_store *store, const struct pd_resume_report *report, const struct pd_error *damage,
                                struct pd_error *err)
{
    char root[4096], what[704] = "", aside[64] = "";
    uint32_t quarantined, unusable = pd_store_unusable_count(store);
    PD_TRY(pd_store_count_quarantined(store, &quarantined, err));
    if (!unusable && !quarantined && !report->damaged) return PD_OK;
    pd_store_entry_path(store, &(struct pd_store_entry){0}, root);
    root[strlen(root) - 1] = '\0'; /* the slash before the name */
    if (report->damaged) {
        snprintf(what, sizeof what, ". The last: %.600s", damage->message);
    } else if (unusable) {
        const struct pd_store_unusable *newest = pd_store_unusable_at(store, unusable - 1);
        if (newest->flaw == PD_STORE_MISNAMED)
            PD_FAIL(err, PD_CORRUPT,
                    "%.500s holds no checkpoint under its own name, but %.63s (step %llu): %s; to start from step 1 take "
                    "another run.dir=DIR, or move that away and give --fresh",
                    root, newest->name, (unsigned long long)newest->step, newest->cause);
        snprintf(what, sizeof what, ". The newest of %u: %s: %s", unusable, newest->name, newest->cause);
    }
    if (quarantined) snprintf(aside, sizeof aside, " (%u in its quarantine directory)", quarantined);
    PD_FAIL(err, PD_CORRUPT,
            "%.500s holds no complete checkpoint, but damaged or incomplete ones%s: restore a checkpoint from a copy and "
            "bring missing files or hosts back, or start from step 1 with another run.dir, or with --fresh after moving "
            "that directory away%s",
            root, aside, what);
}

/* ---- hosts that are away ---- */

static bool has_incomplete(struct pd_tiers *tiers)
{
    for (uint32_t t = 0; t < pd_tiers_count(tiers); t++) {
        const struct pd_store *store = pd_tiers_store(tiers, t);
        for (uint32_t i = 0; store && i < pd_store_unusable_count(store); i++)
            if (pd_store_unusable_at(store, i)->flaw == PD_STORE_INCOMPLETE) return true;
    }
    return false;
}

/* Hosts may remember a run that was here before. */
static bool is_known_of(const struct candidate *c, const struct pd_step_line *known)
{
    struct pd_commit commit = {0};
    const bool is_read = pd_store_read_commit(c->store, &c->entry, &commit, NULL) == PD_OK;
    const bool is_same = is_read && commit.state.identity.run_id[0] == known->run;
    pd_commit_deinit(&commit);
    return is_same;
}

/* Losing a host costs the steps of which no other host had a copy. While hosts that hold a copied step (or without copies
 * the last complete one) may return, that step is not given up.
 *   errors  PD_HOSTS_AWAY */
static pd_status check_hosts_away(const struct pd_config *config, struct pd_tiers *tiers, const struct pd_step_line *known,
                                  struct pd_error *err)
{
    struct candidate newest;
    struct pd_recorded recorded;
    const char *away = pd_launched_hosts_away();
    const bool is_copied = config->checkpoint.tiers_count && config->checkpoint.tiers[0].replicas;
    if (!away[0]) return PD_OK;
    if (resume_choose(tiers, &newest)) {
        if (!is_copied || newest.entry.step >= known->kept || !is_known_of(&newest, known)) return PD_OK;
        PD_FAIL(err, PD_HOSTS_AWAY,
                "too few of the hosts that hold step %llu take part (without %.300s), and step %llu is the newest complete "
                "one here; to continue from that one, take those out of launch.hosts",
                (unsigned long long)known->kept, away, (unsigned long long)newest.entry.step);
    }
    pd_recorded_read(config->run.dir, &recorded);
    if ((!known->kept || known->time < recorded.since) && !has_incomplete(tiers)) return PD_OK;
    PD_FAIL(err, PD_HOSTS_AWAY,
            "the run has saved steps, and none is complete on the hosts that take part (without %.300s); bring those back",
            away);
}

pd_status pd_resume(struct pd_vfs *vfs, struct pd_tiers *tiers, struct pd_group *group, struct pd_engine *e,
                    struct pd_resume_limit limit, struct pd_run_state *ret_state, struct pd_resume_report *ret_report,
                    struct pd_error *err)
{
    struct pd_resume_report report = {0};
    uint64_t start = pd_clock_monotonic_ns(NULL);
    struct pd_error damage = {0};
    struct candidate candidate;
    struct pd_identity later = {.lineage = 0};
    const bool may_wait = group->rank == 0 && limit.step == UINT64_MAX;
    PD_TRY(pd_group_agree(group, may_wait ? check_hosts_away(e->options.config, tiers, &limit.known, err) : PD_OK, err));
    while (!report.resumed && resume_choose(tiers, &candidate)) {
        struct pd_commit commit = {0};
        if (candidate.entry.step > limit.step) {
            PD_TRY(leave_alone(tiers, &candidate, group, limit.doubt, &later, err));
            continue;
        }
        pd_status st = load_entry(vfs, &candidate, group, e, &commit, &report, &damage);
        if (!st) {
            *ret_state = commit.state;
            report.from_tier = candidate.tier;
            commit.state = (struct pd_run_state){0};
        }
        pd_commit_deinit(&commit);
        if (st == PD_NOT_FOUND) st = PD_IO; /* the scan has seen it */
        if (st == PD_CORRUPT) {
            report.damaged++;
            PD_TRY(pass_over(&candidate, group, &damage, err));
        } else if (st == PD_IO && has_gone(tiers, &candidate, group)) {
            report.damaged++;
        } else if (st && (st != PD_IO || !is_elsewhere(tiers, &candidate, group, &damage))) {
            if (err) *err = damage;
            return st;
        }
    }
    const bool begins_in_doubt =
        limit.doubt && later.lineage && !report.damaged; /* the quarantined ones are of this run, and newer */
    for (uint32_t t = 0; !report.resumed && !begins_in_doubt && t < pd_tiers_count(tiers); t++) {
        struct pd_store *store = pd_tiers_store(tiers, t);
        if (store) PD_TRY(refuse_to_bury(store, &report, &damage, err));
    }
    if (!report.resumed) {
        const bool asks = group->rank == 0 && !later.lineage;
        PD_TRY(pd_group_agree(group, asks ? pd_recorded_check_lost(e->options.config, err) : PD_OK, err));
        PD_TRY(start_fresh(group, e, later.lineage ? &later : NULL, ret_state, err));
    }
    report.seconds = pd_clock_seconds_since(start);
    *ret_report = report;
    if (report.resumed && group->rank == 0) {
        log_other_run(&report, e->options.config->run.dir, ret_state->identity.step);
        log_other_device(e, ret_state);
        log_other_tokenizer(e, ret_state);
    }
    return fill_launch(e, tiers, ret_state, err);
}
