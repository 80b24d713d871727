// Callbacks that write logs to files: CSV, and TensorBoard's events.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/log_files.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

#include "core/file.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/logging.h"
#include "tutti/model/model.h"

namespace tutti {

// Takes back what was appended to a file after a moment that training goes back to.

namespace {

/// In bytes; 0 for a file that is not there; null where another process writes it.
Json length_of_file(const std::string& path, bool is_writer) {
  if (!is_writer) return {};
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  return Json(error ? std::int64_t{0} : static_cast<std::int64_t>(size));
}

/// Makes a file that is longer than `length` (of length_of_file()) that long. A null leaves it: a
/// line may stand there twice then, but none is lost.
void cut_file(const std::string& path, const Json& length, bool is_writer) {
  if (!is_writer || length.is_null()) return;
  if (length_of_file(path, true).as_int() <= length.as_int()) return;
  std::error_code ignored;  // writing to it says what is wrong
  std::filesystem::resize_file(path, static_cast<std::uintmax_t>(length.as_int()), ignored);
}

/// A line, in folders that are made.
void write_to_file(const char* who, const std::string& path, const std::string& line,
                   std::ios::openmode mode) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // opening the file says what is wrong
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  const FileSizeLimitScope error_instead_of_signal;
  std::ofstream file(path, mode);
  file << line << '\n';
  file.flush();
  if (!file) fail(ErrorCode::kUnavailable, who, ": cannot write ", path);
}

// Writes the values of epochs as a table.

/// The shortest text that reads back as this number.
std::string exact_text(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

std::vector<std::string> names_of_head(const std::string& line, const std::string& separator) {
  std::vector<std::string> names;
  std::size_t begin = 0;
  for (std::size_t end; (end = line.find(separator, begin)) != std::string::npos;
       begin = end + separator.size())
    names.push_back(line.substr(begin, end - begin));
  names.push_back(line.substr(begin));
  names.erase(names.begin());  // "epoch"
  return names;
}

}  // namespace

CsvLogger::CsvLogger(std::string path, CsvLoggerOptions options)
    : path_(std::move(path)), options_(std::move(options)) {
  if (options_.separator.empty())
    fail(ErrorCode::kInvalidArgument, "CsvLogger: expected a separator, got an empty text");
}

void CsvLogger::on_train_begin() {
  names_.clear();
  wrote_head_ = false;
  if (options_.mode == CsvMode::kReplace || !std::filesystem::exists(path_)) return;
  const std::string text = read_file(path_);
  if (text.empty()) return;
  names_ = names_of_head(text.substr(0, text.find('\n')), options_.separator);
  wrote_head_ = true;
}

void CsvLogger::write_line(const std::string& line, std::ios::openmode mode) {
  if (!is_chief()) return;  // the others keep count, for when they are to continue its state
  write_to_file("CsvLogger", path_, line, mode);
}

void CsvLogger::on_epoch_end(std::int64_t epoch, const Logs& logs) {
  if (!wrote_head_) {
    names_ = validation_names();  // the first epochs may be without
    for (const auto& [name, value] : logs) names_.push_back(name);
    std::ranges::sort(names_);
    names_.erase(std::ranges::unique(names_).begin(), names_.end());
    std::string head = "epoch";
    for (const std::string& name : names_) head += options_.separator + name;
    write_line(head, options_.mode == CsvMode::kReplace ? std::ios::trunc : std::ios::app);
    wrote_head_ = true;
  }
  for (const auto& [name, value] : logs) {
    if (std::ranges::find(names_, name) != names_.end()) continue;
    log_warning_once(concat("CsvLogger: ", path_, " has no column '", name,
                            "', so that its values "
                            "are left out; expected one of ",
                            join(names_), "; try another file, or CsvMode::kReplace"));
  }
  std::string line = concat(epoch);
  for (const std::string& name : names_)
    line += options_.separator + (logs.has(name) ? exact_text(logs.at(name)) : "NA");
  write_line(line, std::ios::app);
}

Json CsvLogger::save_state() const {
  Json state = Json::object();
  state.set("names", json_of(names_)).set("wrote_head", wrote_head_);
  state.set("length", length_of_file(path_, is_chief()));
  return state;
}

void CsvLogger::restore_state(const Json& state) {
  names_ = value_of<std::vector<std::string>>(state.at("names"));
  wrote_head_ = state.at("wrote_head").as_bool();
  cut_file(path_, state.at("length"), is_chief());
}

// Writes the values of training for TensorBoard and as lines of JSON.

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
  write_to_file("JsonLog", path(), line.dump(), std::ios::app);
}

Json JsonLog::save_state() const { return length_of_file(path(), is_chief()); }

void JsonLog::restore_state(const Json& state) { cut_file(path(), state, is_chief()); }

}  // namespace tutti
