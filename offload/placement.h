/* Where a part of a rank's state lives during training. Bits do not depend on it.
 *
 * device and cpu are the same memory if the device is the CPU. nvme: files that stream through buffers of fixed size. */
#pragma once

enum pd_place { PD_PLACE_DEVICE, PD_PLACE_CPU, PD_PLACE_NVME };
