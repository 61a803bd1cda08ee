"""The service as a process: it outlives its shell, records what it is sent, agrees with the trainer, repeats itself."""

import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load, save
from serve_shell import RLDBG, ServeShell

import rldbg
from rldbg.core import SampleId
from rldbg.replay import Trajectory, TrajectoryBatch, padded_rows
from rldbg.trainer import (
    AlgorithmSettings,
    MicroBatch,
    ModelSettings,
    OptimizerSettings,
    apply_gradients,
    build_model,
    forward,
    load_tokenizer,
    make_optimizer,
    train_micro_batch,
)

KINDS = ("datums", "training_metrics", "forward_data", "loss", "is_loss_debug", "batch_inputs", "param", "gradient")


def up(home, *arguments, **settings):
    return ServeShell(home, **settings).up("--backend", "train", "--model", "tiny", *arguments)


class Client:
    """The JSON protocol with nothing but the standard library."""

    def __init__(self, server, **model):
        self.url = f"http://{server['addresses'][0]}/api/v1"
        self.session = self.call("POST", "/sessions", {})["id"]
        self.model = self.call("POST", f"/sessions/{self.session}/models", {"base_model": "tiny", **model})["id"]
        self.number = 0

    def call(self, method, path, body=None, raw=False):
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read() if raw else json.load(answer)

    def finish(self, operation):
        while operation["status"] == "pending":
            operation = self.call("GET", f"/operations/{operation['id']}?wait=20")
        assert operation["status"] == "done", operation
        return operation["response"]

    def do(self, what, **payload):
        self.number += 1
        body = {"payload": {"seq_id": self.number, **payload}}
        return self.finish(self.call("POST", f"/models/{self.model}/{what}", body))

    def forward_backward(self, data, loss_fn, **config):
        inputs = {"data": data, "loss_fn": loss_fn, "loss_fn_config": config}
        return self.do("forward-backward-passes", forward_backward_input=inputs)

    def step(self, **adam):
        return self.do("optimizer-steps", adam_params=adam)["metrics"]

    def weights(self):
        return self.call("GET", f"/models/{self.model}/weights", raw=True)

    def sample(self, prompt, **body):
        self.number += 1
        exported = self.finish(self.call("POST", f"/models/{self.model}/export-sampler", {"seq_id": self.number}))
        place = {"model_path": exported["model_path"]}
        session = self.call("POST", f"/sessions/{self.session}/sampling-sessions", place)["id"]
        request = {"prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]}, **body}
        return self.finish(self.call("POST", f"/sampling-sessions/{session}/samples", request))["sequences"]


def trajectories(count=8, seed=0):
    """Samples of different lengths with their rollout log probs, as a trainer has them."""
    generator = np.random.default_rng(seed)
    made = []
    for number in range(count):
        prompt, response = 4 + number % 3, 2 + number % 4
        mask = np.asarray([0] * prompt + [1] * response)
        logprobs = np.where(mask, -generator.random(prompt + response) * 4, 0).astype(np.float32)
        tokens = generator.integers(2, 40, prompt + response)
        made.append(Trajectory(SampleId(f"g{number // 4}", number % 4), tokens, mask, 0.0, logprobs=logprobs))
    return made


def as_datum(item, advantage, reference=None):
    """tokens[:-1] predict tokens[1:]; values of a token stand where it is predicted."""
    mask = item.loss_mask[1:]
    inputs = {"logprobs": item.logprobs[1:], "advantages": mask * advantage, "loss_mask": mask}
    if reference is not None:
        inputs["ref_logprobs"] = reference[1:]
    tensors = {
        name: {"data": np.asarray(values, float).tolist(), "dtype": "float32"} for name, values in inputs.items()
    }
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": item.tokens[:-1].tolist()}]},
        "loss_fn_inputs": {"target_tokens": {"data": item.tokens[1:].tolist(), "dtype": "int64"}, **tensors},
        "metadata": {"group_id": item.sample.group_id, "run_id": item.sample.run_id},
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return tmp_path_factory.mktemp("dumps") / "weaver_debug_dump"


@pytest.fixture(scope="module")
def server(home, dump):
    recording = {
        "WEAVER_DEBUG_DUMP_ENABLED": "1",
        "WEAVER_DEBUG_DUMP_DIR": str(dump),
        "WEAVER_DEBUG_DUMP_EVERY_N": "1",
        "WEAVER_DEBUG_DUMP_OPTIONS": ",".join(KINDS),
    }
    yield up(home, "--name", "main", "--deterministic", **recording)
    ServeShell(home).run("down", "--all")


@pytest.fixture(scope="module")
def recorded(server):
    """The first model of the service, so that its recording is where the settings say: two steps of two requests."""
    client, answers = Client(server, seed=3), []
    data = [as_datum(item, 0.5 - number % 3) for number, item in enumerate(trajectories())]
    for _ in range(2):
        for part in (data[:4], data[4:]):
            answers.append(client.forward_backward(part, "importance_sampling"))
        client.step(learning_rate=0.01)
    return client, data, answers


def test_what_was_sent_and_computed_is_on_record_under_the_documented_names(recorded, home, dump):
    client, data, answers = recorded
    client.call("POST", f"/models/{client.model}/terminate", {})
    names = {path.relative_to(dump).as_posix() for path in dump.glob("*/*.pt")}
    for kind in ("forward_data", "loss", "is_loss_debug", "batch_inputs"):
        assert {f"{kind}/step_{step:06d}_rank0_micro{micro}.pt" for step in (0, 1) for micro in (0, 1)} <= names
    assert {"datums/step_000000.pt", "datums/step_000000_epoch0_mini1.pt"} <= names
    raw = torch.load(dump / "loss/step_000001_rank0_micro1.pt", weights_only=True)
    assert raw["loss"] == pytest.approx(answers[3]["metrics"]["loss"], rel=1e-6)
    recording = rldbg.open(dump)
    debug = {record.key[1:4]: record for record in recording.records("is_loss_debug")}
    for (step, micro), answer in zip([(0, 0), (0, 1), (1, 0), (1, 1)], answers, strict=True):
        record = debug[step, 0, micro]
        assert [tuple(item) for item in record.samples] == [(f"g{micro}", run_id) for run_id in range(4)]
        valid = record.array("effective_valid") != 0
        summed = np.where(valid, record.array("elementwise_loss"), 0).sum()
        assert summed == pytest.approx(answer["metrics"]["loss"], rel=1e-5)
        np.testing.assert_allclose(
            record.array("prob_ratio")[valid],
            np.exp(record.array("log_probs") - record.array("old_log_probs"))[valid],
            rtol=1e-5,
        )
    datums = next(iter(recording.records("datums")))
    sent = data[0]["model_input"]["chunks"][0]["tokens"]
    assert next(datums.rows("input_tokens")).tolist() == sent
    verified = subprocess.run([RLDBG, "verify", str(dump)], capture_output=True, text=True, timeout=60)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_losses_agree_with_the_trainers_own_step_within_1e_6(server, recorded, loss, aggregation):
    torch.set_num_threads(1)
    algorithm = AlgorithmSettings(
        loss=loss, aggregation=aggregation, entropy_coeff=0.01, kl_coeff=0.05, clip_low=0.2, clip_high=0.2
    )
    optimizer_settings = OptimizerSettings(learning_rate=0.01, weight_decay=0.01)
    model = build_model(ModelSettings(), vocabulary_size=load_tokenizer("tiny").vocabulary_size, seed=5)
    client = Client(server)
    own = {name: parameter.detach() for name, parameter in model.named_parameters()}
    client.call("PUT", f"/models/{client.model}/weights", save(own))
    items = trajectories(seed=2)
    with torch.no_grad():
        batch = TrajectoryBatch.from_trajectories(items)
        now = forward(model, batch).log_probs
    # Close to the policy, so that some ratios are clipped and some are not.
    shift = np.random.default_rng(1).normal(size=now.shape).astype(np.float32) * 0.2
    advantages = np.random.default_rng(4).normal(size=len(items)).astype(np.float32)
    rows = []
    for row, item in enumerate(items):
        old = (now[row].numpy() + shift[row])[: item.response_length]
        logprobs = np.zeros(len(item.tokens), np.float32)
        logprobs[item.prompt_length :] = old
        rows.append(Trajectory(item.sample, item.tokens, item.loss_mask, 0.0, logprobs=logprobs))
    count = sum(int(item.loss_mask.sum()) for item in rows)
    denominator = float(count if aggregation == "token_mean" else len(rows))
    optimizer = make_optimizer(model.parameters(), optimizer_settings)
    for _ in range(3):
        mine, remote = 0.0, 0.0
        for part in (slice(0, 4), slice(4, 8)):
            some = TrajectoryBatch.from_trajectories(rows[part])
            response = some.response_width
            wide = padded_rows(
                [np.full(item.response_length, advantages[row]) for row, item in enumerate(rows)][part], response
            )
            reference = padded_rows([item.logprobs[item.prompt_length :] - 0.1 for item in rows[part]], response)
            micro = MicroBatch(some, wide, some.rollout_log_probs.nan_to_num(), reference)
            _, terms = train_micro_batch(model, micro, algorithm, denominator=denominator)
            mine += float(terms.loss.detach())
            data = [
                as_datum(item, float(advantages[row]), np.where(item.loss_mask, item.logprobs - 0.1, 0))
                for row, item in list(enumerate(rows))[part]
            ]
            answer = client.forward_backward(
                data,
                loss,
                aggregation=aggregation,
                denominator=denominator,
                entropy_coeff=0.01,
                kl_coeff=0.05,
                kl_estimator="k3",
            )
            remote += answer["metrics"]["loss"]
        norm = apply_gradients(model, optimizer, rate=0.01, max_grad_norm=1.0)
        metrics = client.step(
            learning_rate=0.01, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.01, grad_clip_norm=1.0
        )
        assert remote == pytest.approx(mine, abs=1e-6)
        assert metrics["grad_norm"] == norm
    theirs = load(client.weights())
    for name, parameter in model.named_parameters():
        assert torch.equal(theirs[name], parameter.detach()), f"{name} is not the same bit for bit"


def play(server):
    client = Client(server, seed=11)
    for _ in range(3):
        client.forward_backward([as_datum(item, 1.0) for item in trajectories()], "ppo")
        client.step(learning_rate=0.01)
    return client.weights(), client.sample([5, 12, 6], num_samples=3, sampling_params={"max_tokens": 6})


@pytest.fixture(scope="module")
def orphan(tmp_path_factory):
    """A service whose shell, with its whole process group, was killed after it had started it."""
    home = tmp_path_factory.mktemp("orphan")
    line = f"{RLDBG} serve up --backend train --model tiny --name s --deterministic; echo done; sleep 600"
    shell = subprocess.Popen(
        ["bash", "-c", line],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"RLDBG_HOME": str(home)},
        start_new_session=True,
    )
    launched = shell.stdout.readline()
    assert shell.stdout.readline() == "done\n", launched
    os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()
    yield home, launched
    ServeShell(home).run("down", "--all")


def test_a_deterministic_service_repeats_another_bit_for_bit(server, recorded, orphan):
    (other,) = ServeShell(orphan[0]).ask("ls")["servers"]
    assert play(server) == play(other)


def test_clients_that_train_at_once_do_not_mix(server, recorded):
    alone = [Client(server, seed=seed) for seed in range(3)]
    together = [Client(server, seed=seed) for seed in range(3)]
    data = [as_datum(item, 1.0) for item in trajectories()]

    def train(client):
        for _ in range(4):
            client.forward_backward(data, "ppo")
            client.step(learning_rate=0.01)

    for client in alone:
        train(client)
    with ThreadPoolExecutor() as pool:
        list(pool.map(train, together))
    assert [client.weights() for client in alone] == [client.weights() for client in together]


def test_clients_that_stall_or_leave_in_the_middle_do_not_hurt_others(server, recorded):
    client = Client(server)
    host, _, port = server["addresses"][0].partition(":")
    path = f"/api/v1/models/{client.model}/forward-backward-passes"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
    stalled = [socket.create_connection((host, int(port)), timeout=10) for _ in range(40)]
    for number, connection in enumerate(stalled):
        connection.sendall(head.encode()[: 20 + number * 3] if number % 2 else head.encode() + b'{"payload":')
    for connection in stalled[:20]:
        connection.close()
    client.forward_backward([as_datum(item, 1.0) for item in trajectories()], "ppo")
    assert client.step(learning_rate=0.01)["grad_norm"] > 0
    for connection in stalled[20:]:
        connection.close()
    assert client.call("GET", "/healthz") == {"status": "ok"}


def test_the_service_outlives_the_shell_and_down_leaves_no_process(orphan):
    home, launched = orphan
    (listed,) = ServeShell(home).ask("ls")["servers"]
    assert listed["state"] == "running" and f"http://{listed['addresses'][0]}" in launched
    client = Client(listed)
    assert client.step()["step"] == 1
    ServeShell(home).run("down", "s")
    assert not psutil.pid_exists(listed["processes"][0]["pid"])
    assert ServeShell(home).ask("ls")["servers"] == []
    with pytest.raises(urllib.error.URLError):
        client.step()


def test_a_port_that_is_taken_a_missing_model_and_a_taken_name_are_clear_errors(server, home):
    port = server["addresses"][0].rpartition(":")[2]
    shell = ServeShell(home)
    taken = shell.ask("up", "--backend", "train", "--port", port, "--name", "p", code=3)
    assert f"cannot listen on 127.0.0.1:{port}" in taken["error"]["message"]
    missing = shell.ask("up", "--backend", "train", "--model", "/nowhere", code=2)
    assert missing["error"]["kind"] == "usage"
    shell.run("up", "--backend", "train", "--name", "main", code=2)
    shell.run("logs", "nobody", code=4)
    assert [item["name"] for item in shell.ask("ls")["servers"]] == ["main"]
