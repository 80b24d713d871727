#!/usr/bin/env python3
# Checks the manifests of examples/clusters: syntax, names, ports, and that the started programs
# accept the given flags.
# SPDX-License-Identifier: Apache-2.0
"""Usage: manifests_test.py SOURCE_FOLDER PROGRAM_TUTTI FOLDER_OF_EXAMPLE_PROGRAMS"""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import counted_unittest  # noqa: E402

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
TUTTI = os.path.abspath(sys.argv.pop(1))
EXAMPLES = pathlib.Path(sys.argv.pop(1)).resolve()
CLUSTERS = ROOT / "examples" / "clusters"
INSTALLED = "/opt/tutti/bin/"


def load(name):
    return list(yaml.safe_load_all((CLUSTERS / name).read_text(encoding="utf-8")))


def resolve(resolver, variables):
    """Returns the cluster that a program would find, as `tutti cluster` reports it."""
    result = subprocess.run([TUTTI, "cluster", "--json", "--resolver", resolver], text=True, capture_output=True,
                            timeout=600, env={"PATH": os.environ["PATH"], **variables})
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return json.loads(result.stdout)


def dockerfile():
    return (CLUSTERS / "Dockerfile").read_text(encoding="utf-8")


def owner(path):
    """Returns the package that contains a library, whose path may begin with /lib or /usr/lib."""
    real = os.path.realpath(path)
    for name in (real, real.removeprefix("/usr"), path):
        result = subprocess.run(["dpkg", "-S", name], text=True, capture_output=True, check=False)
        if result.returncode == 0:
            return result.stdout.split(":")[0]
    raise AssertionError(f"{path} belongs to no package")


class Manifests(unittest.TestCase):
    def check_program(self, words):
        """Checks that the image contains the program at this path, that it was built, and that it accepts the given flags."""
        self.assertTrue(words[0].startswith(INSTALLED), words)
        name = words[0][len(INSTALLED):]
        self.assertIn(f"build/examples/{name} ", dockerfile())
        help_text = subprocess.run([EXAMPLES / name, "--help"], text=True, capture_output=True, timeout=600).stdout
        for word in words[1:]:
            if word.startswith("--"):
                self.assertIn(word, re.findall(r"--[\w-]+", help_text))

    def check_secret(self, pod, container):
        """Checks that /etc/tutti is a mounted secret that only its owner can read."""
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        secret = volumes[mounts["/etc/tutti"]]["secret"]
        self.assertEqual(secret["secretName"], "tutti-job")
        self.assertEqual(secret["defaultMode"], 0o400)
        for name in mounts.values():
            self.assertIn(name, volumes)

    def test_every_file_is_described(self):
        readme = (CLUSTERS / "README.md").read_text(encoding="utf-8")
        for path in CLUSTERS.iterdir():
            if path.name != "README.md":
                self.assertIn(f"| `{path.name}` |", readme)

    def test_tfjob_sets_chief_and_workers(self):
        (job,) = load("tfjob.yaml")
        self.assertEqual((job["apiVersion"], job["kind"]), ("kubeflow.org/v1", "TFJob"))
        replicas = job["spec"]["tfReplicaSpecs"]
        self.assertEqual({name: spec["replicas"] for name, spec in replicas.items()}, {"Chief": 1, "Worker": 3})
        for spec in replicas.values():
            self.assertEqual(spec["restartPolicy"], "ExitCode")
            pod = spec["template"]["spec"]
            (container,) = pod["containers"]
            self.assertEqual(container["name"], "tensorflow")
            self.assertEqual(container["ports"], [{"name": "tfjob-port", "containerPort": 2222}])
            self.assertIn({"name": "TUTTI_JOB_SECRET_FILE", "value": "/etc/tutti/secret"}, container["env"])
            self.check_secret(pod, container)
            self.check_program(container["command"] + container["args"])
        # Sets the variables that the operator sets; the program needs no others.
        name = job["metadata"]["name"]
        cluster = {kind.lower(): [f"{name}-{kind.lower()}-{i}.default.svc:2222" for i in range(spec["replicas"])]
                   for kind, spec in replicas.items()}
        config = {"cluster": cluster, "task": {"type": "worker", "index": 2}, "environment": "cloud"}
        report = resolve("tf_config", {"TF_CONFIG": json.dumps(config)})
        self.assertEqual(report["cluster"], cluster)
        self.assertEqual((report["task"]["type"], report["task"]["index"]), ("worker", 2))

    def test_indexed_job_manifest_is_consistent(self):
        service, job = load("indexed_job.yaml")
        self.assertEqual((service["kind"], job["kind"], job["apiVersion"]), ("Service", "Job", "batch/v1"))
        self.assertEqual(service["spec"]["clusterIP"], "None")
        spec = job["spec"]
        self.assertEqual(spec["completionMode"], "Indexed")
        self.assertEqual(spec["completions"], spec["parallelism"])
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        self.assertEqual(service["spec"]["selector"], {"job-name": job["metadata"]["name"]})
        self.assertEqual(container["ports"][0]["containerPort"], service["spec"]["ports"][0]["port"])
        self.check_secret(pod, container)
        self.check_program(container["command"] + container["args"])
        variables = {entry["name"]: entry["value"] for entry in container["env"]}
        self.assertEqual(variables["TUTTI_JOB_SECRET_FILE"], "/etc/tutti/secret")
        name, port = job["metadata"]["name"], service["spec"]["ports"][0]["port"]
        report = resolve("kubernetes", {**variables, "HOSTNAME": f"{name}-3", "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
        self.assertEqual(report["cluster"],
                         {"worker": [f"{name}-{i}.{pod['subdomain']}:{port}" for i in range(spec["completions"])]})
        self.assertEqual((report["task"]["type"], report["task"]["index"]), ("worker", 3))

    def test_mpijob_manifest_is_consistent(self):
        (job,) = load("mpijob.yaml")
        self.assertEqual((job["apiVersion"], job["kind"]), ("kubeflow.org/v2beta1", "MPIJob"))
        replicas = job["spec"]["mpiReplicaSpecs"]
        (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
        words = launcher["command"] + launcher["args"]
        self.assertEqual(words[0], "mpirun")
        self.assertEqual(int(words[words.index("-n") + 1]), replicas["Worker"]["replicas"] * job["spec"]["slotsPerWorker"])
        program = next(i for i, word in enumerate(words) if word.startswith(INSTALLED))
        self.check_program(words[program:])
        self.assertIn("TUTTI_JOB_SECRET_FILE=/etc/tutti/secret", words[:program])
        pod = replicas["Worker"]["template"]["spec"]
        (worker,) = pod["containers"]
        self.check_secret(pod, worker)
        self.assertEqual(worker["image"], launcher["image"])
        self.assertIn("AS mpi", dockerfile())
        self.assertIn("openssh-server", dockerfile())

    def test_compose_services_share_one_cluster(self):
        (document,) = load("compose.yaml")
        services = document["services"]
        configs = {name: json.loads(service["environment"]["TF_CONFIG"]) for name, service in services.items()}
        workers = [f"worker-{i}:2222" for i in range(len(services))]
        for index, (name, config) in enumerate(configs.items()):
            self.assertEqual(name, f"worker-{index}")
            self.assertEqual(config, {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
            service = services[name]
            self.check_program(service["entrypoint"] + service["command"])
            self.assertEqual(service["secrets"], list(document["secrets"]))
            self.assertEqual(service["environment"]["TUTTI_JOB_SECRET_FILE"], f"/run/secrets/{service['secrets'][0]}")
            report = resolve("tf_config", {"TF_CONFIG": service["environment"]["TF_CONFIG"]})
            self.assertEqual(report["task"]["index"], index)

    def test_dockerfile_is_consistent(self):
        text = re.sub(r"\\\n(\s*#.*\n)*", " ", dockerfile())
        stages, context = [], set()
        for line in text.splitlines():
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            self.assertIn(words[0], ("FROM", "WORKDIR", "COPY", "RUN", "ENV", "ENTRYPOINT", "CMD"))
            if words[0] == "FROM":
                self.assertTrue(words[1].startswith("debian:") or words[1] in stages, line)
                stages.append(words[3] if len(words) > 3 else "last")
            elif words[0] == "COPY" and words[1].startswith("--from="):
                self.assertIn(words[1].partition("=")[2], stages)
            elif words[0] == "COPY":
                context.update(words[1:-1])
            elif words[0] in ("ENTRYPOINT", "CMD"):
                json.loads(line.partition(" ")[2])
            elif words[0] == "RUN":
                subprocess.run(["bash", "-n", "-c", line.partition(" ")[2]], check=True, timeout=600)
        for path in context:
            self.assertTrue((ROOT / path).exists(), path)

    def test_sbatch_file_is_a_valid_script(self):
        subprocess.run(["bash", "-n", CLUSTERS / "slurm.sbatch"], check=True, timeout=600)
        result = subprocess.run(["bash", CLUSTERS / "slurm.sbatch"], text=True, capture_output=True, timeout=600)
        self.assertEqual(result.returncode, 2)
        self.assertIn("expected a program", result.stderr)


class Image(unittest.TestCase):
    def test_image_contains_libraries_of_its_programs(self):
        """Compares with the programs of this build, if this machine has the same system as the image."""
        release = pathlib.Path("/etc/os-release").read_text(encoding="utf-8")
        if "VERSION_CODENAME=bookworm" not in release:
            self.skipTest("the image's packages are those of Debian 12")
        in_base = {"libc6", "libgcc-s1", "libstdc++6"}
        copied = re.search(r"cp build/bin/tutti (.*?) /opt/tutti/bin/", dockerfile()).group(1).split()
        needed = set()
        for program in [TUTTI, *(EXAMPLES / name.removeprefix("build/examples/") for name in copied)]:
            named = re.findall(r"\(NEEDED\).*\[(.+)\]", subprocess.run(
                ["readelf", "-d", program], text=True, capture_output=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout)
            paths = dict(re.findall(r"^\s*(\S+) => (/\S+)", subprocess.run(
                ["ldd", program], text=True, capture_output=True, check=True).stdout, re.MULTILINE))
            self.assertGreater(len(named), 5)
            needed.update(owner(paths[name]) for name in named if name in paths)
        stage = re.search(r"AS run\n(.*?)rm -rf", dockerfile(), re.DOTALL).group(1)
        listed = set(re.findall(r"\b(?:lib|zlib)[\w.+-]*", stage))
        self.assertEqual(listed, needed - in_base)


if __name__ == "__main__":
    counted_unittest.main(apart=["Image"])  # Image needs the system of the image
