/* What torch.save(model.state_dict()) wrote, as a row of the table of formats: see format.h. */
#pragma once

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_torch;
