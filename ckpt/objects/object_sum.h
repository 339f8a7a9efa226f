/* The checksums that servers keep of whole objects: CRC-32, CRC-32C and CRC-64/NVME. A download computes them part by part.
 *   source  S3 User Guide, "Checking object integrity"; for joining parts, M. Adler's crc32_combine of zlib */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum pd_object_sum_kind { PD_OBJECT_SUM_NONE, PD_OBJECT_SUM_CRC32, PD_OBJECT_SUM_CRC32C, PD_OBJECT_SUM_CRC64NVME };

struct pd_object_sum {
    enum pd_object_sum_kind kind;
    uint64_t value;
};

/* Reads a header's value, the checksum's bytes in base64. False if it is anything else, such as the checksum of the
 * checksums of parts ("...-3"). */
bool pd_object_sum_parse(enum pd_object_sum_kind kind, const char *text, struct pd_object_sum *ret_sum);
uint64_t pd_object_sum_of(enum pd_object_sum_kind kind, const void *data, uint64_t bytes);
/* The part of `value`, which is of bytes that `bytes_after` others follow, in the whole: XOR these of all parts. */
uint64_t pd_object_sum_shift(enum pd_object_sum_kind kind, uint64_t value, uint64_t bytes_after);
const char *pd_object_sum_name(enum pd_object_sum_kind kind);
