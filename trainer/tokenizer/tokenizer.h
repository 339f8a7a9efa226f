/* Text to tokens and back: byte tokens, and byte pair encoding in the styles of GPT-2, Llama 3 and Qwen, and of
 * SentencePiece.
 *
 * A tokenizer is read from a tokenizer.json of Hugging Face or from the arrays of a GGUF file. It gives the same tokens as
 * the `tokenizers` package, special tokens included; unsupported parts are refused by name and JSON path.
 *
 * Text that is not UTF-8 is first repaired like Python's bytes.decode("utf-8", "replace"); byte tokens keep every byte. As
 * in that package, added tokens are found in any text, and the post-processor's template adds its tokens.
 *   memory   a tokenizer: about four times its file. A scratch: 2 MiB, and three copies of the longest document
 *   threads  a tokenizer any, a scratch or a stream one at a time
 *   sources  the formats: huggingface.co/docs/tokenizers; GGUF: docs/gguf.md of ggml */
#pragma once

#include "trainer/tokenizer/string_buffer.h"
#include <stdbool.h>
#include <stdint.h>

#define PD_TOKENIZER_FILE "tokenizer.json"
#define PD_TOKENIZER_GGUF_FILE "tokenizer.gguf" /* written by an import of GGUF: its metadata as JSON */
#define PD_TOKENIZER_FILE_BYTES_MAX (256u << 20)
#define PD_TOKENIZER_DOCUMENT_BYTES_MAX PD_STRING_BYTES_MAX

struct pd_tokenizer;
struct pd_tokenizer_scratch;
struct pd_decode_stream;

/* path: a tokenizer.json or tokenizer.gguf, a directory with one, or "byte".
 *   errors  PD_NOT_FOUND, PD_IO; PD_CORRUPT: not JSON, or not in the format; PD_UNSUPPORTED: a part we do not know */
PD_MUST_USE pd_status pd_tokenizer_open(const char *path, struct pd_tokenizer **ret_tokenizer, struct pd_error *err);
/*   name  for messages; NULL: the path */
PD_MUST_USE pd_status pd_tokenizer_open_as(const char *path, const char *name, struct pd_tokenizer **ret_tokenizer,
                                           struct pd_error *err);
/* `name` is for messages. */
PD_MUST_USE pd_status pd_tokenizer_parse(const char *name, const char *json, size_t bytes,
                                         struct pd_tokenizer **ret_tokenizer, struct pd_error *err);
/* The same with files that may be beside it, treated as in transformers; text NULL: absent. Added tokens found only there
 * are added to the tokenizer and to pd_tokenizer_json. */
#define PD_TOKENIZER_BESIDE 3u
extern const char *const pd_tokenizer_beside[PD_TOKENIZER_BESIDE]; /* their names */
struct pd_tokenizer_text {
    const char *text; /* terminated */
    size_t bytes;
};
bool pd_tokenizer_file_exists(const char *path); /* on a disk or in a bucket */
/* Reads a whole file. ret its text is malloc'ed, the caller's */
PD_MUST_USE pd_status pd_tokenizer_read(const char *path, struct pd_tokenizer_text *ret, struct pd_error *err);
PD_MUST_USE pd_status pd_tokenizer_parse_with(const char *name, const struct pd_tokenizer_text *json,
                                              const struct pd_tokenizer_text beside[PD_TOKENIZER_BESIDE],
                                              struct pd_tokenizer **ret_tokenizer, struct pd_error *err);
void pd_tokenizer_free(struct pd_tokenizer *tokenizer); /* NULL is fine */

/* Converts a tokenizer to the text of PD_TOKENIZER_GGUF_FILE; pd_tokenizer_parse of it gives the same tokens.
 *   vocab     rows of the embedding; ids without a token become padding
 *   bos, eos  negative: none; the template's take precedence
 *   ret_text  malloc'ed
 *   errors    PD_UNSUPPORTED: GGUF cannot express a part; names it */
PD_MUST_USE pd_status pd_tokenizer_save_gguf(const struct pd_tokenizer *tokenizer, uint32_t vocab, int64_t bos, int64_t eos,
                                             char **ret_text, struct pd_error *err);

uint32_t pd_tokenizer_vocab(const struct pd_tokenizer *tokenizer);  /* largest id + 1 */
uint64_t pd_tokenizer_digest(const struct pd_tokenizer *tokenizer); /* XXH3 of everything that affects tokens; never 0 */
uint64_t pd_tokenizer_digest_of_bytes(void);                        /* of the tokenizer "byte" */
/* The text it was parsed from, borrowed, to be kept beside its results. NULL: bytes, arrays. */
const char *pd_tokenizer_json(const struct pd_tokenizer *tokenizer, size_t *ret_bytes);
bool pd_tokenizer_is_bytes(const struct pd_tokenizer *tokenizer);
int32_t pd_tokenizer_find(const struct pd_tokenizer *tokenizer, const char *text); /* id of a token by its text; -1: none */

PD_MUST_USE pd_status pd_tokenizer_scratch_new(const struct pd_tokenizer *tokenizer,
                                               struct pd_tokenizer_scratch **ret_scratch, struct pd_error *err);
void pd_tokenizer_scratch_free(struct pd_tokenizer_scratch *scratch);

/* Appends the tokens of one document, with the tokens of the post-processor's template before and after. goes_on: more text
 * follows, so none are added after.
 *   errors  PD_INVALID: a document above 1 GiB, or a regular expression that takes too long */
PD_MUST_USE pd_status pd_tokenizer_encode(const struct pd_tokenizer *tokenizer, struct pd_tokenizer_scratch *scratch,
                                          const char *text, size_t bytes, bool goes_on, struct pd_tokens *tokens,
                                          struct pd_error *err);
/* How many tokens the post-processor's template puts before and behind each text. */
void pd_tokenizer_template(const struct pd_tokenizer *tokenizer, size_t *ret_before, size_t *ret_behind);
/* Appends a part of a text as the tokenizer composes its characters (NFC) before anything else, if it does: the tokens stay
 * the same, and pd_tokenizer_align can find them. */
PD_MUST_USE pd_status pd_tokenizer_compose(const struct pd_tokenizer *tokenizer, const char *text, size_t bytes,
                                           struct pd_string *out, struct pd_error *err);
/* Finds where the tokens (count) of a whole document end in its text: token i has the bytes from ret_ends[i - 1] to
 * ret_ends[i]. Tokens of the template have none.
 *   errors  PD_UNSUPPORTED: a normalizer changed the text; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_tokenizer_align(const struct pd_tokenizer *tokenizer, const char *text, size_t bytes,
                                         const int32_t *ids, size_t count, size_t *ret_ends, struct pd_error *err);
/* Appends the text of tokens; skips unknown ids, and with skip_special also special tokens. */
PD_MUST_USE pd_status pd_tokenizer_decode(const struct pd_tokenizer *tokenizer, struct pd_tokenizer_scratch *scratch,
                                          const int32_t *ids, size_t count, bool skip_special, struct pd_string *out,
                                          struct pd_error *err);

/* Decodes tokens one by one, in whole UTF-8 characters. The tokenizer must outlive the stream. */
PD_MUST_USE pd_status pd_decode_stream_new(const struct pd_tokenizer *tokenizer, bool skip_special,
                                           struct pd_decode_stream **ret_stream, struct pd_error *err);
void pd_decode_stream_free(struct pd_decode_stream *stream);
/* *ret_text (ret_bytes) is the new text, borrowed until the next call; empty while a character is incomplete. */
PD_MUST_USE pd_status pd_decode_stream_add(struct pd_decode_stream *stream, int32_t id, const char **ret_text,
                                           size_t *ret_bytes, struct pd_error *err);
/* The rest at the end, complete or not. */
PD_MUST_USE pd_status pd_decode_stream_end(struct pd_decode_stream *stream, const char **ret_text, size_t *ret_bytes,
                                           struct pd_error *err);
