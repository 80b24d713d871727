# TCP ports of this machine for the processes that a test starts.
# SPDX-License-Identifier: Apache-2.0
import random
import socket

_reserved = []


def free_ports(count):
    """Returns free ports below the kernel's ephemeral range, and reserves them as `tutti run` does
    (tools/launch/job_plan.cc)."""
    ports, tried = [], []
    while len(ports) < count:
        port = random.SystemRandom().randrange(10000, 32768)
        reserved, bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), socket.socket()
        tried.append(bound)  # stays bound until all ports are found
        try:
            bound.bind(("127.0.0.1", port))
            reserved.bind(f"\0tutti-port-{port}")
        except OSError:
            reserved.close()
            continue
        _reserved.append(reserved)
        ports.append(port)
    for each in tried:
        each.close()
    return ports
