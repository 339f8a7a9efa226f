/* Text to tokens and back: byte tokens, byte pair encoding as GPT-2, Llama 3 and Qwen have it, and as SentencePiece has it.
 *
 * A tokenizer comes from a tokenizer.json of Hugging Face or from the arrays of a GGUF file, and gives the tokens that the
 * `tokenizers` package gives, special tokens included; what it lacks is refused by name and JSON path.
 *
 * Text that is not UTF-8 is first what Python's bytes.decode("utf-8", "replace") makes of it; byte tokens keep every byte.
 * An added token is found in any text, as there; the template of the post-processor adds its tokens.
 *   memory   a tokenizer: about four times its file. A scratch: 2 MiB, and three copies of the longest document
 *   threads  a tokenizer any, a scratch or a stream one at a time
 *   sources  the formats: huggingface.co/docs/tokenizers; GGUF: docs/gguf.md of ggml */
#pragma once

#include "trainer/tokenizer/string_buffer.h"
#include <stdbool.h>
#include <stdint.h>

#define PD_TOKENIZER_FILE "tokenizer.json"
#define PD_TOKENIZER_GGUF_FILE "tokenizer.gguf" /* what an import of GGUF lays there: its metadata as JSON */
#define PD_TOKENIZER_FILE_BYTES_MAX (256u << 20)
#define PD_TOKENIZER_DOCUMENT_BYTES_MAX PD_STRING_BYTES_MAX

struct pd_tokenizer;
struct pd_tokenizer_scratch;
struct pd_decode_stream;

/* path: a tokenizer.json or tokenizer.gguf, a directory that holds one, or "byte".
 *   errors  PD_NOT_FOUND, PD_IO; PD_CORRUPT: no JSON, or not as the format has it; PD_UNSUPPORTED: a part is not known here */
PD_MUST_USE pd_status pd_tokenizer_open(const char *path, struct pd_tokenizer **ret_tokenizer, struct pd_error *err);
/*   name  stands in messages; NULL: the path does */
PD_MUST_USE pd_status pd_tokenizer_open_as(const char *path, const char *name, struct pd_tokenizer **ret_tokenizer,
                                           struct pd_error *err);
/* `name` says in messages what was read. */
PD_MUST_USE pd_status pd_tokenizer_parse(const char *name, const char *json, size_t bytes,
                                         struct pd_tokenizer **ret_tokenizer, struct pd_error *err);
/* The same with the files that may lie beside it, as transformers takes them; text NULL where there is none. Added tokens
 * that stand there alone become the tokenizer's, and part of pd_tokenizer_json. */
#define PD_TOKENIZER_BESIDE 3u
extern const char *const pd_tokenizer_beside[PD_TOKENIZER_BESIDE]; /* their names */
struct pd_tokenizer_text {
    const char *text; /* terminated */
    size_t bytes;
};
/* A whole file.   ret  its text is malloc'ed, the caller's */
PD_MUST_USE pd_status pd_tokenizer_read(const char *path, struct pd_tokenizer_text *ret, struct pd_error *err);
PD_MUST_USE pd_status pd_tokenizer_parse_with(const char *name, const struct pd_tokenizer_text *json,
                                              const struct pd_tokenizer_text beside[PD_TOKENIZER_BESIDE],
                                              struct pd_tokenizer **ret_tokenizer, struct pd_error *err);
void pd_tokenizer_free(struct pd_tokenizer *tokenizer); /* NULL is fine */

/* A tokenizer as the text of PD_TOKENIZER_GGUF_FILE, from which pd_tokenizer_parse makes one with the same tokens.
 *   vocab     rows of the embedding; ids that have no token become padding
 *   bos, eos  negative: none; those of the template go before
 *   ret_text  malloc'ed
 *   errors    PD_UNSUPPORTED: GGUF has no words for a part of it, by name */
PD_MUST_USE pd_status pd_tokenizer_save_gguf(const struct pd_tokenizer *tokenizer, uint32_t vocab, int64_t bos, int64_t eos,
                                             char **ret_text, struct pd_error *err);

uint32_t pd_tokenizer_vocab(const struct pd_tokenizer *tokenizer);  /* largest id + 1 */
uint64_t pd_tokenizer_digest(const struct pd_tokenizer *tokenizer); /* XXH3 of all that decides tokens; never 0 */
uint64_t pd_tokenizer_digest_of_bytes(void);                        /* of the tokenizer "byte" */
/* What it was parsed from, borrowed: to lie beside what was made with it. NULL: bytes, arrays. */
const char *pd_tokenizer_json(const struct pd_tokenizer *tokenizer, size_t *ret_bytes);
bool pd_tokenizer_is_bytes(const struct pd_tokenizer *tokenizer);
int32_t pd_tokenizer_find(const struct pd_tokenizer *tokenizer,
                          const char *text); /* of a token as it is written; -1: none */

PD_MUST_USE pd_status pd_tokenizer_scratch_new(const struct pd_tokenizer *tokenizer,
                                               struct pd_tokenizer_scratch **ret_scratch, struct pd_error *err);
void pd_tokenizer_scratch_free(struct pd_tokenizer_scratch *scratch);

/* Appends the tokens of one document, with those that the template of the post-processor has before and behind it. goes_on: more
 * text is to follow, so nothing comes behind.
 *   errors  PD_INVALID: a document of more than 1 GiB, or one that a regular expression does not get through */
PD_MUST_USE pd_status pd_tokenizer_encode(const struct pd_tokenizer *tokenizer, struct pd_tokenizer_scratch *scratch,
                                          const char *text, size_t bytes, bool goes_on, struct pd_tokens *tokens,
                                          struct pd_error *err);
/* Appends the text of tokens; ids that no token has are left out. skip_special: so are special tokens. */
PD_MUST_USE pd_status pd_tokenizer_decode(const struct pd_tokenizer *tokenizer, struct pd_tokenizer_scratch *scratch,
                                          const int32_t *ids, size_t count, bool skip_special, struct pd_string *out,
                                          struct pd_error *err);

/* Text of tokens as they come, in whole UTF-8 characters. The tokenizer outlives the stream. */
PD_MUST_USE pd_status pd_decode_stream_new(const struct pd_tokenizer *tokenizer, bool skip_special,
                                           struct pd_decode_stream **ret_stream, struct pd_error *err);
void pd_decode_stream_free(struct pd_decode_stream *stream);
/* *ret_text (ret_bytes) is what is new, borrowed until the next call; nothing while a character is not whole. */
PD_MUST_USE pd_status pd_decode_stream_add(struct pd_decode_stream *stream, int32_t id, const char **ret_text,
                                           size_t *ret_bytes, struct pd_error *err);
/* What is left at the end, whole or not. */
PD_MUST_USE pd_status pd_decode_stream_end(struct pd_decode_stream *stream, const char **ret_text, size_t *ret_bytes,
                                           struct pd_error *err);
