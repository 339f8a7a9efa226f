/* Parses the server's XML answers. The parsers do no I/O: bytes in, values or an error out. */
#pragma once

#include "ckpt/base/status.h"
#include "ckpt/objects/bucket.h"
#include "ckpt/objects/url.h"

struct pd_answer_error { /* <Error> */
    char code[64], message[256], region[64];
};
/* Leaves *ret empty if the text is not an <Error>. */
void pd_answer_error_parse(const char *text, size_t bytes, struct pd_answer_error *ret);

/* Parses one page of ListObjectsV2.   ret_next   continuation token of the next page; "" on the last page */
#define PD_ANSWER_TOKEN_MAX 2048u
PD_MUST_USE pd_status pd_answer_listing_parse(const char *text, size_t bytes, pd_bucket_listed listed, void *context,
                                              char ret_next[PD_ANSWER_TOKEN_MAX], struct pd_error *err);
/* Parses one page of ListMultipartUploads.   ret_next   key and upload ID of where the next page begins; "" on the last */
PD_MUST_USE pd_status pd_answer_uploads_parse(const char *text, size_t bytes, pd_bucket_uploading uploading, void *context,
                                              char ret_next_key[PD_OBJECT_KEY_MAX + 1], char ret_next_id[PD_UPLOAD_ID_MAX],
                                              struct pd_error *err);
/* Parses the answer to DeleteObjects.   errors  PD_IO: a key was not deleted; sys_errno EACCES: no permission */
PD_MUST_USE pd_status pd_answer_deleted_parse(const char *text, size_t bytes, struct pd_error *err);
/* <InitiateMultipartUploadResult> */
PD_MUST_USE pd_status pd_answer_upload_id_parse(const char *text, size_t bytes, char ret_id[PD_UPLOAD_ID_MAX],
                                                struct pd_error *err);
