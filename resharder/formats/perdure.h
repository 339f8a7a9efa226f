/* A checkpoint of ours as a format among the others: read, so that export, diff, show and stats know one kind of source. Its
 * bytes are verified block by block; boxes in chunks are decompressed. The catalog has the configuration as "config.yaml". */
#pragma once

#include "resharder/formats/format.h"

/* Reads a directory with a commit.h5. Written by import, not through the table. */
extern const struct pd_format pd_format_perdure;
