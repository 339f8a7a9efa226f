/* config.json and generation_config.json of Hugging Face transformers, and our configuration of a model.
 *
 * Classes and keys come from resharder/catalog/families.c.
 *
 * Every key is used, known to be harmless, or refused by its name (hugging_face_keys.c). Rates of dropout are harmless: only
 * training knows them, and we have none.
 *   sources  the configuration classes of transformers, versions 4 and 5 */
#pragma once

#include "trainer/model/model.h"

#define PD_EOS_MAX 8u

/* Tokens that begin a text, and that end one. */
struct pd_special_tokens {
    int64_t bos; /* -1: there is none */
    int64_t eos[PD_EOS_MAX];
    uint32_t eos_count;
};

/* The text of a config.json; `name` stands in messages. What is absent is what transformers takes then.
 *   ret_tokens  may be NULL
 *   errors      PD_CORRUPT: no JSON, a value of another type, a size that is missing
 *               PD_UNSUPPORTED: the architecture, or a key that we do not compute, by name
 *               PD_INVALID: sizes that pd_model_config_check refuses */
PD_MUST_USE pd_status pd_hugging_face_read(const char *name, const char *text, size_t bytes,
                                           struct pd_model_config *ret_config, struct pd_special_tokens *ret_tokens,
                                           struct pd_error *err);

/* The same of the text that resharder/formats/gguf.c makes of a GGUF's metadata: messages name its keys. */
PD_MUST_USE pd_status pd_hugging_face_read_gguf(const char *name, const char *text, size_t bytes,
                                                struct pd_model_config *ret_config, struct pd_error *err);

/* Of either file, whatever else it holds.   errors  PD_CORRUPT: no JSON */
PD_MUST_USE pd_status pd_hugging_face_read_tokens(const char *name, const char *text, size_t bytes,
                                                  struct pd_special_tokens *ret_tokens, struct pd_error *err);

/* The two texts for weights that are stored as `dtype`. `config` is resolved.
 *   tokens    NULL: none is known, and both files say null
 *   ret_...   terminated; the caller frees them
 *   errors    PD_NO_MEMORY; PD_UNSUPPORTED: no architecture has this combination of properties, named */
PD_MUST_USE pd_status pd_hugging_face_write(const struct pd_model_config *config, enum pd_dtype dtype,
                                            const struct pd_special_tokens *tokens, char **ret_config, char **ret_generation,
                                            struct pd_error *err);

/* The first class of its family that has its biases; NULL: there is none. `config` is resolved. */
const struct pd_model_class *pd_model_class_of(const struct pd_model_config *config);

struct pd_json_value;
/*   errors  PD_UNSUPPORTED: names the first key of `root` that is refused */
PD_MUST_USE pd_status pd_hugging_face_check_keys(const char *name, const struct pd_json_value *root,
                                                 const struct pd_family *family, struct pd_error *err);
