// From traces to a program, and from its results to values.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/step_programs.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/file.h"
#include "core/hash.h"
#include "tensor/xla/pjrt_client.h"
#include "tutti/core/logging.h"
#include "tutti/core/trace.h"

namespace tutti::internal {
namespace {

/// A file per program in the folder that TUTTI_XLA_CACHE names. A plugin takes the bytes of another
/// version without a word and computes wrong values, so each file says what it is for: the plugin's
/// own hash, the processor, the options and the text. Any thread, any number of processes.
class ProgramFiles {
 public:
  explicit ProgramFiles(const PjrtClient& client) : client_(client) {}

  /// nullptr without a folder or a file; a file that is damaged, or of something else, is warned
  /// of and left aside.
  std::unique_ptr<PjrtExecutable> find(std::string_view text,
                                       const std::vector<int>& devices) const;
  /// Writes it to the folder, if there is one. What goes wrong is a warning.
  void keep(const PjrtExecutable& program, std::string_view text,
            const std::vector<int>& devices) const;

 private:
  const PjrtClient& client_;
};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// Machine code is for what the processor can do.
std::string processor() {
  std::istringstream lines(read_file_if_any("/proc/cpuinfo"));
  std::string text;
  for (std::string line; std::getline(lines, line) && !line.empty();) {
    for (const char* key : {"model name", "flags", "CPU implementer", "CPU part", "Features"}) {
      if (line.starts_with(key)) text += line;
    }
  }
  return hash_of(text);
}

/// One line: two programs of equal keys are the same.
std::string key_of(const PjrtClient& client, std::string_view text,
                   const std::vector<int>& devices) {
  static const std::string this_processor = processor();
  return concat("tutti program 1, plugin ", client.plugin().file_hash(), " ", client.platform(),
                ", processor ", this_processor, ", options ",
                hash_of(client.compile_options(devices)), " ", hash_of(variable("XLA_FLAGS")),
                ", text ", hash_of(text), "\n");
}

std::string folder() { return variable("TUTTI_XLA_CACHE"); }

std::string path_of(const std::string& key) {
  return (std::filesystem::path(folder()) / (hash_of(key) + ".xla")).string();
}

constexpr std::size_t kHashSize = 32;

void warn(const std::string& path, std::string_view what, std::string_view reason) {
  log_warning(concat("XLA: ", path, " ", what, ": ", reason,
                     "; the step is compiled; try removing the file, or another TUTTI_XLA_CACHE"));
}

std::unique_ptr<PjrtExecutable> ProgramFiles::find(std::string_view text,
                                                   const std::vector<int>& devices) const {
  if (folder().empty()) return nullptr;
  const std::string key = key_of(client_, text, devices), path = path_of(key);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return nullptr;
  try {
    const std::string file = read_file(path);
    const std::string_view all = file;
    if (!all.starts_with(key)) {
      warn(path, "is not used", "it is no program of this plugin, processor and text");
      return nullptr;
    }
    const std::string_view rest = all.substr(key.size());
    const std::string_view bytes = rest.substr(std::min(kHashSize, rest.size()));
    if (rest.substr(0, kHashSize) != hash_of(bytes)) {
      warn(path, "is not used", "it is damaged: its checksum is another one");
      return nullptr;
    }
    return client_.load(bytes, devices.size());
  } catch (const Error& failure) {
    warn(path, "is not used", failure.message());
    return nullptr;
  }
}

void ProgramFiles::keep(const PjrtExecutable& program, std::string_view text,
                        const std::vector<int>& devices) const {
  if (folder().empty()) return;
  const std::string key = key_of(client_, text, devices), path = path_of(key);
  try {
    const std::string bytes = program.serialize();
    write_file_atomically(path, concat(key, hash_of(bytes), bytes));
  } catch (const Error& failure) {
    warn(path, "is not written", failure.message());
  }
}

using Traces = std::span<const std::unique_ptr<Trace>>;

/// The lines of operation `index`.
std::string_view lines_of(const Trace& trace, std::size_t index) {
  const std::size_t begin = trace.operations()[index].begin;
  const std::size_t end = index + 1 < trace.operations().size()
                              ? trace.operations()[index + 1].begin
                              : trace.text().size();
  return std::string_view(trace.text()).substr(begin, end - begin);
}

std::string operation_at(const Trace& trace, std::size_t index) {
  if (index >= trace.operations().size()) return "nothing more";
  const std::string_view lines = lines_of(trace, index);
  const std::size_t type = lines.rfind(" : ");
  return concat(trace.operations()[index].maker(), " (",
                type == lines.npos ? std::string_view()
                                   : lines.substr(type + 3, lines.rfind('\n') - type - 3),
                ")");
}

[[noreturn]] void fail_different(const Trace& first, const Trace& other) {
  std::size_t index = 0;
  while (index < first.operations().size() && index < other.operations().size() &&
         lines_of(first, index) == lines_of(other, index)) {
    ++index;
  }
  fail(ErrorCode::kInvalidArgument, "a step of ", "replicas that XLA compiles: replica ",
       first.replica(), " does ", operation_at(first, index), ", replica ", other.replica(),
       " does ", operation_at(other, index),
       "; expected the same operations on the same shapes in all replicas; try batches that all "
       "replicas share alike: batch(n, drop_remainder)");
}

bool same_arguments(const Trace& a, const Trace& b) {
  return std::ranges::equal(a.arguments(), b.arguments(), [](const auto& x, const auto& y) {
    return x.spec.shape == y.spec.shape && x.spec.dtype == y.spec.dtype;
  });
}

void check_same(Traces traces) {
  for (const auto& trace : traces) {
    const Trace& first = *traces.front();
    if (trace->text() != first.text() || !same_arguments(first, *trace))
      fail_different(first, *trace);
  }
}

/// Places in made() of what any replica still holds.
std::vector<std::size_t> live_values(Traces traces) {
  std::vector<std::size_t> live;
  for (std::size_t i = 0; i < traces.front()->made().size(); ++i) {
    const bool any = std::ranges::any_of(
        traces, [i](const auto& trace) { return !trace->made()[i].value.expired(); });
    if (any) live.push_back(i);
  }
  return live;
}

std::string type_of(const TensorSpec& spec) {
  return tensor_type(spec.shape, hlo_type(spec.dtype));
}

/// The program of one replica, which all of them run.
std::string program_of(const Trace& trace, const std::vector<std::size_t>& live,
                       const std::vector<bool>& donated) {
  std::string inputs, names, types;
  for (std::size_t i = 0; i < trace.arguments().size(); ++i) {
    inputs += concat(i > 0 ? ", " : "", "%a", i, ": ", type_of(trace.arguments()[i].spec),
                     donated[i] ? " {jax.buffer_donor = true}" : "");
  }
  for (const std::size_t i : live) {
    const Hlo& value = trace.made()[i].hlo;
    names += (names.empty() ? "" : ", ") + value.name();
    types += (types.empty() ? "" : ", ") + tensor_type(value.shape, value.type);
  }
  return concat("module @step {\n  func.func public @main(", inputs, ") -> (", types, ") {\n",
                trace.text(), "    return ", names, " : ", types, "\n  }\n}\n");
}

/// For people: in the folder that TUTTI_XLA_DUMP names, one file per program.
void dump(const std::string& text, std::size_t number) {
  const char* const folder = std::getenv("TUTTI_XLA_DUMP");
  if (!folder || !*folder) return;
  const auto path = std::filesystem::path(folder) / concat("step_", number, ".mlir");
  write_file_atomically(path.string(), text);
  log_info(concat("XLA: program ", number, " is in ", path.string()));
}

}  // namespace

/// An argument whose buffer only the traces and the uploads still hold.
std::vector<bool> StepPrograms::find_donated(Traces traces) const {
  std::unordered_map<const Buffer*, int> own;
  for (const auto& trace : traces) {
    for (const auto& argument : trace->arguments()) ++own[argument.buffer.get()];
  }
  for (const auto& [key, upload] : uploads_) ++own[upload.buffer.get()];
  std::vector<bool> donated;
  for (std::size_t i = 0; i < traces.front()->arguments().size(); ++i) {
    donated.push_back(std::ranges::all_of(traces, [&](const auto& trace) {
      const BufferRef& buffer = trace->arguments()[i].buffer;
      return buffer.num_references() == own[buffer.get()];
    }));
  }
  return donated;
}

const PjrtExecutable& StepPrograms::find_or_compile(std::string text) {
  const auto found = programs_.find(text);
  if (found != programs_.end()) return *found->second;
  const TraceSpan span("compile", "compute");
  dump(text, programs_.size());
  const ProgramFiles files(PjrtClient::get());
  std::unique_ptr<PjrtExecutable> program = files.find(text, devices_);
  if (!program) {
    program = PjrtClient::get().compile(text, devices_);
    ++num_compiled_;
    files.keep(*program, text, devices_);
  }
  return *programs_.emplace(std::move(text), std::move(program)).first->second;
}

std::vector<PjrtExecutable::Buffers> StepPrograms::put_arguments(Traces traces,
                                                                 const std::vector<bool>& donated) {
  Uploads uploads;
  std::vector<PjrtExecutable::Buffers> buffers(traces.size());
  for (std::size_t r = 0; r < traces.size(); ++r) {
    const int device = traces[r]->xla_device();
    for (std::size_t i = 0; i < donated.size(); ++i) {
      const Trace::Argument& argument = traces[r]->arguments()[i];
      if (argument.value) {
        buffers[r].push_back(argument.value->buffer());
        buffers[r].back()->check(argument.spec.shape, argument.spec.dtype, "a step of XLA");
        continue;
      }
      const auto key = std::pair(argument.data, device);
      const auto known = uploads_.find(key);
      const bool is_there = known != uploads_.end() &&
                            known->second.spec.shape == argument.spec.shape &&
                            known->second.spec.dtype == argument.spec.dtype;
      buffers[r].push_back(is_there && !donated[i]
                               ? known->second.copy
                               : PjrtClient::get().upload(argument.data, argument.spec.shape,
                                                          argument.spec.dtype, device));
      if (!donated[i]) uploads[key] = {argument.buffer, argument.spec, buffers[r].back()};
    }
  }
  uploads_ = std::move(uploads);
  return buffers;
}

void StepPrograms::run(Traces traces) {
  check_same(traces);
  const std::vector<std::size_t> live = live_values(traces);
  if (live.empty()) return;
  const std::vector<bool> donated = find_donated(traces);
  last_text_ = program_of(*traces.front(), live, donated);
  const PjrtExecutable& program = find_or_compile(last_text_);
  const TraceSpan span("run", "compute");
  const auto results = program.run(put_arguments(traces, donated));
  for (std::size_t r = 0; r < traces.size(); ++r) {
    TUTTI_CHECK(results[r].size() == live.size(), "a step of XLA: ", results[r].size(),
                " results of ", live.size());
    for (std::size_t i = 0; i < live.size(); ++i) {
      const auto value = traces[r]->made()[live[i]].value.lock();
      if (!value) continue;
      results[r][i]->check(value->spec().shape, value->spec().dtype, "a result of XLA");
      value->set_buffer(results[r][i]);
    }
  }
}

}  // namespace tutti::internal
