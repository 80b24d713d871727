# A TCP proxy in user space that resets connections, flips bits and lets packets vanish where it is told to.
# SPDX-License-Identifier: Apache-2.0
"""One thread serves any number of routes: each listens at a port of its own and connects what comes to a target."""
import os
import selectors
import socket
import struct
import threading
import time

PIECE = 65536
MOST_WAITING = 4 * PIECE


class Damage:
    """A reset or a flipped bit after so many more bytes of one connection, both directions together."""

    def __init__(self, kind, after_bytes, bit=0):
        assert kind in ("reset", "flip")
        self.kind, self.after_bytes, self.bit = kind, after_bytes, bit
        self.at = None        # when it was done
        self.where = ""       # "connection 7 of worker 0, byte 4711"
        self.replaced = None  # when the route had another connection in its place


class Connection:
    def __init__(self, route, number, client, server):
        self.route, self.number = route, number
        self.client, self.server = client, server
        self.waiting = {client: b"", server: b""}  # to be written there
        self.passed = 0
        self.damage = None
        self.is_swallowed = False  # nothing passes, and neither end hears of the other's

    def other(self, end):
        return self.server if end is self.client else self.client


class Route:
    """`target` gives (host, port), each time that somebody connects."""

    def __init__(self, name, target):
        self.name, self.target = name, target
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.connections = []
        self.num_accepted = 0
        self.next_damage = None  # of the next connection that comes
        self.unreplaced = []     # damages whose connection was not replaced yet
        self.swallows = False    # also what comes


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
        self.thread = threading.Thread(target=self.run, name="proxy", daemon=True)

    def add_route(self, name, target):
        route = Route(name, target)
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
        """Damages one of the open connections (of the routes `among`), chosen by chance; False: there is none."""
        with self.lock:
            all_open = [c for route in self.routes if among is None or route in among for c in route.connections]
            all_open = [c for c in all_open if c.damage is None]
            if not all_open:
                return False
            connection = chance.choice(all_open)
            damage.after_bytes += connection.passed
            connection.damage = damage
            return True

    def swallow(self, connections):
        """From now on nothing passes on them, in either direction, and nothing is closed: packets vanish."""
        with self.lock:
            for connection in connections:
                connection.is_swallowed = True
                connection.waiting = {connection.client: b"", connection.server: b""}
                for end in (connection.client, connection.server):
                    self.watch(connection, end)

    def swallow_routes(self, routes):
        """The same for all connections of these routes, and for those that come, until heal()."""
        with self.lock:
            for route in routes:
                route.swallows = True
                self.swallow(route.connections)

    def heal(self):
        """What comes from now on passes. What was swallowed is lost with its connections, whose ends hear of that now."""
        with self.lock:
            for route in self.routes:
                route.swallows = False
                for connection in [c for c in route.connections if c.is_swallowed]:
                    self.close(connection, with_reset=True)

    def damage_next(self, route, damage):
        """Damages the next connection that comes on a route, or one that comes later, if the next one does not live long enough."""
        with self.lock:
            route.next_damage = damage

    # --- The thread.

    def run(self):
        while not self.stops:
            for key, events in self.selector.select(timeout=1.0):
                with self.lock:
                    self.handle(key, events)
        for route in self.routes:
            for connection in list(route.connections):
                self.close(connection)
            route.listener.close()

    def handle(self, key, events):
        if key.data is None:
            os.read(self.wake_read, 64)
        elif isinstance(key.data, Route):
            self.accept(key.data)
        elif key.data in key.data.route.connections:  # not closed in this turn
            try:
                if events & selectors.EVENT_WRITE:
                    self.write(key.data, key.fileobj)
                if events & selectors.EVENT_READ:
                    self.read(key.data, key.fileobj)
            except OSError:  # passed on
                self.close(key.data, with_reset=True)

    def accept(self, route):
        try:
            client, _ = route.listener.accept()
        except OSError:
            return
        try:
            server = socket.create_connection(route.target(), timeout=1.0)
        except OSError:
            reset(client)
            return
        route.num_accepted += 1
        connection = Connection(route, route.num_accepted, client, server)
        connection.damage, route.next_damage = route.next_damage, None
        connection.is_swallowed = route.swallows
        for damage in route.unreplaced:
            damage.replaced = time.monotonic()
        route.unreplaced.clear()
        route.connections.append(connection)
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.selector.register(end, selectors.EVENT_READ, connection)

    def read(self, connection, end):
        other = connection.other(end)
        if connection.is_swallowed:
            self.forget(end)
            return
        data = end.recv(PIECE)
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
            data = data[:place] + bytes([data[place] ^ (1 << damage.bit)]) + data[place + 1:]
        connection.waiting[other] += data
        self.write(connection, other)

    def forget(self, end):
        """What a swallowed connection brings; of its end nobody hears."""
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
        if len(connection.waiting[connection.other(end)]) < MOST_WAITING:
            events |= selectors.EVENT_READ
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
        """The last bytes go on, if the other side takes them now."""
        try:
            end.send(connection.waiting[end])
        except OSError:
            pass

    def close(self, connection, with_reset=False):
        route, damage = connection.route, connection.damage
        route.connections.remove(connection)
        if damage and damage.at is None:  # it did not live so long: another one has to
            if route.connections:
                damage.after_bytes += route.connections[0].passed
                route.connections[0].damage = damage
            else:
                route.next_damage = damage
        for end in (connection.client, connection.server):
            try:
                self.selector.unregister(end)
            except KeyError:
                pass
            if with_reset:
                reset(end)
            else:
                end.close()


def reset(end):
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
