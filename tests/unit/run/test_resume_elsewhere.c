/* A newest checkpoint that cannot be read where it lies: the same step is taken from another tier that has it, an older one
 * never is, and nothing counts as damaged. The VFS's open is a gate: shards below some directories fail with EIO. */
#include "ckpt/io/vfs_ops.h"
#include "tests/unit/run/saved_run.h"
#include "trainer/run/resume.h"

#include <errno.h>

enum { STEPS = 3 };

static struct {
    struct pd_vfs_ops ops;
    const struct pd_vfs_ops *inner;
    char fails[2][96]; /* "": nothing does */
} gate;

static int gate_open(struct pd_file *file, unsigned flags)
{
    for (int i = 0; i < 2; i++) {
        const size_t length = strlen(gate.fails[i]);
        if (length && strncmp(file->path, gate.fails[i], length) == 0 && strstr(file->path, "/shard-")) return EIO;
    }
    return gate.inner->open(file, flags);
}

struct two {
    struct run run;
    struct pd_group groups[2];
    char far[96], *config;
    uint64_t fingerprint[2];
    double next_loss; /* of the step after the last that is saved */
};

static void open_both(struct two *t, bool is_first_start)
{
    struct run *r = &t->run;
    run_open_tiers(r, &(struct pd_tiers_options){.tiers = {{.dir = r->root, .every = 1, .keep_last = STEPS},
                                                           {.dir = t->far, .every = 1, .keep_last = STEPS}},
                                                 .count = 2,
                                                 .groups = {&t->groups[0], &t->groups[1]}});
    r->state.config = t->config;
    memcpy(r->state.data_fingerprint, t->fingerprint, sizeof t->fingerprint);
    const bool has_files = r->config.offload.optimizer == PD_PLACE_NVME;
    if (has_files) OK(pd_state_open(r->whole.engine->state, r->vfs, pd_tiers_store(r->tiers, 0), err));
    if (!is_first_start) return;
    if (has_files)
        OK(pd_state_init(r->whole.engine->state, &r->state.identity, err));
    else
        OK(pd_state_init(r->whole.engine->state, NULL, err));
    OK(pd_tiers_start(r->tiers, err));
    run_open_saver(r, 1);
}

static void close_both(struct run *r)
{
    pd_saver_free(r->saver);
    pd_state_close(r->whole.engine->state);
    pd_tiers_close(r->tiers);
    r->saver = NULL;
    r->tiers = NULL;
    r->whole.engine->before_update.call = NULL;
}

/* STEPS steps, each saved in both tiers, the near one's first and the far one's second name in `paths`. One more is taken,
 * and the tiers are open again, to resume from. */
static void train(struct two *t, const char *place)
{
    char keys[200];
    struct run *r = &t->run;
    snprintf(keys, sizeof keys,
             "model: {family: llama, vocab: 256, context: 16, layers: 1, hidden: 128, heads: 2}\n"
             "offload: {optimizer: %s, buffer_bytes: 8M}\n",
             place);
    run_make(r, "/tmp", keys);
    snprintf(t->far, sizeof t->far, "%s/far", r->folder);
    cr_assert_eq(mkdir(t->far, 0777), 0);
    memset(&gate, 0, sizeof gate);
    gate.inner = r->vfs->ops;
    gate.ops = *r->vfs->ops;
    gate.ops.open = gate_open;
    r->vfs->ops = &gate.ops;
    pd_group_init_single(&t->groups[0]);
    pd_group_init_single(&t->groups[1]);
    OK(pd_config_print(&r->config, &t->config, err));
    pd_data_fingerprint(r->whole.data, t->fingerprint);
    open_both(t, true);
    for (int i = 0; i < STEPS; i++) {
        run_step(r);
        OK(run_save(r->saver, &r->state, err));
        OK(pd_saver_finish(r->saver, &r->state, -1, err));
    }
    t->next_loss = run_step(r).loss;
    close_both(r);
}

static void remove_newest(const char *dir)
{
    char command[200];
    snprintf(command, sizeof command, "rm -r %s/step-%012d-1", dir, STEPS);
    cr_assert_eq(system(command), 0);
}

static void fail_below(int index, const char *dir)
{
    snprintf(gate.fails[index], sizeof gate.fails[index], "%s", dir);
}

static uint32_t quarantined(struct two *t)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t here;
        OK(pd_store_count_quarantined(pd_tiers_store(t->run.tiers, i), &here, err));
        count += here;
    }
    return count;
}

/* `step` 0: a storage error, which names the directory that could not be read. */
static void check(const char *place, bool near_fails, bool far_fails, bool far_lacks_it, uint64_t step)
{
    struct two t;
    struct run *r = &t.run;
    struct pd_resume_report report;
    struct pd_run_state state = {.config = NULL};
    struct pd_error err = {0};
    train(&t, place);
    if (far_lacks_it) remove_newest(t.far);
    open_both(&t, false);
    if (near_fails) fail_below(0, r->root);
    if (far_fails) fail_below(1, t.far);
    const pd_status st = pd_resume(r->vfs, r->tiers, &r->group, r->whole.engine, pd_resume_newest, &state, &report, &err);
    cr_expect_eq(st, step ? PD_OK : PD_IO, "%s: %s: %s", place, pd_status_name(st), err.message);
    cr_expect_eq(quarantined(&t), 0u, "%s: a storage error is not damage", place);
    fail_below(0, "");
    fail_below(1, "");
    if (step) {
        cr_assert(report.resumed && !report.damaged && state.identity.step == step, "%s: step %llu", place,
                  (unsigned long long)state.identity.step);
        r->state.identity = state.identity;
        r->state.samples = state.samples;
        r->state.updates = state.updates;
        cr_expect_eq(run_step(r).loss, t.next_loss, "%s: other bits", place);
    } else {
        cr_expect(strstr(err.message, far_fails ? t.far : r->root), "%s: %s", place, err.message);
    }
    pd_run_state_deinit(&state);
    close_both(r);
    free(t.config);
    run_close(r);
}

Test(resume_elsewhere, the_same_step_of_another_tier)
{
    check("device", false, true, false, STEPS); /* nobody asks the far one */
    check("device", true, false, false, STEPS);
    check("nvme", true, false, false, STEPS);
}

Test(resume_elsewhere, never_an_older_one)
{
    check("device", true, false, true, 0);
    check("nvme", true, false, true, 0);
}

Test(resume_elsewhere, not_when_it_cannot_be_read_there_either)
{
    check("device", true, true, false, 0);
}
