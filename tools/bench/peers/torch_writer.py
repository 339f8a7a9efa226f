"""torch.distributed.checkpoint with perdure's writer and reader beside its own, and perdure.save beside safetensors: the same process, the same
tensors, a training loop that waits for an asynchronous save."""
import os
import statistics
import sys
import time

import peer

SAVES = 5
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # else threads that wait for each other count as processor time

UNFAIR = {"save": "both end with fsync; perdure checksums every 64 KiB, DCP has a CRC-32 of each tensor",
          "load": "both from the disk, at whose speed perdure reads; it verifies every checksum",
          "load from the page cache": "the same from there",
          "plan of 100,000 tensors in 1,000 shards": "planning alone, without a file: DCP's planner beside ours",
          "steps beside an asynchronous save": "seconds that a loop of matrix multiplications loses: the call, and its steps over quiet ones until "
                                               "the save ends; perdure's copy stays in memory for the next save",
          "processor time of an asynchronous save": "seconds of all threads over those of quiet steps",
          "save of a file": "safetensors' save_file, then fsync, and perdure.save",
          "load of a file": "safetensors' load_file and perdure.load from the disk, then one pass over all tensors, since theirs are mapped"}


def find_package(program):
    """The package of the source tree, and the library that was built with the program."""
    top = os.path.dirname(os.path.abspath(__file__)).rsplit("/tools/", 1)[0]
    sys.path.insert(0, os.path.join(top, "tools", "python"))
    os.environ.setdefault("PERDURE_LIBRARY", os.path.join(os.path.dirname(program), "tools", "library", "libperdure.so"))


def make_plans(torch, ranks, tensors):
    """Each tensor lies in pieces on some ranks, as a state of many small experts does: 1,000 ranks, 100,000 pieces."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
    plans, properties = [], TensorProperties(dtype=torch.float32)
    for rank in range(ranks):
        items = []
        for number in range(tensors // ranks):
            chunk = ChunkStorageMetadata(torch.Size([rank, 0]), torch.Size([1, 16]))
            data = TensorWriteData(chunk=chunk, properties=properties, size=torch.Size([ranks, 16]))
            items.append(WriteItem(MetadataIndex(f"layers.{number}.weight", chunk.offsets), WriteItemType.SHARD, tensor_data=data))
        plans.append(SavePlan(items, planner_data={}))
    return plans


def clocks():
    return time.perf_counter(), time.process_time()


def measure_steps(step, go_on):
    """Seconds and processor seconds of each step, while go_on(their number) says so."""
    found = []
    while go_on(len(found)):
        start = clocks()
        step()
        found.append([end - begin for begin, end in zip(start, clocks())])
    return found


def measure_beside(step, save):
    """Seconds, and processor seconds, that an asynchronous save takes from a training loop: the median of SAVES, each beside its own quiet steps."""
    lost = []
    for _ in range(1 + SAVES):  # the first one makes what the others use again
        os.sync()
        quiet, start = measure_steps(step, lambda count: count < 10), clocks()
        future = save()
        beside = measure_steps(step, lambda _: not future.done())
        took = [end - begin for begin, end in zip(start, clocks())]
        quiet += measure_steps(step, lambda count: count < 10)
        lost.append([whole - len(beside) * statistics.median(of) for whole, of in zip(took, zip(*quiet))])
        future.result()
    return [max(statistics.median(of), 1e-3) for of in zip(*lost[1:])]


def prepare(room):
    import torch
    import torch.distributed.checkpoint as dcp
    find_package(room.perdure)
    import perdure
    import perdure.torch
    from safetensors.torch import load_file, save_file
    torch.set_num_threads(room.threads)
    state, plans = peer.state(torch, room.bytes), make_plans(torch, 1000, 100_000)
    flat = {f"{kind}/{name}" if kind != "param" else name: tensor for kind, tensors in state.items() for name, tensor in tensors.items()}
    matrix, number = torch.ones(1024, 1024), peer.bytes_in(state)
    room.moved = {"save": (0, number), "load": (number, 0), "save of a file": (0, number), "load of a file": (number, 0)}

    def measure(path, save, load, planner, file, write, read):
        seconds = {"save": peer.timed(save, state)}
        peer.forget(path)
        seconds["load"] = peer.timed(load, state)
        peer.remember(path)
        seconds["load from the page cache"] = peer.timed(load, state)
        seconds["steps beside an asynchronous save"], seconds["processor time of an asynchronous save"] = measure_beside(
            lambda: torch.mm(matrix, matrix), lambda: save(state, True))
        seconds["plan of 100,000 tensors in 1,000 shards"] = peer.timed(planner.create_global_plan, plans)
        seconds["save of a file"] = peer.timed(write)
        peer.forget(file)
        seconds["load of a file"] = peer.timed(lambda: [tensor.sum() for tensor in read().values()])
        return seconds

    def theirs():
        path, file = room.at("dcp"), room.at("file")
        peer.remove(path)

        def save(state, is_async=False):
            return (dcp.async_save if is_async else dcp.save)(state, storage_writer=dcp.FileSystemWriter(path, overwrite=True))

        def write():
            save_file(flat, file)
            with open(file, "rb") as f:
                os.fsync(f.fileno())

        return measure(path, save, lambda state: dcp.load(state, storage_reader=dcp.FileSystemReader(path)), dcp.DefaultSavePlanner(), file, write,
                       lambda: load_file(file))

    writer = perdure.torch.Writer(room.at("perdure"), keep_last=1)

    def ours():
        path, file = room.at("perdure"), room.at("saved")

        def read():
            with perdure.open(file) as checkpoint:
                return checkpoint.load(flat, framework="torch")

        def save(state, is_async=False):
            return (dcp.async_save if is_async else dcp.save)(state, storage_writer=writer, planner=perdure.torch.Planner())

        return measure(path, save, lambda state: dcp.load(state, storage_reader=perdure.torch.Reader(path)), perdure.torch.Planner(), file,
                       lambda: perdure.save(file, flat, keep_last=1), read)

    return theirs, ours


if __name__ == "__main__":
    peer.main("torch DCP, perdure's writer", prepare, UNFAIR)
