/* Finds credentials in the order of AWS's tools: environment, web identity, files, container endpoint, instance metadata.
 *
 * Temporary credentials are refreshed five minutes before they expire. If the refresh fails, the old ones are used until
 * they expire.
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

/*   errors  PD_INVALID: no credentials, or incomplete ones; the message says what to set.
 *           PD_IO: the credential service does not answer; PD_CORRUPT: its answer has no credentials */
PD_MUST_USE pd_status pd_credentials_get(struct pd_credentials_chain *chain, uint64_t now_s, struct pd_credentials *ret,
                                         struct pd_error *err);
/* Call it when the server refuses `access` as expired or unknown. The next get fetches new ones unless somebody did. */
void pd_credentials_refused(struct pd_credentials_chain *chain, const char *access);

/* Parses the JSON of a container endpoint or of instance metadata; `name` is for messages.  errors  PD_CORRUPT */
PD_MUST_USE pd_status pd_credentials_parse_json(const char *name, const char *text, size_t bytes, struct pd_credentials *ret,
                                                struct pd_error *err);
/* Parses the XML of AssumeRoleWithWebIdentity. */
PD_MUST_USE pd_status pd_credentials_parse_xml(const char *name, const char *text, size_t bytes, struct pd_credentials *ret,
                                               struct pd_error *err);

/* The first of: AWS_REGION, AWS_DEFAULT_REGION, the profile's region, the instance's (if http is set), "us-east-1". */
void pd_credentials_region(struct pd_http *http, const struct pd_profile *profile, char ret[64]);
