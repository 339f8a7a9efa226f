/* s3://bucket/key. */
#pragma once

#include "ckpt/base/status.h"
#include <stdio.h>

#define PD_BUCKET_NAME_MAX 63u
#define PD_OBJECT_KEY_MAX 1024u /* bytes of UTF-8, as S3 has it */

struct pd_object_url {
    char bucket[PD_BUCKET_NAME_MAX + 1];
    char key[PD_OBJECT_KEY_MAX + 1]; /* without slashes at either end, or twice in a row; "": the whole bucket */
};

bool pd_object_url_is(const char *path); /* it begins with "s3://" */
/*   errors  PD_INVALID: no bucket, a name that no bucket can have, a key that is too long or has "." or ".." as a part */
PD_MUST_USE pd_status pd_object_url_parse(const char *text, struct pd_object_url *ret, struct pd_error *err);

/* All but letters, digits, "-", "_", "." and "~" as %XX, which Signature Version 4 wants too. */
void pd_url_encode(FILE *out, const char *text, bool keeps_slashes);
