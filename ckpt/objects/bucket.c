#include "ckpt/objects/bucket.h"
#include "ckpt/objects/credentials.h"
#include "ckpt/objects/refusals.h"
#include "ckpt/objects/url.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/random_bits.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 8u
#define PAUSE_NS_FIRST UINT64_C(100000000)
#define PAUSE_NS_MAX UINT64_C(10000000000)
#define AT_ONCE_MAX 32.0
#define PIECES_MAX 64u

struct pd_bucket {
    char name[PD_BUCKET_NAME_MAX + 1], region[64];
    char endpoint[600];        /* "https://host:port", for requests and messages */
    char host[512], base[256]; /* Host header; path prefix: "", "/prefix", "/bucket" */
    const struct pd_sign_dialect *dialect;
    const _Atomic bool *stop;
    struct pd_profile profile;
    struct pd_http *http;
    struct pd_credentials_chain *chain;
    pthread_mutex_t mutex; /* guards the fields below, which limit concurrent requests (Jacobson 1988) */
    pthread_cond_t fewer;
    double at_once; /* the limit */
    uint32_t running;
    uint64_t cut_ns; /* when at_once was halved last */
};

/* One call. Borrows all it points to. */
struct bucket_call {
    const char *method, *action, *key; /* action: what a policy must allow */
    struct pd_sign_pair query[6], headers[6];
    uint32_t query_count, header_count;
    const void *body;
    uint64_t body_bytes;
    struct iovec into[PIECES_MAX]; /* buffers still to fill */
    uint32_t into_count;
    uint64_t offset, bytes;   /* what is still to read */
    bool has_new_credentials; /* credentials were refetched after a refusal: only once */
};

static const char *bucket_variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* ---- endpoint ---- */

static pd_status endpoint_parse(struct pd_bucket *b, const char *url, struct pd_error *err)
{
    const char *host = strstr(url, "://");
    if (!host || (strncmp(url, "https", 5) != 0 && strncmp(url, "http:", 5) != 0))
        PD_FAIL(err, PD_INVALID, "AWS_ENDPOINT_URL_S3=%s: write it as http://host:port or https://host", url);
    host += 3;
    size_t length = strcspn(host, "/?#"), path = strlen(host + length);
    while (path && host[length + path - 1] == '/')
        path--;
    if (!length || memchr(host, '@', length) || length >= sizeof b->host || path + PD_BUCKET_NAME_MAX + 2 > sizeof b->base)
        PD_FAIL(err, PD_INVALID, "AWS_ENDPOINT_URL_S3=%s: it has no host, has a user name, or is too long", url);
    snprintf(b->endpoint, sizeof b->endpoint, "%.*s", (int)(host + length - url), url);
    snprintf(b->base, sizeof b->base, "%.*s/%s", (int)path, host + length, b->name);
    const char *standard = url[4] == 's' ? ":443" : ":80"; /* libcurl leaves it out of the Host header */
    const size_t port = strlen(standard);
    if (length > port && memcmp(host + length - port, standard, port) == 0) length -= port;
    snprintf(b->host, sizeof b->host, "%.*s", (int)length, host);
    return PD_OK;
}

/* The TLS certificate does not cover a bucket name with a dot as a host name, so such a name goes into the path. */
static void endpoint_of_amazon(struct pd_bucket *b)
{
    const bool is_path = strchr(b->name, '.') != NULL;
    snprintf(b->host, sizeof b->host, "%s%ss3.%s.amazonaws.com%s", is_path ? "" : b->name, is_path ? "" : ".", b->region,
             strncmp(b->region, "cn-", 3) == 0 ? ".cn" : "");
    snprintf(b->base, sizeof b->base, "%s%s", is_path ? "/" : "", is_path ? b->name : "");
    snprintf(b->endpoint, sizeof b->endpoint, "https://%s", b->host);
}

static pd_status bucket_find(struct pd_bucket *b, struct pd_error *err)
{
    static const char google[] = "storage.googleapis.com";
    const char *endpoint = bucket_variable("AWS_ENDPOINT_URL_S3");
    if (!endpoint) endpoint = bucket_variable("AWS_ENDPOINT_URL");
    if (!endpoint && b->profile.endpoint[0]) endpoint = b->profile.endpoint;
    b->dialect = &pd_sign_aws;
    pd_credentials_region(endpoint ? NULL : b->http, &b->profile, b->region);
    if (!endpoint) {
        endpoint_of_amazon(b);
        return PD_OK;
    }
    PD_TRY(endpoint_parse(b, endpoint, err));
    const size_t length = strlen(b->host);
    if (length >= sizeof google - 1 && strcmp(b->host + length - (sizeof google - 1), google) == 0) {
        b->dialect = &pd_sign_google;
        snprintf(b->region, sizeof b->region, "auto");
    }
    return PD_OK;
}

pd_status pd_bucket_open(const char *name, const _Atomic bool *stop, struct pd_bucket **ret_bucket, struct pd_error *err)
{
    struct pd_bucket *b = calloc(1, sizeof *b);
    if (!b) PD_FAIL(err, PD_NO_MEMORY, "opening bucket %s", name);
    b->stop = stop;
    b->at_once = AT_ONCE_MAX / 2;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->fewer, NULL);
    snprintf(b->name, sizeof b->name, "%s", name);
    pd_status st = pd_http_new(&b->http, err);
    if (!st) st = pd_profile_load(&b->profile, err);
    if (!st) st = bucket_find(b, err);
    if (!st) st = pd_credentials_chain_new(b->http, &b->profile, &b->chain, err);
    if (st)
        pd_bucket_close(b);
    else
        *ret_bucket = b;
    return st;
}

void pd_bucket_close(struct pd_bucket *b)
{
    if (!b) return;
    pd_credentials_chain_free(b->chain);
    pd_http_free(b->http);
    pthread_cond_destroy(&b->fewer);
    pthread_mutex_destroy(&b->mutex);
    explicit_bzero(&b->profile, sizeof b->profile);
    free(b);
}

void pd_bucket_url(const struct pd_bucket *b, const char *key, char ret_url[PD_BUCKET_URL_MAX])
{
    FILE *out = fmemopen(ret_url, PD_BUCKET_URL_MAX, "w");
    PD_CHECK(out);
    fputs(b->endpoint, out);
    pd_url_encode(out, b->base, true);
    fputc('/', out);
    pd_url_encode(out, key, true);
    PD_CHECK(fclose(out) == 0);
}

const char *pd_bucket_endpoint(const struct pd_bucket *b)
{
    return b->endpoint;
}

/* ---- limit on concurrent requests ---- */

static void gate_enter(struct pd_bucket *b)
{
    pthread_mutex_lock(&b->mutex);
    while (b->running && b->running + 1 > b->at_once)
        pthread_cond_wait(&b->fewer, &b->mutex);
    b->running++;
    pthread_mutex_unlock(&b->mutex);
}

static void gate_leave(struct pd_bucket *b, bool is_throttled, bool is_done)
{
    const uint64_t now_ns = pd_clock_monotonic_ns(NULL);
    pthread_mutex_lock(&b->mutex);
    b->running--;
    if (is_throttled && now_ns - b->cut_ns > UINT64_C(1000000000)) {
        b->at_once = b->at_once < 2 ? 1 : b->at_once / 2;
        b->cut_ns = now_ns;
    }
    if (is_done && b->at_once < AT_ONCE_MAX) b->at_once += 1 / b->at_once;
    pthread_cond_broadcast(&b->fewer);
    pthread_mutex_unlock(&b->mutex);
}

/* ---- a request ---- */

static void call_query(struct bucket_call *call, const char *name, const char *value)
{
    call->query[call->query_count++] = (struct pd_sign_pair){name, value};
}

static void call_header(struct bucket_call *call, const char *name, const char *value)
{
    call->headers[call->header_count++] = (struct pd_sign_pair){name, value};
}

static pd_status call_sign(struct pd_bucket *b, const struct bucket_call *call, const struct pd_credentials *who,
                           struct pd_signed *ret, struct pd_error *err)
{
    char path[sizeof b->base + PD_OBJECT_KEY_MAX + 2], range[64];
    snprintf(path, sizeof path, "%s/%s", b->base, call->key);
    if (!call->key[0] && b->base[0]) snprintf(path, sizeof path, "%s", b->base);
    struct pd_sign_request request = {.dialect = b->dialect,
                                      .method = call->method,
                                      .host = b->host,
                                      .path = path,
                                      .region = b->region,
                                      .query_count = call->query_count,
                                      .header_count = call->header_count};
    memcpy(request.query, call->query, sizeof call->query);
    memcpy(request.headers, call->headers, sizeof call->headers);
    if (call->into_count) {
        snprintf(range, sizeof range, "bytes=%" PRIu64 "-%" PRIu64, call->offset, call->offset + call->bytes - 1);
        request.headers[request.header_count++] = (struct pd_sign_pair){"range", range};
    }
    const struct pd_sign_keys keys = {who->access, who->secret, who->token};
    return pd_sign(&request, &keys, pd_clock_wall_ns() / UINT64_C(1000000000), ret, err);
}

/* Removes `moved` received bytes from what is still to read. */
static void call_advance(struct bucket_call *call, uint64_t moved)
{
    call->offset += moved;
    call->bytes -= moved;
    uint32_t whole = 0;
    while (whole < call->into_count && moved >= call->into[whole].iov_len)
        moved -= call->into[whole++].iov_len;
    call->into_count -= whole;
    memmove(call->into, call->into + whole, call->into_count * sizeof *call->into);
    if (!call->into_count) return;
    call->into[0].iov_base = (char *)call->into[0].iov_base + moved;
    call->into[0].iov_len -= moved;
}

/* Checks that the body is the requested range, whole or cut short, and counts its bytes. */
static pd_status call_take(struct pd_bucket *b, struct bucket_call *call, const struct pd_http_response *response,
                           bool *ret_again, struct pd_error *err)
{
    /* 206; rclone sends ranges with 200 */
    const bool is_range = response->range_begin == call->offset;
    const bool is_all = response->range_begin == UINT64_MAX && response->code == 200 && !call->offset &&
                        response->has_length && response->length == call->bytes;
    if (!is_range && !is_all)
        PD_FAIL(err, PD_CORRUPT, "s3://%s/%s: %s sent other bytes than the requested range", b->name, call->key,
                b->endpoint);
    call_advance(call, response->moved);
    *ret_again = call->into_count > 0;
    if (!*ret_again) return PD_OK;
    PD_FAIL(err, PD_IO, "s3://%s/%s: the answer of %s is %" PRIu64 " bytes too short", b->name, call->key, b->endpoint,
            call->bytes);
}

/* Sends the request once.   ret_again   a retry may help */
static pd_status bucket_once(struct pd_bucket *b, struct bucket_call *call, struct pd_http_response *response,
                             bool *ret_again, bool *ret_throttled, struct pd_error *err)
{
    struct pd_credentials who;
    struct pd_signed signed_ = {NULL, NULL};
    *ret_again = *ret_throttled = false;
    *response = (struct pd_http_response){.code = 0};
    PD_TRY(pd_credentials_get(b->chain, pd_clock_wall_ns() / UINT64_C(1000000000), &who, err));
    pd_status st = call_sign(b, call, &who, &signed_, err);
    explicit_bzero(who.secret, sizeof who.secret);
    char *url = NULL;
    if (!st) st = PD_ALLOCATED(asprintf(&url, "%s%s", b->endpoint, signed_.target) >= 0, err, "asking %s", b->endpoint);
    if (st) {
        pd_signed_deinit(&signed_);
        return st;
    }
    struct pd_error own = {0};
    st = pd_http_run(b->http,
                     &(struct pd_http_request){.method = call->method,
                                               .url = url,
                                               .headers = signed_.headers,
                                               .body = call->body,
                                               .body_bytes = call->body_bytes,
                                               .into = call->into_count ? call->into : NULL,
                                               .into_count = call->into_count,
                                               .stop = b->stop},
                     response, &own);
    free(url);
    pd_signed_deinit(&signed_);
    const bool is_success = response->code >= 200 && response->code < 300;
    if (st) { /* connection lost or no answer: keep the part that arrived */
        *ret_again = st == PD_IO && own.sys_errno != EPROTO;
        if (is_success && call->into_count && response->moved && response->range_begin == call->offset)
            call_advance(call, response->moved < call->bytes ? response->moved : 0);
        return pd_error_pass(err, st, &own);
    }
    struct pd_refusal refusal = {.code = response->code,
                                 .bucket = b->name,
                                 .key = call->key,
                                 .action = call->action,
                                 .endpoint = b->endpoint,
                                 .region = b->region,
                                 .source = who.source};
    if (response->text) pd_answer_error_parse(response->text, response->text_bytes, &refusal.error);
    if (is_success && !refusal.error.code[0]) return call->into_count ? call_take(b, call, response, ret_again, err) : PD_OK;
    if (response->region[0]) memcpy(refusal.error.region, response->region, sizeof refusal.error.region);
    const int64_t now_s = (int64_t)(pd_clock_wall_ns() / UINT64_C(1000000000));
    if (response->date_s) refusal.clock_ahead_s = now_s - (int64_t)response->date_s;
    *ret_throttled = pd_refusal_throttles(&refusal);
    *ret_again = pd_refusal_passes(&refusal);
    if (pd_refusal_is_of_credentials(&refusal) && !call->has_new_credentials) {
        *ret_again = call->has_new_credentials = true;
        pd_credentials_refused(b->chain, who.access);
    }
    return pd_refusal_error(&refusal, err);
}

static void bucket_pause(struct pd_bucket *b, uint32_t tries, uint32_t retry_after_s)
{
    const uint64_t now_ns = pd_clock_monotonic_ns(NULL), least_ns = retry_after_s * UINT64_C(1000000000);
    uint64_t ns = PAUSE_NS_FIRST << tries;
    if (ns > PAUSE_NS_MAX) ns = PAUSE_NS_MAX;
    ns = ns / 2 + (uint64_t)pd_random_bits(now_ns, (uintptr_t)&ns) * (ns / 2) / UINT32_MAX;
    if (ns < least_ns) ns = least_ns;
    (void)pd_clock_pace(now_ns, ns, UINT64_C(1000000000), b->stop); /* one byte per nanosecond: sleeps until *stop is set */
}

/* Retries. After PD_OK the caller frees *response. `ret_tries` may be NULL. */
static pd_status bucket_run(struct pd_bucket *b, struct bucket_call *call, struct pd_http_response *response,
                            uint32_t *ret_tries, struct pd_error *err)
{
    for (uint32_t tries = 1;; tries++) {
        bool is_again = false, is_throttled = false;
        const uint64_t left = call->bytes;
        if (ret_tries) *ret_tries = tries;
        gate_enter(b);
        const pd_status st = bucket_once(b, call, response, &is_again, &is_throttled, err);
        gate_leave(b, is_throttled, !st);
        if (!st) return PD_OK;
        const uint32_t retry_after_s = response->retry_after_s;
        pd_http_response_deinit(response);
        if (left - call->bytes > left / 8) tries = 1; /* a read that makes progress does not use up its retries */
        if (!is_again || tries == TRIES) return st;
        bucket_pause(b, tries - 1, retry_after_s);
        if (b->stop && *b->stop) PD_FAIL(err, PD_STOPPED, "s3://%s: the request was stopped", b->name);
    }
}

/* bucket_run that discards the response. */
static pd_status bucket_do(struct pd_bucket *b, struct bucket_call *call, struct pd_error *err)
{
    struct pd_http_response response;
    PD_TRY(bucket_run(b, call, &response, NULL, err));
    pd_http_response_deinit(&response);
    return PD_OK;
}

/* ---- reading ---- */

static bool is_refused(pd_status st, const struct pd_error *err)
{
    return st == PD_INVALID || (st == PD_IO && err->sys_errno == EACCES);
}

/* A refused HEAD has no body to say why, so send a GET, which has one. */
static pd_status head_refused(struct pd_bucket *b, const char *key, pd_status st, const struct pd_error *cause,
                              struct pd_error *err)
{
    char byte;
    struct pd_error own = {0};
    const struct iovec into = {&byte, 1};
    if (!is_refused(st, cause)) return pd_error_pass(err, st, cause);
    const pd_status why = pd_bucket_get(b, key, NULL, 0, &into, 1, &own);
    return is_refused(why, &own) ? pd_error_pass(err, why, &own) : pd_error_pass(err, st, cause);
}

pd_status pd_bucket_head(struct pd_bucket *b, const char *key, struct pd_object *ret, struct pd_error *err)
{
    struct bucket_call call = {.method = "HEAD", .action = "s3:GetObject", .key = key};
    struct pd_http_response response;
    struct pd_error own = {0};
    if (b->dialect == &pd_sign_aws) call_header(&call, "x-amz-checksum-mode", "ENABLED");
    const pd_status st = bucket_run(b, &call, &response, NULL, &own);
    if (st) return head_refused(b, key, st, &own, err);
    const bool has_length = response.has_length;
    ret->bytes = response.length;
    ret->sum = response.sum;
    /* The ETag of an object uploaded in parts ends in their count. Some servers then send the checksum of their checksums
     * without saying so. A CRC-64/NVME is always of the whole. */
    const bool has_parts = strchr(response.etag, '-') && b->dialect == &pd_sign_aws;
    if (has_parts && !response.sum_is_full_object && response.sum.kind != PD_OBJECT_SUM_CRC64NVME)
        ret->sum.kind = PD_OBJECT_SUM_NONE;
    memcpy(ret->etag, response.etag, sizeof ret->etag);
    pd_http_response_deinit(&response);
    if (!has_length) PD_FAIL(err, PD_CORRUPT, "s3://%s/%s: %s sent no Content-Length", b->name, key, b->endpoint);
    return PD_OK;
}

pd_status pd_bucket_get(struct pd_bucket *b, const char *key, const char *etag, uint64_t offset, const struct iovec *into,
                        uint32_t into_count, struct pd_error *err)
{
    PD_CHECK(into_count <= PIECES_MAX);
    struct bucket_call call = {
        .method = "GET", .action = "s3:GetObject", .key = key, .offset = offset, .into_count = into_count};
    memcpy(call.into, into, into_count * sizeof *into);
    for (uint32_t i = 0; i < into_count; i++)
        call.bytes += into[i].iov_len;
    if (!call.bytes) return PD_OK;
    if (etag && etag[0]) call_header(&call, "if-match", etag);
    struct pd_error own = {0};
    const pd_status st = bucket_do(b, &call, &own);
    if (st != PD_EXISTS) return pd_error_pass(err, st, &own);
    PD_FAIL(err, PD_CORRUPT, "s3://%s/%s: the object was replaced while it was open: run the command again", b->name, key);
}

pd_status pd_bucket_get_small(struct pd_bucket *b, const char *key, uint64_t bytes_max, char **ret_text, size_t *ret_bytes,
                              struct pd_error *err)
{
    struct bucket_call call = {.method = "GET", .action = "s3:GetObject", .key = key};
    struct pd_http_response response;
    PD_TRY(bucket_run(b, &call, &response, NULL, err));
    if (response.has_length && response.length != response.text_bytes) {
        pd_http_response_deinit(&response);
        PD_FAIL(err, PD_IO, "s3://%s/%s: the answer of %s is too short", b->name, key, b->endpoint);
    }
    if (response.text_bytes > bytes_max) {
        pd_http_response_deinit(&response);
        PD_FAIL(err, PD_CORRUPT, "s3://%s/%s: the object is larger than the limit of %" PRIu64 " bytes", b->name, key,
                bytes_max);
    }
    if (!response.text) response.text = calloc(1, 1);
    *ret_text = response.text;
    *ret_bytes = response.text_bytes;
    return PD_ALLOCATED(response.text, err, "reading s3://%s/%s", b->name, key);
}

pd_status pd_bucket_list(struct pd_bucket *b, const char *prefix, bool is_flat, pd_bucket_listed listed, void *context,
                         struct pd_error *err)
{
    char token[PD_ANSWER_TOKEN_MAX] = "", next[PD_ANSWER_TOKEN_MAX];
    do {
        struct bucket_call call = {.method = "GET", .action = "s3:ListBucket", .key = ""};
        struct pd_http_response response;
        call_query(&call, "list-type", "2");
        call_query(&call, "prefix", prefix);
        if (!is_flat) call_query(&call, "delimiter", "/");
        if (token[0]) call_query(&call, "continuation-token", token);
        PD_TRY(bucket_run(b, &call, &response, NULL, err));
        pd_status st =
            pd_answer_listing_parse(response.text ? response.text : "", response.text_bytes, listed, context, next, err);
        pd_http_response_deinit(&response);
        if (st == PD_STOPPED) return PD_OK;
        if (!st && next[0] && strcmp(next, token) == 0)
            st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "the listing of the server does not end");
        if (st) return pd_error_context(err, st, "s3://%s/%s", b->name, prefix);
        memcpy(token, next, sizeof token);
    } while (token[0]);
    return PD_OK;
}

/* ---- writing ---- */

static void base64(const unsigned char *bytes, size_t count, char *ret)
{
    EVP_EncodeBlock((unsigned char *)ret, bytes, (int)count);
}

/* The server compares the received bytes with this checksum. Google has no CRC-32. */
static void call_checksum(const struct pd_bucket *b, struct bucket_call *call, uint32_t crc, char ret[32])
{
    unsigned char digest[16];
    if (b->dialect == &pd_sign_google) {
        PD_CHECK(EVP_Digest(call->body, call->body_bytes, digest, NULL, EVP_md5(), NULL) == 1);
        base64(digest, 16, ret);
        call_header(call, "content-md5", ret);
        return;
    }
    for (int i = 0; i < 4; i++)
        digest[i] = (unsigned char)(crc >> (24 - 8 * i));
    base64(digest, 4, ret);
    call_header(call, "x-amz-checksum-crc32", ret);
}

pd_status pd_bucket_put(struct pd_bucket *b, const char *key, const void *data, uint64_t bytes, bool only_if_absent,
                        struct pd_error *err)
{
    struct bucket_call call = {.method = "PUT", .action = "s3:PutObject", .key = key, .body = data, .body_bytes = bytes};
    char checksum[32];
    call_checksum(b, &call, pd_crc32(0, data, bytes), checksum);
    if (only_if_absent) call_header(&call, b->dialect->absent_header, b->dialect->absent_value);
    const pd_status st = bucket_do(b, &call, err);
    return st == PD_BUSY && only_if_absent ? pd_error_change(err, PD_EXISTS) : st;
}

pd_status pd_bucket_delete(struct pd_bucket *b, const char *key, struct pd_error *err)
{
    struct bucket_call call = {.method = "DELETE", .action = "s3:DeleteObject", .key = key};
    struct pd_error own = {0};
    const pd_status st = bucket_do(b, &call, &own);
    return st == PD_NOT_FOUND ? PD_OK : pd_error_pass(err, st, &own);
}

static void put_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '&' || *text == '<' || *text == '>')
            fprintf(out, "&#%d;", *text);
        else
            fputc(*text, out);
    }
}

static pd_status delete_at_once(struct pd_bucket *b, const char *const *keys, uint32_t count, struct pd_error *err)
{
    char *body = NULL, checksum[32];
    size_t bytes = 0;
    FILE *out = open_memstream(&body, &bytes);
    PD_TRY(PD_ALLOCATED(out, err, "deleting objects in s3://%s", b->name));
    fputs("<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>", out);
    for (uint32_t i = 0; i < count; i++) {
        fputs("<Object><Key>", out);
        put_escaped(out, keys[i]);
        fputs("</Key></Object>", out);
    }
    fputs("</Delete>", out);
    if (fclose(out)) {
        free(body);
        PD_FAIL(err, PD_NO_MEMORY, "deleting objects in s3://%s", b->name);
    }
    struct bucket_call call = {.method = "POST", .action = "s3:DeleteObject", .key = "", .body = body, .body_bytes = bytes};
    struct pd_http_response response;
    call_query(&call, "delete", "");
    call_checksum(b, &call, pd_crc32(0, body, bytes), checksum);
    pd_status st = bucket_run(b, &call, &response, NULL, err);
    free(body);
    PD_TRY(st);
    st = pd_answer_deleted_parse(response.text ? response.text : "", response.text_bytes, err);
    pd_http_response_deinit(&response);
    return st ? pd_error_context(err, st, "s3://%s", b->name) : PD_OK;
}

pd_status pd_bucket_delete_many(struct pd_bucket *b, const char *const *keys, uint32_t count, struct pd_error *err)
{
    PD_CHECK(count <= PD_BUCKET_DELETE_MAX);
    struct pd_error own = {0};
    const pd_status st = count > 1 ? delete_at_once(b, keys, count, &own) : PD_UNSUPPORTED;
    if (!st || st == PD_STOPPED || st == PD_NO_MEMORY) return pd_error_pass(err, st, &own);
    for (uint32_t i = 0; i < count; i++)
        PD_TRY(pd_bucket_delete(b, keys[i], err));
    return PD_OK;
}

pd_status pd_bucket_upload_begin(struct pd_bucket *b, const char *key, char ret_id[PD_UPLOAD_ID_MAX], struct pd_error *err)
{
    struct bucket_call call = {.method = "POST", .action = "s3:PutObject", .key = key};
    struct pd_http_response response;
    call_query(&call, "uploads", "");
    if (b->dialect == &pd_sign_aws) call_header(&call, "x-amz-checksum-algorithm", "CRC32");
    PD_TRY(bucket_run(b, &call, &response, NULL, err));
    const pd_status st = pd_answer_upload_id_parse(response.text ? response.text : "", response.text_bytes, ret_id, err);
    pd_http_response_deinit(&response);
    return st ? pd_error_context(err, st, "s3://%s/%s", b->name, key) : PD_OK;
}

pd_status pd_bucket_upload_part(struct pd_bucket *b, const char *key, const char *id, uint32_t number, const void *data,
                                uint64_t bytes, uint32_t crc, struct pd_uploaded_part *ret, struct pd_error *err)
{
    struct bucket_call call = {.method = "PUT", .action = "s3:PutObject", .key = key, .body = data, .body_bytes = bytes};
    char checksum[32], part[16];
    snprintf(part, sizeof part, "%" PRIu32, number);
    call_query(&call, "partNumber", part);
    call_query(&call, "uploadId", id);
    call_checksum(b, &call, crc, checksum);
    struct pd_http_response response;
    PD_TRY(bucket_run(b, &call, &response, NULL, err));
    memcpy(ret->etag, response.etag, sizeof ret->etag);
    pd_http_response_deinit(&response);
    snprintf(ret->checksum, sizeof ret->checksum, "%.15s", b->dialect == &pd_sign_aws ? checksum : "");
    if (!ret->etag[0] || strpbrk(ret->etag, "<>&"))
        PD_FAIL(err, PD_CORRUPT, "s3://%s/%s: the server sent no ETag for a part", b->name, key);
    return PD_OK;
}

static char *complete_body(const struct pd_uploaded_part *parts, uint32_t count)
{
    char *body = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&body, &bytes);
    if (!out) return NULL;
    fputs("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">", out);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(out, "<Part><PartNumber>%" PRIu32 "</PartNumber><ETag>%s</ETag>", i + 1, parts[i].etag);
        if (parts[i].checksum[0]) fprintf(out, "<ChecksumCRC32>%s</ChecksumCRC32>", parts[i].checksum);
        fputs("</Part>", out);
    }
    fputs("</CompleteMultipartUpload>", out);
    if (fclose(out) == 0) return body;
    free(body);
    return NULL;
}

/* If the first try completed the upload but the connection broke, a retry finds no such upload. Names are used only once, so
 * an object with this name is ours. */
pd_status pd_bucket_upload_complete(struct pd_bucket *b, const char *key, const char *id,
                                    const struct pd_uploaded_part *parts, uint32_t count, struct pd_error *err)
{
    char *body = complete_body(parts, count);
    if (!body) PD_FAIL(err, PD_NO_MEMORY, "completing s3://%s/%s", b->name, key);
    struct bucket_call call = {
        .method = "POST", .action = "s3:PutObject", .key = key, .body = body, .body_bytes = strlen(body)};
    struct pd_http_response response;
    struct pd_error own = {0};
    struct pd_object object;
    uint32_t tries = 0;
    call_query(&call, "uploadId", id);
    pd_status st = bucket_run(b, &call, &response, &tries, &own);
    free(body);
    if (!st) pd_http_response_deinit(&response);
    if (st == PD_NOT_FOUND && tries > 1 && pd_bucket_head(b, key, &object, NULL) == PD_OK) st = PD_OK;
    return pd_error_pass(err, st, &own);
}

pd_status pd_bucket_upload_abort(struct pd_bucket *b, const char *key, const char *id, struct pd_error *err)
{
    struct bucket_call call = {.method = "DELETE", .action = "s3:AbortMultipartUpload", .key = key};
    struct pd_error own = {0};
    call_query(&call, "uploadId", id);
    const pd_status st = bucket_do(b, &call, &own);
    return st == PD_NOT_FOUND ? PD_OK : pd_error_pass(err, st, &own);
}

pd_status pd_bucket_uploads(struct pd_bucket *b, const char *prefix, pd_bucket_uploading uploading, void *context,
                            struct pd_error *err)
{
    char key[PD_OBJECT_KEY_MAX + 1] = "", id[PD_UPLOAD_ID_MAX] = "";
    do {
        struct bucket_call call = {.method = "GET", .action = "s3:ListBucketMultipartUploads", .key = ""};
        struct pd_http_response response;
        call_query(&call, "uploads", "");
        call_query(&call, "prefix", prefix);
        if (key[0]) call_query(&call, "key-marker", key);
        if (key[0] && id[0]) call_query(&call, "upload-id-marker", id);
        PD_TRY(bucket_run(b, &call, &response, NULL, err));
        const pd_status st = pd_answer_uploads_parse(response.text ? response.text : "", response.text_bytes, uploading,
                                                     context, key, id, err);
        pd_http_response_deinit(&response);
        if (st) return pd_error_context(err, st, "s3://%s/%s", b->name, prefix);
    } while (key[0]);
    return PD_OK;
}
