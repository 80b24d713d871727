// Command-line flags of the programs, on CLI11.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tutti {

/// Declares flags bound to variables, then parses. `--help` prints and ends with 0; an unknown flag
/// or a bad value prints one line that names flag, expected and got, and ends with exit code 2.
class Flags {
 public:
  explicit Flags(std::string description);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// `name` with its dashes, for example "--batch-size", or without for an argument that is known
  /// by its place. The value that `variable` holds is the default shown in the help.
  void add(const std::string& name, std::string& variable, const std::string& help);
  void add(const std::string& name, std::int64_t& variable, const std::string& help);
  void add(const std::string& name, double& variable, const std::string& help);
  /// A switch without a value.
  void add(const std::string& name, bool& variable, const std::string& help);
  /// A flag that may stand several times; each time adds a value.
  void add(const std::string& name, std::vector<std::string>& variable, const std::string& help);
  /// One of `choices`; another value is refused with the list.
  void add_choice(const std::string& name, std::string& variable,
                  const std::vector<std::string>& choices, const std::string& help);
  /// Takes back flags that a shared part declared and this program has no use for: they are unknown
  /// to it. Throws kInvalidArgument for one that was not declared.
  void remove(const std::vector<std::string>& names);
  /// Text that the help ends with, such as examples.
  void add_footer(const std::string& text);
  /// A sub-command: `body` runs (and gives the exit code) when it was named. `declare` adds its
  /// flags, or commands of its own: then one of those must be named and runs instead.
  void add_command(const std::string& name, const std::string& help,
                   const std::function<void(Flags&)>& declare, std::function<int()> body);

  /// Returns the exit code when the program should end now, or -1 to go on.
  [[nodiscard]] int parse(int argc, char** argv);

 private:
  struct Impl;
  explicit Flags(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
