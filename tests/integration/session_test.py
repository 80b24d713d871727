#!/usr/bin/env python3
# Sessions of one process with servers of others: hello, in-graph replication, launches that end together.
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

from multi_worker_test import free_ports

HELLO = "Hello, distributed TensorFlow!\n"
LONGEST = 120  # seconds that anything here may take


def require(condition, what, text=""):
    if not condition:
        sys.exit(f"FAILED: {what}\n{text}")


def run(*command):
    return subprocess.run(command, text=True, capture_output=True, timeout=LONGEST)


def children_of(pid, program):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/cmdline", encoding="utf-8") as file:
                own = file.read().split("\0")[0]
        except OSError:
            continue  # it has ended
        if parent == pid and own == program:
            found.append(int(name))
    return found


def runs_in_one_process(folder, _):
    result = run(f"{folder}/hello_distributed")
    require(result.returncode == 0 and result.stdout == HELLO, "hello", result.stdout + result.stderr)
    require("1 + 2 on /job:local/replica:0/task:0: 3" in result.stderr, "a step", result.stderr)


def runs_in_two_processes(folder, _):
    """Either may start first; the server ends with its session."""
    wire = re.search(r"serves at (\w+)://", run(f"{folder}/hello_distributed").stderr)[1]
    for server_first in (True, False):
        port = free_ports(1)[0]
        commands = [[f"{folder}/hello_distributed", "--serve", str(port)],
                    [f"{folder}/hello_distributed", "--target", f"{wire}://127.0.0.1:{port}"]]
        if not server_first:
            commands.reverse()
        processes = []
        for command in commands:
            processes.append(subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            time.sleep(0.5)
        outputs = [process.communicate(timeout=LONGEST) for process in processes]
        codes = [process.returncode for process in processes]
        require(codes == [0, 0], f"exit codes {codes}", str(outputs))
        require(outputs[1 if server_first else 0][0] == HELLO, "hello", str(outputs))
    result = run(f"{folder}/hello_distributed", "--target", f"{wire}://127.0.0.1:1", "--timeout", "0.5")
    require(result.returncode == 1 and "the server at 127.0.0.1:1 within 0.5 s" in result.stderr, "a wrong port",
            result.stderr)


def two_servers_list_the_devices_of_both(folder, _):
    """Two processes serve one cluster, whichever starts first; each says the same of both."""
    program = f"{folder}/hello_distributed"
    for order in ((0, 1), (1, 0)):
        addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
        hosts = [word for address in addresses for word in ("--host", address)]
        servers = []
        for task in order:
            servers.append(subprocess.Popen([program, *hosts, "--task", str(task)]))
            time.sleep(0.5)
        asked = run(program, *hosts)
        require(asked.returncode == 0, f"the client ended with {asked.returncode}", asked.stdout + asked.stderr)
        devices = ", ".join(f"/job:local/replica:0/task:{task}/device:CPU:0" for task in (0, 1))
        require(asked.stdout == "".join(f"grpc://{address}: {devices}\n" for address in addresses), "devices", asked.stdout)
        codes = [server.wait(LONGEST) for server in servers]
        require(codes == [0, 0], f"the servers ended with {codes}")


def in_graph_replication(folder, tutti):
    """The loss of one process, with values that went straight from task to task."""
    flags = ["--steps", "20"]
    alone = run(f"{folder}/in_graph_trainer", *flags)
    launched = run(tutti, "run", "--chief", "--workers", "2", "--ps", "1", "--", f"{folder}/in_graph_trainer", *flags)
    text = launched.stdout + launched.stderr
    require(alone.returncode == 0 and launched.returncode == 0, "exit codes", alone.stdout + alone.stderr + text)
    losses = [float(re.search(r"step 20 loss ([0-9.]+)", each)[1]) for each in (alone.stdout, text)]
    require(abs(losses[0] - losses[1]) < 1e-3, f"losses {losses}", text)
    for worker in (0, 1):
        # kernel and bias to the worker, their gradients back: 20 times.
        for way in (f"/job:ps/replica:0/task:0 -> /job:worker/replica:0/task:{worker}: 40 values",
                    f"/job:worker/replica:0/task:{worker} -> /job:ps/replica:0/task:0: 40 values"):
            require(way in text, way, text)


def fit_on_parameter_servers(folder, tutti):
    """The tutorial's five epochs, alone and in one command; in both modes."""
    for mode in ("sync", "async"):
        for command in ([], [tutti, "run", "--workers", "2", "--ps", "2", "--"]):
            result = run(*command, f"{folder}/parameter_server_fit", "--update-mode", mode)
            text = result.stdout + result.stderr
            require(result.returncode == 0, f"{mode}: exit code {result.returncode}", text)
            found = re.search(r"loss ([0-9.]+) in the first epoch, ([0-9.]+) in the last", text)
            require(found and float(found[2]) < float(found[1]), f"{mode}: losses", text)


def one_command_starts_a_job_and_ctrl_c_ends_it(folder, tutti):
    """Two servers and two workers by one command; Ctrl-C ends all of them."""
    job = subprocess.Popen([tutti, "run", "--workers", "2", "--ps", "2", "--", f"{folder}/parameter_server_fit",
                            "--epochs", "1000000"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = []
    while not lines or "epoch 2/" not in lines[-1]:
        lines.append(job.stdout.readline())
        require(lines[-1], "the job ended", "".join(lines))
    pids = children_of(job.pid, f"{folder}/parameter_server_fit")
    require(len(pids) == 4, f"expected four processes, got {pids}", "".join(lines))
    job.send_signal(signal.SIGINT)
    text = job.communicate(timeout=LONGEST)[0]
    require(job.returncode not in (0, None), "an exit code that says that it was stopped", text)
    left = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    require(not left, f"processes {left} live on", text)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:4])
    print("ok")
