/* Notes that workers leave for their launcher in its private directory, one file a rank and kind. On a host from which the
 * launcher's socket is reached they are sent (sender.h), and the launcher writes the same file:
 *
 *   begun-<rank>   process, boot, process namespace, number of the MPI job: signals are caught from here on
 *   opening-0      rank 0 has begun and is not in its first step yet: no rank has done one, and there is nothing to save
 *   ready-<rank>   the rank has joined the others
 *   ended-<rank>   status and message of its end
 *   saved-0        the newest step that is committed, at most one a second
 *   gpu-<rank>     the GPU that it lost, by what the device is called whatever number a process knows it by, and
 *                  whether its host has another for it
 *   taken-<rank>   its host will be taken away (preempt.notice), and it asks all to leave
 *   suspect-0      a gradient was not finite: the rank that computed it, its host, its GPU as above
 *   pulse-<rank>  of a rank on a host without the launcher's socket: its pulse (ckpt/base/pulse.h), every pd_note_pulse_ns
 *   owner-0        the launcher itself, as begun: a directory whose owner is gone may be removed
 *
 * A note appears whole or not at all. A worker that cannot write one (a host that does not see the directory) works all the
 * same: the launcher then knows less and says so. */
#pragma once

#include "ckpt/base/status.h"
#include "trainer/notes/wire.h"

#define PD_LAUNCH_ENV_DIR "PERDURE_LAUNCH_DIR" /* the variable that says where notes go */
#define PD_NOTE_BYTES 2048u                    /* at most, with the end of a text */

struct pd_note_begun {
    int32_t process;
    bool is_here;                    /* on this host, where the number means this process */
    uint32_t mpi_job;                /* Open MPI's number of the job; 0: unknown */
    int32_t pulse;                   /* descriptor of its pulses (ckpt/base/pulse.h); -1: none */
    char place[PD_WIRE_PLACE_BYTES]; /* pd_note_place */
};

struct pd_note_ended {
    pd_status status;
    char message[sizeof((struct pd_error *)0)->message];
};

enum pd_note {
    PD_NOTE_BEGUN,
    PD_NOTE_OPENING,
    PD_NOTE_READY,
    PD_NOTE_ENDED,
    PD_NOTE_SAVED,
    PD_NOTE_GPU,
    PD_NOTE_PULSE,
    PD_NOTE_SUSPECT,
    PD_NOTE_TAKEN,
    PD_NOTE_OWNER /* last */
};

/* Of text or bytes, as the other functions do it. */
bool pd_note_write(const char *dir, enum pd_note kind, uint32_t rank, const void *data, size_t bytes);
/* Boot and process namespace of this host: where these are equal, process numbers mean the same. */
void pd_note_place(uint32_t rank, uint32_t size, char ret_text[PD_WIRE_PLACE_BYTES]);
/* BEGUN and OWNER. size: of the job; 0 for OWNER. */
bool pd_note_write_process(const char *dir, enum pd_note kind, uint32_t rank, uint32_t size, int pulse);
/* OPENING, READY and TAKEN: that there is such a note is all it says. */
bool pd_note_write_mark(const char *dir, enum pd_note kind, uint32_t rank);
/* The rank has done a step: the time of its note of READY is now, for people who look on. No decision reads it. */
void pd_note_beat(const char *dir, uint32_t rank);
void pd_note_remove_opening(const char *dir);
bool pd_note_write_ended(const char *dir, uint32_t rank, pd_status status, const char *message);
bool pd_note_write_saved(const char *dir, uint64_t step);
struct pd_pulse;
bool pd_note_write_pulse(const char *dir, uint32_t rank, const struct pd_pulse *pulse);
bool pd_note_write_gpu(const char *dir, uint32_t rank, const char *identity, bool is_spare); /* that of struct pd_dev */

/* Of ranks below `count`: who has left such a note, in one walk of the directory. ret_has: (count), or NULL.   returns how
 * many, 0 also where it cannot be read */
uint32_t pd_note_find(const char *dir, enum pd_note kind, uint32_t count, bool *ret_has);

/* False: there is no such note (yet), or it cannot be read; *ret is untouched. */
bool pd_note_read_process(const char *dir, enum pd_note kind, uint32_t rank, struct pd_note_begun *ret);
/* `text` is cut up. */
bool pd_note_parse_process(char *text, struct pd_note_begun *ret);
bool pd_note_read_pulse(const char *dir, uint32_t rank, struct pd_pulse *ret_pulse);
/* Between two of them; of many ranks each says it less often, for the sake of the file system that all share. */
static inline uint64_t pd_note_pulse_ns(uint32_t ranks)
{
    return UINT64_C(2000000000) + ranks * UINT64_C(10000000);
}
bool pd_note_has_mark(const char *dir, enum pd_note kind, uint32_t rank);
bool pd_note_read_ended(const char *dir, uint32_t rank, struct pd_note_ended *ret);
bool pd_note_read_saved(const char *dir, uint64_t *ret_step);
#define PD_NOTE_GPU_BYTES 64u
struct pd_note_suspect {
    uint32_t rank;
    char host[64], gpu[PD_NOTE_GPU_BYTES]; /* gpu "": it computes on a CPU */
    bool is_spare;
};
bool pd_note_write_suspect(const char *dir, const struct pd_note_suspect *suspect);
bool pd_note_read_suspect(const char *dir, struct pd_note_suspect *ret);
bool pd_note_read_gpu(const char *dir, uint32_t rank, char ret_identity[PD_NOTE_GPU_BYTES], bool *ret_is_spare);

/* Ranks have ended: their notes go, and what MPI left of them in the memory of this host. */
void pd_note_clear(const char *dir);
void pd_note_dir_remove(const char *dir);
