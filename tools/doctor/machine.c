/* Processor and memory, as the kernel tells them. */
#include "tools/doctor/findings.h"

#include "ckpt/base/cpu.h"
#include "ckpt/base/memory_limit.h"
#include "ckpt/base/parse.h"
#include "tools/output.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static void find_cores(struct pd_findings *findings)
{
    char model[128];
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN), usable = online;
    if (sched_getaffinity(0, sizeof set, &set) == 0) usable = CPU_COUNT(&set);
    /* The value of "model name : value" in /proc/cpuinfo. */
    size_t bytes = sizeof model;
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(model, bytes, "unknown processor");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", strlen("model name")) != 0) continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(model, bytes, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    if (file) fclose(file);
    const double quota = pd_cpu_quota(NULL);
    struct pd_finding *f = pd_findings_add(findings, "cores", PD_FINDING_OK, "%ld of %ld usable, %s", usable, online, model);
    if (quota < (double)usable)
        pd_finding_limit(f, "the cgroup grants %.1f cores of time: layout.ranks x layout.threads beyond that wait", quota);
}

static void find_isa(struct pd_findings *findings)
{
    enum pd_isa isa;
    struct pd_error err;
    char offered[64] = "";
    for (int i = PD_ISA_PORTABLE; i < PD_ISA_COUNT; i++) {
        size_t used = strlen(offered);
        if (pd_isa_available((enum pd_isa)i))
            snprintf(offered + used, sizeof offered - used, "%s%s", used ? ", " : "", pd_isa_name((enum pd_isa)i));
    }
    if (pd_isa_resolve(PD_ISA_AUTO, &isa, &err)) {
        struct pd_finding *f = pd_findings_add(findings, "kernels", PD_FINDING_MISSING, "%s", offered);
        pd_finding_advise(f, "%.190s", err.message);
        return;
    }
    pd_findings_add(findings, "kernels", isa == PD_ISA_PORTABLE ? PD_FINDING_LIMITED : PD_FINDING_OK, "%s; used: %s",
                    offered, pd_isa_name(isa));
}

void pd_find_processor(struct pd_findings *findings)
{
    find_cores(findings);
    find_isa(findings);
    pd_find_gpus(findings);
}

static void find_ram(struct pd_findings *findings)
{
    const struct pd_memory_places no_groups = {.cgroups.self = "/dev/null"}, groups_alone = {.meminfo = "/dev/null"};
    struct pd_memory_limit machine = {0}, group;
    (void)pd_memory_limit_read(&no_groups, &machine);
    struct pd_finding *f = pd_findings_add(findings, "memory", PD_FINDING_OK, "%s, %s available",
                                           pd_text_bytes(machine.limit_bytes).text, pd_text_bytes(machine.free_bytes).text);
    if (pd_memory_limit_read(&groups_alone, &group) && group.most_bytes < machine.most_bytes)
        pd_finding_limit(f, "%s ends at %s: compare with perdure plan", group.most_who,
                         pd_text_bytes(group.most_bytes).text);
}

static void find_lockable(struct pd_findings *findings)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit)) return;
    if (limit.rlim_cur == RLIM_INFINITY || geteuid() == 0) {
        pd_findings_add(findings, "lockable memory", PD_FINDING_OK, "unlimited");
        return;
    }
    struct pd_finding *f =
        pd_findings_add(findings, "lockable memory", PD_FINDING_OK, "%s", pd_text_bytes(limit.rlim_cur).text);
    if (limit.rlim_cur >= 64 * MIB) return;
    pd_finding_limit(f, "I/O buffers may stay unregistered: ulimit -l unlimited, or memlock in /etc/security/limits.conf");
}

static void find_shared(struct pd_findings *findings)
{
    struct statvfs space;
    if (statvfs("/dev/shm", &space)) {
        struct pd_finding *f = pd_findings_add(findings, "/dev/shm", PD_FINDING_MISSING, "not there");
        pd_finding_advise(f, "ranks of one host share memory there: mount -t tmpfs tmpfs /dev/shm");
        return;
    }
    uint64_t free_bytes = (uint64_t)space.f_bavail * space.f_frsize;
    struct pd_finding *f =
        pd_findings_add(findings, "/dev/shm", PD_FINDING_OK, "%s, %s free",
                        pd_text_bytes((uint64_t)space.f_blocks * space.f_frsize).text, pd_text_bytes(free_bytes).text);
    if (free_bytes >= 256 * MIB) return;
    pd_finding_limit(f, "many ranks will not fit: docker run --shm-size=1g, or an emptyDir of medium Memory in Kubernetes");
}

static void find_files(struct pd_findings *findings)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    struct pd_finding *f =
        pd_findings_add(findings, "open files", PD_FINDING_OK, "%" PRIu64 " at most", (uint64_t)limit.rlim_cur);
    if (limit.rlim_cur >= 1024) return;
    pd_finding_limit(f, "checkpoints of many ranks need more: ulimit -n 4096");
}

void pd_find_memory(struct pd_findings *findings)
{
    find_ram(findings);
    find_lockable(findings);
    find_shared(findings);
    find_files(findings);
}
