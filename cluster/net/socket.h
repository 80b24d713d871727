// Sockets, limits for unauthenticated peers, and cancellation of waits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/file.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Address such as "127.0.0.1:4711" or "[::1]:4711"; host names are resolved. "@0001f" is a local
/// name without a port. It is visible in one network namespace of this machine, and released when
/// its socket is closed.
struct Endpoint {
  std::string host;
  int port = 0;
  bool is_local() const { return host.starts_with('@'); }
  std::string to_string() const;
};
/// Parses an address; returns nullopt for any other string.
std::optional<Endpoint> parse_endpoint(const std::string& text);

/// A listening socket and its address. All sockets in this file are non-blocking and send small
/// messages immediately (TCP_NODELAY).
struct Listener {
  FileDescriptor socket;
  Endpoint endpoint;
};
/// Parses "host:port", where port may be 0; returns nullopt for any other string.
std::optional<Endpoint> parse_listen_address(const std::string& text);
/// Listens on exactly this address and port (0: a free port). Throws kUnavailable with the address,
/// the system's reason and, if the port is taken, its owner (if visible).
Listener listen_at(const Endpoint& endpoint);
/// Throws kInvalidArgument "<where>: expected an address of this machine ..." if listening fails
/// and waiting cannot help. Does not throw if the port is taken, because it may become free.
void check_can_listen(const std::string& where, const Endpoint& endpoint);
/// Listens on a local name that the system chooses. Throws kUnavailable.
Listener listen_locally();
/// Accepts the next connection; the result is not open if there is none.
FileDescriptor accept_from(const FileDescriptor& listener);
/// Enables keep-alive, which detects within 5 s that the machine at the other end of an idle
/// connection has stopped responding.
void enable_keep_alive(const FileDescriptor& socket);
/// Starts connecting. The caller polls for POLLOUT, then calls connect_result(). If the returned
/// socket is not open, the attempt failed, and errno holds the reason. Throws kNotFound if the host
/// does not exist, and kUnavailable if a later look-up may find it.
FileDescriptor start_connecting(const Endpoint& endpoint);
/// Returns 0 if the socket is connected, else the system's errno.
int connect_result(const FileDescriptor& socket);

/// Returns true if a read or write error is temporary and the connection still works.
bool is_only_later(int error);

enum class ByteFlow { kOpen, kClosed };
/// Reads the available bytes into `bytes`; sets `count` to their number.
ByteFlow read_now(const FileDescriptor& socket, std::span<std::byte> bytes, std::size_t& count);
/// Writes as many bytes as the socket accepts without blocking; sets `count` to their number.
ByteFlow write_now(const FileDescriptor& socket, std::span<const std::byte> bytes,
                   std::size_t& count);
/// Writes a few bytes to the empty buffer of a new connection; returns false if not all of them
/// could be written.
bool send_whole(const FileDescriptor& socket, std::span<const std::byte> bytes);
/// Sends one byte. If `attached` is open, also sends a copy of that descriptor, which requires that
/// the peer is a process on this host.
bool send_byte(const FileDescriptor& socket, std::byte byte, const FileDescriptor& attached);
/// Reads the byte sent by send_byte(); sets `attached` to the descriptor sent with it.
ByteFlow read_byte(const FileDescriptor& socket, std::size_t& count, FileDescriptor& attached);

/// Result of an attempt to connect.
struct OpenedConnection {
  FileDescriptor socket = {};  // not open if the attempt failed
  std::string reason = {};     // reason for the failure
  bool is_connection_refused = false;
  bool is_hopeless = false;  // true for an unknown host or a fault on this machine
};
/// Same as start_connecting(), but without exceptions. The caller polls for POLLOUT, then calls
/// finish_opening().
OpenedConnection begin_opening(const Endpoint& endpoint);
/// Closes the socket, and sets the reason, if connecting failed or connected the socket to itself
/// (simultaneous open).
void finish_opening(OpenedConnection& opened);
OpenedConnection connect_until(const Endpoint& endpoint, TimePoint deadline);

/// Returns the peer's address without the port, which differs between connections: "10.0.0.9".
std::string address_of_peer(const FileDescriptor& socket);

/// Process at the other end of a local connection.
struct PeerProcess {
  int pid = 0;  // 0 if it is not visible from this process
  bool same_user = false;
};
PeerProcess peer_process(const FileDescriptor& socket);

// Limits for unauthenticated peers.

/// Limit on connections per address, as a token bucket: `most` connections at once, refilled at
/// `per_second`. An authenticated peer returns its token, so that a large group on one machine is
/// not slowed down. Keeps at most kMostAddresses addresses. Not thread-safe.
class AddressLimit {
 public:
  static constexpr std::size_t kMostAddresses = 1024;

  explicit AddressLimit(double most = 512, double per_second = 128)
      : most_(most), per_second_(per_second) {}
  /// Returns true if this address may open another connection now.
  bool allows(const std::string& address, TimePoint now);
  void release(const std::string& address);
  std::size_t num_addresses() const { return buckets_.size(); }

 private:
  struct Bucket {
    double left = 0;
    TimePoint at{};  // time at which `left` was computed
  };
  void forget_idle(TimePoint now);
  double left_in(const Bucket& bucket, TimePoint now) const;

  const double most_;
  const double per_second_;
  std::map<std::string, Bucket> buckets_;
};

/// Logs refused peers: the first one immediately, then one line per interval, with the number of
/// peers that were not logged. Not thread-safe.
class RefusalLog {
 public:
  /// `who`: name of the refusing server in the log lines, such as "control".
  explicit RefusalLog(std::string who);
  void note(std::string_view reason, TimePoint now);

 private:
  const std::string who_;
  TimePoint next_{};
  std::uint64_t num_unlogged_ = 0;
};

}  // namespace tutti::internal

namespace tutti {

/// Cancels a wait for peers (ConnectOptions::interruption). The thread that detects a lost peer
/// raises it; waiting threads check it about every 20 ms. Thread-safe.
class Interruption {
 public:
  /// Makes every check(), now or later, throw `reason`. Only the first call has an effect.
  void raise(const Error& reason) {
    MutexLock lock(mutex_);
    if (!reason_) reason_ = reason;
  }
  /// Throws the raised reason, if any.
  void check() const {
    MutexLock lock(mutex_);
    if (reason_) throw Error(*reason_);
  }

 private:
  mutable Mutex mutex_;
  std::optional<Error> reason_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
