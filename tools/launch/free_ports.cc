// Ports of this machine that nobody uses: bound for a moment, all at the same time.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/free_ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"

namespace tutti::launch {
namespace {

constexpr int kFirstPort = 10'000;
constexpr int kTriesPerPort = 1000;

/// The first port that the kernel chooses by itself.
int end_of_own_ports() {
  try {
    const int first = std::atoi(read_file("/proc/sys/net/ipv4/ip_local_port_range").c_str());
    if (first > kFirstPort + 1000) return first;
  } catch (const Error&) {
    // No such file in some containers.
  }
  return 32'768;
}

/// Holds the ports until all are found.
class BoundSockets {
 public:
  BoundSockets() = default;
  ~BoundSockets() {
    for (const int fd : fds_) ::close(fd);
  }
  BoundSockets(const BoundSockets&) = delete;
  BoundSockets& operator=(const BoundSockets&) = delete;

  bool bind(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) fail(ErrorCode::kResourceExhausted, "run: cannot make a socket");
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // Without SO_REUSEADDR: a port whose last connections still fade away is not free.
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      ::close(fd);
      return false;
    }
    fds_.push_back(fd);
    return true;
  }

 private:
  std::vector<int> fds_;
};

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) {
    fail(ErrorCode::kUnavailable, "run: the system gives no random numbers");
  }
  return seed;
}

}  // namespace

std::vector<int> free_ports(int count) {
  const int end = end_of_own_ports();
  const RandomStream random({.seed = random_seed()});
  BoundSockets sockets;
  std::vector<int> ports;
  for (int tries = 0; static_cast<int>(ports.size()) < count; ++tries) {
    if (tries > kTriesPerPort * count) {
      fail(ErrorCode::kResourceExhausted, "run: expected ", count, " free ports between ",
           kFirstPort, " and ", end, ", found ", ports.size(), "; try fewer processes");
    }
    const int port =
        kFirstPort + static_cast<int>(random.below(static_cast<std::uint64_t>(tries),
                                                   static_cast<std::uint64_t>(end - kFirstPort)));
    if (sockets.bind(port)) ports.push_back(port);
  }
  return ports;
}

}  // namespace tutti::launch
