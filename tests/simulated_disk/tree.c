/* Names of simulated files: lookup, the calls that change names, and what a crash makes of those not yet durable.
 *
 *   invariants  1. links counts the current entries of a node; refs counts entries, changes and handles
 *               2. current = durable + changes in order, except for doomed changes that were overtaken
 *               3. changes of one name become durable in the order they were made
 */
#include "tests/simulated_disk/tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t pd_sim_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t pd_sim_below(uint64_t *state, uint64_t bound)
{
    return pd_sim_random(state) % bound;
}

/* ---- nodes ---- */

static struct pd_sim_node *node_new(struct pd_sim_volume *volume, bool is_directory)
{
    struct pd_sim_node *node = calloc(1, sizeof *node);
    PD_CHECK(node);
    *node = (struct pd_sim_node){.volume = volume, .is_directory = is_directory, .id = volume->next_id++, .refs = 1};
    node->next = volume->nodes;
    if (node->next) node->next->previous = node;
    volume->nodes = node;
    return node;
}

void pd_sim_node_charge(struct pd_sim_node *node)
{
    struct pd_sim_volume *volume = node->volume;
    bool lives = node->links > 0 || node->opens > 0 || node == volume->root;
    uint64_t bytes = node->is_directory ? PD_SIM_PAGE_BYTES : (node->bytes.size + PD_SIM_PAGE_BYTES - 1) / PD_SIM_PAGE_BYTES;
    if (!node->is_directory) bytes *= PD_SIM_PAGE_BYTES;
    if (!lives) bytes = 0;
    volume->used_bytes += bytes - node->charged_bytes;
    volume->used_inodes += (uint64_t)lives - (uint64_t)node->charged;
    node->charged_bytes = bytes;
    node->charged = lives;
}

void pd_sim_node_ref(struct pd_sim_node *node)
{
    node->refs++;
}

static void entries_clear(struct pd_sim_entries *entries)
{
    for (uint32_t i = 0; i < entries->count; i++) {
        free(entries->items[i].name);
        pd_sim_node_unref(entries->items[i].node);
    }
    free(entries->items);
    *entries = (struct pd_sim_entries){0};
}

void pd_sim_node_unref(struct pd_sim_node *node)
{
    if (--node->refs > 0) return;
    struct pd_sim_volume *volume = node->volume;
    node->links = 0;
    node->opens = 0;
    pd_sim_node_charge(node);
    if (node->previous)
        node->previous->next = node->next;
    else
        volume->nodes = node->next;
    if (node->next) node->next->previous = node->previous;
    entries_clear(&node->current);
    entries_clear(&node->durable);
    pd_sim_content_free(node);
    free(node->target);
    free(node);
}

/* ---- entries ---- */

static uint32_t entry_place(const struct pd_sim_entries *entries, const char *name, bool *ret_found)
{
    uint32_t low = 0, high = entries->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(entries->items[middle].name, name);
        if (order == 0) {
            *ret_found = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *ret_found = false;
    return low;
}

struct pd_sim_node *pd_sim_entry_find(const struct pd_sim_entries *entries, const char *name)
{
    bool found;
    uint32_t place = entry_place(entries, name, &found);
    return found ? entries->items[place].node : NULL;
}

static void entry_set(struct pd_sim_entries *entries, const char *name, struct pd_sim_node *node)
{
    bool found;
    uint32_t place = entry_place(entries, name, &found);
    pd_sim_node_ref(node);
    if (found) {
        pd_sim_node_unref(entries->items[place].node);
        entries->items[place].node = node;
        return;
    }
    if (entries->count == entries->capacity) {
        entries->capacity = entries->capacity ? entries->capacity * 2 : 4;
        entries->items = realloc(entries->items, entries->capacity * sizeof *entries->items);
        PD_CHECK(entries->items);
    }
    memmove(&entries->items[place + 1], &entries->items[place], (entries->count - place) * sizeof *entries->items);
    entries->items[place] = (struct pd_sim_entry){strdup(name), node};
    PD_CHECK(entries->items[place].name);
    entries->count++;
}

static void entry_remove(struct pd_sim_entries *entries, const char *name)
{
    bool found;
    uint32_t place = entry_place(entries, name, &found);
    if (!found) return;
    struct pd_sim_entry entry = entries->items[place];
    entries->count--;
    memmove(&entries->items[place], &entries->items[place + 1], (entries->count - place) * sizeof *entries->items);
    free(entry.name);
    pd_sim_node_unref(entry.node);
}

/* ---- changes of names ---- */

static void change_add(struct pd_sim_node *dir, const char *name, struct pd_sim_node *node, bool is_removal, uint64_t group)
{
    struct pd_sim_volume *volume = dir->volume;
    if (volume->change_count == volume->change_capacity) {
        volume->change_capacity = volume->change_capacity ? volume->change_capacity * 2 : 16;
        volume->changes = realloc(volume->changes, volume->change_capacity * sizeof *volume->changes);
        PD_CHECK(volume->changes);
    }
    char *copy = strdup(name);
    PD_CHECK(copy);
    pd_sim_node_ref(dir);
    pd_sim_node_ref(node);
    volume->changes[volume->change_count++] =
        (struct pd_sim_name_change){.group = group, .dir = dir, .node = node, .name = copy, .is_removal = is_removal};
}

static void current_set(struct pd_sim_node *dir, const char *name, struct pd_sim_node *node, uint64_t group)
{
    struct pd_sim_node *old = pd_sim_entry_find(&dir->current, name);
    change_add(dir, name, node, false, group);
    node->links++;
    if (node->is_directory) node->parent = dir;
    if (old) {
        old->links--;
        old->parent = NULL;
        pd_sim_node_charge(old);
    }
    entry_set(&dir->current, name, node);
    pd_sim_node_charge(node);
}

static void current_remove(struct pd_sim_node *dir, const char *name, uint64_t group)
{
    struct pd_sim_node *node = pd_sim_entry_find(&dir->current, name);
    change_add(dir, name, node, true, group);
    node->links--;
    pd_sim_node_charge(node);
    entry_remove(&dir->current, name);
}

static void change_free(struct pd_sim_name_change *change)
{
    free(change->name);
    struct pd_sim_node *dir = change->dir, *node = change->node;
    pd_sim_node_unref(node);
    pd_sim_node_unref(dir);
}

static void changes_drop_done(struct pd_sim_volume *volume)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < volume->change_count; i++) {
        struct pd_sim_name_change change = volume->changes[i];
        if (change.done)
            change_free(&change);
        else
            volume->changes[kept++] = change;
    }
    volume->change_count = kept;
}

/* True when the two halves of this rename live and die together. */
static bool is_atomic(const struct pd_sim_name_change *a, const struct pd_sim_name_change *b)
{
    return a->dir == b->dir || a->node->is_directory;
}

static void make_durable(struct pd_sim_volume *volume, uint32_t index)
{
    struct pd_sim_name_change *change = &volume->changes[index];
    if (change->done || change->doomed) return;
    change->done = true;
    for (uint32_t i = 0; i < index; i++)
        if (volume->changes[i].dir == change->dir && strcmp(volume->changes[i].name, change->name) == 0)
            make_durable(volume, i);
    for (uint32_t i = 0; i < volume->change_count; i++) {
        struct pd_sim_name_change *other = &volume->changes[i];
        if (other->group == change->group && (change->is_removal || is_atomic(change, other))) make_durable(volume, i);
    }
    if (!change->is_removal)
        entry_set(&change->dir->durable, change->name, change->node);
    else if (pd_sim_entry_find(&change->dir->durable, change->name) == change->node)
        entry_remove(&change->dir->durable, change->name);
}

void pd_sim_sync_names(struct pd_sim_node *dir)
{
    struct pd_sim_volume *volume = dir->volume;
    for (uint32_t i = 0; i < volume->change_count; i++)
        if (volume->changes[i].dir == dir) make_durable(volume, i);
    changes_drop_done(volume);
}

void pd_sim_doom_names(struct pd_sim_node *dir)
{
    for (uint32_t i = 0; i < dir->volume->change_count; i++)
        if (dir->volume->changes[i].dir == dir) dir->volume->changes[i].doomed = true;
}

/* ---- paths ---- */

/* Copies the next component of *path to `name`; 0, ENOENT at the end, or ENAMETOOLONG. */
static int next_component(const char **path, char name[PD_SIM_NAME_MAX + 1])
{
    const char *at = *path;
    for (;;) {
        while (*at == '/')
            at++;
        if (at[0] != '.' || (at[1] != '/' && at[1] != '\0')) break;
        at++;
    }
    size_t length = strcspn(at, "/");
    if (length == 0) return ENOENT;
    if (length > PD_SIM_NAME_MAX) return ENAMETOOLONG;
    memcpy(name, at, length);
    name[length] = '\0';
    *path = at + length;
    return 0;
}

static int step(struct pd_sim_node **at, const char *name)
{
    if (!(*at)->is_directory) return ENOTDIR;
    struct pd_sim_node *next;
    if (strcmp(name, "..") == 0)
        next = (*at)->parent ? (*at)->parent : *at;
    else
        next = pd_sim_entry_find(&(*at)->current, name);
    if (!next) return ENOENT;
    *at = next;
    return 0;
}

int pd_sim_find(struct pd_sim_volume *volume, const char *path, struct pd_sim_node **ret_node)
{
    char name[PD_SIM_NAME_MAX + 1];
    struct pd_sim_node *at = volume->root;
    if (volume->lacks & PD_DISK_NO_PATHS) return EIO;
    for (int result; (result = next_component(&path, name)) != ENOENT;) {
        if (!result) result = step(&at, name);
        if (result) return result;
    }
    *ret_node = at;
    return 0;
}

int pd_sim_find_parent(struct pd_sim_volume *volume, const char *path, struct pd_sim_node **ret_dir,
                       char ret_name[PD_SIM_NAME_MAX + 1])
{
    char name[PD_SIM_NAME_MAX + 1], ahead[PD_SIM_NAME_MAX + 1];
    struct pd_sim_node *at = volume->root;
    if (volume->lacks & PD_DISK_NO_PATHS) return EIO;
    int result = next_component(&path, name);
    if (result) return result == ENOENT ? EBUSY : result;
    while ((result = next_component(&path, ahead)) != ENOENT) {
        if (!result) result = step(&at, name);
        if (result) return result;
        memcpy(name, ahead, sizeof name);
    }
    if (!at->is_directory) return ENOTDIR;
    *ret_dir = at;
    memcpy(ret_name, name, sizeof name);
    return 0;
}

/* ---- the calls ---- */

static int check_room(const struct pd_sim_volume *volume, bool is_directory)
{
    if (volume->inode_limit && volume->used_inodes >= volume->inode_limit) return ENOSPC;
    bool full = volume->capacity_bytes && volume->used_bytes + PD_SIM_PAGE_BYTES > volume->capacity_bytes;
    return is_directory && full ? ENOSPC : 0;
}

int pd_sim_create(struct pd_sim_volume *volume, const char *path, bool is_directory, struct pd_sim_node **ret_node)
{
    struct pd_sim_node *dir;
    char name[PD_SIM_NAME_MAX + 1];
    int result = pd_sim_find_parent(volume, path, &dir, name);
    if (result == EBUSY || (!result && pd_sim_entry_find(&dir->current, name))) result = EEXIST;
    if (!result && volume->lacks & PD_DISK_READ_ONLY) result = EROFS;
    if (!result) result = check_room(volume, is_directory);
    if (result) return result;
    struct pd_sim_node *node = node_new(volume, is_directory);
    current_set(dir, name, node, volume->next_group++);
    *ret_node = node;
    pd_sim_node_unref(node); /* the entry holds it */
    return 0;
}

int pd_sim_link(struct pd_sim_volume *volume, const char *from, const char *to)
{
    struct pd_sim_node *node, *dir;
    char name[PD_SIM_NAME_MAX + 1];
    int result = pd_sim_find(volume, from, &node);
    if (!result) result = pd_sim_find_parent(volume, to, &dir, name);
    if (result) return result == EBUSY ? EEXIST : result;
    if (pd_sim_entry_find(&dir->current, name)) return EEXIST;
    if (volume->lacks & PD_DISK_READ_ONLY) return EROFS;
    if (node->is_directory || volume->lacks & PD_DISK_NO_LINKS) return EPERM;
    current_set(dir, name, node, volume->next_group++);
    return 0;
}

int pd_sim_symlink(struct pd_sim_volume *volume, const char *target, const char *path)
{
    struct pd_sim_node *node;
    if (volume->lacks & PD_DISK_NO_LINKS) return EPERM;
    int result = pd_sim_create(volume, path, false, &node);
    if (result) return result;
    node->target = strdup(target);
    PD_CHECK(node->target);
    return 0;
}

int pd_sim_unlink(struct pd_sim_volume *volume, const char *path)
{
    struct pd_sim_node *dir;
    char name[PD_SIM_NAME_MAX + 1];
    int result = pd_sim_find_parent(volume, path, &dir, name);
    if (result) return result == EBUSY ? EISDIR : result;
    const struct pd_sim_node *node = pd_sim_entry_find(&dir->current, name);
    if (!node) return ENOENT;
    if (node->is_directory) return EISDIR;
    if (volume->lacks & PD_DISK_READ_ONLY) return EROFS;
    current_remove(dir, name, volume->next_group++);
    return 0;
}

int pd_sim_rmdir(struct pd_sim_volume *volume, const char *path)
{
    struct pd_sim_node *dir;
    char name[PD_SIM_NAME_MAX + 1];
    int result = pd_sim_find_parent(volume, path, &dir, name);
    if (result) return result;
    struct pd_sim_node *node = pd_sim_entry_find(&dir->current, name);
    if (!node) return ENOENT;
    if (!node->is_directory) return ENOTDIR;
    if (node->current.count) return ENOTEMPTY;
    if (volume->lacks & PD_DISK_READ_ONLY) return EROFS;
    node->parent = NULL;
    current_remove(dir, name, volume->next_group++);
    return 0;
}

static bool is_ancestor(const struct pd_sim_node *node, const struct pd_sim_node *of)
{
    for (; of; of = of->parent)
        if (of == node) return true;
    return false;
}

/* The order in which Linux looks for reasons to refuse. */
static int check_rename(const struct pd_sim_node *node, const struct pd_sim_node *old, const struct pd_sim_node *from_dir,
                        const struct pd_sim_node *to_dir)
{
    if (!node) return ENOENT;
    if (node->is_directory && is_ancestor(node, to_dir)) return EINVAL;
    if (old && old->is_directory && is_ancestor(old, from_dir)) return ENOTEMPTY;
    if (!old || old == node) return 0;
    if (node->is_directory && !old->is_directory) return ENOTDIR;
    if (!node->is_directory && old->is_directory) return EISDIR;
    return old->is_directory && old->current.count ? ENOTEMPTY : 0;
}

int pd_sim_rename(struct pd_sim_volume *volume, const char *from, const char *to)
{
    struct pd_sim_node *from_dir, *to_dir;
    char from_name[PD_SIM_NAME_MAX + 1], to_name[PD_SIM_NAME_MAX + 1];
    int result = pd_sim_find_parent(volume, from, &from_dir, from_name);
    if (!result) result = pd_sim_find_parent(volume, to, &to_dir, to_name);
    if (!result && volume->lacks & PD_DISK_READ_ONLY) result = EROFS;
    if (result) return result;
    struct pd_sim_node *node = pd_sim_entry_find(&from_dir->current, from_name);
    struct pd_sim_node *old = pd_sim_entry_find(&to_dir->current, to_name);
    result = check_rename(node, old, from_dir, to_dir);
    if (result || old == node) return result; /* two names of one file: nothing happens, says POSIX */
    uint64_t group = volume->next_group++;
    pd_sim_node_ref(node);
    current_set(to_dir, to_name, node, group);
    current_remove(from_dir, from_name, group);
    pd_sim_node_unref(node);
    return 0;
}

/* ---- power loss ---- */

static bool holds(const struct pd_sim_node *dir, const struct pd_sim_node *node)
{
    if (dir == node) return true;
    for (uint32_t i = 0; i < dir->durable.count; i++) {
        const struct pd_sim_node *child = dir->durable.items[i].node;
        if (child->is_directory && holds(child, node)) return true;
    }
    return false;
}

/* A directory has one name, whatever renames of it were lost. */
static void forget_other_names(struct pd_sim_volume *volume, const struct pd_sim_node *node)
{
    for (struct pd_sim_node *dir = volume->nodes; dir; dir = dir->next) {
        for (uint32_t i = dir->durable.count; i-- > 0;)
            if (dir->durable.items[i].node == node) entry_remove(&dir->durable, dir->durable.items[i].name);
    }
}

/* False: the state so far does not admit it (the lost changes before it would have made it possible). */
static bool survive(struct pd_sim_volume *volume, const struct pd_sim_name_change *change)
{
    struct pd_sim_entries *durable = &change->dir->durable;
    struct pd_sim_node *there = pd_sim_entry_find(durable, change->name);
    bool there_full = there && there->is_directory && there->durable.count;
    if (change->is_removal) {
        if (there != change->node || there_full) return false;
        entry_remove(durable, change->name);
        return true;
    }
    if (there == change->node) return true;
    if (there_full || (there && there->is_directory != change->node->is_directory)) return false;
    if (change->node->is_directory) {
        if (holds(change->node, change->dir)) return false;
        forget_other_names(volume, change->node);
    }
    entry_set(durable, change->name, change->node);
    return true;
}

static void crash_names(struct pd_sim_volume *volume, uint64_t *random, uint32_t survive_of_16)
{
    uint64_t group = UINT64_MAX;
    bool set_survived = false;
    for (uint32_t i = 0; i < volume->change_count; i++) {
        struct pd_sim_name_change *change = &volume->changes[i];
        bool coin = pd_sim_below(random, 16) < survive_of_16;
        if (change->group == group) { /* the removing half of a rename */
            bool atomic = is_atomic(change, &volume->changes[i - 1]);
            coin = atomic ? set_survived : set_survived && coin;
        }
        bool survived = coin && survive(volume, change);
        group = change->group;
        set_survived = survived;
    }
    for (uint32_t i = 0; i < volume->change_count; i++)
        volume->changes[i].done = true;
    changes_drop_done(volume);
}

/* Names become what is durable, top down; every file that still has one gets its bytes. */
static void restore(struct pd_sim_node *node, uint64_t *random, uint32_t survive_of_16)
{
    bool first = !node->reached;
    node->reached = true;
    if (!first) return;
    if (!node->is_directory) {
        pd_sim_content_crash(node, random, survive_of_16);
        return;
    }
    entries_clear(&node->current);
    for (uint32_t i = 0; i < node->durable.count; i++) {
        struct pd_sim_node *child = node->durable.items[i].node;
        restore(child, random, survive_of_16);
        entry_set(&node->current, node->durable.items[i].name, child);
        child->links++;
        if (child->is_directory) child->parent = node;
    }
}

static void forget_unreached(struct pd_sim_volume *volume)
{
    struct pd_sim_node *node = volume->nodes;
    while (node) {
        pd_sim_node_ref(node); /* clearing may free the neighbours */
        if (!node->reached) {
            entries_clear(&node->current);
            entries_clear(&node->durable);
        }
        pd_sim_node_charge(node);
        struct pd_sim_node *next = node->next;
        pd_sim_node_unref(node);
        node = next;
    }
}

void pd_sim_volume_crash(struct pd_sim_volume *volume, uint64_t seed)
{
    static const uint32_t odds[] = {0, 1, 4, 8, 8, 12, 15, 16};
    uint64_t random = seed;
    uint32_t names = odds[pd_sim_below(&random, 8)], data = odds[pd_sim_below(&random, 8)];
    if (volume->in_memory) entries_clear(&volume->root->durable);
    if (volume->in_memory) names = 0;
    crash_names(volume, &random, names);
    for (struct pd_sim_node *node = volume->nodes; node; node = node->next) {
        node->reached = false;
        node->links = node->opens = 0;
        node->lock = NULL;
        node->parent = NULL;
    }
    restore(volume->root, &random, data);
    forget_unreached(volume);
    volume->epoch++;
}

/* ---- volumes ---- */

struct pd_sim_volume *pd_sim_volume_new(uint64_t device, const struct pd_disk_mount *mount)
{
    struct pd_sim_volume *volume = calloc(1, sizeof *volume);
    PD_CHECK(volume);
    *volume = (struct pd_sim_volume){
        .device = device,
        .next_id = 2,
        .capacity_bytes = mount->capacity_bytes,
        .inode_limit = mount->inode_limit,
        .in_memory = mount->in_memory,
        .shared = mount->shared,
        .lacks = mount->lacks,
    };
    volume->root = node_new(volume, true);
    pd_sim_node_charge(volume->root);
    return volume;
}

static void entries_copy(struct pd_sim_entries *to, const struct pd_sim_entries *from)
{
    for (uint32_t i = 0; i < from->count; i++)
        entry_set(to, from->items[i].name, from->items[i].node->twin);
}

static void node_copy(struct pd_sim_node *to, const struct pd_sim_node *from)
{
    entries_copy(&to->current, &from->current);
    entries_copy(&to->durable, &from->durable);
    pd_sim_content_copy(to, from);
    if (from->target) PD_CHECK((to->target = strdup(from->target)));
    to->links = from->links;
    to->parent = from->parent ? from->parent->twin : NULL;
}

static void volume_fields_copy(struct pd_sim_volume *to, const struct pd_sim_volume *from)
{
    to->next_id = from->next_id;
    to->next_group = from->next_group;
    to->epoch = from->epoch;
    for (uint32_t i = 0; i < from->change_count; i++) {
        const struct pd_sim_name_change *change = &from->changes[i];
        change_add(change->dir->twin, change->name, change->node->twin, change->is_removal, change->group);
        to->changes[i].doomed = change->doomed;
    }
}

struct pd_sim_volume *pd_sim_volume_clone(struct pd_sim_volume *volume)
{
    struct pd_disk_mount mount = {.capacity_bytes = volume->capacity_bytes,
                                  .inode_limit = volume->inode_limit,
                                  .in_memory = volume->in_memory,
                                  .shared = volume->shared,
                                  .lacks = volume->lacks};
    struct pd_sim_volume *clone = pd_sim_volume_new(volume->device, &mount);
    for (struct pd_sim_node *node = volume->nodes; node; node = node->next) {
        node->twin = node == volume->root ? clone->root : node_new(clone, node->is_directory);
        node->twin->id = node->id;
    }
    for (struct pd_sim_node *node = volume->nodes; node; node = node->next)
        node_copy(node->twin, node);
    volume_fields_copy(clone, volume);
    for (struct pd_sim_node *node = volume->nodes; node; node = node->next) {
        struct pd_sim_node *twin = node->twin;
        node->twin = NULL;
        pd_sim_node_charge(twin);
        if (twin != clone->root) pd_sim_node_unref(twin); /* what only a handle held is gone here */
    }
    return clone;
}

void pd_sim_volume_free(struct pd_sim_volume *volume)
{
    if (!volume) return;
    for (uint32_t i = 0; i < volume->change_count; i++)
        volume->changes[i].done = true;
    changes_drop_done(volume);
    free(volume->changes);
    for (struct pd_sim_node *node = volume->nodes; node; node = node->next)
        node->reached = false;
    forget_unreached(volume);
    pd_sim_node_unref(volume->root);
    PD_CHECK(volume->nodes == NULL); /* a handle was left open */
    free(volume);
}
