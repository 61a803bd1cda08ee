"""Both protocols over HTTP, in this process: every request gets an answer in its protocol's form, and none ends it."""

import contextlib
import hashlib
import json
import random

import numpy as np
import pytest
import torch
import zstandard
from safetensors.torch import load, save
from starlette.testclient import TestClient

from rldbg.training_service.application import build_application
from rldbg.training_service.bases import BaseModels
from rldbg.training_service.service import TrainingService

TOKENS, TARGETS = [5, 12, 6, 16, 11], [12, 6, 16, 11, 1]


@contextlib.contextmanager
def serving(folder, **settings):
    torch.set_num_threads(1)
    service = TrainingService(BaseModels("tiny", folder, device="cpu"), folder, deterministic=True, **settings)
    application = build_application(service, limit_bytes=1 << 20)
    with TestClient(application, raise_server_exceptions=False) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("service")) as opened:
        yield opened


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """A service that gives up on a gap in the sequence numbers at once."""
    with serving(tmp_path_factory.mktemp("impatient"), gap_timeout_s=0.05) as opened:
        yield opened


class Weaver:
    """A client of the JSON protocol in a few lines."""

    def __init__(self, http, **model):
        self.http = http
        self.session = http.post("/api/v1/sessions", json={}).json()["id"]
        body = {"base_model": "tiny", "model_seq_id": 1, **model}
        self.model = http.post(f"/api/v1/sessions/{self.session}/models", json=body).json()["id"]
        self.path = f"/api/v1/models/{self.model}"
        self.number = 0

    def do(self, what, body, **kwargs):
        answer = self.http.post(f"{self.path}/{what}", json=body, **kwargs)
        return self.finish(answer)

    def finish(self, answer):
        assert answer.status_code == 202, answer.text
        operation = self.http.get(f"/api/v1/operations/{answer.json()['id']}?wait=20").json()
        assert operation["status"] == "done", operation
        return operation["response"]

    def next(self):
        self.number += 1
        return self.number

    def forward_backward(self, data, loss="cross_entropy", config=None, number=None, **extra):
        inputs = {"loss_fn": loss, "data": data, "loss_fn_config": config or {}}
        body = {"seq_id": number or self.next(), "forward_backward_input": inputs}
        return self.do("forward-backward-passes", {"payload": body}, **extra)

    def step(self, **adam):
        return self.do("optimizer-steps", {"payload": {"seq_id": self.next(), "adam_params": adam}})

    def export(self, **body):
        return self.do("export-sampler", {"seq_id": self.next(), **body})["model_path"]


def datum(tokens=TOKENS, targets=TARGETS, **inputs):
    if not inputs:
        inputs = {"weights": [0, 0, 0, 1, 1]}
    tensors = {name: {"data": list(values), "dtype": "float32"} for name, values in inputs.items()}
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": list(tokens)}]},
        "loss_fn_inputs": {"target_tokens": {"data": list(targets), "dtype": "int64"}, **tensors},
    }


def test_the_loss_falls_and_the_exported_weights_sample_what_was_learnt(client):
    weaver = Weaver(client)
    losses = []
    for _ in range(10):
        losses.append(weaver.forward_backward([datum(), datum()])["metrics"]["loss"])
        weaver.step(learning_rate=0.01)
    assert losses[-1] < losses[0] / 100
    body = {"model_path": weaver.export()}
    sampler = client.post(f"/api/v1/sessions/{weaver.session}/sampling-sessions", json=body).json()["id"]
    request = {
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": TOKENS[:4]}]},
        "num_samples": 3,
        "sampling_params": {"max_tokens": 4, "seed": 1},
        "prompt_logprobs": True,
    }
    samples = weaver.finish(client.post(f"/api/v1/sampling-sessions/{sampler}/samples", json=request))
    assert [item["tokens"] for item in samples["sequences"]] == [[11, 1]] * 3
    assert [item["text"] for item in samples["sequences"]] == ["9"] * 3
    assert samples["sequences"][0]["stop_reason"] == "stop"
    assert samples["prompt_logprobs"][0] is None and len(samples["prompt_logprobs"]) == 4


def test_a_pass_gives_log_probs_back_and_changes_nothing_until_the_step(client):
    weaver = Weaver(client)
    before = client.get(f"{weaver.path}/weights").content
    first = weaver.forward_backward([datum()])
    assert weaver.forward_backward([datum()]) == first
    assert len(first["loss_fn_outputs"][0]["logprobs"]["data"]) == 5
    assert client.get(f"{weaver.path}/weights").content == before
    weaver.step()
    assert client.get(f"{weaver.path}/weights").content != before


def test_two_requests_are_two_gradients_and_out_of_order_requests_wait(client):
    together, apart = Weaver(client), Weaver(client)
    together.forward_backward([datum(), datum(weights=[0, 1, 1, 0, 0])])
    late = {"payload": {"seq_id": 3, "adam_params": {"learning_rate": 0.01}}}
    waiting = client.post(f"{apart.path}/optimizer-steps", json=late)
    assert waiting.json()["status"] == "pending"
    second = {"payload": {"seq_id": 2, "forward_backward_input": {"loss_fn": "cross_entropy", "data": [datum()]}}}
    client.post(f"{apart.path}/forward-backward-passes", json=second)
    apart.forward_backward([datum(weights=[0, 1, 1, 0, 0])], number=1)
    norm = apart.finish(waiting)["metrics"]["grad_norm"]
    assert norm == pytest.approx(together.step(learning_rate=0.01)["metrics"]["grad_norm"], rel=1e-5)


def test_a_repeated_request_is_one_and_a_clash_is_told(client):
    weaver = Weaver(client)
    body = {"payload": {"seq_id": 1, "forward_backward_input": {"loss_fn": "cross_entropy", "data": [datum()]}}}
    first = client.post(f"{weaver.path}/forward-backward-passes", json=body)
    second = client.post(f"{weaver.path}/forward-backward-passes", json=body)
    assert first.json()["id"] == second.json()["id"]
    body["payload"]["forward_backward_input"]["loss_fn"] = "forward_logprob"
    clash = client.post(f"{weaver.path}/forward-backward-passes", json=body)
    assert (clash.status_code, clash.json()["error"]) == (409, "conflict")


def test_a_gap_is_an_error_that_names_the_missing_request(impatient):
    weaver = Weaver(impatient)
    answer = impatient.post(f"{weaver.path}/optimizer-steps", json={"payload": {"seq_id": 2, "adam_params": {}}})
    operation = impatient.get(f"/api/v1/operations/{answer.json()['id']}?wait=20").json()
    assert (operation["status"], operation["error_code"]) == ("error", "sequence_gap")
    assert "seq_id 1" in operation["error_message"]


def test_a_refused_request_uses_its_number_so_the_client_can_go_on(client):
    weaver = Weaver(client)
    wrong = {"payload": {"seq_id": weaver.next(), "forward_backward_input": {"loss_fn": "nope", "data": []}}}
    refused = client.post(f"{weaver.path}/forward-backward-passes", json=wrong)
    assert refused.status_code == 400 and "unknown loss: 'nope'" in refused.json()["message"]
    assert weaver.forward_backward([datum()])["metrics"]["tokens"] == 2


def test_state_is_saved_and_loaded_with_and_without_the_optimizer(client):
    weaver = Weaver(client)

    def train():
        weaver.forward_backward([datum()])
        weaver.step(learning_rate=0.01)
        return load(client.get(f"{weaver.path}/weights").content)

    train()
    saved = weaver.do("checkpoints", {"name": "a", "type": "weight_and_optimizer"})
    listed = client.get(f"{weaver.path}/checkpoints").json()["items"]
    assert [item["path"] for item in listed] == [saved["path"]]
    expected = train()
    weaver.do("load", {"path": saved["path"], "include_optimizer": True})
    got = train()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    weaver.do("load", {"path": saved["path"], "include_optimizer": False})
    fresh = train()
    assert any(not torch.equal(expected[name], fresh[name]) for name in expected)
    taken = client.post(f"{weaver.path}/checkpoints", json={"name": "a"})
    operation = client.get(f"/api/v1/operations/{taken.json()['id']}?wait=20").json()
    assert operation["error_code"] == "conflict"


def test_weights_can_be_put_and_got(client):
    one, other = Weaver(client, seed=1), Weaver(client, seed=2)
    weights = client.get(f"{one.path}/weights").content
    assert client.put(f"{other.path}/weights", content=weights).json() == {"loaded": len(load(weights))}
    assert client.get(f"{other.path}/weights").content == weights
    wrong = client.put(f"{other.path}/weights", content=save({"x": torch.zeros(1)}))
    assert wrong.status_code == 400
    assert client.put(f"{other.path}/weights", content=b"nonsense").status_code == 400
    path = one.export(path="named")
    assert client.get(f"{one.path}/weights", params={"path": path}).status_code == 200


def test_models_of_one_seed_are_equal_and_of_another_are_not(client):
    one, same, other = Weaver(client, seed=3), Weaver(client, seed=3), Weaver(client, seed=4)
    weights = [client.get(f"{item.path}/weights").content for item in (one, same, other)]
    assert weights[0] == weights[1] != weights[2]


def test_tensors_may_come_as_a_binary_pack(client):
    inline, packed = Weaver(client), Weaver(client)
    pack = b"".join(
        np.asarray(values, dtype).tobytes()
        for values, dtype in ((TOKENS, np.int64), (TARGETS, np.int64), ([0, 0, 0, 1, 1], np.float32))
    )

    def place(offset, dtype, size):
        shape = {"dtype": dtype, "shape": [5], "offset": offset, "size_bytes": size}
        return {"$tensor": {"format": "raw-tensor", "codec": "raw", **shape}}

    data = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": place(0, "int64", 40)}]},
        "loss_fn_inputs": {"target_tokens": place(40, "int64", 40), "weights": place(80, "float32", 20)},
    }
    request = {"payload": {"seq_id": 1, "forward_backward_input": {"loss_fn": "cross_entropy", "data": [data]}}}
    wire_pack = zstandard.ZstdCompressor().compress(pack)
    facts = {
        "size_bytes": len(wire_pack),
        "sha256": hashlib.sha256(wire_pack).hexdigest(),
        "codec": "zstd",
        "decoded_size_bytes": len(pack),
    }

    def send(facts, wire_pack, seq_id):
        request["payload"]["seq_id"] = seq_id
        manifest = json.dumps({"version": 1, "request": request, "tensor_pack": facts})
        files = {"manifest": (None, manifest, "application/json"), "tensor_pack": ("pack.bin", wire_pack)}
        return client.post(f"{packed.path}/forward-backward-passes", files=files)

    assert packed.finish(send(facts, wire_pack, 1)) == inline.forward_backward([datum()])
    assert send(facts | {"sha256": "0" * 64}, wire_pack, 2).status_code == 400
    assert send(facts, wire_pack[:-3], 2).status_code == 400
    data["loss_fn_inputs"]["weights"]["$tensor"]["offset"] = 1000
    assert "outside the tensor pack" in send(facts, wire_pack, 2).json()["message"]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("{model}/forward-backward-passes", b"{"),
        ("{model}/forward-backward-passes", b"[]"),
        ("{model}/forward-backward-passes", b"{}"),
        ("{model}/forward-backward-passes", b'{"payload": 3}'),
        ("{model}/forward-backward-passes", b'{"payload": {"seq_id": true}}'),
        ("{model}/forward-backward-passes", b"[" * 100_000),
        ("{model}/forward-backward-passes", b"\xff\xfe"),
        ("{model}/optimizer-steps", b'{"payload": {"seq_id": 1, "adam_params": 3}}'),
        ("{model}/export-sampler", b'{"seq_id": "x"}'),
        ("{model}/checkpoints", b'{"type": "everything"}'),
        ("{model}/checkpoints", b'{"name": 3}'),
        ("{model}/load", b'{"path": 3}'),
        ("{model}/load", b'{"path": "weaver://../../etc/passwd"}'),
        ("{session}/models", b'{"base_model": 3}'),
        ("{session}/models", b'{"base_model": "tiny", "model_seq_id": "x"}'),
        ("{session}/models", b'{"base_model": "tiny", "model_seq_id": 9, "seed": "x"}'),
        ("{session}/sampling-sessions", b"{}"),
    ],
)
def test_malformed_requests_are_refused_in_the_protocols_form(client, path, content):
    weaver = Weaver(client)
    path = path.format(model=weaver.path, session=f"/api/v1/sessions/{weaver.session}")
    answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"] == "invalid_request" and answer.json()["message"]
    assert client.get("/api/v1/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/models/none/forward-backward-passes"),
        ("GET", "/models/none"),
        ("GET", "/operations/none"),
        ("POST", "/sessions/none/heartbeat"),
        ("POST", "/sampling-sessions/none/samples"),
        ("GET", "/nothing/here"),
        ("GET", "/managed-datasets"),
    ],
)
def test_what_is_not_there_is_not_found(client, method, path):
    answer = client.request(method, f"/api/v1{path}", json={})
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")


def test_a_request_that_is_too_large_is_refused_whether_it_says_so_or_not(client):
    weaver = Weaver(client)
    path = f"{weaver.path}/forward-backward-passes"
    assert client.post(path, content=b"x" * (1 << 21)).status_code == 413

    def endless():
        for _ in range(64):
            yield b"x" * (1 << 16)

    assert client.post(path, content=endless()).status_code == 413
    bomb = zstandard.ZstdCompressor().compress(b"\0" * (1 << 24))
    answer = client.post(path, content=bomb, headers={"Content-Encoding": "zstd"})
    assert answer.json()["error"] == "payload_too_large"
    assert client.post(path, content=b"zz", headers={"Content-Encoding": "zstd"}).status_code == 400
    assert client.post(path, content=b"zz", headers={"Content-Encoding": "gzip"}).status_code == 400


@pytest.mark.parametrize(
    "path",
    ["forward_backward", "optim_step", "save_weights", "load_weights", "asample", "retrieve_future", "create_model"],
)
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\x0a\xff", b'{"model_id": [], "session_id": {}}'])
def test_tinker_requests_that_are_malformed_get_a_status_that_is_not_retried(client, path, content):
    answer = client.post(f"/api/v1/{path}", content=content)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"] and answer.json()["category"] == "user"


def test_weaver_models_are_adapted_where_the_client_asks_for_it(client):
    whole, default, small = (
        Weaver(client, **model)
        for model in ({}, {"training_mode": "lora"}, {"lora_config": {"rank": 4, "train_mlp": False}})
    )
    about = [client.get(weaver.path).json() for weaver in (whole, default, small)]
    assert [item["training_mode"] for item in about] == ["full_ft", "lora", "lora"]
    assert [item["lora_config"] and item["lora_config"]["rank"] for item in about] == [None, 32, 4]
    assert about[0]["parameters"] < about[2]["parameters"] < about[1]["parameters"]
    before = load(client.get(f"{small.path}/weights").content)
    small.forward_backward([datum()])
    small.step(learning_rate=0.1)
    after = load(client.get(f"{small.path}/weights").content)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any("mlp" in name for name in changed), "others get whole weights, changed where asked"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"training_mode": "qlora"}, "training_mode"),
        ({"training_mode": "full_ft", "lora_config": {"rank": 4}}, "lora_config"),
        ({"lora_config": {"rank": 4, "alpha": 8}}, "lora_config.alpha"),
        ({"lora_config": {}}, "lora_config.rank"),
        ({"performance_tier": "slow"}, "performance_tier"),
        ({"training_max_sequence_length": 64}, "training_max_sequence_length"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused_by_the_field(client, fields, said):
    session = client.post("/api/v1/sessions", json={}).json()["id"]
    answer = client.post(f"/api/v1/sessions/{session}/models", json={"base_model": "tiny", **fields})
    assert answer.status_code == 400 and said in answer.json()["message"]


def test_what_a_client_says_of_its_model_is_in_the_lists(client):
    session = client.post("/api/v1/create_session", json={}).json()["session_id"]
    body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "user_metadata": {"renderer": "plain"}}
    model = client.post("/api/v1/create_model", json=body).json()["model_id"]
    assert client.get(f"/api/v1/training_runs/{model}").json()["user_metadata"] == {"renderer": "plain"}


def tinker_model(client):
    session = client.post("/api/v1/create_session", json={}).json()["session_id"]
    body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny"}
    promise = client.post("/api/v1/create_model", json=body).json()
    return client.post("/api/v1/retrieve_future", json={"request_id": promise["request_id"]}).json()["model_id"]


def test_tinker_gets_its_own_forms_and_a_clash_is_not_a_409(client):
    model = tinker_model(client)
    body = {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": 0.1}, "type": "optim_step"}
    promise = client.post("/api/v1/optim_step", json=body).json()
    assert client.post("/api/v1/optim_step", json=body).json() == promise
    result = client.post("/api/v1/retrieve_future", json={"request_id": promise["request_id"]}).json()
    assert result["metrics"]["optimizer_step"] == 1 and "step" not in result["metrics"], "clients have a step of theirs"
    clash = client.post("/api/v1/optim_step", json=body | {"adam_params": {"learning_rate": 0.2}})
    assert clash.status_code == 400 and "already used" in clash.json()["error"]
    unknown = client.post("/api/v1/optim_step", json=body | {"model_id": "none"})
    assert (unknown.status_code, unknown.json()["category"]) == (404, "user")


def test_a_failed_promise_carries_error_and_category(impatient):
    model = tinker_model(impatient)
    body = {"model_id": model, "seq_id": 5, "adam_params": {}, "type": "optim_step"}
    promise = impatient.post("/api/v1/optim_step", json=body).json()
    result = impatient.post("/api/v1/retrieve_future", json={"request_id": promise["request_id"]})
    assert result.status_code == 200
    assert "seq_id 1, which never came" in result.json()["error"] and result.json()["category"] == "user"


def test_a_tinker_pass_with_a_bad_datum_uses_its_number(client):
    model = tinker_model(client)
    fields = (b"\x0a", bytes([len(model)]), model.encode(), b"\x10\x01", b"\x22\x0dcross_entropy", b"\x1a\x01\xff")
    refused = client.post("/api/v1/forward_backward", content=b"".join(fields))
    assert refused.status_code == 400
    body = {"model_id": model, "seq_id": 2, "adam_params": {}, "type": "optim_step"}
    promise = client.post("/api/v1/optim_step", json=body).json()
    result = client.post("/api/v1/retrieve_future", json={"request_id": promise["request_id"]}).json()
    assert result["metrics"]["grad_norm"] == 0


def test_a_terminated_model_is_gone(client):
    weaver = Weaver(client)
    assert client.post(f"{weaver.path}/terminate").json() == {"status": "terminated"}
    assert client.get(weaver.path).status_code == 404


def test_a_handler_that_breaks_is_a_500_and_the_service_lives(client, monkeypatch):
    weaver = Weaver(client)
    monkeypatch.setattr("rldbg.training_service.weaver_json.model_json", lambda entry: 1 / 0)
    answer = client.get(weaver.path)
    assert (answer.status_code, answer.json()["error"]) == (500, "internal_error")
    monkeypatch.undo()
    assert client.get(weaver.path).status_code == 200


def mutate(value, generator):
    """One place of a JSON value replaced, removed or nested by chance."""
    odd = [None, True, -1, 10**30, 1.5, "x", [], {}, [[]], {"a": 1}, "weaver://a/b/c", float("1e308"), [1, "a"]]
    if isinstance(value, dict) and value and generator.random() < 0.85:
        key = generator.choice(sorted(value))
        if generator.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: mutate(value[key], generator)}
    if isinstance(value, list) and value and generator.random() < 0.85:
        place = generator.randrange(len(value))
        return [*value[:place], mutate(value[place], generator), *value[place + 1 :]]
    return generator.choice(odd)


def fuzz(client, count, seed):
    """Requests of every route with one thing wrong: none may be answered by a failure of the service."""
    generator = random.Random(seed)
    weaver = Weaver(client)
    sampler = client.post(f"/api/v1/sessions/{weaver.session}/sampling-sessions", json={"base_model": "tiny"}).json()[
        "id"
    ]
    prompt = {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}
    inputs = {
        "loss_fn": "ppo",
        "loss_fn_config": {"clip_low_threshold": 0.8},
        "data": [datum(logprobs=[-1] * 5, advantages=[1] * 5)],
    }
    params = {"max_tokens": 2, "temperature": 1.0, "top_p": 0.9, "top_k": 5, "stop": ["x"], "seed": 1}
    good = (
        ("/sessions", {"tags": []}),
        (f"/sessions/{weaver.session}/models", {"base_model": "tiny", "model_seq_id": 1, "seed": 0}),
        (
            f"/models/{weaver.model}/forward-backward-passes",
            {"payload": {"seq_id": 1, "forward_backward_input": inputs}},
        ),
        (f"/models/{weaver.model}/optimizer-steps", {"payload": {"seq_id": 1, "adam_params": {"learning_rate": 0.1}}}),
        (f"/models/{weaver.model}/export-sampler", {"seq_id": 1, "path": "a", "ttl_seconds": 10}),
        (f"/models/{weaver.model}/checkpoints", {"name": "a", "type": "weight", "ttl_seconds": 10}),
        (f"/models/{weaver.model}/load", {"path": "weaver://a/checkpoints/b", "include_optimizer": True}),
        (f"/sampling-sessions/{sampler}/samples", {"prompt": prompt, "num_samples": 2, "sampling_params": params}),
        (f"/sampling-sessions/{sampler}/logprobs", {"prompt": prompt}),
        (
            "/create_model",
            {"session_id": weaver.session, "model_seq_id": 1, "base_model": "tiny", "lora_config": {"rank": 1}},
        ),
        ("/optim_step", {"model_id": weaver.model, "seq_id": 1, "adam_params": {"learning_rate": 0.1}}),
        ("/save_weights", {"model_id": weaver.model, "seq_id": 1, "path": "x"}),
        ("/save_weights_for_sampler", {"model_id": weaver.model, "seq_id": 1, "sampling_session_seq_id": 1}),
        ("/load_weights", {"model_id": weaver.model, "seq_id": 1, "path": "tinker://a/weights/b", "optimizer": True}),
        ("/asample", {"sampling_session_id": sampler, "seq_id": 1, "prompt": prompt, "sampling_params": params}),
        ("/retrieve_future", {"request_id": "x"}),
        ("/create_sampling_session", {"session_id": weaver.session, "base_model": "tiny"}),
    )
    for number in range(count):
        path, body = good[number % len(good)]
        answer = client.post(f"/api/v1{path}", json=mutate(body, generator))
        assert answer.status_code < 500 and "InternalError" not in answer.text, (path, answer.text)
        identifier = answer.json().get("id") or answer.json().get("request_id")
        if answer.status_code in (200, 202) and isinstance(identifier, str):
            outcome = client.get(f"/api/v1/operations/{identifier}")
            assert outcome.status_code < 500, (path, outcome.text)
            assert outcome.json().get("error_code") != "internal_error", (path, outcome.text)
    assert client.get("/api/v1/healthz").status_code == 200


def test_a_result_of_one_protocol_is_not_a_fault_of_the_other(client):
    """It failed only where the result was there before it was asked for."""
    prompt = {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}
    body = {"base_model": "tiny", "prompt": prompt, "num_samples": 1, "sampling_params": {"max_tokens": 1}}
    promise = client.post("/api/v1/asample", json=body).json()["request_id"]
    answer = client.get(f"/api/v1/operations/{promise}?wait=30")
    assert answer.status_code == 400 and "retrieve_future" in answer.json()["message"]
    assert client.post("/api/v1/retrieve_future", json={"request_id": promise}).status_code == 200


def test_requests_with_one_thing_wrong_never_break_the_service(client):
    fuzz(client, 170, seed=1)


@pytest.mark.soak
def test_many_requests_with_one_thing_wrong_never_break_the_service(client):
    fuzz(client, 20_000, seed=2)


def test_training_runs_checkpoints_and_sessions_are_listed(client):
    weaver = Weaver(client)
    weaver.do("checkpoints", {"name": "first"})

    def get(path, **parameters):
        answer = client.get(f"/api/v1/{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    run = get(f"training_runs/{weaver.model}")
    assert (run["training_run_id"], run["base_model"], run["is_lora"]) == (weaver.model, "tiny", False)
    assert run["last_checkpoint"]["tinker_path"] == f"tinker://{weaver.model}/weights/first"
    assert run["last_sampler_checkpoint"] is None
    listed = get("training_runs", limit=1000)
    assert weaver.model in [item["training_run_id"] for item in listed["training_runs"]]
    assert listed["cursor"]["total_count"] == len(listed["training_runs"])
    assert len(get("training_runs", limit=1, offset=0)["training_runs"]) == 1
    [checkpoint] = get(f"training_runs/{weaver.model}/checkpoints")["checkpoints"]
    assert (checkpoint["checkpoint_id"], checkpoint["checkpoint_type"]) == ("weights/first", "training")
    assert checkpoint in get("checkpoints", limit=1000)["checkpoints"]
    assert get("sessions")["sessions"][0] == weaver.session
    assert get(f"sessions/{weaver.session}")["training_run_ids"] == [weaver.model]
    for path in ("training_runs?project_id=x", "checkpoints?limit=-1", "sessions?offset=x"):
        refused = client.get(f"/api/v1/{path}")
        assert refused.status_code == 400 and path.partition("?")[2].partition("=")[0] in refused.text
    assert client.get("/api/v1/training_runs/nobody").status_code == 404
    place = f"/api/v1/training_runs/{weaver.model}/checkpoints/weights/first"
    assert client.delete(place).status_code == 204 and client.delete(place).status_code == 404
    assert get(f"training_runs/{weaver.model}/checkpoints")["checkpoints"] == []
