/* DeepSpeed's checkpoints as rows of the table of formats: see format.h. Read, not written. */
#ifndef PD_RESHARDER_FORMATS_DEEPSPEED_H
#define PD_RESHARDER_FORMATS_DEEPSPEED_H

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_deepspeed; /* ZeRO, stages 1 to 3 */
extern const struct pd_format pd_format_universal; /* universal.c */

#endif
