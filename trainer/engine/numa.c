#include "trainer/engine/numa.h"

#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CPUS_MAX 4096u
#define NODES_MAX 1024
#define PREFER_NODE 1 /* MPOL_PREFERRED of set_mempolicy(2) */

/* The first line of a file, without its end; "" if there is none. */
static void read_line(const char *path, char *ret_line, size_t bytes)
{
    FILE *f = fopen(path, "re");
    ret_line[0] = '\0';
    if (f && !fgets(ret_line, (int)bytes, f)) ret_line[0] = '\0';
    if (f) fclose(f);
    ret_line[strcspn(ret_line, "\n")] = '\0';
}

/* Adds the CPUs of a list like "0-3,8". False if it is not one. */
static bool add_list(const char *list, size_t set_bytes, cpu_set_t *set)
{
    while (*list) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (end == list) return false;
        list = end;
        if (*list == '-') {
            last = strtoul(list + 1, &end, 10);
            if (end == list + 1) return false;
            list = end;
        }
        for (; first <= last && first < CPUS_MAX; first++)
            CPU_SET_S(first, set_bytes, set);
        if (*list == ',') list++;
    }
    return true;
}

/* The usable CPUs of a list. Their number. */
static uint32_t usable_of(const char *list, size_t set_bytes, cpu_set_t *ret_set)
{
    uint32_t count = 0;
    cpu_set_t *allowed = calloc(1, set_bytes);
    memset(ret_set, 0, set_bytes);
    if (allowed && add_list(list, set_bytes, ret_set) && !sched_getaffinity(0, set_bytes, allowed)) {
        CPU_AND_S(set_bytes, ret_set, ret_set, allowed);
        count = (uint32_t)CPU_COUNT_S(set_bytes, ret_set);
    }
    free(allowed);
    return count;
}

void pd_numa_find(const char *root, const char *address, struct pd_numa_place *ret)
{
    char path[512], lower[32], line[32];
    size_t n = 0;
    *ret = (struct pd_numa_place){.node = -1};
    if (!root) root = getenv("PERDURE_TEST_SYSFS");
    if (!root) root = "/sys";
    for (; address[n] && n + 1 < sizeof lower; n++)
        lower[n] = (char)tolower((unsigned char)address[n]);
    lower[n] = '\0';
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", root, lower);
    read_line(path, line, sizeof line);
    if (!isdigit((unsigned char)line[0])) return; /* "-1": the firmware does not say */
    const long node = strtol(line, NULL, 10);
    if (node >= NODES_MAX) return;
    ret->node = (int)node;
    snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", root, ret->node);
    read_line(path, ret->cpus, sizeof ret->cpus);
    const size_t set_bytes = CPU_ALLOC_SIZE(CPUS_MAX);
    cpu_set_t *set = calloc(1, set_bytes);
    if (set) ret->usable = usable_of(ret->cpus, set_bytes, set);
    free(set);
}

bool pd_numa_bind(const struct pd_numa_place *place)
{
    const size_t set_bytes = CPU_ALLOC_SIZE(CPUS_MAX);
    unsigned long nodes[NODES_MAX / (8 * sizeof(unsigned long))] = {0};
    cpu_set_t *set = place->node < 0 ? NULL : calloc(1, set_bytes);
    const bool binds = set && usable_of(place->cpus, set_bytes, set) > 0 && !sched_setaffinity(0, set_bytes, set);
    free(set);
    if (!binds) return false;
    nodes[(size_t)place->node / (8 * sizeof *nodes)] |= 1ul << ((size_t)place->node % (8 * sizeof *nodes));
    /* Containers may forbid it. First touch by a bound thread then does most of the same. */
    (void)syscall(SYS_set_mempolicy, PREFER_NODE, nodes, (unsigned long)NODES_MAX);
    return true;
}
