/* Where a part of a rank's state lives while it trains.
 *
 * device and cpu are the same memory where the device is the CPU. nvme: files that stream through buffers of fixed size.
 * Bits do not depend on it. */
#pragma once

enum pd_place { PD_PLACE_DEVICE, PD_PLACE_CPU, PD_PLACE_NVME };
