/* One simulated file system: what its processes see, what would survive, and what is uncertain in between.
 *
 * Every directory holds its entries twice, current and durable, and every file its bytes twice; the volume keeps the name
 * changes and each file its content changes that are in the one and not yet in the other, in the order they were made.
 * Functions return 0 or an errno. Nodes are counted: entries of either kind, uncertain changes and handles hold one.
 *   memory   that of the simulation itself must not run out: PD_CHECK, since no test could tell it from a simulated fault
 *   threads  the caller holds the disk's lock
 */
#pragma once

#include "tests/simulated_disk/simulated_disk.h"

#define PD_SIM_PIECE_BYTES 512u
#define PD_SIM_PAGE_BYTES 4096u
#define PD_SIM_NAME_MAX 255u
#define PD_SIM_FILE_BYTES_MAX (UINT64_C(1) << 30)

struct pd_sim_node;
struct pd_sim_volume;

struct pd_sim_entry {
    char *name;
    struct pd_sim_node *node;
};
struct pd_sim_entries { /* sorted by name */
    struct pd_sim_entry *items;
    uint32_t count, capacity;
};
struct pd_sim_bytes {
    uint8_t *data;
    uint64_t size, capacity;
};
struct pd_sim_change {
    uint8_t *data; /* NULL: the size becomes `offset` */
    uint64_t offset, bytes;
    bool doomed; /* a sync of it failed: uncertain until the next crash */
};

struct pd_sim_node {
    struct pd_sim_volume *volume;
    struct pd_sim_node *next, *previous; /* all nodes of the volume */
    struct pd_sim_node *parent;          /* of a directory, now; not counted */
    struct pd_sim_node *twin;            /* while cloning */
    char *target;                        /* of a symbolic link, owned; durable with the first of its names */
    bool is_directory, reached;
    uint64_t id, charged_bytes;
    bool charged;
    uint32_t refs, links, opens;
    struct pd_sim_entries current, durable;
    struct pd_sim_bytes bytes, durable_bytes;
    struct pd_sim_change *changes;
    uint32_t change_count, change_capacity;
    const void *lock; /* who holds it */
};

struct pd_sim_name_change {
    uint64_t group; /* both halves of a rename share it */
    struct pd_sim_node *dir, *node;
    char *name;
    bool is_removal, doomed, done;
};

struct pd_sim_volume {
    struct pd_sim_node *root, *nodes;
    struct pd_sim_name_change *changes;
    uint32_t change_count, change_capacity;
    uint64_t next_id, next_group, epoch; /* epoch: crashes so far */
    uint64_t device, capacity_bytes, inode_limit, used_bytes, used_inodes;
    bool in_memory, shared;
    unsigned lacks;
};

uint64_t pd_sim_random(uint64_t *state);
uint64_t pd_sim_below(uint64_t *state, uint64_t bound);

struct pd_sim_volume *pd_sim_volume_new(uint64_t device, const struct pd_disk_mount *mount);
struct pd_sim_volume *pd_sim_volume_clone(struct pd_sim_volume *volume);
void pd_sim_volume_free(struct pd_sim_volume *volume);
void pd_sim_volume_crash(struct pd_sim_volume *volume, uint64_t seed);

void pd_sim_node_ref(struct pd_sim_node *node);
void pd_sim_node_unref(struct pd_sim_node *node);
void pd_sim_node_charge(struct pd_sim_node *node); /* after opens changed */

int pd_sim_find(struct pd_sim_volume *volume, const char *path, struct pd_sim_node **ret_node);
/* The directory that holds the last component, and that component. EBUSY for the root itself. */
int pd_sim_find_parent(struct pd_sim_volume *volume, const char *path, struct pd_sim_node **ret_dir,
                       char ret_name[PD_SIM_NAME_MAX + 1]);
struct pd_sim_node *pd_sim_entry_find(const struct pd_sim_entries *entries, const char *name);

int pd_sim_create(struct pd_sim_volume *volume, const char *path, bool is_directory, struct pd_sim_node **ret_node);
int pd_sim_link(struct pd_sim_volume *volume, const char *from, const char *to);
int pd_sim_symlink(struct pd_sim_volume *volume, const char *target, const char *path);
int pd_sim_unlink(struct pd_sim_volume *volume, const char *path);
int pd_sim_rmdir(struct pd_sim_volume *volume, const char *path);
int pd_sim_rename(struct pd_sim_volume *volume, const char *from, const char *to);
void pd_sim_sync_names(struct pd_sim_node *dir);
void pd_sim_doom_names(struct pd_sim_node *dir);

int pd_sim_write(struct pd_sim_node *node, uint64_t offset, const void *data, uint64_t bytes, uint64_t *ret_moved);
uint64_t pd_sim_read(const struct pd_sim_node *node, uint64_t offset, void *data, uint64_t bytes);
int pd_sim_resize(struct pd_sim_node *node, uint64_t bytes);
void pd_sim_sync_content(struct pd_sim_node *node);
void pd_sim_doom_content(struct pd_sim_node *node);
/* For the crash and the clone. */
void pd_sim_content_crash(struct pd_sim_node *node, uint64_t *random, uint32_t survive_of_16);
void pd_sim_content_copy(struct pd_sim_node *to, const struct pd_sim_node *from);
void pd_sim_content_free(struct pd_sim_node *node);
