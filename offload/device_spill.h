/* Spans of a device: what offload/spill.h does where their memory is not the host's. Callers use that header alone.
 *
 *   write   compute, copies_in, others ─▶ copies_out ─▶ memory of the host, or staging ─▶ file
 *   read    file ─▶ staging, or memory of the host ─▶ copies_in ─▶ compute
 *
 * The host waits for drives and for copies that go to them, each two spans later, and never for the device to compute. A
 * wait makes `compute` wait: what is put on it afterwards may use the span's memory, or finds what was read.
 */
#pragma once

#include "offload/spill.h"

struct pd_device_spill;

PD_MUST_USE pd_status pd_device_spill_new(const struct pd_spill_options *options, struct pd_device_spill **ret_spill,
                                          struct pd_error *err);
void pd_device_spill_free(struct pd_device_spill *spill);
PD_MUST_USE pd_status pd_device_spill_write(struct pd_device_spill *spill, uint32_t span, void *data, struct pd_error *err);
PD_MUST_USE pd_status pd_device_spill_read(struct pd_device_spill *spill, uint32_t span, void *data, struct pd_error *err);
PD_MUST_USE pd_status pd_device_spill_wait(struct pd_device_spill *spill, uint32_t span, struct pd_error *err);
