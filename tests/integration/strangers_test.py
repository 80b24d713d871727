#!/usr/bin/env python3
# Trains while foreign clients connect: without the job's secret, no client is accepted, and results
# are bit-identical to those of an undisturbed run.
# SPDX-License-Identifier: Apache-2.0
"""Usage: strangers_test.py PROGRAM [--workers N] [--strangers N] [--seconds S]

Trains over TCP with a job secret. While a proxy delays the connection to worker 0, N foreign clients at a time connect to the data ports.
They are silent or slow, or send random bytes, HTTP, TLS, oversized lengths, or recorded openings of genuine peers. Each connection must be
closed (the longest is printed), and descriptors and memory must stay bounded. Then the workers connect and stop listening. After SIGTERM
the state must equal that of an undisturbed run with the same number of steps.
"""
import errno
import hashlib
import hmac
import os
import random
import secrets
import selectors
import signal
import socket
import statistics
import struct
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "support"))
import tcp_proxy  # noqa: E402
from processes import (FLAGS, STOPPED_ON_REQUEST, Tasks, end_with, free_ports, parse, require, require_same, run_mirrored,  # noqa: E402
                       saved_step)

MAGIC = b"\x93tutti3\n"
REFUSED = b"\x00"
HANG = 120.0          # s; a worker waits 5 s for a foreign client's data, on an idle machine
MOST_GROWTH = 64      # MiB per worker


def receive(sock, count):
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            break
        data += piece
    return data


def open_as_peer(port, rank, secret):
    """Performs the handshake of cluster/net/handshake.h. Returns the verdict, true if the peer
    knows the secret too, and all sent bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=HANG) as sock:
        own = MAGIC + struct.pack("<IQ16s", rank, 4711, secrets.token_bytes(16))
        sock.sendall(own)
        answer = receive(sock, 68)
        if len(answer) < 68:
            return answer, False, own
        both = own + answer[:36]
        given = hmac.new(secret, b"tutti handshake 3: server to client" + both, hashlib.sha256).digest()
        proof = hmac.new(secret, b"tutti handshake 3: client to server" + both, hashlib.sha256).digest()
        sock.sendall(proof)
        return receive(sock, 1), given == answer[36:], own + proof + secrets.token_bytes(72)


class Stranger:
    """Connection of a foreign client, which sends its bytes all at once or one by one."""

    def __init__(self, kind, port, words, slowly):
        self.kind, self.port, self.words, self.slowly = kind, port, words, slowly
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.begin = time.monotonic()
        self.next = self.begin
        self.error = self.sock.connect_ex(("127.0.0.1", port))

    def speak(self, now):
        if not self.words or now < self.next:
            return
        try:
            count = self.sock.send(self.words[:1] if self.slowly else self.words)
            self.words = self.words[count:]
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOTCONN):
                self.words = b""
        self.next = now + (0.3 if self.slowly else 0.02)

    def is_closed(self):
        try:
            # Before a rank listens again its port is free, so a connection from that very port
            # would connect to itself.
            return not self.sock.recv(65536) or self.sock.getsockname() == self.sock.getpeername()
        except OSError as error:
            return error.errno not in (errno.EAGAIN, errno.ENOTCONN)


class Crowd:
    """Crowd of foreign clients: a constant total number, with all kinds at all ports in rotation."""

    def __init__(self, size, ports, recordings, seed=1):
        self.size, self.ports, self.recordings = size, ports, recordings
        self.chance = random.Random(seed)
        self.selector = selectors.DefaultSelector()
        self.there, self.stays, self.again = set(), {}, []
        self.count = 0

    def words(self, kind, port):
        noise = bytes(self.chance.randrange(256) for _ in range(self.chance.randrange(1, 3000)))
        return {"silent": b"", "slow": MAGIC + bytes(20), "random": noise,
                "http": b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n",
                "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise[:32],
                # "large" is a hello whose fields all have the maximum size; "frame" announces the
                # maximum number of bytes.
                "large": MAGIC + b"\xff" * 4248,
                "frame": b"TutF\x01\x00\x00\x01" + b"\xff" * 52,
                "replay": self.recordings[port]}[kind]

    def come(self):
        kinds = ("silent", "slow", "random", "http", "tls", "large", "frame", "replay")
        kind = kinds[self.count % len(kinds)]
        port = self.ports[self.count // len(kinds) % len(self.ports)]
        self.count += 1
        stranger = Stranger(kind, port, self.words(kind, port), kind == "slow")
        self.there.add(stranger)
        self.selector.register(stranger.sock, selectors.EVENT_READ, stranger)

    def go(self, stranger, now):
        self.stays.setdefault(stranger.kind, []).append(now - stranger.begin)
        self.selector.unregister(stranger.sock)
        stranger.sock.close()
        self.there.discard(stranger)
        self.again.append(now + 1.0)

    def step(self, may_come):
        now = time.monotonic()
        if may_come:
            due = len(self.there) + len(self.again) < self.size
            self.again.sort()
            while due or (self.again and self.again[0] <= now):
                if not due:
                    self.again.pop(0)
                self.come()
                due = len(self.there) + len(self.again) < self.size
        for stranger in list(self.there):
            stranger.speak(now)
        for key, _ in self.selector.select(0.02):
            if key.data.is_closed():
                self.go(key.data, time.monotonic())

    def longest(self):
        now = time.monotonic()
        waiting = [now - stranger.begin for stranger in self.there]
        return max([max(stays) for stays in self.stays.values()] + waiting, default=0.0)


def listening_ports(pid):
    """Returns the ports at which a process accepts connections over IPv4."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if link.startswith("socket:["):
            inodes.add(link[8:-1])
    with open(f"/proc/{pid}/net/tcp", encoding="utf-8") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return sorted(int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes)


def num_descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_mib(pid, kind="VmRSS"):
    """Returns the memory of a process, in MiB; with kind "RssAnon", only its private memory."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(kind + ":"))


class Workers(Tasks):
    """Workers of an endless run with a secret, delayed by a proxy in front of worker 0."""

    def __init__(self, arguments, flags, folder):
        secret_file = os.path.join(folder, "secret")
        self.secret = secrets.token_bytes(32)
        with open(os.open(secret_file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(self.secret)
        port = free_ports(1)[0]
        self.proxy = tcp_proxy.Proxy()
        self.route = self.proxy.add_route("worker 0", lambda: ("127.0.0.1", port))
        self.proxy.stall([self.route], 3600.0)
        self.proxy.start()
        through_proxy = {"TUTTI_DATA_LISTEN": f"127.0.0.1:{port}", "TUTTI_DATA_ADDRESS": f"127.0.0.1:{self.route.port}"}
        super().__init__([arguments.program, *flags, "--strategy", "multi_worker_mirrored", "--devices", "cpu:0", "--transport", "tcp",
                          "--metrics-json", os.path.join(folder, "disturbed.json")], {"worker": arguments.workers},
                         {"TUTTI_JOB_SECRET_FILE": secret_file, "TUTTI_JOB_ID": "strangers"}, more_environment={("worker", 0): through_proxy})

    def pids(self):
        return [job.process.pid for job in self.jobs.values()]

    def check(self):
        require(all(job.process.poll() is None for job in self.jobs.values()), "a worker ended", self.text())

    def wait_for_data_ports(self):
        """Returns the data ports at which the workers wait for each other."""
        self.wait_for(lambda: all(len(listening_ports(pid)) == 1 for pid in self.pids()), "one data port of each worker", HANG)
        return [listening_ports(pid)[0] for pid in self.pids()]

    def stop(self):
        list(self.jobs.values())[-1].send(signal.SIGTERM)
        self.finish(STOPPED_ON_REQUEST)
        self.proxy.stop()


def record_openings(run, data_ports):
    """Records, for each port, the opening of a client that proves the secret. The client
    claims rank 2, but is not the process that the store lists, so it is refused after the proof."""
    recordings = {}
    for port in data_ports:
        verdict, knows_secret, words = open_as_peer(port, 2, run.secret)
        require(verdict == REFUSED and knows_secret, f"port {port}: expected a refusal that proves the secret, got {verdict}", run.text())
        verdict, knows_secret, _ = open_as_peer(port, 2, secrets.token_bytes(32))
        require(verdict == REFUSED and not knows_secret, f"port {port}: expected a refusal of another secret, got {verdict}", run.text())
        recordings[port] = words
    return recordings


def disturb(run, arguments):
    """Runs foreign clients; requires that all are disconnected, and that memory and descriptors stay bounded."""
    data_ports = run.wait_for_data_ports()
    pids = run.pids()
    crowd = Crowd(arguments.strangers, data_ports, record_openings(run, data_ports))
    time.sleep(0.5)
    descriptors, resident = [num_descriptors(pid) for pid in pids], [resident_mib(pid) for pid in pids]
    begin, most = time.monotonic(), list(resident)
    while time.monotonic() < begin + arguments.seconds:
        crowd.step(True)
        run.check()
        most = [max(old, resident_mib(pid)) for old, pid in zip(most, pids)]
    end = time.monotonic() + HANG
    while crowd.there and time.monotonic() < end:
        crowd.step(False)
        run.check()
    kinds = ", ".join(f"{kind} {statistics.median(stays):.2f}" for kind, stays in sorted(crowd.stays.items()))
    print(f"  {crowd.count} foreign clients, {arguments.strangers} at a time; longest connection {crowd.longest():.1f} s; "
          f"median by kind in s: {kinds}")
    require(not crowd.there, f"{len(crowd.there)} foreign clients are still connected, the longest for {crowd.longest():.1f} s", run.text())
    growth = max(a - b for a, b in zip(most, resident))
    print(f"  memory of a worker grew by at most {growth:.1f} MiB")
    require(growth <= MOST_GROWTH, f"a worker's memory grew by {growth:.1f} MiB; expected at most {MOST_GROWTH}")
    run.wait_for(lambda: all(num_descriptors(pid) <= before + 2 for pid, before in zip(pids, descriptors)),
                 f"as many descriptors as before ({descriptors})", HANG)


def check_log(run):
    """Foreign clients cause only a few lines in the log, not one line per client."""
    lines = [line for job in run.jobs.values() for line in job.text().splitlines() if "refused a connection" in line]
    print(f"  {len(lines)} log lines about refused connections; for example: {lines[-1] if lines else ''}")
    for reason in ("tcp: rank", "the store does not list this process as rank 2", "rank 2 does not know this job's secret"):
        require(any(reason in line for line in lines), f"no line of the log says: {reason}", run.text())
    require(len(lines) <= 500, f"expected at most 500 log lines about refused connections, got {len(lines)}")


def main():
    arguments = parse(__doc__, "program", workers=3, strangers=100, seconds=8.0)
    with tempfile.TemporaryDirectory() as folder:
        saved = ["--checkpoint-dir", os.path.join(folder, "run")]
        run = Workers(arguments, FLAGS + saved + ["--steps", "10000000"], folder)
        disturb(run, arguments)
        run.proxy.stall([run.route], 0.0)
        run["worker", 0].wait_for_line("epoch 2/")
        ports = [listening_ports(pid) for pid in run.pids()]
        require(not any(ports), f"expected training workers not to listen, got ports {ports}")
        run.stop()
        check_log(run)
        step = saved_step(saved[1])
        longer = FLAGS + ["--steps", str(step + 3)]
        calm = run_mirrored(arguments.program, arguments.workers, longer, folder)
        got = run_mirrored(arguments.program, arguments.workers, longer + saved + ["--resume"], folder)
        require_same(f"{step} steps after foreign clients connected", calm, got)


if __name__ == "__main__":
    end_with(main)
