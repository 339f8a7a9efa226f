/* Training data: token files, a keyed permutation in place of loader state.
 *
 * Sample i of a run is a pure function of (files, weights, context, seed, i): no layout can skip or repeat one. A sample is
 * context + 1 consecutive tokens; samples of a file begin every `context` tokens, what is left at its end is not used. Every
 * file is read completely at open (tokens in range, sizes and indices right), so that reading samples cannot fail except by
 * the file system itself.
 *
 * Several files. Without weights they are one set: an epoch takes every sample of every file once, all permuted together.
 * With weights each file gets its share of the samples, whatever its size, spread evenly over the run (order.h); each file
 * then has epochs of its own, and takes all its samples once before any of them comes again.
 *
 * Validation. A pass takes the same samples every time, each once: from every file its share, by weight or else by size, evenly
 * over the file. A file that has fewer samples than its share gives all of them, and the others give more.
 *   threads  any, after open
 */
#pragma once

#include "ckpt/base/status.h"

enum pd_data_format { PD_DATA_AUTO, PD_DATA_TEXT, PD_DATA_NANOGPT, PD_DATA_LLMC, PD_DATA_MEGATRON };
enum pd_split { PD_SPLIT_TRAIN, PD_SPLIT_VALIDATION };

struct pd_data_source {
    char *path;
    enum pd_data_format format; /* AUTO: by magic and name (.idx beside .bin, .txt) */
    double weight;              /* share of the samples, relative; 0 in all: by size. In some only: an error */
};

struct pd_data_options {
    struct pd_data_source *train, *validation; /* validation may be empty: the tail fraction of every train file is taken */
    uint32_t train_count, validation_count;
    double validation_fraction;  /* of each train file, its tail, when validation is empty; 0: none */
    uint64_t validation_samples; /* of a pass: fewer where there are fewer windows; 0: every window */
    uint32_t context;            /* T */
    uint32_t vocab;              /* of the model: a larger token is an error that names file and position */
    bool separate_documents;     /* attention and targets do not cross document bounds */
    int64_t document_token;      /* token that ends a document (formats without bounds); negative: none */
    uint64_t seed;
    const char *scan_cache; /* file that keeps what scans found (token_file.h); NULL: every byte is read */
};

struct pd_data;

/*   errors  PD_INVALID also where files are of different tokenizers, or of one with more tokens than the model's vocabulary */
PD_MUST_USE pd_status pd_data_open(const struct pd_data_options *options, struct pd_data **ret_data, struct pd_error *err);
void pd_data_close(struct pd_data *data);
/* What pd_data_open says of these files before it reads their tokens: absent, too short, of different tokenizers. */
PD_MUST_USE pd_status pd_data_check(const struct pd_data_options *options, struct pd_error *err);

/* Digest of the tokenizer that made the tokens of all files (token_origin.h); 0: not known. *ret_path, borrowed, is a file of
 * tokens that it lies beside, or NULL. */
uint64_t pd_data_tokenizer(const struct pd_data *data, const char **ret_path);
uint64_t pd_data_sample_count(const struct pd_data *data, enum pd_split split); /* of one epoch; of one pass of validation */
/* Of every byte, size, format and weight of all files in their order: what the commit records. Not of names and times: a
 * file may move. */
void pd_data_fingerprint(const struct pd_data *data, uint64_t ret_fingerprint[2]);
/* What tells a file from another of its name: to compare hosts that have copies. */
struct pd_data_file {
    uint64_t bytes, digest;
};
uint32_t pd_data_file_count(const struct pd_data *data); /* train files, then validation files */
const char *pd_data_file(const struct pd_data *data, uint32_t i, struct pd_data_file *ret_file); /* its path, borrowed */
/* PD_INVALID names what changed since `expected` was taken: the second word keeps 8 bits a file (the 8th for their number).
 * `before`: the options as they were then, for the names; NULL: not known. */
PD_MUST_USE pd_status pd_data_check_fingerprint(const struct pd_data *data, const uint64_t expected[2],
                                                const struct pd_data_options *before, struct pd_error *err);

/* Sample number i since the start of the run (training: permuted, epoch after epoch, each with its own permutation), or of a
 * validation pass (in the order of files). PD_INVALID: there is no such validation sample.
 *   tokens, targets (T): targets[t] follows tokens[t]; -1 where it is not to be learned
 *   positions (T): position for RoPE or the position table, restarting at documents when they are kept apart
 *   first (T): first visible position in the sequence (see struct pd_attention)
 *   errors  PD_IO: the file was truncated under us */
PD_MUST_USE pd_status pd_data_sample(const struct pd_data *data, enum pd_split split, uint64_t i, int32_t *tokens,
                                     int32_t *targets, int32_t *positions, int32_t *first, struct pd_error *err);
