// Reading of host:port.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/address.h"

#include <algorithm>
#include <charconv>

#include "tutti/cluster/json_place.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

bool is_ipv6_character(char c) { return is_word_character(c) || c == ':' || c == '%'; }

std::optional<int> parse_port(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && port >= 1 && port <= 65535 && text[0] != '0' ? std::optional(port) : std::nullopt;
}

// Where the colon before the port stands; npos: nowhere.
std::size_t find_colon(std::string_view text) {
  if (!text.starts_with('[')) return text.find(':');
  const std::size_t bracket = text.find(']');
  if (bracket == std::string_view::npos || text.substr(bracket + 1, 1) != ":") {
    return std::string_view::npos;
  }
  return bracket + 1;
}

std::optional<internal::AddressProblem> find_host_problem(std::string_view host) {
  constexpr const char* kExpected = "a host name or an IP address before the port";
  if (host.starts_with('[')) {
    const std::string_view inside = host.substr(1, host.size() - 2);
    const bool good =
        inside.find(':') != inside.npos && std::ranges::all_of(inside, is_ipv6_character);
    if (!good) return {{"an IPv6 address in the brackets", "write [::1]:2222"}};
  } else if (host.empty() || host.size() > 253) {
    return {{kExpected, "write host:port"}};
  } else if (!std::ranges::all_of(host, is_word_character)) {
    return {{kExpected, "use letters, digits, '-', '_' and '.' only"}};
  }
  if (host == "0.0.0.0" || host == "[::]") {
    return {{"an address that others can connect to",
             "name this machine instead of all its addresses"}};
  }
  return std::nullopt;
}

}  // namespace

namespace internal {

std::optional<AddressProblem> find_address_problem(std::string_view text) {
  constexpr const char* kExpected = "an address host:port";
  if (text.empty()) return {{kExpected, "name a host and a port"}};
  if (text.find("://") != text.npos) {
    return {{kExpected, "leave out the protocol; rpc_layer names it"}};
  }
  if (text.find(',') != text.npos) return {{kExpected, "write each address as a text of its own"}};
  const std::size_t colon = find_colon(text);
  if (colon == text.npos) {
    return {
        {kExpected, text.starts_with('[') ? "write [::1]:2222" : "add the port, as in host:2222"}};
  }
  const std::string_view port = text.substr(colon + 1);
  if (port.find(':') != port.npos) return {{kExpected, "write an IPv6 address as [::1]:2222"}};
  if (!parse_port(port)) {
    return {{"a port from 1 to 65535 behind the colon",
             port == "0" ? "choose a port: the others cannot know one that the system chooses"
                         : "write host:port, as in host:2222"}};
  }
  return find_host_problem(text.substr(0, colon));
}

}  // namespace internal

HostPort HostPort::parse(std::string_view text, std::string_view who) {
  if (const auto problem = internal::find_address_problem(text)) {
    fail(ErrorCode::kInvalidArgument, who, ": expected ", problem->expected, ", got ",
         internal::shown(Json(text)), "; try to ", problem->remedy);
  }
  const std::size_t colon = find_colon(text);
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  return {std::string(host), *parse_port(text.substr(colon + 1))};
}

std::string HostPort::to_string() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return is_ipv6 ? concat("[", host, "]:", port) : concat(host, ":", port);
}

bool HostPort::is_loopback() const {
  return host == "localhost" || host.starts_with("127.") || host == "::1";
}

}  // namespace tutti
