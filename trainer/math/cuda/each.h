/* Elementwise kernels: one operation on each element of an array, or of rows of columns. An operation is a struct of
 * operands with
 *
 *   template <int N> __device__ void at(uint64_t i) const                       elements i to i + N
 *   template <int N> __device__ void at(uint64_t row, uint64_t column) const    columns to column + N
 *
 * where N is W (all pointers 16-aligned, rows and columns multiples of W apart) or 1. N does not affect results. */
#pragma once

#include "trainer/math/cuda/element.h"

template <typename Operation, int N> static __global__ void pd_each(uint64_t n, Operation operation)
{
    const uint64_t i = (static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    if (i + N <= n) {
        operation.template at<N>(i);
        return;
    }
    for (uint64_t one = i; one < n; one++)
        operation.template at<1>(one);
}

/* A block handles part of one row. */
template <typename Operation, int N> static __global__ void pd_each_row(uint64_t columns, Operation operation)
{
    const uint64_t column = (static_cast<uint64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
    if (column < columns) operation.template at<N>(blockIdx.x, column);
}

template <int W, typename Operation>
pd_status pd_each_launch(void *stream, uint64_t n, bool aligned, Operation operation, struct pd_error *err)
{
    if (aligned)
        return PD_LAUNCH(err, (pd_each<Operation, W>), pd_blocks(n, W * PD_THREADS), PD_THREADS, 0, stream, n, operation);
    return PD_LAUNCH(err, (pd_each<Operation, 1>), pd_blocks(n, PD_THREADS), PD_THREADS, 0, stream, n, operation);
}

template <int W, typename Operation>
pd_status pd_each_row_launch(void *stream, uint64_t rows, uint64_t columns, bool aligned, Operation operation,
                             struct pd_error *err)
{
    const uint64_t items = aligned && columns % W == 0 ? columns / W : columns;
    const unsigned threads = items < PD_THREADS ? pd_blocks(items, PD_WARP) * PD_WARP : PD_THREADS;
    const dim3 grid(static_cast<unsigned>(rows), pd_blocks(items, threads ? threads : 1));
    if (aligned && columns % W == 0)
        return PD_LAUNCH(err, (pd_each_row<Operation, W>), grid, threads, 0, stream, columns, operation);
    return PD_LAUNCH(err, (pd_each_row<Operation, 1>), grid, threads, 0, stream, columns, operation);
}
