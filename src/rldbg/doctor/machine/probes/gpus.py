"""Cards, their driver, and what rendering without a screen needs."""

import re
from functools import partial

from rldbg.doctor.machine.probes.machine import Machine, ProbeOutcome, check

_EGL = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
VENDOR_FILES = ("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/etc/glvnd/egl_vendor.d/10_nvidia.json")
_ICD_FILES = ("/usr/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json")
_NO_GPU = "no NVIDIA device here"


def _has_gpu(machine: Machine) -> bool:
    return machine.path("/dev/nvidiactl").exists() or machine.path("/proc/driver/nvidia/version").exists()


gpu_check = partial(check, is_pointless=lambda machine: "" if _has_gpu(machine) else _NO_GPU)


@gpu_check("GPUs")
def gpu_visible(machine: Machine) -> ProbeOutcome:
    listed = machine.run("nvidia-smi", "-L")
    if listed is None:
        fix = "nvidia-smi must work first: start the container with --gpus all, or fix the driver"
        return "fail", "a device exists, but nvidia-smi does not list it", fix
    masked = machine.variables.get("CUDA_VISIBLE_DEVICES")
    if masked is not None and masked.strip() in ("", "-1"):
        return "warn", "CUDA_VISIBLE_DEVICES hides all of them", "unset CUDA_VISIBLE_DEVICES"
    return "pass", f"{len(listed.splitlines())}: {listed.splitlines()[0].split(' (')[0]}"


@gpu_check("GPU driver")
def driver(machine: Machine) -> ProbeOutcome:
    listed = machine.run("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    kernel = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", machine.text("/proc/driver/nvidia/version") or "")
    if listed is None:
        return "fail", "nvidia-smi fails", "dmesg -T | grep -i nvrm; reboot after an upgrade"
    name, _, version = listed.splitlines()[0].partition(", ")
    if kernel and kernel[1] != version:
        fix = "reboot, or reload the kernel module: library and module differ"
        return "fail", f"library {version}, kernel module {kernel[1]}", fix
    return _rendering_branch(name, version)


def _rendering_branch(name: str, version: str) -> ProbeOutcome:
    """Simulators on Vulkan work with some branches only; everything else is fine with any recent one."""
    branch = version.split(".")[0]
    ampere = re.search(r"A100|A800|A40|A30|A10\b|RTX 30\d\d|RTX A\d", name)
    if ampere and branch.isdigit() and int(branch) >= 570:
        fix = "only for Vulkan simulators: use branch 535 (535.161.08 is the most tested)"
        return "warn", f"{version} on {name} is known to break Vulkan rendering", fix
    return "pass", f"{version} on {name}"


@check("CUDA compatibility library")
def cuda_compat(machine: Machine) -> ProbeOutcome:
    paths = machine.variables.get("LD_LIBRARY_PATH", "").split(":")
    compat = [path for path in paths if path.rstrip("/").endswith("compat") and machine.path(path).is_dir()]
    if not compat:
        return "pass", "not on the library path"
    fix = f"take {compat[0]} out of LD_LIBRARY_PATH when the host's driver is newer (errors 803 and 804)"
    return "warn", f"{compat[0]} comes before the driver's", fix


@check("processes on the GPUs")
def gpu_processes(machine: Machine) -> ProbeOutcome:
    query = ("--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader")
    listed = machine.run("nvidia-smi", *query) if _has_gpu(machine) else None
    if listed is None:
        return "skip", _NO_GPU
    lines = [line for line in listed.splitlines() if line.strip()]
    if not lines:
        return "pass", "none"
    return "warn", f"{len(lines)}: {lines[0]}", "end your own left-over processes by pid before a run"


@gpu_check("GPU errors")
def gpu_errors(machine: Machine) -> ProbeOutcome:
    kernel = machine.run("dmesg") or ""
    codes = re.findall(r"NVRM: Xid \(PCI:[0-9a-fA-F:.]+\): (\d+)", kernel)
    if not codes:
        return "pass", "no Xid in the kernel log"
    fix = "drain the node; give dmesg and nvidia-bug-report.sh to its operator"
    return "fail", f"Xid {', '.join(dict.fromkeys(codes))} in the kernel log", fix


@check("EGL rendering")
def egl_vendor(machine: Machine) -> ProbeOutcome:
    library = any(machine.path(f"{folder}/libEGL_nvidia.so.0").exists() for folder in _EGL)
    vendor = next((file for file in VENDOR_FILES if machine.path(file).exists()), None)
    if not _has_gpu(machine) and not library:
        return "skip", _NO_GPU
    if not library:
        fix = "apt install libnvidia-gl-<driver-version>, or NVIDIA_DRIVER_CAPABILITIES=all for the container"
        return "warn", "libEGL_nvidia.so.0 is missing: no graphics part of the driver", fix
    if vendor is None:
        fix = "rldbg doctor --fix egl-device-id-out-of-range writes /usr/share/glvnd/egl_vendor.d/10_nvidia.json"
        return "fail", "the library is installed, the vendor file 10_nvidia.json is missing", fix
    return "pass", f"library and {vendor} are installed"


@gpu_check("Vulkan rendering")
def vulkan_icd(machine: Machine) -> ProbeOutcome:
    file = next((file for file in _ICD_FILES if machine.path(file).exists()), None)
    if file is None:
        fix = "only for Vulkan simulators: start the container with --runtime=nvidia --gpus all"
        return "warn", "no nvidia_icd.json", fix
    return "pass", f"{file} exists"
