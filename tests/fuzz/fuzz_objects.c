/* What a server or a file of credentials may hold. The first byte says which parser reads the rest. */
#include "ckpt/objects/answers.h"
#include "ckpt/objects/credentials.h"
#include "tests/fuzz/target.h"

#include <stdlib.h>
#include <string.h>

static pd_status listed(void *context, const char *key, uint64_t bytes, bool is_directory, struct pd_error *err)
{
    (void)context, (void)bytes, (void)is_directory, (void)err;
    if (strlen(key) > PD_OBJECT_KEY_MAX + 1) abort();
    return PD_OK;
}

static pd_status uploading(void *context, const char *key, const char *id, struct pd_error *err)
{
    (void)context, (void)err;
    if (strlen(key) > PD_OBJECT_KEY_MAX || strlen(id) >= PD_UPLOAD_ID_MAX) abort();
    return PD_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pd_error err = {0};
    struct pd_answer_error error;
    struct pd_credentials credentials;
    struct pd_profile profile = {.is_there = false};
    char token[PD_ANSWER_TOKEN_MAX], key[PD_OBJECT_KEY_MAX + 1], id[PD_UPLOAD_ID_MAX];
    if (!size) return 0;
    const char *text = (const char *)data + 1;
    switch (data[0] % 7) {
    case 0:
        (void)!pd_answer_listing_parse(text, size - 1, listed, NULL, token, &err);
        break;
    case 1:
        (void)!pd_answer_uploads_parse(text, size - 1, uploading, NULL, key, id, &err);
        break;
    case 2:
        pd_answer_error_parse(text, size - 1, &error);
        break;
    case 3:
        (void)!pd_credentials_parse_json("json", text, size - 1, &credentials, &err);
        break;
    case 5:
        (void)!pd_answer_deleted_parse(text, size - 1, &err);
        break;
    case 4:
        (void)!pd_credentials_parse_xml("xml", text, size - 1, &credentials, &err);
        break;
    default:
        (void)!pd_profile_parse("file", text, size - 1, "default", data[0] & 128, &profile, &err);
        break;
    }
    return 0;
}
