/* perdure doctor: what this machine offers, what is missing and how to get it, one finding a row. Leaves no files. */
#include "tools/commands/doctor.h"
#include "ckpt/base/cpu.h"
#include "ckpt/base/fault.h"
#include "ckpt/base/memory_limit.h"
#include "ckpt/hdf5/h5.h"
#include "ckpt/objects/probe.h"
#include "ckpt/objects/url.h"
#include "ckpt/store/probe.h"
#include "ckpt/tensor/codec_zstd.h"
#include "offload/device.h"
#include "tools/command.h"
#include "tools/output.h"
#include "trainer/comm/comm.h"
#include "trainer/engine/gpus.h"
#include "trainer/engine/numa.h"
#include "trainer/launch/outer.h"
#include "trainer/launch/starter.h"
#include "trainer/math/math_cuda.h"
#include "trainer/run/signals.h"

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#define RATE_BYTES (UINT64_C(64) << 20) /* up, and down */

PD_PRINTF(2, 3)
static void advise(struct finding *finding, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->advice, sizeof finding->advice, format, arguments);
    va_end(arguments);
}

#define limit_to(finding, ...) ((finding)->state = FINDING_LIMITED, advise(finding, __VA_ARGS__))

enum { CAPABILITY_MIN = 8 };

static bool is_same_kind(const struct pd_gpus *gpus)
{
    for (uint32_t i = 1; i < gpus->count; i++)
        if (strcmp(gpus->gpus[i].name, gpus->gpus[0].name) != 0) return false;
    return true;
}

static void find_kind(struct findings *findings, const struct pd_gpus *gpus)
{
    const struct pd_gpu *gpu = &gpus->gpus[0];
    const char *machine = pd_gpu_machine_name(gpu->name), *visible = getenv("CUDA_VISIBLE_DEVICES");
    struct finding *f = pd_doctor_add(findings, "gpu", FINDING_OK, "%u x %s, %s each, compute capability %u.%u%s%s",
                                      gpus->count, gpu->name, pd_text_bytes(gpu->bytes).text, gpu->major, gpu->minor,
                                      visible ? "; CUDA_VISIBLE_DEVICES=" : "", visible ? visible : "");
    if (gpu->major < CAPABILITY_MIN)
        limit_to(f, "kernels are made for compute capability %d.0 and later: run.device=cpu", CAPABILITY_MIN);
    else if (!is_same_kind(gpus))
        limit_to(f, "not all are of one kind: the slowest sets the pace; CUDA_VISIBLE_DEVICES chooses");
    else if (machine) {
        advise(f, "perdure plan --device %s shows what fits", machine);
    }
}

/* Finds out whether this program can use a GPU: it may be built without CUDA, or for a newer driver. */
static void find_use(struct findings *findings, const struct pd_gpus *gpus)
{
    struct pd_error err = {0};
    struct pd_dev *dev = NULL;
    if (!pd_dev_open_cuda(0, &dev, &err)) {
        struct finding *f = pd_doctor_add(findings, "gpu use", FINDING_OK, "opens as %s", dev->description);
        const size_t used = strlen(f->here);
        if (gpus->driver)
            snprintf(f->here + used, sizeof f->here - used, "; driver for CUDA %u.%u", gpus->driver / 1000,
                     gpus->driver % 1000 / 10);
        char kernels[160];
        pd_math_cuda_kernels(dev->capability, NULL, kernels, sizeof kernels);
        pd_doctor_add(findings, "gpu kernels", FINDING_OK, "%s", kernels);
        pd_dev_close(dev);
        return;
    }
    struct finding *f = pd_doctor_add(findings, "gpu use", FINDING_LIMITED, "%.190s", err.message);
    /* As in pd_rank_device_open: even a start with device auto fails if CUDA counts a GPU that does not open. */
    advise(f, pd_dev_cuda_count()
                  ? "until this is fixed, run.device=auto and run.device=gpu do not start; use run.device=cpu"
                  : "until this is fixed, run.device=auto trains on the CPU, and run.device=gpu does not start");
}

/* Which cores each GPU's rank gets. */
static void find_nodes(struct findings *findings, uint32_t usable)
{
    char text[200] = "";
    bool is_known = false, is_cut_off = false;
    for (uint32_t i = 0; i < usable; i++) {
        char address[16];
        struct pd_numa_place place;
        const size_t used = strlen(text);
        pd_dev_cuda_pci(i, address);
        pd_numa_find(NULL, address, &place);
        if (place.node < 0) continue;
        is_known = true;
        is_cut_off |= !place.usable;
        snprintf(text + used, sizeof text - used, "%sGPU %u: node %d, cores %s", used ? "; " : "", i, place.node,
                 place.cpus);
    }
    if (!is_known) return;
    struct finding *f = pd_doctor_add(findings, "gpu numa", FINDING_OK, "%s", text);
    if (is_cut_off) limit_to(f, "this process may not use the cores of a GPU's node, so its copies cross nodes: allow them");
}

static const struct wanted {
    enum pd_gpu_library library;
    enum finding_state without;
    const char *missing;
} wanted[] = {
    {PD_GPU_CUBLASLT, FINDING_MISSING,
     "GEMMs on a GPU need it: install cuBLAS (pip: perdure[cuda]), or put its folder on LD_LIBRARY_PATH"},
    {PD_GPU_NCCL, FINDING_LIMITED,
     "without it ranks talk through host memory: install libnccl2 (pip: perdure[cuda]), or set LD_LIBRARY_PATH"},
};

static void find_gpu_libraries(struct findings *findings)
{
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct pd_gpu_library_version version;
        if (pd_gpu_library_find(wanted[i].library, true, &version)) {
            pd_doctor_add(findings, version.name, FINDING_OK, "%s, %.150s", version.version, version.path);
            continue;
        }
        advise(pd_doctor_add(findings, version.name, wanted[i].without, "not found"), "%s", wanted[i].missing);
    }
}

static void find_gpus(struct findings *findings)
{
    struct pd_gpus gpus;
    const uint32_t usable = pd_dev_cuda_count();
    pd_gpus_find(&gpus);
    if (!gpus.count && !usable) {
        pd_doctor_add(findings, "gpu", FINDING_UNUSED, "%s", gpus.why_none);
        return;
    }
    if (gpus.count)
        find_kind(findings, &gpus);
    else
        pd_doctor_add(findings, "gpu", FINDING_LIMITED, "%u, without a driver: simulated", usable);
    find_use(findings, &gpus);
    find_nodes(findings, usable);
    find_gpu_libraries(findings);
}

#define MIB (UINT64_C(1) << 20)

static void find_cores(struct findings *findings)
{
    char model[128];
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN), usable = online;
    if (sched_getaffinity(0, sizeof set, &set) == 0) usable = CPU_COUNT(&set);
    /* Value of "model name : value" in /proc/cpuinfo. */
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
    struct finding *f = pd_doctor_add(findings, "cores", FINDING_OK, "%ld of %ld usable, %s", usable, online, model);
    if (quota < (double)usable)
        limit_to(f, "the cgroup allows %.1f cores: more threads (layout.ranks x layout.threads) wait", quota);
}

static void find_isa(struct findings *findings)
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
        advise(pd_doctor_add(findings, "kernels", FINDING_MISSING, "%s", offered), "%.190s", err.message);
        return;
    }
    pd_doctor_add(findings, "kernels", isa == PD_ISA_PORTABLE ? FINDING_LIMITED : FINDING_OK, "%s; used: %s", offered,
                  pd_isa_name(isa));
}

static void find_processor(struct findings *findings)
{
    find_cores(findings);
    find_isa(findings);
    find_gpus(findings);
}

static void find_ram(struct findings *findings)
{
    const struct pd_memory_places no_groups = {.cgroups.self = "/dev/null"}, groups_alone = {.meminfo = "/dev/null"};
    struct pd_memory_limit machine = {0}, group;
    (void)pd_memory_limit_read(&no_groups, &machine);
    struct finding *f = pd_doctor_add(findings, "memory", FINDING_OK, "%s, %s available",
                                      pd_text_bytes(machine.limit_bytes).text, pd_text_bytes(machine.free_bytes).text);
    if (pd_memory_limit_read(&groups_alone, &group) && group.most_bytes < machine.most_bytes)
        limit_to(f, "%s ends at %s: compare with perdure plan", group.most_who, pd_text_bytes(group.most_bytes).text);
}

static void find_lockable(struct findings *findings)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit)) return;
    if (limit.rlim_cur == RLIM_INFINITY || geteuid() == 0) {
        pd_doctor_add(findings, "lockable memory", FINDING_OK, "unlimited");
        return;
    }
    struct finding *f = pd_doctor_add(findings, "lockable memory", FINDING_OK, "%s", pd_text_bytes(limit.rlim_cur).text);
    if (limit.rlim_cur >= 64 * MIB) return;
    limit_to(f, "I/O buffers may stay unregistered: ulimit -l unlimited, or memlock in /etc/security/limits.conf");
}

static void find_shared(struct findings *findings)
{
    struct statvfs space;
    if (statvfs("/dev/shm", &space)) {
        advise(pd_doctor_add(findings, "/dev/shm", FINDING_MISSING, "not there"),
               "ranks of one host share memory there: mount -t tmpfs tmpfs /dev/shm");
        return;
    }
    uint64_t free_bytes = (uint64_t)space.f_bavail * space.f_frsize;
    struct finding *f =
        pd_doctor_add(findings, "/dev/shm", FINDING_OK, "%s, %s free",
                      pd_text_bytes((uint64_t)space.f_blocks * space.f_frsize).text, pd_text_bytes(free_bytes).text);
    if (free_bytes >= 256 * MIB) return;
    limit_to(f, "many ranks will not fit: docker run --shm-size=1g, or an emptyDir of medium Memory in Kubernetes");
}

static void find_files(struct findings *findings)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    struct finding *f = pd_doctor_add(findings, "open files", FINDING_OK, "%" PRIu64 " at most", (uint64_t)limit.rlim_cur);
    if (limit.rlim_cur >= 1024) return;
    limit_to(f, "checkpoints of many ranks need more: ulimit -n 4096");
}

static void find_memory(struct findings *findings)
{
    find_ram(findings);
    find_lockable(findings);
    find_shared(findings);
    find_files(findings);
}

/* First line of a command's output. */
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

static void find_mpi(struct findings *findings)
{
    char path[4096], version[128];
    struct pd_error err;
    if (pd_outer_check_slurm(&err)) {
        limit_to(pd_doctor_add(findings, "mpi launcher", FINDING_OK, "squeue does not know of job %.40s",
                               getenv("SLURM_JOB_ID") ? getenv("SLURM_JOB_ID") : getenv("SLURM_JOBID")),
                 "if Slurm's variables are left over: env -u SLURM_JOB_ID -u SLURM_JOBID perdure ...");
        return;
    }
    bool srun = getenv("SLURM_JOB_ID") && pd_starter_find_program("srun", path);
    if (srun) {
        pd_doctor_add(findings, "mpi launcher", FINDING_OK, "srun, inside Slurm job %s", getenv("SLURM_JOB_ID"));
        return;
    }
    if (!pd_starter_find_program("mpirun", path)) {
        advise(pd_doctor_add(findings, "mpi launcher", FINDING_MISSING, "no mpirun on PATH"),
               "apt-get install openmpi-bin; without it: layout.transport=local");
        return;
    }
    first_line_of("mpirun --version 2>&1", version, sizeof version);
    pd_doctor_add(findings, "mpi launcher", FINDING_OK, "%.100s: %.90s", path, version);
}

/* The other libraries are linked, so they exist if this program starts. */
static void find_libraries(struct findings *findings)
{
    pd_doctor_add(findings, "hdf5", FINDING_OK, "%s", pd_h5_version());
    pd_doctor_add(findings, "zstd", FINDING_OK, "%s", pd_zstd_version());
    if (!pd_comm_has_mpi())
        advise(pd_doctor_add(findings, "mpi library", FINDING_MISSING, "not in this build"),
               "apt-get install libopenmpi-dev, then build again without -DPERDURE_MPI=OFF");
}

static void find_program(struct findings *findings, const char *name, const char *what, enum finding_state absent,
                         const char *advice)
{
    char path[4096];
    if (pd_starter_find_program(name, path))
        pd_doctor_add(findings, what, FINDING_OK, "%.190s", path);
    else
        advise(pd_doctor_add(findings, what, absent, "no %s on PATH", name), "%s", advice);
}

static void find_software(struct findings *findings)
{
    struct utsname kernel;
    if (uname(&kernel) == 0) pd_doctor_add(findings, "kernel", FINDING_OK, "%.60s %.60s", kernel.sysname, kernel.release);
    find_mpi(findings);
    find_libraries(findings);
    find_program(findings, "h5ls", "hdf5 tools", FINDING_LIMITED, "to look into checkpoints: apt-get install hdf5-tools");
    find_program(findings, "ssh", "remote shell", FINDING_UNUSED,
                 "for hosts of launch.hosts: apt-get install openssh-client, or another launch.agent");
}

static void find_engine(struct findings *findings, const struct pd_vfs *vfs)
{
    const char *description = pd_vfs_describe(vfs);
    bool uring = strncmp(description, "io_uring", 8) == 0;
    struct finding *f = pd_doctor_add(findings, "i/o engine", uring ? FINDING_OK : FINDING_LIMITED, "%s", description);
    if (!uring) advise(f, "io_uring is faster");
}

static void find_features(struct findings *findings, const struct pd_probe *probe)
{
    struct finding *f = pd_doctor_add(findings, "direct i/o", probe->is_direct ? FINDING_OK : FINDING_LIMITED,
                                      probe->is_direct ? "yes" : "refused: bytes go through the page cache");
    if (!probe->is_direct) advise(f, "checkpoints are slower here; use a local ext4 or xfs");
    f = pd_doctor_add(findings, "hard links", probe->has_links ? FINDING_OK : FINDING_LIMITED,
                      probe->has_links ? "yes" : "refused: the index is copied into each checkpoint");
    f = pd_doctor_add(findings, "locks", probe->has_locks ? FINDING_OK : FINDING_LIMITED, "%s",
                      !probe->has_locks   ? "refused"
                      : probe->is_network ? "yes, maybe of this host only"
                                          : "yes");
    if (!probe->has_locks || probe->is_network)
        advise(f, "only fences keep two launches apart here: do not start the same run twice");
    if (!probe->syncs_names) {
        f = pd_doctor_add(findings, "synced names", FINDING_LIMITED, "refused");
        advise(f, "after a power loss the newest checkpoint may be the one before");
    }
}

static void find_space(struct findings *findings, const struct pd_space *space)
{
    struct finding *f = pd_doctor_add(findings, "file system", FINDING_OK, "%s, %s, %s free", space->type_name,
                                      pd_text_bytes(space->total_bytes).text, pd_text_bytes(space->available_bytes).text);
    if (space->in_memory)
        limit_to(f, "it is memory: checkpoints do not survive a reboot, and count against the memory limit");
    else if (space->total_inodes && space->available_inodes < 1000)
        limit_to(f, "only %s inodes are free", pd_text_count(space->available_inodes).text);
}

static void find_storage(struct findings *findings, const char *dir)
{
    struct pd_vfs *vfs = NULL;
    struct pd_error err;
    struct pd_probe probe;
    struct pd_stat stat;
    char tag[32];
    if (pd_vfs_new_auto(&vfs, &err)) {
        advise(pd_doctor_add(findings, "i/o engine", FINDING_MISSING, "none"), "%.190s", err.message);
        return;
    }
    find_engine(findings, vfs);
    snprintf(tag, sizeof tag, "doctor-%ld", (long)getpid());
    if (pd_probe_directory(vfs, dir, tag, &probe, &err)) {
        struct finding *f = pd_doctor_add(findings, "directory", FINDING_MISSING, "%.190s", dir);
        if (pd_vfs_stat(vfs, dir, &stat, NULL) == PD_NOT_FOUND)
            advise(f, "it does not exist: mkdir -p %.150s", dir);
        else
            advise(f, "%.190s", err.message);
    } else {
        pd_doctor_add(findings, "directory", FINDING_OK, "%.190s", dir);
        find_space(findings, &probe.space);
        find_features(findings, &probe);
    }
    pd_vfs_free(vfs);
}

/* A failure becomes the error of the command, which has more space for advice than a row. */
static pd_status find_bucket(struct findings *findings, const char *url, struct pd_error *err)
{
    struct pd_object_url place;
    struct pd_bucket *bucket = NULL;
    struct pd_bucket_rates rates;
    pd_status st = pd_object_url_parse(url, &place, err);
    if (!st) st = pd_bucket_open(place.bucket, NULL, &bucket, err);
    if (!st) st = pd_bucket_probe(bucket, place.key, RATE_BYTES, &rates, err);
    if (st) {
        advise(pd_doctor_add(findings, "bucket", FINDING_MISSING, "%.190s", url), "the error below says what to do");
    } else {
        pd_doctor_add(findings, "bucket", FINDING_OK, "%.90s at %.90s", url, pd_bucket_endpoint(bucket));
        pd_doctor_add(findings, "conditional puts", FINDING_OK, "one of eight simultaneous puts succeeds");
        pd_doctor_add(findings, "upload", FINDING_OK, "%s/s", pd_text_bytes((uint64_t)rates.upload_bytes_per_second).text);
        pd_doctor_add(findings, "download", FINDING_OK, "%s/s",
                      pd_text_bytes((uint64_t)rates.download_bytes_per_second).text);
    }
    pd_bucket_close(bucket);
    return st;
}

static const char *const state_names[] = {"ok", "limited", "missing", "unused"};
static const char *const state_marks[] = {"ok", "!", "MISSING", "-"};

static pd_status print_json(const struct findings *findings, const uint32_t counts[4], struct pd_error *err)
{
    struct pd_json_writer w;
    pd_json_writer_init_object(&w, 2);
    pd_json_string(&w, "version", PERDURE_VERSION);
    pd_json_array_begin(&w, "findings");
    for (uint32_t i = 0; i < findings->count; i++) {
        const struct finding *f = &findings->items[i];
        pd_json_object_begin(&w, NULL);
        PD_JSON_STRINGS(&w, {"what", f->what}, {"state", state_names[f->state]}, {"here", f->here},
                        {"advice", f->advice[0] ? f->advice : NULL});
        pd_json_object_end(&w);
    }
    pd_json_array_end(&w);
    PD_JSON_U64S(&w, {"limited", counts[FINDING_LIMITED]}, {"missing", counts[FINDING_MISSING]});
    return pd_output_json(&w, err);
}

static pd_status print_table(const struct findings *findings, const uint32_t counts[4], struct pd_error *err)
{
    struct pd_table table;
    printf("perdure %s\n", PERDURE_VERSION);
    PD_TABLE_INIT(&table, "", "WHAT", "HERE");
    for (uint32_t i = 0; i < findings->count; i++) {
        const struct finding *f = &findings->items[i];
        PD_TABLE_ROW(&table, state_marks[f->state], f->what, f->here);
        if (f->advice[0]) PD_TABLE_ROW(&table, "", "", f->advice);
    }
    PD_TRY(pd_table_print(&table, err));
    printf("%u missing, %u limited\n", counts[FINDING_MISSING], counts[FINDING_LIMITED]);
    return PD_OK;
}

/* Checks only the named directory: what else is missing may not be needed. */
static pd_status check_directory(const struct findings *findings, const char *dir, struct pd_error *err)
{
    for (uint32_t i = 0; i < findings->count; i++)
        if (!strcmp(findings->items[i].what, "directory") && findings->items[i].state == FINDING_MISSING)
            PD_FAIL(err, PD_IO, "%s cannot take checkpoints; name a directory that can: perdure doctor DIR", dir);
    return PD_OK;
}

pd_status pd_cmd_doctor(int argc, char **argv, struct pd_error *err)
{
    const char *dirs[2] = {"."};
    uint32_t count, counts[4] = {0};
    bool json = false, gpu = false;
    struct findings findings = {0};
    struct pd_option options[] = {PD_OPTION("gpu", NULL,
                                            "measure copies and products of each GPU, and show clocks, ECC, PCIe and NVLink",
                                            PD_OPTION_FLAG, &gpu),
                                  {0}};
    const struct pd_usage usage = {
        .arguments = "[DIR]",
        .doc = "Shows what this machine has, what perdure uses, what is missing and how to get it. DIR (default: .) is "
               "where checkpoints will be saved; doctor tests there what a save needs. For s3://bucket/prefix it also "
               "measures upload and download rates, with 64 MiB.",
        .options = options,
        .json = &json,
        PD_WORDS(dirs, 2, &count),
        .words_in_buckets = 1};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    if (count > 1) PD_FAIL(err, PD_USAGE, "perdure doctor looks at one directory; \"%s\" is another", dirs[1]);
    find_processor(&findings);
    if (gpu) pd_doctor_gpus(&findings, pd_dev_cuda_count());
    find_memory(&findings);
    find_software(&findings);
    PD_TRY(pd_fault_configure_env(err));
    PD_TRY(pd_signals_install(err)); /* what is tried there leaves no file */
    struct pd_error own = {0};
    pd_status st = PD_OK;
    if (pd_object_url_is(dirs[0]))
        st = find_bucket(&findings, dirs[0], &own);
    else
        find_storage(&findings, dirs[0]);
    if (pd_signals_say_leave()) PD_FAIL(err, PD_STOPPED, "asked to leave; run the same command to start over");
    for (uint32_t i = 0; i < findings.count; i++)
        counts[findings.items[i].state]++;
    PD_TRY(json ? print_json(&findings, counts, err) : print_table(&findings, counts, err));
    return st ? pd_error_pass(err, st, &own) : check_directory(&findings, dirs[0], err);
}
