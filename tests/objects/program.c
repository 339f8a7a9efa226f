/* Calls on a bucket, one a line of stdin, fields between tabs; each answers with a line: the status, a tab, what came or the message.
 * The first argument is the bucket. */
#include "ckpt/base/digest.h"
#include "ckpt/objects/bucket.h"
#include "ckpt/objects/probe.h"
#include "ckpt/objects/vfs.h"

#include "ckpt/base/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS_MAX 6

struct listing {
    char *text;
    size_t bytes;
    FILE *out;
};

static pd_status listed(void *context, const char *key, uint64_t bytes, bool is_directory, struct pd_error *err)
{
    (void)err;
    fprintf(((struct listing *)context)->out, "[%s%s %" PRIu64 "]", key, is_directory ? "/" : "", bytes);
    return PD_OK;
}

static pd_status uploading(void *context, const char *key, const char *id, struct pd_error *err)
{
    (void)err;
    fprintf(((struct listing *)context)->out, "[%s %s]", key, id);
    return PD_OK;
}

static uint64_t number(const char *text)
{
    uint64_t value = 0;
    PD_CHECK(pd_parse_u64(text, &value));
    return value;
}

/* In parts, whose bytes are the number of the part. */
static pd_status upload(struct pd_bucket *bucket, const char *key, uint64_t bytes, uint64_t part_bytes, struct pd_error *err)
{
    char id[PD_UPLOAD_ID_MAX];
    struct pd_uploaded_part parts[16];
    uint32_t count = 0;
    char *data = malloc(part_bytes);
    PD_TRY(PD_ALLOCATED(data, err, "uploading"));
    pd_status st = pd_bucket_upload_begin(bucket, key, id, err);
    for (uint64_t at = 0; at < bytes && !st; at += part_bytes, count++) {
        const uint64_t left = bytes - at;
        memset(data, (int)count + 1, part_bytes);
        const uint64_t length = left < part_bytes ? left : part_bytes;
        st = pd_bucket_upload_part(bucket, key, id, count + 1, data, length, pd_crc32(0, data, length), &parts[count], err);
    }
    free(data);
    if (st) return st;
    return pd_bucket_upload_complete(bucket, key, id, parts, count, err);
}

static pd_status get(struct pd_bucket *bucket, const char *key, const char *etag, uint64_t offset, uint64_t bytes, FILE *out,
                     struct pd_error *err)
{
    char *data = malloc(bytes + 1);
    PD_TRY(PD_ALLOCATED(data, err, "reading"));
    const struct iovec into[] = {{data, bytes / 2}, {data + bytes / 2, bytes - bytes / 2}};
    const pd_status st = pd_bucket_get(bucket, key, etag, offset, into + (bytes < 2), bytes < 2 ? 1 : 2, err);
    if (!st) fprintf(out, "%.*s", (int)bytes, data);
    free(data);
    return st;
}

/* The whole of an object by a queue, in `count` pieces of equal length, the last one first. Every second one begins `shared`
 * bytes before its place; every fourth ends there, where it has any. `late`: in order, the last so many after the first one
 * has come back. Prints how many failed, and what the others sum to. */
static pd_status pieces(const char *path, uint64_t bytes, uint64_t count, uint64_t shared, uint64_t late, FILE *out,
                        struct pd_error *err)
{
    struct pd_vfs *vfs = NULL;
    struct pd_file *file = NULL;
    struct pd_queue *queue = NULL;
    struct pd_transfer *transfers = calloc(count, sizeof *transfers), *sent[256], *done[256];
    char *data = malloc((bytes + shared) * count);
    uint32_t reaped = 0, ended = 0;
    uint64_t sum = 0;
    PD_CHECK(transfers && data && count <= 256);
    PD_TRY(pd_vfs_new_objects(&vfs, err));
    PD_TRY(pd_file_open(vfs, path, PD_OPEN_READ, &file, err));
    PD_TRY(pd_queue_open(vfs, NULL, 0, &queue, err));
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t before = i % 2 ? shared : 0, length = i % 4 == 3 && shared ? shared : bytes + before;
        transfers[i] = (struct pd_transfer){
            .file = file, .data = data + i * (bytes + shared), .offset = i * bytes - before, .bytes = length};
        sent[late ? i : count - 1 - i] = &transfers[i];
    }
    PD_TRY(pd_queue_submit(queue, sent, (uint32_t)(count - late), err));
    for (uint64_t left = count; left; left -= reaped, late = 0) {
        PD_TRY(pd_queue_reap(queue, done, 256, &reaped, err));
        PD_TRY(pd_queue_submit(queue, sent + count - late, (uint32_t)late, err));
        for (uint32_t i = 0; i < reaped; i++) {
            if (done[i]->status) ended++;
            for (uint64_t b = 0; !done[i]->status && b < done[i]->bytes; b++)
                sum += ((unsigned char *)done[i]->data)[b] * (done[i]->offset + b + 1);
        }
    }
    fprintf(out, "%" PRIu32 " ended, sum %" PRIu64, ended, sum);
    pd_queue_close(queue);
    pd_file_close_readonly(file);
    pd_vfs_free(vfs);
    free(transfers);
    free(data);
    return PD_OK;
}

static pd_status call(struct pd_bucket *bucket, char *const *field, struct listing *l, struct pd_error *err)
{
    const char *what = field[0], *key = field[1];
    struct pd_object object;
    if (strcmp(what, "head") == 0) {
        PD_TRY(pd_bucket_head(bucket, key, &object, err));
        fprintf(l->out, "%" PRIu64 " %s", object.bytes, object.etag);
        return PD_OK;
    }
    if (strcmp(what, "get") == 0) return get(bucket, key, NULL, number(field[2]), number(field[3]), l->out, err);
    if (strcmp(what, "pieces") == 0)
        return pieces(key, number(field[2]), number(field[3]), number(field[4]), number(field[5]), l->out, err);
    if (strcmp(what, "get-if") == 0) return get(bucket, key, field[2], 0, number(field[3]), l->out, err);
    if (strcmp(what, "put") == 0) return pd_bucket_put(bucket, key, field[2], strlen(field[2]), false, err);
    if (strcmp(what, "put-absent") == 0) return pd_bucket_put(bucket, key, field[2], strlen(field[2]), true, err);
    if (strcmp(what, "delete") == 0) return pd_bucket_delete(bucket, key, err);
    if (strcmp(what, "delete-many") == 0) {
        const char *keys[PD_BUCKET_DELETE_MAX];
        char *rest = field[1];
        uint32_t count = 0;
        while (rest && count < PD_BUCKET_DELETE_MAX)
            keys[count++] = strsep(&rest, " ");
        return pd_bucket_delete_many(bucket, keys, count, err);
    }
    if (strcmp(what, "list") == 0) return pd_bucket_list(bucket, key, false, listed, l, err);
    if (strcmp(what, "list-flat") == 0) return pd_bucket_list(bucket, key, true, listed, l, err);
    if (strcmp(what, "uploads") == 0) return pd_bucket_uploads(bucket, key, uploading, l, err);
    if (strcmp(what, "upload") == 0) return upload(bucket, key, number(field[2]), number(field[3]), err);
    if (strcmp(what, "begin") == 0) {
        char id[PD_UPLOAD_ID_MAX];
        PD_TRY(pd_bucket_upload_begin(bucket, key, id, err));
        fputs(id, l->out);
        return PD_OK;
    }
    if (strcmp(what, "probe") == 0) {
        struct pd_bucket_rates rates;
        PD_TRY(pd_bucket_probe(bucket, key, 1 << 20, &rates, err));
        fputs(rates.upload_bytes_per_second > 0 && rates.download_bytes_per_second > 0 ? "rates" : "no rates", l->out);
        return PD_OK;
    }
    if (strcmp(what, "abort") == 0) return pd_bucket_upload_abort(bucket, key, field[2], err);
    PD_FAIL(err, PD_USAGE, "unknown call %s", what);
}

int main(int argc, char **argv)
{
    struct pd_error err = {0};
    struct pd_bucket *bucket = NULL;
    PD_CHECK(argc == 2);
    if (pd_bucket_open(argv[1], NULL, &bucket, &err)) {
        printf("%s\t%s\n", pd_status_name(err.status), err.message);
        return 1;
    }
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        char *field[FIELDS_MAX] = {"", "", "", "", "", ""}, *rest = line;
        line[strcspn(line, "\n")] = '\0';
        for (int i = 0; i < FIELDS_MAX && rest; i++)
            field[i] = strsep(&rest, "\t");
        struct listing l = {.text = NULL};
        l.out = open_memstream(&l.text, &l.bytes);
        PD_CHECK(l.out);
        err = (struct pd_error){.status = PD_OK};
        const pd_status st = call(bucket, field, &l, &err);
        fclose(l.out);
        printf("%s\t%s\n", pd_status_name(st), st ? err.message : l.text);
        fflush(stdout);
        free(l.text);
    }
    free(line);
    pd_bucket_close(bucket);
    return 0;
}
