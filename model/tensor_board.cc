// Writes the values of training for TensorBoard and as lines of JSON.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/tensor_board.h"

#include <filesystem>

#include "tutti/core/file_size_limit.h"
#include "tutti/core/json.h"
#include "tutti/model/cut_file.h"
#include "tutti/model/model.h"

namespace tutti {
namespace {

constexpr std::string_view kValidationPrefix = "val_";

}  // namespace

TensorBoard::TensorBoard(std::string log_dir, TensorBoardOptions options)
    : log_dir_(std::move(log_dir)), options_(options) {}

void TensorBoard::write(std::optional<EventFileWriter>& writer, const char* folder,
                        const std::string& tag, std::int64_t step, double value) {
  if (!is_chief()) return;
  if (!writer) writer.emplace(concat(log_dir_, '/', folder));
  writer->scalar(tag, step, value);
}

void TensorBoard::on_train_batch_end(std::int64_t, const Logs& logs) {
  const std::int64_t batch = batches_++;
  if (options_.update_every_batches <= 0 || batch % options_.update_every_batches != 0) return;
  for (const auto& [name, value] : logs) write(train_, "train", "batch_" + name, batch, value);
}

void TensorBoard::on_epoch_end(std::int64_t epoch, const Logs& logs) {
  for (const auto& [name, value] : logs) {
    if (name.starts_with(kValidationPrefix)) {
      write(validation_, "validation", "epoch_" + name.substr(kValidationPrefix.size()), epoch,
            value);
    } else {
      write(train_, "train", "epoch_" + name, epoch, value);
    }
  }
}

void JsonLog::on_train_begin() { begin_ = Clock::system().now(); }

void JsonLog::on_epoch_end(std::int64_t epoch, const Logs& logs) {
  if (!is_chief()) return;
  Json line = Json::object();
  line.set("epoch", epoch);
  line.set("step", model().optimizer().iterations().value().item_int());
  line.set("seconds", seconds_between(begin_, Clock::system().now()));
  for (const auto& [name, value] : logs) line.set(name, value);
  std::error_code ignored;  // opening the file says what is wrong
  std::filesystem::create_directories(log_dir_, ignored);
  const FileSizeLimitScope error_instead_of_signal;
  std::ofstream file(path(), std::ios::app);
  file << line.dump() << '\n';
  file.flush();
  if (!file) fail(ErrorCode::kUnavailable, "JsonLog: cannot write ", path());
}

Json JsonLog::save_state() const { return internal::length_of_file(path(), is_chief()); }

void JsonLog::restore_state(const Json& state) { internal::cut_file(path(), state, is_chief()); }

}  // namespace tutti
