/* Archives of stored entries, as torch.save makes them. Reads the central directory (PKWARE's APPNOTE 6.3, zip64
 * included), and writes the metadata of entries whose data the caller writes.
 *
 * An archive may lie inside a larger file. Compressed entries are listed, but code that needs their data rejects them. */
#pragma once

#include "ckpt/io/vfs.h"

#define PD_ZIP_DIRECTORY_MAX (UINT64_C(64) << 20) /* of the central directory */

struct pd_zip_entry {
    const char *name; /* (name_bytes) not terminated, inside the archive's directory */
    uint32_t name_bytes, crc;
    uint64_t bytes;         /* of its data */
    uint64_t header_offset; /* in the file */
    bool is_stored;
};

struct pd_zip {
    unsigned char *directory;     /* owned */
    struct pd_zip_entry *entries; /* (count), owned */
    uint32_t count;
    uint64_t begin, end; /* of the archive in its file */
};

/* Reads the archive in bytes [begin, end) of `file`; `path` is for messages.
 *   errors  PD_CORRUPT: not an archive, or its directory is inconsistent; PD_IO; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_zip_read(struct pd_file *file, const char *path, uint64_t begin, uint64_t end,
                                  struct pd_zip *ret_zip, struct pd_error *err);
void pd_zip_deinit(struct pd_zip *zip);
/* Returns the entry with this name after the first '/' ("data.pkl" finds "archive/data.pkl"), or NULL. */
const struct pd_zip_entry *pd_zip_find(const struct pd_zip *zip, const char *inner_name);
/* Returns the file offset of its data.   errors  PD_CORRUPT, PD_UNSUPPORTED: it is compressed */
PD_MUST_USE pd_status pd_zip_data(struct pd_file *file, const char *path, const struct pd_zip *zip,
                                  const struct pd_zip_entry *entry, uint64_t *ret_offset, struct pd_error *err);

/* Writing. Headers are first made with zero checksums, before the data is known; at the end the headers are made again,
 * and the directory, with the checksums. records (count) in the order of their data; crc may still be 0 */
struct pd_zip_record {
    char name[96];
    uint64_t bytes;
    uint32_t crc;
    uint64_t header_offset, data_offset; /* from the archive's begin; set by pd_zip_place */
};
/* Places data on multiples of 64 bytes, as torch does. Returns the archive's size, including its directory. */
uint64_t pd_zip_place(struct pd_zip_record *records, uint32_t count);
/* Makes the local header of a record: bytes from header_offset to data_offset (at most 512). */
uint64_t pd_zip_header(const struct pd_zip_record *record, unsigned char ret[512]);
/* Size and bytes of everything after the last data, as counted by pd_zip_place. ret (that many bytes) */
uint64_t pd_zip_directory_bytes(const struct pd_zip_record *records, uint32_t count);
void pd_zip_directory(const struct pd_zip_record *records, uint32_t count, unsigned char *ret);
