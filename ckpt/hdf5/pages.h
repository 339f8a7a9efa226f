/* A sparse file in memory: the pages of 4096 bytes that HDF5 wrote. Pages never written read as zeros.
 *   threads  one */
#pragma once

#include "ckpt/base/status.h"
#include <stdint.h>

#define PD_H5_PAGE_BYTES 4096u

struct pd_h5_page {
    uint64_t number;     /* file offset / PD_H5_PAGE_BYTES */
    unsigned char *data; /* (PD_H5_PAGE_BYTES), owned */
};

struct pd_h5_pages {
    struct pd_h5_page *pages; /* (count), ascending numbers, owned */
    uint64_t count;
    uint64_t bytes; /* size of the file: end of allocation */
};

void pd_h5_pages_deinit(struct pd_h5_pages *pages);
/* Returns the page, or NULL if it was never written. */
unsigned char *pd_h5_pages_find(const struct pd_h5_pages *pages, uint64_t number);
PD_MUST_USE pd_status pd_h5_pages_write(struct pd_h5_pages *pages, uint64_t offset, const void *data, uint64_t bytes,
                                        struct pd_error *err);
void pd_h5_pages_read(const struct pd_h5_pages *pages, uint64_t offset, void *data, uint64_t bytes);
uint64_t pd_h5_pages_heap_bytes(const struct pd_h5_pages *pages);
