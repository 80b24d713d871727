// Splitting, joining and normalising network addresses.
// SPDX-License-Identifier: Apache-2.0
#include "core/network_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "tutti/core/text.h"

namespace tutti::internal {

std::optional<AddressParts> split_address(std::string_view text) {
  const bool has_brackets = text.starts_with('[');
  const std::size_t end = text.find(has_brackets ? ']' : ':');
  const std::size_t colon = has_brackets && end != text.npos ? end + 1 : end;
  if (text.substr(std::min(colon, text.size()), 1) != ":") return std::nullopt;
  const std::size_t begin = has_brackets ? 1 : 0;
  return AddressParts{text.substr(begin, end - begin), text.substr(colon + 1), has_brackets};
}

std::string join_address(std::string_view host, int port) {
  const bool needs_brackets = host.find(':') != host.npos && !host.starts_with('[');
  return needs_brackets ? concat("[", host, "]:", port) : concat(host, ":", port);
}

std::string canonical_ipv6(std::string_view host) {
  const std::size_t zone = std::min(host.find('%'), host.size());
  in6_addr address{};
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool is_ipv6 =
      zone + 1 != host.size() &&  // "%" without a name
      ::inet_pton(AF_INET6, std::string(host.substr(0, zone)).c_str(), &address) == 1;
  if (!is_ipv6) return "";
  ::inet_ntop(AF_INET6, &address, text.data(), text.size());
  return concat(text.data(), host.substr(zone));
}

}  // namespace tutti::internal
