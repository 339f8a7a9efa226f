/* NUMA nodes: which one a GPU's PCI device belongs to, and binding a rank to it. Memory of another node costs copies to and from
 * the GPU bandwidth.
 *
 * Reads sysfs: <root>/bus/pci/devices/<address>/numa_node and <root>/devices/system/node/node<n>/cpulist. root NULL: /sys, or
 * PERDURE_TEST_SYSFS.
 *   threads  any; binding concerns the calling thread and those that it starts later */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pd_numa_place {
    int node;        /* -1: unknown, or the machine has one node */
    char cpus[128];  /* of the node, "0-15,32-47"; "": unknown */
    uint32_t usable; /* of these, how many this process may use */
};

/* address: "0000:17:00.0", in any case. */
void pd_numa_find(const char *root, const char *address, struct pd_numa_place *ret_place);
/* The calling thread runs on the usable CPUs of the node, and its memory comes from there while there is some. False, and
 * nothing has changed, if the node is unknown or has no usable CPU: whoever started this process chose others. */
bool pd_numa_bind(const struct pd_numa_place *place);
