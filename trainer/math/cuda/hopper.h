/* What kernels for compute capability 9.0 use besides grid.h: warpgroup matrix products, barriers that count bytes, and
 * tensor boxes copied into shared memory. Compiled only for sm_90a, and for the host (tests/simt/simt_hopper.h).
 *
 * A tile consists of boxes of ROWS rows by 64 columns of 16-bit numbers, 1024-aligned. The 16-byte chunk c of row r, 128
 * bytes per row, is stored at c ^ (r & 7). Both copies and products use this order ("128-byte swizzle").
 *
 *   invariant  do not touch the registers and tiles of a product between the product and the wait for its group
 *   source     PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions", "mbarrier", "cp.async.bulk.tensor" */
#pragma once

#include "trainer/math/cuda/grid.h"

#define PD_WARPGROUP 128u
#define PD_BOX 64u /* rows and columns per copy */
#define PD_BOX_BYTES (PD_BOX * PD_BOX * 2u)

#ifdef PD_SIMT
#include <simt_hopper.h>
#else

/* The device's descriptor of an array (sequences, rows, columns) in global memory. */
struct alignas(128) pd_tensor_map {
    uint64_t words[16];
};

/* ---- barriers in shared memory ---- */

PD_DEVICE void pd_barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(pd_shared_address(barrier)), "r"(arrivals) : "memory");
}

/* Called by the thread that initialised barriers, before others see them. */
PD_DEVICE void pd_barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

PD_DEVICE void pd_barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(pd_shared_address(barrier)) : "memory");
}

/* Arrives; the phase then ends only after `bytes` more are copied. */
PD_DEVICE void pd_barrier_arrive_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(pd_shared_address(barrier)), "r"(bytes)
                 : "memory");
}

/* Waits for the end of the phase of this parity; the first is 0. */
PD_DEVICE void pd_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(pd_shared_address(barrier)), "r"(parity)
                     : "memory");
    } while (!done);
}

/* ---- copies ---- */

/* Copies the box at (sequence, row, column) to shared, zeros beyond the array; the barrier counts its bytes. */
PD_DEVICE void pd_box_load(void *shared, const pd_tensor_map *map, uint32_t column, uint32_t row, uint32_t sequence,
                           uint64_t *barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(pd_shared_address(shared)),
        "l"(map), "r"(column), "r"(row), "r"(sequence), "r"(pd_shared_address(barrier))
        : "memory");
}

/* Call between this thread's access to shared memory and copies or products that use it. */
PD_DEVICE void pd_async_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- blocks that take items ---- */

/* Returns an item of `items` not yet taken by any block, or a number not below `items`: none left. A block asks once after
 * its last item, so the last reply of a launch resets the counter to 0. The grid must be one-dimensional. */
PD_DEVICE uint32_t pd_queue_next(uint32_t *begun, uint32_t items)
{
    return atomicInc(begun, items + gridDim.x - 1);
}

/* ---- turns of blocks ---- */

/* Waits until *count is `value`. This thread then sees everything the other block wrote before setting it. Wait only for an
 * earlier item of the queue, or blocks deadlock. */
PD_DEVICE void pd_count_wait(const uint32_t *count, uint32_t value)
{
    uint32_t now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
    } while (now != value);
}

PD_DEVICE void pd_count_say(uint32_t *count, uint32_t value)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(count), "r"(value) : "memory");
}

/* ---- warpgroups ---- */

/* A barrier of `threads` threads, whole warps; number 1 to 15. */
PD_DEVICE void pd_group_sync(uint32_t number, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Arrives without waiting. */
PD_DEVICE void pd_group_arrive(uint32_t number, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Sets the number of registers per thread of this warpgroup. */
template <int count> PD_DEVICE void pd_registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count> PD_DEVICE void pd_registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

/* ---- products of a warpgroup, asynchronous until waited for ---- */

/* Call before the first product after registers were touched. */
PD_DEVICE void pd_wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

PD_DEVICE void pd_wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most `pending` of the latest groups are in flight. */
template <int pending> PD_DEVICE void pd_wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* Keeps the compiler from moving accesses to c across a begin or a wait. */
template <int N> PD_DEVICE void pd_wgmma_pin(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}

/* Forces x (not negative), and all it depends on, to be computed before the wait that follows. ptxas moves a wait up as far
 * as it can, and then nothing is computed during the products. It does not move it across a store; this store never happens.
 */
PD_DEVICE void pd_wgmma_delay_wait(float x, void *shared)
{
    asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p st.volatile.shared.f32 [%1], %0;\n}" ::"f"(x),
                 "r"(pd_shared_address(shared))
                 : "memory");
}

#define PD_C4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define PD_C32 PD_C4(0), PD_C4(1), PD_C4(2), PD_C4(3), PD_C4(4), PD_C4(5), PD_C4(6), PD_C4(7)
#define PD_C64 PD_C32, PD_C4(8), PD_C4(9), PD_C4(10), PD_C4(11), PD_C4(12), PD_C4(13), PD_C4(14), PD_C4(15)
#define PD_NAMES32                                                                                               \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
    "%29,%30,%31"
#define PD_NAMES64                                                                                                 \
    PD_NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55," \
               "%56,%57,%58,%59,%60,%61,%62,%63"
#define PD_EACH(...) __VA_ARGS__
/* `last`: index of the operand that says whether to add to c. */
#define PD_PRODUCT(shape, type, names, operands, last, outputs, inputs)                                                \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" last ", 0;\nwgmma.mma_async.sync.aligned." shape "k16.f32." type \
                 "." type " {" names "}, " operands ";\n}"                                                             \
                 : PD_EACH outputs                                                                                     \
                 : PD_EACH inputs)
#define PD_PRODUCT_TYPES(shape, ...)                \
    do {                                            \
        if (T == PD_BF16)                           \
            PD_PRODUCT(shape, "bf16", __VA_ARGS__); \
        else                                        \
            PD_PRODUCT(shape, "f16", __VA_ARGS__);  \
    } while (0)

/* c (64, 8 N) = [c +] A (64,16) B (16, 8 N). c[n] as in pd_mma_m16n8k16 for columns from 8 n; warp w of the four has rows
 * from 16 w. a, b: matrix descriptors whose rows are A's rows, and B's columns. */
template <enum pd_dtype T, bool ADD, int N> PD_DEVICE void pd_wgmma(float (&c)[N][4], uint64_t a, uint64_t b)
{
    static_assert(N == 8 || N == 16, "64 or 128 columns");
    if constexpr (N == 8)
        PD_PRODUCT_TYPES("m64n64", PD_NAMES32, "%32, %33, p, 1, 1, 0, 0", "34", (PD_C32), ("l"(a), "l"(b), "n"((int)ADD)));
    else
        PD_PRODUCT_TYPES("m64n128", PD_NAMES64, "%64, %65, p, 1, 1, 0, 0", "66", (PD_C64), ("l"(a), "l"(b), "n"((int)ADD)));
}

/* c (64, 64) += A B; rows of both descriptors are k. */
template <enum pd_dtype T> PD_DEVICE void pd_wgmma_down(float (&c)[8][4], uint64_t a, uint64_t b)
{
    PD_PRODUCT_TYPES("m64n64", PD_NAMES32, "%32, %33, p, 1, 1, 1, 1", "34", (PD_C32), ("l"(a), "l"(b), "n"(1)));
}

#define PD_A4 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

/* A in registers, as in pd_mma_m16n8k16. TURNED: rows of b's descriptor are k. */
template <enum pd_dtype T, bool ADD, bool TURNED, int N>
PD_DEVICE void pd_wgmma(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b)
{
    static_assert(N == 8 || N == 16, "64 or 128 columns");
    if constexpr (N == 8)
        PD_PRODUCT_TYPES("m64n64", PD_NAMES32, "{%32,%33,%34,%35}, %36, p, 1, 1, %38", "37", (PD_C32),
                         (PD_A4, "l"(b), "n"((int)ADD), "n"((int)TURNED)));
    else
        PD_PRODUCT_TYPES("m64n128", PD_NAMES64, "{%64,%65,%66,%67}, %68, p, 1, 1, %70", "69", (PD_C64),
                         (PD_A4, "l"(b), "n"((int)ADD), "n"((int)TURNED)));
}

#endif

/* Describes an array (sequences, rows, columns), rows ld elements apart, for box copies; needs 16-byte alignment. */
pd_status pd_tensor_map_make(pd_tensor_map *map, const void *data, uint64_t columns, uint64_t ld, uint64_t rows,
                             uint64_t sequences, struct pd_error *err);

/* Number of multiprocessors of the current device. */
pd_status pd_multiprocessors(uint32_t *ret_count, struct pd_error *err);
