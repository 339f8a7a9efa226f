/* Two bytes say how long the table is, the table follows, then pages of data. */
#include "tests/fuzz/input/disk.h"
#include "tests/fuzz/input/shard.h"
#include "tests/fuzz/target.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = PD_SHARD_PAGE_BYTES, DATA = 16 * PAGE, BLOCKS_MAX = 16, BUFFER_BYTES = 1 << 20 };

static pd_status look(void *context, uint32_t box, uint64_t block, const void *data, uint64_t bytes, pd_status verified,
                      const struct pd_error *damage, struct pd_error *err)
{
    (void)box;
    (void)block;
    (void)data;
    (void)err;
    if (bytes > PD_SHARD_BLOCK_BYTES || (verified && !damage->message[0])) abort();
    return --*(uint32_t *)context ? PD_OK : PD_NOT_FOUND; /* enough was seen */
}

static void read_all(struct pd_shard *shard)
{
    static _Alignas(PD_VFS_ALIGN) unsigned char buffer[BUFFER_BYTES];
    struct pd_error err = {0};
    uint32_t left = BLOCKS_MAX;
    const struct pd_shard_visitor visitor = {&left, look};
    for (uint32_t b = 0; b < pd_shard_box_count(shard) && b < BLOCKS_MAX; b++)
        (void)!pd_shard_read_blocks(shard, b, 0, 1, buffer, &err);
    const pd_status st = pd_shard_scan(shard, buffer, sizeof buffer, &visitor, &err);
    if (st && left && !err.message[0]) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 2 + sizeof(struct pd_shard_head)) return 0;
    const uint64_t wanted = data[0] | (uint64_t)data[1] << 8, there = wanted < bytes - 2 ? wanted : bytes - 2;
    const uint64_t pages = (there + PAGE - 1) / PAGE * PAGE, behind = bytes - 2 - there;
    if (there < sizeof(struct pd_shard_head)) return 0;
    struct input_shard s = {.bytes = calloc(1, DATA + pages + PAGE),
                            .data_bytes = DATA,
                            .table_bytes = pages,
                            .file_bytes = DATA + pages + PAGE};
    if (!s.bytes) abort();
    memcpy(s.bytes, data + 2 + there, behind < DATA ? behind : DATA);
    memcpy(s.bytes + DATA, data + 2, there);
    input_shard_seal(&s);
    struct pd_shard *shard = NULL;
    struct pd_error err = {0};
    const pd_status st = pd_shard_open(input_disk_of(s.bytes, s.file_bytes), INPUT_PATH, NULL, NULL, &shard, &err);
    if (st && !err.message[0]) abort();
    if (!st) read_all(shard);
    if (!st) pd_shard_close(shard);
    free(s.bytes);
    return 0;
}
