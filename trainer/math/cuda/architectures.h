/* Selects kernels by the GPU's compute capability, one row each. A capability that is not listed runs the machine code of
 * the latest earlier row with its major number, else PTX of 8.0, which the driver compiles: correct, speed untested.
 *
 *   code       what the build compiles for it (PERDURE_CUDA_ARCHITECTURES): machine code runs on its own capability and on
 *              later ones of the same major number
 *   attention  wgmma needs exactly 9.0, and a build that has its kernels
 *   shared     bytes of shared memory a block can request; kernels other than those of 9.0 stay within the least of them
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum pd_attention_kernels { PD_ATTENTION_PLAIN, PD_ATTENTION_MMA, PD_ATTENTION_WGMMA };

struct pd_architecture {
    uint32_t capability, code; /* 86 for 8.6 */
    const char *examples;
    enum pd_attention_kernels attention;
    uint32_t shared_bytes;
};

#define PD_ARCHITECTURES 6u
extern const struct pd_architecture pd_architectures[PD_ARCHITECTURES];

/* Returns NULL if it is not listed. */
const struct pd_architecture *pd_architecture_of(uint32_t capability);
/* For heads and types with tensor core tiles; others use PD_ATTENTION_PLAIN. */
enum pd_attention_kernels pd_attention_kernels_of(uint32_t capability, bool build_has_wgmma);

/* Names the attention kernels for these sizes on a GPU of this capability (90 for 9.0). attention_launch.cu */
struct pd_attention;
void pd_cuda_attention_name(const struct pd_attention *sizes, uint32_t capability, char *ret_name, size_t bytes);

#ifdef __cplusplus
}
#endif
