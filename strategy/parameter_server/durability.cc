// Names of durabilities, and which servers can keep them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/durability.h"

#include <array>

#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr const char* kWho = "ParameterServerStrategy: durability";
constexpr std::array kAll = {Durability::kNone, Durability::kSnapshot, Durability::kLogged,
                             Durability::kReplicated};

}  // namespace

std::string to_string(Durability durability) {
  switch (durability) {
    case Durability::kNone:
      return "none";
    case Durability::kSnapshot:
      return "snapshot";
    case Durability::kLogged:
      return "logged";
    case Durability::kReplicated:
      return "replicated";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, Durability durability) {
  return out << to_string(durability);
}

Durability parse_durability(const std::string& text) {
  std::string names;
  for (const Durability each : kAll) {
    if (text == to_string(each)) return each;
    names += concat(names.empty() ? "" : ", ", each);
  }
  fail(ErrorCode::kInvalidArgument, kWho, " '", text, "'; expected one of ", names);
}

void internal::check_durability(Durability durability, bool is_coordinated, bool are_processes,
                                int num_servers) {
  if (durability == Durability::kNone) return;
  if (are_processes && !is_coordinated) {
    fail(ErrorCode::kInvalidArgument, kWho, " ", durability, ": expected a coordinator's job ",
         "(coordinated = true on every task), got workers that train by themselves; try ",
         "checkpoints, written between two steps");
  }
  if (!are_processes && durability != Durability::kSnapshot) {
    fail(ErrorCode::kUnimplemented, kWho, " ", durability, ": the ", num_servers, " servers are ",
         "parts of this process, and die together; try snapshot, or tasks of job ps");
  }
  if (durability == Durability::kReplicated && num_servers < 2) {
    fail(ErrorCode::kInvalidArgument, kWho, " ", durability, ": ps 0 is alone; expected another ",
         "server to keep its copy; try two tasks of job ps, or logged");
  }
}

}  // namespace tutti
