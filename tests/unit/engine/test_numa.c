/* Nodes and CPUs in a made-up sysfs, and a thread that is bound to them. */
#include "trainer/engine/numa.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[256];

static void make(const char *file, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, file);
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(path, 0755);
        *at = '/';
    }
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f, "%s", path);
    fputs(text, f);
    fclose(f);
}

static void begin(void)
{
    snprintf(root, sizeof root, "/tmp/perdure-numa-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void end(void)
{
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
}

TestSuite(numa, .init = begin, .fini = end);

static int first_allowed(void)
{
    cpu_set_t set;
    int cpu = 0;
    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    while (!CPU_ISSET(cpu, &set))
        cpu++;
    return cpu;
}

Test(numa, the_node_of_a_gpu)
{
    struct pd_numa_place place;
    char list[64];
    snprintf(list, sizeof list, "%d,5000-5003\n", first_allowed());
    make("bus/pci/devices/0000:ab:00.0/numa_node", "1\n");
    make("bus/pci/devices/0000:ac:00.0/numa_node", "-1\n");
    make("bus/pci/devices/0000:ad:00.0/numa_node", "3\n");
    make("devices/system/node/node1/cpulist", list);
    pd_numa_find(root, "0000:AB:00.0", &place);
    cr_assert_eq(place.node, 1);
    cr_assert_eq(place.usable, 1);
    cr_assert_eq(strcspn(list, "\n"), strlen(place.cpus));
    cr_assert_eq(strncmp(list, place.cpus, strlen(place.cpus)), 0);
    pd_numa_find(root, "0000:ac:00.0", &place);
    cr_assert_eq(place.node, -1, "the firmware does not say");
    pd_numa_find(root, "0000:ae:00.0", &place);
    cr_assert(place.node == -1 && place.usable == 0, "no such device");
    pd_numa_find(root, "0000:ad:00.0", &place);
    cr_assert(place.node == 3 && place.usable == 0 && place.cpus[0] == '\0', "a node without CPUs");
    cr_assert_not(pd_numa_bind(&place));
}

static void *count_cpus(void *ret)
{
    cpu_set_t set;
    *(int *)ret = sched_getaffinity(0, sizeof set, &set) ? -1 : CPU_COUNT(&set);
    return NULL;
}

Test(numa, a_bound_thread_and_those_that_it_starts)
{
    struct pd_numa_place place = {.node = 0};
    pthread_t thread;
    int counted = 0;
    cpu_set_t before, after;
    cr_assert_eq(sched_getaffinity(0, sizeof before, &before), 0);
    snprintf(place.cpus, sizeof place.cpus, "5000-5003");
    cr_assert_not(pd_numa_bind(&place), "CPUs that are not there");
    snprintf(place.cpus, sizeof place.cpus, "x");
    cr_assert_not(pd_numa_bind(&place), "no list");
    cr_assert_eq(sched_getaffinity(0, sizeof after, &after), 0);
    cr_assert(CPU_EQUAL(&before, &after), "nothing has changed");
    snprintf(place.cpus, sizeof place.cpus, "%d", first_allowed());
    cr_assert(pd_numa_bind(&place));
    cr_assert_eq(pthread_create(&thread, NULL, count_cpus, &counted), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(counted, 1);
}
