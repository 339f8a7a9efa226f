/* Files of torch.save(model.state_dict()), as a row of the format table: see format.h. */
#pragma once

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_torch;

struct pd_torch_archive;
struct pd_pickle_node;
/* Adds a tensor of an open archive, whose file has this number in the catalog; lists one of a type that is not read. */
PD_MUST_USE pd_status pd_torch_add_tensor(struct pd_catalog *catalog, const struct pd_torch_archive *archive, uint32_t file,
                                          const char *name, const struct pd_pickle_node *node, struct pd_error *err);
