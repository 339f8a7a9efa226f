#include "tests/fuzz/input/directory.h"

#include "ckpt/base/digest.h"
#include "resharder/torch/zip.h"
#include "tests/fuzz/input/disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS_MAX = 16, STORAGES = 12, RECORDS = STORAGES + 2, PICKLE = RECORDS - 1, STORAGE_BYTES = 16384 };
#define SIZE_MAX_SPARSE (1u << 22)

/* Archives differ in their last entry, the pickle. What is before it is made once. */
static struct pd_zip_record records[RECORDS];
static unsigned char *before_pickle;

static struct archive {
    unsigned char header[512], directory[4096];
} archives[PARTS_MAX];

static void make_before_pickle(void)
{
    records[PICKLE] = (struct pd_zip_record){.name = "archive/data.pkl"};
    records[STORAGES] = (struct pd_zip_record){.name = "archive/byteorder", .bytes = 6, .crc = pd_crc32(0, "little", 6)};
    static const unsigned char zeros[STORAGE_BYTES];
    for (uint32_t s = 0; s < STORAGES; s++) {
        records[s] = (struct pd_zip_record){.bytes = STORAGE_BYTES, .crc = pd_crc32(0, zeros, sizeof zeros)};
        snprintf(records[s].name, sizeof records[s].name, "archive/data/%u", s);
    }
    (void)pd_zip_place(records, RECORDS);
    before_pickle = calloc(1, records[PICKLE].header_offset);
    if (!before_pickle) abort();
    for (uint32_t r = 0; r < PICKLE; r++) {
        unsigned char header[512];
        memcpy(before_pickle + records[r].header_offset, header, pd_zip_header(&records[r], header));
    }
    memcpy(before_pickle + records[STORAGES].data_offset, "little", 6);
}

static void set_pickle(struct input_file *file, struct archive *archive, const uint8_t *data, size_t bytes)
{
    struct pd_zip_record *pickle = &records[PICKLE];
    if (!before_pickle) make_before_pickle();
    pickle->bytes = bytes;
    pickle->crc = pd_crc32(0, data, bytes);
    const uint64_t all = pd_zip_place(records, RECORDS), directory = pd_zip_directory_bytes(records, RECORDS);
    const uint64_t header = pd_zip_header(pickle, archive->header);
    if (directory > sizeof archive->directory) abort();
    pd_zip_directory(records, RECORDS, archive->directory);
    *file = (struct input_file){.name = file->name,
                                .is_there = true,
                                .bytes = all,
                                .extents = {{0, pickle->header_offset, before_pickle},
                                            {pickle->header_offset, header, archive->header},
                                            {pickle->data_offset, bytes, data},
                                            {all - directory, directory, archive->directory}},
                                .extent_count = 4};
}

static void set_sparse(struct input_file *file, const uint8_t *data, size_t bytes)
{
    uint32_t size = 0;
    if (bytes < sizeof size) return;
    memcpy(&size, data, sizeof size);
    bytes -= sizeof size;
    file->bytes = size > bytes ? size % SIZE_MAX_SPARSE : bytes;
    file->extents[0] = (struct input_extent){0, file->bytes < bytes ? file->bytes : bytes, data + sizeof size};
}

static void set(struct input_file *file, enum input_kind kind, struct archive *archive, const struct input_record *record)
{
    *file = (struct input_file){.name = file->name,
                                .is_there = true,
                                .bytes = record->bytes,
                                .extents = {{0, record->bytes, record->data}},
                                .extent_count = 1};
    if (kind == INPUT_PICKLE) set_pickle(file, archive, record->data, record->bytes);
    if (kind == INPUT_SPARSE) set_sparse(file, record->data, record->bytes);
}

bool input_record_take(const uint8_t **data, size_t *bytes, uint32_t count, struct input_record *ret)
{
    if (*bytes < 3) return false;
    const size_t wanted = (*data)[1] | (size_t)(*data)[2] << 8, there = wanted < *bytes - 3 ? wanted : *bytes - 3;
    *ret = (struct input_record){(*data)[0] % count, *data + 3, there};
    *data += 3 + there;
    *bytes -= 3 + there;
    return true;
}

static struct pd_vfs *open_directory(const uint8_t *data, size_t bytes, const struct input_part *parts, uint32_t count)
{
    static struct input_file files[PARTS_MAX];
    struct input_record record;
    if (count > PARTS_MAX) abort();
    for (uint32_t p = 0; p < count; p++)
        files[p] = (struct input_file){.name = parts[p].name};
    while (input_record_take(&data, &bytes, count, &record))
        set(&files[record.part], parts[record.part].kind, &archives[record.part], &record);
    return input_disk(files, count);
}

void input_directory_read(const uint8_t *data, size_t bytes, const struct input_part *parts, uint32_t count,
                          const char *file, const struct pd_format *format)
{
    struct pd_vfs *vfs = open_directory(data, bytes, parts, count);
    struct pd_catalog catalog;
    struct pd_error err = {0};
    char path[128];
    snprintf(path, sizeof path, "%s%s%s", INPUT_DIRECTORY, file ? "/" : "", file ? file : "");
    (void)format->recognizes(vfs, path);
    pd_catalog_init(&catalog, format->name);
    pd_status st = format->read(vfs, path, &catalog, &err);
    if (!st) st = pd_catalog_finish(&catalog, &err);
    if (st && !err.message[0]) abort();
    for (uint32_t t = 0; !st && t < catalog.tensor_count; t++)
        for (uint64_t p = 0; p < catalog.tensors[t].piece_count; p++) {
            const struct pd_piece *piece = &catalog.pieces[catalog.tensors[t].piece_begin + p];
            if (piece->offset > catalog.files[piece->file].bytes) abort();
        }
    pd_catalog_deinit(&catalog);
}
