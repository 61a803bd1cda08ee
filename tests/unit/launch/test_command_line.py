"""What a command line starts in the end, through any launchers."""

import shlex

import pytest

from rldbg.launch.command_line import understand


@pytest.mark.parametrize(
    ("line", "kind", "name", "arguments", "launchers"),
    [
        ("python3 -m verl.trainer.main_ppo a=b", "module", "verl.trainer.main_ppo", ["a=b"], []),
        ("/opt/env/bin/python3.11 -u train.py --x 1", "script", "train.py", ["--x", "1"], []),
        ("python -um pkg.train", "module", "pkg.train", [], []),
        ("python -c 'print(1)' x", "code", "print(1)", ["x"], []),
        ("python - a", "stdin", "-", ["a"], []),
        ("python -X frozen_modules=off train.py", "script", "train.py", [], []),
        ("uv run --isolated --extra fsdp -m pkg.main k=v", "module", "pkg.main", ["k=v"], ["uv run"]),
        (
            "uv run examples/run_grpo.py --config c k=v",
            "script",
            "examples/run_grpo.py",
            ["--config", "c", "k=v"],
            ["uv run"],
        ),
        (
            "uv run coverage run -a --data-file=d --source=s x.py k=v",
            "script",
            "x.py",
            ["k=v"],
            ["uv run", "coverage run"],
        ),
        ("torchrun --nnodes --node_rank --master_addr h -m pkg.sft", "module", "pkg.sft", [], ["torchrun"]),
        ("uv run rl @ rl.toml", "executable", "rl", ["@", "rl.toml"], ["uv run"]),
        ("torchrun --nproc_per_node=8 --nnodes 1 -m pkg.sft k=v", "module", "pkg.sft", ["k=v"], ["torchrun"]),
        ("torchrun --standalone --nproc-per-node 2 train.py --lr 1", "script", "train.py", ["--lr", "1"], ["torchrun"]),
        ("python -m torch.distributed.run --nproc-per-node 4 t.py x", "script", "t.py", ["x"], ["torchrun"]),
        ("python -m rldbg.frameworks.trl.http_weights g.py --a 1", "script", "g.py", ["--a", "1"], ["http_weights"]),
        ("deepspeed --module pkg.train_sft --a 1", "module", "pkg.train_sft", ["--a", "1"], ["deepspeed"]),
        (
            "accelerate launch --config_file c.yaml --multi_gpu t.py --lr 1",
            "script",
            "t.py",
            ["--lr", "1"],
            ["accelerate launch"],
        ),
        (
            "ray job submit --address=http://h --runtime-env-json={} --no-wait -- python3 train.py --n 1",
            "script",
            "train.py",
            ["--n", "1"],
            ["ray job submit"],
        ),
        (
            "srun --overlap -w n1 -N1 apptainer run --nv --bind a:b i.sif python3 -m pkg.main k=1",
            "module",
            "pkg.main",
            ["k=1"],
            ["srun", "apptainer run"],
        ),
        ("docker run -it --rm --gpus all image python t.py", "script", "t.py", [], ["docker run"]),
        ("timeout -k 5 30 env A=1 B=2 python t.py", "script", "t.py", [], ["timeout", "env"]),
        ("nsys profile -t cuda -o out --force-overwrite true python t.py", "script", "t.py", [], ["nsys profile"]),
        ("ssh -o A=b root@h python t.py", "executable", "bash", ["-c", "python t.py"], ["ssh"]),
        ("sbatch -N 2 --export=ALL job.sh x", "executable", "bash", ["job.sh", "x"], ["sbatch"]),
        ("screen -dmS job bash -c 'python t.py'", "executable", "bash", ["-c", "python t.py"], ["screen"]),
        ("ssh -NfL 8265:n1:8265 login true", "executable", "bash", ["-c", "true"], ["ssh"]),
        ("ray job submit", "none", "", [], ["ray job submit"]),
    ],
)
def test_program_is_found_behind_its_launchers(line, kind, name, arguments, launchers):
    program = understand(shlex.split(line))

    assert (program.kind, program.name, list(program.arguments)) == (kind, name, arguments)
    assert [peeled.launcher.name for peeled in program.launchers] == launchers


@pytest.mark.parametrize(
    ("line", "flag"),
    [("python -I t.py", "-I"), ("python -uE t.py", "-uE"), ("python -u -X dev t.py", ""), ("python -SI -m m", "-SI")],
)
def test_flags_that_keep_the_start_up_hook_out(line, flag):
    assert understand(shlex.split(line)).ignores_start_up == flag


def test_head_and_inner_make_up_the_whole_command():
    words = shlex.split("srun -N 1 --ntasks=1 python t.py --a 'b c'")

    (peeled,) = understand(words).launchers

    assert [*peeled.head, *peeled.inner] == words
