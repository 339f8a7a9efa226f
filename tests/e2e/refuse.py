"""System calls that a kernel or container refuses, for a child process: a seccomp filter of a few lines, no privilege needed."""
import ctypes
import errno
import platform
import struct

LINK, LINKAT, OPEN, OPENAT, RING_SETUP, RING_REGISTER = 86, 265, 2, 257, 425, 427
UNLINK, UNLINKAT, RMDIR = 87, 263, 84
O_DIRECT, REGISTER_BUFFERS, REGISTER_BUFFERS2 = 0o40000, 0, 15
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2


class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("rules", ctypes.c_void_p)]


def statement(code, value, jump_true=0, jump_false=0):
    return struct.pack("HBBI", code, jump_true, jump_false, value)


def when(call, number, argument=None, code=EQUAL, value=0):
    """The call fails with this errno; with an argument only where that equals the value, or has one of its bits."""
    refuse = statement(RETURN, ERROR | number)
    if argument is None:
        return statement(LOAD, 0) + statement(EQUAL, call, 0, 1) + refuse
    return statement(LOAD, 0) + statement(EQUAL, call, 0, 3) + statement(LOAD, 16 + 8 * argument) + statement(code, value, 0, 1) + refuse


RULES = {
    "links": when(LINK, errno.EPERM) + when(LINKAT, errno.EPERM),
    "removal": when(UNLINK, errno.EROFS) + when(UNLINKAT, errno.EROFS) + when(RMDIR, errno.EROFS),
    "io_uring": when(RING_SETUP, errno.EPERM),
    "locked memory": when(RING_REGISTER, errno.ENOMEM, 1, EQUAL, REGISTER_BUFFERS) +
                     when(RING_REGISTER, errno.ENOMEM, 1, EQUAL, REGISTER_BUFFERS2),
    "direct I/O": when(OPENAT, errno.EINVAL, 2, ANY_BIT, O_DIRECT) + when(OPEN, errno.EINVAL, 1, ANY_BIT, O_DIRECT),
}


def is_possible():
    return platform.machine() == "x86_64"


def refusing(what):
    """For preexec_fn."""
    def begin():
        rules = RULES[what] + statement(RETURN, ALLOW)
        buffer = ctypes.create_string_buffer(rules, len(rules))
        program = Program(len(rules) // 8, ctypes.addressof(buffer))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, ctypes.byref(program), 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp")
    return begin
