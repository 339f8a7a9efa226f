/* What torch.save(model.state_dict()) wrote, as a row of the table of formats: see format.h. */
#ifndef PD_RESHARDER_FORMATS_TORCH_H
#define PD_RESHARDER_FORMATS_TORCH_H

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_torch;

#endif
