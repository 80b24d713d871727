// What servers of the model do with changes that come again from a log or to a copy.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/strategy/parameter_server/protocol_model.h"

namespace tutti::testing {

std::string apply_again(ModelServer::Variables& variables, const ModelChange& change,
                        PlantedBug bug) {
  const internal::ChangeIdentity identity{
      change.term, {internal::UpdateStream::Kind::kClosure, change.number, 0}, 0, 1, change.below};
  try {
    const bool is_new = variables.table.num_applied_before(identity) == 0;
    if (is_new || bug == PlantedBug::kReplayWithoutTable) ++variables.counts[change.content];
    variables.table.note_applied(identity);
    return "";
  } catch (const Error& error) {
    return concat("what was applied is refused when it is applied again: ", error.message());
  }
}

std::string replay_log(ModelServer& server, std::uint8_t cut, PlantedBug bug) {
  const auto saved = std::ranges::find(server.saved, cut, &ModelServer::Saved::cut);
  if (saved == server.saved.end()) return "a cut that was taken is not there";
  ModelServer::Variables variables{saved->table, saved->counts};
  for (const ModelChange& change : server.log) {
    if (change.after_cut < cut) continue;
    if (auto refusal = apply_again(variables, change, bug); !refusal.empty()) return refusal;
  }
  server.table = variables.table;
  server.counts = variables.counts;
  return "";
}

}  // namespace tutti::testing
