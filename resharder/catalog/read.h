/* Elements of foreign tensors as fp32, through views, in bounded memory.
 *
 * Pieces are read in windows of some MiB, several on their way at once. Who knows what it will need says so beforehand
 * (expect), and reads come from memory. Reads without being expected work too, one window after the other.
 *
 *   memory   the caller's buffers; two descriptors a file, at most PD_READER_FILES_MAX files open at once
 *   threads  one, the first that expects or reads */
#pragma once

#include "resharder/catalog/catalog.h"
#include "resharder/catalog/view.h"

#define PD_READER_BUFFER_BYTES_MIN (UINT64_C(8) << 20)
#define PD_READER_BUFFER_BYTES (UINT64_C(48) << 20) /* is fast */
#define PD_READER_FILES_MAX 64u

struct pd_reader;

/* `catalog` is finished and borrowed, `buffers` (buffer_bytes, on PD_VFS_ALIGN) are the reader's until it is closed. */
PD_MUST_USE pd_status pd_reader_open(struct pd_vfs *vfs, const struct pd_catalog *catalog, void *buffers,
                                     uint64_t buffer_bytes, struct pd_reader **ret_reader, struct pd_error *err);
void pd_reader_close(struct pd_reader *reader);
uint64_t pd_reader_bytes(const struct pd_reader *reader); /* read from files so far */

/* What will be read soon, in the order in which it will be.
 *   ret_is_on_its_way  false: there was no room for all of it; say it again after a read */
PD_MUST_USE pd_status pd_reader_expect(struct pd_reader *reader, uint32_t tensor, const struct pd_view *view,
                                       bool *ret_is_on_its_way, struct pd_error *err);
/* All elements of the view in its row-major order. The view lies inside the tensor (pd_view_is_inside).
 *   values  (elements of the view)
 *   errors  PD_IO, PD_CORRUPT: name the file, and the tensor */
PD_MUST_USE pd_status pd_reader_read(struct pd_reader *reader, uint32_t tensor, const struct pd_view *view, float *values,
                                     struct pd_error *err);

/* Stored bytes of a piece from `offset` on, as many as lie in memory together; valid until the next call. What follows is on
 * its way. For whoever wants the bytes and not the numbers.
 *   piece  of the catalog, and of this tensor */
PD_MUST_USE pd_status pd_reader_stored(struct pd_reader *reader, uint32_t tensor, uint64_t piece, uint64_t offset,
                                       const void **ret_data, uint64_t *ret_bytes, struct pd_error *err);

/* A piece whose stored bytes will be wanted, all of them, as pd_reader_expect. */
PD_MUST_USE pd_status pd_reader_expect_stored(struct pd_reader *reader, uint32_t tensor, uint64_t piece,
                                              bool *ret_is_on_its_way, struct pd_error *err);

/* ---- a line of reads, each expected as early as there is room ---- */

struct pd_read_task {
    uint32_t tensor; /* PD_READ_NOTHING: nothing is read; the task only keeps its place */
    struct pd_view view;
    uint64_t user; /* the caller's */
};
#define PD_READ_NOTHING UINT32_MAX
#define PD_READ_LINE_MAX 64u

struct pd_read_line {
    struct pd_reader *reader;
    bool (*next)(void *context, struct pd_read_task *ret_task); /* false: there are no more */
    void *context;
    struct pd_read_task tasks[PD_READ_LINE_MAX];
    uint32_t begin, count, expected; /* of a ring; `expected` of them are on their way */
    uint64_t taken;                  /* tasks so far: the number of the one that is read */
    bool is_at_end;
};
/* While a task is read, windows behind it are sent for as soon as it is done with one. One line a reader, of its tasks only. */
void pd_read_line_init(struct pd_read_line *line, struct pd_reader *reader,
                       bool (*next)(void *context, struct pd_read_task *ret_task), void *context);
/* The next task, which the caller reads. *ret_has_one false: that was all. */
PD_MUST_USE pd_status pd_read_line_take(struct pd_read_line *line, struct pd_read_task *ret_task, bool *ret_has_one,
                                        struct pd_error *err);
