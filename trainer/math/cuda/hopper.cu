/* The driver builds tensor maps; its function is looked up on first use, because perdure does not link libcuda. */
#ifndef PD_SIMT
#include "trainer/math/cuda/hopper.h"

#include <cuda.h>
#include <cuda_runtime.h>

static_assert(sizeof(pd_tensor_map) == sizeof(CUtensorMap) && alignof(pd_tensor_map) >= alignof(CUtensorMap), "one thing");

using encoder = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                             const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static pd_status find_encoder(encoder *ret_encode, struct pd_error *err)
{
    static encoder found; /* concurrent lookups find the same */
    encoder encode = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!encode) {
        cudaDriverEntryPointQueryResult result;
        void **place = reinterpret_cast<void **>(&encode);
#if CUDART_VERSION >= 12050
        const cudaError_t code =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", place, 12000, cudaEnableDefault, &result);
#else
        const cudaError_t code = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", place, cudaEnableDefault, &result);
#endif
        if (code != cudaSuccess) (void)cudaGetLastError(); /* the next kernel's launch would meet it */
        if (code != cudaSuccess || result != cudaDriverEntryPointSuccess)
            return pd_error_set(err, PD_UNSUPPORTED, PD_WHERE, 0,
                                "the driver has no cuTensorMapEncodeTiled (%s): install one for CUDA 12 or later, or set "
                                "PERDURE_ATTENTION=mma",
                                cudaGetErrorString(code));
        __atomic_store_n(&found, encode, __ATOMIC_RELAXED);
    }
    *ret_encode = encode;
    return PD_OK;
}

pd_status pd_tensor_map_make(pd_tensor_map *map, const void *data, uint64_t columns, uint64_t ld, uint64_t rows,
                             uint64_t sequences, struct pd_error *err)
{
    const cuuint64_t sizes[3] = {columns, rows, sequences}, strides[2] = {2 * ld, 2 * ld * rows};
    const cuuint32_t box[3] = {PD_BOX, PD_BOX, 1}, steps[3] = {1, 1, 1};
    encoder encode = nullptr;
    PD_TRY(find_encoder(&encode, err));
    const CUresult code =
        encode(reinterpret_cast<CUtensorMap *>(map), CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<void *>(data), sizes,
               strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code == CUDA_SUCCESS) return PD_OK;
    return pd_error_set(err, PD_BUG, PD_WHERE, 0, "a tensor map of %llu x %llu x %llu elements, rows %llu apart: error %d",
                        (unsigned long long)sequences, (unsigned long long)rows, (unsigned long long)columns,
                        (unsigned long long)ld, (int)code);
}

pd_status pd_multiprocessors(uint32_t *ret_count, struct pd_error *err)
{
    int device, count;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    if (code != cudaSuccess)
        return pd_error_set(err, PD_DEVICE_LOST, PD_WHERE, 0, "the GPU's multiprocessors: %s", cudaGetErrorString(code));
    *ret_count = static_cast<uint32_t>(count);
    return PD_OK;
}
#endif
