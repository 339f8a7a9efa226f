/* Archives of stored entries, as torch.save makes them: reading the central directory (PKWARE's APPNOTE 6.3, zip64 included), and
 * writing entries whose data somebody else writes.
 *
 * An archive may lie inside a larger file. Compressed entries are listed, and refused by who needs their data. */
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

/* The archive in bytes [begin, end) of `file`; `path` names it.
 *   errors  PD_CORRUPT: it is none, or one whose directory does not hold together; PD_IO; PD_NO_MEMORY */
PD_MUST_USE pd_status pd_zip_read(struct pd_file *file, const char *path, uint64_t begin, uint64_t end,
                                  struct pd_zip *ret_zip, struct pd_error *err);
void pd_zip_deinit(struct pd_zip *zip);
/* The entry with this ending after the first '/' ("data.pkl" finds "archive/data.pkl"); NULL: there is none. */
const struct pd_zip_entry *pd_zip_find(const struct pd_zip *zip, const char *inner_name);
/* Where its data begins in the file.   errors  PD_CORRUPT, PD_UNSUPPORTED: it is compressed */
PD_MUST_USE pd_status pd_zip_data(struct pd_file *file, const char *path, const struct pd_zip *zip,
                                  const struct pd_zip_entry *entry, uint64_t *ret_offset, struct pd_error *err);

/* Writing. Headers are made with zeros for checksums before the data is known; the directory and the headers are made again
 * with them at the end.   records (count) in the order of their data; crc may still be 0 */
struct pd_zip_record {
    char name[96];
    uint64_t bytes;
    uint32_t crc;
    uint64_t header_offset, data_offset; /* from the archive's begin: pd_zip_place sets them */
};
/* Data begins on multiples of 64 bytes, as torch lays it out. Returns the archive's bytes, its directory included. */
uint64_t pd_zip_place(struct pd_zip_record *records, uint32_t count);
/* The local header of a record: bytes from header_offset to data_offset (at most 512). */
uint64_t pd_zip_header(const struct pd_zip_record *record, unsigned char ret[512]);
/* What follows the last data: as many bytes as pd_zip_place counted.   ret (bytes of it) */
uint64_t pd_zip_directory_bytes(const struct pd_zip_record *records, uint32_t count);
void pd_zip_directory(const struct pd_zip_record *records, uint32_t count, unsigned char *ret);
/* CRC-32 (ISO 3309) of data that follows what made `crc`; begin with 0. */
uint32_t pd_zip_crc(uint32_t crc, const void *data, uint64_t bytes);
