"""Manifests of examples/ fit the published schemas, and name options and exit codes of pretrain."""

import re

import pytest

from examples.conftest import EXAMPLES, documents
from pretrain.exit_codes import ExitCode
from structure.documents import called

JOB, TRAINJOB = "kubernetes/indexed-job.yml", "kubernetes/trainjob.yml"


@pytest.fixture(scope="module")
def models():
    """Models that Kubeflow generates from the OpenAPI of Kubernetes and of its own resources."""
    return pytest.importorskip("kubeflow_trainer_api.models", reason="needs kubeflow-trainer-api")


def refused(models, document):
    """Return why a document does not fit its schema; "" if it does."""
    kinds = {
        "Job": models.IoK8sApiBatchV1Job,
        "Service": models.IoK8sApiCoreV1Service,
        "TrainJob": models.TrainerV1alpha1TrainJob,
        "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
    }
    try:
        read = kinds[document["kind"]].from_dict(document)
    except ValueError as error:
        return str(error)
    return "; ".join(unknown(document, read.to_dict()))


def unknown(given, kept, path=""):
    """Yield the keys that a model does not have, which it drops."""
    if isinstance(given, dict):
        for key, value in given.items():
            yield from unknown(value, kept[key], f"{path}.{key}") if key in kept else [f"{path}.{key}"]
    elif isinstance(given, list):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from unknown(one, other, f"{path}[{number}]")


@pytest.mark.parametrize("path", [JOB, TRAINJOB])
def test_manifests_fit_their_schemas(models, path):
    assert [refused(models, document) for document in documents(path)] == ["", ""]


@pytest.mark.parametrize(
    ("path", "right", "wrong"),
    [
        (JOB, "publishNotReadyAddresses", "publishNotReadyAdresses"),
        (JOB, "completionMode", "completionmode"),
        (JOB, "backoffLimitPerIndex: 10", "backoffLimitPerIndex: ten"),
        (JOB, "onExitCodes", "onExitCode"),
        (JOB, "operator: In, ", ""),
        (JOB, "mountPath: /shared", "mount: /shared"),
        (JOB, "emptyDir: {medium", "emptyDir: {kind"),
        (TRAINJOB, "numNodes", "nodes"),
        (TRAINJOB, "runtimeRef", "runtime"),
        (TRAINJOB, "resourcesPerNode", "resources"),
        (TRAINJOB, "replicatedJobs", "jobs"),
        (TRAINJOB, "terminationGracePeriodSeconds", "gracePeriodSeconds"),
        (TRAINJOB, "values: [75]", "values: [saved]"),
    ],
)
def test_a_typo_is_refused(models, tmp_path, monkeypatch, path, right, wrong):
    text = (EXAMPLES / path).read_text()
    assert right in text
    monkeypatch.setattr("examples.conftest.EXAMPLES", tmp_path)
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text(text.replace(right, wrong))
    assert any(refused(models, document) for document in documents(path))


def job_and_trainjob():
    """Return the specifications of both kinds' Jobs, and the arguments of pretrain in them."""
    _, job = documents(JOB)
    runtime, trainjob = documents(TRAINJOB)
    [replicated] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    [container] = job["spec"]["template"]["spec"]["containers"]
    return {
        JOB: (job["spec"], container["args"]),
        TRAINJOB: (replicated["template"]["spec"], trainjob["spec"]["trainer"]["args"]),
    }


@pytest.mark.parametrize("path", [JOB, TRAINJOB])
def test_exit_codes_lead_to_a_new_start_or_to_the_end(path):
    spec, _ = job_and_trainjob()[path]
    rules = {rule["action"]: rule["onExitCodes"] for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule}
    assert {action: codes["values"] for action, codes in rules.items()} == {
        "Ignore": [ExitCode.SAVED],
        "FailJob": [ExitCode.USER_ERROR],
    }
    pod = spec["template"]["spec"]
    assert {codes["containerName"] for codes in rules.values()} == {pod["containers"][0]["name"]}
    assert pod["restartPolicy"] == "Never"  # what podFailurePolicy needs
    assert pod["terminationGracePeriodSeconds"] >= 300
    assert not any("command" in container for container in pod["containers"])  # it would replace the image's tini


@pytest.mark.parametrize("path", [JOB, TRAINJOB])
def test_options_exist(path):
    _, arguments = job_and_trainjob()[path]
    read = called([argument.replace("$(JOB_COMPLETION_INDEX)", "1") for argument in arguments]).params
    assert read["resume"] == "auto"
    assert read["max_restarts"] > 0


@pytest.mark.parametrize("path", [JOB, TRAINJOB])
def test_cores_and_memory_are_asked_for_and_the_lines_for_rdma_fit_the_schema(models, tmp_path, monkeypatch, path):
    text = (EXAMPLES / path).read_text()
    asked = {name for line in re.findall(r" requests: {(.*)}", text) for name in re.findall(r"(\w+):", line)}
    assert asked == {"cpu", "memory"}
    text, removed = re.subn(r"^ +limits: .*\n", "", text, flags=re.MULTILINE)
    text, taken = re.subn(r"^( +)# (limits|securityContext): ", r"\1\2: ", text, flags=re.MULTILINE)
    assert (removed, taken) == (1, 2)
    monkeypatch.setattr("examples.conftest.EXAMPLES", tmp_path)
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text(text)
    assert [refused(models, document) for document in documents(path)] == ["", ""]


def test_the_jobs_names_and_numbers_agree():
    service, job = documents(JOB)
    name, spec = job["metadata"]["name"], job["spec"]
    _, arguments = job_and_trainjob()[JOB]
    assert spec["completions"] == spec["parallelism"]
    assert f"--nnodes={spec['completions']}" in arguments
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert f"--rdzv={name}-0.{service['metadata']['name']}:29500" in arguments


def test_the_task_of_skypilot_is_recovered_when_it_has_saved():
    [task] = documents("skypilot/train.yml")
    assert task["resources"]["job_recovery"] == {"recover_on_exit_codes": [ExitCode.SAVED]}
    [words] = re.findall(r"bin/pretrain (recipes/.*)", task["run"].replace("\\\n", ""))
    assert called(words.split()).params["resume"] == "auto"
