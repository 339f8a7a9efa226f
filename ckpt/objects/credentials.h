/* Who we are, in the order of AWS's own tools: environment, web identity, files, container endpoint, instance metadata.
 *
 * Temporary credentials are fetched again five minutes before they expire; where that fails, the old ones serve as long as
 * they last.
 *   threads  any
 *   sources  AWS SDKs and Tools Reference Guide: "Standardized credential providers", "IMDS credential provider", "Container
 *            credential provider", "Assume role credential provider" */
#pragma once

#include "ckpt/objects/http.h"
#include "ckpt/objects/profile.h"

struct pd_credentials {
    char access[PD_ACCESS_KEY_MAX + 1], secret[PD_SECRET_KEY_MAX + 1], token[PD_SESSION_TOKEN_MAX + 1];
    uint64_t expires_s; /* seconds since 1970; 0: never */
    char source[64];    /* for messages: "AWS_ACCESS_KEY_ID", "instance metadata" */
};

struct pd_credentials_chain;

/* `profile` is borrowed until free. */
PD_MUST_USE pd_status pd_credentials_chain_new(struct pd_http *http, const struct pd_profile *profile,
                                               struct pd_credentials_chain **ret_chain, struct pd_error *err);
void pd_credentials_chain_free(struct pd_credentials_chain *chain);

/*   errors  PD_INVALID: there are none, or they are incomplete; the message says what to set.
 *           PD_IO: whoever gives them does not answer; PD_CORRUPT: it answers what is no credentials */
PD_MUST_USE pd_status pd_credentials_get(struct pd_credentials_chain *chain, uint64_t now_s, struct pd_credentials *ret,
                                         struct pd_error *err);
/* The server refused these as expired or unknown: the next get fetches others, if nobody has since. */
void pd_credentials_refused(struct pd_credentials_chain *chain, const char *access);

/* The JSON of a container endpoint and of instance metadata; `name` says where it is from.  errors  PD_CORRUPT */
PD_MUST_USE pd_status pd_credentials_parse_json(const char *name, const char *text, size_t bytes, struct pd_credentials *ret,
                                                struct pd_error *err);
/* The XML of AssumeRoleWithWebIdentity. */
PD_MUST_USE pd_status pd_credentials_parse_xml(const char *name, const char *text, size_t bytes, struct pd_credentials *ret,
                                               struct pd_error *err);

/* AWS_REGION, AWS_DEFAULT_REGION, the profile's, the region of the instance (not where http is NULL), or "us-east-1". */
void pd_credentials_region(struct pd_http *http, const struct pd_profile *profile, char ret[64]);
