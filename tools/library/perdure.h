/* perdure.h: reads, checks and writes checkpoints of large models.
 *
 * One header for checkpoints of perdure and of other programs (safetensors, torch.distributed.checkpoint, torch.save,
 * Megatron-Core, DeepSpeed, GGUF, llm.c), on a disk or in a bucket (s3://bucket/prefix). Nothing in a file is ever
 * executed. Of perdure's own checkpoints every byte is verified before it is given to you.
 *
 *     struct perdure_checkpoint *c;
 *     struct perdure_error err;
 *     if (perdure_open("runs/mine", NULL, &c, &err)) return fail(err.message);
 *     int64_t number = perdure_find(c, "model.norm.weight", PERDURE_PARAM);
 *     struct perdure_slice slice = {.tensor = (uint64_t)number, .as = PERDURE_F32, .to = values, .to_bytes = sizeof values};
 *     if (perdure_read(c, &slice, 1, NULL, &err)) return fail(err.message);
 *     perdure_close(c);
 *
 * Rules
 *   - Results come last, begin with ret_ and are untouched on failure. `const char *` results belong to their handle.
 *   - A function that can fail returns a status, 0 for success, and fills *err (may be NULL), which is plain storage of
 *     the caller's. The status says what the caller can do, the message what happened, to what, and what to do next.
 *   - Structs of options begin with `size`. Set it by their initialiser (PERDURE_OPEN_OPTIONS, ...), which sets the
 *     defaults too, or pass NULL for the defaults: then a program runs with a later library that knows more options.
 *   - The library prints nothing, installs no signal handler, never calls exit, and changes no state of the process. It
 *     reads the environment where AWS's own tools do (credentials, endpoint), and PERDURE_IO=uring|threads.
 *     A broken invariant of its own, which is a bug, ends the process with abort().
 *
 * Threads
 *   - A struct perdure_checkpoint may be used by any number of threads at once, but for perdure_close.
 *   - Any other handle belongs to one thread at a time. Different handles are independent of each other.
 *   - Callbacks are called in the thread that made the call. They must not use the handle of that call.
 *   - After fork() a child may use none of the parent's handles.
 *   - HDF5, which Debian builds without thread safety, is used by functions that write, one thread at a time. A program
 *     that calls the same HDF5 library itself must not do so at the same time. Reading does not use HDF5.
 */
#ifndef PERDURE_H
#define PERDURE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PERDURE_API_VERSION 3      /* raised with every function and option that is added; nothing is ever removed */
const char *perdure_version(void); /* of the library: "0.1.0" */

/* ---- errors ---- */

enum perdure_status {
    PERDURE_OK = 0,
    PERDURE_INVALID = 1,   /* a request that cannot be met */
    PERDURE_NOT_FOUND = 2, /* the named thing is absent */
    PERDURE_EXISTS = 3,    /* a name to be created is taken */
    PERDURE_BUSY = 4,      /* somebody else holds a lock, or is using the directory */
    PERDURE_NO_SPACE = 5,  /* disk, quota or inodes */
    PERDURE_IO = 6,        /* a storage error, which proves no damage */
    PERDURE_CORRUPT = 7,   /* bytes were read twice and are not the bytes that were written, or no valid checkpoint */
    PERDURE_NO_MEMORY = 8,
    PERDURE_PEER_LOST = 9,    /* another rank of a group is gone */
    PERDURE_STOPPED = 10,     /* a callback asked to stop */
    PERDURE_UNSUPPORTED = 11, /* this machine, build or format cannot do it */
    PERDURE_BUG = 12          /* please report it */
};

struct perdure_error {
    enum perdure_status status;
    int system_errno;  /* 0: no system call was involved */
    char where[64];    /* source file and line */
    char message[960]; /* UTF-8, terminated */
};

const char *perdure_status_name(enum perdure_status status); /* "PERDURE_OK" */

/* What a long call tells its caller. Any member may be NULL. */
struct perdure_watch {
    void *context;
    /* Called from time to time. Non-zero: stop, undo what was begun, and return PERDURE_STOPPED. */
    int (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);
    /* What a caller should know although the call succeeds, one sentence each: a damaged copy that was passed over, a
     * tensor that a conversion has no place for. */
    void (*note)(void *context, const char *text);
};

/* ---- tensors ---- */

#define PERDURE_DIMS_MAX 8

/* The numbers do not change. Those up to 31 are also written to checkpoints of perdure. */
enum perdure_dtype {
    PERDURE_F32 = 0,
    PERDURE_BF16 = 1,
    PERDURE_F16 = 2,
    PERDURE_F64 = 3,
    PERDURE_F8_E4M3 = 4, /* torch.float8_e4m3fn */
    PERDURE_F8_E5M2 = 5,
    PERDURE_I8 = 6,
    PERDURE_I16 = 7,
    PERDURE_I32 = 8,
    PERDURE_I64 = 9,
    PERDURE_U8 = 10,
    PERDURE_U16 = 11,
    PERDURE_U32 = 12,
    PERDURE_U64 = 13,
    PERDURE_BOOL = 14, /* a byte, 0 or 1 */
    PERDURE_C64 = 15,  /* real part, imaginary part */
    PERDURE_C128 = 16,
    /* Blocks of GGUF, only read; perdure_dtype_block says how many elements and bytes one has. */
    PERDURE_Q8_0 = 32,
    PERDURE_Q4_0 = 33,
    PERDURE_Q4_1 = 34,
    PERDURE_Q5_0 = 35,
    PERDURE_Q5_1 = 36,
    PERDURE_Q4_K = 37,
    PERDURE_Q6_K = 38,
    PERDURE_AS_STORED = 255 /* of a slice: no conversion */
};

const char *perdure_dtype_name(enum perdure_dtype dtype); /* "bf16"; NULL: no such type */
/* Elements and bytes of a block: 1 and the element's bytes for all but GGUF's. Returns 0 if there is no such type. */
int perdure_dtype_block(enum perdure_dtype dtype, uint32_t *ret_elements, uint32_t *ret_bytes);

/* A parameter and AdamW's moments of it have one name and are different tensors. */
enum perdure_kind { PERDURE_PARAM = 0, PERDURE_EXP_AVG = 1, PERDURE_EXP_AVG_SQ = 2 };

struct perdure_tensor {
    const char *name;
    enum perdure_kind kind;
    enum perdure_dtype dtype; /* as stored */
    uint32_t ndim;            /* 0: a scalar */
    uint64_t shape[PERDURE_DIMS_MAX];
    uint64_t bytes;  /* as stored, dense and row-major */
    int has_moments; /* of a parameter: both are stored too. 0 for a frozen one */
    int is_bytes;    /* bytes that are no numbers */
};

/* ---- reading ---- */

struct perdure_checkpoint;

#define PERDURE_NEWEST UINT64_MAX

struct perdure_open_options {
    size_t size;
    uint64_t step;    /* of a run's checkpoints; PERDURE_NEWEST */
    uint32_t threads; /* that read and verify beside the calling one; 0: as many as there are cores, at most 8 */
    const struct perdure_watch *watch; /* its notes, for this call alone; may be NULL */
    int is_shared; /* other processes of this host read the same: from the disk once, through the page cache. 0: what is not
                      in the page cache is read past it, which takes less memory and time */
};
#define PERDURE_OPEN_OPTIONS                                            \
    {                                                                   \
        sizeof(struct perdure_open_options), PERDURE_NEWEST, 0, NULL, 0 \
    }

/* Opens a run, a directory of checkpoints (the newest, or `step`), one checkpoint, or a file or directory of another
 * program, all of which may be in a bucket. Reads metadata only.
 *   errors  PERDURE_NOT_FOUND: no such path; PERDURE_INVALID: no format that is read; PERDURE_CORRUPT: no valid checkpoint */
enum perdure_status perdure_open(const char *path, const struct perdure_open_options *options,
                                 struct perdure_checkpoint **ret_checkpoint, struct perdure_error *err);
void perdure_close(struct perdure_checkpoint *checkpoint); /* NULL is fine */

struct perdure_info {
    const char *format;           /* "perdure", "safetensors", "dcp", ... */
    const char *path;             /* of the checkpoint that was opened */
    uint64_t step;                /* 0 if it does not say */
    uint64_t tensor_count, bytes; /* bytes of all tensors as stored */
    int is_verified;              /* every byte that is read is verified: perdure's own checkpoints */
};
void perdure_info(const struct perdure_checkpoint *checkpoint, struct perdure_info *ret_info);
/* Tensor `number`, in the order of the file; NULL: there are fewer. */
const struct perdure_tensor *perdure_tensor_at(const struct perdure_checkpoint *checkpoint, uint64_t number);
/* The number of a tensor, or -1. */
int64_t perdure_find(const struct perdure_checkpoint *checkpoint, const char *name, enum perdure_kind kind);
/* Small texts that lie in or beside it: config.json, tokenizer.json, config.yaml of a run. NULL: there is none of that
 * name. ret_bytes may be NULL; a zero follows the text. */
const char *perdure_text(const struct perdure_checkpoint *checkpoint, const char *name, uint64_t *ret_bytes);
const char *perdure_text_name(const struct perdure_checkpoint *checkpoint, uint64_t number); /* NULL: there are fewer */

struct perdure_slice {
    uint64_t tensor;               /* its number */
    const uint64_t *start, *count; /* (ndim) elements; both NULL: the whole tensor */
    enum perdure_dtype as;         /* PERDURE_AS_STORED, or PERDURE_F32: converted, exactly where that is possible */
    void *to;                      /* receives the elements, dense and row-major */
    uint64_t to_bytes;             /* must be what they take */
};
/* Reads slices, several at once where that is faster, in the order that is best. Of perdure's checkpoints it reads the
 * blocks of 64 KiB that the slices touch, and verifies each.
 *   errors  PERDURE_INVALID: a slice outside its tensor; PERDURE_CORRUPT: names file, tensor and block. What is at `to` is
 *           then undefined */
enum perdure_status perdure_read(struct perdure_checkpoint *checkpoint, const struct perdure_slice *slices, uint64_t count,
                                 const struct perdure_watch *watch, struct perdure_error *err);
/* Bytes that perdure_read has read from files so far. */
uint64_t perdure_bytes_read(const struct perdure_checkpoint *checkpoint);

/* ---- a rank's share ---- */

struct perdure_box {
    uint64_t tensor; /* its number */
    uint64_t start[PERDURE_DIMS_MAX], count[PERDURE_DIMS_MAX];
};
/* The boxes that a rank owns under a layout, whatever layout the checkpoint was written under. Over all ranks they cover
 * every tensor once. Read them with perdure_read.
 *   layout  "dp=4,tp=2", with dp, tp, pp, sp, zero_shard, zero_stage and interleave, as `perdure ckpt reshard --layout`
 *   errors  PERDURE_INVALID: says which layout is nearest. Only perdure's own checkpoints of a run know how tp and pp cut
 *           them; others are cut by dp alone */
enum perdure_status perdure_rank_boxes(const struct perdure_checkpoint *checkpoint, const char *layout, uint32_t rank,
                                       struct perdure_box **ret_boxes, uint64_t *ret_count, struct perdure_error *err);
/* Frees what perdure_rank_boxes and perdure_list return. NULL is fine. */
void perdure_free(void *memory);

/* ---- checking ---- */

struct perdure_damage {
    const char *file, *tensor; /* tensor "": the damage is not in one */
    enum perdure_kind kind;
    uint64_t block;   /* of the tensor's box in that file */
    int is_proven;    /* 0: it could not be read, which proves no damage */
    const char *text; /* a sentence */
};
/* Reads every byte of a checkpoint of perdure and compares it with the checksums; goes on after damage.
 *   on_damage  called for each finding, at most 1,000 times; may be NULL
 *   errors     PERDURE_CORRUPT: it is damaged; PERDURE_IO: it cannot all be read; PERDURE_UNSUPPORTED: a format without
 *              checksums */
enum perdure_status perdure_verify(struct perdure_checkpoint *checkpoint,
                                   void (*on_damage)(void *context, const struct perdure_damage *damage), void *context,
                                   const struct perdure_watch *watch, struct perdure_error *err);

/* ---- a directory of checkpoints ---- */

struct perdure_entry {
    const char *path;
    uint64_t step, lineage, bytes; /* lineage: raised when a run's history is rewritten; bytes of all shards */
    uint32_t shards;
};
/* The valid checkpoints of a run or a directory, newest first; in all directories that the run names. One block of
 * memory: perdure_free(*ret_entries). */
enum perdure_status perdure_list(const char *path, struct perdure_entry **ret_entries, uint64_t *ret_count,
                                 struct perdure_error *err);
/* Deletes all checkpoints but the newest `keep_last` (at least 1) and those whose step keep_every divides (0: none).
 *   errors  PERDURE_BUSY: a run is using the directory */
enum perdure_status perdure_prune(const char *path, uint32_t keep_last, uint64_t keep_every, uint64_t *ret_removed,
                                  struct perdure_error *err);

/* ---- converting ---- */

struct perdure_convert {
    size_t size;
    const char *source, *destination; /* any checkpoint that perdure_open reads; a path to be made */
    uint64_t step;                    /* of the source; PERDURE_NEWEST */
    const char *format; /* "safetensors", "dcp", "torchtitan", "megatron", "universal", "gguf", "llmc"; NULL or "perdure": a
                           checkpoint that a run of perdure continues from */
    const char *dtype;  /* of parameters in another program's format: "fp32", "bf16", "fp16"; NULL: fp32 */
    const char *layout; /* of a checkpoint of perdure, as perdure_rank_boxes has it; NULL: one rank */
    const char *compression; /* of a checkpoint of perdure: "none", "zstd:3"; NULL: as in the source */
    const char *config;      /* a config.json, or a run's configuration, if the source does not describe its model */
    const char *only;        /* exports tensors whose names contain it; NULL: all */
    const char *prefix;      /* if the source holds several models: of the names of the one that is wanted */
    const char *experts; /* in another program's format: "separate", one tensor an expert; "fused", all of a block in two, as
                            in transformers 5; NULL: as the format has them, separate where it has both */
    int fresh_optimizer; /* moments that the source lacks begin at zero */
    const struct perdure_watch *watch;
};
#define PERDURE_CONVERT                                                                                                     \
    {                                                                                                                       \
        sizeof(struct perdure_convert), NULL, NULL, PERDURE_NEWEST, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL \
    }

/* Converts, in bounded memory, what `perdure ckpt import`, `export` and `reshard` convert, and as they do: nothing is
 * dropped without a note, what was written is read back, and a failure or a stop leaves nothing behind. It takes some 200
 * MB, and threads of its own.
 *   errors  PERDURE_INVALID: another model, layout or format; PERDURE_CORRUPT: the source, by file and tensor;
 *           PERDURE_STOPPED */
enum perdure_status perdure_convert(const struct perdure_convert *convert, struct perdure_error *err);

/* ---- writing ---- */

/* Ranks that save one checkpoint together: processes or threads, of one host or several. Every rank calls the functions of
 * its writer in the same order. Both functions return 0, or another number when a rank is gone, which ends the call on
 * every rank with PERDURE_PEER_LOST; `bytes` is the same on every rank. MPI_Gather and MPI_Bcast do what is asked. */
struct perdure_group {
    void *context;
    uint32_t rank, size;
    /* recv: on the root size * bytes, in the order of the ranks; not used elsewhere. */
    int (*gather)(void *context, uint32_t root, const void *send, uint64_t bytes, void *recv);
    int (*broadcast)(void *context, uint32_t root, void *data, uint64_t bytes);
};

struct perdure_writer;

struct perdure_writer_options {
    size_t size;
    uint32_t keep_last;      /* after each save deletes older checkpoints than the newest keep_last; 0: deletes none */
    uint64_t keep_every;     /* but keeps every step that this number divides; 0: none */
    const char *compression; /* "none", or "zstd:1" to "zstd:19" */
    uint32_t threads;        /* that compress, or write into memory (tmpfs); 0: as many as there are cores, at most 8 */
    const char *continues;   /* where the checkpoints of a directory that has none were copied (s3://bucket/prefix): what is
                                saved goes on with them. NULL: a new history */
};
#define PERDURE_WRITER_OPTIONS                                       \
    {                                                                \
        sizeof(struct perdure_writer_options), 0, 0, "none", 0, NULL \
    }

/* Opens a directory, which is made if it is absent (its parent must exist), for saving. It belongs to this writer until
 * close: a second one is refused. Clears what a killed program left there.
 *   group   NULL: one rank. Collective
 *   errors  PERDURE_BUSY; PERDURE_INVALID: it holds checkpoints of a training run of perdure; PERDURE_IO says what was
 *           denied */
enum perdure_status perdure_writer_open(const char *directory, const struct perdure_writer_options *options,
                                        const struct perdure_group *group, struct perdure_writer **ret_writer,
                                        struct perdure_error *err);
void perdure_writer_close(struct perdure_writer *writer); /* NULL is fine. Collective */

/* A box of a tensor. */
struct perdure_piece {
    const char *name; /* any text of at most 159 characters, of which those that are not printable ASCII, and blanks, /, %,
                         [, ] and ~, count three times */
    enum perdure_kind kind;
    enum perdure_dtype dtype;         /* up to PERDURE_C128; exp_avg and exp_avg_sq of a name have one type */
    int is_bytes;                     /* PERDURE_U8, one dimension: bytes that are no numbers, such as a serialised object */
    uint32_t ndim;                    /* at most 8; a piece is cut only along the first 4 */
    uint64_t shape[PERDURE_DIMS_MAX]; /* of the whole tensor */
    uint64_t start[PERDURE_DIMS_MAX], count[PERDURE_DIMS_MAX]; /* of this piece */
    const void *data; /* count[0] * count[1] * ... elements, dense and row-major; read until perdure_save returns */
};
/* A tensor without elements (a dimension of 0) is saved if any rank gives a piece of it; `data` may be NULL. */

struct perdure_save {
    size_t size;
    uint64_t step;                      /* the same on every rank; names the checkpoint */
    const struct perdure_piece *pieces; /* (piece_count) of this rank; a rank may have none */
    uint64_t piece_count;
    const char *metadata;   /* of rank 0: any text, kept with the checkpoint as perdure_text "metadata"; may be NULL */
    const char *created_by; /* of rank 0: at most 63 characters; NULL: the library */
    const struct perdure_watch *watch;
};
#define PERDURE_SAVE                                              \
    {                                                             \
        sizeof(struct perdure_save), 0, NULL, 0, NULL, NULL, NULL \
    }

/* Saves a checkpoint. On success it is durable, whole and the newest; whatever fails, killed or cut off from power, the
 * checkpoints before it stay as they were and nothing half is ever believed. Over all ranks the pieces of a tensor cover it
 * exactly once. A step that is not above those saved here before makes a new lineage, whose checkpoints are the newer ones.
 * Saving the same tensors again is cheaper: their plan is kept. Collective.
 *   errors  PERDURE_INVALID: by tensor and rank; PERDURE_EXISTS: this writer has saved that step already;
 *           PERDURE_NO_SPACE; PERDURE_BUSY: another writer has taken the directory over; PERDURE_STOPPED, all without a
 *           trace. PERDURE_PEER_LOST: the checkpoint may exist; open the directory again to see */
enum perdure_status perdure_save(struct perdure_writer *writer, const struct perdure_save *save, struct perdure_error *err);

/* ---- a copy in a bucket ---- */

struct perdure_upload {
    size_t size;
    const char *source; /* perdure's own: a run, a directory of checkpoints, or one checkpoint */
    uint64_t step;      /* of them; PERDURE_NEWEST */
    const char *bucket; /* s3://bucket/prefix */
    uint32_t keep_last; /* afterwards deletes there as perdure_writer_options says */
    uint64_t keep_every;
    uint64_t memory;           /* of this rank's send buffers, in bytes; at least 8 MiB */
    uint64_t bytes_per_second; /* of this rank; 0: no limit */
    const struct perdure_watch *watch;
};
#define PERDURE_UPLOAD                                                                               \
    {                                                                                                \
        sizeof(struct perdure_upload), NULL, PERDURE_NEWEST, NULL, 0, 0, UINT64_C(64) << 20, 0, NULL \
    }

/* Copies a checkpoint into a bucket, where perdure_open, the tool and runs find it. A writer in a new directory goes on with
 * what is there if its options say so (continues). Every shard is verified before it is
 * sent, and the copy exists once its record does. One that is there already is left as it is. Call it again after a failure.
 *   group   NULL: this process sends all shards; else each rank sends some, of its own host where the ranks of the save
 *           call it. Collective
 *   errors  PERDURE_BUSY: another program saves to that prefix; PERDURE_CORRUPT: a shard does not verify; PERDURE_INVALID:
 *           no such bucket, or it holds another run; PERDURE_UNSUPPORTED: no checkpoint of perdure, or a server without
 *           conditional writes; PERDURE_IO; PERDURE_STOPPED */
enum perdure_status perdure_upload(const struct perdure_upload *upload, const struct perdure_group *group,
                                   struct perdure_error *err);

#ifdef __cplusplus
}
#endif
#endif
