#include "trainer/notes/note.h"

#include "ckpt/base/parse.h"
#include "ckpt/base/pretended_host.h"
#include "ckpt/base/pulse.h"
#include "trainer/notes/sender.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOTE_PATH_BYTES 4096

static const char *const names[] = {
    [PD_NOTE_BEGUN] = "begun", [PD_NOTE_OPENING] = "opening", [PD_NOTE_READY] = "ready", [PD_NOTE_ENDED] = "ended",
    [PD_NOTE_SAVED] = "saved", [PD_NOTE_GPU] = "gpu",         [PD_NOTE_PULSE] = "pulse", [PD_NOTE_SUSPECT] = "suspect",
    [PD_NOTE_TAKEN] = "taken", [PD_NOTE_OWNER] = "owner"};

bool pd_note_write(const char *dir, enum pd_note kind, uint32_t rank, const void *data, size_t bytes)
{
    if (pd_sender_note(kind, rank, data, bytes)) return true;
    char path[NOTE_PATH_BYTES], draft[NOTE_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s-%u", dir, names[kind], rank);
    if (length < 0 || (size_t)length >= sizeof path - 8) return false;
    snprintf(draft, sizeof draft, "%s/.%s-%u", dir, names[kind], rank);
    int fd = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    bool is_written = write(fd, data, bytes) == (ssize_t)bytes;
    is_written &= close(fd) == 0;
    return is_written && rename(draft, path) == 0;
}

static bool note_write(const char *dir, enum pd_note kind, uint32_t rank, const char *text)
{
    return pd_note_write(dir, kind, rank, text, strlen(text));
}

static bool note_read(const char *dir, enum pd_note kind, uint32_t rank, char *ret_text)
{
    char path[NOTE_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s-%u", dir, names[kind], rank);
    if (length < 0 || (size_t)length >= sizeof path) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, ret_text, PD_NOTE_BYTES - 1);
    close(fd);
    if (got < 0) return false;
    ret_text[got] = '\0';
    return true;
}

void pd_note_place(uint32_t rank, uint32_t size, char ret_text[PD_WIRE_PLACE_BYTES])
{
    char boot[64] = "?", space[64] = "?", pretended[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, boot, sizeof boot - 1) : -1;
    if (fd >= 0) close(fd);
    if (got > 0) boot[got] = '\0';
    got = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    if (got > 0) space[got] = '\0';
    (void)pd_pretended_host(rank, size, pretended); /* the launcher is on the host of rank 0 */
    snprintf(ret_text, PD_WIRE_PLACE_BYTES, "%s %.*s %s", pretended, (int)strcspn(boot, "\n"), boot, space);
}

bool pd_note_write_process(const char *dir, enum pd_note kind, uint32_t rank, uint32_t size, int pulse)
{
    char place[PD_WIRE_PLACE_BYTES], text[256];
    const char *job = getenv("OMPI_MCA_ess_base_jobid");
    pd_note_place(rank, size, place);
    snprintf(text, sizeof text, "%d\n%s\n%.20s\n%d\n", (int)getpid(), place, job ? job : "", pulse + 1);
    return note_write(dir, kind, rank, text);
}

bool pd_note_write_mark(const char *dir, enum pd_note kind, uint32_t rank)
{
    return note_write(dir, kind, rank, "");
}

void pd_note_beat(const char *dir, uint32_t rank)
{
    char path[NOTE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s-%u", dir, names[PD_NOTE_READY], rank);
    (void)utimensat(AT_FDCWD, path, NULL, 0);
}

void pd_note_remove_opening(const char *dir)
{
    if (pd_sender_no_note(PD_NOTE_OPENING, 0)) return;
    char path[NOTE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s-0", dir, names[PD_NOTE_OPENING]);
    unlink(path);
}

bool pd_note_write_ended(const char *dir, uint32_t rank, pd_status status, const char *message)
{
    char text[PD_NOTE_BYTES];
    snprintf(text, sizeof text, "%u\n%s\n", (unsigned)status, message);
    return note_write(dir, PD_NOTE_ENDED, rank, text);
}

/* The line at *text, cut off in place; *text moves behind it. */
static char *next_line(char **text)
{
    char *line = *text, *end = line + strcspn(line, "\n");
    *text = *end ? end + 1 : end;
    *end = '\0';
    return line;
}

bool pd_note_parse_process(char *text, struct pd_note_begun *ret)
{
    char place[PD_WIRE_PLACE_BYTES], *at = text;
    uint64_t process, job, pulse;
    if (!pd_parse_u64(next_line(&at), &process) || process > INT32_MAX) return false;
    pd_note_place(0, UINT32_MAX, place);
    *ret = (struct pd_note_begun){.process = (int32_t)process, .pulse = -1};
    snprintf(ret->place, sizeof ret->place, "%s", next_line(&at));
    ret->is_here = strcmp(ret->place, place) == 0;
    if (pd_parse_u64(next_line(&at), &job) && job <= UINT32_MAX) ret->mpi_job = (uint32_t)job;
    if (pd_parse_u64(next_line(&at), &pulse) && pulse <= INT32_MAX) ret->pulse = (int32_t)pulse - 1;
    return true;
}

bool pd_note_read_process(const char *dir, enum pd_note kind, uint32_t rank, struct pd_note_begun *ret)
{
    char text[PD_NOTE_BYTES];
    return note_read(dir, kind, rank, text) && pd_note_parse_process(text, ret);
}

uint32_t pd_note_find(const char *dir, enum pd_note kind, uint32_t count, bool *ret_has)
{
    const size_t length = strlen(names[kind]);
    uint32_t found = 0;
    uint64_t rank;
    if (ret_has) memset(ret_has, 0, count * sizeof *ret_has);
    DIR *open_dir = opendir(dir);
    if (!open_dir) return 0;
    for (const struct dirent *entry; (entry = readdir(open_dir));) {
        const char *name = entry->d_name;
        if (strncmp(name, names[kind], length) != 0 || name[length] != '-') continue;
        if (!pd_parse_u64(name + length + 1, &rank) || rank >= count) continue;
        if (ret_has) ret_has[rank] = true;
        found++;
    }
    closedir(open_dir);
    return found;
}

bool pd_note_has_mark(const char *dir, enum pd_note kind, uint32_t rank)
{
    char text[PD_NOTE_BYTES];
    return note_read(dir, kind, rank, text);
}

bool pd_note_read_ended(const char *dir, uint32_t rank, struct pd_note_ended *ret)
{
    char text[PD_NOTE_BYTES], *at = text;
    uint64_t status;
    if (!note_read(dir, PD_NOTE_ENDED, rank, text) || !pd_parse_u64(next_line(&at), &status) || status >= PD_STATUS_COUNT)
        return false;
    ret->status = (pd_status)status;
    snprintf(ret->message, sizeof ret->message, "%s", next_line(&at));
    return true;
}

bool pd_note_write_saved(const char *dir, uint64_t step)
{
    char text[32];
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)step);
    return note_write(dir, PD_NOTE_SAVED, 0, text);
}

bool pd_note_read_saved(const char *dir, uint64_t *ret_step)
{
    char text[PD_NOTE_BYTES], *at = text;
    return note_read(dir, PD_NOTE_SAVED, 0, text) && pd_parse_u64(next_line(&at), ret_step);
}

bool pd_note_write_pulse(const char *dir, uint32_t rank, const struct pd_pulse *pulse)
{
    return pd_note_write(dir, PD_NOTE_PULSE, rank, pulse, sizeof *pulse);
}

bool pd_note_read_pulse(const char *dir, uint32_t rank, struct pd_pulse *ret_pulse)
{
    char data[PD_NOTE_BYTES];
    _Static_assert(sizeof *ret_pulse < PD_NOTE_BYTES, "a pulse is a note");
    if (!note_read(dir, PD_NOTE_PULSE, rank, data)) return false;
    memcpy((void *)ret_pulse, data, sizeof *ret_pulse);
    return true;
}

bool pd_note_write_gpu(const char *dir, uint32_t rank, const char *identity, bool is_spare)
{
    char text[PD_NOTE_BYTES];
    snprintf(text, sizeof text, "%s\n%d\n", identity, is_spare);
    return note_write(dir, PD_NOTE_GPU, rank, text);
}

bool pd_note_read_gpu(const char *dir, uint32_t rank, char ret_identity[PD_NOTE_GPU_BYTES], bool *ret_is_spare)
{
    char text[PD_NOTE_BYTES], *at = text;
    if (!note_read(dir, PD_NOTE_GPU, rank, text)) return false;
    snprintf(ret_identity, PD_NOTE_GPU_BYTES, "%s", next_line(&at));
    *ret_is_spare = strcmp(next_line(&at), "1") == 0;
    return true;
}

bool pd_note_write_suspect(const char *dir, const struct pd_note_suspect *s)
{
    char text[256];
    snprintf(text, sizeof text, "%u\n%s\n%s\n%d\n", s->rank, s->host, s->gpu, s->is_spare);
    return note_write(dir, PD_NOTE_SUSPECT, 0, text);
}

bool pd_note_read_suspect(const char *dir, struct pd_note_suspect *ret)
{
    char text[PD_NOTE_BYTES], *at = text;
    uint64_t rank;
    if (!note_read(dir, PD_NOTE_SUSPECT, 0, text) || !pd_parse_u64(next_line(&at), &rank) || rank >= UINT32_MAX)
        return false;
    *ret = (struct pd_note_suspect){.rank = (uint32_t)rank};
    snprintf(ret->host, sizeof ret->host, "%s", next_line(&at));
    snprintf(ret->gpu, sizeof ret->gpu, "%s", next_line(&at));
    ret->is_spare = strcmp(next_line(&at), "1") == 0;
    return true;
}

/* "begun-3", or the draft ".begun-3": of one of the first `kinds`. */
static bool is_note(const char *name, uint32_t kinds)
{
    name += name[0] == '.';
    for (uint32_t k = 0; k < kinds; k++)
        if (strncmp(name, names[k], strlen(names[k])) == 0 && name[strlen(names[k])] == '-') return true;
    return false;
}

/* Open MPI leaves the memory of a killed rank in /dev/shm, 4 MiB each, under its host, user, job and rank. */
static void memory_unlink(const char *dir, const char *name)
{
    char pattern[128];
    uint64_t rank;
    struct pd_note_begun note;
    glob_t found;
    if (strncmp(name, "begun-", 6) || !pd_parse_u64(name + 6, &rank) || rank >= UINT32_MAX) return;
    if (!pd_note_read_process(dir, PD_NOTE_BEGUN, (uint32_t)rank, &note) || !note.is_here || note.mpi_job == 0) return;
    snprintf(pattern, sizeof pattern, "/dev/shm/vader_segment.*.%u.%x.*", (unsigned)geteuid(), note.mpi_job);
    if (glob(pattern, GLOB_NOSORT, NULL, &found)) return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        unlink(found.gl_pathv[i]);
    globfree(&found);
}

static void notes_unlink(const char *dir, uint32_t kinds)
{
    DIR *listing = opendir(dir);
    if (!listing) return;
    for (const struct dirent *entry; (entry = readdir(listing));) {
        if (!is_note(entry->d_name, kinds)) continue;
        memory_unlink(dir, entry->d_name);
        unlinkat(dirfd(listing), entry->d_name, 0);
    }
    closedir(listing);
}

void pd_note_clear(const char *dir)
{
    notes_unlink(dir, PD_NOTE_OWNER);
}

void pd_note_dir_remove(const char *dir)
{
    notes_unlink(dir, PD_NOTE_OWNER + 1);
    rmdir(dir);
}
