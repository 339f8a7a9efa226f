#include "ckpt/hdf5/pages.h"
#include "ckpt/base/grow.h"

#include <stdlib.h>
#include <string.h>

void pd_h5_pages_deinit(struct pd_h5_pages *pages)
{
    if (!pages) return;
    for (uint64_t p = 0; p < pages->count; p++)
        free(pages->pages[p].data);
    free(pages->pages);
    *pages = (struct pd_h5_pages){0};
}

/* Index of the first page whose number is not below `number`. Tries the end first, since HDF5 mostly appends. */
static uint64_t lower_bound(const struct pd_h5_pages *pages, uint64_t number)
{
    uint64_t low = 0, high = pages->count;
    if (high && pages->pages[high - 1].number < number) return high;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (pages->pages[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

unsigned char *pd_h5_pages_find(const struct pd_h5_pages *pages, uint64_t number)
{
    uint64_t at = lower_bound(pages, number);
    return at < pages->count && pages->pages[at].number == number ? pages->pages[at].data : NULL;
}

static pd_status insert_page(struct pd_h5_pages *pages, uint64_t number, unsigned char **ret_data, struct pd_error *err)
{
    uint64_t at = lower_bound(pages, number);
    if (at < pages->count && pages->pages[at].number == number) {
        *ret_data = pages->pages[at].data;
        return PD_OK;
    }
    if (!pd_grow(&pages->pages, pages->count, sizeof *pages->pages))
        PD_FAIL(err, PD_NO_MEMORY, "no memory for %llu metadata pages", (unsigned long long)pages->count + 1);
    unsigned char *data = calloc(1, PD_H5_PAGE_BYTES);
    if (!data) PD_FAIL(err, PD_NO_MEMORY, "no memory for a metadata page");
    memmove(pages->pages + at + 1, pages->pages + at, (pages->count - at) * sizeof *pages->pages);
    pages->pages[at] = (struct pd_h5_page){number, data};
    pages->count++;
    *ret_data = data;
    return PD_OK;
}

static uint64_t piece_bytes(uint64_t offset, uint64_t left)
{
    uint64_t space = PD_H5_PAGE_BYTES - offset % PD_H5_PAGE_BYTES;
    return left < space ? left : space;
}

pd_status pd_h5_pages_write(struct pd_h5_pages *pages, uint64_t offset, const void *data, uint64_t bytes,
                            struct pd_error *err)
{
    for (uint64_t done = 0; done < bytes;) {
        uint64_t at = offset + done, piece = piece_bytes(at, bytes - done);
        unsigned char *page = NULL;
        PD_TRY(insert_page(pages, at / PD_H5_PAGE_BYTES, &page, err));
        memcpy(page + at % PD_H5_PAGE_BYTES, (const char *)data + done, piece);
        done += piece;
    }
    return PD_OK;
}

void pd_h5_pages_read(const struct pd_h5_pages *pages, uint64_t offset, void *data, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        uint64_t at = offset + done, piece = piece_bytes(at, bytes - done);
        const unsigned char *page = pd_h5_pages_find(pages, at / PD_H5_PAGE_BYTES);
        if (page)
            memcpy((char *)data + done, page + at % PD_H5_PAGE_BYTES, piece);
        else
            memset((char *)data + done, 0, piece);
        done += piece;
    }
}

uint64_t pd_h5_pages_heap_bytes(const struct pd_h5_pages *pages)
{
    return pages->count * (PD_H5_PAGE_BYTES + sizeof *pages->pages);
}
