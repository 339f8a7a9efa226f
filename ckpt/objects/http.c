#include "ckpt/objects/http.h"

#include "ckpt/base/parse.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HTTP_CONNECT_S 10L
#define HTTP_STALL_S 20L /* a transfer below 1 byte/s for this long fails */
#define HTTP_IDLE_MAX 64u

struct pd_http {
    pthread_mutex_t mutex; /* guards the fields below */
    CURL *idle[HTTP_IDLE_MAX];
    uint32_t idle_count;
};

/* State of a handle's callbacks, on the stack of the thread that runs the request. */
struct http_transfer {
    const struct pd_http_request *request;
    struct pd_http_response *response;
    uint64_t sent;
    uint32_t into_at; /* index of the buffer that gets the next byte */
    uint64_t into_offset;
    const char *refusal; /* why a callback ended the transfer; NULL: none did */
    bool has_no_memory;
};

static void http_init(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

pd_status pd_http_new(struct pd_http **ret_http, struct pd_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, http_init);
    struct pd_http *http = calloc(1, sizeof *http);
    if (!http) PD_FAIL(err, PD_NO_MEMORY, "opening HTTP connections");
    pthread_mutex_init(&http->mutex, NULL);
    *ret_http = http;
    return PD_OK;
}

void pd_http_free(struct pd_http *http)
{
    if (!http) return;
    for (uint32_t i = 0; i < http->idle_count; i++)
        curl_easy_cleanup(http->idle[i]);
    pthread_mutex_destroy(&http->mutex);
    free(http);
}

static CURL *http_handle_acquire(struct pd_http *http)
{
    pthread_mutex_lock(&http->mutex);
    CURL *handle = http->idle_count ? http->idle[--http->idle_count] : NULL;
    pthread_mutex_unlock(&http->mutex);
    return handle ? handle : curl_easy_init();
}

/* The connection stays open for the next request. */
static void http_handle_release(struct pd_http *http, CURL *handle)
{
    curl_easy_reset(handle);
    pthread_mutex_lock(&http->mutex);
    const bool is_kept = http->idle_count < HTTP_IDLE_MAX;
    if (is_kept) http->idle[http->idle_count++] = handle;
    pthread_mutex_unlock(&http->mutex);
    if (!is_kept) curl_easy_cleanup(handle);
}

static size_t http_send(char *buffer, size_t size, size_t count, void *context)
{
    struct http_transfer *t = context;
    const uint64_t left = t->request->body_bytes - t->sent;
    const size_t bytes = left < size * count ? (size_t)left : size * count;
    memcpy(buffer, (const char *)t->request->body + t->sent, bytes);
    t->sent += bytes;
    return bytes;
}

/* libcurl resends the body if a reused connection turns out to be closed. */
static int http_rewind(void *context, curl_off_t offset, int origin)
{
    struct http_transfer *t = context;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > t->request->body_bytes) return CURL_SEEKFUNC_FAIL;
    t->sent = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

static bool http_receive_text(struct http_transfer *t, const char *data, size_t bytes)
{
    struct pd_http_response *r = t->response;
    if (r->text_bytes + bytes > PD_HTTP_TEXT_MAX) {
        t->refusal = "the answer is too long";
        return false;
    }
    char *text = realloc(r->text, r->text_bytes + bytes + 1);
    if (!text) {
        t->has_no_memory = true;
        return false;
    }
    memcpy(text + r->text_bytes, data, bytes);
    r->text = text;
    r->text_bytes += bytes;
    text[r->text_bytes] = '\0';
    return true;
}

static size_t http_receive(char *data, size_t size, size_t count, void *context)
{
    struct http_transfer *t = context;
    const struct pd_http_request *request = t->request;
    size_t left = size * count;
    if (!request->into || (t->response->code != 200 && t->response->code != 206))
        return http_receive_text(t, data, left) ? size * count : 0;
    while (left) {
        if (t->into_at == request->into_count) {
            t->refusal = "the answer has more bytes than requested";
            return 0;
        }
        const struct iovec *piece = &request->into[t->into_at];
        const uint64_t space = piece->iov_len - t->into_offset, bytes = space < left ? space : left;
        memcpy((char *)piece->iov_base + t->into_offset, data, bytes);
        data += bytes;
        left -= bytes;
        t->response->moved += bytes;
        t->into_offset += bytes;
        if (t->into_offset == piece->iov_len) {
            t->into_at++;
            t->into_offset = 0;
        }
    }
    return size * count;
}

/* If `line` is header `name`, copies its value without surrounding blanks, cut to ret_bytes. */
static bool http_header(const char *line, size_t bytes, const char *name, char *ret, size_t ret_bytes)
{
    const size_t length = strlen(name);
    if (bytes <= length || strncasecmp(line, name, length) != 0 || line[length] != ':') return false;
    const char *value = line + length + 1, *end = line + bytes;
    while (value < end && strchr(" \t\r\n", *value))
        value++;
    while (end > value && strchr(" \t\r\n", end[-1]))
        end--;
    snprintf(ret, ret_bytes, "%.*s", (int)(end - value), value);
    return true;
}

static bool http_sum(const char *line, size_t bytes, struct pd_object_sum *ret)
{
    static const struct {
        const char *name, *prefix;
        enum pd_object_sum_kind kind;
    } sums[] = {{"x-amz-checksum-crc32", "", PD_OBJECT_SUM_CRC32},
                {"x-amz-checksum-crc32c", "", PD_OBJECT_SUM_CRC32C},
                {"x-amz-checksum-crc64nvme", "", PD_OBJECT_SUM_CRC64NVME},
                {"x-goog-hash", "crc32c=", PD_OBJECT_SUM_CRC32C}}; /* crc32c=n03x6A==,md5=Ojk9c3dhfxgoKVVHYwFbHQ== */
    char value[128];
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        if (!http_header(line, bytes, sums[i].name, value, sizeof value)) continue;
        const size_t skip = strlen(sums[i].prefix);
        if (strncmp(value, sums[i].prefix, skip) != 0) return true;
        value[skip + strcspn(value + skip, ",")] = '\0';
        (void)pd_object_sum_parse(sums[i].kind, value + skip, ret);
        return true;
    }
    return false;
}

/* Content-Range: bytes 0-99/1000 */
static void http_range(const char *value, struct pd_http_response *r)
{
    char begin[24], total[24];
    uint64_t first = 0, bytes = 0;
    if (sscanf(value, "bytes %23[0-9]-%*[0-9]/%23[0-9]", begin, total) == 2 && pd_parse_u64(begin, &first) &&
        pd_parse_u64(total, &bytes)) {
        r->range_begin = first;
        r->object_bytes = bytes;
    }
}

static size_t http_receive_header(char *line, size_t size, size_t count, void *context)
{
    struct http_transfer *t = context;
    struct pd_http_response *r = t->response;
    const size_t bytes = size * count;
    char value[128];
    uint64_t number = 0;
    if (bytes > 9 && strncmp(line, "HTTP/", 5) == 0) { /* another response follows "100 Continue" */
        const char *space = memchr(line, ' ', bytes);
        *r = (struct pd_http_response){.range_begin = UINT64_MAX, .text = r->text, .text_bytes = r->text_bytes};
        r->code = space ? (int)strtol(space, NULL, 10) : 0;
    } else if (http_header(line, bytes, "etag", r->etag, sizeof r->etag) ||
               http_header(line, bytes, "x-amz-bucket-region", r->region, sizeof r->region) ||
               http_sum(line, bytes, &r->sum)) {
        return bytes;
    } else if (http_header(line, bytes, "content-length", value, sizeof value)) {
        r->has_length = pd_parse_u64(value, &r->length);
    } else if (http_header(line, bytes, "x-amz-checksum-type", value, sizeof value)) {
        r->sum_is_full_object = strcmp(value, "FULL_OBJECT") == 0;
    } else if (http_header(line, bytes, "content-range", value, sizeof value)) {
        http_range(value, r);
    } else if (http_header(line, bytes, "date", value, sizeof value)) {
        const time_t date = curl_getdate(value, NULL);
        r->date_s = date > 0 ? (uint64_t)date : 0;
    } else if (http_header(line, bytes, "retry-after", value, sizeof value) && pd_parse_u64(value, &number)) {
        r->retry_after_s = number < 60 ? (uint32_t)number : 60;
    }
    return bytes;
}

static int http_progress(void *context, curl_off_t total, curl_off_t now, curl_off_t upload_total, curl_off_t upload_now)
{
    (void)total, (void)now, (void)upload_total, (void)upload_now;
    const struct http_transfer *t = context;
    return t->request->stop && *t->request->stop;
}

static struct curl_slist *http_header_list(const char *lines, bool *ret_is_whole)
{
    struct curl_slist *list = NULL;
    *ret_is_whole = true;
    char line[9216];
    for (const char *at = lines; at && *at; at += strcspn(at, "\n") + 1) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        struct curl_slist *longer = curl_slist_append(list, line);
        *ret_is_whole = *ret_is_whole && longer;
        if (longer) list = longer;
    }
    /* Do not wait for a "100 Continue", which many servers never send, and do not let libcurl declare a POST as a form. */
    for (const char *const *off = (const char *const[]){"Expect:", "Content-Type:", NULL}; *off; off++) {
        struct curl_slist *longer = curl_slist_append(list, *off);
        *ret_is_whole = *ret_is_whole && longer;
        if (longer) list = longer;
    }
    return list;
}

static void http_set(CURL *handle, struct http_transfer *t, struct curl_slist *headers, char *text)
{
    const struct pd_http_request *request = t->request;
    const bool sends = strcmp(request->method, "PUT") == 0, posts = strcmp(request->method, "POST") == 0;
    curl_easy_setopt(handle, CURLOPT_URL, request->url);
    curl_easy_setopt(handle, CURLOPT_PATH_AS_IS, 1L); /* send the path as signed */
    curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(handle, CURLOPT_HTTP_VERSION,
                     (long)CURL_HTTP_VERSION_1_1); /* one connection per request is faster here */
    curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, text);
    curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, HTTP_CONNECT_S);
    curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, HTTP_STALL_S);
    curl_easy_setopt(handle, CURLOPT_TIMEOUT, (long)request->timeout_s);
    curl_easy_setopt(handle, CURLOPT_BUFFERSIZE, 512L << 10);
    curl_easy_setopt(handle, CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
    curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, http_receive_header);
    curl_easy_setopt(handle, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, http_receive);
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, http_progress);
    curl_easy_setopt(handle, CURLOPT_XFERINFODATA, t);
    if (request->ignores_proxy) curl_easy_setopt(handle, CURLOPT_PROXY, "");
    const char *bundle = getenv("AWS_CA_BUNDLE");
    if (bundle && *bundle) curl_easy_setopt(handle, CURLOPT_CAINFO, bundle);
    if (sends || posts) {
        curl_easy_setopt(handle, posts ? CURLOPT_POST : CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(handle, posts ? CURLOPT_POSTFIELDSIZE_LARGE : CURLOPT_INFILESIZE_LARGE,
                         (curl_off_t)request->body_bytes);
        curl_easy_setopt(handle, CURLOPT_READFUNCTION, http_send);
        curl_easy_setopt(handle, CURLOPT_READDATA, t);
        curl_easy_setopt(handle, CURLOPT_SEEKFUNCTION, http_rewind);
        curl_easy_setopt(handle, CURLOPT_SEEKDATA, t);
    } else if (strcmp(request->method, "HEAD") == 0) {
        curl_easy_setopt(handle, CURLOPT_NOBODY, 1L);
    } else if (strcmp(request->method, "GET") != 0) {
        curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request->method);
    }
}

static int http_errno(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
        return ENETUNREACH;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return EPROTO;
    case CURLE_OPERATION_TIMEDOUT:
        return ETIMEDOUT;
    default:
        return ECONNRESET;
    }
}

/* Names only the server in the message: the query may be confidential. */
static pd_status http_failure(const struct http_transfer *t, CURLcode code, const char *text, struct pd_error *err)
{
    const char *url = t->request->url, *host = strstr(url, "://");
    const int length = (int)((host ? host + 3 - url : 0) + (int)strcspn(host ? host + 3 : url, "/?"));
    if (t->has_no_memory || code == CURLE_OUT_OF_MEMORY) PD_FAIL(err, PD_NO_MEMORY, "%.*s", length, url);
    if (t->refusal) PD_FAIL(err, PD_CORRUPT, "%.*s: %s", length, url, t->refusal);
    if (code == CURLE_ABORTED_BY_CALLBACK) PD_FAIL(err, PD_STOPPED, "%.*s: the request was stopped", length, url);
    const pd_status st =
        pd_error_set(err, PD_IO, PD_WHERE, 0, "%.*s: %s", length, url, text[0] ? text : curl_easy_strerror(code));
    pd_error_set_errno(err, http_errno(code));
    return st;
}

/* A connection that the server closed raises SIGPIPE in this thread, whose program need not know of connections. */
static void hold_sigpipe(sigset_t *ret_before, bool *ret_was_pending)
{
    sigset_t mask, pending;
    sigemptyset(&mask);
    sigaddset(&mask, SIGPIPE);
    sigpending(&pending);
    *ret_was_pending = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &mask, ret_before);
}

static void let_sigpipe(const sigset_t *before, bool was_pending)
{
    static const struct timespec at_once = {0, 0};
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGPIPE);
    while (!was_pending && sigtimedwait(&mask, NULL, &at_once) < 0 && errno == EINTR)
        continue;
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

pd_status pd_http_run(struct pd_http *http, const struct pd_http_request *request, struct pd_http_response *ret,
                      struct pd_error *err)
{
    char text[CURL_ERROR_SIZE] = "";
    struct http_transfer t = {.request = request, .response = ret};
    *ret = (struct pd_http_response){.range_begin = UINT64_MAX};
    CURL *handle = http_handle_acquire(http);
    bool is_whole = false;
    struct curl_slist *headers = handle ? http_header_list(request->headers, &is_whole) : NULL;
    CURLcode code = CURLE_OUT_OF_MEMORY;
    if (is_whole) {
        sigset_t before;
        bool was_pending;
        http_set(handle, &t, headers, text);
        hold_sigpipe(&before, &was_pending);
        code = curl_easy_perform(handle);
        let_sigpipe(&before, was_pending);
    }
    if (handle) http_handle_release(http, handle);
    curl_slist_free_all(headers);
    return code == CURLE_OK ? PD_OK : http_failure(&t, code, text, err);
}

void pd_http_response_deinit(struct pd_http_response *it)
{
    free(it->text);
    it->text = NULL;
}
