// Sockets that close themselves: listening, connecting, waiting for readiness.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "tutti/core/clock.h"

struct addrinfo;

namespace tutti::internal {

/// Owns a file descriptor of the system.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  /// The caller closes it.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

/// "127.0.0.1:4711" and "[::1]:4711"; host names are looked up. "@0001f": a name that processes of
/// this machine (of one network namespace) find, and that goes with its socket; no port.
struct Endpoint {
  std::string host;
  int port = 0;
  bool is_local() const { return host.starts_with('@'); }
  std::string to_string() const;
};
/// Nothing: no such text, or numbers that are no address.
std::optional<Endpoint> parse_endpoint(const std::string& text);

struct FreeAddresses {
  void operator()(addrinfo* addresses) const;
};
/// Of getaddrinfo(), `flags` too. Throws kNotFound for a host that no look-up will find,
/// kUnavailable for one that may be found later.
std::unique_ptr<addrinfo, FreeAddresses> look_up(const Endpoint& endpoint, int flags);
/// Whether it is this machine, as it is set up, that cannot connect or listen there: it has no such
/// address or kind of address, no way there, or no port left.
bool lies_in_this_machine(int error);

/// All sockets here do not block and hand small messages over at once (TCP_NODELAY).
struct Listener {
  FileDescriptor socket;
  Endpoint endpoint;
};
/// On a free port of `host`. Throws as listen_at().
Listener listen_on(const std::string& host);
/// On a local name that the system chooses. Throws kUnavailable.
Listener listen_locally();
/// Of a socket that is bound.
int port_of(const FileDescriptor& socket);
/// The next connection, if there is one.
FileDescriptor accept_from(const FileDescriptor& listener);
/// Notices in seconds when the other machine does not answer any more (keepalive,
/// TCP_USER_TIMEOUT).
void keep_watch(const FileDescriptor& socket);
/// Starts connecting; poll for POLLOUT, then ask connect_result(). Not open: it failed at once, and
/// errno says why. Throws as look_up().
FileDescriptor start_connecting(const Endpoint& endpoint);
/// 0 or the system's errno.
int connect_result(const FileDescriptor& socket);

/// The process at the other end of a local connection.
struct PeerProcess {
  int pid = 0;  // 0: not visible from here
  bool same_user = false;
};
PeerProcess peer_process(const FileDescriptor& socket);
/// poll() sees POLLIN when the process ends. Not open: the system has no such thing, or no process.
FileDescriptor watch_process(int pid);

/// A counter that poll() sees: what wakes a thread out of it.
FileDescriptor make_wake_event();

/// Waits until one is ready or the deadline; returns how many are. Hands the run token on, and
/// counts as asleep, while it waits.
int poll_until(std::span<pollfd> descriptors, TimePoint deadline);

}  // namespace tutti::internal
