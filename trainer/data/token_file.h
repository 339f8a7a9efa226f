/* One file of tokens, whatever its format: text as bytes, nanoGPT, llm.c, Megatron (.bin with .idx).
 *
 * Files are read by position and not mapped: a file that is truncated under a mapping, or a medium that fails, raises SIGBUS
 * and takes the rank with it; a read returns an error that names the file. A byte order mark of text is no token.
 *   invariants  after open, token_count > 0 and the file holds exactly the tokens its size and headers promise
 *   threads     any, after open */
#pragma once

#include "ckpt/base/thread_pool.h"
#include "trainer/data/data.h"

/* The codes of Megatron's .idx. */
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
    int fd, index_fd; /* -1: none */
    uint64_t file_bytes, index_bytes;
    uint64_t data_offset; /* bytes before the first token */
    uint64_t token_count;
    uint64_t sequence_count, document_count; /* Megatron; else 0 */
};

struct pd_token_scan {
    uint64_t digest;  /* of every byte of the file, and of its index */
    int64_t min, max; /* of the tokens */
};

const char *pd_data_format_name(enum pd_data_format format); /* "text", "nanogpt", ... as the configuration writes it */
const char *pd_token_type_name(enum pd_token_type type);
uint32_t pd_token_bytes(enum pd_token_type type);

/* PD_INVALID: empty, not a file, wrong size, magic, version or index; PD_NOT_FOUND; PD_IO. Messages name the file and the
 * fix. */
PD_MUST_USE pd_status pd_token_file_open(const char *path, enum pd_data_format format, struct pd_token_file *ret_file,
                                         struct pd_error *err);
void pd_token_file_close(struct pd_token_file *file);
/* Reads everything once. A token outside [0, vocab) is PD_INVALID with its position; vocab 0: anything goes. pool may be
 * NULL. */
PD_MUST_USE pd_status pd_token_file_scan(const struct pd_token_file *file, uint32_t vocab, struct pd_thread_pool *pool,
                                         struct pd_token_scan *ret_scan, struct pd_error *err);
/* tokens (count) from `start`. PD_IO: the file became shorter. */
PD_MUST_USE pd_status pd_token_file_read(const struct pd_token_file *file, uint64_t start, uint32_t count, int32_t *tokens,
                                         struct pd_error *err);
/* Token positions at which documents begin, ascending, the first 0; malloc'ed (count). Megatron only: megatron_index.c. */
PD_MUST_USE pd_status pd_token_file_documents(const struct pd_token_file *file, uint64_t **ret_starts, uint64_t *ret_count,
                                              struct pd_error *err);

/* What a scan of data files found, kept in a file: one scan a host, and none where the files are what they were. A file is
 * known by device, inode, size, mtime and ctime.
 *   threads  one; processes take turns: who opens it second waits until the first has scanned */
#define PD_SCAN_CACHE_PREFIX ".data-scan-" /* in run.dir, then the host's name */

struct pd_scan_cache;

/* `path` NULL, or a place where nothing can be written: a cache that knows nothing and keeps nothing. */
struct pd_scan_cache *pd_scan_cache_open(const char *path);
/* From the cache, or by reading the file; arguments as pd_token_file_scan. */
PD_MUST_USE pd_status pd_scan_cache_scan(struct pd_scan_cache *cache, const struct pd_token_file *file, uint32_t vocab,
                                         struct pd_thread_pool *pool, struct pd_token_scan *ret_scan, struct pd_error *err);
/* Keeps what was asked for since the open, and lets the next one in. */
void pd_scan_cache_close(struct pd_scan_cache *cache);
