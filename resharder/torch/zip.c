/* Handles only stored entries. Sizes and offsets of 4 GiB or more are in the zip64 extra field, in its fixed order. */
#include "resharder/torch/zip.h"

#include "ckpt/base/checked.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOCAL_BYTES = 30,
    CENTRAL_BYTES = 46,
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    ZIP64_EXTRA = 1,
    PAD_EXTRA = 0x4246, /* "FB", torch's padding field */
    ALIGN = 64,
};
#define LOCAL_MAGIC 0x04034b50u
#define CENTRAL_MAGIC 0x02014b50u
#define END_MAGIC 0x06054b50u
#define END64_MAGIC 0x06064b50u
#define LOCATOR_MAGIC 0x07064b50u
#define TAIL_BYTES (END_BYTES + 65535u) /* a comment may follow the end record */

static uint64_t zip_load(const unsigned char *p, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

/* ---- reading ---- */

struct directory {
    uint64_t offset, bytes, count; /* offset from the archive's begin */
};

static const unsigned char *find_end(const unsigned char *tail, uint64_t bytes)
{
    for (uint64_t at = bytes < END_BYTES ? 0 : bytes - END_BYTES + 1; at-- > 0;)
        if (zip_load(tail + at, 4) == END_MAGIC && at + END_BYTES + zip_load(tail + at + 20, 2) == bytes) return tail + at;
    return NULL;
}

static pd_status read_end64(struct pd_file *file, const char *path, uint64_t begin, uint64_t locator, struct directory *ret,
                            struct pd_error *err)
{
    unsigned char text[END64_BYTES];
    PD_TRY(pd_file_read(file, begin + locator, text, LOCATOR_BYTES, err));
    if (zip_load(text, 4) != LOCATOR_MAGIC) PD_FAIL(err, PD_CORRUPT, "%s: a zip64 archive without its locator", path);
    const uint64_t at = zip_load(text + 8, 8);
    if (!pd_checked_range(at, END64_BYTES, locator))
        PD_FAIL(err, PD_CORRUPT, "%s: the zip64 end record lies outside the archive, at %" PRIu64, path, at);
    PD_TRY(pd_file_read(file, begin + at, text, END64_BYTES, err));
    if (zip_load(text, 4) != END64_MAGIC)
        PD_FAIL(err, PD_CORRUPT, "%s: no zip64 end record at byte %" PRIu64, path, begin + at);
    *ret = (struct directory){
        .offset = zip_load(text + 48, 8), .bytes = zip_load(text + 40, 8), .count = zip_load(text + 32, 8)};
    return PD_OK;
}

static pd_status zip_find_directory(struct pd_file *file, const char *path, uint64_t begin, uint64_t end,
                                    struct directory *ret, struct pd_error *err)
{
    static const uint64_t looks[] = {1024, TAIL_BYTES}; /* almost no archive has a comment */
    unsigned char *tail = malloc(TAIL_BYTES);
    const unsigned char *record = NULL;
    uint64_t bytes = 0;
    pd_status st = tail ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "%s: no memory", path);
    for (int i = 0; !st && !record && i < 2; i++) {
        bytes = end - begin < looks[i] ? end - begin : looks[i];
        st = pd_file_read(file, end - bytes, tail, bytes, err);
        if (!st) record = find_end(tail, bytes);
    }
    if (!st && !record)
        st = pd_error_set(err, PD_CORRUPT, PD_WHERE, 0,
                          "%s: no torch.save archive ends at byte %" PRIu64
                          "; it is cut short, damaged, or older than torch 1.6",
                          path, end);
    if (!st) {
        *ret = (struct directory){
            .offset = zip_load(record + 16, 4), .bytes = zip_load(record + 12, 4), .count = zip_load(record + 10, 2)};
        const uint64_t at = end - begin - bytes + (uint64_t)(record - tail);
        if (ret->offset == UINT32_MAX || ret->bytes == UINT32_MAX || ret->count == UINT16_MAX)
            st = at < LOCATOR_BYTES
                     ? pd_error_set(err, PD_CORRUPT, PD_WHERE, 0, "%s: a zip64 archive without its locator", path)
                     : read_end64(file, path, begin, at - LOCATOR_BYTES, ret, err);
    }
    free(tail);
    return st;
}

/* Takes fields that are all ones from the zip64 extra field, in this order. */
static bool widen(const unsigned char *extra, uint64_t extra_bytes, uint64_t *const fields[3])
{
    while (extra_bytes >= 4) {
        const uint64_t id = zip_load(extra, 2), bytes = zip_load(extra + 2, 2);
        if (bytes > extra_bytes - 4) return false;
        if (id == ZIP64_EXTRA) {
            uint64_t at = 0;
            for (int i = 0; i < 3; i++) {
                if (*fields[i] != UINT32_MAX) continue;
                if (bytes - at < 8) return false;
                *fields[i] = zip_load(extra + 4 + at, 8);
                at += 8;
            }
            return true;
        }
        extra += 4 + bytes;
        extra_bytes -= 4 + bytes;
    }
    return *fields[0] != UINT32_MAX && *fields[1] != UINT32_MAX && *fields[2] != UINT32_MAX;
}

/* Returns the size of an entry in the central directory; 0: inconsistent. */
static uint64_t parse_entry(const unsigned char *p, uint64_t left, uint64_t begin, uint64_t end, struct pd_zip_entry *ret)
{
    if (left < CENTRAL_BYTES || zip_load(p, 4) != CENTRAL_MAGIC) return 0;
    const uint64_t name = zip_load(p + 28, 2), extra = zip_load(p + 30, 2), comment = zip_load(p + 32, 2);
    const uint64_t taken = CENTRAL_BYTES + name + extra + comment;
    uint64_t stored = zip_load(p + 20, 4), bytes = zip_load(p + 24, 4), offset = zip_load(p + 42, 4);
    if (left < taken || !widen(p + CENTRAL_BYTES + name, extra, (uint64_t *const[]){&bytes, &stored, &offset})) return 0;
    if (!pd_checked_range(offset, LOCAL_BYTES, end - begin) || !pd_checked_range(offset, stored, end - begin)) return 0;
    *ret = (struct pd_zip_entry){.name = (const char *)p + CENTRAL_BYTES,
                                 .name_bytes = (uint32_t)name,
                                 .crc = (uint32_t)zip_load(p + 16, 4),
                                 .bytes = bytes,
                                 .header_offset = begin + offset,
                                 .is_stored = zip_load(p + 10, 2) == 0 && !(zip_load(p + 8, 2) & 1) && stored == bytes};
    return taken;
}

static pd_status parse_directory(struct pd_zip *zip, const struct directory *d, const char *path, struct pd_error *err)
{
    uint64_t at = 0;
    for (; zip->count < d->count; zip->count++) {
        const uint64_t taken =
            parse_entry(zip->directory + at, d->bytes - at, zip->begin, zip->end, &zip->entries[zip->count]);
        if (!taken)
            PD_FAIL(err, PD_CORRUPT, "%s: entry %u of the archive's directory is damaged, at byte %" PRIu64, path,
                    zip->count, zip->begin + d->offset + at);
        at += taken;
    }
    return PD_OK;
}

pd_status pd_zip_read(struct pd_file *file, const char *path, uint64_t begin, uint64_t end, struct pd_zip *ret_zip,
                      struct pd_error *err)
{
    struct directory d = {0};
    if (end < begin || end - begin < END_BYTES)
        PD_FAIL(err, PD_CORRUPT, "%s: %" PRIu64 " bytes at %" PRIu64 " are not an archive", path, end - begin, begin);
    PD_TRY(zip_find_directory(file, path, begin, end, &d, err));
    if (d.bytes > PD_ZIP_DIRECTORY_MAX || d.count > d.bytes / CENTRAL_BYTES ||
        !pd_checked_range(d.offset, d.bytes, end - begin))
        PD_FAIL(err, PD_CORRUPT,
                "%s: the archive's directory should have %" PRIu64 " entries in %" PRIu64 " bytes at %" PRIu64, path,
                d.count, d.bytes, begin + d.offset);
    struct pd_zip zip = {.begin = begin, .end = end};
    zip.directory = malloc(d.bytes + 1);
    zip.entries = calloc(d.count + 1, sizeof *zip.entries);
    pd_status st =
        zip.directory && zip.entries ? PD_OK : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "%s: no memory", path);
    if (!st) st = pd_file_read(file, begin + d.offset, zip.directory, d.bytes, err);
    if (!st) st = parse_directory(&zip, &d, path, err);
    if (st)
        pd_zip_deinit(&zip);
    else
        *ret_zip = zip;
    return st;
}

void pd_zip_deinit(struct pd_zip *zip)
{
    free(zip->directory);
    free(zip->entries);
    *zip = (struct pd_zip){0};
}

const struct pd_zip_entry *pd_zip_find(const struct pd_zip *zip, const char *inner_name)
{
    const size_t bytes = strlen(inner_name);
    for (uint32_t i = 0; i < zip->count; i++) {
        const struct pd_zip_entry *e = &zip->entries[i];
        const char *slash = memchr(e->name, '/', e->name_bytes);
        const size_t inner = slash ? e->name_bytes - (size_t)(slash + 1 - e->name) : 0;
        if (slash && inner == bytes && memcmp(slash + 1, inner_name, bytes) == 0) return e;
    }
    return NULL;
}

pd_status pd_zip_data(struct pd_file *file, const char *path, const struct pd_zip *zip, const struct pd_zip_entry *entry,
                      uint64_t *ret_offset, struct pd_error *err)
{
    unsigned char text[LOCAL_BYTES];
    if (!entry->is_stored)
        PD_FAIL(err, PD_UNSUPPORTED, "%s: %.*s is compressed or encrypted; torch.save stores plainly", path,
                (int)entry->name_bytes, entry->name);
    PD_TRY(pd_file_read(file, entry->header_offset, text, sizeof text, err));
    const uint64_t at = entry->header_offset + LOCAL_BYTES + zip_load(text + 26, 2) + zip_load(text + 28, 2);
    if (zip_load(text, 4) != LOCAL_MAGIC || at > zip->end || entry->bytes > zip->end - at)
        PD_FAIL(err, PD_CORRUPT, "%s: %.*s has no data at byte %" PRIu64, path, (int)entry->name_bytes, entry->name, at);
    *ret_offset = at;
    return PD_OK;
}

/* ---- writing ---- */

static unsigned char *store(unsigned char *p, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        p[i] = i < sizeof value ? (unsigned char)(value >> (8 * i)) : 0;
    return p + bytes;
}

static uint32_t narrow(uint64_t value)
{
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

static uint64_t local_extra_bytes(const struct pd_zip_record *r)
{
    return r->bytes < UINT32_MAX ? 0 : 20;
}

static uint64_t central_extra_bytes(const struct pd_zip_record *r)
{
    const uint64_t fields = (r->bytes < UINT32_MAX ? 0u : 2u) + (r->header_offset < UINT32_MAX ? 0u : 1u);
    return fields ? 4 + 8 * fields : 0;
}

uint64_t pd_zip_place(struct pd_zip_record *records, uint32_t count)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct pd_zip_record *r = &records[i];
        r->header_offset = at;
        r->data_offset = pd_round_up(at + LOCAL_BYTES + strlen(r->name) + local_extra_bytes(r) + 4, ALIGN);
        at = r->data_offset + r->bytes;
    }
    return at + pd_zip_directory_bytes(records, count);
}

/* Writes the common fields of local and central headers, from the needed version on. */
static unsigned char *store_common(unsigned char *p, const struct pd_zip_record *r)
{
    p = store(p, r->bytes < UINT32_MAX ? 20 : 45, 2);
    p = store(p, 0x800, 2);      /* names are UTF-8 */
    p = store(p, 0, 2);          /* stored */
    p = store(p, 0x00210000, 4); /* 1 January 1980: no real time */
    p = store(p, r->crc, 4);
    p = store(p, narrow(r->bytes), 4);
    p = store(p, narrow(r->bytes), 4);
    return store(p, strlen(r->name), 2);
}

static unsigned char *store_name(unsigned char *p, const char *name)
{
    const size_t bytes = strlen(name);
    memcpy(p, name, bytes);
    return p + bytes;
}

uint64_t pd_zip_header(const struct pd_zip_record *record, unsigned char ret[512])
{
    const uint64_t bytes = record->data_offset - record->header_offset;
    const uint64_t extra = bytes - LOCAL_BYTES - strlen(record->name), pad = extra - local_extra_bytes(record) - 4;
    unsigned char *p = store(ret, LOCAL_MAGIC, 4);
    p = store(store_common(p, record), extra, 2);
    p = store_name(p, record->name);
    if (local_extra_bytes(record)) {
        p = store(store(p, ZIP64_EXTRA, 2), 16, 2);
        p = store(store(p, record->bytes, 8), record->bytes, 8);
    }
    p = store(store(p, PAD_EXTRA, 2), pad, 2);
    memset(p, 'Z', pad);
    return bytes;
}

uint64_t pd_zip_directory_bytes(const struct pd_zip_record *records, uint32_t count)
{
    uint64_t bytes = END64_BYTES + LOCATOR_BYTES + END_BYTES;
    for (uint32_t i = 0; i < count; i++)
        bytes += CENTRAL_BYTES + strlen(records[i].name) + central_extra_bytes(&records[i]);
    return bytes;
}

static unsigned char *store_central(unsigned char *p, const struct pd_zip_record *r)
{
    const uint64_t extra = central_extra_bytes(r);
    p = store(store(p, CENTRAL_MAGIC, 4), 45, 2);
    p = store(store_common(p, r), extra, 2);
    p = store(p, 0, 10); /* comment, disk, attributes: none */
    p = store(p, narrow(r->header_offset), 4);
    p = store_name(p, r->name);
    if (!extra) return p;
    p = store(store(p, ZIP64_EXTRA, 2), extra - 4, 2);
    if (r->bytes >= UINT32_MAX) p = store(store(p, r->bytes, 8), r->bytes, 8);
    return r->header_offset < UINT32_MAX ? p : store(p, r->header_offset, 8);
}

/* Always writes both end records: zip64 readers use the first; others need only archives under 4 GiB. */
void pd_zip_directory(const struct pd_zip_record *records, uint32_t count, unsigned char *ret)
{
    const struct pd_zip_record *last = &records[count - 1];
    const uint64_t offset = last->data_offset + last->bytes;
    unsigned char *p = ret;
    for (uint32_t i = 0; i < count; i++)
        p = store_central(p, &records[i]);
    const uint64_t bytes = (uint64_t)(p - ret);
    p = store(store(p, END64_MAGIC, 4), END64_BYTES - 12, 8);
    p = store(store(p, 45, 2), 45, 2);
    p = store(p, 0, 8);
    p = store(store(p, count, 8), count, 8);
    p = store(store(p, bytes, 8), offset, 8);
    p = store(store(p, LOCATOR_MAGIC, 4), 0, 4);
    p = store(store(p, offset + bytes, 8), 1, 4);
    p = store(store(p, END_MAGIC, 4), 0, 4);
    p = store(store(p, count, 2), count, 2);
    p = store(store(p, narrow(bytes), 4), narrow(offset), 4);
    store(p, 0, 2);
}
