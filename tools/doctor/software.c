/* The kernel, MPI, the libraries this process runs with, and tools beside it. */
#include "tools/doctor/findings.h"

#include "trainer/launch/outer.h"
#include "trainer/launch/starter.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

/* The first line that a command prints. */
static void first_line_of(const char *command, char *ret, size_t bytes)
{
    ret[0] = '\0';
    FILE *pipe = popen(command, "re");
    if (!pipe) return;
    if (!fgets(ret, (int)bytes, pipe)) ret[0] = '\0';
    char rest[256];
    while (fgets(rest, sizeof rest, pipe)) {
    }
    pclose(pipe);
    ret[strcspn(ret, "\n")] = '\0';
}

static void find_mpi(struct pd_findings *findings)
{
    char path[4096], version[128];
    struct pd_error err;
    if (pd_outer_check_slurm(&err)) {
        pd_finding_limit(pd_findings_add(findings, "mpi launcher", PD_FINDING_OK, "squeue does not know of job %.40s",
                                         getenv("SLURM_JOB_ID") ? getenv("SLURM_JOB_ID") : getenv("SLURM_JOBID")),
                         "if Slurm's variables are left over: env -u SLURM_JOB_ID -u SLURM_JOBID perdure ...");
        return;
    }
    bool srun = getenv("SLURM_JOB_ID") && pd_starter_find_program("srun", path);
    if (srun) {
        pd_findings_add(findings, "mpi launcher", PD_FINDING_OK, "srun, inside Slurm job %s", getenv("SLURM_JOB_ID"));
        return;
    }
    if (!pd_starter_find_program("mpirun", path)) {
        struct pd_finding *f = pd_findings_add(findings, "mpi launcher", PD_FINDING_MISSING, "no mpirun on PATH");
        pd_finding_advise(f, "apt-get install openmpi-bin; without it: layout.transport=local");
        return;
    }
    first_line_of("mpirun --version 2>&1", version, sizeof version);
    pd_findings_add(findings, "mpi launcher", PD_FINDING_OK, "%.100s: %.90s", path, version);
}

/* Third-party libraries that matter, by the start of their file name. */
static const struct library {
    const char *prefix, *what, *missing;
} libraries[] = {
    {"libhdf5_serial.so", "hdf5", "apt-get install libhdf5-dev, then build again"},
    {"liburing.so", "liburing", "apt-get install liburing-dev, then build again"},
    {"libxxhash.so", "xxhash", "apt-get install libxxhash-dev, then build again"},
    {"libzstd.so", "zstd", "apt-get install libzstd-dev, then build again"},
    {"libz.so", "zlib", "apt-get install zlib1g-dev, then build again"},
    {"libmpi.so", "mpi library", "apt-get install libopenmpi-dev, then build again without -DPERDURE_MPI=OFF"},
    {"libyaml-0.so", "yaml", "apt-get install libyaml-dev, then build again"},
    {"libjansson.so", "jansson", "apt-get install libjansson-dev, then build again"},
};
#define LIBRARY_COUNT (sizeof libraries / sizeof libraries[0])

struct loaded {
    char paths[LIBRARY_COUNT][256];
};

static int look_at_object(struct dl_phdr_info *info, size_t bytes, void *context)
{
    struct loaded *loaded = context;
    const char *slash = strrchr(info->dlpi_name, '/');
    (void)bytes;
    if (!slash) return 0;
    for (size_t i = 0; i < LIBRARY_COUNT; i++)
        if (strncmp(slash + 1, libraries[i].prefix, strlen(libraries[i].prefix)) == 0)
            snprintf(loaded->paths[i], sizeof loaded->paths[i], "%s", info->dlpi_name);
    return 0;
}

/* The version stands in the name of the file that a soname leads to. */
static void find_libraries(struct pd_findings *findings)
{
    struct loaded loaded = {0};
    dl_iterate_phdr(look_at_object, &loaded);
    for (size_t i = 0; i < LIBRARY_COUNT; i++) {
        if (!loaded.paths[i][0]) {
            struct pd_finding *f = pd_findings_add(findings, libraries[i].what, PD_FINDING_MISSING, "not in this build");
            pd_finding_advise(f, "%s", libraries[i].missing);
            continue;
        }
        char *real = realpath(loaded.paths[i], NULL);
        pd_findings_add(findings, libraries[i].what, PD_FINDING_OK, "%.190s", real ? real : loaded.paths[i]);
        free(real);
    }
}

static const struct program {
    const char *name, *what, *advice;
    enum pd_finding_state absent;
} programs[] = {
    {"h5ls", "hdf5 tools", "to look into checkpoints: apt-get install hdf5-tools", PD_FINDING_LIMITED},
    {"ssh", "remote shell", "for hosts of launch.hosts: apt-get install openssh-client, or another launch.agent",
     PD_FINDING_UNUSED},
};

static void find_programs(struct pd_findings *findings)
{
    char path[4096];
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        const struct program *p = &programs[i];
        if (pd_starter_find_program(p->name, path)) {
            pd_findings_add(findings, p->what, PD_FINDING_OK, "%.190s", path);
            continue;
        }
        struct pd_finding *f = pd_findings_add(findings, p->what, p->absent, "no %s on PATH", p->name);
        pd_finding_advise(f, "%s", p->advice);
    }
}

void pd_find_software(struct pd_findings *findings)
{
    struct utsname kernel;
    if (uname(&kernel) == 0)
        pd_findings_add(findings, "kernel", PD_FINDING_OK, "%.60s %.60s", kernel.sysname, kernel.release);
    find_mpi(findings);
    find_libraries(findings);
    find_programs(findings);
}
