"""Probes of a machine made of files, fixes that say what they do first, preflight of a job, drafts, pages."""

import json
from pathlib import Path

import pytest
import yaml

from rldbg.core import IncompleteDataError, PrerequisiteError, UsageError
from rldbg.doctor import Library, RunSettings, SearchIndex, diagnose
from rldbg.doctor.drafts import draft, expression_for
from rldbg.doctor.machine.fixes import steps_of
from rldbg.doctor.machine.preflight import check_needs, settings_of
from rldbg.doctor.machine.probes import CHECKS, Machine, gpus, network, probe_machine, resources, sessions, variables
from rldbg.doctor.search.expressions import Expression
from rldbg.reports.knowledge import failure_pages


@pytest.fixture
def machine(tmp_path):
    def make(files=None, **environment):
        root = tmp_path / "root"
        for name, content in (files or {}).items():
            file = root / name.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        root.mkdir(exist_ok=True)
        return Machine(root, environment, commands=False)

    return make


def test_this_machine_can_be_probed_and_every_check_has_an_id_of_its_own():
    found = probe_machine(Machine(commands=False))
    assert len({probe.id for probe in found}) == len(found) == len(CHECKS)
    assert all(probe.fix for probe in found if probe.status in ("warn", "fail"))


def test_every_check_an_entry_names_exists(library):
    known = {probe.id for probe in probe_machine(Machine(commands=False))}
    named = {probe.check for entry in library.entries.values() for probe in entry.probes if probe.check}
    assert named <= known


@pytest.mark.parametrize(
    ("check", "environment", "status"),
    [
        (variables.debugger_variables, {"RAY_DEBUG_POSTMORTEM": "1"}, "fail"),
        (variables.debugger_variables, {"RAY_DEBUG": "0"}, "fail"),
        (variables.debugger_variables, {"RAY_DEBUG": "1"}, "pass"),
        (variables.misspelt_variables, {"NCCL_SOCKET_IFNAMES": "eth0"}, "warn"),
        (variables.misspelt_variables, {"NCCL_SOCKET_IFNAME": "eth0"}, "pass"),
        (variables.allocator_variables, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "warn"),
        (variables.allocator_variables, {"PYTORCH_CUDA_ALLOC_CONF": "a:1", "PYTORCH_ALLOC_CONF": "a:2"}, "warn"),
        (variables.visible_devices, {"ROCR_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}, "fail"),
        (variables.nccl_variables, {"NCCL_P2P_DISABLE": "1"}, "warn"),
        (network.proxies, {"http_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, "warn"),
        (network.proxies, {}, "pass"),
        (network.ray_head, {"RAY_ADDRESS": "127.0.0.1:1"}, "fail"),
        (sessions.ray_tmpdir, {"RAY_TMPDIR": "/scratch/" + "deep/" * 20}, "fail"),
    ],
)
def test_variables_are_judged(machine, check, environment, status):
    assert check(machine(**environment)).status == status


@pytest.mark.parametrize(
    ("check", "files", "status"),
    [
        (gpus.egl_vendor, {"/usr/lib64/libEGL_nvidia.so.0": ""}, "fail"),
        (gpus.egl_vendor, {"/usr/lib64/libEGL_nvidia.so.0": "", gpus.VENDOR_FILES[0]: "{}"}, "pass"),
        (gpus.egl_vendor, {"/dev/nvidiactl": ""}, "warn"),
        (gpus.egl_vendor, {}, "skip"),
        (gpus.vulkan_icd, {"/dev/nvidiactl": ""}, "warn"),
        (resources.cgroup_memory, {"/sys/fs/cgroup/memory.events": "oom 3\noom_kill 2"}, "fail"),
        (resources.pids_limit, {"/sys/fs/cgroup/pids.max": "100", "/sys/fs/cgroup/pids.current": "99"}, "fail"),
        (resources.pids_limit, {"/sys/fs/cgroup/pids.max": "max"}, "pass"),
        (resources.memory, {"/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 20 kB"}, "fail"),
        (resources.shm_size, {}, "fail"),
    ],
)
def test_files_are_judged(machine, check, files, status):
    assert check(machine(files)).status == status


def test_a_variable_that_names_no_card_fails(machine):
    found = machine({"/sys/class/net/eth0": "", "/sys/class/net/lo": ""}, GLOO_SOCKET_IFNAME="ib0")
    assert network.nic_variables(found).status == "fail"


def test_the_vendor_file_is_written_once_and_never_over_another(machine, tmp_path):
    found = machine({"/usr/lib64/libEGL_nvidia.so.0": ""})
    (step,) = steps_of("egl-vendor-file", machine=found, home=tmp_path)
    file = found.path(gpus.VENDOR_FILES[0])
    assert str(file) in step.text
    assert not file.exists()
    step.act()
    assert json.loads(file.read_text()) == {
        "file_format_version": "1.0.0",
        "ICD": {"library_path": "libEGL_nvidia.so.0"},
    }
    assert steps_of("egl-vendor-file", machine=found, home=tmp_path) == []
    with pytest.raises(FileExistsError):
        step.act()


def test_no_vendor_file_without_the_library(machine, tmp_path):
    with pytest.raises(PrerequisiteError, match="libEGL_nvidia"):
        steps_of("egl-vendor-file", machine=machine(), home=tmp_path)


def test_variables_are_noted_for_the_run_and_add_up(machine, tmp_path):
    found = machine(http_proxy="http://p:1", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64,expandable_segments:True")
    for remedy in ("no-proxy", "no-expandable-segments", "raise-limits", "no-nvls", "post-mortem-name"):
        for step in steps_of(remedy, machine=found, home=tmp_path):
            step.act()
    settings = RunSettings.load(tmp_path)
    assert settings.raise_limits
    assert settings.without_unset(dict(found.variables)) | settings.environment == {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:False",
        "NCCL_NVLS_ENABLE": "0",
        "RAY_DEBUG_POST_MORTEM": "1",
    }
    assert steps_of("no-proxy", machine=machine(), home=tmp_path) == []


def test_every_remedy_an_entry_names_exists(library, machine, tmp_path):
    found = machine({"/usr/lib64/libEGL_nvidia.so.0": ""})
    for remedy in {entry.remedy for entry in library.entries.values() if entry.remedy} - {"stop-stale-ray"}:
        steps_of(remedy, machine=found, home=tmp_path)


def test_damaged_settings_are_an_error_that_names_the_file(tmp_path):
    (tmp_path / "run_settings.json").write_text("{")
    with pytest.raises(UsageError, match=r"run_settings\.json"):
        RunSettings.load(tmp_path)


def statuses(path, **options):
    return {probe.id: probe.status for probe in check_needs(path, **options)}


def test_a_recipe_is_checked_for_gpus_sizes_and_lengths(tmp_path):
    recipe = {
        "trainer": {"nnodes": 1, "n_gpus_per_node": 8},
        "data": {"train_batch_size": 30, "max_prompt_length": 4096, "max_response_length": 4096},
        "actor_rollout_ref": {
            "rollout": {"n": 1, "tensor_model_parallel_size": 3, "max_model_len": 4096},
            "model": {"path": "/nowhere/model"},
        },
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))
    found = statuses(file, gpus_available=4)
    names = ("gpus", "engines", "batch", "lengths", "files")
    assert {name: found[f"preflight-{name}"] for name in names} == dict.fromkeys(names, "fail")
    assert found["preflight-group"] == "warn"
    recipe["data"] |= {"train_batch_size": 32}
    recipe["actor_rollout_ref"]["rollout"] |= {"n": 4, "tensor_model_parallel_size": 2, "max_model_len": 8192}
    recipe["actor_rollout_ref"].pop("model")
    file.write_text(yaml.safe_dump(recipe))
    assert set(statuses(file, gpus_available=8).values()) == {"pass"}


def test_both_spellings_of_options_are_read():
    words = ["python", "-m", "x", "+a.b=1", "--rollout-batch-size", "32", "--n=8", "--colocate", "--flag"]
    assert dict(settings_of(words)) == {
        "a.b": "1",
        "rollout-batch-size": "32",
        "n": "8",
        "colocate": "true",
        "flag": "true",
    }


def test_preflight_of_nothing_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        check_needs(tmp_path / "x.yaml")


def test_a_draft_loads_and_finds_its_own_failure(tmp_path, library):
    log = tmp_path / "odd.log"
    frames = 'Traceback (most recent call last):\n  File "/a/b.py", line 3, in f\n'
    log.write_text(frames + "SomeOddError: gateway 10.0.0.3:8080 refused sample 4711 for /data/x/y at step 12\n")
    text = draft(diagnose([log], index=SearchIndex(library)))
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "own.yaml").write_text(text)
    again = diagnose([log], index=SearchIndex(Library.load([tmp_path / "k"])))
    assert again.root_causes[0].id.startswith("someodderror")


def test_a_draft_of_a_known_failure_is_refused(tmp_path, library):
    log = tmp_path / "known.log"
    log.write_text("RuntimeError: No CUDA GPUs are available\n")
    with pytest.raises(IncompleteDataError, match="no-cuda-gpus-in-worker"):
        draft(diagnose([log], index=SearchIndex(library)))


@pytest.mark.parametrize(
    "text", ["x" * 300, "a 'b' 'c' 'd' 'e' something long", "/a/b /c/d /e/f and more words", "1 2 3"]
)
def test_every_drafted_expression_is_safe_and_matches_its_text(text):
    expression = Expression.checked(expression_for(text))
    assert Expression(expression).search(text)


def test_the_knowledge_is_rendered_as_pages(library):
    pages = failure_pages(library)
    assert set(pages) >= {"index.md", "ray.md", "nccl.md", "rendering.md"}
    for entry in library.entries.values():
        assert f"## {entry.id}\n" in pages[f"{entry.category}.md"]
        assert entry.title_zh in pages["index.md"]


def test_the_seed_documents_values_are_in_the_knowledge(library):
    """What the RLinf questions and answers state must be there to the letter."""
    egl = " ".join(library["egl-device-id-out-of-range"].fix)
    for fact in (
        "/usr/lib/x86_64-linux-gnu/libEGL_nvidia.so.0",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        'NVIDIA_DRIVER_CAPABILITIES="all"',
        "apt install libnvidia-gl-<driver-version>",
        "osmesa",
        "ten times",
    ):
        assert fact in egl
    vulkan = " ".join(library["vulkan-incompatible-driver"].fix)
    for fact in ("535.161.08", "570", "580", "A100", "A800", "RTX 30", "H100", "L40S", "RTX 40"):
        assert fact in vulkan
    assert "hostname -I" in library["ray-gcs-unreachable"].cause
    assert "ray stop" in " ".join(library["nccl-invalid-arg-stale-ray"].fix)
    assert "cluster.component_placement" in " ".join(library["nccl-invalid-arg-placement"].fix)
    assert "gpu_memory_utilization" in " ".join(library["tms-cu-mem-create-oom"].fix)
    assert "attention_backend: triton" in " ".join(library["sglang-flashinfer-instability"].fix)


def test_the_pages_in_the_repository_are_current(library):
    folder = Path(__file__).parents[3] / "docs" / "failures"
    assert {file.name: file.read_text() for file in folder.glob("*.md")} == failure_pages(library)
