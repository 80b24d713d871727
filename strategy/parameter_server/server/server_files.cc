// A snapshot and the switch to its log are one moment of the store.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/server_files.h"

#include <utility>

#include "tutti/core/logging.h"

namespace tutti::internal {

ServerFiles::ServerFiles(const std::string& folder, const std::string& job_id, int server,
                         int num_servers)
    : snapshots_(folder, job_id, server, num_servers),
      log_(std::make_shared<ChangeLog>(folder, job_id, server, num_servers)) {}

void ServerFiles::save(VariableStore& store, std::uint64_t cut, std::uint64_t term,
                       std::uint64_t keep) {
  log_->prepare(cut);
  const StoreSnapshot state = store.snapshot([&] {
    log_->switch_over();
    store.set_log(log_);
  });
  snapshots_.save(cut, term, state, keep);
  log_->forget_before(keep);
}

void ServerFiles::load(VariableStore& fresh, const VariableStore& present, std::uint64_t cut,
                       std::uint64_t term) {
  const StoreSnapshot state = snapshots_.load(cut).snapshot;
  check_has_all(present.name(), present, state);
  fresh.restore(state);
  replay(fresh, cut);
  log_->prepare(cut);
  log_->switch_over();
  fresh.fence(term);
  fresh.set_log(log_);
}

void ServerFiles::replay(VariableStore& store, std::uint64_t cut) const {
  std::uint64_t number = 0;
  (void)log_->replay(cut, [&](OperationBatch batch) {
    ++number;
    if (const auto problem = apply_again(store, std::move(batch))) {
      fail(ErrorCode::kDataLoss, "log of changes since cut ", cut, ": expected batch ", number,
           " to be what was applied before, but it was refused: ", problem->message());
    }
  });
  log_info(concat(store.name(), ": is at cut ", cut, ", and has applied ", number,
                  " batches since then again"));
}

}  // namespace tutti::internal
