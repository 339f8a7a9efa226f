#include "ckpt/objects/answers.h"
#include "ckpt/objects/xml.h"

#include "ckpt/base/parse.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Returns false if `text` does not fit. */
static bool answer_copy(char *to, size_t to_bytes, const char *text)
{
    const size_t bytes = strlen(text);
    if (bytes >= to_bytes) return false;
    memcpy(to, text, bytes + 1);
    return true;
}

static pd_status error_element(void *context, const char *path, const char *text, struct pd_error *err)
{
    struct pd_answer_error *e = context;
    (void)err;
    if (strcmp(path, "Error/Code") == 0) snprintf(e->code, sizeof e->code, "%s", text);
    if (strcmp(path, "Error/Message") == 0) snprintf(e->message, sizeof e->message, "%s", text);
    if (strcmp(path, "Error/Region") == 0) snprintf(e->region, sizeof e->region, "%s", text);
    return PD_OK;
}

void pd_answer_error_parse(const char *text, size_t bytes, struct pd_answer_error *ret)
{
    *ret = (struct pd_answer_error){.code = ""};
    if (pd_xml_parse("", text, bytes, error_element, ret, NULL)) *ret = (struct pd_answer_error){.code = ""};
}

struct listing_reader {
    pd_bucket_listed listed;
    void *context;
    bool is_truncated, is_listing;
    uint64_t bytes;
    char key[PD_OBJECT_KEY_MAX + 2], next[PD_ANSWER_TOKEN_MAX]; /* one more byte for the slash of a prefix */
};

static pd_status listing_element(void *context, const char *path, const char *text, struct pd_error *err)
{
    static const char root[] = "ListBucketResult";
    struct listing_reader *r = context;
    if (strncmp(path, root, sizeof root - 1) != 0) return PD_OK;
    r->is_listing = true;
    path += sizeof root - 1;
    bool fits = true;
    if (strcmp(path, "/IsTruncated") == 0) {
        r->is_truncated = strcmp(text, "true") == 0;
    } else if (strcmp(path, "/NextContinuationToken") == 0) {
        fits = answer_copy(r->next, sizeof r->next, text);
    } else if (strcmp(path, "/Contents/Key") == 0) {
        fits = answer_copy(r->key, sizeof r->key, text);
    } else if (strcmp(path, "/Contents/Size") == 0) {
        fits = pd_parse_u64(text, &r->bytes);
    } else if (strcmp(path, "/Contents") == 0) {
        PD_TRY(r->listed(r->context, r->key, r->bytes, false, err));
        r->key[0] = '\0';
        r->bytes = 0;
    } else if (strcmp(path, "/CommonPrefixes/Prefix") == 0) {
        fits = answer_copy(r->key, sizeof r->key, text);
        const size_t length = strlen(r->key);
        if (length && r->key[length - 1] == '/') r->key[length - 1] = '\0';
        if (fits) PD_TRY(r->listed(r->context, r->key, 0, true, err));
    }
    if (!fits) PD_FAIL(err, PD_CORRUPT, "the server sent a listing with an invalid %s", path + 1);
    return PD_OK;
}

pd_status pd_answer_listing_parse(const char *text, size_t bytes, pd_bucket_listed listed, void *context,
                                  char ret_next[PD_ANSWER_TOKEN_MAX], struct pd_error *err)
{
    struct listing_reader r = {.listed = listed, .context = context};
    PD_TRY(pd_xml_parse("the listing", text, bytes, listing_element, &r, err));
    if (!r.is_listing)
        PD_FAIL(err, PD_CORRUPT,
                "the answer is not a listing: check that AWS_ENDPOINT_URL_S3 is the address of an object store");
    if (r.is_truncated && !r.next[0])
        PD_FAIL(err, PD_CORRUPT, "the server sent a partial listing without a NextContinuationToken");
    memcpy(ret_next, r.is_truncated ? r.next : "", r.is_truncated ? strlen(r.next) + 1 : 1);
    return PD_OK;
}

struct uploads_reader {
    pd_bucket_uploading uploading;
    void *context;
    bool is_truncated, is_listing;
    char key[PD_OBJECT_KEY_MAX + 1], id[PD_UPLOAD_ID_MAX], next_key[PD_OBJECT_KEY_MAX + 1], next_id[PD_UPLOAD_ID_MAX];
};

static pd_status uploads_element(void *context, const char *path, const char *text, struct pd_error *err)
{
    static const char root[] = "ListMultipartUploadsResult";
    struct uploads_reader *r = context;
    if (strncmp(path, root, sizeof root - 1) != 0) return PD_OK;
    r->is_listing = true;
    path += sizeof root - 1;
    const struct {
        const char *path;
        char *to;
        size_t bytes;
    } texts[] = {{"/Upload/Key", r->key, sizeof r->key},
                 {"/Upload/UploadId", r->id, sizeof r->id},
                 {"/NextKeyMarker", r->next_key, sizeof r->next_key},
                 {"/NextUploadIdMarker", r->next_id, sizeof r->next_id}};
    for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(path, texts[i].path) == 0 && !answer_copy(texts[i].to, texts[i].bytes, text))
            PD_FAIL(err, PD_CORRUPT, "the server sent a listing of uploads with a %s that is too long", path + 1);
    if (strcmp(path, "/IsTruncated") == 0) r->is_truncated = strcmp(text, "true") == 0;
    if (strcmp(path, "/Upload") != 0) return PD_OK;
    return r->uploading(r->context, r->key, r->id, err);
}

pd_status pd_answer_uploads_parse(const char *text, size_t bytes, pd_bucket_uploading uploading, void *context,
                                  char ret_next_key[PD_OBJECT_KEY_MAX + 1], char ret_next_id[PD_UPLOAD_ID_MAX],
                                  struct pd_error *err)
{
    struct uploads_reader r = {.uploading = uploading, .context = context};
    PD_TRY(pd_xml_parse("the listing of uploads", text, bytes, uploads_element, &r, err));
    if (!r.is_listing) PD_FAIL(err, PD_CORRUPT, "the answer is not a listing of uploads");
    if (r.is_truncated && !r.next_key[0])
        PD_FAIL(err, PD_CORRUPT, "the server sent a partial listing of uploads without a NextKeyMarker");
    if (!r.is_truncated) r.next_key[0] = r.next_id[0] = '\0';
    memcpy(ret_next_key, r.next_key, sizeof r.next_key);
    memcpy(ret_next_id, r.next_id, sizeof r.next_id);
    return PD_OK;
}

struct deleted_reader {
    bool is_answer;
    char key[PD_OBJECT_KEY_MAX + 1], code[64], message[256];
};

static pd_status deleted_element(void *context, const char *path, const char *text, struct pd_error *err)
{
    static const char root[] = "DeleteResult";
    struct deleted_reader *r = context;
    if (strncmp(path, root, sizeof root - 1) != 0) return PD_OK;
    r->is_answer = true;
    path += sizeof root - 1;
    if (strcmp(path, "/Error/Key") == 0) snprintf(r->key, sizeof r->key, "%s", text);
    if (strcmp(path, "/Error/Code") == 0) snprintf(r->code, sizeof r->code, "%s", text);
    if (strcmp(path, "/Error/Message") == 0) snprintf(r->message, sizeof r->message, "%s", text);
    if (strcmp(path, "/Error") != 0 || strcmp(r->code, "NoSuchKey") == 0) return PD_OK;
    pd_error_set(err, PD_IO, PD_WHERE, 0, "%s was not deleted: %s%s%.200s", r->key, r->code, r->message[0] ? ": " : "",
                 r->message);
    if (strcmp(r->code, "AccessDenied") == 0) pd_error_set_errno(err, EACCES);
    return PD_IO;
}

pd_status pd_answer_deleted_parse(const char *text, size_t bytes, struct pd_error *err)
{
    struct deleted_reader r = {.is_answer = false};
    PD_TRY(pd_xml_parse("the answer to a deletion", text, bytes, deleted_element, &r, err));
    if (!r.is_answer) PD_FAIL(err, PD_CORRUPT, "the answer to a deletion does not say what was deleted");
    return PD_OK;
}

struct id_reader {
    char *id;
    bool fits;
};

static pd_status id_element(void *context, const char *path, const char *text, struct pd_error *err)
{
    struct id_reader *r = context;
    const char *below = strchr(path, '/'); /* servers name the root in different ways: InitiateMultipartUpload(Result) */
    (void)err;
    if (below && strcmp(below, "/UploadId") == 0) r->fits = answer_copy(r->id, PD_UPLOAD_ID_MAX, text);
    return PD_OK;
}

pd_status pd_answer_upload_id_parse(const char *text, size_t bytes, char ret_id[PD_UPLOAD_ID_MAX], struct pd_error *err)
{
    char id[PD_UPLOAD_ID_MAX] = "";
    struct id_reader r = {id, false};
    PD_TRY(pd_xml_parse("the answer", text, bytes, id_element, &r, err));
    if (!r.fits || !id[0]) PD_FAIL(err, PD_CORRUPT, "the server began an upload, but its answer has no UploadId");
    memcpy(ret_id, id, sizeof id);
    return PD_OK;
}
