# TCP proxy in user space that, on request, delays, stalls or resets connections, flips bits, or drops packets.
# SPDX-License-Identifier: Apache-2.0
"""One thread serves any number of routes: each listens on its own port and forwards connections to a target."""
import collections
import ctypes
import os
import random
import selectors
import socket
import struct
import threading
import time

PIECE = 65536
MOST_WAITING = 4 * PIECE
MOST_HELD = 128 * PIECE  # in flight on a slow wire, in one direction
END = None               # marks the end of a connection among the pieces in flight
SO_ATTACH_FILTER = 26


class Wire:
    """Effect of a bad network on TCP. A piece of data arrives `delay` +- `jitter` seconds after it
    was sent, in order within a connection. With probability `loss`, a piece is lost and sent again
    after 0.2 s; if it is lost again, after another 0.4 s, and so on."""

    def __init__(self, delay, jitter, loss=0.0, seed=1):
        self.delay, self.jitter, self.loss, self.chance = delay, jitter, loss, random.Random(seed)
        self.num_lost = 0

    def seconds(self):
        seconds, again = self.delay + self.chance.uniform(-self.jitter, self.jitter), 0.2
        while self.chance.random() < self.loss:
            seconds, again, self.num_lost = seconds + again, 2 * again, self.num_lost + 1
        return seconds


class Damage:
    """Damage to one connection after `after_bytes` more bytes, counted over both directions: a reset
    or a flipped bit. Or "orphan": the sender sees a reset; the other end gets the data in flight
    late, and then the end of the stream."""

    def __init__(self, kind, after_bytes, bit=0):
        assert kind in ("reset", "flip", "orphan")
        self.kind, self.after_bytes, self.bit = kind, after_bytes, bit
        self.at = None        # time of the damage
        self.where = ""       # "connection 7 of worker 0, byte 4711"
        self.replaced = None  # time at which the route had a replacement connection


class Connection:
    def __init__(self, route, number, client, server):
        self.route, self.number = route, number
        self.client, self.server = client, server
        self.waiting = {client: b"", server: b""}  # bytes to be written to each end
        self.passed = 0
        self.damage = None
        self.is_swallowed = False  # nothing passes, and neither end is notified
        self.held = {client: collections.deque(), server: collections.deque()}  # (due, piece)
        self.num_held = {client: 0, server: 0}
        self.orphan = None  # remaining end of a connection whose other end is lost

    def other(self, end):
        return self.server if end is self.client else self.client


def local_socket_path(host, port):
    """Returns the path at which gRPC listens for a loopback address (cluster/grpc/grpc_server.h)."""
    network = os.readlink("/proc/self/ns/net")[len("net:["):-1]
    return f"/tmp/tutti-{os.geteuid()}/{network}/{host}_{port}"


class Route:
    """Route to `target()`, a (host, port) that is evaluated for each connection. A local route
    uses UNIX-domain sockets: it listens at the socket for its own loopback address, and connects to
    the socket for the target's address."""

    def __init__(self, name, target, is_local=False):
        self.name, self.target, self.is_local = name, target, is_local
        self.host = "127.0.0.1"
        if is_local:
            self.host, self.port = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}.2", random.randrange(20000, 30000)
            folder = os.path.dirname(local_socket_path(self.host, self.port))
            for each in (os.path.dirname(folder), folder):
                os.makedirs(each, mode=0o700, exist_ok=True)
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(local_socket_path(self.host, self.port))
            self.listener.listen(64)
        else:
            self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
            self.port = self.listener.getsockname()[1]
        self.listener.setblocking(False)
        self.connections = []
        self.num_accepted = 0
        self.next_damage = None  # for the next connection
        self.unreplaced = []     # damages whose connection has no replacement yet
        self.swallows = False    # includes new connections
        self.wire = None
        self.stalled_until = 0.0  # nothing arrives before this time

    def is_slow(self):
        return self.wire is not None or time.monotonic() < self.stalled_until


class Proxy:
    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.routes = []
        self.lock = threading.RLock()
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        self.selector.register(self.wake_read, selectors.EVENT_READ, None)
        self.stops = False
        self.bytes_passed = 0
        self.num_pieces, self.late_bytes = 0, 0
        self.thread = threading.Thread(target=self.run, name="proxy", daemon=True)

    def add_route(self, name, target, is_local=False):
        route = Route(name, target, is_local)
        self.routes.append(route)
        self.selector.register(route.listener, selectors.EVENT_READ, route)
        return route

    def start(self):
        self.thread.start()

    def stop(self):
        self.stops = True
        os.write(self.wake_write, b"x")
        self.thread.join()

    def damage_one(self, chance, damage, among=None):
        """Damages a randomly chosen open connection (of the routes `among`); returns False if there is none."""
        with self.lock:
            all_open = [c for route in self.routes if among is None or route in among for c in route.connections]
            all_open = [c for c in all_open if c.damage is None]
            if not all_open:
                return False
            self.damage_connection(chance.choice(all_open), damage)
            return True

    def damage_connection(self, connection, damage):
        with self.lock:
            damage.after_bytes += connection.passed
            connection.damage = damage

    def swallow(self, connections):
        """Drops all further data of these connections, in both directions, without closing them.
        Over TCP, neither end's system receives acknowledgements any more."""
        with self.lock:
            for connection in connections:
                connection.is_swallowed = True
                self.go_deaf(connection)
                connection.waiting = {connection.client: b"", connection.server: b""}
                for end in (connection.client, connection.server):
                    self.watch(connection, end)

    @staticmethod
    def go_deaf(connection):
        """Drops incoming packets before this system acknowledges them, with a filter that accepts no byte."""
        if connection.route.is_local:
            return
        instruction = (ctypes.c_uint64 * 1)(6)  # BPF_RET | BPF_K, 0 bytes
        program = struct.pack("@HP", 1, ctypes.addressof(instruction))
        for end in (connection.client, connection.server):
            end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def swallow_routes(self, routes):
        """Same as swallow(), but for all current and new connections of these routes, until heal()."""
        with self.lock:
            for route in routes:
                route.swallows = True
                self.swallow(route.connections)

    def heal(self):
        """Lets new connections pass, and resets swallowed connections, whose data is lost."""
        with self.lock:
            for route in self.routes:
                route.swallows = False
                for connection in [c for c in route.connections if c.is_swallowed]:
                    self.close(connection, with_reset=True)

    def set_wire(self, routes, wire):
        """Sets the wire of the routes; None: a perfect wire. Data that is already in flight is not affected."""
        with self.lock:
            for route in routes:
                route.wire = wire

    def stall(self, routes, seconds):
        """Delays all data of current and new connections for `seconds`, after which all of it arrives."""
        with self.lock:
            for route in routes:
                route.stalled_until = time.monotonic() + seconds

    def damage_next(self, route, damage):
        """Damages the next connection on a route, or a later one if the next one ends too early."""
        with self.lock:
            route.next_damage = damage

    # --- Methods that the proxy's thread calls.

    def run(self):
        while not self.stops:
            for key, events in self.selector.select(timeout=self.until_next()):
                with self.lock:
                    self.handle(key, events)
            with self.lock:
                self.deliver()
        for route in self.routes:
            for connection in list(route.connections):
                self.close(connection)
            route.listener.close()
            if route.is_local:
                os.unlink(local_socket_path(route.host, route.port))

    def with_held(self):
        return [c for route in self.routes for c in route.connections if any(c.held.values())]

    def until_next(self):
        with self.lock:
            due = [max(held[0][0], c.route.stalled_until) for c in self.with_held() for held in c.held.values() if held]
        return max(0.0, min(1.0, min(due, default=1e9) - time.monotonic()))

    def hold(self, connection, end, piece):
        """Puts a piece in flight to an end."""
        held, wire, now = connection.held[end], connection.route.wire, time.monotonic()
        due = now + (wire.seconds() if wire else 0.0)
        self.num_pieces += 1
        held.append((max(due, held[-1][0]) if held else due, piece))
        connection.num_held[end] += len(piece or b"")
        self.watch(connection, connection.other(end))

    def deliver(self):
        """Delivers all pieces that are due."""
        now = time.monotonic()
        for connection in self.with_held():
            for end, held in connection.held.items():
                is_open = connection in connection.route.connections and now >= connection.route.stalled_until
                while is_open and held and held[0][0] <= now:
                    _, piece = held.popleft()
                    is_open = self.arrive(connection, end, piece)

    def arrive(self, connection, end, piece):
        """Delivers one piece; returns False if the connection has ended."""
        try:
            if piece is END:
                self.drain(connection, end)
                self.close(connection)
                return False
            self.late_bytes += len(piece) if connection.orphan else 0
            connection.num_held[end] -= len(piece)
            connection.waiting[end] += piece
            self.write(connection, end)
            return True
        except OSError:
            self.close(connection, with_reset=True)
            return False

    def handle(self, key, events):
        if key.data is None:
            os.read(self.wake_read, 64)
        elif isinstance(key.data, Route):
            self.accept(key.data)
        elif key.data in key.data.route.connections:  # not closed in this iteration
            try:
                if events & selectors.EVENT_WRITE:
                    self.write(key.data, key.fileobj)
                if events & selectors.EVENT_READ:
                    self.read(key.data, key.fileobj)
            except OSError:  # the other end sees a reset, too
                self.close(key.data, with_reset=True)

    def accept(self, route):
        try:
            client, _ = route.listener.accept()
        except OSError:
            return
        try:
            if route.is_local:
                server = socket.socket(socket.AF_UNIX)
                server.connect(local_socket_path(*route.target()))
            else:
                server = socket.create_connection(route.target(), timeout=1.0)
        except OSError:
            reset(client)
            return
        route.num_accepted += 1
        connection = Connection(route, route.num_accepted, client, server)
        connection.damage, route.next_damage = route.next_damage, None
        connection.is_swallowed = route.swallows
        if connection.is_swallowed:
            self.go_deaf(connection)
        for damage in route.unreplaced:
            damage.replaced = time.monotonic()
        route.unreplaced.clear()
        route.connections.append(connection)
        for end in (client, server):
            end.setblocking(False)
            if not route.is_local:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.selector.register(end, selectors.EVENT_READ, connection)

    def read(self, connection, end):
        other = connection.other(end)
        if connection.is_swallowed or connection.orphan:
            self.forget(end)
            return
        is_slow = connection.route.is_slow() or connection.held[other]
        try:
            data = end.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            if not is_slow:
                raise
            data = b""
        if not data and is_slow:  # the end of the stream is delayed like data
            self.orphan(connection, end)
            self.hold(connection, other, END)
            return
        if not data:
            self.drain(connection, other)
            self.close(connection)
            return
        damage = connection.damage
        begin, connection.passed = connection.passed, connection.passed + len(data)
        self.bytes_passed += len(data)
        if damage and damage.at is None and damage.after_bytes < connection.passed:
            place = max(0, damage.after_bytes - begin)
            damage.at = time.monotonic()
            damage.where = f"connection {connection.number} of {connection.route.name}, byte {begin + place}"
            connection.route.unreplaced.append(damage)
            if damage.kind == "reset":
                connection.waiting[other] += data[:place]
                self.drain(connection, other)
                self.close(connection, with_reset=True)
                return
            if damage.kind == "orphan":
                self.hold(connection, other, data)
                self.hold(connection, other, END)
                self.orphan(connection, end)
                reset(end)
                return
            data = data[:place] + bytes([data[place] ^ (1 << damage.bit)]) + data[place + 1:]
        if is_slow:
            self.hold(connection, other, data)
            return
        connection.waiting[other] += data
        self.write(connection, other)

    def orphan(self, connection, end):
        """Stops using a lost end; the other end still receives the data in flight."""
        connection.orphan = connection.other(end)
        connection.held[end].clear()
        connection.waiting[end] = b""
        self.selector.unregister(end)

    def forget(self, end):
        """Discards data of a swallowed connection; if one end closes, the other end is not notified."""
        try:
            if end.recv(PIECE):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.selector.unregister(end)

    def write(self, connection, end):
        waiting = connection.waiting[end]
        if waiting:
            try:
                connection.waiting[end] = waiting = waiting[end.send(waiting):]
            except BlockingIOError:
                pass
        self.watch(connection, end)
        self.watch(connection, connection.other(end))

    def watch(self, connection, end):
        events = selectors.EVENT_WRITE if connection.waiting[end] else 0
        other = connection.other(end)
        if len(connection.waiting[other]) < MOST_WAITING and connection.num_held[other] < MOST_HELD:
            events |= selectors.EVENT_READ
        if end.fileno() < 0 or connection.orphan and end is not connection.orphan:
            return  # a lost end is not watched
        try:
            now = self.selector.get_key(end).events
        except KeyError:
            now = 0
        if events and now and events != now:
            self.selector.modify(end, events, connection)
        elif events and not now:
            self.selector.register(end, events, connection)
        elif now and not events:
            self.selector.unregister(end)

    @staticmethod
    def drain(connection, end):
        """Sends the remaining bytes to `end`, as far as it accepts them immediately."""
        try:
            end.send(connection.waiting[end])
        except OSError:
            pass

    def close(self, connection, with_reset=False):
        route, damage = connection.route, connection.damage
        route.connections.remove(connection)
        if damage and damage.at is None:  # the connection ended first: damage another one
            if route.connections:
                damage.after_bytes += route.connections[0].passed
                route.connections[0].damage = damage
            else:
                route.next_damage = damage
        for end in (connection.client, connection.server):
            try:
                self.selector.unregister(end)
            except (KeyError, ValueError):  # not watched, or already closed
                pass
            if end.fileno() < 0:
                continue
            if with_reset:
                reset(end)
            else:
                end.close()


def reset(end):
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
