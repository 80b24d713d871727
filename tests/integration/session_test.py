#!/usr/bin/env python3
# Runs sessions of one process with servers in other processes: the hello example, in-graph
# replication, and jobs whose processes end together.
# SPDX-License-Identifier: Apache-2.0
"""Usage: session_test.py SCENARIO FOLDER_OF_EXAMPLES TUTTI

SCENARIO is the name of a function below.
"""
import os
import re
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from processes import Job, end_with, free_ports, output_of, require  # noqa: E402

HELLO = "Hello, distributed TensorFlow!\n"


def run(*command):
    return subprocess.run(command, text=True, capture_output=True, timeout=120)


def start_in_turn(*commands):
    """Starts the jobs of the commands, half a second apart."""
    jobs = []
    for command in commands:
        jobs.append(Job(command))
        time.sleep(0.5)
    return jobs


def runs_in_one_process(folder, _):
    result = run(f"{folder}/hello_distributed")
    require(result.returncode == 0 and result.stdout == HELLO, "expected the greeting", result.stdout + result.stderr)
    require("1 + 2 on /job:local/replica:0/task:0/device:CPU:0: 3" in result.stderr, "expected the log of a step", result.stderr)


def runs_in_two_processes(folder, _):
    """Either process may start first; the server ends with its session."""
    program = f"{folder}/hello_distributed"
    wire = re.search(r"serves at (\w+)://", run(program).stderr)[1]
    for order in (1, -1):
        port = free_ports(1)[0]
        commands = [[program, "--serve", str(port)], [program, "--target", f"{wire}://127.0.0.1:{port}"]]
        server, client = start_in_turn(*commands[::order])[::order]
        server.succeed()
        require(client.succeed().count(HELLO) == 1, "expected one greeting", client.text())
    result = run(program, "--target", f"{wire}://127.0.0.1:1", "--timeout", "0.5")
    require(result.returncode == 1 and "the server at 127.0.0.1:1 within 0.5 s" in result.stderr, "expected an error for a wrong port",
            result.stderr)


def two_servers_list_the_devices_of_both(folder, _):
    """Two processes serve one cluster, no matter which starts first; each lists the devices of both."""
    program = f"{folder}/hello_distributed"
    for order in ((0, 1), (1, 0)):
        addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
        hosts = [word for address in addresses for word in ("--host", address)]
        servers = start_in_turn(*([program, *hosts, "--task", str(task)] for task in order))
        asked = run(program, *hosts)
        devices = ", ".join(f"/job:local/replica:0/task:{task}/device:CPU:0" for task in (0, 1))
        require(asked.returncode == 0 and asked.stdout == "".join(f"grpc://{address}: {devices}\n" for address in addresses),
                "expected each server to list all devices", asked.stdout + asked.stderr)
        for server in servers:
            server.succeed()


def named_tasks_have_the_bits_of_one_process(folder, tutti):
    """Compares a run with weights on two servers and layers on a worker with a run in one process."""
    program = [f"{folder}/session", "--steps", "150"]
    texts = [output_of(*program), output_of(tutti, "run", "--chief", "--workers", "1", "--ps", "2", "--", *program)]
    hashes = [re.search(r"after 150 steps: ([0-9a-f]{32})", each)[1] for each in texts]
    require(hashes[0] == hashes[1], f"expected equal hashes, got {hashes}", texts[1])
    untrained = output_of(f"{folder}/session", "--steps", "0")
    require(hashes[0] not in untrained, "expected training to change the weights", untrained)


def in_graph_replication(folder, tutti):
    """Requires the loss of a run in one process, and values that are sent directly between tasks."""
    program = [f"{folder}/in_graph_trainer", "--steps", "20"]
    texts = [output_of(*program), output_of(tutti, "run", "--chief", "--workers", "2", "--ps", "1", "--", *program)]
    losses = [float(re.search(r"step 20 loss ([0-9.]+)", each)[1]) for each in texts]
    require(abs(losses[0] - losses[1]) < 1e-3, f"expected equal losses, got {losses}", texts[1])
    for worker in (0, 1):
        # Kernel and bias are sent to the worker, and their gradients are sent back, in each of 20
        # steps.
        for way in (f"/job:ps/replica:0/task:0 -> /job:worker/replica:0/task:{worker}: 40 values",
                    f"/job:worker/replica:0/task:{worker} -> /job:ps/replica:0/task:0: 40 values"):
            require(way in texts[1], f"expected '{way}'", texts[1])


def fit_on_parameter_servers(folder, tutti):
    """Runs the tutorial's five epochs in both modes, alone and as a job that one command starts."""
    for mode in ("sync", "async"):
        for command in ([], [tutti, "run", "--workers", "2", "--ps", "2", "--"]):
            text = output_of(*command, f"{folder}/parameter_server_fit", "--update-mode", mode)
            found = re.search(r"loss ([0-9.]+) in the first epoch, ([0-9.]+) in the last", text)
            require(found and float(found[2]) < float(found[1]), f"{mode}: expected a lower loss in the last epoch", text)


def one_command_starts_a_job_and_ctrl_c_ends_it(folder, tutti):
    """One command runs two servers and two workers; Ctrl-C ends all of them."""
    program = f"{folder}/parameter_server_fit"
    job = Job([tutti, "run", "--workers", "2", "--ps", "2", "--", program, "--epochs", "1000000"])
    job.wait_for_line("epoch 2/")
    pids = job.pids(program)
    require(len(pids) == 4, f"expected four processes, got {pids}", job.text())
    job.send(signal.SIGINT)
    require(job.finish() != 0, "expected an exit code other than 0 after Ctrl-C", job.text())
    left = [pid for pid in pids.values() if os.path.exists(f"/proc/{pid}")]
    require(not left, f"processes {left} are still running", job.text())


if __name__ == "__main__":
    end_with(lambda: globals()[sys.argv[1]](*sys.argv[2:4]))
