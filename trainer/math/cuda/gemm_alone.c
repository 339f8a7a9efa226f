/* Products without cuBLASLt: all of them by our own kernel. */
#include "trainer/math/cuda/gemm.h"

pd_status pd_cuda_products_new(const struct pd_cuda_products_options *options, struct pd_cuda_products **ret_products,
                               struct pd_error *err)
{
    (void)options;
    (void)err;
    *ret_products = NULL;
    return PD_OK;
}

void pd_cuda_products_free(struct pd_cuda_products *products)
{
    (void)products;
}

pd_status pd_cuda_products_run(struct pd_cuda_products *products, void *stream, const struct pd_gemm *gemm,
                               struct pd_error *err)
{
    (void)products;
    return pd_cuda_gemm_plain(stream, gemm, err);
}
