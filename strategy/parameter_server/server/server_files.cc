// A snapshot is a file of records (record_file.h) whose head is a label: a record per shard, and
// the table.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/server_files.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

SnapshotLabel label_in(const RecordReader& in) {
  try {
    return decode_label(in.head());
  } catch (const Error& error) {
    in.refuse(16, "expected a label, found ", error.message());
  }
}

AppliedTable decode_table(const Packet& packet) {
  if (packet.payload_bytes() != 0) fail(ErrorCode::kDataLoss, "tensors behind it");
  return AppliedTable::restore(packet.head);
}

}  // namespace

std::uint64_t about_size(const StoreSnapshot& snapshot) {
  std::uint64_t size = 4096;
  for (const ShardSnapshot& each : snapshot.shards) size += each.value.num_bytes() + 512;
  return size;
}

FileKind snapshot_kind() { return {"TUTTIPSS", 4}; }

void write_snapshot(const SavedSnapshot& saved, const RecordWriter::Sink& sink) {
  RecordWriter out(snapshot_kind(), encode_for_file(saved.label), sink);
  for (const ShardSnapshot& each : saved.snapshot.shards) out.put(encode_for_file(each));
  out.put({saved.snapshot.table.save(), {}});
}

SavedSnapshot read_snapshot(const std::string& path, std::uint64_t size,
                            RecordReader::Source source) {
  RecordReader in(snapshot_kind(), path, size, std::move(source));
  SavedSnapshot saved;
  saved.label = label_in(in);
  for (;;) {
    const std::uint64_t first = in.offset();
    const Packet packet = in.get();
    const bool is_last = in.is_at_end();
    try {
      if (is_last) {
        saved.snapshot.table = decode_table(packet);
        return saved;
      }
      saved.snapshot.shards.push_back(decode_shard(packet));
    } catch (const Error& error) {
      in.refuse(first, "expected ", is_last ? "a table of applied changes" : "a shard", ", found ",
                error.message());
    }
    const auto& shards = saved.snapshot.shards;
    if (shards.size() < 2) continue;
    const ShardSpec &before = shards[shards.size() - 2].spec, &own = shards.back().spec;
    if (before.id() < own.id()) continue;
    in.refuse(first, "expected shards in the order of their ids, found ", own.to_string(),
              " behind ", before.to_string());
  }
}

SnapshotFolder::SnapshotFolder(const std::string& path, std::string job_id, int server,
                               int num_servers)
    : job_id_(std::move(job_id)),
      server_(server),
      num_servers_(num_servers),
      folder_(Folder::make(path)) {
  for (const std::uint64_t cut : cuts()) {
    try {
      require_own(label_of(cut), cut);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDataLoss) throw;
      log_warning(concat("ps ", server_, ": snapshot of cut ", cut, ": ", error.message()));
    }
  }
}

std::string SnapshotFolder::name_of(std::uint64_t cut) const {
  return concat("ps_", server_, "_of_", num_servers_, ".cut_", cut);
}

std::vector<std::uint64_t> SnapshotFolder::cuts() const {
  const std::string begin = concat("ps_", server_, "_of_", num_servers_, ".cut_");
  std::vector<std::uint64_t> found;
  for (const std::string& name : folder_.names()) {
    if (!name.starts_with(begin)) continue;
    std::uint64_t cut = 0;
    const char* const end = name.data() + name.size();
    const auto result = std::from_chars(name.data() + begin.size(), end, cut);
    if (result.ec == std::errc() && result.ptr == end) found.push_back(cut);
  }
  std::ranges::sort(found);
  return found;
}

SnapshotLabel SnapshotFolder::label_of(std::uint64_t cut) const {
  const FileReader file = folder_.open_file(name_of(cut));
  return label_in(RecordReader(snapshot_kind(), file.path(), file.size(), source_of(file)));
}

void SnapshotFolder::require_own(const SnapshotLabel& label, std::uint64_t cut) const {
  const SnapshotLabel expected{job_id_, server_, num_servers_, cut, label.term};
  if (label == expected) return;
  fail(ErrorCode::kFailedPrecondition, folder_.path_of(name_of(cut)), ": expected cut ", cut,
       " of server ", server_, " of ", num_servers_, " in job '", job_id_, "', found cut ",
       label.cut, " of server ", label.server, " of ", label.num_servers, " in job '", label.job_id,
       "'; try another folder, or delete what is of other jobs");
}

void SnapshotFolder::save(std::uint64_t cut, std::uint64_t term, const StoreSnapshot& snapshot,
                          std::uint64_t keep) const {
  const std::string name = name_of(cut);
  if (folder_.size_of(name)) return require_own(label_of(cut), cut);
  const std::string unfinished = name + ".new";
  {
    FileWriter file = folder_.create_file(unfinished, about_size(snapshot));
    write_snapshot({{job_id_, server_, num_servers_, cut, term}, snapshot},
                   [&](std::span<const std::byte> bytes) { file.write(bytes); });
    file.finish();
  }
  folder_.rename(unfinished, name);
  folder_.sync();
  const std::string own = concat("ps_", server_, "_of_", num_servers_, ".cut_");
  for (const std::string& other : folder_.names()) {
    if (!other.starts_with(own) || other == name || other == name_of(keep)) continue;
    (void)folder_.remove(other);
  }
}

SavedSnapshot SnapshotFolder::load(std::uint64_t cut) const {
  const std::string name = name_of(cut);
  if (!folder_.size_of(name)) {
    fail(ErrorCode::kNotFound, folder_.path_of(name), ": expected the snapshot of cut ", cut,
         ", found those of ", join(cuts()), "; try the folder that the job saved into");
  }
  const FileReader file = folder_.open_file(name);
  SavedSnapshot saved = read_snapshot(file.path(), file.size(), source_of(file));
  require_own(saved.label, cut);
  return saved;
}

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
