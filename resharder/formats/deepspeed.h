/* DeepSpeed's ZeRO checkpoints, as a row of the table of formats: see format.h. */
#ifndef PD_RESHARDER_FORMATS_DEEPSPEED_H
#define PD_RESHARDER_FORMATS_DEEPSPEED_H

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_deepspeed;

#endif
