/* Rows of pd_families, in the table's order (unit.model.families compares the names). */
#pragma once

enum { PD_FAMILY_LLAMA, PD_FAMILY_GPT2, PD_FAMILY_QWEN3, PD_FAMILY_MIXTRAL, PD_FAMILY_QWEN3_MOE, PD_FAMILY_OLMOE, PD_FAMILY_GLM4_MOE };
