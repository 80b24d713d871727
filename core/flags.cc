// Command-line flags: tutti's own declarations and messages, with CLI11's parser.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/flags.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>

#include "core/names.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

template <class Number>
Number parse_number(const std::string& name, const std::string& text, const char* expected) {
  if (const auto number = internal::parse_number<Number>(text)) return *number;
  throw CLI::ValidationError(concat(name, ": expected ", expected, ", got '", text, "'"));
}

/// Returns the names of flags or of commands, and suggests the one closest to `given`.
template <class Part>
std::string choices_of(const std::vector<Part*>& parts, std::string_view given = "") {
  return internal::choices(internal::names_of(parts, [](const Part* p) { return p->get_name(); }),
                           given);
}

}  // namespace

struct Flags::Impl {
  /// Adds a flag with one value; its last occurrence on the command line counts.
  void add_value(const std::string& name, const std::string& default_text, const std::string& help,
                 const char* type, std::function<void(const std::string&)> assign) {
    CLI::Option* option = app->add_option_function<std::string>(name, std::move(assign), help);
    option->type_name(type)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    if (!default_text.empty()) option->default_str(default_text);
  }

  /// Returns the deepest subcommand that the command line named; errors refer to it.
  const Impl& active() const {
    for (const auto& command : commands) {
      if (command->app->parsed()) return command->active();
    }
    return *this;
  }

  int report(const std::string& message) const {
    std::fprintf(stderr, "%s\n", concat(app->get_name(), ": ", message).c_str());
    return 2;
  }

  int report_unknown(const std::string& word) const {
    const Impl& asked = active();
    if (!word.starts_with("-") && !asked.commands.empty()) {
      return report(
          concat("unknown command '", word, "'; expected one of ", asked.command_choices(word)));
    }
    if (!word.starts_with("-")) {
      return report(concat("unexpected argument '", word, "'; expected flags only; see --help"));
    }
    const std::string name = word.substr(0, word.find('='));
    return report(concat("unknown flag ", name, "; expected one of ",
                         choices_of(asked.app->get_options(), name)));
  }

  std::string command_choices(std::string_view given = "") const {
    return choices_of(app->get_subcommands(nullptr), given);
  }

  int run_command() const {
    if (commands.empty()) return -1;
    const Impl& asked = active();
    if (asked.commands.empty()) return asked.body();
    return report(concat("no command given; expected one of ", asked.command_choices()));
  }

  void allow_extras() {
    app->allow_extras();
    for (const auto& command : commands) command->allow_extras();
  }

  std::unique_ptr<CLI::App> owned;  // the program's App; a subcommand's App belongs to its parent
  CLI::App* app = nullptr;
  std::function<int()> body;  // a subcommand's function; empty for the main program
  std::vector<std::unique_ptr<Impl>> commands;
};

Flags::Flags(std::string description) : impl_(std::make_unique<Impl>()) {
  impl_->owned = std::make_unique<CLI::App>(std::move(description));
  impl_->app = impl_->owned.get();
}

Flags::Flags(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Flags::~Flags() = default;

void Flags::add(const std::string& name, std::string& variable, const std::string& help) {
  impl_->add_value(name, variable, help, "TEXT",
                   [&variable](const std::string& text) { variable = text; });
}

void Flags::add(const std::string& name, std::int64_t& variable, const std::string& help) {
  impl_->add_value(name, std::to_string(variable), help, "INT",
                   [&variable, name](const auto& text) {
                     variable = parse_number<std::int64_t>(name, text, "a 64-bit integer");
                   });
}

void Flags::add(const std::string& name, double& variable, const std::string& help) {
  impl_->add_value(name, concat(variable), help, "NUMBER", [&variable, name](const auto& text) {
    variable = parse_number<double>(name, text, "a number");
  });
}

void Flags::add(const std::string& name, bool& variable, const std::string& help) {
  impl_->app->add_flag(name, variable, help);
}

void Flags::add(const std::string& name, std::vector<std::string>& variable,
                const std::string& help) {
  impl_->app->add_option(name, variable, help)
      ->type_name("TEXT")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Flags::remove(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    CLI::Option* const option = impl_->app->get_option_no_throw(name);
    internal::require(option != nullptr, "Flags::remove: expected a declared flag, got ", name);
    impl_->app->remove_option(option);
  }
}

void Flags::add_footer(const std::string& text) { impl_->app->footer(text); }

void Flags::add_choice(const std::string& name, std::string& variable,
                       const std::vector<std::string>& choices, const std::string& help) {
  const std::string list = join(choices);
  impl_->add_value(name, variable, concat(help, " (", list, ")"), "NAME",
                   [&variable, name, choices, list](const std::string& text) {
                     if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
                       throw CLI::ValidationError(
                           concat(name, ": expected one of ", list, ", got '", text, "'"));
                     }
                     variable = text;
                   });
}

void Flags::add_command(const std::string& name, const std::string& help,
                        const std::function<void(Flags&)>& declare, std::function<int()> body) {
  auto impl = std::make_unique<Impl>();
  impl->app = impl_->app->add_subcommand(name, help);
  impl->body = std::move(body);
  // The subcommand's App owns these declarations, and the parent's App owns the subcommand's App.
  Flags flags(std::move(impl));
  declare(flags);
  impl_->commands.push_back(std::move(flags.impl_));
}

int Flags::parse(int argc, char** argv) {
  // Messages name the program without its folders.
  const std::string path = argc > 0 ? argv[0] : "program";
  impl_->app->name(path.substr(path.rfind('/') + 1));
  impl_->allow_extras();
  try {
    impl_->app->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(impl_->app->help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    return impl_->report(error.what());
  }
  const auto unknown = impl_->app->remaining(true);
  if (!unknown.empty()) return impl_->report_unknown(unknown.front());
  return impl_->run_command();
}

}  // namespace tutti
