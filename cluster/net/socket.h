// Sockets: listening, connecting, the first bytes; limits for strangers; the end of waiting.
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

/// All sockets here do not block and hand small messages over at once (TCP_NODELAY).
struct Listener {
  FileDescriptor socket;
  Endpoint endpoint;
};
/// "host:port" where the port may be 0. Nothing: no such text.
std::optional<Endpoint> parse_listen_address(const std::string& text);
/// Listens at exactly this address and port; 0: a free one. Throws kUnavailable naming them, the
/// system's reason and, when the port is taken, the process that has it (if the system tells).
Listener listen_at(const Endpoint& endpoint);
/// Throws kInvalidArgument "<where>: expected an address of this machine ..." where listening fails
/// and waiting is no remedy: a port that is taken may become free.
void check_can_listen(const std::string& where, const Endpoint& endpoint);
/// On a local name that the system chooses. Throws kUnavailable.
Listener listen_locally();
/// The next connection, if there is one.
FileDescriptor accept_from(const FileDescriptor& listener);
/// The system notices within 5 s when the other machine of an idle connection does not answer any
/// more (keep-alive).
void keep_watch(const FileDescriptor& socket);
/// Starts connecting; poll for POLLOUT, then ask connect_result(). Not open: it failed at once, and
/// errno says why. Throws kNotFound for a host that no look-up will find, kUnavailable for one that
/// may be found later.
FileDescriptor start_connecting(const Endpoint& endpoint);
/// 0 or the system's errno.
int connect_result(const FileDescriptor& socket);

/// Of a read or write that failed: whether the connection is as it was.
bool is_only_later(int error);

enum class ByteFlow { kOpen, kClosed };
/// Reads what is there, at most `bytes`; `count` says how much it was.
ByteFlow read_now(const FileDescriptor& socket, std::span<std::byte> bytes, std::size_t& count);
/// Writes what fits.
ByteFlow write_now(const FileDescriptor& socket, std::span<const std::byte> bytes,
                   std::size_t& count);
/// Hands a few bytes to the empty buffer of a new connection; false: it is broken.
bool send_whole(const FileDescriptor& socket, std::span<const std::byte> bytes);
/// The same for one byte, and a copy of `attached` where that is open (to a process of this host).
bool send_byte(const FileDescriptor& socket, std::byte byte, const FileDescriptor& attached);
/// read_now() for that byte; `attached` is what came with it.
ByteFlow read_byte(const FileDescriptor& socket, std::size_t& count, FileDescriptor& attached);

/// An attempt to connect.
struct OpenedConnection {
  FileDescriptor socket = {};    // not open: it failed
  std::string reason = {};       // why
  bool is_nobody_there = false;  // the system says that nobody listens
  bool is_hopeless = false;      // no such host, or it is this machine: waiting is no remedy
};
/// start_connecting() without its exceptions: poll for POLLOUT, then finish_opening().
OpenedConnection begin_opening(const Endpoint& endpoint);
/// Also when the socket has been connected to itself (simultaneous open) it is not open afterwards.
void finish_opening(OpenedConnection& opened);
OpenedConnection connect_until(const Endpoint& endpoint, TimePoint deadline);

/// "10.0.0.9": where the other end is, without the port, which differs each time.
std::string address_of_peer(const FileDescriptor& socket);

/// The process at the other end of a local connection.
struct PeerProcess {
  int pid = 0;  // 0: not visible from here
  bool same_user = false;
};
PeerProcess peer_process(const FileDescriptor& socket);

// What strangers may cost: connections of an address, lines of the log.

/// A bucket of connections per address: `most` at once, filled again at `per_second`. A peer
/// that proves itself gets its connection back, so that the ranks of a large group on one machine
/// are not slowed down. Remembers at most kMostAddresses. Threads: one at a time.
class AddressLimit {
 public:
  static constexpr std::size_t kMostAddresses = 1024;

  explicit AddressLimit(double most = 512, double per_second = 128)
      : most_(most), per_second_(per_second) {}
  /// Whether this address may open one more now.
  bool allows(const std::string& address, TimePoint now);
  void give_back(const std::string& address);
  std::size_t num_addresses() const { return buckets_.size(); }

 private:
  struct Bucket {
    double left = 0;
    TimePoint at{};  // when it was so
  };
  void forget_idle(TimePoint now);
  double left_in(const Bucket& bucket, TimePoint now) const;

  const double most_;
  const double per_second_;
  std::map<std::string, Bucket> buckets_;
};

/// Says who was refused: the first one at once, then one line per pause with the number of the
/// others. Threads: one at a time.
class RefusalLog {
 public:
  /// `who` refuses: "control".
  explicit RefusalLog(std::string who);
  void note(std::string_view reason, TimePoint now);

 private:
  const std::string who_;
  TimePoint next_{};
  std::uint64_t num_unsaid_ = 0;
};

}  // namespace tutti::internal

namespace tutti {

// Ends the waiting for peers from another thread.

/// For ConnectOptions::interruption: the thread that learns that a peer is lost raises it, and
/// those who wait for that peer look about every 20 ms. Threads: any.
class Interruption {
 public:
  /// Every waiter throws this, now or later. The first one counts, and stays.
  void raise(const Error& reason) {
    MutexLock lock(mutex_);
    if (!reason_) reason_ = reason;
  }
  /// Throws the reason, if there is one.
  void check() const {
    MutexLock lock(mutex_);
    if (reason_) throw Error(*reason_);
  }

 private:
  mutable Mutex mutex_;
  std::optional<Error> reason_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
