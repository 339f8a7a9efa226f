/* Bytes of simulated files. The changes since the last sync are kept whole, each with its own copy of the data, so that a
 * crash can apply any subset of their 512-byte pieces to the durable bytes. */
#include "tests/simulated_disk/tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t pages(uint64_t bytes)
{
    return (bytes + PD_SIM_PAGE_BYTES - 1) / PD_SIM_PAGE_BYTES * PD_SIM_PAGE_BYTES;
}

/* Grows with zeros, shrinks by forgetting; memory beyond `size` is always zero. */
static void bytes_resize(struct pd_sim_bytes *bytes, uint64_t size)
{
    if (size > bytes->capacity) {
        uint64_t capacity = bytes->capacity ? bytes->capacity : PD_SIM_PAGE_BYTES;
        while (capacity < size)
            capacity *= 2;
        bytes->data = realloc(bytes->data, capacity);
        PD_CHECK(bytes->data);
        memset(bytes->data + bytes->capacity, 0, capacity - bytes->capacity);
        bytes->capacity = capacity;
    }
    if (size < bytes->size) memset(bytes->data + size, 0, bytes->size - size);
    bytes->size = size;
}

static void bytes_put(struct pd_sim_bytes *bytes, uint64_t offset, const void *data, uint64_t count)
{
    if (offset + count > bytes->size) bytes_resize(bytes, offset + count);
    if (count) memcpy(bytes->data + offset, data, count);
}

static void bytes_copy(struct pd_sim_bytes *to, const struct pd_sim_bytes *from)
{
    bytes_resize(to, 0);
    bytes_put(to, 0, from->data, from->size);
}

static void change_add(struct pd_sim_node *node, uint64_t offset, const void *data, uint64_t bytes)
{
    if (node->change_count == node->change_capacity) {
        node->change_capacity = node->change_capacity ? node->change_capacity * 2 : 8;
        node->changes = realloc(node->changes, node->change_capacity * sizeof *node->changes);
        PD_CHECK(node->changes);
    }
    struct pd_sim_change change = {.offset = offset, .bytes = bytes};
    if (data) {
        change.data = malloc(bytes ? bytes : 1);
        PD_CHECK(change.data);
        memcpy(change.data, data, bytes);
    }
    node->changes[node->change_count++] = change;
}

static void changes_clear(struct pd_sim_node *node)
{
    for (uint32_t i = 0; i < node->change_count; i++)
        free(node->changes[i].data);
    node->change_count = 0;
}

/* How many bytes the file may have before the volume is full. */
static uint64_t size_limit(const struct pd_sim_node *node)
{
    const struct pd_sim_volume *volume = node->volume;
    if (!volume->capacity_bytes) return PD_SIM_FILE_BYTES_MAX;
    uint64_t capacity = volume->capacity_bytes / PD_SIM_PAGE_BYTES * PD_SIM_PAGE_BYTES;
    uint64_t left = capacity > volume->used_bytes ? capacity - volume->used_bytes : 0;
    return node->charged_bytes + left;
}

int pd_sim_write(struct pd_sim_node *node, uint64_t offset, const void *data, uint64_t bytes, uint64_t *ret_moved)
{
    if (offset > PD_SIM_FILE_BYTES_MAX || bytes > PD_SIM_FILE_BYTES_MAX - offset) return EFBIG;
    if (node->volume->lacks & PD_DISK_NO_WRITES) return EIO;
    uint64_t end = offset + bytes, limit = size_limit(node);
    if (end > node->bytes.size && pages(end) > limit) {
        uint64_t room = limit > offset ? limit - offset : 0;
        if (room == 0) return ENOSPC;
        if (room < bytes) bytes = room;
    }
    bytes_put(&node->bytes, offset, data, bytes);
    change_add(node, offset, data, bytes);
    pd_sim_node_charge(node);
    *ret_moved = bytes;
    return 0;
}

uint64_t pd_sim_read(const struct pd_sim_node *node, uint64_t offset, void *data, uint64_t bytes)
{
    if (offset >= node->bytes.size) return 0;
    uint64_t left = node->bytes.size - offset, count = bytes < left ? bytes : left;
    memcpy(data, node->bytes.data + offset, count);
    return count;
}

int pd_sim_resize(struct pd_sim_node *node, uint64_t bytes)
{
    if (bytes > PD_SIM_FILE_BYTES_MAX) return EFBIG;
    if (bytes > node->bytes.size && pages(bytes) > size_limit(node)) return ENOSPC;
    bytes_resize(&node->bytes, bytes);
    change_add(node, bytes, NULL, 0);
    pd_sim_node_charge(node);
    return 0;
}

static void change_apply(struct pd_sim_node *node, const struct pd_sim_change *change)
{
    if (change->data)
        bytes_put(&node->durable_bytes, change->offset, change->data, change->bytes);
    else
        bytes_resize(&node->durable_bytes, change->offset);
}

void pd_sim_sync_content(struct pd_sim_node *node)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < node->change_count; i++) {
        struct pd_sim_change change = node->changes[i];
        if (change.doomed) {
            node->changes[kept++] = change;
            continue;
        }
        change_apply(node, &change);
        free(change.data);
    }
    node->change_count = kept;
}

void pd_sim_doom_content(struct pd_sim_node *node)
{
    for (uint32_t i = 0; i < node->change_count; i++)
        node->changes[i].doomed = true;
}

/* Pieces are those of the file, so two writes tear at the same places. Bytes beyond the surviving size are dropped later. */
static void apply_pieces(struct pd_sim_node *node, const struct pd_sim_change *change, uint64_t *random,
                         uint32_t survive_of_16)
{
    for (uint64_t at = 0; at < change->bytes;) {
        uint64_t place = change->offset + at, count = PD_SIM_PIECE_BYTES - place % PD_SIM_PIECE_BYTES;
        if (count > change->bytes - at) count = change->bytes - at;
        if (pd_sim_below(random, 16) < survive_of_16) bytes_put(&node->durable_bytes, place, change->data + at, count);
        at += count;
    }
}

/* Size changes go through a journal, so a prefix of them survives; pieces of data come and go on their own. A piece whose
 * extension was lost lies beyond the end and is dropped with it. */
void pd_sim_content_crash(struct pd_sim_node *node, uint64_t *random, uint32_t survive_of_16)
{
    uint32_t count = node->change_count;
    uint32_t sized = survive_of_16 == 16  ? count
                     : survive_of_16 == 0 ? 0
                                          : (uint32_t)pd_sim_below(random, count + UINT64_C(1));
    bool backwards = pd_sim_below(random, 8) == 0 && survive_of_16 < 16;
    uint64_t size = node->durable_bytes.size;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = backwards ? count - 1 - i : i;
        const struct pd_sim_change *change = &node->changes[at];
        if (change->data)
            apply_pieces(node, change, random, survive_of_16);
        else if (at < sized && change->offset < node->durable_bytes.size)
            bytes_resize(&node->durable_bytes, change->offset);
    }
    for (uint32_t i = 0; i < sized; i++) {
        const struct pd_sim_change *change = &node->changes[i];
        uint64_t end = change->offset + change->bytes;
        if (!change->data || end > size) size = end;
    }
    bytes_resize(&node->durable_bytes, size);
    changes_clear(node);
    bytes_copy(&node->bytes, &node->durable_bytes);
}

void pd_sim_content_copy(struct pd_sim_node *to, const struct pd_sim_node *from)
{
    bytes_copy(&to->bytes, &from->bytes);
    bytes_copy(&to->durable_bytes, &from->durable_bytes);
    for (uint32_t i = 0; i < from->change_count; i++) {
        const struct pd_sim_change *change = &from->changes[i];
        change_add(to, change->offset, change->data, change->bytes);
        to->changes[i].doomed = change->doomed;
    }
}

void pd_sim_content_free(struct pd_sim_node *node)
{
    changes_clear(node);
    free(node->changes);
    free(node->bytes.data);
    free(node->durable_bytes.data);
}
