/* An input as a directory of files: records of one byte (which of the target's files), two (how many bytes follow) and those. A
 * file without a record is not there. */
#pragma once

#include "resharder/formats/format.h"

#define INPUT_DIRECTORY "/input"

enum input_kind {
    INPUT_BYTES,
    INPUT_PICKLE, /* what torch.save makes of a pickle: an archive, with storages 0 to 11 of zeros */
    INPUT_SPARSE, /* four bytes of size, then how the file begins */
};

struct input_part {
    const char *name; /* "/input/..." */
    enum input_kind kind;
};

/* The next record, borrowed; false: there is none. */
struct input_record {
    uint32_t part; /* below `count` */
    const uint8_t *data;
    size_t bytes;
};
bool input_record_take(const uint8_t **data, size_t *bytes, uint32_t count, struct input_record *ret);

/* A directory as a format's reader sees it: an error says why, or the catalog holds together.   file: of the directory that
 * the reader is given; NULL: itself */
void input_directory_read(const uint8_t *data, size_t bytes, const struct input_part *parts, uint32_t count,
                          const char *file, const struct pd_format *format);
