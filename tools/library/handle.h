/* An open checkpoint of libperdure, and how results of the libraries below become its results. */
#pragma once

#include "resharder/catalog/slice.h"
#include "tools/library/foreign.h"
#include "tools/library/perdure.h"

#include <pthread.h>

struct perdure_checkpoint {
    struct pd_ckpt_foreign foreign;
    struct perdure_tensor *tensors; /* (foreign.catalog.tensor_count) */
    char *names;                    /* of a listed checkpoint, as their writer gave them; NULL: the catalog's */
    uint64_t bytes;
    struct pd_slicer *slicer;
    uint32_t threads;
    pthread_mutex_t pool_mutex;  /* held by the call that uses the pool; others read in their own thread */
    struct pd_thread_pool *pool; /* made by the first call that can use it */
};

/* Prepares what the process needs once. Every call that opens something begins with it. */
void pd_library_begin(void);
/* Fills *err (may be NULL) from `own`, and returns the public status. */
enum perdure_status pd_library_end(pd_status status, const struct pd_error *own, struct perdure_error *err);

/* Notes of a watch (may be NULL). */
struct pd_notes pd_library_notes(const struct perdure_watch *watch);
/* Calls its progress function.   errors  PD_STOPPED */
PD_MUST_USE pd_status pd_library_progress(const struct perdure_watch *watch, uint64_t done, uint64_t total,
                                          struct pd_error *err);
/* A struct of options as the caller's version knows it, over defaults. */
void pd_library_options(void *mine, size_t mine_bytes, const void *theirs, size_t theirs_bytes);
enum perdure_dtype pd_library_dtype(enum pd_element element);
