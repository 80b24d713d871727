// Finding out who is at both ends, and choosing the congestion control.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/local_pace.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace tutti::internal {
namespace {

constexpr std::string_view kWithoutPauses = "reno";

/// One end of a connection; no port: there is none, or it is no TCP.
struct End {
  std::string address;
  int port = 0;
};

using NameOf = int (*)(int, sockaddr*, socklen_t*);

End end_of(int socket, NameOf name_of) {
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  if (name_of(socket, reinterpret_cast<sockaddr*>(&name), &length) != 0) return {};
  if (name.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(name);
    return {std::string(reinterpret_cast<const char*>(&in.sin_addr), sizeof(in.sin_addr)),
            ntohs(in.sin_port)};
  }
  if (name.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(name);
    return {std::string(reinterpret_cast<const char*>(&in.sin6_addr), sizeof(in.sin6_addr)),
            ntohs(in.sin6_port)};
  }
  return {};
}

bool is_paced(int socket) {
  char name[16] = {};  // TCP_CA_NAME_MAX
  socklen_t length = sizeof(name) - 1;
  return ::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 &&
         std::string_view(name).starts_with("bbr");
}

/// `port` 0: any.
void look_at(int socket, int port) {
  const End here = end_of(socket, ::getsockname), there = end_of(socket, ::getpeername);
  if (there.port == 0 || here.address != there.address) return;
  if (port != 0 && here.port != port && there.port != port) return;
  if (!is_paced(socket)) return;
  // Refused: it goes on with pauses, as without us.
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kWithoutPauses.data(),
                     static_cast<socklen_t>(kWithoutPauses.size()));
}

}  // namespace

void send_without_pauses_if_local(int socket) { look_at(socket, 0); }

void send_without_pauses_if_local_at(int port) {
  std::error_code no_such_thing;  // then there is nothing to find
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", no_such_thing)) {
    const std::string name = entry.path().filename();
    int socket = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), socket);
    if (error == std::errc()) look_at(socket, port);
  }
}

}  // namespace tutti::internal
