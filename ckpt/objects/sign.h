/* Amazon's Signature Version 4, and Google Cloud Storage's variant, which differs in names only.
 *   sources  AWS, "Signature Version 4 signing process"; Google Cloud Storage, "V4 signing process with your own program" */
#pragma once

#include "ckpt/base/status.h"
#include <stdint.h>

/* The names that differ between Amazon and Google. */
struct pd_sign_dialect {
    const char *algorithm, *key_prefix, *terminator, *service;
    const char *date_header, *hash_header, *token_header; /* lower case */
    const char *absent_header, *absent_value;             /* "only if the object does not exist" */
};
extern const struct pd_sign_dialect pd_sign_aws, pd_sign_google;

struct pd_sign_keys {
    const char *access, *secret, *token; /* token "": permanent credentials */
};
struct pd_sign_pair {
    const char *name, *value;
};
#define PD_SIGN_PAIRS_MAX 12u

/* An unsigned request. Nothing is percent-encoded yet. Header values have no leading, trailing or double blanks. */
struct pd_sign_request {
    const struct pd_sign_dialect *dialect;
    const char *method, *host, *path;                                         /* the path begins with a slash */
    const char *region, *service;                                             /* service NULL: the dialect's */
    struct pd_sign_pair query[PD_SIGN_PAIRS_MAX], headers[PD_SIGN_PAIRS_MAX]; /* header names in lower case */
    uint32_t query_count, header_count;
    const char *payload_hash; /* NULL: "UNSIGNED-PAYLOAD" */
};

struct pd_signed {
    char *target;  /* path and query, encoded as signed */
    char *headers; /* "name: value\n" for each header to send, without host */
};

/*   wall_s   seconds since 1970 UTC; servers refuse a time that is more than 15 minutes off
 *   errors   PD_NO_MEMORY */
PD_MUST_USE pd_status pd_sign(const struct pd_sign_request *request, const struct pd_sign_keys *keys, uint64_t wall_s,
                              struct pd_signed *ret, struct pd_error *err);
void pd_signed_deinit(struct pd_signed *it);

#define PD_SHA256_HEX_BYTES 65u
void pd_sha256_hex(const void *data, size_t bytes, char ret[PD_SHA256_HEX_BYTES]);
