/* In builds without cuDNN's headers. */
#include "trainer/math/cuda/attention_cudnn.h"

bool pd_cudnn_attention_takes(const struct pd_attention *attention)
{
    (void)attention;
    return true; /* so that whoever asks for it is told */
}

static pd_status absent(struct pd_error *err)
{
    PD_FAIL(err, PD_UNSUPPORTED,
            "this build has no cuDNN: install its headers and configure it again; PERDURE_ATTENTION=cudnn asks for it");
}

pd_status pd_cudnn_attention_forward(void *stream, const struct pd_attention *attention, struct pd_error *err)
{
    (void)stream, (void)attention;
    return absent(err);
}

pd_status pd_cudnn_attention_backward(void *stream, const struct pd_attention *attention, struct pd_error *err)
{
    (void)stream, (void)attention;
    return absent(err);
}
