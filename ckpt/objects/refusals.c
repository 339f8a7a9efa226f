#include "ckpt/objects/refusals.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool refusal_is(const struct pd_refusal *refusal, const char *const *codes)
{
    for (; *codes; codes++)
        if (strcmp(refusal->error.code, *codes) == 0) return true;
    return false;
}

bool pd_refusal_throttles(const struct pd_refusal *r)
{
    static const char *const codes[] = {"SlowDown", "Throttling", "RequestLimitExceeded", "TooManyRequests", NULL};
    return r->code == 429 || refusal_is(r, codes);
}

bool pd_refusal_passes(const struct pd_refusal *r)
{
    static const char *const codes[] = {"InternalError",
                                        "RequestTimeout",
                                        "BadDigest",
                                        "OperationAborted",
                                        "IncompleteBody",
                                        "ConditionalRequestConflict",
                                        NULL};
    return r->code == 408 || r->code == 500 || (r->code >= 502 && r->code <= 504) || pd_refusal_throttles(r) ||
           refusal_is(r, codes);
}

bool pd_refusal_is_of_credentials(const struct pd_refusal *r)
{
    static const char *const codes[] = {"ExpiredToken", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId", NULL};
    return r->code == 401 || refusal_is(r, codes);
}

static pd_status refuse(struct pd_error *err, pd_status st, int sys_errno, const struct pd_refusal *r, const char *text)
{
    pd_error_set(err, st, PD_WHERE, 0, "s3://%s%s%s: %s", r->bucket, r->key[0] ? "/" : "", r->key, text);
    pd_error_set_errno(err, sys_errno);
    return st;
}

static pd_status refuse_access(const struct pd_refusal *r, struct pd_error *err)
{
    static const char *const unknown[] = {"InvalidAccessKeyId", NULL}, *const wrong[] = {"SignatureDoesNotMatch", NULL},
                             *const skewed[] = {"RequestTimeTooSkewed", NULL};
    char text[512];
    if (refusal_is(r, skewed) || llabs(r->clock_ahead_s) > 15 * 60)
        snprintf(text, sizeof text,
                 "the clock of this machine is %" PRIu64 " s %s the server's: set it (timedatectl set-ntp true)",
                 (uint64_t)llabs(r->clock_ahead_s), r->clock_ahead_s < 0 ? "behind" : "ahead of");
    else if (refusal_is(r, unknown))
        snprintf(text, sizeof text, "%s does not know the access key of %s: check the key, or set AWS_ENDPOINT_URL_S3",
                 r->endpoint, r->source);
    else if (refusal_is(r, wrong))
        snprintf(text, sizeof text, "the secret key of %s does not belong to its access key: set both again", r->source);
    else if (pd_refusal_is_of_credentials(r))
        snprintf(text, sizeof text, "the credentials of %s are no longer valid (%s): get new ones", r->source,
                 r->error.code[0] ? r->error.code : "HTTP 401");
    else
        snprintf(text, sizeof text, "the credentials of %s may not do this: allow them %s on arn:aws:s3:::%s%s", r->source,
                 r->action, r->bucket, r->key[0] ? "/*" : "");
    return refuse(err, PD_IO, EACCES, r, text);
}

static pd_status refuse_region(const struct pd_refusal *r, struct pd_error *err)
{
    char text[512];
    if (r->error.region[0] && strcmp(r->error.region, r->region) != 0)
        snprintf(text, sizeof text, "the bucket is in region %s, not in %s: set AWS_REGION=%s", r->error.region, r->region,
                 r->error.region);
    else
        snprintf(text, sizeof text, "%s is not the address of this bucket: set AWS_REGION or AWS_ENDPOINT_URL_S3",
                 r->endpoint);
    return refuse(err, PD_INVALID, EINVAL, r, text);
}

pd_status pd_refusal_error(const struct pd_refusal *r, struct pd_error *err)
{
    static const char *const no_bucket[] = {"NoSuchBucket", NULL};
    static const char *const of_region[] = {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed",
                                            "IllegalLocationConstraintException", NULL};
    char text[512];
    if (r->code == 301 || r->code == 302 || r->code == 307 || r->code == 308 || refusal_is(r, of_region))
        return refuse_region(r, err);
    if (refusal_is(r, no_bucket)) {
        snprintf(text, sizeof text, "%s has no bucket of this name: create it, or set AWS_ENDPOINT_URL_S3", r->endpoint);
        return refuse(err, PD_INVALID, ENOENT, r, text);
    }
    if (r->code == 401 || r->code == 403 || pd_refusal_is_of_credentials(r)) return refuse_access(r, err);
    switch (r->code) {
    case 404:
        return refuse(err, PD_NOT_FOUND, ENOENT, r, "no such object");
    case 409:
        return refuse(err, PD_BUSY, EBUSY, r, "another request is writing this object: try again");
    case 412:
        return refuse(err, PD_EXISTS, EEXIST, r, "the object exists already");
    case 416:
        return refuse(err, PD_CORRUPT, ESTALE, r, "the object is shorter than when it was opened: run the command again");
    default:
        break;
    }
    snprintf(text, sizeof text, "%s answered %s with HTTP %d%s%s%s%.200s", r->endpoint, r->action, r->code,
             r->error.code[0] ? " " : "", r->error.code, r->error.message[0] ? ": " : "", r->error.message);
    return refuse(err, PD_IO, EIO, r, text);
}
