/* Shards that lie on several hosts: reading is shared out, and one that is damaged on one host is read from another. */
#include "resharder/load/load.h"

#include "ckpt/shard/copy.h"
#include "tests/helpers/local_group.h"
#include "tests/unit/resharder/state_fixture.h"

#define RANKS 6u

struct loading {
    struct state *state;
    const struct pd_commit *commit;
    const struct pd_layout *wanted;
    bool has_replicas;
    uint64_t read[RANKS], differing;
};

struct owned {
    struct pd_shard_box *boxes;
    float **data;
    uint32_t count;
};

static uint32_t warnings;

static void count_warnings(void *context, const char *line, size_t bytes)
{
    (void)context, (void)bytes;
    __atomic_fetch_add(&warnings, strstr(line, "is read on another") != NULL, __ATOMIC_RELAXED);
}

static void *destination(void *context, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    struct owned *o = context;
    for (uint32_t b = 0; b < o->count; b++)
        if (o->boxes[b].tensor == tensor && o->boxes[b].kind == kind && !box--) return o->data[b];
    return NULL;
}

static void take_owned(const struct loading *l, uint32_t rank, struct owned *o)
{
    OK(pd_layout_shard_boxes(l->wanted, &l->state->table, rank, &o->boxes, &o->count, err));
    o->data = calloc(o->count + 1, sizeof *o->data);
    for (uint32_t b = 0; b < o->count; b++)
        o->data[b] = calloc(pd_box_elements(&o->boxes[b].box), sizeof(float));
}

static void compare(struct loading *l, struct owned *o, bool is_loaded)
{
    for (uint32_t b = 0; b < o->count; b++) {
        const uint64_t count = pd_box_elements(&o->boxes[b].box);
        float *values = malloc(count * sizeof *values);
        state_fill(l->state, &o->boxes[b], values);
        if (is_loaded && memcmp(values, o->data[b], count * sizeof *values))
            __atomic_fetch_add(&l->differing, 1, __ATOMIC_RELAXED);
        free(values);
        free(o->data[b]);
    }
    free(o->data);
    free(o->boxes);
}

static pd_status load_rank(struct pd_group *group, void *context, struct pd_error *err)
{
    struct loading *l = context;
    struct owned o;
    struct pd_load_report report = {0};
    char directory[32];
    snprintf(directory, sizeof directory, "/host-%u", group->host);
    take_owned(l, group->rank, &o);
    void *buffers = aligned_alloc(PD_VFS_ALIGN, 8 << 20);
    const struct pd_load_request request = {.directory = directory,
                                            .commit = l->commit,
                                            .tensors = &l->state->table,
                                            .wanted = l->wanted,
                                            .kinds = (1u << PD_KIND_COUNT) - 1,
                                            .buffers = buffers,
                                            .buffer_bytes = 8 << 20,
                                            .has_replicas = l->has_replicas,
                                            .destination = destination,
                                            .context = &o};
    pd_status st = pd_load(l->state->vfs, group, &request, &report, err);
    l->read[group->rank] = report.bytes_read;
    compare(l, &o, st == PD_OK);
    free(buffers);
    return st;
}

/* ---- files ---- */

static void shard_path(uint32_t host, uint32_t shard, char ret_path[64])
{
    snprintf(ret_path, 64, "/host-%u/shard-%05u.h5", host, shard);
}

static void give(struct state *s, uint32_t host, uint32_t shard)
{
    char from[64], to[64];
    snprintf(from, sizeof from, "/stored/shard-%05u.h5", shard);
    shard_path(host, shard, to);
    OK(pd_shard_copy(s->vfs, from, to, &s->identity, s->buffers, STATE_BUFFER_BYTES, err));
}

/* A page in the middle. */
static void damage(struct state *s, const struct pd_commit *commit, uint32_t host, uint32_t shard)
{
    char path[64];
    struct pd_file *file;
    unsigned char page[PD_VFS_ALIGN];
    shard_path(host, shard, path);
    memset(page, 0xa5, sizeof page);
    OK(pd_file_open(s->vfs, path, PD_OPEN_WRITE, &file, err));
    OK(pd_file_write(file, commit->shards[shard].file_bytes / 2 / PD_VFS_ALIGN * PD_VFS_ALIGN, page, sizeof page, err));
    OK(pd_file_close(file, err));
}

static void cut_off(struct state *s, uint32_t host, uint32_t shard)
{
    char path[64];
    struct pd_file *file;
    shard_path(host, shard, path);
    OK(pd_file_open(s->vfs, path, PD_OPEN_WRITE, &file, err));
    OK(pd_file_truncate(file, PD_VFS_ALIGN, err));
    OK(pd_file_close(file, err));
}

struct scene {
    struct state state;
    struct pd_layout layout;
    struct pd_commit commit;
    uint32_t hosts;
};

static void make_layout(struct pd_layout *l)
{
    pd_layout_init_dp(l, RANKS);
    l->zero_shard = RANKS;
    l->small_bytes = 0;
    l->stage_count = 1;
    OK(pd_layout_check(l, err));
}

/* Every host has the shards of its ranks and those of the host before it. */
static void scene_init(struct scene *scene, uint32_t hosts, bool compresses)
{
    struct state *s = &scene->state;
    scene->hosts = hosts;
    state_init(s, 5);
    s->compresses = s->compresses_all = compresses;
    state_enlarge(s);
    make_layout(&scene->layout);
    state_save(s, &scene->layout, "/stored", &scene->commit);
    for (uint32_t h = 0; h < hosts; h++) {
        char path[64];
        snprintf(path, sizeof path, "/host-%u", h);
        OK(pd_vfs_mkdir(s->vfs, path, err));
        for (uint32_t r = 0; r < RANKS; r++) {
            const uint32_t home = r * hosts / RANKS;
            if (home == h || (home + 1) % hosts == h) give(s, h, r);
        }
    }
    OK(pd_log_configure("warn", err));
    pd_log_set_sink(count_warnings, NULL);
    warnings = 0;
}

static void scene_deinit(struct scene *scene)
{
    pd_commit_deinit(&scene->commit);
    state_deinit(&scene->state);
}

static pd_status load(struct scene *scene, bool has_replicas, struct loading *ret_loading, struct pd_error *err)
{
    *ret_loading = (struct loading){&scene->state, &scene->commit, &scene->layout, has_replicas, {0}, 0};
    pd_status st = pd_group_run_local(RANKS, scene->hosts, load_rank, ret_loading, err);
    cr_assert_eq(ret_loading->differing, 0);
    return st;
}

Test(load_copies, hosts_share_the_reading)
{
    struct scene scene;
    struct loading l;
    scene_init(&scene, 3, false);
    OK(load(&scene, true, &l, err));
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t h = 0; h < 3; h++) {
        const uint64_t bytes = l.read[2 * h] + l.read[2 * h + 1];
        least = bytes < least ? bytes : least;
        most = bytes > most ? bytes : most;
    }
    cr_assert_lt(most, 2 * least, "between %llu and %llu bytes a host", (unsigned long long)least, (unsigned long long)most);
    cr_assert_eq(warnings, 0);
    scene_deinit(&scene);
}

static void find_other_copies(uint32_t hosts, bool compresses)
{
    struct scene scene;
    struct loading l;
    struct pd_error why = {0};
    scene_init(&scene, hosts, compresses);
    for (uint32_t shard = 0; shard < RANKS; shard++) { /* one of its two files, in turn the first and the second */
        const uint32_t home = shard * hosts / RANKS;
        damage(&scene.state, &scene.commit, (home + shard % 2) % hosts, shard);
    }
    cut_off(&scene.state, 0, 0);
    cr_assert_eq(load(&scene, false, &l, &why), PD_CORRUPT);
    cr_assert_eq(warnings, 0);
    OK(load(&scene, true, &l, err));
    cr_assert_gt(warnings, 0);
    damage(&scene.state, &scene.commit, 1, 0);
    cr_assert_eq(load(&scene, true, &l, &why), PD_CORRUPT, "no copy of it is whole");
    scene_deinit(&scene);
}

Test(load_copies, a_damaged_shard_is_read_from_another_host)
{
    find_other_copies(3, false);
}

Test(load_copies, where_every_host_has_every_shard)
{
    find_other_copies(2, false);
}

Test(load_copies, a_damaged_compressed_shard, .timeout = 600)
{
    find_other_copies(3, true);
}

Test(load_copies, a_host_with_files_that_cannot_be_read)
{
    struct scene scene;
    struct loading l;
    struct pd_error why = {0};
    scene_init(&scene, 2, false);
    const struct pd_disk_fault fault = {.kind = PD_DISK_FAULT_ERROR, .nth = 60, .operations = PD_DISK_MASK(PD_DISK_READ)};
    pd_simulated_disk_set_fault(scene.state.disk, &fault);
    cr_assert_eq(load(&scene, true, &l, &why), PD_OK, "%s", why.message);
    cr_assert_eq(pd_simulated_disk_fired(scene.state.disk), 1);
    cr_assert_eq(warnings, 1);
    scene_deinit(&scene);
}
