/* Turns a failed HTTP answer into a status and a message for the user. */
#pragma once

#include "ckpt/objects/answers.h"

struct pd_refusal {
    int code;                               /* HTTP status */
    struct pd_answer_error error;           /* from the body; empty for HEAD */
    const char *bucket, *key;               /* key "": the call was for the bucket */
    const char *action;                     /* to allow in a policy: "s3:GetObject" */
    const char *endpoint, *region, *source; /* source: of the credentials */
    int64_t clock_ahead_s;                  /* our clock minus the server's; 0: unknown */
};

/* True if a retry may help: the server is busy or temporarily failing. */
bool pd_refusal_passes(const struct pd_refusal *refusal);
/* True if the server asks for fewer requests. */
bool pd_refusal_throttles(const struct pd_refusal *refusal);
/* True if the credentials have expired or are unknown: fetch new ones. */
bool pd_refusal_is_of_credentials(const struct pd_refusal *refusal);
/* Sets the message and returns the status. sys_errno is the errno that the VFS slot returns. */
pd_status pd_refusal_error(const struct pd_refusal *refusal, struct pd_error *err);
