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
#include <utility>

namespace tutti::internal {
namespace {

constexpr std::string_view kWithoutPauses = "reno";

/// One end of a connection.
struct End {
  sockaddr_storage address{};  // without the port
  int port = 0;                // 0: there is no such end, or it is no TCP
};

using NameOf = int (*)(int, sockaddr*, socklen_t*);

End end_of(int socket, NameOf name_of) {
  End end;
  socklen_t length = sizeof(end.address);
  if (name_of(socket, reinterpret_cast<sockaddr*>(&end.address), &length) != 0) return {};
  if (end.address.ss_family != AF_INET && end.address.ss_family != AF_INET6) return {};
  // Where both kinds of address have it.
  end.port =
      ntohs(std::exchange(reinterpret_cast<sockaddr_in&>(end.address).sin_port, in_port_t{0}));
  return end;
}

bool is_one_address(const End& a, const End& b) {
  return std::memcmp(&a.address, &b.address, sizeof(a.address)) == 0;
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
  if (there.port == 0 || !is_one_address(here, there)) return;
  if (port != 0 && here.port != port && there.port != port) return;
  if (!is_paced(socket)) return;
  // Refused: it goes on with pauses, as without us.
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kWithoutPauses.data(),
                     static_cast<socklen_t>(kWithoutPauses.size()));
}

}  // namespace

void send_without_pauses_if_local(int socket) { look_at(socket, 0); }

void send_without_pauses_if_local_at(int port) {
  std::error_code error;  // what cannot be listed cannot be found
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    int socket = -1;
    const auto end = std::from_chars(name.data(), name.data() + name.size(), socket);
    if (end.ec == std::errc()) look_at(socket, port);
  }
}

}  // namespace tutti::internal
