// A shard is written as the operations that would make it: its creation, and the gradients it
// holds.
// SPDX-License-Identifier: Apache-2.0
//
// Behind the label (checked_blocks.h): u64 number of shards; for each u64 version, u64 steps, u32
// and u64 lengths of head and payload of a batch (encoding.h, kBytes), head, payload; u64 length of
// the table, the table.
#include "tutti/strategy/parameter_server/server/snapshot_file.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/protocol/encoding.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kLongestLabel = 64;

std::vector<std::byte> bytes_of(const SnapshotLabel& label) {
  ByteWriter bytes;
  bytes.text(label.job_id);
  bytes.number(static_cast<std::uint32_t>(label.server));
  bytes.number(static_cast<std::uint32_t>(label.num_servers));
  bytes.number(label.cut);
  bytes.number(label.term);
  return std::move(bytes.bytes());
}

SnapshotLabel label_in(const CheckedReader& in) {
  ByteReader bytes(in.head());
  SnapshotLabel label;
  label.job_id = bytes.text(kLongestLabel);
  label.server = static_cast<int>(bytes.number<std::uint32_t>());
  label.num_servers = static_cast<int>(bytes.number<std::uint32_t>());
  label.cut = bytes.number<std::uint64_t>();
  label.term = bytes.number<std::uint64_t>();
  if (!bytes.is_complete()) in.refuse(16, "expected a label, found ", in.head().size(), " bytes");
  return label;
}

template <class Number>
Number number_in(CheckedReader& in) {
  std::byte bytes[sizeof(Number)];
  in.get(std::span<std::byte>(bytes));
  return ByteReader(bytes).number<Number>();
}

Packet packet_of(const ShardSnapshot& shard) {
  OperationBatch batch;
  batch.operations.push_back(CreateShard{shard.spec, shard.value});
  for (const auto& update : shard.accumulator.held()) batch.operations.push_back(*update);
  return encode(batch, HeadFormat::kBytes);
}

void put_shard(const ShardSnapshot& shard, CheckedWriter& out) {
  const Packet packet = packet_of(shard);
  ByteWriter numbers;
  numbers.number(shard.version);
  numbers.number(shard.num_steps);
  numbers.number(static_cast<std::uint32_t>(packet.head.size()));
  numbers.number(std::uint64_t{packet.payload_bytes()});
  out.put(numbers.bytes());
  out.put(packet.head);
  for (const SharedBytes& piece : packet.payload) out.put(piece.bytes);
}

/// What stands in the batch of a shard, if that is what put_shard() writes.
const char* take_batch(const OperationBatch& batch, ShardSnapshot& shard) {
  const auto* create =
      batch.operations.empty() ? nullptr : std::get_if<CreateShard>(&batch.operations.front());
  const auto* value = create ? std::get_if<Tensor>(&create->initial_value) : nullptr;
  if (value == nullptr) return "no values";
  const ShardSpec& spec = create->spec;
  const std::int64_t whole_rows = spec.whole_shape.rank() == 0 ? 1 : spec.whole_shape.dim(0);
  const bool are_rows = spec.first_row >= 0 && spec.num_rows >= 0 && spec.first_row <= whole_rows &&
                        spec.num_rows <= whole_rows - spec.first_row;
  if (!are_rows || value->dtype() != spec.dtype || value->shape() != spec.shape()) {
    return "values that do not fit the shard";
  }
  shard.spec = spec;
  shard.value = *value;
  for (std::size_t i = 1; i < batch.operations.size(); ++i) {
    const auto* update = std::get_if<UpdateShard>(&batch.operations[i]);
    const bool is_held =
        update && update->sync && update->shard == spec.id() &&
        shard.accumulator.take(*update, shard.num_steps) == SyncAccumulator::Taken::kHeld;
    if (!is_held) return "an operation that is no held gradient";
  }
  return nullptr;
}

ShardSnapshot shard_in(CheckedReader& in) {
  const std::uint64_t first = in.offset();
  ShardSnapshot shard;
  shard.version = number_in<std::uint64_t>(in);
  shard.num_steps = number_in<std::uint64_t>(in);
  const auto head_bytes = number_in<std::uint32_t>(in);
  const auto payload_bytes = number_in<std::uint64_t>(in);
  Packet packet{in.get(head_bytes), {}};
  const auto payload = std::make_shared<const std::vector<std::byte>>(in.get(payload_bytes));
  packet.payload.push_back({*payload, payload});
  std::string problem;
  try {
    const bool is_plain = head_format(packet) == HeadFormat::kBytes;
    const char* what = is_plain ? take_batch(decode_batch(packet), shard) : "a head of protobuf";
    if (what) {
      problem = what;
    } else if (packet_of(shard).head != packet.head) {
      problem = "the same in another order";
    }
  } catch (const Error& error) {
    problem = error.message();
  }
  if (!problem.empty()) in.refuse(first, "expected a shard, found ", problem);
  return shard;
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

FileKind snapshot_kind() { return {"TUTTIPSS", 1}; }

void write_snapshot(const SavedSnapshot& saved, const CheckedWriter::Sink& sink) {
  TUTTI_CHECK(saved.label.job_id.size() <= kLongestLabel, "write_snapshot: a job id of ",
              saved.label.job_id.size(), " characters");
  CheckedWriter out(snapshot_kind(), bytes_of(saved.label), sink);
  ByteWriter numbers;
  numbers.number(std::uint64_t{saved.snapshot.shards.size()});
  out.put(numbers.bytes());
  for (const ShardSnapshot& each : saved.snapshot.shards) put_shard(each, out);
  const std::vector<std::byte> table = saved.snapshot.table.save();
  ByteWriter end;
  end.number(std::uint64_t{table.size()});
  out.put(end.bytes());
  out.put(table);
  out.finish();
}

SavedSnapshot read_snapshot(const std::string& path, std::uint64_t size,
                            CheckedReader::Source source) {
  CheckedReader in(snapshot_kind(), path, size, std::move(source));
  SavedSnapshot saved;
  saved.label = label_in(in);
  for (auto left = number_in<std::uint64_t>(in); left > 0; --left) {
    const std::uint64_t first = in.offset();
    ShardSnapshot shard = shard_in(in);
    auto& shards = saved.snapshot.shards;
    if (!shards.empty() && shards.back().spec.id() >= shard.spec.id()) {
      in.refuse(first, "expected shards in the order of their ids, found ", shard.spec.to_string(),
                " behind ", shards.back().spec.to_string());
    }
    shards.push_back(std::move(shard));
  }
  const std::uint64_t first = in.offset();
  const std::vector<std::byte> table = in.get(number_in<std::uint64_t>(in));
  try {
    saved.snapshot.table = AppliedTable::restore(table);
  } catch (const Error& error) {
    in.refuse(first, "expected a table of applied changes, found ", error.message());
  }
  in.finish();
  return saved;
}

SnapshotLabel read_snapshot_label(const std::string& path, std::uint64_t size,
                                  CheckedReader::Source source) {
  return label_in(CheckedReader(snapshot_kind(), path, size, std::move(source)));
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
  return read_snapshot_label(file.path(), file.size(), source_of(file));
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

std::optional<SavedSnapshot> SnapshotFolder::load_newest() const {
  std::vector<std::uint64_t> left = cuts();
  std::optional<Error> first;
  while (!left.empty()) {
    const std::uint64_t cut = left.back();
    left.pop_back();
    try {
      return load(cut);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDataLoss) throw;
      log_warning(concat("ps ", server_, ": passes over the snapshot of cut ", cut,
                         left.empty() ? std::string("; none is left: ")
                                      : concat(" for that of cut ", left.back(), ": "),
                         error.message()));
      if (!first) first = error;
    }
  }
  if (first) throw *first;
  return std::nullopt;
}

}  // namespace tutti::internal
