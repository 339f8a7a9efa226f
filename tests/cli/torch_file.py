"""A file of torch.save, made without torch."""
import io
import json
import pickle
import struct
import sys
import types
import zipfile


class Storage:
    def __init__(self, number, elements):
        self.id = ("storage", sys.modules["torch"].FloatStorage, str(number), "cpu", elements)


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return obj.id if isinstance(obj, Storage) else None


def torch_names():
    """What a pickle of torch.save names, so that one can be made without torch."""
    utils, torch = types.ModuleType("torch._utils"), types.ModuleType("torch")
    exec("def _rebuild_tensor_v2(*arguments): pass", utils.__dict__)
    torch.FloatStorage, torch._utils = type("FloatStorage", (), {"__module__": "torch"}), utils
    sys.modules.update({"torch": torch, "torch._utils": utils})
    return utils._rebuild_tensor_v2


class Tensor:
    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.arguments


def torch_save(source, path, under=None, beside=None):
    """The tensors of a safetensors file as torch.save has them; under a name of a trainer's dictionary."""
    data = open(source, "rb").read()
    (length,) = struct.unpack_from("<Q", data)
    torch_names()
    out, state = io.BytesIO(), {}
    tensors = [(name, tensor) for name, tensor in json.loads(data[8:8 + length]).items() if name != "__metadata__"]
    with zipfile.ZipFile(path, "w") as archive:
        for number, (name, tensor) in enumerate(tensors):
            begin, end = (8 + length + at for at in tensor["data_offsets"])
            shape = tensor["shape"]
            stride = [1] if len(shape) == 1 else [shape[1], 1]
            archive.writestr(f"archive/data/{number}", data[begin:end])
            state[name] = Tensor(Storage(number, (end - begin) // 4), 0, tuple(shape), tuple(stride), False, {})
        Pickler(out, protocol=2).dump({"step": 5, under: state, "optimizer": {"state": {}}, **(beside or {})} if under else {**state, "note": 5})
        archive.writestr("archive/data.pkl", out.getvalue())
        archive.writestr("archive/byteorder", "little")
