/* Converts between config.json and generation_config.json of Hugging Face transformers and our model configuration.
 *
 * resharder/catalog/families.c lists the classes and keys.
 *
 * Every key is used, known to be harmless, or refused by name (hugging_face_keys.c). Dropout rates are harmless: they matter
 * only in training, and we train without dropout.
 *   sources  the configuration classes of transformers, versions 4 and 5 */
#pragma once

#include "trainer/model/model.h"

#define PD_EOS_MAX 8u

/* Tokens that begin and end a text. */
struct pd_special_tokens {
    int64_t bos; /* -1: none */
    int64_t eos[PD_EOS_MAX];
    uint32_t eos_count;
};

/* Reads the text of a config.json; `name` is for messages. Missing keys get the defaults of transformers.
 *   ret_tokens  may be NULL
 *   errors      PD_CORRUPT: not JSON, a value of the wrong type, a missing size
 *               PD_UNSUPPORTED: names the architecture, or a key whose computation we do not have
 *               PD_INVALID: sizes that pd_model_config_check refuses */
PD_MUST_USE pd_status pd_hugging_face_read(const char *name, const char *text, size_t bytes,
                                           struct pd_model_config *ret_config, struct pd_special_tokens *ret_tokens,
                                           struct pd_error *err);

/* The same for the text that resharder/formats/gguf.c makes from GGUF metadata; messages use GGUF's keys. */
PD_MUST_USE pd_status pd_hugging_face_read_gguf(const char *name, const char *text, size_t bytes,
                                                struct pd_model_config *ret_config, struct pd_error *err);

/* Reads the special tokens from either file and ignores the rest. errors PD_CORRUPT: not JSON */
PD_MUST_USE pd_status pd_hugging_face_read_tokens(const char *name, const char *text, size_t bytes,
                                                  struct pd_special_tokens *ret_tokens, struct pd_error *err);

/* Writes both texts for weights stored as `dtype`. `config` is resolved.
 *   tokens    NULL: unknown; both files then contain null
 *   ret_...   terminated; the caller frees them
 *   errors    PD_NO_MEMORY; PD_UNSUPPORTED: no architecture has this combination of properties; names them */
PD_MUST_USE pd_status pd_hugging_face_write(const struct pd_model_config *config, enum pd_dtype dtype,
                                            const struct pd_special_tokens *tokens, char **ret_config, char **ret_generation,
                                            struct pd_error *err);

/* The first class of its family with the same biases; NULL: none. `config` is resolved. */
const struct pd_model_class *pd_model_class_of(const struct pd_model_config *config);

struct pd_json_value;
/*   errors  PD_UNSUPPORTED: names the first key of `root` that we refuse */
PD_MUST_USE pd_status pd_hugging_face_check_keys(const char *name, const struct pd_json_value *root,
                                                 const struct pd_family *family, struct pd_error *err);
