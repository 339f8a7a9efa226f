#include "trainer/status/message.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/pretended_host.h"
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- messages ---- */

static uint32_t number_at(const uint8_t *at, uint32_t bytes)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < bytes; i++)
        value |= (uint32_t)at[i] << 8 * i;
    return value;
}

static void number_put(uint8_t *at, uint32_t value, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

int64_t pd_message_take(const uint8_t *data, size_t bytes, uint32_t bytes_max, struct pd_message *ret_message)
{
    if (bytes < PD_MESSAGE_HEADER_BYTES) return 0;
    const uint32_t follow = number_at(data, 4), kind = number_at(data + 4, 2);
    if (follow > bytes_max || kind < PD_MESSAGE_HELLO || kind >= PD_MESSAGE_KINDS) return -1;
    if (bytes - PD_MESSAGE_HEADER_BYTES < follow) return 0;
    *ret_message = (struct pd_message){.kind = (enum pd_message_kind)kind,
                                       .rank = number_at(data + 8, 4),
                                       .bytes = follow,
                                       .data = data + PD_MESSAGE_HEADER_BYTES};
    return (int64_t)PD_MESSAGE_HEADER_BYTES + follow;
}

void pd_message_header(const struct pd_message *message, uint8_t ret_header[PD_MESSAGE_HEADER_BYTES])
{
    number_put(ret_header, message->bytes, 4);
    number_put(ret_header + 4, message->kind, 2);
    number_put(ret_header + 6, 0, 2);
    number_put(ret_header + 8, message->rank, 4);
}

void pd_message_text(const uint8_t *data, size_t count, char *ret_text, size_t bytes)
{
    size_t length = 0;
    for (; length < count && length < bytes - 1 && data[length]; length++)
        ret_text[length] = data[length] >= ' ' && data[length] <= '~' ? (char)data[length] : '?';
    ret_text[length] = '\0';
}

/* ---- the payload of BEGUN: lines of text ---- */

struct lines {
    const uint8_t *at, *end;
};

static struct lines lines_of(const struct pd_message *m)
{
    return (struct lines){m->data, m->data + m->bytes};
}

/* False: no more lines. */
static bool line_next(struct lines *l, char *ret_text, size_t bytes)
{
    const uint8_t *end = l->at < l->end ? memchr(l->at, '\n', (size_t)(l->end - l->at)) : NULL;
    if (!end) return false;
    pd_message_text(l->at, (size_t)(end - l->at), ret_text, bytes);
    l->at = end + 1;
    return true;
}

static bool number_next(struct lines *l, uint64_t most, uint64_t *ret_number)
{
    char text[24];
    return line_next(l, text, sizeof text) && pd_parse_u64(text, ret_number) && *ret_number <= most;
}

uint32_t pd_message_print_begun(const struct pd_begun *b, uint8_t ret_data[PD_MESSAGE_BYTES_MAX])
{
    return (uint32_t)snprintf((char *)ret_data, PD_MESSAGE_BYTES_MAX, "%d\n%s\n%u\n%d\n%s\n%s\n%s\n", b->process, b->place,
                              b->mpi_job, b->heartbeat + 1, b->host, b->build, b->step);
}

bool pd_message_parse_begun(const struct pd_message *m, struct pd_begun *ret)
{
    char own[PD_MESSAGE_PLACE_BYTES];
    uint64_t process, job, heartbeat;
    struct lines l = lines_of(m);
    *ret = (struct pd_begun){.heartbeat = -1};
    if (!number_next(&l, INT32_MAX, &process) || !process || !line_next(&l, ret->place, sizeof ret->place) ||
        !number_next(&l, UINT32_MAX, &job) || !number_next(&l, INT32_MAX, &heartbeat) ||
        !line_next(&l, ret->host, sizeof ret->host) || !line_next(&l, ret->build, sizeof ret->build) ||
        !line_next(&l, ret->step, sizeof ret->step))
        return false;
    pd_message_place(0, UINT32_MAX, own);
    ret->process = (int32_t)process;
    ret->mpi_job = (uint32_t)job;
    ret->heartbeat = (int32_t)heartbeat - 1;
    ret->is_here = strcmp(ret->place, own) == 0;
    return l.at == l.end;
}

/* ---- payloads between equal builds: structs in memory layout ---- */

static bool copied(const struct pd_message *m, void *ret, size_t bytes)
{
    if (m->bytes != bytes) return false;
    memcpy(ret, m->data, bytes);
    return true;
}

static void make_printable(char *text, size_t bytes)
{
    pd_message_text((const uint8_t *)text, bytes, text, bytes);
}

/* The text keeps its bytes: it may name files in UTF-8. Its further lines are dropped. */
bool pd_message_parse_ended(const struct pd_message *m, struct pd_ended *ret)
{
    if (!copied(m, ret, sizeof *ret) || (unsigned)ret->status >= PD_STATUS_COUNT) return false;
    ret->message[sizeof ret->message - 1] = '\0';
    ret->message[strcspn(ret->message, "\n")] = '\0';
    return true;
}

bool pd_message_parse_gpu(const struct pd_message *m, struct pd_lost_gpu *ret)
{
    if (!copied(m, ret, sizeof *ret)) return false;
    make_printable(ret->identity, sizeof ret->identity);
    return ret->identity[0];
}

bool pd_message_parse_suspect(const struct pd_message *m, struct pd_suspect *ret)
{
    if (!copied(m, ret, sizeof *ret)) return false;
    make_printable(ret->host, sizeof ret->host);
    make_printable(ret->gpu, sizeof ret->gpu);
    return true;
}

bool pd_message_parse_heartbeat(const struct pd_message *m, struct pd_remote_heartbeat *ret)
{
    if (!copied(m, ret, sizeof *ret)) return false;
    make_printable(ret->host, sizeof ret->host);
    make_printable(ret->kernel, sizeof ret->kernel);
    return ret->process > 0;
}

bool pd_message_parse_watched(const struct pd_message *m, struct pd_watched *ret)
{
    return copied(m, ret, sizeof *ret) && ret->process > 0 && ret->heartbeat >= 0;
}

/* ---- identity ---- */

void pd_message_place(uint32_t rank, uint32_t size, char ret_text[PD_MESSAGE_PLACE_BYTES])
{
    char boot[64] = "?", space[64] = "?", pretended[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, boot, sizeof boot - 1) : -1;
    if (fd >= 0) close(fd);
    if (got > 0) boot[got] = '\0';
    got = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    if (got > 0) space[got] = '\0';
    (void)pd_pretended_host(rank, size, pretended); /* the launcher is on the host of rank 0 */
    snprintf(ret_text, PD_MESSAGE_PLACE_BYTES, "%s %.*s %s", pretended, (int)strcspn(boot, "\n"), boot, space);
}

void pd_message_build(const char *program, char ret_build[PD_MESSAGE_BUILD_BYTES])
{
    struct stat found;
    uint64_t digest = 0;
    const int fd = open(program, O_RDONLY | O_CLOEXEC);
    const bool is_file = fd >= 0 && fstat(fd, &found) == 0 && found.st_size > 0;
    void *bytes = is_file ? mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (fd >= 0) close(fd);
    if (bytes != MAP_FAILED) {
        digest = pd_digest64(bytes, (size_t)found.st_size, 0);
        munmap(bytes, (size_t)found.st_size);
    }
    snprintf(ret_build, PD_MESSAGE_BUILD_BYTES, "%s, build %016llx", PERDURE_VERSION, (unsigned long long)digest);
}

/* ---- the table ---- */

pd_status pd_rank_table_init(struct pd_rank_table *t, uint32_t count, struct pd_error *err)
{
    *t = (struct pd_rank_table){.ranks = calloc(count, sizeof *t->ranks), .count = count};
    if (!t->ranks) PD_FAIL(err, PD_NO_MEMORY, "no memory for a table of %u ranks", count);
    return PD_OK;
}

void pd_rank_table_deinit(struct pd_rank_table *t)
{
    for (uint32_t r = 0; t->ranks && r < t->count; r++) {
        free(t->ranks[r].ended);
        free(t->ranks[r].lost);
    }
    free(t->ranks);
    *t = (struct pd_rank_table){.ranks = NULL};
}

static bool take_begun(struct pd_rank_table *t, const struct pd_message *m)
{
    struct pd_begun begun;
    struct pd_rank_entry *r = &t->ranks[m->rank];
    if (r->has_begun || !pd_message_parse_begun(m, &begun)) return false;
    r->begun = begun;
    r->has_begun = true;
    t->begun++;
    return true;
}

static bool take_ended(struct pd_rank_table *t, const struct pd_message *m)
{
    struct pd_rank_entry *r = &t->ranks[m->rank];
    struct pd_ended ended;
    if (!pd_message_parse_ended(m, &ended)) return false;
    if (!r->ended) r->ended = malloc(sizeof *r->ended);
    if (!r->ended) return false;
    *r->ended = ended;
    t->ended += !r->has_ended;
    r->has_ended = true;
    return true;
}

static bool take_lost(struct pd_rank_table *t, const struct pd_message *m)
{
    struct pd_rank_entry *r = &t->ranks[m->rank];
    struct pd_lost_gpu lost;
    if (!pd_message_parse_gpu(m, &lost)) return false;
    if (!r->lost) r->lost = malloc(sizeof *r->lost);
    if (!r->lost) return false;
    *r->lost = lost;
    return true;
}

bool pd_rank_table_take(struct pd_rank_table *t, const struct pd_message *m)
{
    if (m->rank >= t->count) return false;
    struct pd_rank_entry *r = &t->ranks[m->rank];
    switch (m->kind) {
    case PD_MESSAGE_BEGUN:
        return take_begun(t, m);
    case PD_MESSAGE_READY:
        t->ready += !r->is_ready;
        return r->is_ready = true;
    case PD_MESSAGE_TRAINING:
        return t->is_training = true;
    case PD_MESSAGE_SAVED:
        return t->has_saved = copied(m, &t->saved, sizeof t->saved);
    case PD_MESSAGE_GPU:
        return take_lost(t, m);
    case PD_MESSAGE_SUSPECT:
        return t->has_suspect = pd_message_parse_suspect(m, &t->suspect);
    case PD_MESSAGE_TAKEN:
        return r->is_taken = true;
    case PD_MESSAGE_ENDED:
        return take_ended(t, m);
    default:
        return false;
    }
}

/* Named by host, user, number of the job and rank. */
void pd_rank_table_remove_memory(const struct pd_rank_table *t)
{
    uint32_t last = 0;
    for (uint32_t r = 0; r < t->count; r++) {
        const struct pd_begun *b = &t->ranks[r].begun;
        char pattern[128];
        glob_t found;
        if (!t->ranks[r].has_begun || !b->is_here || !b->mpi_job || b->mpi_job == last) continue;
        last = b->mpi_job;
        snprintf(pattern, sizeof pattern, "/dev/shm/vader_segment.*.%u.%x.*", (unsigned)geteuid(), b->mpi_job);
        if (glob(pattern, GLOB_NOSORT, NULL, &found)) continue;
        for (size_t i = 0; i < found.gl_pathc; i++)
            unlink(found.gl_pathv[i]);
        globfree(&found);
    }
}
