"""Lines with which programs end that failed: a log that ends with one is never called healthy."""

import pytest

from rldbg.doctor import diagnose
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.endings import is_ending

ENDS = r"""
bash: line 3: torchrun: command not found
train.sh: line 12: python3: command not found
/bin/bash: /opt/run.sh: No such file or directory
./run.sh: 14: module: not found
run.sh: line 9:  4711 Killed                  python train.py
Killed
Aborted (core dumped)
Segmentation fault (core dumped)
Bus error
*** stack smashing detected ***: terminated
terminate called after throwing an instance of 'std::runtime_error'
  what():  basic_string::_M_create
double free or corruption (!prev)
python: ../src/foo.cc:12: void f(): Assertion `x > 0' failed.
Fatal Python error: Segmentation fault
thread 'main' panicked at src/main.rs:12:5:
thread '<unnamed>' (123) panicked at src/lib.rs
error: could not compile `frob` (lib) due to 3 previous errors
error[E0308]: mismatched types
panic: runtime error: invalid memory address or nil pointer dereference
fatal error: all goroutines are asleep - deadlock!
Exception in thread "main" java.lang.OutOfMemoryError: Java heap space
Caused by: java.net.ConnectException: Connection refused
java.lang.NoClassDefFoundError: org/x/Y
make: *** [Makefile:12: all] Error 2
ninja: build stopped: subcommand failed.
FAILED: frob.o
CMake Error at CMakeLists.txt:3 (find_package):
/usr/bin/ld: cannot find -lcuda
x.cu:12:10: fatal error: foo.h: No such file or directory
==== 2 failed, 3 passed in 3.1s ====
srun: error: node01: task 3: Exited with exit code 1
slurmstepd: error: *** STEP 77.0 ON node3 CANCELLED AT 2026-11-15T10:00:00 ***
sbatch: error: Batch job submission failed: Invalid partition name specified
salloc: error: Job submit/allocate failed
  Reason:  OOMKilled
Warning  BackOff  3m  kubelet  Back-off restarting failed container trainer in pod x
0/4 nodes are available: 4 Insufficient nvidia.com/gpu. FailedScheduling
docker: Error response from daemon: could not select device driver
MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD
Primary job  terminated normally, but 1 process returned a non-zero exit code
mpirun noticed that process rank 3 with PID 0 on node x exited on signal 9 (Killed).
[node1:00123] *** Process received signal ***
CUDA error: unspecified launch failure
RuntimeError: cudaErrorIllegalAddress
hipErrorNoBinaryForGpu: Unable to find code object for all current devices!
:0:rocdevice.cpp:2984: HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION
Memory access fault by GPU node-3 (Agent handle: 0x5a5c) on address 0x7098. Reason: Unknown.
HW Exception by GPU node-1 (Agent handle: 0x5581) reason :GPU Hang
EI0006: 2026-03-05-18:15:21.270.506 Getting socket times out.
[ERROR] 2025-10-29-02:17:03 (PID:144556, Device:0, RankID:0) ERR02200 DIST call hccl api failed.
HCCL function error: hcclCommInitRootInfoConfig, error code is 4
ncclSystemError: System call (e.g. socket, malloc) or external library call failed
gpu-9: Test NCCL failure frob.cu:77 'unhandled wibble error'
nixl_agent.cpp:359] createBackend: status NIXL_ERR_BACKEND
[1784273406.684686] [host:994396:0]      ib_mlx5_dv.c:452  UCX  ERROR   mlx5dv_devx_obj_create(CQ) failed
NVRM: Xid (PCI:0000:c1:00): 13, pid=12
Process exited with code 137
[launch] worker 3 exited with exit code -9
Command '['ninja']' returned non-zero exit status 1.
exitcode: 1
Job 'raysubmit_abc' failed
Test session FAILED
❌ Training stopped
prterun: error: could not launch
"""
NO_ENDS = """
INFO 11-15 10:00:00 job failed over to standby
[1]+  Terminated              python serve.py
WARNING: process 3 exited with code 1, restarting
Finished with exit code 0
failed: 0
0 failed, 12 passed
Saved model to /out
step 12 loss 0.3 reward 0.1
===== 12 passed in 3s =====
All workers exited with code 0
wandb: Synced 5 W&B file(s)
Closing process 293866 via signal SIGTERM
{'train_runtime': 12.2, 'train_loss': 0.1}
num_failed_requests: 0
run.sh: line 40:  4711 Terminated              python serve.py
rm: cannot remove 'out/tmp': No such file or directory
cat: out/notes.txt: No such file or directory
nanobind: leaked 3 instances!
resource_tracker: There appear to be 1 leaked shared_memory objects to clean up at shutdown
"""


@pytest.mark.parametrize("line", ENDS.strip("\n").split("\n"))
def test_a_log_that_ends_with_the_end_of_a_failed_program_is_not_healthy(line, index, tmp_path):
    assert is_ending(clean(line))
    log = tmp_path / "x.log"
    log.write_text(f"loading the model\nserving at port 8000\n{line}\ncleaning up\n")
    assert diagnose([log], index=index).verdict != "healthy"


def test_what_healthy_programs_print_at_their_end_is_no_end_of_a_failed_one(index, tmp_path):
    assert [line for line in NO_ENDS.strip().split("\n") if is_ending(clean(line))] == []
    log = tmp_path / "x.log"
    log.write_text(NO_ENDS)
    assert diagnose([log], index=index).verdict == "healthy"


def test_an_end_before_all_steps_were_done_is_not_the_end_of_the_run(index, tmp_path):
    log = tmp_path / "x.log"
    log.write_text("bash: line 3: module: command not found\nTraining Progress: 100%|##| 3/3\n")
    assert diagnose([log], index=index).verdict == "healthy"


def test_a_log_that_ends_in_the_middle_of_a_progress_bar_says_so(index, tmp_path):
    log = tmp_path / "x.log"
    log.write_text("loading\nTrain:  40%|####      | 60/150 [23:07<5:43:53, 146.34s/it]\n")
    found = diagnose([log], index=index)
    assert found.verdict == "healthy"
    assert "60/150" in found.headline
    assert found.next
    assert diagnose([log], index=index, exit_code=0).headline == "no failure found"
    log.write_text("loading\nTrain: 100%|##########| 150/150 [23:07<00:00, 146.34s/it]\n")
    assert diagnose([log], index=index).headline == "no failure found"


def test_counters_at_the_end_of_a_healthy_log_are_no_failures(index, tmp_path):
    log = tmp_path / "x.log"
    log.write_text("num ray task events failed to report to aggregator: 0\nnumber of workers that died: 0\n")
    assert diagnose([log], index=index).verdict == "healthy"


def test_a_program_that_ended_well_is_healthy_however_its_log_ends(index, tmp_path):
    log = tmp_path / "x.log"
    log.write_text("step 3\nmake: *** [Makefile:12: all] Error 2\n")
    assert diagnose([log], index=index).verdict == "unknown"
    assert diagnose([log], index=index, exit_code=0).verdict == "healthy"
