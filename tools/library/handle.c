#include "tools/library/handle.h"

#include "ckpt/base/utf8.h"
#include "ckpt/objects/vfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void register_buckets(void)
{
    pd_vfs_register_remote("s3://", pd_vfs_new_objects);
}

void pd_library_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_buckets);
}

static const enum perdure_status statuses[PD_STATUS_COUNT] = {
    [PD_OK] = PERDURE_OK,
    [PD_USAGE] = PERDURE_INVALID,
    [PD_INVALID] = PERDURE_INVALID,
    [PD_NOT_FOUND] = PERDURE_NOT_FOUND,
    [PD_EXISTS] = PERDURE_EXISTS,
    [PD_BUSY] = PERDURE_BUSY,
    [PD_NO_SPACE] = PERDURE_NO_SPACE,
    [PD_IO] = PERDURE_IO,
    [PD_CORRUPT] = PERDURE_CORRUPT,
    [PD_NO_MEMORY] = PERDURE_NO_MEMORY,
    [PD_DEVICE_LOST] = PERDURE_BUG,
    [PD_PEER_LOST] = PERDURE_PEER_LOST,
    [PD_STOPPED] = PERDURE_STOPPED,
    [PD_HOSTS_AWAY] = PERDURE_NOT_FOUND,
    [PD_STUCK] = PERDURE_BUG,
    [PD_UNSUPPORTED] = PERDURE_UNSUPPORTED,
    [PD_DIVERGED] = PERDURE_INVALID,
    [PD_BUG] = PERDURE_BUG,
};

enum perdure_status pd_library_end(pd_status status, const struct pd_error *own, struct perdure_error *err)
{
    if (!err) return statuses[status];
    *err = (struct perdure_error){.status = statuses[status]};
    if (!status) return PERDURE_OK;
    err->system_errno = own->sys_errno;
    snprintf(err->where, sizeof err->where, "%s", own->where);
    snprintf(err->message, sizeof err->message, "%s", own->message);
    pd_utf8_clean(err->message);
    return err->status;
}

static void pass_note(void *context, const char *text)
{
    const struct perdure_watch *watch = context;
    watch->note(watch->context, text);
}

struct pd_notes pd_library_notes(const struct perdure_watch *watch)
{
    if (!watch || !watch->note) return (struct pd_notes){0};
    return (struct pd_notes){pass_note, (void *)(uintptr_t)watch};
}

pd_status pd_library_progress(const struct perdure_watch *watch, uint64_t done, uint64_t total, struct pd_error *err)
{
    if (watch && watch->progress && watch->progress(watch->context, done, total))
        PD_FAIL(err, PD_STOPPED, "the caller asked to stop");
    return PD_OK;
}

void pd_library_options(void *mine, size_t mine_bytes, const void *theirs, size_t theirs_bytes)
{
    if (theirs) memcpy(mine, theirs, theirs_bytes < mine_bytes ? theirs_bytes : mine_bytes);
}

/* ---- names ---- */

const char *perdure_version(void)
{
    return PERDURE_VERSION;
}

const char *perdure_status_name(enum perdure_status status)
{
    static const char *const names[] = {"PERDURE_OK",        "PERDURE_INVALID",   "PERDURE_NOT_FOUND", "PERDURE_EXISTS",
                                        "PERDURE_BUSY",      "PERDURE_NO_SPACE",  "PERDURE_IO",        "PERDURE_CORRUPT",
                                        "PERDURE_NO_MEMORY", "PERDURE_PEER_LOST", "PERDURE_STOPPED",   "PERDURE_UNSUPPORTED",
                                        "PERDURE_BUG"};
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : NULL;
}

static const struct {
    enum perdure_dtype dtype;
    enum pd_element element;
} dtypes[] = {{PERDURE_F32, PD_ELEMENT_F32},   {PERDURE_BF16, PD_ELEMENT_BF16},       {PERDURE_F16, PD_ELEMENT_F16},
              {PERDURE_F64, PD_ELEMENT_F64},   {PERDURE_F8_E4M3, PD_ELEMENT_F8_E4M3}, {PERDURE_F8_E5M2, PD_ELEMENT_F8_E5M2},
              {PERDURE_I8, PD_ELEMENT_I8},     {PERDURE_I16, PD_ELEMENT_I16},         {PERDURE_I32, PD_ELEMENT_I32},
              {PERDURE_I64, PD_ELEMENT_I64},   {PERDURE_U8, PD_ELEMENT_U8},           {PERDURE_U16, PD_ELEMENT_U16},
              {PERDURE_U32, PD_ELEMENT_U32},   {PERDURE_U64, PD_ELEMENT_U64},         {PERDURE_BOOL, PD_ELEMENT_BOOL},
              {PERDURE_C64, PD_ELEMENT_C64},   {PERDURE_C128, PD_ELEMENT_C128},       {PERDURE_Q8_0, PD_ELEMENT_Q8_0},
              {PERDURE_Q4_0, PD_ELEMENT_Q4_0}, {PERDURE_Q4_1, PD_ELEMENT_Q4_1},       {PERDURE_Q5_0, PD_ELEMENT_Q5_0},
              {PERDURE_Q5_1, PD_ELEMENT_Q5_1}, {PERDURE_Q4_K, PD_ELEMENT_Q4_K},       {PERDURE_Q6_K, PD_ELEMENT_Q6_K}};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

static const struct pd_element_row *element_of(enum perdure_dtype dtype)
{
    for (size_t i = 0; i < DTYPES; i++)
        if (dtypes[i].dtype == dtype) return &pd_elements[dtypes[i].element];
    return NULL;
}

enum perdure_dtype pd_library_dtype(enum pd_element element)
{
    for (size_t i = 0; i < DTYPES; i++)
        if (dtypes[i].element == element) return dtypes[i].dtype;
    return PERDURE_AS_STORED;
}

const char *perdure_dtype_name(enum perdure_dtype dtype)
{
    const struct pd_element_row *row = element_of(dtype);
    return row ? row->name : NULL;
}

int perdure_dtype_block(enum perdure_dtype dtype, uint32_t *ret_elements, uint32_t *ret_bytes)
{
    const struct pd_element_row *row = element_of(dtype);
    if (!row) return 0;
    if (ret_elements) *ret_elements = row->block_elements;
    if (ret_bytes) *ret_bytes = row->block_bytes;
    return 1;
}

void perdure_free(void *memory)
{
    free(memory);
}
