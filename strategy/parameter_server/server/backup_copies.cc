// A store per server, which changes as that one does.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/backup_copies.h"

#include <utility>

#include "tutti/strategy/parameter_server/protocol/encoding.h"
#include "tutti/strategy/parameter_server/server/backup_message.h"

namespace tutti::internal {

std::shared_ptr<BackupCopies::Copy> BackupCopies::find(int server) const {
  const MutexLock lock(mutex_);
  const auto found = copies_.find(server);
  return found == copies_.end() ? nullptr : found->second;
}

void BackupCopies::take(RpcCall& call) {
  Packet packet = call.request();
  const BackupMessage message = decode_backup_message(packet);
  const std::string who = concat("the copy of ps ", message.server);
  if (message.kind == BackupMessage::Kind::kState) {
    auto copy = std::make_shared<Copy>(who, message.term);
    copy->store.restore(state_in(packet, who));
    {
      const MutexLock lock(mutex_);
      copies_[message.server].swap(copy);
    }
    return call.reply({});
  }
  const auto copy = find(message.server);
  if (message.kind == BackupMessage::Kind::kFetch) {
    if (copy) return call.reply(state_packet(copy->store.snapshot()));
    fail(ErrorCode::kNotFound, who, ": there is none here");
  }
  if (!copy || copy->term != message.term) {
    fail(ErrorCode::kAborted, who, ": expected it to have begun under term ", message.term, ", ",
         copy ? concat("it began under ", copy->term) : std::string("there is none here"));
  }
  if (const auto problem = apply_again(copy->store, decode_batch(packet))) {
    fail(ErrorCode::kDataLoss, who, ": does not take what the server took: ", problem->message());
  }
  call.reply({});
}

}  // namespace tutti::internal
