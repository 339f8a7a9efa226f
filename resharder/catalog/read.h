/* Reads elements of foreign tensors as fp32, through views, in bounded memory.
 *
 * Pieces are read in windows of some MiB, several in flight at once. A caller that announces its reads (expect) gets them
 * from memory. Unexpected reads work too, one window after the other.
 *
 *   memory   the caller's buffers; two descriptors a file, at most PD_READER_FILES_MAX files open at once
 *   threads  one, the first that expects or reads */
#pragma once

#include "resharder/catalog/catalog.h"
#include "resharder/catalog/view.h"

#define PD_READER_BUFFER_BYTES_MIN (UINT64_C(8) << 20)
#define PD_READER_BUFFER_BYTES (UINT64_C(48) << 20) /* fast */
#define PD_READER_FILES_MAX 64u

struct pd_reader;

/* `catalog` is finished and borrowed; `buffers` (buffer_bytes, aligned to PD_VFS_ALIGN) belong to the reader until close. */
PD_MUST_USE pd_status pd_reader_open(struct pd_vfs *vfs, const struct pd_catalog *catalog, void *buffers,
                                     uint64_t buffer_bytes, struct pd_reader **ret_reader, struct pd_error *err);
void pd_reader_close(struct pd_reader *reader);
uint64_t pd_reader_bytes(const struct pd_reader *reader); /* read from files so far */

/* Announces the next reads, in their order.
 *   ret_is_on_its_way  false: not enough space for all of it; call again after a read */
PD_MUST_USE pd_status pd_reader_expect(struct pd_reader *reader, uint32_t tensor, const struct pd_view *view,
                                       bool *ret_is_on_its_way, struct pd_error *err);
/* Reads all elements of the view in its row-major order. The view lies inside the tensor (pd_view_is_inside).
 *   values  (elements of the view)
 *   errors  PD_IO, PD_CORRUPT: name the file, and the tensor */
PD_MUST_USE pd_status pd_reader_read(struct pd_reader *reader, uint32_t tensor, const struct pd_view *view, float *values,
                                     struct pd_error *err);

/* Returns stored bytes of a piece from `offset` on, as many as are contiguous in memory; valid until the next call.
 * Starts reading what follows. For callers that want the bytes, not the numbers.
 *   piece  of the catalog, and of this tensor */
PD_MUST_USE pd_status pd_reader_stored(struct pd_reader *reader, uint32_t tensor, uint64_t piece, uint64_t offset,
                                       const void **ret_data, uint64_t *ret_bytes, struct pd_error *err);

/* As pd_reader_expect, for all stored bytes of a piece. */
PD_MUST_USE pd_status pd_reader_expect_stored(struct pd_reader *reader, uint32_t tensor, uint64_t piece,
                                              bool *ret_is_on_its_way, struct pd_error *err);

/* ---- a queue of reads, each expected as soon as there is space ---- */

struct pd_read_task {
    uint32_t tensor; /* PD_READ_NOTHING: reads nothing; the task only keeps its place */
    struct pd_view view;
    uint64_t user; /* the caller's */
};
#define PD_READ_NOTHING UINT32_MAX
#define PD_READ_LINE_MAX 256u

struct pd_read_line {
    struct pd_reader *reader;
    bool (*next)(void *context, struct pd_read_task *ret_task); /* false: no more tasks */
    void *context;
    struct pd_read_task tasks[PD_READ_LINE_MAX];
    uint32_t begin, count, expected; /* a ring; `expected` of them are in flight */
    uint64_t taken;                  /* tasks so far: number of the current one */
    bool is_at_end;
};
/* Keeps windows of later tasks in flight while a task is read. One line a reader, which reads only its tasks. */
void pd_read_line_init(struct pd_read_line *line, struct pd_reader *reader,
                       bool (*next)(void *context, struct pd_read_task *ret_task), void *context);
/* Returns the next task, for the caller to read. *ret_has_one false: no more. */
PD_MUST_USE pd_status pd_read_line_take(struct pd_read_line *line, struct pd_read_task *ret_task, bool *ret_has_one,
                                        struct pd_error *err);
