/* Shared by the files that read a tokenizer.json: load_json.c (members, added tokens, template), load_steps.c (normalizers,
 * pre-tokenizers, decoders), load_model.c (vocabulary and merges). Errors name file and JSON path. */
#pragma once

#include "ckpt/base/json.h"
#include "trainer/tokenizer/parts.h"

#define PD_LOAD_DEPTH_MAX 8u
#define PD_LOAD_PATH_MAX 200u
#define PD_LOAD_CONTENT_MAX 4096u
#define PD_LOAD_ADDED_MAX 65536u

struct pd_loader {
    const char *name; /* of the file */
    struct pd_tokenizer *tokenizer;
};

struct pd_load_kind { /* normalizer, pre-tokenizer, decoder or post-processor */
    const char *list; /* member of a Sequence that has its parts */
    pd_status (*load)(const struct pd_loader *loader, const struct pd_json_value *value, const char *path, const char *type,
                      struct pd_error *err);
};
extern const struct pd_load_kind pd_load_normalizers, pd_load_splitters, pd_load_decoders;

PD_MUST_USE pd_status pd_load_steps(const struct pd_loader *l, const struct pd_json_value *value, const char *path,
                                    const struct pd_load_kind *kind, unsigned depth, struct pd_error *err);
/* merges (ret_count) malloc'ed, also on failure: the caller frees them. */
PD_MUST_USE pd_status pd_load_model(const struct pd_loader *l, const struct pd_json_value *model,
                                    struct pd_merge **ret_merges, uint32_t *ret_count, struct pd_error *err);
/* Loads a list of merges; `path` names it in messages. As above. errors PD_INVALID: a token is not in the vocabulary */
PD_MUST_USE pd_status pd_load_merges(const struct pd_vocab *vocab, const struct pd_json_value *list, const char *path,
                                     struct pd_merge **ret_merges, uint32_t *ret_count, struct pd_error *err);
/* Appends the step ByteLevel; needs a free place. */
PD_MUST_USE pd_status pd_load_byte_level(struct pd_splitter *splitter, bool splits, bool prefix, struct pd_error *err);

/* Loads a whole tokenizer.gguf.
 *   errors  PD_INVALID: an array is missing or contradicts another; PD_UNSUPPORTED: unknown model or pre */
PD_MUST_USE pd_status pd_load_gguf(const char *name, const struct pd_json_value *root, struct pd_tokenizer *tokenizer,
                                   struct pd_error *err);

/* Gets a member; null counts as missing. */
const struct pd_json_value *pd_load_member(const struct pd_json_value *object, const char *key);
/* Texts are borrowed from the document; a content is malloc'ed. */
PD_MUST_USE pd_status pd_load_text(const struct pd_loader *l, const struct pd_json_value *object, const char *path,
                                   const char *key, const char **ret_text, struct pd_error *err);
PD_MUST_USE pd_status pd_load_bool(const struct pd_loader *l, const struct pd_json_value *object, const char *path,
                                   const char *key, bool fallback, bool *ret_value, struct pd_error *err);
PD_MUST_USE pd_status pd_load_content(const struct pd_loader *l, const struct pd_json_value *object, const char *path,
                                      const char *key, char **ret_content, struct pd_error *err);
