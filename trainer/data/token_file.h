/* A token file of any format: text as bytes, nanoGPT, llm.c, Megatron (.bin with .idx).
 *
 * Files are read with pread, not mapped: truncating a mapped file, or a failing drive, raises SIGBUS and kills the rank,
 * while a read returns an error that names the file. A byte order mark is not a token.
 *   invariants  after open, token_count > 0 and the file holds exactly the tokens that its size and headers promise
 *   threads     any, after open */
#pragma once

#include "ckpt/base/thread_pool.h"
#include "trainer/data/data.h"

/* Type codes of Megatron's .idx. */
enum pd_token_type {
    PD_TOKEN_U8 = 1,
    PD_TOKEN_I8,
    PD_TOKEN_I16,
    PD_TOKEN_I32,
    PD_TOKEN_I64,
    PD_TOKEN_U16 = 8,
    PD_TOKEN_U32 = 100
};

struct pd_token_file {
    char *path;       /* of the tokens (.bin), owned */
    char *index_path; /* Megatron's .idx, owned; else NULL */
    enum pd_data_format format;
    enum pd_token_type type;
    int fd, index_fd, loss_fd; /* -1: none */
    uint64_t file_bytes, index_bytes;
    uint64_t data_offset; /* bytes before the first token */
    uint64_t token_count;
    uint64_t sequence_count, document_count; /* Megatron; else 0 */
};

struct pd_token_scan {
    uint64_t digest;  /* of every byte of the file, of its index, and of its marks of losses */
    int64_t min, max; /* of the tokens */
    uint64_t learned; /* tokens that have a loss (token_loss.h) */
};

const char *pd_data_format_name(enum pd_data_format format); /* "text", "nanogpt", ... as in the configuration */
const char *pd_token_type_name(enum pd_token_type type);
uint32_t pd_token_bytes(enum pd_token_type type);

/* PD_INVALID: empty, not a file, wrong size, magic, version or index; PD_NOT_FOUND; PD_IO. Errors name the file and the fix.
 */
PD_MUST_USE pd_status pd_token_file_open(const char *path, enum pd_data_format format, struct pd_token_file *ret_file,
                                         struct pd_error *err);
void pd_token_file_close(struct pd_token_file *file);
/* Reads everything once. PD_INVALID, with the position, for a token outside [0, vocab); vocab 0: no limit. pool may be NULL.
 */
PD_MUST_USE pd_status pd_token_file_scan(const struct pd_token_file *file, uint32_t vocab, struct pd_thread_pool *pool,
                                         struct pd_token_scan *ret_scan, struct pd_error *err);
/* Reads tokens (count) from `start`. PD_IO: the file became shorter. */
PD_MUST_USE pd_status pd_token_file_read(const struct pd_token_file *file, uint64_t start, uint32_t count, int32_t *tokens,
                                         struct pd_error *err);
/* Token positions where documents begin, ascending, the first 0; malloc'ed (count). Only for Megatron: megatron_index.c. */
PD_MUST_USE pd_status pd_token_file_documents(const struct pd_token_file *file, uint64_t **ret_starts, uint64_t *ret_count,
                                              struct pd_error *err);

/* A file with scan results, so that each host scans once, and not again while files are unchanged: same device, inode, size,
 * mtime and ctime.
 *   threads  one; processes take turns: the second opener waits until the first has scanned */
#define PD_SCAN_CACHE_PREFIX ".data-scan-" /* in run.dir, then the host's name */

struct pd_scan_cache;

/* `path` NULL or not writable: an empty cache that stores nothing. */
struct pd_scan_cache *pd_scan_cache_open(const char *path);
/* Returns the cached result, or reads the file; arguments as in pd_token_file_scan. */
PD_MUST_USE pd_status pd_scan_cache_scan(struct pd_scan_cache *cache, const struct pd_token_file *file, uint32_t vocab,
                                         struct pd_thread_pool *pool, struct pd_token_scan *ret_scan, struct pd_error *err);
/* Saves the results requested since open, and lets the next process in. */
void pd_scan_cache_close(struct pd_scan_cache *cache);
