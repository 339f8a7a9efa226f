/* Files of torch.save(model.state_dict()), as a row of the format table: see format.h. */
#pragma once

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_torch;
