// A snapshot is a label, shards and a table, each a message with its tensors behind it.
// SPDX-License-Identifier: Apache-2.0
//
// In checked blocks (checked_blocks.h) whose head is the label: u64 number of shards; for each of
// them, and for the table, u32 and u64 lengths of message and tensors, the message, the tensors.
#include "tutti/strategy/parameter_server/server/server_files.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include "tutti/core/byte_codec.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

SnapshotLabel label_in(const CheckedReader& in) {
  try {
    return decode_label(in.head());
  } catch (const Error& error) {
    in.refuse(16, "expected a label, found ", error.message());
  }
}

template <class Number>
Number number_in(CheckedReader& in) {
  std::byte bytes[sizeof(Number)];
  in.get(std::span<std::byte>(bytes));
  return ByteReader(bytes).number<Number>();
}

void put(const Packet& packet, CheckedWriter& out) {
  ByteWriter lengths;
  lengths.number(static_cast<std::uint32_t>(packet.head.size()));
  lengths.number(std::uint64_t{packet.payload_bytes()});
  out.put(lengths.bytes());
  out.put(packet.head);
  for (const SharedBytes& piece : packet.payload) out.put(piece.bytes);
}

/// What `decode` makes of the next packet.
template <class Decode>
auto next_in(CheckedReader& in, const char* what, const Decode& decode) {
  const std::uint64_t first = in.offset();
  const auto head_bytes = number_in<std::uint32_t>(in);
  const auto payload_bytes = number_in<std::uint64_t>(in);
  Packet packet{in.get(head_bytes), {}};
  const auto payload = std::make_shared<const std::vector<std::byte>>(in.get(payload_bytes));
  packet.payload.push_back({*payload, payload});
  try {
    return decode(packet);
  } catch (const Error& error) {
    in.refuse(first, "expected ", what, ", found ", error.message());
  }
}

CheckedReader::Source source_of(const FileReader& file) {
  return [&file](std::uint64_t offset, std::span<std::byte> bytes) { file.read(offset, bytes); };
}

}  // namespace

std::uint64_t about_size(const StoreSnapshot& snapshot) {
  std::uint64_t size = 4096;
  for (const ShardSnapshot& each : snapshot.shards) size += each.value.num_bytes() + 512;
  return size + size / CheckedWriter::kLongestBlock * 8;  // and what stands around each block
}

FileKind snapshot_kind() { return {"TUTTIPSS", 3}; }

void write_snapshot(const SavedSnapshot& saved, const CheckedWriter::Sink& sink) {
  CheckedWriter out(snapshot_kind(), encode_for_file(saved.label), sink);
  ByteWriter number;
  number.number(std::uint64_t{saved.snapshot.shards.size()});
  out.put(number.bytes());
  for (const ShardSnapshot& each : saved.snapshot.shards) put(encode_for_file(each), out);
  put({saved.snapshot.table.save(), {}}, out);
  out.finish();
}

SavedSnapshot read_snapshot(const std::string& path, std::uint64_t size,
                            CheckedReader::Source source) {
  CheckedReader in(snapshot_kind(), path, size, std::move(source));
  SavedSnapshot saved;
  saved.label = label_in(in);
  for (auto left = number_in<std::uint64_t>(in); left > 0; --left) {
    const std::uint64_t first = in.offset();
    ShardSnapshot shard = next_in(in, "a shard", decode_shard);
    auto& shards = saved.snapshot.shards;
    if (!shards.empty() && shards.back().spec.id() >= shard.spec.id()) {
      in.refuse(first, "expected shards in the order of their ids, found ", shard.spec.to_string(),
                " behind ", shards.back().spec.to_string());
    }
    shards.push_back(std::move(shard));
  }
  saved.snapshot.table = next_in(in, "a table of applied changes", [](const Packet& packet) {
    if (packet.payload_bytes() != 0) fail(ErrorCode::kDataLoss, "tensors behind it");
    return AppliedTable::restore(packet.head);
  });
  in.finish();
  return saved;
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
  return label_in(CheckedReader(snapshot_kind(), file.path(), file.size(), source_of(file)));
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
