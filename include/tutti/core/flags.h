// Command-line flags of programs, parsed by CLI11.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tutti {

/// Parser that binds flags to variables. For `--help`, parse() prints the help and returns 0; for
/// an unknown flag or a bad value, it prints one line (flag, expected, got) and returns 2.
class Flags {
 public:
  explicit Flags(std::string description);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// Adds a flag. `name` includes its dashes, for example "--batch-size"; the name of a positional
  /// argument has no dashes. The help shows the current value of `variable` as the default.
  void add(const std::string& name, std::string& variable, const std::string& help);
  void add(const std::string& name, std::int64_t& variable, const std::string& help);
  void add(const std::string& name, double& variable, const std::string& help);
  /// Adds a switch without a value.
  void add(const std::string& name, bool& variable, const std::string& help);
  /// Adds a flag that may be repeated; each occurrence adds a value.
  void add(const std::string& name, std::vector<std::string>& variable, const std::string& help);
  /// Adds a flag whose value must be one of `choices`; the error for another value lists them.
  void add_choice(const std::string& name, std::string& variable,
                  const std::vector<std::string>& choices, const std::string& help);
  /// Removes flags that shared code declares but this program does not use. The program then
  /// rejects them as unknown. Throws kInvalidArgument for a flag that was not declared.
  void remove(const std::vector<std::string>& names);
  /// Sets the text at the end of the help, such as examples.
  void add_footer(const std::string& text);
  /// Adds a subcommand. `body` runs, and returns the exit code, if the command line names the
  /// subcommand. `declare` adds its flags or nested subcommands. If it has nested subcommands, the
  /// command line must name one of them, which runs instead of `body`.
  void add_command(const std::string& name, const std::string& help,
                   const std::function<void(Flags&)>& declare, std::function<int()> body);

  /// Parses the command line and runs the subcommand, if it names one. Returns the exit code if the
  /// program should end now, or -1 to continue.
  [[nodiscard]] int parse(int argc, char** argv);

 private:
  struct Impl;
  explicit Flags(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
