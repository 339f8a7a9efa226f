#include "ckpt/objects/credentials.h"
#include "ckpt/objects/url.h"
#include "ckpt/objects/xml.h"

#include "ckpt/base/json.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REFRESH_S 300u
#define METADATA_TIMEOUT_S 2u
#define TOKEN_TIMEOUT_S 10u

struct pd_credentials_chain {
    struct pd_http *http;
    const struct pd_profile *profile;
    pthread_mutex_t mutex; /* guards the fields below; held while credentials are fetched */
    struct pd_credentials current;
    bool is_there, is_refused;
};

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

pd_status pd_credentials_chain_new(struct pd_http *http, const struct pd_profile *profile,
                                   struct pd_credentials_chain **ret_chain, struct pd_error *err)
{
    struct pd_credentials_chain *chain = calloc(1, sizeof *chain);
    if (!chain) PD_FAIL(err, PD_NO_MEMORY, "looking for credentials");
    chain->http = http;
    chain->profile = profile;
    pthread_mutex_init(&chain->mutex, NULL);
    *ret_chain = chain;
    return PD_OK;
}

void pd_credentials_chain_free(struct pd_credentials_chain *chain)
{
    if (!chain) return;
    explicit_bzero(&chain->current, sizeof chain->current);
    pthread_mutex_destroy(&chain->mutex);
    free(chain);
}

/* ---- answers ---- */

/* Stores one field of an answer. */
static bool credentials_set(struct pd_credentials *c, const char *field, const char *text)
{
    const struct {
        const char *field;
        char *text;
        size_t bytes;
    } known[] = {{"AccessKeyId", c->access, sizeof c->access},
                 {"SecretAccessKey", c->secret, sizeof c->secret},
                 {"SessionToken", c->token, sizeof c->token},
                 {"Token", c->token, sizeof c->token}};
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(field, known[i].field) != 0) continue;
        if (strlen(text) >= known[i].bytes || strpbrk(text, "\r\n")) return false;
        memcpy(known[i].text, text, strlen(text) + 1);
    }
    if (strcmp(field, "Expiration") == 0) {
        struct tm utc = {0};
        if (!strptime(text, "%Y-%m-%dT%H:%M:%S", &utc)) return false;
        const time_t seconds = timegm(&utc);
        if (seconds <= 0) return false;
        c->expires_s = (uint64_t)seconds;
    }
    return true;
}

static pd_status credentials_check(const char *name, const struct pd_credentials *c, struct pd_error *err)
{
    if (c->access[0] && c->secret[0]) return PD_OK;
    PD_FAIL(err, PD_CORRUPT, "%s: the answer lacks AccessKeyId or SecretAccessKey", name);
}

pd_status pd_credentials_parse_json(const char *name, const char *text, size_t bytes, struct pd_credentials *ret,
                                    struct pd_error *err)
{
    struct pd_json_document *document = NULL;
    struct pd_credentials made = {.expires_s = 0};
    if (pd_json_parse(name, text, bytes, &document, NULL)) /* its message would quote the secret answer */
        PD_FAIL(err, PD_CORRUPT, "%s: the answer is not JSON", name);
    void *cursor = NULL;
    const char *key;
    const struct pd_json_value *value;
    bool is_right = true;
    while (is_right && pd_json_next(pd_json_root(document), &cursor, &key, &value))
        if (pd_json_text(value)) is_right = credentials_set(&made, key, pd_json_text(value));
    pd_json_document_free(document);
    if (!is_right) PD_FAIL(err, PD_CORRUPT, "%s: the answer has an invalid field", name);
    PD_TRY(credentials_check(name, &made, err));
    snprintf(made.source, sizeof made.source, "%s", name);
    *ret = made;
    return PD_OK;
}

static pd_status credentials_element(void *context, const char *path, const char *text, struct pd_error *err)
{
    static const char prefix[] = "AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials/";
    if (strncmp(path, prefix, sizeof prefix - 1) != 0 || credentials_set(context, path + sizeof prefix - 1, text))
        return PD_OK;
    PD_FAIL(err, PD_CORRUPT, "the answer has invalid credentials");
}

pd_status pd_credentials_parse_xml(const char *name, const char *text, size_t bytes, struct pd_credentials *ret,
                                   struct pd_error *err)
{
    struct pd_credentials made = {.expires_s = 0};
    PD_TRY(pd_xml_parse(name, text, bytes, credentials_element, &made, err));
    PD_TRY(credentials_check(name, &made, err));
    snprintf(made.source, sizeof made.source, "%s", name);
    *ret = made;
    return PD_OK;
}

/* ---- sources; PD_NOT_FOUND: try the next one ---- */

static pd_status from_environment(struct pd_credentials_chain *chain, struct pd_credentials *ret, struct pd_error *err)
{
    (void)chain;
    const char *access = variable("AWS_ACCESS_KEY_ID"), *secret = variable("AWS_SECRET_ACCESS_KEY");
    const char *token = variable("AWS_SESSION_TOKEN");
    if (!access && !secret) return PD_NOT_FOUND;
    if (!access || !secret)
        PD_FAIL(err, PD_INVALID, "%s is set and %s is not: set both, or neither",
                access ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
                access ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
    if (!credentials_set(ret, "AccessKeyId", access) || !credentials_set(ret, "SecretAccessKey", secret) ||
        !credentials_set(ret, "Token", token ? token : ""))
        PD_FAIL(err, PD_INVALID, "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN is too long");
    snprintf(ret->source, sizeof ret->source, "AWS_ACCESS_KEY_ID");
    return PD_OK;
}

static char *web_identity_body(const char *role, const char *token)
{
    const char *session = variable("AWS_ROLE_SESSION_NAME");
    char *body = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&body, &bytes);
    if (!out) return NULL;
    fputs("Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=", out);
    pd_url_encode(out, role, false);
    fputs("&RoleSessionName=", out);
    pd_url_encode(out, session ? session : "perdure", false);
    fputs("&WebIdentityToken=", out);
    pd_url_encode(out, token, false);
    if (fclose(out) == 0) return body;
    free(body);
    return NULL;
}

static pd_status from_web_identity(struct pd_credentials_chain *chain, struct pd_credentials *ret, struct pd_error *err)
{
    const char *path = variable("AWS_WEB_IDENTITY_TOKEN_FILE"), *role = variable("AWS_ROLE_ARN");
    if (!path || !role) return PD_NOT_FOUND;
    char *token = NULL, region[64], url[512];
    size_t bytes = 0;
    struct pd_error own = {0};
    if (pd_small_file_read(path, &token, &bytes, &own))
        PD_FAIL(err, PD_INVALID, "AWS_WEB_IDENTITY_TOKEN_FILE: %s", own.message);
    token[strcspn(token, "\r\n")] = '\0';
    char *body = web_identity_body(role, token);
    free(token);
    if (!body) PD_FAIL(err, PD_NO_MEMORY, "looking for credentials");
    pd_credentials_region(chain->http, chain->profile, region);
    const char *endpoint = variable("AWS_ENDPOINT_URL_STS");
    if (endpoint)
        snprintf(url, sizeof url, "%s", endpoint);
    else
        snprintf(url, sizeof url, "https://sts.%s.amazonaws.com/", region);
    struct pd_http_response response;
    pd_status st = pd_http_run(chain->http,
                               &(struct pd_http_request){.method = "POST",
                                                         .url = url,
                                                         .headers = "Content-Type: application/x-www-form-urlencoded\n",
                                                         .body = body,
                                                         .body_bytes = strlen(body),
                                                         .timeout_s = TOKEN_TIMEOUT_S},
                               &response, err);
    free(body);
    if (!st && response.code == 200)
        st = pd_credentials_parse_xml("web identity", response.text ? response.text : "", response.text_bytes, ret, err);
    else if (!st)
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                          "%s refused the role %s of AWS_ROLE_ARN with HTTP %d: check the trust policy of the role", url,
                          role, response.code);
    pd_http_response_deinit(&response);
    return st;
}

static pd_status from_profile(struct pd_credentials_chain *chain, struct pd_credentials *ret, struct pd_error *err)
{
    const struct pd_profile *profile = chain->profile;
    struct pd_profile *again = malloc(sizeof *again); /* the files may have new credentials by now */
    if (!again) PD_FAIL(err, PD_NO_MEMORY, "looking for credentials");
    if (chain->is_refused && !pd_profile_load(again, NULL)) profile = again;
    pd_status st = PD_NOT_FOUND;
    if (profile->access[0] && profile->secret[0]) {
        memcpy(ret->access, profile->access, sizeof ret->access);
        memcpy(ret->secret, profile->secret, sizeof ret->secret);
        memcpy(ret->token, profile->token, sizeof ret->token);
        snprintf(ret->source, sizeof ret->source, "profile %.40s",
                 variable("AWS_PROFILE") ? variable("AWS_PROFILE") : "default");
        st = PD_OK;
    } else if (profile->foreign[0]) {
        st = pd_error_set(err, PD_INVALID, PD_WHERE, 0,
                          "the profile uses %s, which perdure does not support: run "
                          "eval \"$(aws configure export-credentials --format env)\" to set its credentials",
                          profile->foreign);
    }
    explicit_bzero(again, sizeof *again);
    free(again);
    return st;
}

/* Allows plain HTTP only to this machine and to the container credential addresses. */
static bool container_url_is_safe(const char *url)
{
    static const char *const hosts[] = {"localhost",     "127.0.0.1",      "[::1]",
                                        "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
    if (strncmp(url, "https://", 8) == 0) return true;
    if (strncmp(url, "http://", 7) != 0) return false;
    for (unsigned i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const size_t length = strlen(hosts[i]);
        if (strncmp(url + 7, hosts[i], length) == 0 && strchr(":/", url[7 + length])) return true;
    }
    return false;
}

static pd_status container_headers(char ret[4200], struct pd_error *err)
{
    const char *path = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
               *token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    char *text = NULL;
    size_t bytes = 0;
    ret[0] = '\0';
    if (path) PD_TRY(pd_small_file_read(path, &text, &bytes, err));
    if (text) token = text;
    if (token)
        snprintf(ret, 4200, "Authorization: %.*s\n", (int)(strcspn(token, "\r\n") < 4096 ? strcspn(token, "\r\n") : 4096),
                 token);
    free(text);
    return PD_OK;
}

static pd_status get_json(struct pd_http *http, const char *name, const char *url, const char *headers,
                          struct pd_credentials *ret, struct pd_error *err)
{
    struct pd_http_response response;
    pd_status st = pd_http_run(
        http,
        &(struct pd_http_request){
            .method = "GET", .url = url, .headers = headers, .timeout_s = METADATA_TIMEOUT_S, .ignores_proxy = true},
        &response, err);
    if (!st && response.code != 200) st = pd_error_set(err, PD_IO, PD_WHERE, 0, "%s: HTTP %d", name, response.code);
    if (!st) st = pd_credentials_parse_json(name, response.text ? response.text : "", response.text_bytes, ret, err);
    pd_http_response_deinit(&response);
    return st;
}

static pd_status from_container(struct pd_credentials_chain *chain, struct pd_credentials *ret, struct pd_error *err)
{
    const char *relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
               *full = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    char url[1024], headers[4200];
    if (!relative && !full) return PD_NOT_FOUND;
    snprintf(url, sizeof url, "%s%s", relative ? "http://169.254.170.2" : full, relative ? relative : "");
    if (!container_url_is_safe(url))
        PD_FAIL(err, PD_INVALID,
                "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https, or http to this machine or to 169.254.170.2 or .23");
    PD_TRY(container_headers(headers, err));
    return get_json(chain->http, "container credentials", url, headers, ret, err);
}

/* GET of a metadata path with a new session token (IMDSv2). PD_NOT_FOUND: no metadata service, or no such path. */
static pd_status metadata_get(struct pd_http *http, const char *path, char ret[256], struct pd_credentials *ret_credentials,
                              struct pd_error *err)
{
    const char *set = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT"), *disabled = variable("AWS_EC2_METADATA_DISABLED");
    const char *endpoint = set ? set : "http://169.254.169.254";
    char url[512], headers[512];
    if (disabled && strcasecmp(disabled, "true") == 0) return PD_NOT_FOUND;
    snprintf(url, sizeof url, "%s/latest/api/token", endpoint);
    struct pd_http_response response;
    pd_status st = pd_http_run(http,
                               &(struct pd_http_request){.method = "PUT",
                                                         .url = url,
                                                         .headers = "X-aws-ec2-metadata-token-ttl-seconds: 21600\n",
                                                         .timeout_s = METADATA_TIMEOUT_S,
                                                         .ignores_proxy = true},
                               &response, NULL);
    const bool is_there = !st && response.code == 200 && response.text && response.text_bytes < 256;
    snprintf(headers, sizeof headers, "X-aws-ec2-metadata-token: %s\n", is_there ? response.text : "");
    pd_http_response_deinit(&response);
    if (!is_there) return PD_NOT_FOUND;
    snprintf(url, sizeof url, "%s%s", endpoint, path);
    if (ret_credentials) return get_json(http, "instance metadata", url, headers, ret_credentials, err);
    st = pd_http_run(
        http,
        &(struct pd_http_request){
            .method = "GET", .url = url, .headers = headers, .timeout_s = METADATA_TIMEOUT_S, .ignores_proxy = true},
        &response, NULL);
    const bool has_text = !st && response.code == 200 && response.text && response.text_bytes < 256;
    if (has_text) snprintf(ret, 256, "%.*s", (int)strcspn(response.text, "\r\n"), response.text);
    pd_http_response_deinit(&response);
    return has_text ? PD_OK : PD_NOT_FOUND;
}

static pd_status from_instance(struct pd_credentials_chain *chain, struct pd_credentials *ret, struct pd_error *err)
{
    static const char roles[] = "/latest/meta-data/iam/security-credentials/";
    char role[256], path[512];
    PD_TRY(metadata_get(chain->http, roles, role, NULL, err));
    snprintf(path, sizeof path, "%s%s", roles, role);
    return metadata_get(chain->http, path, NULL, ret, err);
}

/* ---- the chain ---- */

static pd_status credentials_fetch(struct pd_credentials_chain *chain, struct pd_credentials *ret, struct pd_error *err)
{
    static pd_status (*const sources[])(struct pd_credentials_chain *, struct pd_credentials *, struct pd_error *) = {
        from_environment, from_web_identity, from_profile, from_container, from_instance,
    };
    for (unsigned i = 0; i < sizeof sources / sizeof *sources; i++) {
        memset(ret, 0, sizeof *ret);
        const pd_status st = sources[i](chain, ret, err);
        if (st != PD_NOT_FOUND) return st;
    }
    PD_FAIL(err, PD_INVALID,
            "no credentials for a bucket: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write a profile to "
            "~/.aws/credentials; "
            "neither a container nor an instance role was found here");
}

pd_status pd_credentials_get(struct pd_credentials_chain *chain, uint64_t now_s, struct pd_credentials *ret,
                             struct pd_error *err)
{
    pd_status st = PD_OK;
    pthread_mutex_lock(&chain->mutex);
    const struct pd_credentials *current = &chain->current;
    const bool is_fresh =
        chain->is_there && !chain->is_refused && (!current->expires_s || now_s + REFRESH_S < current->expires_s);
    if (!is_fresh) {
        struct pd_error own = {0};
        struct pd_credentials fetched;
        st = credentials_fetch(chain, &fetched, &own);
        const bool old_ones_last = chain->is_there && !chain->is_refused && now_s < current->expires_s;
        if (!st) {
            chain->current = fetched;
            chain->is_there = true;
            chain->is_refused = false;
        }
        explicit_bzero(&fetched, sizeof fetched);
        st = st && old_ones_last ? PD_OK : pd_error_pass(err, st, &own);
    }
    if (!st) *ret = chain->current;
    pthread_mutex_unlock(&chain->mutex);
    return st;
}

void pd_credentials_refused(struct pd_credentials_chain *chain, const char *access)
{
    pthread_mutex_lock(&chain->mutex);
    if (chain->is_there && strcmp(chain->current.access, access) == 0) chain->is_refused = true;
    pthread_mutex_unlock(&chain->mutex);
}

void pd_credentials_region(struct pd_http *http, const struct pd_profile *profile, char ret[64])
{
    const char *set = variable("AWS_REGION") ? variable("AWS_REGION") : variable("AWS_DEFAULT_REGION");
    char text[256];
    if (set || profile->region[0])
        snprintf(ret, 64, "%s", set ? set : profile->region);
    else if (http && metadata_get(http, "/latest/meta-data/placement/region", text, NULL, NULL) == PD_OK)
        snprintf(ret, 64, "%.63s", text);
    else
        snprintf(ret, 64, "us-east-1");
}
