/* Parses s3://bucket/key. */
#pragma once

#include "ckpt/base/status.h"
#include <stdio.h>

#define PD_BUCKET_NAME_MAX 63u
#define PD_OBJECT_KEY_MAX 1024u /* bytes of UTF-8; the limit of S3 */

struct pd_object_url {
    char bucket[PD_BUCKET_NAME_MAX + 1];
    char key[PD_OBJECT_KEY_MAX + 1]; /* no leading, trailing or double slashes; "": the whole bucket */
};

bool pd_object_url_is(const char *path); /* true if it begins with "s3://" */
/*   errors  PD_INVALID: no bucket, an invalid bucket name, a key that is too long or has a "." or ".." component */
PD_MUST_USE pd_status pd_object_url_parse(const char *text, struct pd_object_url *ret, struct pd_error *err);

/* Writes `text` with all bytes but letters, digits, "-", "_", "." and "~" as %XX, as Signature Version 4 requires. */
void pd_url_encode(FILE *out, const char *text, bool keeps_slashes);
