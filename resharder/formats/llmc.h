/* llm.c's files, as a row of the table of formats: see format.h. Read, not written. */
#ifndef PD_RESHARDER_FORMATS_LLMC_H
#define PD_RESHARDER_FORMATS_LLMC_H

#include "resharder/formats/format.h"

extern const struct pd_format pd_format_llmc;

#endif
