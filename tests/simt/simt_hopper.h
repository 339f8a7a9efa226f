/* Compute capability 9.0 on fibers, see trainer/math/cuda/hopper.h. It finds
 *
 *   - a product that nobody waited for: its registers hold NaN until the wait, and its tiles are read only then
 *   - a product without a begin before it, threads of a warpgroup that do not make the same products
 *   - tiles read before their barrier was waited for (copies come as late as they can, NaN patterns until then), tiles
 * filled anew while they are read, barriers that were not initialised, phases that never end
 *   - ordinary stores that products read, or that a box is copied over, with no pd_async_fence after them; whose fence it is
 *     does not show
 *   - threads that come to a numbered barrier and nobody else does
 *   - boxes, descriptors and registers that a device would not take */
#pragma once

#define __grid_constant__

struct pd_tensor_map {
    const unsigned char *data;
    uint64_t columns, row_bytes, rows, sequences;
};

uint32_t pd_shared_address(const void *shared);
void pd_barrier_init(uint64_t *barrier, uint32_t arrivals);
void pd_barrier_init_done(void);
void pd_barrier_arrive(uint64_t *barrier);
void pd_barrier_arrive_expect(uint64_t *barrier, uint32_t bytes);
void pd_barrier_wait(uint64_t *barrier, uint32_t parity);
void pd_box_load(void *shared, const pd_tensor_map *map, uint32_t column, uint32_t row, uint32_t sequence,
                 uint64_t *barrier);
/* Blocks run one after the other, and each leaves a share of the items to those that come after it. */
uint32_t pd_queue_next(uint32_t *begun, uint32_t items);
/* Items of a launch run in the order of the queue: who is not there now never comes. */
void pd_count_wait(const uint32_t *count, uint32_t value);
void pd_count_say(uint32_t *count, uint32_t value);
void pd_group_sync(uint32_t number, uint32_t threads);
void pd_group_arrive(uint32_t number, uint32_t threads);
void pd_wgmma_fence(void);
void pd_wgmma_commit(void);
void simt_product_wait(unsigned pending);
void simt_registers(int count);

struct simt_product {
    bool bf16, add, turned, in_registers, a_turned;
    unsigned pieces; /* of 8 columns */
    uint64_t a, b;
    uint32_t registers[4];
};
void simt_product_start(float *c, const simt_product &product);

void pd_async_fence(void);

PD_DEVICE void pd_wgmma_delay_wait(float, void *)
{
}

template <int count> void pd_registers_take(void)
{
    simt_registers(count);
}

template <int count> void pd_registers_give(void)
{
    simt_registers(count);
}

template <int pending> void pd_wgmma_wait(void)
{
    simt_product_wait(pending);
}

template <int N> void pd_wgmma_pin(float (&c)[N][4])
{
    (void)c;
}

template <enum pd_dtype T, bool ADD, int N> void pd_wgmma(float (&c)[N][4], uint64_t a, uint64_t b)
{
    static_assert(N == 8 || N == 16, "64 or 128 columns");
    simt_product_start(&c[0][0], {T == PD_BF16, ADD, false, false, false, N, a, b, {0, 0, 0, 0}});
}

template <enum pd_dtype T> void pd_wgmma_down(float (&c)[8][4], uint64_t a, uint64_t b)
{
    simt_product_start(&c[0][0], {T == PD_BF16, true, true, false, true, 8, a, b, {0, 0, 0, 0}});
}

template <enum pd_dtype T, bool ADD, bool TURNED, int N> void pd_wgmma(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b)
{
    static_assert(N == 8 || N == 16, "64 or 128 columns");
    simt_product_start(&c[0][0], {T == PD_BF16, ADD, TURNED, true, false, N, 0, b, {a[0], a[1], a[2], a[3]}});
}
