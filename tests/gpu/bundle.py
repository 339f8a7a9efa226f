#!/usr/bin/env python3
"""The bundle for machines where nothing can be installed, with simulated GPUs in it: bundle.py SOURCE BUILD HAS_CUDA.

Its run.sh goes through to the end, whatever fails; results.json holds every step; the exit code tells no GPU from a failure.
A build without CUDA is not packed."""
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

SOURCE, BUILD, HAS_CUDA = sys.argv[1:4]


def call(*arguments, **environment):
    env = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "PERDURE_TEST_SCALE")}
    env.update(environment)
    return subprocess.run(arguments, env=env, capture_output=True, text=True, check=False)


def run(bundle, out, only, quick=True, **environment):  # what run.sh says, its results, its steps by name
    arguments = [word for name in only for word in ("--only", name)]
    done = call(f"{bundle}/run.sh", *(["--quick"] if quick else []), "--out", out, *arguments, **environment)
    with open(f"{out}/results.json", encoding="utf-8") as f:
        results = json.load(f)
    return done, results, {step["name"]: step for step in results["steps"]}


def program(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, 0o755)


def expect(good, what, done):
    if not good:
        sys.exit(f"FAILED: {what}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def made(directory):
    bundle = f"{directory}/bundle"
    done = call(f"{SOURCE}/tools/bundle/bundle.sh", BUILD, bundle, "--simulated")
    expect(done.returncode == 0 and os.path.getsize(f"{bundle}/share/text.txt") > 1 << 20, "making it", done)
    for script in (f"{SOURCE}/tools/bundle/bundle.sh", f"{SOURCE}/tools/test.sh", f"{SOURCE}/tools/quickstart.sh", f"{bundle}/run.sh"):
        done = call(script, "--help")
        expect(done.returncode == 0 and len(done.stdout.splitlines()) > 2 and not done.stderr, f"{script} --help", done)
    for code, arguments in ((64, []), (64, [BUILD, f"{directory}/none", "--nvidia"]), (64, [BUILD, f"{directory}/none", "--nvidia", "some"]),
                            (64, [BUILD, bundle]), (66, [f"{directory}/nothere", f"{directory}/none"]), (66, [directory, f"{directory}/none"])):
        done = call(f"{SOURCE}/tools/bundle/bundle.sh", *arguments)
        expect(done.returncode == code and len(done.stderr.splitlines()) == 1 and not os.path.exists(f"{directory}/none"), arguments, done)
    return bundle


def of_other_sources(directory, bundle):
    """Programs say what they were built from: that is in MANIFEST, and said where the scripts beside them are of something else."""
    said = [call(f"{BUILD}/bin/{name}", "--version").stdout for name in ("perdure_simt", "gpu_operations_simt")]
    with open(f"{bundle}/MANIFEST", encoding="utf-8") as f:
        text = f.read()
    done = call(f"{SOURCE}/tools/bundle/bundle.sh", BUILD, f"{directory}/other", "--simulated", GIT_DIR=f"{directory}/nowhere")
    expect(text.startswith("".join(said)) and "(no commit" not in text, f"programs in MANIFEST: {text[:200]}", done)
    warnings = [line for line in done.stderr.splitlines() if "was built from" in line and "the sources here are no commit" in line]
    expect(done.returncode == 0 and len(warnings) == (0 if "(no commit)" in said[0] else 2), "sources that are others", done)


def without_cuda(directory):  # nothing of NVIDIA's: half a gigabyte
    done = call(f"{SOURCE}/tools/bundle/bundle.sh", BUILD, f"{directory}/real", "--nvidia", "none")
    if HAS_CUDA == "ON":
        expect(done.returncode == 0 and os.path.exists(f"{directory}/real/run.sh"), "a build with CUDA", done)
        # NVIDIA's libraries by name alone.
        os.makedirs(f"{directory}/cuda/lib64")
        names = {"libcublasLt.so.13", "libnccl.so.2"}
        for name in names:  # as NVIDIA's packages have them
            program(f"{directory}/cuda/lib64/{name}.9.9", "")
            os.symlink(f"{name}.9.9", f"{directory}/cuda/lib64/{name}")
        done = call(f"{SOURCE}/tools/bundle/bundle.sh", BUILD, f"{directory}/all", "--nvidia", "needed", CUDA_HOME=f"{directory}/cuda")
        brought = set(os.listdir(f"{directory}/all/lib"))
        expect(done.returncode == 0 and names <= brought and "relies on" not in done.stderr, "all of NVIDIA's", done)
        expect(not any(name.endswith(".9.9") for name in brought), "each once", done)
    else:
        expect(done.returncode == 78 and "-DPERDURE_CUDA=ON" in done.stderr and not os.path.exists(f"{directory}/real"), "none without", done)


def replaced(bundle, name, text, directory, step):  # what run.sh, through a link, does with another file in the place of `name`
    os.rename(f"{bundle}/{name}", f"{directory}/aside")
    program(f"{bundle}/{name}", text)
    if not os.path.islink(f"{directory}/link"):
        os.symlink(f"{bundle}/run.sh", f"{directory}/link")
    done = call(f"{directory}/link", "--only", step, "--out", f"{directory}/unusable")
    os.replace(f"{directory}/aside", f"{bundle}/{name}")
    return done


def unusable(directory, bundle):
    """What cannot be run is said in one line, before anything is written somewhere else."""
    nowhere = f"{directory}/nowhere/tmp"
    for code, said, arguments, environment in (
            (74, f"TMPDIR={nowhere} cannot be written", ["--out", f"{directory}/unusable"], {"TMPDIR": nowhere}),
            (74, f"{directory}/bundle/run.sh/x cannot be written, or has no room; --out", ["--out", f"{directory}/bundle/run.sh/x"], {}),
            (64, "--out wants a directory", ["--out"], {}),
            (64, "--budget 10 is too small", ["--budget", "10", "--out", f"{directory}/unusable"], {})):
        done = call(f"{bundle}/run.sh", *arguments, "--only", "train", **environment) if arguments != ["--out"] else call(f"{bundle}/run.sh", "--out")
        expect(done.returncode == code and said in done.stderr and len(done.stderr.splitlines()) == 1, f"unusable: {arguments} {environment}", done)

    # Cut off on the way here: a signal that has no words, or the loader's.
    library = min(glob.glob(f"{bundle}/lib/libjansson.so*"))
    with open(library, "rb") as f:
        whole = f.read()
    for left in (len(whole) // 2, 100):
        with open(library, "wb") as f:
            f.write(whole[:left])
        done = call(f"{bundle}/run.sh", "--only", "doctor", "--out", f"{directory}/unusable")
        expect(done.returncode == 69 and f"not as MANIFEST has it: lib/{os.path.basename(library)};" in done.stderr and "here: ;" not in done.stderr
               and len(done.stderr.splitlines()) == 1, f"a library cut off at {left}", done)
    with open(library, "wb") as f:
        f.write(whole)

    # Results of an earlier run in the same directory are nobody's: sh takes an emptied program for a script that does nothing.
    done, _, _ = run(bundle, f"{directory}/unusable", ["doctor"])
    expect(done.returncode == 0, "whole again", done)
    done = replaced(bundle, "libexec/perdure", "", directory, "doctor")
    expect(done.returncode == 69 and "and no word; not as MANIFEST has it: libexec/perdure;" in done.stderr, "an emptied program", done)
    os.chmod(f"{bundle}/bin/perdure", 0o644)
    done = call(f"{bundle}/run.sh", "--only", "doctor", "--out", f"{directory}/unusable")
    os.chmod(f"{bundle}/bin/perdure", 0o755)
    expect(done.returncode == 69 and "(noexec)" in done.stderr, "a program that may not be run", done)
    with open(f"{directory}/unusable/operations.json", "w", encoding="utf-8") as f:
        f.write('{"of": "an earlier run"}\n')
    done = replaced(bundle, "bin/gpu_operations", "#!/bin/sh\n", directory, "operations")
    with open(f"{directory}/unusable/results.json", encoding="utf-8") as f:
        expect(done.returncode == 0 and json.load(f)["steps"][0]["result"] is None, "an earlier result, through a link", done)


def with_a_gpu(directory, bundle):
    done, results, steps = run(bundle, f"{directory}/first", ["operations", "attention_1000", "attention"], False, PERDURE_OPERATIONS_ATTENTION="1")
    expect(done.returncode == 0 and list(steps) == ["attention", "attention_1000", "operations"], "what comes first", done)
    with open(f"{directory}/first/attention_1000.out", encoding="utf-8") as f:
        expect("attention, in parts" in f.read(), "what is called a thousand times", done)
    done, results, steps = run(bundle, f"{directory}/one", ["doctor", "attention_64", "training_alone"])
    expect(done.returncode == 0 and results["device"] == "simulated GPU", "a run", done)
    result = steps["attention_64"]["result"]
    expect(result["kernels"].startswith("attention ") and result["forward_tflops"] > 0, "figures", done)
    expect(steps["training_alone"]["state"] == "skipped" and steps["training_alone"]["reason"] == "quick", "what is left out", done)

    os.mkdir(f"{directory}/it's, {{a}} #b")
    done, results, steps = run(bundle, f"{directory}/alone", ["train", "step_byte-1m"], TMPDIR=f"{directory}/it's, {{a}} #b")
    expect(done.returncode == 0 and results["device"] == "simulated GPU" and list(steps) == ["train", "step_byte-1m"], "two steps alone", done)
    result = steps["step_byte-1m"]["result"]
    expect(result["tokens_per_second"] > 0 and result["plain_gemm_shapes"] == 0 and result["kernels"].startswith("attention "), "its figures", done)

    os.mkdir(f"{directory}/clock")
    program(f"{directory}/clock/timeout", f'#!/bin/sh\necho "$3" >>{directory}/limits\nshift 3\ncase "$*" in *doctor*) exec "$@" ;; esac\n')
    begin = time.monotonic()
    done = call(f"{bundle}/run.sh", "--budget", "900", "--only", "doctor", "--only", "operations", "--only", "attention_64", "--out", f"{directory}/shares",
                PATH=f"{directory}/clock:{os.environ['PATH']}")
    least = 900 - 15 - int(time.monotonic() - begin) - 1  # seconds left for steps at the end, however long it took
    with open(f"{directory}/limits", encoding="utf-8") as f:
        limits = [int(line) for line in f]
    expect(done.returncode == 0 and limits[0] == 120 and 2 * least // 3 <= limits[1] <= 590 and min(600, least) <= limits[2] <= 600,
           f"shares of a budget: {limits}, {least} s are left", done)

    # A disk too small for saves: known before the first step.
    program(f"{directory}/clock/df", "#!/bin/sh\necho head\necho disk 9 9 1000000 1% /\n")
    done, _, steps = run(bundle, f"{directory}/small", ["doctor", "saves_every_step", "attention_64"], False, PATH=f"{directory}/clock:{os.environ['PATH']}")
    lines = [line.split()[0] for line in done.stdout.splitlines() if line]
    expect(steps["saves_every_step"]["state"] == "skipped" and steps["saves_every_step"]["reason"].startswith("no 41 GiB free in /dev/shm, TMPDIR=") and
           "saves_every_step will be left out: no 41 GiB free" in done.stdout and lines.index("saves_every_step") < lines.index("attention_64"), "no room", done)

    done = call(f"{bundle}/run.sh", "--only", "nosuch")
    expect(done.returncode == 64 and "nosuch" in done.stderr and "step_0.5B" in done.stderr and "doctor" in done.stderr, "no such step", done)


def with_an_older_gpu(bundle):
    done = call(f"{bundle}/bin/gpu_operations", PERDURE_SIMT_CAPABILITY="86")
    said = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    skips = [line for line in said if line.startswith("skip fp8 products") and line.endswith("needs compute capability 8.9, and this is 8.6")]
    expect(done.returncode == 0 and len(skips) == 6 == len(said) - 1, "fp8 on a GPU without", done)

    done = call(f"{bundle}/bin/perdure", "bench", "step", "--device=gpu", "--preset=0.5B", PERDURE_SIMT_MEMORY="64M")
    expect(done.returncode == 78 and "of device memory at least" in done.stderr, "a bench without directory", done)
    done = call(f"{bundle}/bin/perdure", "bench", "attention", "--device=gpu", "--tokens=64", "--length=32", PERDURE_SIMT_MEMORY="1M")
    expect(done.returncode == 78 and " bytes of device memory: cudaMalloc: out of memory; take fewer --tokens, " in done.stderr,
           "a bench of attention without directory, in CUDA's own words", done)

    # One that is too old for any kernel: what doctor says of run.device=auto is what a start does.
    done = call(f"{bundle}/bin/perdure", "doctor", "--json", PERDURE_SIMT_CAPABILITY="75")
    use = [row for row in json.loads(done.stdout)["findings"] if row["what"] == "gpu use"]
    expect(len(use) == 1 and "7.5" in use[0]["here"] and "run.device=auto and run.device=gpu do not start" in use[0]["advice"], "doctor of a GPU too old", done)
    with tempfile.TemporaryDirectory() as run_dir:
        with open(f"{run_dir}/run.yaml", "w", encoding="utf-8") as f:
            f.write(f"run: {{dir: {run_dir}/run, device: auto}}\ndata: {{train: [{{path: {bundle}/share/text.txt}}]}}\n")
        done = call(f"{bundle}/bin/perdure", "train", f"{run_dir}/run.yaml", PERDURE_SIMT_CAPABILITY="75")
    expect(done.returncode == 78 and "run.device is auto; run.device=cpu needs no GPU" in done.stderr, "auto beside a GPU too old", done)


def with_a_row_that_breaks(bundle):
    """The same operation loses the GPU in every process: rows behind each that broke are run."""
    done = call(f"{bundle}/bin/gpu_operations", PERDURE_SIMT_FAIL="2000")
    lines = done.stdout.splitlines()
    breaks = [line for line in lines if line.startswith("FAIL ") and ": exit code 1" in line]
    expect(done.returncode == 1 and breaks and lines.index(breaks[0]) < len(lines) - 20, "rows behind one that broke", done)


def without_a_gpu(directory, bundle):
    done, results, steps = run(bundle, f"{directory}/none", ["doctor", "operations", "train", "step_0.5B"], PERDURE_SIMT_GPUS="0")
    expect(done.returncode == 77 and results["device"] == "" and steps["doctor"]["state"] == "ok", "no GPU", done)
    expect(all(steps[name]["state"] == "skipped" for name in ("operations", "train", "step_0.5B")), "no GPU: nothing is tried", done)
    expect(results["no_gpu"] and f"no GPU: {results['no_gpu']}" in done.stdout, "why there is none", done)


def scales(directory, bundle):
    """What trainings are told, by scripts in their place that tell it."""
    names = {"training_alone": "gpu.py alone", "training_local": "gpu.py local", "placements": "gpu_offload.py"}
    for script in ("gpu.py", "gpu_offload.py"):
        program(f"{bundle}/tests/e2e/{script}", "import os, sys\nname = os.path.basename(sys.argv[0])\n"
                "print(name, *sys.argv[2:], os.environ['PERDURE_TEST_SCALE'])\n")
    for out, scale, environment in (("scale", "4", {}), ("scale-10", "10", {"PERDURE_TEST_SCALE": "10"})):
        done, _, steps = run(bundle, f"{directory}/{out}", names, False, **environment)
        for name, said in names.items():
            with open(f"{directory}/{out}/{name}.out", encoding="utf-8") as f:
                text = f.read()
            expect(steps[name]["state"] == "ok" and text == f"{said} {scale}\n", f"{name} at its scale said {text}", done)
    done = call(sys.executable, f"{SOURCE}/tests/gpu/need_gpu.py", f"{bundle}/bin/perdure", "sh", "-c", "exit $PERDURE_TEST_SCALE")
    expect(done.returncode == 4, "the scale where there is a GPU", done)


def sanitized(directory, bundle):
    """A training under a checker in the place of compute-sanitizer."""
    os.mkdir(f"{directory}/path")
    program(f"{directory}/path/compute-sanitizer", f'#!/bin/sh\necho "$@" >>{directory}/checked\nshift 6\nexec "$@"\n')
    path = f"{directory}/path:{os.environ['PATH']}"
    done, _, steps = run(bundle, f"{directory}/sanitized", ["sanitizer_training", "sanitizer_racecheck"], PATH=path)
    expect(steps["sanitizer_training"]["state"] == "ok" and steps["sanitizer_racecheck"]["state"] == "skipped", "a checked training", done)
    with open(f"{directory}/checked", encoding="utf-8") as f:
        text = f.read()
    expect(text.startswith("--tool memcheck --target-processes all --error-exitcode 1 ") and "run.steps=2" in text, f"checked: {text}", done)


def in_parts(directory, bundle):
    """What does not fit is left out and said, results are whole all the same; libraries are found where Python packages bring them."""
    # The first step ends when the script's own clock has gone on by a quarter of an hour.
    with open(f"{directory}/clock.sh", "w", encoding="utf-8") as f:
        f.write("[ -n \"${RUN_SH:-}\" ] || export RUN_SH=$$\n[ $RUN_SH != $$ ] || trap 'SECONDS=$((SECONDS + 900))' USR1\n")
    program(f"{bundle}/bin/gpu_operations", "#!/bin/sh\nkill -USR1 $RUN_SH\nexit 3\n")
    done = call(f"{bundle}/run.sh", "--budget", "900", "--out", f"{directory}/parts", "--only", "operations", "--only", "attention_64",
                BASH_ENV=f"{directory}/clock.sh")
    with open(f"{directory}/parts/results.json", encoding="utf-8") as f:
        steps = {step["name"]: step for step in json.load(f)["steps"]}
    expect(done.returncode == 1 and steps["operations"]["state"] == "failed" and
           steps["attention_64"]["reason"] == "no time left of --budget 900", "no time", done)
    expect("2 steps: 0 ok, 1 failed, 1 left out;" in done.stdout, "counts", done)
    expect(call(f"{bundle}/run.sh", "--budget", "soon").returncode == 64, "a budget of what", done)

    os.mkdir(f"{directory}/mpich")
    program(f"{directory}/mpich/mpirun", "#!/bin/sh\necho HYDRA build details\n")
    done, _, steps = run(bundle, f"{directory}/other-mpi", ["training_mpi"], PATH=f"{directory}/mpich:{os.environ['PATH']}")
    expect(steps["training_mpi"]["reason"].startswith("mpirun is not Open MPI 4"), "another MPI", done)

    os.makedirs(f"{directory}/site/nvidia/thing/lib")
    program(f"{directory}/site/nvidia/thing/lib/libthing.so.7", "")
    with open(f"{bundle}/share/opened", encoding="utf-8") as f:
        expect({"libnccl.so.2", "libcublasLt.so.13"} <= set(f.read().split()), "what is opened", done)
    with open(f"{bundle}/share/opened", "w", encoding="utf-8") as f:
        f.write("libthing.so.7\nlibnowhere.so.1\n")
    program(f"{bundle}/bin/gpu_operations", "#!/bin/sh\necho $PERDURE_BUNDLE_LIBRARIES\necho ${LD_LIBRARY_PATH:-none}\n")
    done, _, steps = run(bundle, f"{directory}/found", ["operations"], PYTHONPATH=f"{directory}/site")
    with open(f"{directory}/found/operations.out", encoding="utf-8") as f:
        said = f.read().split()
    expect(said == [f"{directory}/site/nvidia/thing/lib", "none"] and os.path.getsize(f"{directory}/found/logs.tar.gz") > 0, f"found {said}", done)


def cut_off(directory, bundle):
    """A machine that is taken away in the middle: the step under way is there by name."""
    program(f"{bundle}/bin/gpu_operations", f"#!/bin/sh\necho $$ >{directory}/begun.new\nmv {directory}/begun.new {directory}/begun\nexec sleep 600\n")
    with subprocess.Popen([f"{bundle}/run.sh", "--only", "operations", "--out", f"{directory}/cut"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env={**os.environ, "TMPDIR": directory}) as running:
        while not os.path.exists(f"{directory}/begun") and running.poll() is None:
            time.sleep(0.02)
        running.kill()
    with open(f"{directory}/begun", encoding="utf-8") as f:
        os.kill(int(f.read()), signal.SIGKILL)
    with open(f"{directory}/cut/results.json", encoding="utf-8") as f:
        results = json.load(f)
    if results["device"] != "simulated GPU" or [(step["name"], step["state"]) for step in results["steps"]] != [("operations", "running")]:
        sys.exit(f"FAILED: cut off: {results}")


def broken(directory, bundle):
    program(f"{bundle}/bin/gpu_operations", "#!/bin/sh\necho it broke >&2\nexit 3\n")
    done, _, steps = run(bundle, f"{directory}/broken", ["operations", "attention_64", "doctor"])
    expect(done.returncode == 1 and steps["operations"]["state"] == "failed" and steps["operations"]["reason"] == "it broke", "a failure", done)
    expect(steps["attention_64"]["state"] == "ok", "a failure ends nothing", done)


with tempfile.TemporaryDirectory(prefix="perdure-bundle-test-") as directory_:
    bundle_ = made(directory_)
    of_other_sources(directory_, bundle_)
    without_cuda(directory_)
    unusable(directory_, bundle_)
    with_a_gpu(directory_, bundle_)
    with_an_older_gpu(bundle_)
    with_a_row_that_breaks(bundle_)
    without_a_gpu(directory_, bundle_)
    scales(directory_, bundle_)
    sanitized(directory_, bundle_)
    in_parts(directory_, bundle_)
    cut_off(directory_, bundle_)
    broken(directory_, bundle_)
print("bundle: made, run, run without a GPU, at its scales, under a checker, in parts, past a failure")
