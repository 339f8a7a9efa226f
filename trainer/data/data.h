/* Training data: token files, read in the order of a keyed permutation, without loader state.
 *
 * Sample i of a run is a pure function of (files, weights, context, seed, i), so no layout can skip or repeat one. A sample
 * is context + 1 consecutive tokens. Samples of a file begin every `context` tokens; the rest at its end is not used.
 * Opening reads every file completely (tokens in range, sizes and indices right), so that later only the file system itself
 * can fail.
 *
 * Several files. Without weights they are one set: an epoch uses every sample of every file once, all permuted together.
 * With weights each file gets its share of the samples, whatever its size, spread evenly over the run (order.h). Each file
 * then has its own epochs, and uses all its samples once before any repeats.
 *
 * Validation. Every pass uses the same samples, each once: from each file its share, by weight or else by size, spread
 * evenly over the file. If a file has fewer samples than its share it gives all, and the others give more.
 *
 * Files in a bucket are first copied to this host.
 *   threads  any, after open
 */
#pragma once

#include "ckpt/base/stop.h"

#include <stdint.h>

enum pd_data_format { PD_DATA_AUTO, PD_DATA_TEXT, PD_DATA_NANOGPT, PD_DATA_LLMC, PD_DATA_MEGATRON };
enum pd_split { PD_SPLIT_TRAIN, PD_SPLIT_VALIDATION };

struct pd_data_source {
    char *path;
    enum pd_data_format format; /* AUTO: from magic and name (.idx beside .bin, .txt) */
    double weight;              /* relative share of the samples; 0 in all: by size; in some only: an error */
};

struct pd_data_options {
    struct pd_data_source *train, *validation; /* validation may be empty: then it is the tail of every train file */
    uint32_t train_count, validation_count;
    double validation_fraction;  /* size of that tail as a fraction; 0: none */
    uint64_t validation_samples; /* per pass: fewer if there are fewer windows; 0: every window */
    uint32_t context;            /* T */
    uint32_t vocab;              /* of the model; a larger token is an error that names file and position */
    bool separate_documents;     /* attention and targets do not cross document boundaries */
    int64_t document_token;      /* token that ends a document (formats without boundaries); negative: none */
    uint64_t seed;
    char *cache_dir;            /* of copies of files in a bucket (data_cache.h) */
    uint64_t cache_bytes;       /* its limit */
    pd_should_stop should_stop; /* while files are fetched */
    const char *scan_cache;     /* file that caches scan results (token_file.h); NULL: read every byte */
};

struct pd_data;

/*   errors  PD_INVALID also if files are of different tokenizers, or of one with more tokens than the model's vocabulary */
PD_MUST_USE pd_status pd_data_open(const struct pd_data_options *options, struct pd_data **ret_data, struct pd_error *err);
void pd_data_close(struct pd_data *data);
/* The errors of pd_data_open that need no reading of tokens: file absent, too short, different tokenizers. With files in a
 * bucket only whether they are there and fit the cache. */
PD_MUST_USE pd_status pd_data_check(const struct pd_data_options *options, struct pd_error *err);

/* Share of the tokens of data.train that have a loss, of the files on this host that can be opened; 1: no file says. */
double pd_data_learned_share(const struct pd_data_options *options);
/* Digest of the tokenizer of all files (token_origin.h); 0: unknown. *ret_path: the token file beside it, borrowed, or NULL.
 */
uint64_t pd_data_tokenizer(const struct pd_data *data, const char **ret_path);
uint64_t pd_data_sample_count(const struct pd_data *data, enum pd_split split); /* of one epoch; of one validation pass */
/* Digest of every byte, size, format and weight of all files, in order, for commits. Without names and times, since files
 * may move. */
void pd_data_fingerprint(const struct pd_data *data, uint64_t ret_fingerprint[2]);
/* Identifies a file's content, to compare copies on several hosts. */
struct pd_data_file {
    uint64_t bytes, digest;
};
uint32_t pd_data_file_count(const struct pd_data *data); /* train files, then validation files */
const char *pd_data_file(const struct pd_data *data, uint32_t i, struct pd_data_file *ret_file); /* its path, borrowed */
/* PD_INVALID names what changed since `expected`: the second word has 8 bits per file (the 8th for the number of files).
 * `before`: the options at that time, for names; NULL: unknown. */
PD_MUST_USE pd_status pd_data_check_fingerprint(const struct pd_data *data, const uint64_t expected[2],
                                                const struct pd_data_options *before, struct pd_error *err);

/* Sample i since the start of the run (training: permuted, each epoch with its own permutation), or of a validation pass (in
 * file order). PD_INVALID: no such validation sample.
 *   tokens, targets (T): targets[t] follows tokens[t]; -1 if it is not to be learned
 *   positions (T): position for RoPE or the position table, restarting at documents if they are separate
 *   first (T): first visible position in the sequence (see struct pd_attention)
 *   errors  PD_IO: the file was truncated meanwhile */
PD_MUST_USE pd_status pd_data_sample(const struct pd_data *data, enum pd_split split, uint64_t i, int32_t *tokens,
                                     int32_t *targets, int32_t *positions, int32_t *first, struct pd_error *err);
