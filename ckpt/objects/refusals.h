/* What an answer that is no success means for whoever asked. */
#pragma once

#include "ckpt/objects/answers.h"

struct pd_refusal {
    int code;                               /* of HTTP */
    struct pd_answer_error error;           /* what the body says; HEAD has none */
    const char *bucket, *key;               /* key "": the call is about the bucket */
    const char *action;                     /* what a policy must allow: "s3:GetObject" */
    const char *endpoint, *region, *source; /* source: of the credentials */
    int64_t clock_ahead_s;                  /* our clock minus the server's; 0: not known */
};

/* Worth another try: the server is busy or broken for now. */
bool pd_refusal_passes(const struct pd_refusal *refusal);
/* The server asks for fewer requests. */
bool pd_refusal_throttles(const struct pd_refusal *refusal);
/* The credentials are too old, or gone: others may do. */
bool pd_refusal_is_of_credentials(const struct pd_refusal *refusal);
/* A status and a message; sys_errno is what the VFS returns. */
pd_status pd_refusal_error(const struct pd_refusal *refusal, struct pd_error *err);
