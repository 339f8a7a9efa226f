/* Hosts, mounts, faults and crashes of the machine room; the calls of a process are in vfs.c. */
#include "ckpt/base/digest.h"
#include "tests/simulated_disk/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANY_OPERATION ((1u << PD_DISK_OPERATION_COUNT) - 1u)

static const struct {
    const char *name;
    unsigned can_hit;
} fault_kinds[PD_DISK_FAULT_KIND_COUNT] = {
    [PD_DISK_FAULT_NONE] = {"none", ANY_OPERATION},
    [PD_DISK_FAULT_ERROR] = {"error", ANY_OPERATION},
    [PD_DISK_FAULT_ERROR_APPLIED] = {"error after the fact", ANY_OPERATION},
    [PD_DISK_FAULT_SHORT] = {"short transfer", PD_DISK_MASK(PD_DISK_READ) | PD_DISK_MASK(PD_DISK_WRITE)},
    [PD_DISK_FAULT_TORN] = {"torn write", PD_DISK_MASK(PD_DISK_WRITE)},
    [PD_DISK_FAULT_LOST] = {"lost write", PD_DISK_MASK(PD_DISK_WRITE)},
    [PD_DISK_FAULT_MISDIRECTED] = {"misdirected write", PD_DISK_MASK(PD_DISK_WRITE)},
    [PD_DISK_FAULT_LOST_SYNC] = {"lost sync", PD_DISK_MASK(PD_DISK_SYNC) | PD_DISK_MASK(PD_DISK_SYNC_DIR)},
    [PD_DISK_FAULT_FLIP] = {"flipped bit", PD_DISK_MASK(PD_DISK_READ)},
    [PD_DISK_FAULT_POWER] = {"power loss", ANY_OPERATION},
};

static const char *const operation_names[PD_DISK_OPERATION_COUNT] = {
    [PD_DISK_OPEN] = "open",
    [PD_DISK_CLOSE] = "close",
    [PD_DISK_READ] = "read",
    [PD_DISK_WRITE] = "write",
    [PD_DISK_PREALLOCATE] = "preallocate",
    [PD_DISK_TRUNCATE] = "truncate",
    [PD_DISK_SYNC] = "sync",
    [PD_DISK_STAT] = "stat",
    [PD_DISK_RENAME] = "rename",
    [PD_DISK_LINK] = "link",
    [PD_DISK_SYMLINK] = "symlink",
    [PD_DISK_READLINK] = "readlink",
    [PD_DISK_UNLINK] = "unlink",
    [PD_DISK_MKDIR] = "mkdir",
    [PD_DISK_RMDIR] = "rmdir",
    [PD_DISK_SYNC_DIR] = "sync_dir",
    [PD_DISK_SPACE] = "space",
    [PD_DISK_LIST] = "list",
    [PD_DISK_LOCK] = "lock",
    [PD_DISK_QUEUE_OPEN] = "queue_open",
};

const char *pd_disk_operation_name(enum pd_disk_operation operation)
{
    PD_CHECK((unsigned)operation < PD_DISK_OPERATION_COUNT);
    return operation_names[operation];
}

const char *pd_disk_fault_kind_name(enum pd_disk_fault_kind kind)
{
    PD_CHECK((unsigned)kind < PD_DISK_FAULT_KIND_COUNT);
    return fault_kinds[kind].name;
}

/* ---- making and breaking up ---- */

static void mount_add(struct pd_simulated_disk *disk, const struct pd_disk_mount *from)
{
    const char *path = from->path;
    while (*path == '/')
        path++;
    size_t length = strlen(path);
    while (length && path[length - 1] == '/')
        length--;
    uint32_t place = length ? disk->mount_count++ : 0;
    struct pd_sim_mount *mount = &disk->mounts[place];
    PD_CHECK(length < sizeof mount->path && place < PD_SIM_MOUNTS_MAX);
    snprintf(mount->path, sizeof mount->path, "%.*s", (int)length, path);
    mount->shared = from->shared;
    mount->volumes = calloc(disk->host_count, sizeof(struct pd_sim_volume *));
    PD_CHECK(mount->volumes);
    for (uint32_t host = 0; host < disk->host_count; host++) {
        uint64_t device = 100 + (uint64_t)place * 1000 + (from->shared ? 0 : host);
        mount->volumes[host] = from->shared && host > 0 ? mount->volumes[0] : pd_sim_volume_new(device, from);
    }
}

/* The directory a mount covers, so that listings show it. */
static void mount_show(struct pd_simulated_disk *disk, const struct pd_sim_mount *mount)
{
    for (uint32_t host = 0; mount->path[0] && host < disk->host_count; host++) {
        struct pd_sim_volume *root = disk->mounts[0].volumes[host];
        struct pd_sim_node *node = NULL;
        if (pd_sim_create(root, mount->path, true, &node) == 0) pd_sim_sync_names(root->root);
    }
}

static const struct pd_disk_mount *root_mount(const struct pd_disk_options *options)
{
    static const struct pd_disk_mount plain = {.path = "/"};
    for (uint32_t i = 0; i < PD_DISK_MOUNTS_MAX; i++)
        if (options->mounts[i].path && strcmp(options->mounts[i].path, "/") == 0) return &options->mounts[i];
    return &plain;
}

static struct pd_simulated_disk *disk_alloc(uint32_t host_count)
{
    struct pd_simulated_disk *disk = calloc(1, sizeof *disk);
    struct pd_sim_host *hosts = calloc(host_count, sizeof *hosts);
    if (!disk || !hosts) {
        free(disk);
        free(hosts);
        return NULL;
    }
    disk->host_count = host_count;
    disk->hosts = hosts;
    disk->mount_count = 1;
    pthread_mutex_init(&disk->mutex, NULL);
    return disk;
}

pd_status pd_simulated_disk_new(const struct pd_disk_options *options, struct pd_simulated_disk **ret_disk,
                                struct pd_error *err)
{
    uint32_t host_count = options->host_count ? options->host_count : 1;
    struct pd_simulated_disk *disk = disk_alloc(host_count);
    if (!disk) PD_FAIL_ERRNO(err, ENOMEM, "a simulated disk of %u hosts", host_count);
    disk->random = options->seed;
    const struct pd_disk_mount *root = root_mount(options);
    mount_add(disk, root);
    for (uint32_t i = 0; i < PD_DISK_MOUNTS_MAX; i++)
        if (options->mounts[i].path && &options->mounts[i] != root) mount_add(disk, &options->mounts[i]);
    for (uint32_t i = 0; i < disk->mount_count; i++)
        mount_show(disk, &disk->mounts[i]);
    *ret_disk = disk;
    return PD_OK;
}

static void mount_free(struct pd_simulated_disk *disk, struct pd_sim_mount *mount)
{
    for (uint32_t host = 0; host < disk->host_count; host++)
        if (host == 0 || !mount->shared) pd_sim_volume_free(mount->volumes[host]);
    free(mount->volumes);
}

void pd_simulated_disk_free(struct pd_simulated_disk *disk)
{
    if (!disk) return;
    for (uint32_t i = 0; i < disk->mount_count; i++)
        mount_free(disk, &disk->mounts[i]);
    pthread_mutex_destroy(&disk->mutex);
    free(disk->hosts);
    free(disk->trace);
    free(disk);
}

static void mount_clone(const struct pd_simulated_disk *disk, struct pd_sim_mount *to, const struct pd_sim_mount *from)
{
    *to = *from;
    to->volumes = calloc(disk->host_count, sizeof(struct pd_sim_volume *));
    PD_CHECK(to->volumes);
    for (uint32_t host = 0; host < disk->host_count; host++)
        to->volumes[host] = from->shared && host > 0 ? to->volumes[0] : pd_sim_volume_clone(from->volumes[host]);
}

pd_status pd_simulated_disk_clone(struct pd_simulated_disk *disk, struct pd_simulated_disk **ret_clone, struct pd_error *err)
{
    struct pd_simulated_disk *clone = disk_alloc(disk->host_count);
    if (!clone) PD_FAIL_ERRNO(err, ENOMEM, "a copy of a simulated disk");
    pthread_mutex_lock(&disk->mutex);
    clone->random = disk->random;
    clone->has_symlinks = disk->has_symlinks;
    clone->mount_count = disk->mount_count;
    for (uint32_t host = 0; host < disk->host_count; host++)
        clone->hosts[host].powered_off = disk->hosts[host].powered_off;
    for (uint32_t i = 0; i < disk->mount_count; i++)
        mount_clone(disk, &clone->mounts[i], &disk->mounts[i]);
    pthread_mutex_unlock(&disk->mutex);
    *ret_clone = clone;
    return PD_OK;
}

pd_status pd_simulated_disk_vfs(struct pd_simulated_disk *disk, uint32_t host, struct pd_vfs **ret_vfs, struct pd_error *err)
{
    PD_CHECK(host < disk->host_count);
    struct pd_sim_vfs *mine = calloc(1, sizeof *mine);
    if (!mine) PD_FAIL_ERRNO(err, ENOMEM, "opening a simulated disk");
    struct pd_vfs *vfs = NULL;
    pd_status st = pd_vfs_new(&pd_sim_vfs_ops, 8, mine, &vfs, err);
    if (st) {
        free(mine);
        return st;
    }
    pthread_mutex_lock(&disk->mutex);
    *mine = (struct pd_sim_vfs){.disk = disk, .host = host, .generation = disk->hosts[host].generation};
    pthread_mutex_unlock(&disk->mutex);
    pd_vfs_set_description(vfs, "simulated disk, host %u", host);
    *ret_vfs = vfs;
    return PD_OK;
}

struct pd_sim_volume *pd_sim_locate(struct pd_simulated_disk *disk, uint32_t host, const char *path, const char **ret_rest)
{
    while (*path == '/')
        path++;
    for (uint32_t i = 1; i < disk->mount_count; i++) {
        const struct pd_sim_mount *mount = &disk->mounts[i];
        size_t length = strlen(mount->path);
        if (strncmp(path, mount->path, length) != 0 || (path[length] != '/' && path[length] != '\0')) continue;
        *ret_rest = path + length;
        return mount->volumes[host];
    }
    *ret_rest = path;
    return disk->mounts[0].volumes[host];
}

/* ---- faults ---- */

void pd_simulated_disk_set_fault(struct pd_simulated_disk *disk, const struct pd_disk_fault *fault)
{
    pthread_mutex_lock(&disk->mutex);
    disk->fault = fault ? *fault : (struct pd_disk_fault){.kind = PD_DISK_FAULT_NONE};
    disk->counted = disk->fired = 0;
    pthread_mutex_unlock(&disk->mutex);
}

uint64_t pd_simulated_disk_fired(struct pd_simulated_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    uint64_t fired = disk->fired;
    pthread_mutex_unlock(&disk->mutex);
    return fired;
}

uint64_t pd_simulated_disk_count(struct pd_simulated_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    uint64_t counted = disk->counted;
    pthread_mutex_unlock(&disk->mutex);
    return counted;
}

void pd_simulated_disk_set_lacks(struct pd_simulated_disk *disk, const char *path, unsigned lacks)
{
    const char *rest;
    pthread_mutex_lock(&disk->mutex);
    for (uint32_t host = 0; host < disk->host_count; host++)
        pd_sim_locate(disk, host, path, &rest)->lacks = lacks;
    pthread_mutex_unlock(&disk->mutex);
}

static bool fault_strikes(struct pd_simulated_disk *disk, const struct pd_vfs *vfs, enum pd_disk_operation operation)
{
    const struct pd_disk_fault *fault = &disk->fault;
    unsigned mask = fault_kinds[fault->kind].can_hit;
    if (fault->operations) mask &= fault->operations;
    if (!(mask & PD_DISK_MASK(operation)) || (fault->vfs && fault->vfs != vfs)) return false;
    disk->counted++;
    if (fault->kind == PD_DISK_FAULT_NONE || (fault->nth == 0 && !fault->picks)) return false;
    bool strikes = fault->picks        ? fault->picks(operation)
                   : fault->persistent ? disk->counted >= fault->nth
                                       : disk->counted == fault->nth;
    disk->fired += strikes;
    return strikes;
}

int pd_sim_begin(struct pd_vfs *vfs, enum pd_disk_operation operation, struct pd_sim_strike *ret_strike)
{
    struct pd_sim_vfs *mine = vfs->context;
    struct pd_simulated_disk *disk = mine->disk;
    pthread_mutex_lock(&disk->mutex);
    struct pd_sim_host *host = &disk->hosts[mine->host];
    *ret_strike = (struct pd_sim_strike){.kind = PD_DISK_FAULT_NONE};
    if (host->powered_off || host->generation != mine->generation) return EIO;
    if (!fault_strikes(disk, vfs, operation)) return 0;
    if (disk->fault.kind == PD_DISK_FAULT_POWER) {
        host->powered_off = true;
        return EIO;
    }
    *ret_strike = (struct pd_sim_strike){disk->fault.kind, disk->fault.sys_errno ? disk->fault.sys_errno : EIO};
    return 0;
}

int pd_sim_struck(const struct pd_sim_strike *strike, int result)
{
    const bool fails = strike->kind == PD_DISK_FAULT_ERROR || (strike->kind == PD_DISK_FAULT_ERROR_APPLIED && !result);
    return fails ? strike->sys_errno : result;
}

int pd_sim_end(struct pd_vfs *vfs, const struct pd_sim_strike *strike, int result)
{
    struct pd_sim_vfs *mine = vfs->context;
    result = pd_sim_struck(strike, result);
    pthread_mutex_unlock(&mine->disk->mutex);
    return result;
}

/* ---- dying ---- */

static void release_locks(struct pd_simulated_disk *disk, uint32_t host)
{
    for (uint32_t i = 0; i < disk->mount_count; i++) {
        for (struct pd_sim_node *node = disk->mounts[i].volumes[host]->nodes; node; node = node->next) {
            const struct pd_vfs *holder = node->lock;
            if (holder && ((const struct pd_sim_vfs *)holder->context)->host == host) node->lock = NULL;
        }
    }
}

static void host_die(struct pd_simulated_disk *disk, uint32_t host)
{
    disk->hosts[host].generation++;
    release_locks(disk, host);
}

void pd_simulated_disk_kill(struct pd_simulated_disk *disk, uint32_t host)
{
    pthread_mutex_lock(&disk->mutex);
    for (uint32_t h = 0; h < disk->host_count; h++)
        if (host == PD_DISK_ALL_HOSTS || h == host) host_die(disk, h);
    pthread_mutex_unlock(&disk->mutex);
}

static void host_crash(struct pd_simulated_disk *disk, uint32_t host, bool all, uint64_t seed)
{
    host_die(disk, host);
    disk->hosts[host].powered_off = false;
    for (uint32_t i = 0; i < disk->mount_count; i++) {
        const struct pd_sim_mount *mount = &disk->mounts[i];
        uint64_t mixed = seed ^ (uint64_t)(i * 64 + host) << 32;
        bool goes = mount->shared ? all && host == 0 : true;
        if (goes) pd_sim_volume_crash(mount->volumes[host], pd_sim_random(&mixed));
    }
}

void pd_simulated_disk_crash(struct pd_simulated_disk *disk, uint32_t host, uint64_t seed)
{
    pthread_mutex_lock(&disk->mutex);
    bool all = host == PD_DISK_ALL_HOSTS || disk->host_count == 1;
    for (uint32_t h = 0; h < disk->host_count; h++)
        if (all || h == host) host_crash(disk, h, all, seed);
    pthread_mutex_unlock(&disk->mutex);
}

bool pd_simulated_disk_flip(struct pd_simulated_disk *disk, uint32_t host, const char *path, uint32_t count, uint64_t seed)
{
    const char *rest;
    struct pd_sim_node *node = NULL;
    pthread_mutex_lock(&disk->mutex);
    struct pd_sim_volume *volume = pd_sim_locate(disk, host, path, &rest);
    bool found = pd_sim_find(volume, rest, &node) == 0 && !node->is_directory && node->bytes.size > 0;
    if (found) pd_sim_sync_content(node);
    for (uint32_t i = 0; found && i < count; i++) {
        uint64_t bit = pd_sim_below(&seed, node->bytes.size * 8);
        uint8_t mask = (uint8_t)(1u << (bit % 8));
        node->bytes.data[bit / 8] ^= mask;
        if (bit / 8 < node->durable_bytes.size) node->durable_bytes.data[bit / 8] ^= mask;
    }
    pthread_mutex_unlock(&disk->mutex);
    return found;
}

static void digest_node(const struct pd_sim_node *node, struct pd_digest_stream *stream)
{
    const uint64_t head[] = {node->id, node->is_directory, node->durable.count, node->durable_bytes.size};
    pd_digest_stream_add(stream, head, sizeof head);
    if (node->target) pd_digest_stream_add(stream, node->target, strlen(node->target));
    if (!node->is_directory) pd_digest_stream_add(stream, node->durable_bytes.data, node->durable_bytes.size);
    for (uint32_t i = 0; i < node->durable.count; i++) {
        pd_digest_stream_add(stream, node->durable.items[i].name, strlen(node->durable.items[i].name) + 1);
        digest_node(node->durable.items[i].node, stream);
    }
}

uint64_t pd_simulated_disk_digest(struct pd_simulated_disk *disk)
{
    struct pd_digest_stream stream;
    pd_digest_stream_init(&stream, 0);
    pthread_mutex_lock(&disk->mutex);
    for (uint32_t m = 0; m < disk->mount_count; m++)
        for (uint32_t h = 0; h < (disk->mounts[m].shared ? 1 : disk->host_count); h++)
            digest_node(disk->mounts[m].volumes[h]->root, &stream);
    pthread_mutex_unlock(&disk->mutex);
    return pd_digest_stream_value(&stream);
}

/* ---- traces ---- */

void pd_simulated_disk_trace_start(struct pd_simulated_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    disk->tracing = true;
    disk->trace_bytes = 0;
    disk->trace_failed = false;
    pthread_mutex_unlock(&disk->mutex);
}

char *pd_simulated_disk_trace_stop(struct pd_simulated_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    pd_sim_trace(disk, "%s", "");
    char *text = disk->trace_failed ? NULL : disk->trace;
    if (disk->trace_failed) free(disk->trace);
    disk->trace = NULL;
    disk->trace_bytes = disk->trace_capacity = 0;
    disk->tracing = false;
    pthread_mutex_unlock(&disk->mutex);
    return text;
}

static bool trace_reserve(struct pd_simulated_disk *disk, size_t more)
{
    size_t wanted = disk->trace_bytes + more + 1;
    if (!disk->tracing || disk->trace_failed) return false;
    if (wanted <= disk->trace_capacity) return true;
    size_t capacity = wanted * 2;
    char *grown = realloc(disk->trace, capacity);
    disk->trace_failed = grown == NULL;
    if (!grown) return false;
    disk->trace = grown;
    disk->trace_capacity = capacity;
    return true;
}

void pd_sim_trace(struct pd_simulated_disk *disk, const char *format, ...)
{
    if (!trace_reserve(disk, 256)) return;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(disk->trace + disk->trace_bytes, 256, format, arguments);
    va_end(arguments);
    PD_CHECK(length >= 0 && length < 256);
    disk->trace_bytes += (size_t)length;
}

void pd_sim_trace_path(struct pd_simulated_disk *disk, const char *path)
{
    if (!trace_reserve(disk, strlen(path) * 3 + 1)) return;
    disk->trace[disk->trace_bytes++] = ' ';
    for (; *path; path++) {
        bool plain = *path > ' ' && *path != '%' && *path != 0x7f;
        disk->trace_bytes +=
            (size_t)snprintf(disk->trace + disk->trace_bytes, 4, plain ? "%c" : "%%%02x", (unsigned char)*path);
    }
}

void pd_sim_trace_hex(struct pd_simulated_disk *disk, const void *data, uint64_t bytes)
{
    static const char digits[] = "0123456789abcdef";
    if (!trace_reserve(disk, bytes * 2 + 2)) return;
    char *to = disk->trace + disk->trace_bytes;
    *to++ = ' ';
    *to++ = 'x'; /* so that no bytes are a word too */
    for (uint64_t i = 0; i < bytes; i++) {
        uint8_t byte = ((const uint8_t *)data)[i];
        *to++ = digits[byte >> 4];
        *to++ = digits[byte & 15];
    }
    *to = '\0';
    disk->trace_bytes += bytes * 2 + 2;
}
