#!/usr/bin/env python3
# Runs `tutti cluster` with environments that describe a cluster, and with many malformed ones.
# SPDX-License-Identifier: Apache-2.0
"""Usage: tutti_cluster_test.py PROGRAM MALFORMED_CLUSTERS.json"""
import json
import os
import resource
import subprocess
import sys
import unittest

from program_case import ProgramCase

TABLE = sys.argv.pop(2)
PROGRAM = os.path.abspath(sys.argv.pop(1))
CLUSTER = {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222", "10.0.0.3:2222"], "ps": ["10.0.0.4:2222"]}


def run(environment, *words):
    """Returns exit code, standard output and standard error of a run with exactly this environment."""
    result = subprocess.run([PROGRAM, "cluster", *words], text=True, capture_output=True, timeout=600, env=environment)
    return result.returncode, result.stdout, result.stderr


def tf_config(task):
    return {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": task})}


class TuttiCluster(ProgramCase):
    run_program = staticmethod(run)

    def report(self, environment, *words):
        return json.loads(self.output(environment, "--json", *words))

    def test_malformed_environment_prints_one_line_and_exits_with_2(self):
        with open(TABLE, encoding="utf-8") as file:
            table = json.load(file)
        self.assertGreaterEqual(len(table), 60)
        seconds = []
        for entry in table:
            with self.subTest(entry["name"]):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                code, text, errors = run(entry["environment"])
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
                self.assertEqual((code, text), (2, ""))
                self.assertEqual(errors, f"tutti: {entry['error']}\n")
        seconds.sort()
        print(f"{len(table)} malformed environments: {1000 * seconds[len(seconds) // 2]:.1f} ms of processor time each "
              f"(median), at most {1000 * seconds[-1]:.1f} ms")
        # Measures processor time, which does not include waiting for the processor.
        self.assertLess(seconds[len(seconds) // 2], 0.1)

    def test_text_shows_tasks_chief_and_this_process(self):
        code, text, errors = run(tf_config({"type": "worker", "index": 1}))
        self.assertEqual((code, errors), (0, ""))
        lines = text.splitlines()
        self.assertTrue(lines[0].startswith("TF_CONFIG: this is worker 1 of 1 chief (10.0.0.1:2222), "), lines[0])
        self.assertTrue(lines[0].endswith("because TF_CONFIG is set."), lines[0])
        self.assertEqual([line.split() for line in lines[1:]],
                         [["chief", "0", "10.0.0.1:2222", "chief"], ["ps", "0", "10.0.0.4:2222"],
                          ["worker", "0", "10.0.0.2:2222"], ["worker", "1", "10.0.0.3:2222", "this", "process"]])

    def test_json_contains_task_and_rank(self):
        report = self.report({**tf_config({"type": "worker", "index": "1"}), "TUTTI_CONTROL": "grpc://10.0.0.9:1", "TUTTI_JOB_ID": "j7"})
        self.assertEqual(report["cluster"], CLUSTER)
        self.assertEqual(report["task"], {"type": "worker", "index": 1, "is_chief": False, "id_in_cluster": 2,
                                          "worker_count": 3, "collective_leader": "/job:chief/replica:0/task:0"})
        self.assertEqual((report["master"], report["control"], report["job_id"], report["warnings"]),
                         ("10.0.0.3:2222", "grpc://10.0.0.9:1", "j7", []))

    def test_parameter_servers_have_no_rank(self):
        self.assertNotIn("id_in_cluster", self.report(tf_config({"type": "ps", "index": 0}))["task"])

    def test_process_without_cluster_is_single_worker(self):
        self.assertEqual(self.output({}), "local: this process alone, because no variable names a cluster.\n")
        report = self.report({})
        self.assertEqual((report["cluster"], report["task"]["is_chief"]), ({}, True))

    def test_resolver_can_be_selected_by_name(self):
        slurm = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NODELIST": "t02n[13,41-42]",
                 "SLURM_STEP_TASKS_PER_NODE": "1(x3)", **tf_config({"type": "ps", "index": 0})}
        self.assertEqual(self.report(slurm)["resolver"], "TF_CONFIG")
        report = self.report(slurm, "--resolver", "slurm")
        self.assertEqual(report["cluster"], {"worker": ["t02n13:8888", "t02n41:8888", "t02n42:8888"]})
        self.assertEqual(report["task"]["id_in_cluster"], 2)
        self.assertEqual(report["master"], "grpc://t02n42:8888")

    def test_unknown_resolver_error_lists_known_resolvers(self):
        errors = self.errors(2, {}, "--resolver", "pbs")
        self.assertIn("expected one of auto, tf_config, slurm, mpi, kubernetes, sagemaker, local", errors)

    def test_unknown_addresses_of_mpi_ranks_refer_to_rendezvous(self):
        text = self.output({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "TUTTI_CONTROL": "grpc://a:1"})
        self.assertIn("worker 1       (known after the rendezvous)\n", text)
        self.assertIn("The tasks rendezvous at grpc://a:1.\n", text)

    def test_loopback_address_among_remote_hosts_causes_warning(self):
        cluster = {"worker": ["localhost:2222", "10.0.0.2:2222"]}
        environment = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})}
        self.assertIn("warning: TF_CONFIG.cluster: worker 0 at localhost:2222", self.output(environment))


if __name__ == "__main__":
    unittest.main()
