#!/usr/bin/env python3
# Floods a job with HTTP/2 streams that foreign clients open and reset: no client reaches HTTP/2,
# memory stays bounded, and results are bit-identical to those of an undisturbed run.
# SPDX-License-Identifier: Apache-2.0
"""Usage: reset_flood_test.py PROGRAM VARIABLE_SERVER [--seconds S]

A worker and a parameter server with a job secret train in a separate network namespace, at an address that other machines can reach.
Connections from another namespace flood their ports with pairs of HEADERS and RST_STREAM, unencrypted, over TLS, and over TLS with the
clients' own certificate. gRPC 1.51 has no limit for such streams, so no server may send SETTINGS, the first frame of HTTP/2, to these
clients. A server that only this user can reach may send it. The test checks memory, exit codes, and that results are bit-identical to
those of undisturbed steps, and prints the longest pause between two steps.
"""
import json
import os
import re
import secrets
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
from any_client_test import path_of  # noqa: E402
from processes import FLAGS, Tasks, end_with, parse, require, require_same, run_mirrored, saved_step  # noqa: E402
from strangers_test import listening_ports, resident_mib  # noqa: E402

ADDRESS, STRANGERS_ADDRESS = "10.77.23.1", "10.77.23.2"
PORTS = {"worker": 20001, "ps": 20002}
KINDS = ("clear", "tls", "own certificate")
CONNECTIONS = 4     # of each kind at each port, concurrently
PAIRS = 2000        # HEADERS and RST_STREAM pairs that a connection sends at once
MOST_GROWTH = 64    # MiB per process
FEWEST = 100        # minimum number of connections of each kind for a flood
UNPRIVILEGED_ID = 65534
SETTINGS = 4
EXPECTED_CODES = {"worker": 75, "ps": 0}  # the worker stops on request; the server succeeds


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def flood_words():
    """Returns the preface of an HTTP/2 client, and streams that are reset at once (RFC 9113)."""
    path = b"/tutti.v1.ParameterServer/Apply"
    fields = b"\x83\x86\x04" + bytes((len(path),)) + path + b"\x41\x01a\x0f\x10\x10application/grpc"
    words = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", frame(SETTINGS, 0, 0)]
    for stream in range(1, 2 * PAIRS, 2):
        words += [frame(1, 4, stream, fields), frame(3, 0, stream, struct.pack(">I", 8))]
    return b"".join(words)


def answer_to(sock, words):
    """Sends `words`; returns what the server sends until it closes the connection, or is silent for 2 s."""
    answer = b""
    sock.settimeout(2.0)
    try:
        sock.sendall(words)
    except OSError:
        pass
    try:
        while len(answer) < 4096:
            piece = sock.recv(4096)
            if not piece:
                break
            answer += piece
    except OSError:
        pass
    return answer


def is_settings(answer):
    return len(answer) >= 9 and answer[3] == SETTINGS


# --- The foreign clients' program, in their namespace.

def tls_context(kind, folder):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if kind == "own certificate":
        context.load_cert_chain(os.path.join(folder, "own.pem"), os.path.join(folder, "own.key"))
    return context


def flood(kind, port, folder, end, counts, lock):
    words = flood_words()
    context = None if kind == "clear" else tls_context(kind, folder)
    while time.monotonic() < end:
        answer, reached = b"", False
        try:
            with socket.create_connection((ADDRESS, port), timeout=5) as sock:
                reached = True
                if context:
                    with context.wrap_socket(sock) as secured:
                        answer = answer_to(secured, words)
                else:
                    answer = answer_to(sock, words)
        except OSError:
            time.sleep(0.01)
        with lock:
            counts[kind][0] += reached
            counts[kind][1] += is_settings(answer)


def run_strangers(folder, seconds):
    """Prints the number of connections of each kind, and how many received HTTP/2."""
    counts, lock = {kind: [0, 0] for kind in KINDS}, threading.Lock()
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=flood, args=(kind, port, folder, end, counts, lock))
               for kind in KINDS for port in PORTS.values() for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(counts))


# --- Two network namespaces connected by a veth pair.

def enter_namespace():
    """Restarts this program in a new network namespace, where it may create a veth pair."""
    if os.environ.get("TUTTI_TEST_NAMESPACE"):
        return
    own = ["unshare", "--net"]
    if os.geteuid() != 0:
        own += ["--user", "--map-root-user"]
    os.environ["TUTTI_TEST_NAMESPACE"] = "1"
    os.execvp(own[0], [*own, sys.executable, os.path.abspath(__file__), *sys.argv[1:]])


def make_cable():
    """Connects the foreign clients' namespace. Returns the process that owns it, and the command that enters it."""
    strangers = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 3600"], stdout=subprocess.PIPE)
    strangers.stdout.readline()
    inside = ["nsenter", f"--net=/proc/{strangers.pid}/ns/net"]
    for words in (["ip", "link", "set", "lo", "up"],
                  ["ip", "link", "add", "ours", "type", "veth", "peer", "name", "theirs"],
                  ["ip", "link", "set", "theirs", "netns", str(strangers.pid)],
                  ["ip", "address", "add", f"{ADDRESS}/24", "dev", "ours"], ["ip", "link", "set", "ours", "up"],
                  [*inside, "ip", "address", "add", f"{STRANGERS_ADDRESS}/24", "dev", "theirs"],
                  [*inside, "ip", "link", "set", "theirs", "up"]):
        subprocess.run(words, check=True)
    return strangers, inside


# --- The job.

class Flooded(Tasks):
    def __init__(self, program, flags, folder):
        self.folder, secret = folder, os.path.join(folder, "secret")
        self.log = os.path.join(folder, "log", "log.jsonl")
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        super().__init__([program, "--strategy", "parameter_server", "--devices", "cpu:0", *flags, "--steps", "10000000",
                          "--log-dir", os.path.dirname(self.log), "--metrics-json", os.path.join(folder, "flooded.json")],
                         {job: 1 for job in PORTS}, {"TUTTI_JOB_SECRET_FILE": secret})

    def own_variables(self, task):
        self.cluster = {job: [f"{ADDRESS}:{port}"] for job, port in PORTS.items()}
        return super().own_variables(task)

    def num_steps(self):
        try:
            with open(self.log, "rb") as file:
                return file.read().count(b'"loss"')
        except OSError:
            return 0

    def longest_pause(self, seconds):
        """Returns the longest pause between two steps during `seconds`."""
        end, last, steps, longest = time.monotonic() + seconds, time.monotonic(), self.num_steps(), 0.0
        while time.monotonic() < end:
            time.sleep(0.01)
            now = self.num_steps()
            if now != steps:
                steps, last = now, time.monotonic()
            longest = max(longest, time.monotonic() - last)
            for (job, _), each in self.jobs.items():
                require(each.process.poll() is None, f"{job} 0 ended during the flood", self.text())
        return longest

    def resident_mib(self):
        return {job: resident_mib(each.process.pid) for (job, _), each in self.jobs.items()}


def check_own_socket(variable_server):
    """A permitted flooder receives HTTP/2, and another user cannot connect."""
    with subprocess.Popen([variable_server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        target = re.search(r"server=(\S+)", server.stdout.readline()).group(1)
        path = path_of(target)[len("unix:"):]
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            require(is_settings(answer_to(sock, flood_words())), "expected HTTP/2 SETTINGS on this user's socket")
        require(not listening_ports(server.pid), f"expected no TCP port for a loopback address, got {listening_ports(server.pid)}")
        for folder in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
            require(not os.stat(folder).st_mode & 0o077, f"other users may enter {folder}")
        if can_be_another_user():
            child = os.fork()
            if child == 0:
                os.setgid(UNPRIVILEGED_ID)
                os.setuid(UNPRIVILEGED_ID)
                with socket.socket(socket.AF_UNIX) as sock:
                    os._exit(0 if sock.connect_ex(path) == 13 else 1)
            require(os.waitpid(child, 0)[1] == 0, f"another user can connect to {path}")
            print("  another user cannot connect to the socket; this user's client receives HTTP/2")
        server.stdin.close()


def can_be_another_user():
    with open("/proc/self/uid_map", encoding="utf-8") as numbers:
        return os.geteuid() == 0 and int(numbers.read().split()[2]) > UNPRIVILEGED_ID


def flood_job(tasks, inside, seconds):
    """Returns the longest pause between steps while foreign clients flood the job."""
    before = tasks.resident_mib()
    strangers = subprocess.Popen([*inside, sys.executable, os.path.abspath(__file__), "--strangers", tasks.folder,
                                  "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True)
    pause = tasks.longest_pause(seconds)
    counts = json.loads(strangers.communicate(timeout=60)[0])
    for kind, (reached, heard) in counts.items():
        print(f"  {kind}: {reached} connections, {heard} received HTTP/2")
        require(reached >= FEWEST, f"{kind}: {reached} connections; expected at least {FEWEST}")
        require(not heard, f"{kind}: {heard} connections without the job's secret reached HTTP/2")
    for name, after in tasks.resident_mib().items():
        print(f"  memory of {name} 0 grew by {after - before[name]:.1f} MiB")
        require(after - before[name] <= MOST_GROWTH, f"{name} 0 grew by {after - before[name]:.1f} MiB; expected at most {MOST_GROWTH}")
    return pause


def main():
    arguments = parse(__doc__, "program?", "variable_server?", seconds=8.0, strangers=None)
    if arguments.strangers:
        return run_strangers(arguments.strangers, arguments.seconds)
    enter_namespace()
    with tempfile.TemporaryDirectory() as folder:
        strangers, inside = make_cable()
        try:
            flood_and_compare(arguments, inside, folder)
        finally:
            strangers.kill()
    return 0


def flood_and_compare(arguments, inside, folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                    "/CN=stranger", "-keyout", os.path.join(folder, "own.key"), "-out", os.path.join(folder, "own.pem")],
                   check=True, stderr=subprocess.DEVNULL)
    check_own_socket(arguments.variable_server)
    saved = ["--checkpoint-dir", os.path.join(folder, "run")]
    tasks = Flooded(arguments.program, [*FLAGS, *saved], folder)
    tasks.wait_for(lambda: tasks.num_steps() >= 5, "step 5")
    calm = tasks.longest_pause(2.0)
    flooded = flood_job(tasks, inside, arguments.seconds)
    print(f"  longest pause between steps: calm {calm:.2f} s, flooded {flooded:.2f} s, after {tasks.num_steps()} steps")
    # The worker saves and exits, then the server exits.
    tasks["worker", 0].send(signal.SIGTERM)
    tasks.finish(EXPECTED_CODES)
    step = saved_step(saved[1])
    longer = [*FLAGS, "--steps", str(step + 3)]
    reference = run_mirrored(arguments.program, 1, longer, folder)
    got = run_mirrored(arguments.program, 1, [*longer, *saved, "--resume"], folder)
    require_same(f"{step} steps of a job that was flooded", reference, got, "mirrored", 1)


if __name__ == "__main__":
    end_with(main)
