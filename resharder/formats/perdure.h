/* Our own checkpoints as a format, so that export, diff, show and stats handle one kind of source. Bytes are verified
 * block by block; chunked boxes are decompressed. The catalog of a run's checkpoint holds its configuration as "config.yaml",
 * a listed one has its writer's text as "metadata", and the texts of transformers beside it. */
#pragma once

#include "resharder/formats/format.h"

/* Reads a directory with a commit.h5. Import writes them, not this table. */
extern const struct pd_format pd_format_perdure;
#define PD_FORMAT_LISTED_TEXT "metadata"
