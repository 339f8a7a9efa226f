#include "exercise_hopper.h"

#include "trainer/math/cuda/attention_wgmma_block.h"

struct hopper_tiles {
    pd_wide_tile<64, 64> a;
    pd_wide_tile<128, 64> b;
    uint64_t full;
};

struct hopper_maps {
    pd_tensor_map a, b;
};

static __global__ void hopper(const enum exercise_hopper how, const hopper_maps maps, float *c, float *d)
{
    PD_SHARED_DYNAMIC(shared);
    hopper_tiles &t = pd_wide_tiles<hopper_tiles>(shared);
    const pd_wide_source a = {&maps.a, 0, 0}, b = {&maps.b, 0, 0};
    if (threadIdx.x == 0 && how != HOPPER_NO_INIT) pd_barrier_init(&t.full, 1);
    if (threadIdx.x == 0 && how == HOPPER_NO_FENCE_BEFORE_COPY) t.a.data[70] = 0x3f80;
    __syncthreads();
    if (threadIdx.x < PD_WARPGROUP) {
        if (threadIdx.x >= 32) return;
        pd_wide_load(t.a, a, 0, &t.full);
        pd_wide_load(t.b, b, 0, &t.full);
        if (how != HOPPER_NO_ARRIVAL) pd_wide_filled(&t.full, 3 * PD_BOX_BYTES);
        return;
    }
    float x[16][4], y[8][4];
    uint32_t rows[4][4];
    if (how != HOPPER_NO_COPY_WAIT) pd_barrier_wait(&t.full, 0);
    pd_wide_rows<64>(rows, t.a);
    for (int n = 0; n < 16; n++)
        x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0.0f;
    if (how != HOPPER_NO_BEGIN) pd_wgmma_fence();
    pd_wide_apply<PD_BF16, 128>(x, rows, t.b);
    if (how != HOPPER_OTHER_PRODUCTS || threadIdx.x < 192) pd_wide_scores<PD_BF16, 64>(y, t.a, t.a);
    pd_wgmma_commit();
    if ((how == HOPPER_OVERWRITES || how == HOPPER_NO_FENCE) && threadIdx.x == 200) t.b.data[70] = 0x3f80;
    if (how == HOPPER_OVERWRITES && threadIdx.x == 200) pd_async_fence();
    if (how == HOPPER_COMES_ALONE && threadIdx.x < 2 * PD_WARPGROUP - 32) pd_group_arrive(1, PD_WARPGROUP);
    if (how != HOPPER_NO_PRODUCT_WAIT) pd_wgmma_wait<0>();
    const uint32_t own = (threadIdx.x / 32 - 4) * 16;
    pd_fragments_put<128>(x, c, 128, own, 64);
    pd_fragments_put<64>(y, d, 64, own, 64);
}

pd_status exercise_hopper(enum exercise_hopper how, const uint16_t *a, uint32_t a_rows, const uint16_t *b, float *c,
                          float *d, struct pd_error *err)
{
    hopper_maps maps;
    PD_TRY(pd_tensor_map_make(&maps.a, a, 64, 64, a_rows, 1, err));
    PD_TRY(pd_tensor_map_make(&maps.b, b, 128, 128, 64, 1, err));
    return PD_LAUNCH(err, hopper, 1, 2 * PD_WARPGROUP, sizeof(hopper_tiles) + 1024, nullptr, how, maps, c, d);
}

void exercise_item_of(const struct pd_attention *resolved, uint64_t item, uint32_t tiles, int of,
                      struct exercise_item *ret_item)
{
    const pd_attention_item found = pd_attention_item_of(*resolved, item, tiles, static_cast<enum pd_attention_items>(of));
    *ret_item = {found.sequence, found.head, found.tile};
}

pd_status exercise_map(uint64_t columns, uint64_t ld, uint64_t rows, uint64_t sequences, struct pd_error *err)
{
    static const uint4 nothing = {0, 0, 0, 0};
    pd_tensor_map map;
    return pd_tensor_map_make(&map, &nothing, columns, ld, rows, sequences, err);
}

static __global__ void count_items(uint32_t *begun, const uint32_t items, uint32_t *counts)
{
    for (uint32_t item; (item = pd_queue_next(begun, items)) < items;)
        atomicAdd(counts + item, 1u);
}

pd_status exercise_queue(uint32_t *begun, uint32_t items, uint32_t blocks, uint32_t *counts, struct pd_error *err)
{
    return PD_LAUNCH(err, count_items, blocks, 1, 0, nullptr, begun, items, counts);
}
