#include "ckpt/objects/sign.h"
#include "ckpt/objects/url.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const struct pd_sign_dialect pd_sign_aws = {
    .algorithm = "AWS4-HMAC-SHA256",
    .key_prefix = "AWS4",
    .terminator = "aws4_request",
    .service = "s3",
    .date_header = "x-amz-date",
    .hash_header = "x-amz-content-sha256",
    .token_header = "x-amz-security-token",
    .absent_header = "if-none-match",
    .absent_value = "*",
};
const struct pd_sign_dialect pd_sign_google = {
    .algorithm = "GOOG4-HMAC-SHA256",
    .key_prefix = "GOOG4",
    .terminator = "goog4_request",
    .service = "storage",
    .date_header = "x-goog-date",
    .hash_header = "x-goog-content-sha256",
    .token_header = "x-goog-security-token",
    .absent_header = "x-goog-if-generation-match",
    .absent_value = "0",
};

#define SHA256_BYTES 32u

static void hex(const unsigned char *digest, char ret[PD_SHA256_HEX_BYTES])
{
    for (unsigned i = 0; i < SHA256_BYTES; i++)
        snprintf(ret + 2 * (size_t)i, 3, "%02x", digest[i]);
}

void pd_sha256_hex(const void *data, size_t bytes, char ret[PD_SHA256_HEX_BYTES])
{
    unsigned char digest[SHA256_BYTES];
    PD_CHECK(EVP_Digest(data, bytes, digest, NULL, EVP_sha256(), NULL) == 1);
    hex(digest, ret);
}

static void sign_hmac(const void *key, size_t key_bytes, const char *text, unsigned char ret[SHA256_BYTES])
{
    PD_CHECK(HMAC(EVP_sha256(), key, (int)key_bytes, (const unsigned char *)text, strlen(text), ret, NULL));
}

static int pair_compare(const void *a, const void *b)
{
    const struct pd_sign_pair *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    return order ? order : strcmp(x->value, y->value);
}

static void free_pairs(struct pd_sign_pair *pairs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        free((char *)pairs[i].name);
        free((char *)pairs[i].value);
    }
}

static char *sign_encoded(const char *text)
{
    char *encoded = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&encoded, &bytes);
    if (!out) return NULL;
    pd_url_encode(out, text, false);
    if (fclose(out) == 0) return encoded;
    free(encoded);
    return NULL;
}

/* Sorts by the encoded form: "%2F" comes before "-", but "/" after it. */
static pd_status sign_query(FILE *out, const struct pd_sign_request *request, struct pd_error *err)
{
    struct pd_sign_pair pairs[PD_SIGN_PAIRS_MAX];
    bool has_all = true;
    for (uint32_t i = 0; i < request->query_count; i++) {
        pairs[i] = (struct pd_sign_pair){sign_encoded(request->query[i].name), sign_encoded(request->query[i].value)};
        has_all = has_all && pairs[i].name && pairs[i].value;
    }
    if (has_all) qsort(pairs, request->query_count, sizeof *pairs, pair_compare);
    for (uint32_t i = 0; has_all && i < request->query_count; i++)
        fprintf(out, "%s%s=%s", i ? "&" : "", pairs[i].name, pairs[i].value);
    free_pairs(pairs, request->query_count);
    return PD_ALLOCATED(has_all, err, "signing a request");
}

/* All headers to sign, sorted: the request's own and the ones every request has. */
static uint32_t sign_headers(const struct pd_sign_request *request, const char *token, const char *date, const char *hash,
                             struct pd_sign_pair ret[PD_SIGN_PAIRS_MAX + 4])
{
    uint32_t count = request->header_count;
    memcpy(ret, request->headers, count * sizeof *ret);
    ret[count++] = (struct pd_sign_pair){"host", request->host};
    ret[count++] = (struct pd_sign_pair){request->dialect->date_header, date};
    ret[count++] = (struct pd_sign_pair){request->dialect->hash_header, hash};
    if (token[0]) ret[count++] = (struct pd_sign_pair){request->dialect->token_header, token};
    qsort(ret, count, sizeof *ret, pair_compare);
    return count;
}

static void sign_names(FILE *out, const struct pd_sign_pair *headers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        fprintf(out, "%s%s", i ? ";" : "", headers[i].name);
}

/* Hashes the canonical request. */
static pd_status sign_hash(const struct pd_sign_request *request, const char *target, const struct pd_sign_pair *headers,
                           uint32_t count, const char *payload, char ret[PD_SHA256_HEX_BYTES], struct pd_error *err)
{
    const char *query = strchr(target, '?');
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) PD_FAIL(err, PD_NO_MEMORY, "signing a request");
    fprintf(out, "%s\n%.*s\n%s\n", request->method, (int)strcspn(target, "?"), target, query ? query + 1 : "");
    for (uint32_t i = 0; i < count; i++)
        fprintf(out, "%s:%s\n", headers[i].name, headers[i].value);
    fputc('\n', out);
    sign_names(out, headers, count);
    fprintf(out, "\n%s", payload);
    const bool is_whole = fclose(out) == 0;
    if (is_whole) pd_sha256_hex(text, bytes, ret);
    free(text);
    return PD_ALLOCATED(is_whole, err, "signing a request");
}

static void sign_with(const struct pd_sign_request *request, const struct pd_sign_keys *keys, const char *date,
                      const char *scope, const char *hash, char ret[PD_SHA256_HEX_BYTES])
{
    const struct pd_sign_dialect *dialect = request->dialect;
    char secret[256], text[512];
    unsigned char key[SHA256_BYTES];
    snprintf(secret, sizeof secret, "%s%s", dialect->key_prefix, keys->secret);
    snprintf(text, sizeof text, "%.8s", date);
    sign_hmac(secret, strlen(secret), text, key);
    sign_hmac(key, sizeof key, request->region, key);
    sign_hmac(key, sizeof key, request->service ? request->service : dialect->service, key);
    sign_hmac(key, sizeof key, dialect->terminator, key);
    snprintf(text, sizeof text, "%s\n%s\n%s\n%s", dialect->algorithm, date, scope, hash);
    sign_hmac(key, sizeof key, text, key);
    hex(key, ret);
    OPENSSL_cleanse(secret, sizeof secret);
    OPENSSL_cleanse(key, sizeof key);
}

static pd_status sign_target(const struct pd_sign_request *request, char **ret, struct pd_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) PD_FAIL(err, PD_NO_MEMORY, "signing a request");
    pd_url_encode(out, request->path, true);
    if (request->query_count) fputc('?', out);
    pd_status st = sign_query(out, request, err);
    const bool is_whole = fclose(out) == 0;
    if (!st) st = PD_ALLOCATED(is_whole, err, "signing a request");
    if (st)
        free(text);
    else
        *ret = text;
    return st;
}

pd_status pd_sign(const struct pd_sign_request *request, const struct pd_sign_keys *keys, uint64_t wall_s,
                  struct pd_signed *ret, struct pd_error *err)
{
    const struct pd_sign_dialect *dialect = request->dialect;
    const char *payload = request->payload_hash ? request->payload_hash : "UNSIGNED-PAYLOAD";
    char date[32], scope[192], hash[PD_SHA256_HEX_BYTES], signature[PD_SHA256_HEX_BYTES];
    struct tm utc;
    const time_t seconds = (time_t)wall_s;
    gmtime_r(&seconds, &utc);
    strftime(date, sizeof date, "%Y%m%dT%H%M%SZ", &utc);
    snprintf(scope, sizeof scope, "%.8s/%s/%s/%s", date, request->region,
             request->service ? request->service : dialect->service, dialect->terminator);

    struct pd_sign_pair headers[PD_SIGN_PAIRS_MAX + 4];
    const uint32_t count = sign_headers(request, keys->token, date, payload, headers);
    struct pd_signed made = {NULL, NULL};
    PD_TRY(sign_target(request, &made.target, err));
    pd_status st = sign_hash(request, made.target, headers, count, payload, hash, err);
    if (st) {
        pd_signed_deinit(&made);
        return st;
    }
    sign_with(request, keys, date, scope, hash, signature);

    size_t bytes = 0;
    FILE *lines = open_memstream(&made.headers, &bytes);
    if (lines) {
        for (uint32_t i = 0; i < count; i++)
            if (strcmp(headers[i].name, "host") != 0) fprintf(lines, "%s: %s\n", headers[i].name, headers[i].value);
        fprintf(lines, "authorization: %s Credential=%s/%s, SignedHeaders=", dialect->algorithm, keys->access, scope);
        sign_names(lines, headers, count);
        fprintf(lines, ", Signature=%s\n", signature);
    }
    if (!lines || fclose(lines) != 0) {
        pd_signed_deinit(&made);
        PD_FAIL(err, PD_NO_MEMORY, "signing a request");
    }
    *ret = made;
    return PD_OK;
}

void pd_signed_deinit(struct pd_signed *it)
{
    free(it->target);
    free(it->headers);
    *it = (struct pd_signed){NULL, NULL};
}
